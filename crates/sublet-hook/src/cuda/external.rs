//! Memory of other interfaces (Vulkan, OpenGL, a camera), imported into CUDA.
//!
//! It was allocated past us, on the same card, so it is charged when it comes in, by the size
//! that the program states for it. Memory that another process exported through CUDA itself is
//! not charged again: the process that made it has paid.

use super::c::*;
use super::real;
use super::tenant::{Held, giving, on_current_device, taking};

/// `cuImportExternalMemory`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn import<const ROW: usize>(
    memory: *mut CUexternalMemory,
    description: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        *mut CUexternalMemory,
        *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC_v1,
    ) -> CUresult = unsafe { real::function(ROW) };
    taking(
        |tenant| {
            // SAFETY: null or the program's struct.
            let bytes = unsafe { description.as_ref() }?.size;
            on_current_device(tenant, bytes)
        },
        // SAFETY: the program's own arguments.
        || unsafe { real(memory, description) },
        |tenant, charge| {
            // SAFETY: the driver wrote it.
            let memory = unsafe { *memory };
            let held = Held::here(charge);
            if let Some(before) = tenant.books.externals.insert(memory.0 as u64, held) {
                tenant.give(before.charge);
            }
        },
    )
}

/// `cuDestroyExternalMemory`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn destroy<const ROW: usize>(memory: CUexternalMemory) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUexternalMemory) -> CUresult = unsafe { real::function(ROW) };
    giving(
        |tenant| tenant.books.externals.remove(memory.0 as u64),
        // SAFETY: the program's own argument.
        || unsafe { real(memory) },
        |tenant, held, destroyed| {
            if destroyed {
                tenant.give(held.charge);
            } else {
                tenant.books.externals.insert(memory.0 as u64, held);
            }
        },
    )
}
