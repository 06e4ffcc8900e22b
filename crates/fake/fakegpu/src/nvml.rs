//! The functions of libnvidia-ml on the fake machine: its cards, their users, their utilisation.
//! They read the same file as the driver's; nothing here changes the machine.
//!
//! Read `pointer` first: the conversion of C's arguments to values. Then `library` (its start, and
//! the card that a handle means), then the files by subject. A function that is missing here is
//! exported too. If it changes something, it answers that it needs more rights; otherwise it
//! answers that the card does not support it.

mod device;
mod event;
mod exported;
mod library;
mod memory;
mod mode;
mod pointer;
mod process;
mod sensor;
mod system;
mod topology;

#[cfg(test)]
mod tests;

use sublet_driver_api::nvml::{NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_SUPPORTED, nvmlReturn_t};

use self::exported::Exported;
use crate::FunctionPointer;

/// All functions that are here, by subject.
const ALL: [(&str, &[Exported]); 9] = [
    ("Start-up, versions, errors", system::FUNCTIONS),
    ("Error texts", system::ALWAYS),
    ("Cards", device::FUNCTIONS),
    ("Memory", memory::FUNCTIONS),
    ("Processes", process::FUNCTIONS),
    ("Clocks, power, temperature, utilisation", sensor::FUNCTIONS),
    ("Modes", mode::FUNCTIONS),
    ("Topology and NVLink", topology::FUNCTIONS),
    ("Events", event::FUNCTIONS),
];

/// Returns the functions that answer, by subject.
pub fn answered() -> impl Iterator<Item = (&'static str, impl Iterator<Item = &'static str>)> {
    let symbols = |functions: &'static [Exported]| functions.iter().map(|here| here.symbol);
    ALL.iter()
        .map(move |(subject, functions)| (*subject, symbols(functions)))
}

/// Returns the function to jump to for an exported name. For compile time: a library that exports
/// the whole table asks for each row.
#[must_use]
pub const fn entry(symbol: &str) -> FunctionPointer {
    let mut file = 0;
    while file < ALL.len() {
        let mut at = 0;
        while at < ALL[file].1.len() {
            if is_same(ALL[file].1[at].symbol, symbol) {
                return ALL[file].1[at].entry;
            }
            at += 1;
        }
        file += 1;
    }
    if changes(symbol) {
        FunctionPointer(denied as *const ())
    } else {
        FunctionPointer(unsupported as *const ())
    }
}

/// Does a function change a card? Only root may, and we play that nobody here is root.
const fn changes(symbol: &str) -> bool {
    const VERBS: [&str; 12] = [
        "DeviceSet",
        "DeviceReset",
        "DeviceClear",
        "DeviceFreeze",
        "DeviceModify",
        "DeviceRemove",
        "DeviceCreate",
        "DeviceLock",
        "SystemSet",
        "UnitSet",
        "InstanceSet",
        "DevicePowerSmoothing",
    ];
    let mut at = 0;
    while at < VERBS.len() {
        if contains(symbol, VERBS[at]) {
            return true;
        }
        at += 1;
    }
    false
}

const fn is_same(a: &str, b: &str) -> bool {
    a.len() == b.len() && contains(a, b)
}

/// `str::contains`, which cannot be called at compile time.
const fn contains(text: &str, part: &str) -> bool {
    let (text, part) = (text.as_bytes(), part.as_bytes());
    let mut start = 0;
    while start + part.len() <= text.len() {
        let mut n_same = 0;
        while n_same < part.len() && text[start + n_same] == part[n_same] {
            n_same += 1;
        }
        if n_same == part.len() {
            return true;
        }
        start += 1;
    }
    false
}

/// For functions that change something.
extern "C" fn denied() -> nvmlReturn_t {
    library::machine().err().unwrap_or(NVML_ERROR_NO_PERMISSION)
}

/// For functions that have no meaning on the fake machine.
extern "C" fn unsupported() -> nvmlReturn_t {
    library::machine().err().unwrap_or(NVML_ERROR_NOT_SUPPORTED)
}
