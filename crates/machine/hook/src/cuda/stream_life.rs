//! Streams that are made, are destroyed, or begin to record. The check whether work has ended
//! ([`work`](super::work)) must know all streams, and never ask one that is gone.

use std::ffi::{c_int, c_uint, c_void};

use super::c::*;
use super::row;
use super::stream::meant;
use super::tenant::{Tenant, current_context};
use super::work::Home;
use crate::gate::threads;
use crate::guard::{Inside, catch_panic};
use crate::real::{Like, Row};

/// A call that makes a stream.
fn making(
    stream: *mut CUstream,
    home: impl FnOnce() -> Home,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(_inside) = Inside::enter() else {
        return call();
    };
    let result = call();
    if result == CUDA_SUCCESS {
        let _ = catch_panic(|| {
            if let Some(tenant) = Tenant::current() {
                // SAFETY: the driver wrote it.
                tenant.accounts.work.hold().made(unsafe { *stream }, home());
            }
        });
    }
    result
}

fn in_current_context() -> Home {
    Home {
        context: current_context(),
        ..Home::default()
    }
}

/// A call after which a stream cannot be asked. Nobody asks it meanwhile.
fn leaving<R: Row>(
    stream: CUstream,
    is_destroyed: bool,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(_inside) = Inside::enter() else {
        return call();
    };
    let Some(tenant) = catch_panic(Tenant::current).flatten() else {
        return call();
    };
    let work = &tenant.accounts.work;
    let own = threads::own_number();
    let Some(mut running) = catch_panic(|| work.leave_stream(own, meant::<R>(stream))) else {
        return call();
    };
    let result = call();
    if is_destroyed && result == CUDA_SUCCESS {
        running.destroyed(stream);
    }
    result
}

/// `cuStreamCreate`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create<R: Like<row::cuStreamCreate>>(
    stream: *mut CUstream,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let call = || unsafe { R::call((stream, flags)) };
    making(stream, in_current_context, call)
}

/// `cuStreamCreateWithPriority`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create_with_priority<R: Like<row::cuStreamCreateWithPriority>>(
    stream: *mut CUstream,
    flags: c_uint,
    priority: c_int,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let call = || unsafe { R::call((stream, flags, priority)) };
    making(stream, in_current_context, call)
}

/// `cuGreenCtxStreamCreate`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create_green<R: Like<row::cuGreenCtxStreamCreate>>(
    stream: *mut CUstream,
    green: CUgreenCtx,
    flags: c_uint,
    priority: c_int,
) -> CUresult {
    let home = || Home {
        green,
        ..Home::default()
    };
    // SAFETY: the program's own arguments.
    making(stream, home, || unsafe {
        R::call((stream, green, flags, priority))
    })
}

/// `cuStreamDestroy`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn destroy<R: Like<row::cuStreamDestroy>>(stream: CUstream) -> CUresult {
    // SAFETY: the program's own argument.
    leaving::<R>(stream, true, || unsafe { R::call((stream,)) })
}

/// `cuStreamBeginCapture`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn begin_v1<R: Like<row::cuStreamBeginCapture>>(
    stream: CUstream,
) -> CUresult {
    // SAFETY: the program's own argument.
    leaving::<R>(stream, false, || unsafe { R::call((stream,)) })
}

/// `cuStreamBeginCapture_v2`: in a mode.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn begin<R: Like<row::cuStreamBeginCapture_v2>>(
    stream: CUstream,
    mode: CUstreamCaptureMode,
) -> CUresult {
    // SAFETY: the program's own arguments.
    leaving::<R>(stream, false, || unsafe { R::call((stream, mode)) })
}

/// `cuStreamBeginCaptureToGraph`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn begin_to_graph<R: Like<row::cuStreamBeginCaptureToGraph>>(
    stream: CUstream,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
    mode: CUstreamCaptureMode,
) -> CUresult {
    // SAFETY: the program's own arguments.
    leaving::<R>(stream, false, || unsafe {
        R::call((stream, graph, dependencies, edges, count, mode))
    })
}

/// `cuStreamBeginRecaptureToGraph`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn begin_again<R: Like<row::cuStreamBeginRecaptureToGraph>>(
    stream: CUstream,
    mode: CUstreamCaptureMode,
    graph: CUgraph,
    callback: CUgraphRecaptureCallback,
    data: *mut c_void,
) -> CUresult {
    // SAFETY: the program's own arguments.
    leaving::<R>(stream, false, || unsafe {
        R::call((stream, mode, graph, callback, data))
    })
}
