//! Synchronisations. The program has waited for its work, which may be all that it had: then its
//! slot reports this at once, and others have the card. At these calls the driver also takes from a
//! pool the memory above its threshold, and reports this to nobody. A process that sleeps
//! afterwards would pay for that memory as long as it sleeps, and another process of its job would
//! be refused memory that is free.
//!
//! While no pool keeps anything and the gate is free, they cost two loads more than without us.

use super::c::*;
use super::tenant::Tenant;
use super::work::Looker;
use super::{pool_account, row};
use crate::gate;
use crate::guard::{Inside, catch_panic};
use crate::progress::{self, Step};
use crate::real::Like;

fn done(result: CUresult) -> CUresult {
    if result == CUDA_SUCCESS {
        pool_account::synchronised();
        if !gate::is_free() {
            look();
        }
    }
    result
}

#[cold]
fn look() {
    let Some(_inside) = Inside::enter() else {
        return;
    };
    let _ = catch_panic(|| {
        if let Some(tenant) = Tenant::current() {
            progress::found(tenant.link, &tenant.accounts.steps, Step::Wait);
            tenant.accounts.look_for_end(tenant.link, Looker::Program);
        }
    });
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
