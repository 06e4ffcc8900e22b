//! Gives the library the name under which programs look for the driver, and writes down
//! one export for each function of the table.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;

use sublet_driver_api::NVML;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rerun-if-changed=build.rs");
    let symbols: Vec<&str> = NVML.iter().map(|row| row.symbol).collect();
    let code = format!("exports! {{\n{}\n}}\n", symbols.join("\n"));
    fs::write(Path::new(&env::var("OUT_DIR")?).join("exports.rs"), code)?;
    Ok(())
}
