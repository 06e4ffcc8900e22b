//! The functions of libcuda. Each one reads C's arguments, asks the driver, and writes C's results;
//! nothing is decided here.
//!
//! Each folder is a feature, as in [`driver`](crate::driver). [`features`] lists the functions that
//! are there and those that are missing; a missing one gives `CUDA_ERROR_NOT_SUPPORTED`.
#![expect(
    non_snake_case,
    reason = "the functions have C's names, by which they are found"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use sublet_driver_api::CUDA;

use crate::FunctionPointer;
use crate::driver::result::{Answer, Code};
use crate::driver::{Session, faults};
use crate::trace;

mod arguments;
mod context;
mod device;
pub mod features;
mod graph;
mod init;
mod memory;
mod module;
mod sharing;
mod stream;

use features::FEATURES;

/// Handles are numbers here, as wide as C's pointers.
type Handle = u64;

/// A function and its per-thread twin.
struct Entry {
    symbol: &'static str,
    plain: FunctionPointer,
    twin: Option<FunctionPointer>,
    #[cfg(test)]
    n_params: usize,
}

/// Functions of libcuda with bodies that give an [`Answer`]. A `stream fn` has a twin for
/// per-thread default streams, and its body sees which of them was called as `PER_THREAD`.
macro_rules! functions {
    ($($tokens:tt)*) => {
        $crate::cuda::functions_of! { [] $($tokens)* }
    };
}

macro_rules! functions_of {
    ([$($done:tt)*]) => {
        pub(crate) const ENTRIES: &[$crate::cuda::Entry] = &[$($done)*];
    };
    ([$($done:tt)*] fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        pub(crate) extern "C" fn $name($($argument: $type),*) -> u32 {
            $crate::cuda::guard(stringify!($name), move || $body)
        }
        $crate::cuda::functions_of! {
            [$($done)* $crate::cuda::Entry {
                symbol: stringify!($name),
                plain: $crate::FunctionPointer($name as *const ()),
                twin: None,
                #[cfg(test)]
                n_params: <[&str]>::len(&[$(stringify!($argument)),*]),
            },]
            $($rest)*
        }
    };
    ([$($done:tt)*] stream fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        pub(crate) extern "C" fn $name<const PER_THREAD: bool>($($argument: $type),*) -> u32 {
            $crate::cuda::guard(stringify!($name), move || $body)
        }
        $crate::cuda::functions_of! {
            [$($done)* $crate::cuda::Entry {
                symbol: stringify!($name),
                plain: $crate::FunctionPointer($name::<false> as *const ()),
                twin: Some($crate::FunctionPointer($name::<true> as *const ())),
                #[cfg(test)]
                n_params: <[&str]>::len(&[$(stringify!($argument)),*]),
            },]
            $($rest)*
        }
    };
}

pub(crate) use {functions, functions_of};

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

/// Runs the body of a function: makes the fault that was asked for, and lets no panic
/// into the program.
fn guard(name: &'static str, body: impl FnOnce() -> Answer) -> u32 {
    let code = match faults().strike(name) {
        Some(code) => code,
        None => match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(())) => 0,
            Ok(Err(code)) => code.0,
            Err(_) => Code::UNKNOWN.0,
        },
    };
    trace::call(name, code);
    code
}

/// The driver's state, for a call that nobody may make during a capture.
fn outside_capture() -> Answer<Session> {
    let mut session = Session::open()?;
    session.forbid_in_capture()?;
    Ok(session)
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

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(guard("cuTest", || Err(Code::NOT_READY)), 600);
        assert_eq!(guard("cuTest", || Ok(())), 0);
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let code = guard("cuTest", || panic!("on purpose"));
        std::panic::set_hook(loud);
        assert_eq!(code, 999);
    }
}
