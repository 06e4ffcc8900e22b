//! Turns `table/*.tsv` into Rust arrays.
//!
//! A table says a thing once and in one line, so that a change of it can be read; this writes it
//! down again as code, sorted for the look-ups. It needs no network and no header.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let out = env::var("OUT_DIR")?;
    for name in ["cuda", "nvml"] {
        let path = format!("table/{name}.tsv");
        println!("cargo::rerun-if-changed={path}");
        let table = fs::read_to_string(&path)?;
        let code = arrays(&name.to_uppercase(), &table).map_err(|why| format!("{path}: {why}"))?;
        fs::write(Path::new(&out).join(format!("{name}.rs")), code)?;

        let path = format!("table/{name}_constants.tsv");
        println!("cargo::rerun-if-changed={path}");
        let table = fs::read_to_string(&path)?;
        let code = constants(&table).map_err(|why| format!("{path}: {why}"))?;
        fs::write(Path::new(&out).join(format!("{name}_constants.rs")), code)?;
    }
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}

/// The functions by symbol, and their indices by base, version and thread mode.
fn arrays(name: &str, table: &str) -> Result<String, String> {
    let mut rows: Vec<Vec<&str>> = table
        .lines()
        .skip(1)
        .map(|line| line.split('\t').collect())
        .collect();
    rows.sort();
    let mut functions = String::new();
    let mut order = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let [symbol, base, version, thread, since, returns, params] = row[..] else {
            return Err(format!("{row:?} has not seven columns"));
        };
        let thread = match thread {
            "-" => "Legacy",
            "ptds" => "Ptds",
            "ptsz" => "Ptsz",
            _ => return Err(format!("{symbol}: `{thread}` is no thread mode")),
        };
        let number = |text: &str| {
            text.parse::<u32>()
                .map_err(|why| format!("{symbol}: {why}"))
        };
        let (version, since) = (number(version)?, number(since)?);
        let list: Vec<&str> = params.split(", ").filter(|one| !one.is_empty()).collect();
        let _ = writeln!(
            functions,
            "    Function {{ symbol: {symbol:?}, base: {base:?}, version: {version}, \
             thread: Thread::{thread}, since: {since}, returns: {returns:?}, params: &{list:?} }},"
        );
        order.push((base, version, thread, index));
    }
    order.sort_unstable();
    let order: Vec<usize> = order.into_iter().map(|key| key.3).collect();
    Ok(format!(
        "static {name}_ROWS: [Function; {len}] = [\n{functions}];\n\
         static {name}_ORDER: [u16; {len}] = {order:?};\n",
        len = rows.len()
    ))
}

/// The enums, as an invocation of the crate's macro; the other constants, as numbers.
fn constants(table: &str) -> Result<String, String> {
    let mut enums: BTreeMap<&str, String> = BTreeMap::new();
    let mut numbers = String::new();
    for line in table.lines().skip(1) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [kind, name, value] = columns[..] else {
            return Err(format!("`{line}` has not three columns"));
        };
        if kind != "-" {
            let body = enums.entry(kind).or_default();
            let _ = writeln!(body, "    {name} = {value},");
            continue;
        }
        let width = match value.parse::<i128>() {
            Ok(i128::MIN..0) => "i32",
            Ok(value) if value <= u32::MAX.into() => "u32",
            Ok(_) => "u64",
            Err(why) => return Err(format!("{name}: {why}")),
        };
        let _ = writeln!(numbers, "pub const {name}: {width} = {value};");
    }
    let mut code = "enums! {\n".to_owned();
    for (name, body) in enums {
        let _ = writeln!(code, "{name} {{\n{body}}}");
    }
    Ok(format!("{code}}}\n{numbers}"))
}
