//! Gives the library the name under which programs look for the driver's, and writes one
//! exported function for each row of the table.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use sublet_driver_api::NVML;

fn main() -> Result<(), Box<dyn Error>> {
    let mut code = String::new();
    for (index, function) in NVML.iter().enumerate() {
        let symbol = function.symbol;
        writeln!(
            code,
            "sublet_hook::trampoline!({symbol}, {index}, sublet_hook::nvml::TARGETS);"
        )?;
    }
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("exports.rs"), code)?;
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // What the hooks remember must outlive a program's `dlclose`.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
