//! Place of a pool's memory.
//!
//! Allocations from pools name a pool or a stream, never a device. So the pool or the stream is
//! asked for its device; the current device is the last guess, not the first.

use std::ffi::c_void;

use crate::cuda::c::*;
use crate::cuda::real;

/// Place of a pool's memory.
#[derive(Debug, Clone, Copy)]
pub enum Owner {
    /// On a card.
    Device(CUdevice),
    /// In the machine's own memory.
    Host,
}

impl Owner {
    /// Returns the owner that the program asks for; `None` if the program leaves it open.
    #[must_use]
    pub fn asked(properties: &CUmemPoolProps_v1) -> Option<Self> {
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

/// Returns the place of a pool's memory, for a pool that the program did not make itself.
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

/// A number that a pool says of itself.
pub(super) fn attribute(pool: CUmemoryPool, attribute: CUmemPool_attribute) -> Option<u64> {
    let mut value = 0_u64;
    let value_at: *mut c_void = (&raw mut value).cast();
    // SAFETY: every attribute that is asked for here fits in eight bytes.
    let result = unsafe { real::cuMemPoolGetAttribute(pool, attribute, value_at) };
    (result == CUDA_SUCCESS).then_some(value)
}
