//! Keeps `src/gen` equal to the code made from the proto files. It compiles them without `protoc`
//! and compares; with `UPDATE=1` in the environment it rewrites `src/gen` instead. It tests no
//! behaviour of the generated code.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

#[test]
fn generated_code_is_what_the_protos_say() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = tempfile::tempdir()?;
    let descriptors = protox::compile(["deviceplugin.v1beta1.proto"], [root.join("proto")])?;
    tonic_prost_build::configure()
        .out_dir(made.path())
        // Kept encoded instead of as structs; the reason is in src/deviceplugin/list.rs.
        .extern_path(
            ".v1beta1.ListAndWatchResponse",
            "crate::deviceplugin::DeviceList",
        )
        .compile_fds(descriptors)?;

    let file = "v1beta1.rs";
    let fresh = fs::read_to_string(made.path().join(file)).context("read the fresh code")?;
    let kept_at = root.join("src/gen").join(file);
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        fs::write(&kept_at, &fresh)?;
    }
    let kept = fs::read_to_string(&kept_at).context("read the committed code")?;
    assert!(
        kept == fresh,
        "src/gen/{file} is stale; run: UPDATE=1 cargo test -p sublet-kubelet --test generated"
    );
    Ok(())
}
