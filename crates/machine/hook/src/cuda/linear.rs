//! Linear memory: `cuMemAlloc`, pitched and managed memory, and the calls that free it.
//!
//! Memory is charged as the driver takes it: a large allocation by whole blocks, small ones by the
//! pieces that they share ([`heap`](super::heap)). Managed memory counts as memory of the current
//! device, because all of it can end up there. The charge of a pointer is remembered with its
//! context, because the driver frees a context's memory with the context.

mod allocating;

use std::ffi::c_uint;

use self::allocating::allocating;
use super::address;
use super::c::*;
use super::heap::Kind;
use super::row;
use super::tenant::giving;
use crate::real::Like;

/// `cuMemAlloc_v2`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn alloc<R: Like<row::cuMemAlloc_v2>>(
    address: *mut CUdeviceptr,
    bytes: usize,
) -> CUresult {
    allocating(
        Kind::Device,
        bytes as u64,
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, bytes)) },
        // SAFETY: the driver wrote it.
        || (unsafe { *address }, bytes as u64),
    )
}

/// `cuMemAlloc` of 32-bit times: addresses and sizes of four bytes.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn alloc_v1<R: Like<row::cuMemAlloc>>(
    address: *mut u32,
    bytes: c_uint,
) -> CUresult {
    allocating(
        Kind::Device,
        u64::from(bytes),
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, bytes)) },
        // SAFETY: the driver wrote it.
        || (u64::from(unsafe { *address }), u64::from(bytes)),
    )
}

/// `cuMemAllocManaged`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn managed<R: Like<row::cuMemAllocManaged>>(
    address: *mut CUdeviceptr,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    allocating(
        Kind::Managed,
        bytes as u64,
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, bytes, flags)) },
        // SAFETY: the driver wrote it.
        || (unsafe { *address }, bytes as u64),
    )
}

/// Rows of pitched memory begin at multiples of this on every card so far; the driver does not
/// say before it has allocated.
const PITCH: u64 = 512;

/// Estimates the size of pitched memory before it is made. Saturates, so that a nonsensical size is
/// refused like any amount that no card has.
fn pitched(width: u64, height: u64) -> u64 {
    let pitch = width.div_ceil(PITCH).saturating_mul(PITCH);
    pitch.saturating_mul(height)
}

/// `cuMemAllocPitch_v2`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn pitch<R: Like<row::cuMemAllocPitch_v2>>(
    address: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> CUresult {
    allocating(
        Kind::Device,
        pitched(width as u64, height as u64),
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, pitch, width, height, element)) },
        || {
            // SAFETY: the driver wrote both.
            let (address, pitch) = unsafe { (*address, *pitch) };
            (address, (pitch as u64).saturating_mul(height as u64))
        },
    )
}

/// `cuMemAllocPitch` of 32-bit times.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn pitch_v1<R: Like<row::cuMemAllocPitch>>(
    address: *mut u32,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    element: c_uint,
) -> CUresult {
    allocating(
        Kind::Device,
        pitched(u64::from(width), u64::from(height)),
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, pitch, width, height, element)) },
        || {
            // SAFETY: the driver wrote both.
            let (address, pitch) = unsafe { (*address, *pitch) };
            (u64::from(address), u64::from(pitch) * u64::from(height))
        },
    )
}

/// `cuMemFree_v2`. Memory of a pool may be freed by it too.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn free<R: Like<row::cuMemFree_v2>>(address: CUdeviceptr) -> CUresult {
    giving(
        |tenant| address::take(tenant, address),
        // SAFETY: the program's own argument.
        || unsafe { R::call((address,)) },
        |tenant, known, freed| address::after_free(tenant, address, known, freed),
    )
}

/// `cuMemFree` of 32-bit times.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn free_v1<R: Like<row::cuMemFree>>(address: u32) -> CUresult {
    giving(
        |tenant| address::take(tenant, u64::from(address)),
        // SAFETY: the program's own argument.
        || unsafe { R::call((address,)) },
        |tenant, known, freed| address::after_free(tenant, u64::from(address), known, freed),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pitched_memory_is_charged_by_whole_rows() {
        for (width, height, bytes) in [
            (1, 1, 512),
            (512, 3, 1536),
            (513, 3, 3072),
            (0, 7, 0),
            (u64::MAX, 2, u64::MAX),
            (1 << 40, 1 << 40, u64::MAX),
        ] {
            assert_eq!(pitched(width, height), bytes, "{width} × {height}");
        }
    }
}
