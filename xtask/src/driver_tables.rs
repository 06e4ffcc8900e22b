//! `cargo xtask driver-tables`: writes the tables of `crates/speak/driver-api`.
//!
//! NVIDIA's headers list the functions that a driver exports, with their first version and
//! their types. This task reads the headers of pinned packages and writes those facts down, so
//! the build needs neither the headers nor a network. The C compiler reads the headers, not
//! we: it resolves their macros, and then checks every pair of type and symbol that we wrote.
//!
//! It is run by hand when a package is pinned anew; the tables are committed.

mod constants;
mod declarations;
mod definitions;
mod layout;
mod packages;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::ffi::OsString;
use std::fs;

use anyhow::{Context, Result, bail, ensure};

use crate::screen::heading;
use crate::setup::repository;
use declarations::{Declaration, Headers};
use packages::{CUDA_NEW, CUDA_OLD, NVML, Package};

/// The macro that asks for everything that a header declares, older versions and per-thread
/// twins too.
const EVERYTHING: &str = "__CUDA_API_VERSION_INTERNAL";

/// The five headers that give each version of each function a type of its own.
const TYPEDEFS: [&str; 5] = [
    "cudaTypedefs.h",
    "cudaProfilerTypedefs.h",
    "cudaGLTypedefs.h",
    "cudaEGLTypedefs.h",
    "cudaVDPAUTypedefs.h",
];

const COLUMNS: &str = "symbol\tbase\tversion\tthread\tsince\treturns\tparams";
const VALUES: &str = "enum\tname\tvalue";
const PLACES: &str = "type\tmember\tat\tsize";

/// Functions of libnvidia-ml that the pinned header does not declare, and programs look for:
/// the private door that nvidia-smi uses, the old names of `nvmlGetExcluded…`, and three of CUDA
/// 11.8.
const NVML_UNDECLARED: &str = "\
    nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *tableId);
    nvmlReturn_t nvmlGetBlacklistDeviceCount(unsigned int *deviceCount);
    nvmlReturn_t nvmlGetBlacklistDeviceInfoByIndex(unsigned int index,
        nvmlExcludedDeviceInfo_t *info);
    nvmlReturn_t nvmlDeviceGetPowerMode(nvmlDevice_t device, unsigned int *powerModeId);
    nvmlReturn_t nvmlDeviceGetSupportedPowerModes(nvmlDevice_t device,
        unsigned int *supportedPowerModes);
    nvmlReturn_t nvmlDeviceSetPowerMode(nvmlDevice_t device, unsigned int powerModeId);";

/// One typed version of a function, and the symbol that it has in a driver.
struct Row {
    symbol: String,
    base: String,
    version: u32,
    thread: String,
    since: u32,
    declared: Declaration,
}

impl Row {
    fn text(&self) -> String {
        let Declaration {
            returns, params, ..
        } = &self.declared;
        format!(
            "{}\t{}\t{}\t{}\t{}\t{returns}\t{params}",
            self.symbol,
            self.base,
            self.version,
            if self.thread.is_empty() {
                "-"
            } else {
                &self.thread
            },
            self.since,
        )
    }
}

/// Writes all tables anew.
pub(crate) fn run() -> Result<()> {
    heading("reading NVIDIA's headers (a minute if the packages are not in the cache)");
    let old = Headers::open(&CUDA_OLD.folder()?, &TYPEDEFS)?;
    let new = Headers::open(&CUDA_NEW.folder()?, &TYPEDEFS)?;
    let nvml = Headers::open(&NVML.folder()?, &["nvml.h"])?;

    let rows = join_versions(cuda_rows(&old, &CUDA_OLD)?, cuda_rows(&new, &CUDA_NEW)?)?;
    store("cuda", COLUMNS, rows.iter().map(Row::text).collect())?;
    let rows = nvml_rows(&nvml)?;
    store("nvml", COLUMNS, rows.iter().map(Row::text).collect())?;

    let read = |headers| constants::read(headers, &[EVERYTHING], &["CU"]);
    let found = constants::join(&read(&old)?, read(&new)?)?;
    store("cuda_constants", VALUES, constants::lines(&found))?;
    let found = constants::read(&nvml, &[], &["NVML", "nvml"])?;
    store("nvml_constants", VALUES, constants::lines(&found))?;

    let measure = |headers| layout::measure(headers, &[EVERYTHING], layout::CUDA_TYPES);
    let mut places = layout::join(&measure(&old)?, measure(&new)?)?;
    places.extend(layout::measure(&nvml, &[], layout::NVML_TYPES)?);
    store("layout", PLACES, layout::lines(&places))
}

