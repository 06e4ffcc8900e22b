//! Memory bound to multicast objects and logical endpoints.
//!
//! An object has no memory of its own; what is bound to it stays on its card until it is
//! unbound, or until this process lets go of the object, whatever becomes of the handle and the
//! mappings meanwhile. NVIDIA does not say whether releasing the handle of bound memory unbinds
//! it (its kernel module does, if the driver gives the memory up then): counting the binding as
//! a reference is never too little, and exact for programs that unbind first, as NCCL and
//! PyTorch do. An address that was not mapped from a handle is a pool's, whose account counts
//! what the driver says that it has reserved.

use std::ffi::{c_ulonglong, c_void};

use super::book::{Holding, Object, Physical};
use super::let_go;
use crate::cuda::c::*;
use crate::cuda::tenant::{Place, Tenant, giving};
use crate::cuda::{locked, real};

/// `cuMulticastCreate`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create_multicast<const ROW: usize>(
    handle: *mut CUmemGenericAllocationHandle,
    properties: *const CUmulticastObjectProp_v1,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        *mut CUmemGenericAllocationHandle,
        *const CUmulticastObjectProp_v1,
    ) -> CUresult = unsafe { real::function(ROW) };
    super::noting(
        // SAFETY: the program's own arguments.
        || unsafe { real(handle, properties) },
        |physical| {
            // SAFETY: the driver wrote it.
            physical.made(unsafe { *handle }, Holding::Object);
        },
    )
}

/// What was bound, as the program named it.
#[derive(Debug, Clone, Copy)]
enum Bound {
    Handle(CUmemGenericAllocationHandle),
    Address(CUdeviceptr),
}

/// After success: memory is bound to an object, from an offset on.
fn note(physical: &mut Physical, object: Option<Object>, bound: Bound, offset: u64, bytes: u64) {
    let memory = match bound {
        Bound::Handle(handle) => physical.behind(handle),
        Bound::Address(address) => physical.mapped_at(address),
    };
    if let (Some(object), Some(memory)) = (object, memory) {
        physical.bound(object, offset, bytes, memory);
    }
}

fn multicast(physical: &Physical, handle: CUmemGenericAllocationHandle) -> Option<Object> {
    physical.behind(handle).map(Object::Multicast)
}

/// After success: a range of an object has nothing bound to it, on one device.
fn unbinding(
    object: impl FnOnce(&Physical) -> Option<Object>,
    device: CUdevice,
    range: (u64, u64),
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    giving(
        |_| Some(()),
        call,
        |tenant, (), done| {
            if !done {
                return;
            }
            let device = match tenant.place(device) {
                Place::Listed(device) => Some(device),
                Place::Host | Place::Unlisted => None,
            };
            forget(tenant, |physical, gone| {
                if let Some(object) = object(physical) {
                    physical.unbound(object, device, range.0, range.1, gone);
                }
            });
        },
    )
}

fn forget(tenant: &Tenant, change: impl FnOnce(&mut Physical, &mut Vec<Holding>)) {
    let mut gone = Vec::new();
    change(&mut locked(&tenant.books.physical), &mut gone);
    let_go(tenant, gone, None);
}

/// `cuMulticastBindMem`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn bind_memory<const ROW: usize>(
    object: CUmemGenericAllocationHandle,
    offset: usize,
    memory: CUmemGenericAllocationHandle,
    memory_offset: usize,
    bytes: usize,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        CUmemGenericAllocationHandle,
        usize,
        CUmemGenericAllocationHandle,
        usize,
        usize,
        c_ulonglong,
    ) -> CUresult = unsafe { real::function(ROW) };
    super::noting(
        // SAFETY: the program's own arguments.
        || unsafe { real(object, offset, memory, memory_offset, bytes, flags) },
        |physical| {
            let object = multicast(physical, object);
            note(
                physical,
                object,
                Bound::Handle(memory),
                offset as u64,
                bytes as u64,
            );
        },
    )
}

/// `cuMulticastBindMem_v2`: says which device is meant.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn bind_memory_v2<const ROW: usize>(
    object: CUmemGenericAllocationHandle,
    device: CUdevice,
    offset: usize,
    memory: CUmemGenericAllocationHandle,
    memory_offset: usize,
    bytes: usize,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        CUmemGenericAllocationHandle,
        CUdevice,
        usize,
        CUmemGenericAllocationHandle,
        usize,
        usize,
        c_ulonglong,
    ) -> CUresult = unsafe { real::function(ROW) };
    super::noting(
        // SAFETY: the program's own arguments.
        || unsafe { real(object, device, offset, memory, memory_offset, bytes, flags) },
        |physical| {
            let object = multicast(physical, object);
            note(
                physical,
                object,
                Bound::Handle(memory),
                offset as u64,
                bytes as u64,
            );
        },
    )
}

