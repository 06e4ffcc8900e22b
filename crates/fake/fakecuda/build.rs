//! Gives the library the name under which programs look for the driver, and writes one
//! exported function for each that the headers declare.

use std::fmt::Write as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Its threads run until the process ends, so it can never be unloaded.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
    let functions = &sublet_driver_api::CUDA;
    let mut text = format!("const N_FUNCTIONS: usize = {};\n", functions.len());
    for (index, function) in functions.iter().enumerate() {
        let symbol = function.symbol;
        writeln!(text, "export!({symbol}, {index});")?;
    }
    let folder = std::env::var("OUT_DIR")?;
    std::fs::write(format!("{folder}/exports.rs"), text)?;
    Ok(())
}
