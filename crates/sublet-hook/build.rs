//! Gives every driver function's place in the tables a name: `row::cuMemAlloc_v2`.
//!
//! Hooks are bound to rows when this is compiled. A name that no table has is then an error,
//! where a look-up by text would be a hook that is never called.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use sublet_driver_api::{CUDA, NVML, Table};

fn main() -> Result<(), Box<dyn Error>> {
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("cuda_rows.rs"), rows(&CUDA)?)?;
    fs::write(Path::new(&out).join("nvml_rows.rs"), rows(&NVML)?)?;
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}

fn rows(table: &Table) -> Result<String, Box<dyn Error>> {
    let mut code = String::new();
    for (index, function) in table.iter().enumerate() {
        writeln!(code, "pub const {}: usize = {index};", function.symbol)?;
    }
    writeln!(code, "pub const COUNT: usize = {};", table.len())?;
    Ok(code)
}