/// The folders of the headers, as a list for tests that compile them: each package, and last the
/// headers that these include and do not hold. Fetches missing ones into the cache.
pub(crate) fn header_folders() -> Result<OsString> {
    let mut folders = vec![CUDA_OLD.folder()?, CUDA_NEW.folder()?, NVML.folder()?];
    let stand_ins = Headers::open(&CUDA_NEW.folder()?, &[])?;
    folders.push(stand_ins.stand_ins().to_owned());
    env::join_paths(folders).context("the cache folder's name cannot stand in a list")
}

/// Writes one table of the crate.
fn store(name: &str, columns: &str, mut lines: Vec<String>) -> Result<()> {
    lines.sort();
    let path = format!("crates/speak/driver-api/table/{name}.tsv");
    let text = format!("{columns}\n{}\n", lines.join("\n"));
    fs::write(repository()?.join(&path), text).with_context(|| format!("write {path}"))?;
    println!("{path}: {} rows", lines.len());
    Ok(())
}

/// Splits `cuMemcpyHtoD_v2_ptds` into base, version by suffix (1 without one) and thread mode.
fn split_symbol(symbol: &str) -> (&str, u32, &str) {
    let (rest, thread) = match symbol.rsplit_once('_') {
        Some((rest, thread @ ("ptds" | "ptsz"))) => (rest, thread),
        _ => (symbol, ""),
    };
    match rest.rsplit_once("_v") {
        Some((base, digits)) => match digits.parse() {
            Ok(version) => (base, version, thread),
            Err(_) => (rest, 1, thread),
        },
        None => (rest, 1, thread),
    }
}

/// Splits `PFN_cuMemcpyHtoD_v7000_ptds` into base, CUDA version and thread mode.
fn split_typedef(name: &str) -> Result<(&str, u32, &str)> {
    let inner = name.strip_prefix("PFN_").unwrap_or(name);
    let parts = split_symbol(inner);
    ensure!(parts.1 >= 1000, "{name} names no CUDA version");
    Ok(parts)
}

/// The rows of one package: each typedef with its symbol.
///
/// The headers nowhere say which symbol belongs to which typedef. Both carry a version, in
/// different units, and both grow with time: so the n-th typedef of a base and thread mode is
/// its n-th symbol. That both sides count the same is checked here, and that the types agree
/// is checked by the C compiler.
fn cuda_rows(headers: &Headers, package: &Package) -> Result<Vec<Row>> {
    let mut symbols: BTreeMap<(String, String), BTreeMap<u32, String>> = BTreeMap::new();
    for symbol in headers.functions(&[EVERYTHING], "cu")?.into_keys() {
        let (base, suffix, thread) = split_symbol(&symbol);
        symbols
            .entry((base.to_owned(), thread.to_owned()))
            .or_default()
            .insert(suffix, symbol.clone());
    }
    let mut typedefs: BTreeMap<(String, String), BTreeMap<u32, Declaration>> = BTreeMap::new();
    for declared in headers.function_types(&[EVERYTHING])? {
        let (base, version, thread) = split_typedef(&declared.name)?;
        typedefs
            .entry((base.to_owned(), thread.to_owned()))
            .or_default()
            .insert(version, declared.clone());
    }
    let mut rows = Vec::new();
    for ((base, thread), versions) in typedefs {
        let own = symbols
            .remove(&(base.clone(), thread.clone()))
            .unwrap_or_default();
        ensure!(
            own.len() == versions.len(),
            "{package}: {base} ({thread}) has {} typedefs and the symbols {own:?}",
            versions.len(),
        );
        for ((version, declared), symbol) in versions.into_iter().zip(own.into_values()) {
            rows.push(Row {
                symbol,
                base: base.clone(),
                version,
                thread: thread.clone(),
                since: package.since,
                declared,
            });
        }
    }
    ensure!(
        symbols.is_empty(),
        "{package}: functions without a typedef: {symbols:?}"
    );
    known_to_all_views(headers, package, &rows)?;
    let pairs = rows
        .iter()
        .map(|row| (row.declared.name.as_str(), row.symbol.as_str()));
    headers.check_pairs(&[EVERYTHING], pairs)?;
    Ok(rows)
}

