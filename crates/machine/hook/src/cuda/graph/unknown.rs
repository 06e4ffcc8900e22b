//! Graphs that the driver does not report in full, and the memory of their launches.
//!
//! Most drivers put memory behind the addresses of a graph when it is first launched or uploaded.
//! If the nodes of a graph do not tell the amount, the graph is uploaded before each launch: the
//! amount that the device's graphs have reserved then must fit, or it is trimmed away again and the
//! launch is refused. While there is no such graph, launches pass the gate as all do.

use std::sync::atomic::{AtomicBool, Ordering};

use super::retry;
use crate::cuda::c::*;
use crate::cuda::launch::{admit, launched};
use crate::cuda::queue;
use crate::cuda::real;
use crate::cuda::stream::{is_capturing, meant};
use crate::cuda::tenant::Tenant;
use crate::cuda::{locked, row};
use crate::gate;
use crate::gate::threads::Launcher;
use crate::guard::{Inside, catch_panic};
use crate::progress::{self, Step};
use crate::real::Like;

/// All devices of the driver: nobody knows on which of them such a graph is.
pub(super) fn devices() -> Vec<CUdevice> {
    let mut count = 0;
    // SAFETY: writes the number it is given.
    let result = unsafe { real::cuDeviceGetCount(&raw mut count) };
    (0..if result == CUDA_SUCCESS { count } else { 0 }).collect()
}

/// Puts memory behind the addresses of a graph that is not fully known, if the limit allows it.
/// `None` if there is nothing to do, or if the driver refuses: the driver's own error tells the
/// reason.
fn upload(exec: CUgraphExec, stream: CUstream) -> Option<CUresult> {
    let _inside = Inside::enter()?;
    let tenant = catch_panic(Tenant::current).flatten()?;
    let graphs = || locked(&tenant.accounts.graphs);
    let uploaded = catch_panic(|| {
        let needs = graphs().needs.get(&exec)?.clone();
        // What is recorded does not run.
        if !needs.is_unknown || is_capturing(stream) {
            return None;
        }
        graphs().settle_all(&tenant);
        // SAFETY: the program's own arguments for the launch.
        if unsafe { real::cuGraphUpload(exec, stream) } != CUDA_SUCCESS {
            return None;
        }
        let take = || graphs().take_growth(&tenant, &needs);
        let taken = take().or_else(|refused| retry(&tenant, &needs, refused, take));
        Some(taken.map_or_else(
            |refused| {
                graphs().trim(&tenant, &needs);
                refused.note(&tenant)
            },
            |()| CUDA_SUCCESS,
        ))
    });
    uploaded.flatten()
}

/// Set once there is a graph that is not fully known: from then on each launch is looked at.
static ARE_LOOKED_AT: AtomicBool = AtomicBool::new(false);

/// From now on each launch of a graph is looked at.
pub(super) fn look_at_launches() {
    ARE_LOOKED_AT.store(true, Ordering::Release);
}

/// `cuGraphLaunch`, which passes the gate as every launch does.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn launch<R: Like<row::cuGraphLaunch>>(
    exec: CUgraphExec,
    stream: CUstream,
) -> CUresult {
    let entered = gate::enter();
    let is_plain = !ARE_LOOKED_AT.load(Ordering::Relaxed) && !queue::are_graphs_long();
    if let Some(launcher) = entered
        && gate::is_free()
        && is_plain
        && launcher.counts_down()
    {
        // SAFETY: the program's own arguments.
        let result = unsafe { R::call((exec, stream)) };
        launcher.leave();
        return result;
    }
    // SAFETY: as the caller says.
    unsafe { held::<R>(entered, exec, stream) }
}

/// Waits for room in the queue and at the gate, and gives the graph its memory first if nobody
/// knows how much that is.
///
/// # Safety
/// As the driver documents.
#[cold]
#[inline(never)]
unsafe fn held<R: Like<row::cuGraphLaunch>>(
    entered: Option<&'static Launcher>,
    exec: CUgraphExec,
    stream: CUstream,
) -> CUresult {
    let launcher = entered.unwrap_or_else(gate::enter_first);
    let streams = [meant::<R>(stream)];
    let room = queue::enter(launcher, &streams, true);
    if admit(launcher, &streams)
        && let Some(tenant) = catch_panic(Tenant::current).flatten()
    {
        progress::found(tenant.link, &tenant.accounts.steps, Step::Graph);
    }
    let is_looked_at = ARE_LOOKED_AT.load(Ordering::Acquire);
    let uploaded = is_looked_at.then(|| upload(exec, streams[0])).flatten();
    let result = match uploaded {
        Some(refused) if refused != CUDA_SUCCESS => refused,
        // SAFETY: the program's own arguments.
        _ => unsafe { R::call((exec, stream)) },
    };
    launched(launcher, room);
    result
}

/// `cuGraphUpload`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn upload_ahead<R: Like<row::cuGraphUpload>>(
    exec: CUgraphExec,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the program's own arguments.
    upload(exec, meant::<R>(stream)).unwrap_or_else(|| unsafe { R::call((exec, stream)) })
}
