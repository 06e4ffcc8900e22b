//! Memory figures that the program sees: its own part, not the card.
//!
//! The figures come from [`crate::report`], as NVML's do. They never exceed the driver's figures:
//! if others have taken all free memory of a card, none is free for this tenant either.

use std::ffi::c_uint;

use super::c::*;
use super::tenant::{Place, Tenant, current_device};
use crate::guard::{Inside, catch_panic};
use crate::real::Row;
use crate::report::{self, Memory};

/// Returns a device's memory, with the current memory of its pools.
fn memory(tenant: &Tenant, device: CUdevice) -> Memory {
    match tenant.place(device) {
        Place::Listed(index) => {
            tenant.look_again(index);
            report::memory(tenant.link, index)
        }
        Place::Host | Place::Unlisted => report::NONE,
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

/// The number that is there before the call: a driver that fails may leave it.
///
/// # Safety
/// `place` is null or can be read.
unsafe fn asked<T: Default>(place: *const T) -> T {
    if place.is_null() {
        return T::default();
    }
    // SAFETY: as the caller says.
    unsafe { place.read() }
}

/// A size as the driver's functions have it.
pub trait Size: Copy + Default + Ord {
    /// Bytes, as many as fit.
    fn of(bytes: u64) -> Self;
}

impl Size for usize {
    fn of(bytes: u64) -> Self {
        Self::try_from(bytes).unwrap_or(Self::MAX)
    }
}

/// The 32 bits of old versions.
impl Size for c_uint {
    fn of(bytes: u64) -> Self {
        Self::try_from(bytes).unwrap_or(Self::MAX)
    }
}

/// A tenant, and that this call is not the driver's own.
fn watched() -> Option<(Inside, Tenant)> {
    let inside = Inside::enter()?;
    let tenant = catch_panic(Tenant::current).flatten()?;
    Some((inside, tenant))
}

/// `cuMemGetInfo`, of each version.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn get<S, R>(free: *mut S, total: *mut S) -> CUresult
where
    S: Size,
    R: Row<Arguments = (*mut S, *mut S), Result = CUresult>,
{
    let Some((_inside, tenant)) = watched() else {
        // SAFETY: the program's own arguments.
        return unsafe { R::call((free, total)) };
    };
    // SAFETY: null or the program's.
    let (mut free_now, mut total_now) = unsafe { (asked(free), asked(total)) };
    // SAFETY: both are live.
    let result = unsafe { R::call((&raw mut free_now, &raw mut total_now)) };
    if result == CUDA_SUCCESS {
        let ours = catch_panic(|| Some(memory(&tenant, current_device()?))).flatten();
        let ours = ours.unwrap_or(report::NONE);
        // SAFETY: null or the program's.
        unsafe {
            tell(free, free_now.min(S::of(ours.free)));
            tell(total, total_now.min(S::of(ours.total)));
        }
    } else {
        // A driver that fails writes too: NVIDIA's clears both before `cuInit`.
        // SAFETY: null or the program's.
        unsafe {
            tell(free, free_now);
            tell(total, total_now);
        }
    }
    result
}

/// `cuDeviceTotalMem`, of each version.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn total<S, R>(bytes: *mut S, device: CUdevice) -> CUresult
where
    S: Size,
    R: Row<Arguments = (*mut S, CUdevice), Result = CUresult>,
{
    // SAFETY: the program's own arguments.
    let result = unsafe { R::call((bytes, device)) };
    if result == CUDA_SUCCESS
        && let Some((_inside, tenant)) = watched()
    {
        let ours = catch_panic(|| memory(&tenant, device)).unwrap_or(report::NONE);
        // SAFETY: the driver wrote it.
        unsafe { bytes.write((*bytes).min(S::of(ours.total))) };
    }
    result
}
