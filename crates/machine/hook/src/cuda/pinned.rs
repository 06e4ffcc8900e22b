//! Memory of the host that the driver pins: `cuMemAllocHost`, `cuMemHostRegister`, and the calls
//! that free it.
//!
//! This memory is taken from no card, but from all users of the machine: it cannot be swapped out,
//! and the kernel need not count it as the program's. So a tenant has a budget of it, whatever its
//! cards are. The charge of an address is remembered with its context, as for memory of a card: a
//! driver frees and unpins a context's memory with the context. Host memory behind handles and in
//! pools is charged in [`super::physical`] and [`super::pool`].

use std::ffi::{c_uint, c_void};

use super::c::*;
use super::row;
use super::tenant::{ContextCharge, MemoryCharge, Need, Place, Tenant, giving, taking};
use crate::real::Like;

fn of_the_host(bytes: u64) -> Need {
    let place = Place::Host;
    Need { place, bytes }
}

fn keep(tenant: &Tenant, address: *mut c_void, charge: MemoryCharge) {
    let held = ContextCharge::here(charge);
    if let Some(before) = tenant.accounts.pinned.insert(address.addr() as u64, held) {
        // The driver gave the address out again, so what was there is gone.
        tenant.give(before.charge);
    }
}

/// A call that makes memory and writes where it is.
///
/// # Safety
/// `call` writes `address` if it succeeds.
unsafe fn making(
    address: *mut *mut c_void,
    bytes: u64,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    taking(
        |_| Some(of_the_host(bytes)),
        call,
        // SAFETY: the driver wrote it, as the caller says.
        |tenant, charge| keep(tenant, unsafe { *address }, charge),
    )
}

/// A call that drops the entry of an address.
fn ending(address: *mut c_void, call: impl FnOnce() -> CUresult) -> CUresult {
    let key = address.addr() as u64;
    giving(
        |tenant| tenant.accounts.pinned.remove(key),
        call,
        |tenant, held, is_gone| {
            if is_gone {
                tenant.give(held.charge);
            } else {
                tenant.accounts.pinned.insert(key, held);
            }
        },
    )
}

/// `cuMemAllocHost_v2`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn alloc<R: Like<row::cuMemAllocHost_v2>>(
    address: *mut *mut c_void,
    bytes: usize,
) -> CUresult {
    // SAFETY: the program's own arguments; the driver writes the address.
    unsafe { making(address, bytes as u64, || R::call((address, bytes))) }
}

/// `cuMemAllocHost` of 32-bit times: a size of four bytes.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn alloc_v1<R: Like<row::cuMemAllocHost>>(
    address: *mut *mut c_void,
    bytes: c_uint,
) -> CUresult {
    // SAFETY: the program's own arguments; the driver writes the address.
    unsafe { making(address, u64::from(bytes), || R::call((address, bytes))) }
}

/// `cuMemHostAlloc`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn alloc_with_flags<R: Like<row::cuMemHostAlloc>>(
    address: *mut *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the program's own arguments; the driver writes the address.
    unsafe { making(address, bytes as u64, || R::call((address, bytes, flags))) }
}

/// `cuMemFreeHost`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn free<R: Like<row::cuMemFreeHost>>(address: *mut c_void) -> CUresult {
    // SAFETY: the program's own argument.
    ending(address, || unsafe { R::call((address,)) })
}

/// `cuMemHostRegister` and its `_v2`: memory of the program is pinned where it is. Whatever the
/// flags say of it: that a range is a device's registers and no memory, the program alone says.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn register<R: Like<row::cuMemHostRegister>>(
    address: *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    taking(
        |_| Some(of_the_host(bytes as u64)),
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, bytes, flags)) },
        |tenant, charge| keep(tenant, address, charge),
    )
}

/// `cuMemHostUnregister`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn unregister<R: Like<row::cuMemHostUnregister>>(
    address: *mut c_void,
) -> CUresult {
    // SAFETY: the program's own argument.
    ending(address, || unsafe { R::call((address,)) })
}