/// Checks that every function that a program sees, with and without per-thread streams, is in
/// the table.
fn known_to_all_views(headers: &Headers, package: &Package, rows: &[Row]) -> Result<()> {
    let known: BTreeSet<&str> = rows.iter().map(|row| row.symbol.as_str()).collect();
    for defines in [&[][..], &["CUDA_API_PER_THREAD_DEFAULT_STREAM"]] {
        for symbol in headers.functions(defines, "cu")?.keys() {
            // The one inline function of the header, which no driver exports.
            if !known.contains(symbol.as_str()) && symbol != "cuGetProcAddress_v2_ptsz" {
                bail!("{package}: {symbol} is declared with {defines:?} and not in the table");
            }
        }
    }
    Ok(())
}

/// The rows of the older package, and the rows that only the newer one has.
fn join_versions(older: Vec<Row>, newer: Vec<Row>) -> Result<Vec<Row>> {
    let known: BTreeMap<String, (String, Declaration)> = older
        .iter()
        .map(|row| {
            let value = (row.symbol.clone(), row.declared.clone());
            (row.declared.name.clone(), value)
        })
        .collect();
    let mut rows = older;
    for row in newer {
        match known.get(&row.declared.name) {
            None => rows.push(row),
            Some((symbol, declared)) => ensure!(
                *symbol == row.symbol && *declared == row.declared,
                "{} changed between the packages: {symbol} {declared:?}, now {} {:?}",
                row.declared.name,
                row.symbol,
                row.declared,
            ),
        }
    }
    Ok(rows)
}

/// Every function of `nvml.h`, in both of its views, and the ones that it does not declare.
fn nvml_rows(headers: &Headers) -> Result<Vec<Row>> {
    let mut functions = headers.functions(&["NVML_NO_UNVERSIONED_FUNC_DEFS"], "nvml")?;
    functions.extend(headers.functions(&[], "nvml")?);
    ensure!(
        functions.len() > 400,
        "only {} functions found in nvml.h",
        functions.len()
    );
    let row = |declared: Declaration, since| {
        let (base, version, _) = split_symbol(&declared.name);
        Row {
            symbol: declared.name.clone(),
            base: base.to_owned(),
            version,
            thread: String::new(),
            since,
            declared,
        }
    };
    let undeclared = declarations::functions_in(NVML_UNDECLARED, "nvml");
    if let Some(name) = undeclared.keys().find(|name| functions.contains_key(*name)) {
        bail!("nvml.h declares {name} now: remove it from the list of undeclared ones");
    }
    let declared = functions.into_values().map(|one| row(one, NVML.since));
    Ok(declared
        .chain(undeclared.into_values().map(|one| row(one, 0)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::{split_symbol, split_typedef};

    #[test]
    fn names_are_split_into_base_version_and_thread_mode() {
        assert_eq!(
            split_symbol("cuMemcpyHtoD_v2_ptds"),
            ("cuMemcpyHtoD", 2, "ptds")
        );
        assert_eq!(split_symbol("cuMemAlloc"), ("cuMemAlloc", 1, ""));
        assert_eq!(
            split_symbol("cuStreamGetCtx_ptsz"),
            ("cuStreamGetCtx", 1, "ptsz")
        );
        // Neither a version nor a thread mode.
        assert_eq!(split_symbol("cuGet_value"), ("cuGet_value", 1, ""));
        assert_eq!(
            split_typedef("PFN_cuMemcpy_v7000_ptds").unwrap(),
            ("cuMemcpy", 7000, "ptds")
        );
        assert!(split_typedef("PFN_cuMemcpy").is_err());
    }
}
