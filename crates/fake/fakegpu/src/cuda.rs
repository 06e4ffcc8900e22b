//! The functions of libcuda. Each one reads C's arguments, asks the driver, and writes C's results;
//! nothing is decided here.
//!
//! Each folder is a feature, as in [`driver`](crate::driver). [`features`] lists the functions that
//! are there and those that are missing; a missing one gives `CUDA_ERROR_NOT_SUPPORTED`.
#![expect(
    non_snake_case,
    reason = "the functions have C's names, by which they are found"
)]

use sublet_driver_api::CUDA;

use crate::FunctionPointer;
use crate::driver::result::Code;

mod arguments;
mod context;
mod device;
mod entry;
pub mod features;
mod graph;
mod init;
mod memory;
mod module;
mod sharing;
mod stream;

use entry::{Entry, Handle, functions, guard, outside_capture};
use features::FEATURES;

/// All functions that the fake has.
fn entries() -> impl Iterator<Item = &'static Entry> {
    FEATURES.iter().flat_map(features::Feature::entries)
}

/// Returns the function to jump to for the exported function number `index` of the table.
#[must_use]
pub fn target(index: usize) -> FunctionPointer {
    let found = CUDA.get(index).and_then(|row| address(row.symbol));
    found.unwrap_or(FunctionPointer(not_supported as *const ()))
}

/// The function that a symbol leads to, if the fake has it.
fn address(symbol: &str) -> Option<FunctionPointer> {
    let (name, per_thread) = match symbol
        .strip_suffix("_ptsz")
        .or(symbol.strip_suffix("_ptds"))
    {
        Some(name) => (name, true),
        None => (symbol, false),
    };
    let entry = entries().find(|entry| entry.symbol == name)?;
    if per_thread {
        entry.twin
    } else {
        Some(entry.plain)
    }
}

extern "C" fn not_supported() -> u32 {
    guard("a function that the fake has not", || {
        Err(Code::NOT_SUPPORTED)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_declared_with_as_many_parameters_and_its_twin() {
        let mut n_found = 0;
        for entry in entries() {
            let row = CUDA.by_symbol(entry.symbol);
            let row = row.unwrap_or_else(|| panic!("no header has {}", entry.symbol));
            assert_eq!(row.params.len(), entry.n_params, "{}", entry.symbol);
            let twins = ["_ptds", "_ptsz"].map(|end| format!("{}{end}", entry.symbol));
            let has_twin = twins.iter().any(|twin| CUDA.by_symbol(twin).is_some());
            assert_eq!(has_twin, entry.twin.is_some(), "{}", entry.symbol);
            n_found += 1;
        }
        let declared: std::collections::BTreeSet<_> = entries().map(|entry| entry.symbol).collect();
        assert_eq!(declared.len(), n_found, "a function is there twice");
    }
}
