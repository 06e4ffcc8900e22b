//! What the program is told about memory: its own part, not the card.
//!
//! Numbers come from [`crate::report`], as NVML's do. They are never more than what the driver
//! says: a card on which others have taken what is free has nothing for this tenant either.

use std::ffi::c_uint;

use super::c::*;
use super::tenant::{Place, Tenant, current_device};
use super::{pool, real};
use crate::guard::{Inside, calm};
use crate::report::{self, Memory};

/// A device's memory, with what its pools have now.
fn memory(tenant: &Tenant, device: CUdevice) -> Memory {
    match tenant.place(device) {
        Place::Listed(index) => {
            pool::look_again(tenant, index);
            report::memory(tenant.link, index)
        }
        Place::Unlisted => report::NONE,
    }
}

/// Writes a number where the program wants one: not every caller of `cuMemGetInfo` wants both.
///
/// # Safety
/// `place` is null or can be written.
unsafe fn tell<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: as the caller says.
        unsafe { place.write(value) };
    }
}

/// A size in the 32 bits of old versions.
fn narrow(bytes: u64) -> c_uint {
    c_uint::try_from(bytes).unwrap_or(c_uint::MAX)
}

/// A tenant, and that this call is not the driver's own.
fn watched() -> Option<(Inside, Tenant)> {
    let inside = Inside::enter()?;
    let tenant = calm(Tenant::current).flatten()?;
    Some((inside, tenant))
}

/// `cuMemGetInfo_v2`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn get<const ROW: usize>(free: *mut usize, total: *mut usize) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut usize, *mut usize) -> CUresult =
        unsafe { real::function(ROW) };
    let Some((_inside, tenant)) = watched() else {
        // SAFETY: the program's own arguments.
        return unsafe { real(free, total) };
    };
    let (mut free_now, mut total_now) = (0, 0);
    // SAFETY: both are live.
    let result = unsafe { real(&raw mut free_now, &raw mut total_now) };
    if result == CUDA_SUCCESS {
        let ours = calm(|| Some(memory(&tenant, current_device()?))).flatten();
        let ours = ours.unwrap_or(report::NONE);
        // SAFETY: null or the program's.
        unsafe {
            tell(free, free_now.min(ours.free as usize));
            tell(total, total_now.min(ours.total as usize));
        }
    }
    result
}

/// `cuMemGetInfo` of 32-bit times.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn get_v1<const ROW: usize>(
    free: *mut c_uint,
    total: *mut c_uint,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut c_uint, *mut c_uint) -> CUresult =
        unsafe { real::function(ROW) };
    let Some((_inside, tenant)) = watched() else {
        // SAFETY: the program's own arguments.
        return unsafe { real(free, total) };
    };
    let (mut free_now, mut total_now) = (0, 0);
    // SAFETY: both are live.
    let result = unsafe { real(&raw mut free_now, &raw mut total_now) };
    if result == CUDA_SUCCESS {
        let ours = calm(|| Some(memory(&tenant, current_device()?))).flatten();
        let ours = ours.unwrap_or(report::NONE);
        // SAFETY: null or the program's.
        unsafe {
            tell(free, free_now.min(narrow(ours.free)));
            tell(total, total_now.min(narrow(ours.total)));
        }
    }
    result
}

/// `cuDeviceTotalMem_v2`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn total<const ROW: usize>(bytes: *mut usize, device: CUdevice) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut usize, CUdevice) -> CUresult =
        unsafe { real::function(ROW) };
    // SAFETY: the program's own arguments.
    let result = unsafe { real(bytes, device) };
    if result == CUDA_SUCCESS
        && let Some((_inside, tenant)) = watched()
    {
        let ours = calm(|| memory(&tenant, device)).unwrap_or(report::NONE);
        // SAFETY: the driver wrote it.
        unsafe { bytes.write((*bytes).min(ours.total as usize)) };
    }
    result
}

/// `cuDeviceTotalMem` of 32-bit times.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn total_v1<const ROW: usize>(
    bytes: *mut c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut c_uint, CUdevice) -> CUresult =
        unsafe { real::function(ROW) };
    // SAFETY: the program's own arguments.
    let result = unsafe { real(bytes, device) };
    if result == CUDA_SUCCESS
        && let Some((_inside, tenant)) = watched()
    {
        let ours = calm(|| memory(&tenant, device)).unwrap_or(report::NONE);
        // SAFETY: the driver wrote it.
        unsafe { bytes.write((*bytes).min(narrow(ours.total))) };
    }
    result
}
