//! Gives every driver function a name in the code, with its place in the table and its type.
//!
//! Hooks are bound to rows when this is compiled. A name that no table has is then an error,
//! where a look-up by text would be a hook that is never called; and so is a hook that takes
//! other arguments than NVIDIA's header declares.
//!
//! `row::cuMemAlloc_v2` is two things: as a value the place, as a type what
//! `real::Row` is implemented for. `row::prototype!(cuMemAlloc_v2 then)` calls the macro `then!`
//! with the function's prototype. Only the prototypes that are asked for need their types.

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
    let mut prototypes = String::new();
    for (index, function) in table.iter().enumerate() {
        let (symbol, prototype) = (function.symbol, function.prototype());
        writeln!(code, "pub const {symbol}: usize = {index};")?;
        writeln!(code, "#[derive(Debug)]\npub enum {symbol} {{}}")?;
        writeln!(
            prototypes,
            "    ({symbol} $then:ident) => {{ $then! {{ {prototype} }} }};"
        )?;
    }
    writeln!(code, "pub const COUNT: usize = {};", table.len())?;
    writeln!(code, "macro_rules! prototype {{\n{prototypes}}}")?;
    writeln!(code, "pub(super) use prototype;")?;
    Ok(code)
}
