//! Memory bound to multicast objects and logical endpoints.
//!
//! An object has no memory of its own. Memory that is bound to it stays on its card until it is
//! unbound, or until this process lets go of the object, whatever becomes of the handle and the
//! mappings meanwhile. NVIDIA does not document whether releasing the handle of bound memory
//! unbinds it (its kernel module does, if the driver gives the memory up then). Counting the
//! binding as a reference is never too little, and exact for programs that unbind first, as NCCL
//! and PyTorch do. An address that was not mapped from a handle is a pool's, and the pool's account
//! counts the amount that the driver reports as reserved.

use std::ffi::{c_ulonglong, c_void};

use super::book::{Holding, Object, Physical};
use super::let_go;
use crate::cuda::c::*;
use crate::cuda::tenant::{Tenant, giving};
use crate::cuda::{locked, row};
use crate::real::Like;

/// `cuMulticastCreate`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create_multicast<R: Like<row::cuMulticastCreate>>(
    handle: *mut CUmemGenericAllocationHandle,
    properties: *const CUmulticastObjectProp_v1,
) -> CUresult {
    super::noting(
        // SAFETY: the program's own arguments.
        || unsafe { R::call((handle, properties)) },
        |physical| {
            // SAFETY: the driver wrote it.
            physical.made(unsafe { *handle }, Holding::Object);
        },
    )
}

/// Object of a binding, as the program names it.
#[derive(Debug, Clone, Copy)]
enum Target {
    Multicast(CUmemGenericAllocationHandle),
    Endpoint(CUlogicalEndpointId),
}

impl Target {
    fn object(self, physical: &Physical) -> Option<Object> {
        match self {
            Target::Multicast(handle) => physical.behind(handle).map(Object::Multicast),
            Target::Endpoint(endpoint) => Some(Object::Endpoint(u64::from(endpoint))),
        }
    }
}

/// A part of a target: its offset there, and its bytes.
type Range = (u64, u64);

/// The memory that is bound, as the program names it.
#[derive(Debug, Clone, Copy)]
enum Memory {
    Handle(CUmemGenericAllocationHandle),
    Address(CUdeviceptr),
}

/// A call that binds memory to a range of a target.
fn binding(
    target: Target,
    (offset, bytes): Range,
    memory: Memory,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    super::noting(call, |physical| {
        let memory = match memory {
            Memory::Handle(handle) => physical.behind(handle),
            Memory::Address(address) => physical.mapped_at(address),
        };
        if let (Some(object), Some(memory)) = (target.object(physical), memory) {
            physical.bound(object, offset, bytes, memory);
        }
    })
}

/// A call after which a range of a target has nothing bound to it, on one device.
fn unbinding(
    target: Target,
    device: CUdevice,
    (offset, bytes): Range,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    giving(
        |_| Some(()),
        call,
        |tenant, (), done| {
            if !done {
                return;
            }
            let device = tenant.place(device).listed();
            forget(tenant, |physical, gone| {
                if let Some(object) = target.object(physical) {
                    physical.unbound(object, device, offset, bytes, gone);
                }
            });
        },
    )
}

fn forget(tenant: &Tenant, change: impl FnOnce(&mut Physical, &mut Vec<Holding>)) {
    let mut gone = Vec::new();
    change(&mut locked(&tenant.accounts.physical), &mut gone);
    let_go(tenant, gone, None);
}

/// `cuMulticastBindMem`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn bind_memory<R: Like<row::cuMulticastBindMem>>(
    object: CUmemGenericAllocationHandle,
    offset: usize,
    memory: CUmemGenericAllocationHandle,
    memory_offset: usize,
    bytes: usize,
    flags: c_ulonglong,
) -> CUresult {
    let range = (offset as u64, bytes as u64);
    // SAFETY: the program's own arguments.
    binding(
        Target::Multicast(object),
        range,
        Memory::Handle(memory),
        || unsafe { R::call((object, offset, memory, memory_offset, bytes, flags)) },
    )
}

