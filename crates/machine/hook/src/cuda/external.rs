//! Memory of other interfaces (Vulkan, OpenGL, a camera), imported into CUDA.
//!
//! The memory was allocated without us, on the same card. So it is charged when it is imported, by
//! the size that the program states, as long as anything in CUDA refers to it: the import, and the
//! buffers and arrays made from it, which outlive it. Its owner cannot be seen. Memory that another
//! process of the job made through CUDA and passed on in this way is charged to both: telling the
//! two cases apart costs more than such a program would lose.

use super::array::Array;
use super::c::*;
use super::owned::Owned;
use super::tenant::{ContextCharge, Share, Tenant, giving, on_current_device, taking};
use super::{address, row};
use crate::real::Like;

/// `cuImportExternalMemory`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn import<R: Like<row::cuImportExternalMemory>>(
    memory: *mut CUexternalMemory,
    description: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1,
) -> CUresult {
    taking(
        |tenant| {
            // SAFETY: null or the program's struct.
            let bytes = unsafe { description.as_ref() }?.size;
            on_current_device(tenant, bytes)
        },
        // SAFETY: the program's own arguments.
        || unsafe { R::call((memory, description)) },
        |tenant, charge| {
            // SAFETY: the driver wrote it.
            let memory = unsafe { *memory };
            let share = Share::new(ContextCharge::here(charge));
            if let Some(before) = tenant.accounts.externals.insert(memory.0 as u64, share) {
                tenant.give_share(before);
            }
        },
    )
}

/// `cuDestroyExternalMemory`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn destroy<R: Like<row::cuDestroyExternalMemory>>(
    memory: CUexternalMemory,
) -> CUresult {
    giving(
        |tenant| tenant.accounts.externals.remove(memory.0 as u64),
        // SAFETY: the program's own argument.
        || unsafe { R::call((memory,)) },
        |tenant, share, destroyed| {
            if destroyed {
                tenant.give_share(share);
            } else {
                tenant.accounts.externals.insert(memory.0 as u64, share);
            }
        },
    )
}

/// A call that gets something out of imported memory; `keep` remembers its part.
fn mapping(
    memory: CUexternalMemory,
    call: impl FnOnce() -> CUresult,
    keep: impl FnOnce(&Tenant, Share),
) -> CUresult {
    giving(
        |tenant| tenant.accounts.externals.get(memory.0 as u64),
        call,
        |tenant, share, mapped| {
            if mapped {
                keep(tenant, share);
            } else {
                tenant.give_share(share);
            }
        },
    )
}

/// `cuExternalMemoryGetMappedBuffer`: freed by `cuMemFree`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn map_buffer<R: Like<row::cuExternalMemoryGetMappedBuffer>>(
    address: *mut CUdeviceptr,
    memory: CUexternalMemory,
    description: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC_v1,
) -> CUresult {
    mapping(
        memory,
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, memory, description)) },
        // SAFETY: the driver wrote it.
        |tenant, share| address::keep(tenant, unsafe { *address }, Owned::External(share)),
    )
}

/// `cuExternalMemoryGetMappedMipmappedArray`: destroyed by `cuMipmappedArrayDestroy`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn map_array<R: Like<row::cuExternalMemoryGetMappedMipmappedArray>>(
    array: *mut CUmipmappedArray,
    memory: CUexternalMemory,
    description: *const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC_v1,
) -> CUresult {
    mapping(
        memory,
        // SAFETY: the program's own arguments.
        || unsafe { R::call((array, memory, description)) },
        // SAFETY: the driver wrote it.
        |tenant, share| Array::External(share).keep(tenant, unsafe { (*array).0 as u64 }),
    )
}