/// `cuMulticastBindAddr`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn bind_address<const ROW: usize>(
    object: CUmemGenericAllocationHandle,
    offset: usize,
    address: CUdeviceptr,
    bytes: usize,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        CUmemGenericAllocationHandle,
        usize,
        CUdeviceptr,
        usize,
        c_ulonglong,
    ) -> CUresult = unsafe { real::function(ROW) };
    super::noting(
        // SAFETY: the program's own arguments.
        || unsafe { real(object, offset, address, bytes, flags) },
        |physical| {
            let object = multicast(physical, object);
            note(
                physical,
                object,
                Bound::Address(address),
                offset as u64,
                bytes as u64,
            );
        },
    )
}

/// `cuMulticastBindAddr_v2`: says which device is meant.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn bind_address_v2<const ROW: usize>(
    object: CUmemGenericAllocationHandle,
    device: CUdevice,
    offset: usize,
    address: CUdeviceptr,
    bytes: usize,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        CUmemGenericAllocationHandle,
        CUdevice,
        usize,
        CUdeviceptr,
        usize,
        c_ulonglong,
    ) -> CUresult = unsafe { real::function(ROW) };
    super::noting(
        // SAFETY: the program's own arguments.
        || unsafe { real(object, device, offset, address, bytes, flags) },
        |physical| {
            let object = multicast(physical, object);
            note(
                physical,
                object,
                Bound::Address(address),
                offset as u64,
                bytes as u64,
            );
        },
    )
}

/// `cuMulticastUnbind`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn unbind<const ROW: usize>(
    object: CUmemGenericAllocationHandle,
    device: CUdevice,
    offset: usize,
    bytes: usize,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        CUmemGenericAllocationHandle,
        CUdevice,
        usize,
        usize,
    ) -> CUresult = unsafe { real::function(ROW) };
    let range = (offset as u64, bytes as u64);
    unbinding(
        |physical| multicast(physical, object),
        device,
        range,
        // SAFETY: the program's own arguments.
        || unsafe { real(object, device, offset, bytes) },
    )
}

/// `cuLogicalEndpointBindMem`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn bind_endpoint_memory<const ROW: usize>(
    endpoint: CUlogicalEndpointId,
    device: CUdevice,
    offset: u64,
    memory: CUmemGenericAllocationHandle,
    memory_offset: u64,
    bytes: u64,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        CUlogicalEndpointId,
        CUdevice,
        u64,
        CUmemGenericAllocationHandle,
        u64,
        u64,
        c_ulonglong,
    ) -> CUresult = unsafe { real::function(ROW) };
    super::noting(
        // SAFETY: the program's own arguments.
        || unsafe {
            real(
                endpoint,
                device,
                offset,
                memory,
                memory_offset,
                bytes,
                flags,
            )
        },
        |physical| {
            let object = Some(Object::Endpoint(u64::from(endpoint)));
            note(physical, object, Bound::Handle(memory), offset, bytes);
        },
    )
}

/// `cuLogicalEndpointBindAddr`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn bind_endpoint_address<const ROW: usize>(
    endpoint: CUlogicalEndpointId,
    device: CUdevice,
    offset: u64,
    address: *mut c_void,
    bytes: u64,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        CUlogicalEndpointId,
        CUdevice,
        u64,
        *mut c_void,
        u64,
        c_ulonglong,
    ) -> CUresult = unsafe { real::function(ROW) };
    super::noting(
        // SAFETY: the program's own arguments.
        || unsafe { real(endpoint, device, offset, address, bytes, flags) },
        |physical| {
            let object = Some(Object::Endpoint(u64::from(endpoint)));
            note(
                physical,
                object,
                Bound::Address(address.addr() as u64),
                offset,
                bytes,
            );
        },
    )
}

/// `cuLogicalEndpointUnbind`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn unbind_endpoint<const ROW: usize>(
    endpoint: CUlogicalEndpointId,
    device: CUdevice,
    offset: u64,
    bytes: u64,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUlogicalEndpointId, CUdevice, u64, u64) -> CUresult =
        unsafe { real::function(ROW) };
    unbinding(
        |_| Some(Object::Endpoint(u64::from(endpoint))),
        device,
        (offset, bytes),
        // SAFETY: the program's own arguments.
        || unsafe { real(endpoint, device, offset, bytes) },
    )
}

/// `cuLogicalEndpointDestroy`: what this process has bound is unbound.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn destroy_endpoint<const ROW: usize>(
    endpoint: CUlogicalEndpointId,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUlogicalEndpointId) -> CUresult =
        unsafe { real::function(ROW) };
    giving(
        |_| Some(()),
        // SAFETY: the program's own argument.
        || unsafe { real(endpoint) },
        |tenant, (), done| {
            if done {
                let object = Object::Endpoint(u64::from(endpoint));
                forget(tenant, |physical, gone| {
                    physical.forget_object(object, gone);
                });
            }
        },
    )
}
