//! `cuGetProcAddress`: the way in which every CUDA runtime since 11.3 finds the driver's functions.
//!
//! The driver is asked first, with the program's own arguments, so that its status and its idea of
//! versions stand. Then the address is exchanged for ours if, and only if, the driver found a row
//! that we hook: base name, *resolved* version, thread mode. Exchanging by name alone gives a
//! program of 2016 the function of 2023 with one more parameter.
//!
//! A name or version that is newer than our table is not ours to understand. It is counted; a
//! strict tenant does not get it if it could make memory or work.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use sublet_abi::Mode;
use sublet_driver_api::CUDA;

use super::c::*;
use super::{real, row};
use crate::guard::{Inside, catch_panic};
use crate::link::LinkState;
use crate::process;
use crate::real::Like;

/// Match of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Row(usize),
    /// Newer than our table, and of a kind that matters.
    Unknown,
    /// Newer than our table, of a kind that takes neither memory nor time.
    Harmless,
}

/// Names that begin so make memory or work.
const MATTERS: [&str; 4] = ["cuMem", "cuLaunch", "cuGraph", "cuArray"];

/// `cuGetProcAddress` of CUDA 11.3.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn look_up<R: Like<row::cuGetProcAddress>>(
    symbol: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    let inside = Inside::enter();
    // SAFETY: the program's own arguments.
    let result = unsafe { R::call((symbol, address, version, flags)) };
    if inside.is_none() {
        return result;
    }
    // SAFETY: the program's own arguments, as the driver has accepted them.
    if unsafe { exchange(result, symbol, address, version, flags) } {
        result
    } else {
        CUDA_ERROR_NOT_FOUND
    }
}

/// `cuGetProcAddress_v2`: also says why there is no address.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn look_up_v2<R: Like<row::cuGetProcAddress_v2>>(
    symbol: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    let inside = Inside::enter();
    // SAFETY: the program's own arguments.
    let result = unsafe { R::call((symbol, address, version, flags, status)) };
    if inside.is_none() {
        return result;
    }
    // SAFETY: the program's own arguments, as the driver has accepted them.
    let is_given = unsafe { exchange(result, symbol, address, version, flags) };
    if !is_given && !status.is_null() {
        // SAFETY: not null, and the driver has written it.
        unsafe { status.write(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND) };
    }
    // A name that the driver does not know is no error in this form either.
    result
}

/// Puts our function in the place of the driver's where we have one. False if the program may not
/// have it: then there is no address.
///
/// # Safety
/// The arguments are those of a look-up that returned `result`.
unsafe fn exchange(
    result: CUresult,
    symbol: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> bool {
    if result != CUDA_SUCCESS || symbol.is_null() || address.is_null() {
        return true;
    }
    // SAFETY: not null, and the driver has read one and written the other.
    let (symbol, found) = unsafe { (CStr::from_ptr(symbol), *address) };
    let Ok(base) = symbol.to_str() else {
        return true;
    };
    if found.is_null() {
        return true;
    }
    let exchanged = catch_panic(|| match row_of(base, found, version, flags) {
        Found::Harmless => Some(found),
        Found::Row(index) => Some(ours(index, found)),
        Found::Unknown => is_allowed().then_some(found),
    });
    let given = exchanged.unwrap_or(Some(found));
    // SAFETY: the driver wrote it just now.
    unsafe { address.write(given.unwrap_or(std::ptr::null_mut())) };
    given.is_some()
}

/// An exported function, of whatever type.
pub type Export = unsafe extern "C" fn();

/// Functions given out in place of the driver's. The library that exports them registers them when
/// it is loaded.
static OURS: OnceLock<Ours> = OnceLock::new();

struct Ours {
    exports: &'static [Export; row::COUNT],
    is_hooked: fn(usize) -> bool,
}

/// Tells the exported functions, by row, and for which of them the driver's are exchanged.
pub(super) fn give_out(exports: &'static [Export; row::COUNT], is_hooked: fn(usize) -> bool) {
    // Said once: each library has its own.
    let _ = OURS.set(Ours { exports, is_hooked });
}

/// The exported function of a row that is hooked; the driver's own for all others.
fn ours(index: usize, found: *mut c_void) -> *mut c_void {
    let Some(ours) = OURS.get().filter(|ours| (ours.is_hooked)(index)) else {
        return found;
    };
    real::REAL.learn(index, found);
    ours.exports[index] as *mut c_void
}

/// Finds the row of the function that the driver found.
fn row_of(base: &str, found: *mut c_void, version: c_int, flags: u64) -> Found {
    // The driver compares without a sign: -1 is newer than everything.
    let asked = version.cast_unsigned();
    let per_thread = flags & u64::from(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.0) != 0;
    // A driver that is older than what is asked for finds the newest it has.
    let known = asked.min(driver_version().unwrap_or(asked));
    let row = CUDA.resolve(base, known, per_thread);
    let newest = CUDA.iter().map(|row| row.version).max().unwrap_or(0);
    match row {
        // Between our table's newest version and what is asked for, the function may have
        // changed: ask for the one we know, and see if it is the same.
        Some(row) if known <= newest || is_same_at(base, newest, flags, found) => Found::Row(row),
        _ if MATTERS.iter().any(|begin| base.starts_with(begin)) => Found::Unknown,
        _ => Found::Harmless,
    }
}

fn driver_version() -> Option<u32> {
    let mut version = 0;
    // SAFETY: writes the number it is given; allowed before cuInit.
    let result = unsafe { real::cuDriverGetVersion(&raw mut version) };
    let version = u32::try_from(version).ok().filter(|version| *version > 0);
    version.filter(|_| result == CUDA_SUCCESS)
}

fn is_same_at(base: &str, version: u32, flags: u64, found: *mut c_void) -> bool {
    let Ok(symbol) = std::ffi::CString::new(base) else {
        return false;
    };
    let mut address = std::ptr::null_mut();
    // SAFETY: all arguments are live.
    let result = unsafe {
        real::cuGetProcAddress(
            symbol.as_ptr(),
            &raw mut address,
            version.cast_signed(),
            flags,
        )
    };
    result == CUDA_SUCCESS && address == found
}

/// Counts an unknown function; false if the tenant may not have it.
fn is_allowed() -> bool {
    match process::current().state() {
        LinkState::Off | LinkState::Unmanaged(_) => true,
        LinkState::Forbidden(_) => false,
        LinkState::Managed(link) => {
            link.ledger().slot(link.slot()).count_unknown();
            link.control().mode() == Mode::Compat
        }
    }
}
