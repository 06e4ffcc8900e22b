//! Where a pool's memory is, and what a stream has to say about it.
//!
//! Allocations from pools name a pool or a stream, never a device. Each is asked where it
//! belongs; the current device is the last guess, not the first.

use std::ffi::c_void;

use sublet_driver_api::{CUDA, Thread};

use crate::cuda::c::*;
use crate::cuda::real;
use crate::cuda::tenant::current_device;
use crate::real::Row;

/// Where a pool's memory is.
#[derive(Debug, Clone, Copy)]
pub(super) enum Owner {
    /// On a card.
    Device(CUdevice),
    /// In the machine's own memory.
    Host,
}

impl Owner {
    /// By what the program asks; `None` if that leaves it open.
    pub(super) fn asked(properties: &CUmemPoolProps_v1) -> Option<Self> {
        Self::of(properties.location, properties.allocType)
    }

    /// Managed memory that is on the host at first can all end up on a card: it is not the
    /// host's.
    fn of(location: CUmemLocation_v1, kind: CUmemAllocationType) -> Option<Self> {
        match location.r#type {
            CU_MEM_LOCATION_TYPE_DEVICE => Some(Owner::Device(location.id)),
            // The device is the first byte of the identifier.
            CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => Some(Owner::Device(location.id & 0xff)),
            CU_MEM_LOCATION_TYPE_HOST
            | CU_MEM_LOCATION_TYPE_HOST_NUMA
            | CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => {
                (kind != CU_MEM_ALLOCATION_TYPE_MANAGED).then_some(Owner::Host)
            }
            _ => None,
        }
    }
}

/// Where the memory of a pool is that the program did not make itself.
pub(super) fn owner_of(pool: CUmemoryPool) -> Option<Owner> {
    let number = |name| attribute(pool, name).map(|value| value as u32);
    if let (Some(place), Some(id)) = (
        number(CU_MEMPOOL_ATTR_LOCATION_TYPE),
        number(CU_MEMPOOL_ATTR_LOCATION_ID),
    ) {
        let location = CUmemLocation_v1 {
            r#type: CUmemLocationType(place),
            id: id.cast_signed(),
        };
        let kind = number(CU_MEMPOOL_ATTR_ALLOCATION_TYPE);
        let kind = kind.map_or(CU_MEM_ALLOCATION_TYPE_PINNED, CUmemAllocationType);
        if let Some(owner) = Owner::of(location, kind) {
            return Some(owner);
        }
    }
    // A driver before CUDA 13 does not say. Each device has a default pool and a current one.
    let mut count = 0;
    // SAFETY: writes the number it is given.
    let _ = unsafe { real::cuDeviceGetCount(&raw mut count) };
    let is_its_own = |device: &CUdevice| {
        let (mut first, mut now) = Default::default();
        // SAFETY: both write the handle they are given.
        unsafe {
            let _ = real::cuDeviceGetDefaultMemPool(&raw mut first, *device);
            let _ = real::cuDeviceGetMemPool(&raw mut now, *device);
        }
        first == pool || now == pool
    };
    (0..count).find(is_its_own).map(Owner::Device)
}

/// The device that a stream belongs to.
pub(super) fn device_of_stream(stream: CUstream) -> Option<CUdevice> {
    // The first three are not streams but names for the default ones.
    if stream <= CU_STREAM_PER_THREAD {
        return current_device();
    }
    let mut device = 0;
    // SAFETY: writes the number it is given.
    if unsafe { real::cuStreamGetDevice(stream, &raw mut device) } == CUDA_SUCCESS {
        return Some(device);
    }
    let (mut context, mut popped) = Default::default();
    // SAFETY: each writes what it is given, and the context is current for one question only.
    unsafe {
        if real::cuStreamGetCtx(stream, &raw mut context) != CUDA_SUCCESS
            || real::cuCtxPushCurrent_v2(context) != CUDA_SUCCESS
        {
            return current_device();
        }
        let device = current_device();
        let _ = real::cuCtxPopCurrent_v2(&raw mut popped);
        device
    }
}

/// The stream that a call means. Zero is the calling thread's own for the per-thread twins.
pub(in crate::cuda) fn meant<R: Row>(stream: CUstream) -> CUstream {
    if stream.is_null() && CUDA[R::INDEX].thread == Thread::Ptsz {
        CU_STREAM_PER_THREAD
    } else {
        stream
    }
}

/// True while the stream's work is recorded and not done: an allocation is a graph's then.
pub(in crate::cuda) fn is_capturing(stream: CUstream) -> bool {
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: writes the number it is given.
    let result = unsafe { real::cuStreamIsCapturing(stream, &raw mut status) };
    result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE
}

/// A number that a pool says of itself.
pub(super) fn attribute(pool: CUmemoryPool, attribute: CUmemPool_attribute) -> Option<u64> {
    let mut value = 0_u64;
    let value_at: *mut c_void = (&raw mut value).cast();
    // SAFETY: every attribute that is asked for here fits in eight bytes.
    let result = unsafe { real::cuMemPoolGetAttribute(pool, attribute, value_at) };
    (result == CUDA_SUCCESS).then_some(value)
}
