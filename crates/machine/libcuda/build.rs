//! Writes one trampoline for each function of the driver, and gives the library its name.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use sublet_driver_api::{CUDA, CUDA_UNDECLARED};

fn main() -> Result<(), Box<dyn Error>> {
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("exports.rs"), exports()?)?;
    println!("cargo::rerun-if-changed=build.rs");
    // The name under which programs ask the loader for the driver.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // A program that closes the library must not take the code from under our thread.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    Ok(())
}

fn exports() -> Result<String, std::fmt::Error> {
    let mut code = String::new();
    for (index, function) in CUDA.iter().enumerate() {
        let symbol = function.symbol;
        writeln!(
            code,
            "sublet_hook::trampoline!({symbol}, {index}, TARGETS);"
        )?;
    }
    for (index, symbol) in CUDA_UNDECLARED.iter().enumerate() {
        writeln!(
            code,
            "sublet_hook::trampoline!({symbol}, {index}, sublet_hook::cuda::undeclared::TARGETS);"
        )?;
    }
    writeln!(code, "static EXPORTS: [Export; {}] = [", CUDA.len())?;
    for function in CUDA.iter() {
        writeln!(code, "    {},", function.symbol)?;
    }
    code.push_str("];\n");
    Ok(code)
}
