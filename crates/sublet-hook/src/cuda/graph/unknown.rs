//! Graphs of which the driver does not tell all, and what their launches take.
//!
//! Most drivers put memory behind the addresses of a graph when it is first launched or uploaded.
//! Of a graph whose nodes do not say how much that is, the driver is asked by an upload before
//! each launch: what the device's graphs have reserved then must fit, or it is trimmed away again
//! and the launch is refused. A program that has no such graph pays one load per launch of a
//! graph.

use std::sync::atomic::{AtomicBool, Ordering};

use super::retry;
use crate::cuda::c::*;
use crate::cuda::pool::{is_capturing, meant};
use crate::cuda::tenant::Tenant;
use crate::cuda::{locked, real};
use crate::gate;
use crate::guard::{Inside, calm};

/// Was such a graph ever made in this process?
static IS_THERE: AtomicBool = AtomicBool::new(false);

/// From now on launches are looked at.
pub(super) fn announce() {
    IS_THERE.store(true, Ordering::Release);
}

/// All devices of the driver: nobody knows on which of them such a graph is.
pub(super) fn devices() -> Vec<CUdevice> {
    let mut count = 0;
    // SAFETY: writes the number it is given.
    let result = unsafe { real::cuDeviceGetCount(&raw mut count) };
    (0..if result == CUDA_SUCCESS { count } else { 0 }).collect()
}

/// Puts memory behind the addresses of a graph of which not all is known, if the limit allows it.
/// `None` where there is nothing to do, or the driver does not do it: it has its own words for why.
fn upload(exec: CUgraphExec, stream: CUstream) -> Option<CUresult> {
    if !IS_THERE.load(Ordering::Acquire) {
        return None;
    }
    let _inside = Inside::enter()?;
    let tenant = calm(Tenant::current).flatten()?;
    let graphs = || locked(&tenant.books.graphs);
    let uploaded = calm(|| {
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

/// `cuGraphLaunch`, which makes the GPU work and so waits at the gate.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn launch<const ROW: usize>(exec: CUgraphExec, stream: CUstream) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUgraphExec, CUstream) -> CUresult =
        unsafe { real::function(ROW) };
    gate::wait();
    match upload(exec, meant::<ROW>(stream)) {
        Some(refused) if refused != CUDA_SUCCESS => refused,
        // SAFETY: the program's own arguments.
        _ => unsafe { real(exec, stream) },
    }
}

/// `cuGraphUpload`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn upload_ahead<const ROW: usize>(
    exec: CUgraphExec,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUgraphExec, CUstream) -> CUresult =
        unsafe { real::function(ROW) };
    // SAFETY: the program's own arguments.
    upload(exec, meant::<ROW>(stream)).unwrap_or_else(|| unsafe { real(exec, stream) })
}
