//! Graphs of which the driver does not tell all, and what their launches take.
//!
//! Most drivers put memory behind the addresses of a graph when it is first launched or uploaded.
//! Of a graph whose nodes do not say how much that is, the driver is asked by an upload before
//! each launch: what the device's graphs have reserved then must fit, or it is trimmed away again
//! and the launch is refused. While there is no such graph, launches pass the gate as all do.

use std::arch::naked_asm;

use super::retry;
use crate::cuda::c::*;
use crate::cuda::real::{self, REAL};
use crate::cuda::stream::{is_capturing, meant};
use crate::cuda::tenant::Tenant;
use crate::cuda::{locked, row};
use crate::gate;
use crate::guard::{Inside, catch_panic};
use crate::real::Like;

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
    let _inside = Inside::enter()?;
    let tenant = catch_panic(Tenant::current).flatten()?;
    let graphs = || locked(&tenant.books.graphs);
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

/// `cuGraphLaunch`, while nobody looks at graphs: as every launch passes the gate. Reached with
/// the row in `r11`.
///
/// # Safety
/// As the driver documents.
#[unsafe(naked)]
pub unsafe extern "C" fn launch<R: Like<row::cuGraphLaunch>>(
    exec: CUgraphExec,
    stream: CUstream,
) -> CUresult {
    naked_asm!(
        "mov rax, qword ptr [rip + {word}]",
        "cmp dword ptr [rax], 0",
        "jne {looked_at}",
        "lea rax, [rip + {real}]",
        "jmp qword ptr [rax + 8 * r11]",
        word = sym gate::GRAPHS,
        looked_at = sym looked_at::<R>,
        real = sym REAL,
    )
}

/// Waits at the gate, and gives the graph its memory first if nobody knows how much that is.
unsafe extern "C" fn looked_at<R: Like<row::cuGraphLaunch>>(
    exec: CUgraphExec,
    stream: CUstream,
) -> CUresult {
    gate::wait();
    match upload(exec, meant::<R>(stream)) {
        Some(refused) if refused != CUDA_SUCCESS => refused,
        // SAFETY: the program's own arguments.
        _ => unsafe { R::call((exec, stream)) },
    }
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
