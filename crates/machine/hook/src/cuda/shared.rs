//! Memory between processes: handles that go out, and handles that come in.
//!
//! The process that made memory pays for it, also while others of its job use it, so that a model
//! which eight processes share is charged once. Memory that goes out notes its holders
//! ([`super::deferred_free`]), memory that comes in gets a mark for its owner to see
//! ([`marks`](crate::link::marks)): so the owner goes on paying until the last of them has let go.
//! Processes of another job, or without us, set no mark. If they still hold memory after its owner
//! has freed it, or has died, the arbiter finds it in the driver's own figures.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;

use super::borrowed::Borrowed;
use super::c::*;
use super::deferred_free::{Descriptor, Holder};
use super::tenant::{Tenant, giving};
use super::{physical, pool_account, real, row};
use crate::link::marks::Key;
use crate::real::Like;

/// Returns the holder of a shareable handle of a kind, once it was exported.
///
/// # Safety
/// `handle` is one that the driver has just written.
unsafe fn holder_of(
    tenant: &Tenant,
    handle: *const c_void,
    kind: CUmemAllocationHandleType,
) -> Option<Holder> {
    match kind {
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => {
            // SAFETY: of this kind the driver writes a descriptor.
            Some(descriptor(tenant, unsafe { handle.cast::<c_int>().read() }))
        }
        CU_MEM_HANDLE_TYPE_FABRIC => {
            // SAFETY: of this kind the driver writes 64 bytes.
            let bytes = unsafe { handle.cast::<[u8; 64]>().read() };
            Some(Holder::Mark(Key::of_handle(&bytes)))
        }
        _ => None,
    }
}

fn descriptor(tenant: &Tenant, fd: c_int) -> Holder {
    let probes = &tenant.accounts.deferred_frees.probes;
    Holder::Descriptor(Arc::new(Descriptor::of(fd, probes)))
}

/// The name that the exporter gave to memory behind a shareable handle.
///
/// # Safety
/// `handle` is one that the driver accepted.
unsafe fn name_of(
    tenant: &Tenant,
    handle: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> Option<Key> {
    match kind {
        // Of this kind the program passes the number itself.
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR => {
            let fd = c_int::try_from(handle.addr()).ok()?;
            tenant.accounts.deferred_frees.probes.name_of(fd)
        }
        CU_MEM_HANDLE_TYPE_FABRIC => {
            // SAFETY: of this kind the program passes 64 bytes.
            let bytes = unsafe { handle.cast::<[u8; 64]>().read_unaligned() };
            Some(Key::of_handle(&bytes))
        }
        _ => None,
    }
}

/// Calls the driver, and after success does something.
fn after(call: impl FnOnce() -> CUresult, then: impl FnOnce(&Tenant)) -> CUresult {
    giving(
        |_| Some(()),
        call,
        |tenant, (), done| {
            if done {
                then(tenant);
            }
        },
    )
}

/// Memory at an address goes to others.
fn lend(tenant: &Tenant, address: CUdeviceptr, holder: Holder) {
    let (mut first, mut bytes) = (0, 0);
    // SAFETY: writes the numbers it is given.
    let found = unsafe { real::cuMemGetAddressRange_v2(&raw mut first, &raw mut bytes, address) };
    let first = if found == CUDA_SUCCESS {
        first
    } else {
        address
    };
    let mut holders = tenant.accounts.exports.remove(first).unwrap_or_default();
    holders.retain(|known| *known != holder && known.still_holds(tenant));
    holders.push(holder);
    tenant.accounts.exports.insert(first, holders);
}

/// `cuIpcGetMemHandle`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn get_ipc<R: Like<row::cuIpcGetMemHandle>>(
    handle: *mut CUipcMemHandle_v1,
    address: CUdeviceptr,
) -> CUresult {
    after(
        // SAFETY: the program's own arguments.
        || unsafe { R::call((handle, address)) },
        |tenant| {
            // SAFETY: the driver wrote it.
            let key = Key::of_handle(unsafe { &(*handle).reserved });
            lend(tenant, address, Holder::Mark(key));
        },
    )
}

