//! Gives every driver function a name in the code, with its place in the table and its type.
//!
//! Hooks are bound to rows when this is compiled. A name that no table has is then an error,
//! where a look-up by text would be a hook that is never called; and so is a hook that takes
//! other arguments than NVIDIA's header declares.
//!
//! `row::cuMemAlloc_v2` is two things: as a value the place, as a type the one that `real::Row` is
//! implemented for. `row::prototype!(cuMemAlloc_v2 then)` calls the macro `then!` with the
//! function's prototype. Only the prototypes that are asked for need their types.
//! `row::gated!(then)` calls `then!` for each row that makes the card work.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use sublet_driver_api::{CUDA, NVML, Table};

/// The library has it for its tests alone.
#[path = "src/cuda/gated.rs"]
mod gated;

fn main() -> Result<(), Box<dyn Error>> {
    let out = env::var("OUT_DIR")?;
    let cuda = format!("{}{}", rows(&CUDA)?, gated_rows()?);
    fs::write(Path::new(&out).join("cuda_rows.rs"), cuda)?;
    fs::write(Path::new(&out).join("nvml_rows.rs"), rows(&NVML)?)?;
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/cuda/gated.rs");
    Ok(())
}

/// The rows that make the card work: one call of a macro for all of them, since each is an arm of
/// a `match` there.
fn gated_rows() -> Result<String, Box<dyn Error>> {
    let mut code = String::from("macro_rules! gated {\n    ($then:ident) => { $then! {\n");
    for function in CUDA.iter().filter(|function| gated::is_gated(function)) {
        let (streams, prototype) = (gated::streams(function), function.prototype());
        writeln!(code, "        [{streams}] {prototype};")?;
    }
    code.push_str("    } };\n}\npub(super) use gated;\n");
    Ok(code)
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
