//! Tells the driver where memory shall be: on the card of a context.

use sublet_driver_api::cuda::memory::{
    CUmemAllocationProp_v1, CUmemLocation_v1, CUmemPoolProps_v1,
};
use sublet_driver_api::cuda::{CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE};

use crate::driver::Context;

/// A pool, or a graph's memory, that lives on the context's device.
pub(crate) fn device_pool(context: &Context<'_>) -> CUmemPoolProps_v1 {
    CUmemPoolProps_v1 {
        allocType: CU_MEM_ALLOCATION_TYPE_PINNED,
        location: location(context),
        ..CUmemPoolProps_v1::default()
    }
}

/// Memory behind a handle.
pub(crate) fn properties(context: &Context<'_>) -> CUmemAllocationProp_v1 {
    CUmemAllocationProp_v1 {
        r#type: CU_MEM_ALLOCATION_TYPE_PINNED,
        location: location(context),
        ..CUmemAllocationProp_v1::default()
    }
}

/// The card itself.
pub(crate) fn location(context: &Context<'_>) -> CUmemLocation_v1 {
    CUmemLocation_v1 {
        r#type: CU_MEM_LOCATION_TYPE_DEVICE,
        id: context.device().number(),
    }
}