/// `cuMulticastBindMem_v2`: says which device is meant.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn bind_memory_v2<R: Like<row::cuMulticastBindMem_v2>>(
    object: CUmemGenericAllocationHandle,
    device: CUdevice,
    offset: usize,
    memory: CUmemGenericAllocationHandle,
    memory_offset: usize,
    bytes: usize,
    flags: c_ulonglong,
) -> CUresult {
    let range = (offset as u64, bytes as u64);
    // SAFETY: the program's own arguments.
    binding(
        Target::Multicast(object),
        range,
        Memory::Handle(memory),
        || unsafe { R::call((object, device, offset, memory, memory_offset, bytes, flags)) },
    )
}

/// `cuMulticastBindAddr`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn bind_address<R: Like<row::cuMulticastBindAddr>>(
    object: CUmemGenericAllocationHandle,
    offset: usize,
    address: CUdeviceptr,
    bytes: usize,
    flags: c_ulonglong,
) -> CUresult {
    let range = (offset as u64, bytes as u64);
    // SAFETY: the program's own arguments.
    binding(
        Target::Multicast(object),
        range,
        Memory::Address(address),
        || unsafe { R::call((object, offset, address, bytes, flags)) },
    )
}

/// `cuMulticastBindAddr_v2`: says which device is meant.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn bind_address_v2<R: Like<row::cuMulticastBindAddr_v2>>(
    object: CUmemGenericAllocationHandle,
    device: CUdevice,
    offset: usize,
    address: CUdeviceptr,
    bytes: usize,
    flags: c_ulonglong,
) -> CUresult {
    let range = (offset as u64, bytes as u64);
    // SAFETY: the program's own arguments.
    binding(
        Target::Multicast(object),
        range,
        Memory::Address(address),
        || unsafe { R::call((object, device, offset, address, bytes, flags)) },
    )
}

/// `cuMulticastUnbind`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn unbind<R: Like<row::cuMulticastUnbind>>(
    object: CUmemGenericAllocationHandle,
    device: CUdevice,
    offset: usize,
    bytes: usize,
) -> CUresult {
    let range = (offset as u64, bytes as u64);
    // SAFETY: the program's own arguments.
    unbinding(Target::Multicast(object), device, range, || unsafe {
        R::call((object, device, offset, bytes))
    })
}

/// `cuLogicalEndpointBindMem`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn bind_endpoint_memory<R: Like<row::cuLogicalEndpointBindMem>>(
    endpoint: CUlogicalEndpointId,
    device: CUdevice,
    offset: u64,
    memory: CUmemGenericAllocationHandle,
    memory_offset: u64,
    bytes: u64,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the program's own arguments.
    binding(
        Target::Endpoint(endpoint),
        (offset, bytes),
        Memory::Handle(memory),
        || unsafe {
            R::call((
                endpoint,
                device,
                offset,
                memory,
                memory_offset,
                bytes,
                flags,
            ))
        },
    )
}

/// `cuLogicalEndpointBindAddr`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn bind_endpoint_address<R: Like<row::cuLogicalEndpointBindAddr>>(
    endpoint: CUlogicalEndpointId,
    device: CUdevice,
    offset: u64,
    address: *mut c_void,
    bytes: u64,
    flags: c_ulonglong,
) -> CUresult {
    // SAFETY: the program's own arguments.
    binding(
        Target::Endpoint(endpoint),
        (offset, bytes),
        Memory::Address(address.addr() as u64),
        || unsafe { R::call((endpoint, device, offset, address, bytes, flags)) },
    )
}

/// `cuLogicalEndpointUnbind`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn unbind_endpoint<R: Like<row::cuLogicalEndpointUnbind>>(
    endpoint: CUlogicalEndpointId,
    device: CUdevice,
    offset: u64,
    bytes: u64,
) -> CUresult {
    // SAFETY: the program's own arguments.
    unbinding(
        Target::Endpoint(endpoint),
        device,
        (offset, bytes),
        || unsafe { R::call((endpoint, device, offset, bytes)) },
    )
}

/// `cuLogicalEndpointDestroy`: the bindings of this process are undone.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn destroy_endpoint<R: Like<row::cuLogicalEndpointDestroy>>(
    endpoint: CUlogicalEndpointId,
) -> CUresult {
    giving(
        |_| Some(()),
        // SAFETY: the program's own argument.
        || unsafe { R::call((endpoint,)) },
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
