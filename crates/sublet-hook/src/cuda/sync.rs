//! Synchronisations. At these the driver takes from a pool what it keeps beyond its threshold;
//! nobody else is told. A process that sleeps afterwards would pay for that memory as long as
//! it sleeps, and another of its job be refused what is there.
//!
//! While no pool keeps anything, they cost one load more than without us.

use super::c::*;
use super::{pool, real};

fn done(result: CUresult) -> CUresult {
    if result == CUDA_SUCCESS {
        pool::synchronised();
    }
    result
}

/// `cuStreamSynchronize`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn stream<const ROW: usize>(stream: CUstream) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUstream) -> CUresult = unsafe { real::function(ROW) };
    // SAFETY: the program's own argument.
    done(unsafe { real(stream) })
}

/// `cuEventSynchronize`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn event<const ROW: usize>(event: CUevent) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUevent) -> CUresult = unsafe { real::function(ROW) };
    // SAFETY: the program's own argument.
    done(unsafe { real(event) })
}

/// `cuCtxSynchronize`, of the thread's context.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn current<const ROW: usize>() -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn() -> CUresult = unsafe { real::function(ROW) };
    // SAFETY: takes nothing.
    done(unsafe { real() })
}

/// `cuCtxSynchronize_v2`, of any context.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn context<const ROW: usize>(context: CUcontext) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUcontext) -> CUresult = unsafe { real::function(ROW) };
    // SAFETY: the program's own argument.
    done(unsafe { real(context) })
}
