//! Synchronisations. At these the driver takes from a pool what it keeps beyond its threshold;
//! nobody else is told. A process that sleeps afterwards would pay for that memory as long as
//! it sleeps, and another of its job be refused what is there.
//!
//! While no pool keeps anything, they cost one load more than without us.

use super::c::*;
use super::{pool_account, row};
use crate::real::Like;

fn done(result: CUresult) -> CUresult {
    if result == CUDA_SUCCESS {
        pool_account::synchronised();
    }
    result
}

/// `cuStreamSynchronize`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn stream<R: Like<row::cuStreamSynchronize>>(stream: CUstream) -> CUresult {
    // SAFETY: the program's own argument.
    done(unsafe { R::call((stream,)) })
}

/// `cuEventSynchronize`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn event<R: Like<row::cuEventSynchronize>>(event: CUevent) -> CUresult {
    // SAFETY: the program's own argument.
    done(unsafe { R::call((event,)) })
}

/// `cuCtxSynchronize`, of the thread's context.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn current<R: Like<row::cuCtxSynchronize>>() -> CUresult {
    // SAFETY: takes nothing.
    done(unsafe { R::call(()) })
}

/// `cuCtxSynchronize_v2`, of any context.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn context<R: Like<row::cuCtxSynchronize_v2>>(
    context: CUcontext,
) -> CUresult {
    // SAFETY: the program's own argument.
    done(unsafe { R::call((context,)) })
}