/// `cuIpcOpenMemHandle`, of both versions.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn open_ipc<R: Like<row::cuIpcOpenMemHandle>>(
    address: *mut CUdeviceptr,
    handle: CUipcMemHandle_v1,
    flags: c_uint,
) -> CUresult {
    after(
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, handle, flags)) },
        |tenant| {
            let key = Key::of_handle(&handle.reserved);
            // SAFETY: the driver wrote it.
            Borrowed::begin(tenant, unsafe { *address }, key);
        },
    )
}

/// `cuIpcCloseMemHandle`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn close_ipc<R: Like<row::cuIpcCloseMemHandle>>(
    address: CUdeviceptr,
) -> CUresult {
    giving(
        |tenant| Borrowed::take(tenant, address),
        // SAFETY: the program's own argument.
        || unsafe { R::call((address,)) },
        |tenant, borrowed, closed| {
            if closed {
                borrowed.ended(tenant);
            } else {
                borrowed.keep(tenant, address);
            }
        },
    )
}

/// `cuMemExportToShareableHandle`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn export<R: Like<row::cuMemExportToShareableHandle>>(
    to: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> CUresult {
    after(
        // SAFETY: the program's own arguments.
        || unsafe { R::call((to, handle, kind, flags)) },
        |tenant| {
            // SAFETY: the driver wrote it.
            if let Some(holder) = unsafe { holder_of(tenant, to, kind) } {
                physical::lend(tenant, handle, holder);
            }
        },
    )
}

/// `cuMemImportFromShareableHandle`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn import<R: Like<row::cuMemImportFromShareableHandle>>(
    handle: *mut CUmemGenericAllocationHandle,
    from: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> CUresult {
    after(
        // SAFETY: the program's own arguments.
        || unsafe { R::call((handle, from, kind)) },
        // SAFETY: the driver has read the one and written the other.
        |tenant| unsafe { physical::imported(tenant, *handle, name_of(tenant, from, kind)) },
    )
}

/// `cuMemGetHandleForAddressRange`: a dma-buf, which holds the memory on its own.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn export_range<R: Like<row::cuMemGetHandleForAddressRange>>(
    to: *mut c_void,
    address: CUdeviceptr,
    bytes: usize,
    kind: CUmemRangeHandleType,
    flags: c_ulonglong,
) -> CUresult {
    after(
        // SAFETY: the program's own arguments.
        || unsafe { R::call((to, address, bytes, kind, flags)) },
        |tenant| {
            if kind != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD {
                return;
            }
            // SAFETY: of this kind the driver has written a descriptor.
            let holder = descriptor(tenant, unsafe { to.cast::<c_int>().read() });
            if !physical::lend_range(tenant, address, bytes as u64, &holder) {
                lend(tenant, address, holder);
            }
        },
    )
}

/// `cuMemPoolImportFromShareableHandle`: the pool is its maker's, and so is its cost.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn import_pool<R: Like<row::cuMemPoolImportFromShareableHandle>>(
    made: *mut CUmemoryPool,
    from: *mut c_void,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> CUresult {
    after(
        // SAFETY: the program's own arguments.
        || unsafe { R::call((made, from, kind, flags)) },
        // SAFETY: the driver wrote it.
        |tenant| pool_account::imported(tenant, unsafe { *made }),
    )
}

/// `cuMemPoolExportPointer`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn export_pointer<R: Like<row::cuMemPoolExportPointer>>(
    to: *mut CUmemPoolPtrExportData_v1,
    address: CUdeviceptr,
) -> CUresult {
    after(
        // SAFETY: the program's own arguments.
        || unsafe { R::call((to, address)) },
        |tenant| {
            // SAFETY: the driver wrote it.
            let key = Key::of_handle(unsafe { &(*to).reserved });
            lend(tenant, address, Holder::Mark(key));
        },
    )
}

/// `cuMemPoolImportPointer`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn import_pointer<R: Like<row::cuMemPoolImportPointer>>(
    address: *mut CUdeviceptr,
    pool: CUmemoryPool,
    from: *mut CUmemPoolPtrExportData_v1,
) -> CUresult {
    after(
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, pool, from)) },
        |tenant| {
            // SAFETY: the driver has read the one and written the other.
            let (address, key) = unsafe { (*address, Key::of_handle(&(*from).reserved)) };
            Borrowed::begin(tenant, address, key);
        },
    )
}
