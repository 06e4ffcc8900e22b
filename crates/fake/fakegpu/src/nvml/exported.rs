//! A function of libnvidia-ml as C calls it: its body answers, and a code or a fault goes to C.

use std::sync::OnceLock;

use sublet_driver_api::nvml::{NVML_SUCCESS, nvmlReturn_t};

use crate::FunctionPointer;
use crate::fault::Faults;

static FAULTS: OnceLock<Faults> = OnceLock::new();

/// Result of a function. Codes other than success are errors.
pub(super) type Answer<T = ()> = Result<T, nvmlReturn_t>;

/// A function that is here.
pub(super) struct Exported {
    pub(super) symbol: &'static str,
    pub(super) entry: FunctionPointer,
    /// Its parameters' types, for the test that compares them with the header's.
    #[cfg_attr(not(test), expect(dead_code, reason = "compared by a test"))]
    pub(super) params: &'static [&'static str],
}

/// Declares functions of the library. Each body is a closure that answers. Its arguments come from
/// a C program, which promises to follow `nvml.h`.
macro_rules! functions {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block)*) => {
        $(
            $(#[$doc])*
            #[expect(non_snake_case, reason = "the name is C's")]
            extern "C" fn $name($($arg: $type),*) -> sublet_driver_api::nvml::nvmlReturn_t {
                $crate::nvml::exported::code(stringify!($name), || $body)
            }
        )*

        pub(super) const FUNCTIONS: &[$crate::nvml::exported::Exported] = &[$(
            $crate::nvml::exported::Exported {
                symbol: stringify!($name),
                entry: $crate::FunctionPointer($name as *const ()),
                params: &[$(stringify!($type)),*],
            },
        )*];
    };
}
pub(super) use functions;

/// The code that C gets, or the one that a test asked for by
/// [`fault::VARIABLE`](crate::fault::VARIABLE).
pub(super) fn code(symbol: &str, body: impl FnOnce() -> Answer) -> nvmlReturn_t {
    if let Some(code) = faults().strike(symbol) {
        return nvmlReturn_t(code);
    }
    body().err().unwrap_or(NVML_SUCCESS)
}

/// The faults that this process was told to make.
fn faults() -> &'static Faults {
    FAULTS.get_or_init(Faults::of_environment)
}
