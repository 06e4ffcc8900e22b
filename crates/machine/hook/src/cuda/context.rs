//! Contexts: the cost of each before a byte is allocated in it.
//!
//! The first context of a process on a card takes some hundred MiB, and no call reports how many.
//! The arbiter measures it from outside and writes the last figure into the control page. That
//! amount is reserved before the context is made, once for each card, and given back with the last
//! context. When a context goes, the driver frees the memory that was allocated in it, and so do
//! we. With the last context of a card, all memory that was allocated in any of its contexts is
//! freed, since a green context lends its name to memory of the primary context. Limits that a
//! program raises are charged in [`limits`]; streams are found by the arbiter.

mod book;
mod limits;

use std::ffi::{c_int, c_uint};
use std::sync::MutexGuard;

pub use self::book::Contexts;
pub use self::limits::set as set_limit;
use super::c::*;
use super::owned::Owned;
use super::queue::QueuesOnHold;
use super::tenant::{ContextCharge, OverLimit, Place, Tenant, giving, is_absent, refusal};
use super::work::NotedWork;
use super::{address, locked, physical, real, row};
use crate::guard::{Inside, catch_panic};
use crate::link::Budget;
use crate::real::Like;

/// Forgets a context that is gone: its allocations, and all on its card if it was the last there.
fn gone(tenant: &Tenant, device: CUdevice, context: CUcontext) {
    tenant.accounts.note_context_ended();
    let mut contexts = locked(&tenant.accounts.contexts);
    let was_last = contexts.end(tenant, device);
    let extras = contexts.limits.forget(context);
    drop(contexts);
    extras.into_iter().for_each(|charge| tenant.give(charge));
    let place = tenant.place(device);
    let card = place.budget().filter(|_| was_last);
    let is_of = |of: CUcontext| !of.is_null() && of == context;
    forget_memory(tenant, |budget, of| is_of(of) || Some(budget) == card);
    if let Some(index) = place.listed() {
        let ends = |of| is_of(of) || card.is_some();
        tenant.accounts.heaps.end(tenant, index, ends);
    }
    let borrowed = &tenant.accounts.borrowed;
    for (_, all) in borrowed.remove_where(|all| all.iter().any(|one| is_of(one.context))) {
        all.into_iter().for_each(|one| one.ended(tenant));
    }
}

/// Forgets memory that the driver freed.
fn forget_memory(tenant: &Tenant, is_gone: impl Fn(Budget, CUcontext) -> bool) {
    let accounts = tenant.accounts;
    let is_of = |held: &ContextCharge| is_gone(held.charge.budget, held.context);
    let is_owned = |owned: &Owned| match owned {
        Owned::Context(held) => is_of(held),
        Owned::Small(small) => is_gone(small.device.into(), small.context),
        Owned::External(share) => is_of(share),
        Owned::Pool { .. } => false,
    };
    address::forget_where(tenant, is_owned);
    for (_, held) in accounts.pinned.remove_where(is_of) {
        tenant.give(held.charge);
    }
    for (handle, array) in accounts.arrays.remove_where(|array| is_of(array.held())) {
        let mapped = physical::take_array(tenant, handle);
        array.ended(tenant);
        physical::drop_array(tenant, mapped);
    }
    for (_, share) in accounts.externals.remove_where(|share| is_of(share)) {
        tenant.give_share(share);
    }
}

/// Meanwhile a context may end, and nobody asks the driver about work in it.
struct MayEnd {
    running: MutexGuard<'static, NotedWork>,
    _queues: QueuesOnHold<'static>,
}

impl MayEnd {
    fn begin(tenant: &Tenant) -> Self {
        Self {
            running: tenant.accounts.work.hold(),
            _queues: tenant.accounts.queues.ending(),
        }
    }

    /// It has ended, with all that ran in it.
    fn ended(&mut self, tenant: &Tenant, context: CUcontext) {
        self.running.context_ended(context);
        tenant.accounts.queues.context_ended(context);
    }
}

/// A context of the program's may end now.
fn ending(tenant: &Tenant, context: CUcontext) -> Option<(book::Made, MayEnd)> {
    let may_end = MayEnd::begin(tenant);
    let made = locked(&tenant.accounts.contexts).made.remove(&context)?;
    Some((made, may_end))
}

/// A call that makes a context or retains one.
fn entering(
    device: CUdevice,
    call: impl FnOnce() -> CUresult,
    made: impl FnOnce(&Tenant, &mut Contexts),
) -> CUresult {
    let Some(_inside) = Inside::enter() else {
        return call();
    };
    let Some(tenant) = catch_panic(Tenant::current).flatten() else {
        return call();
    };
    match catch_panic(|| locked(&tenant.accounts.contexts).begin(&tenant, device)) {
        None => return call(),
        Some(Err(OverLimit)) if is_absent(device) => return call(),
        Some(Err(OverLimit)) => return refusal(),
        Some(Ok(())) => {}
    }
    let result = call();
    let _ = catch_panic(|| {
        let mut contexts = locked(&tenant.accounts.contexts);
        if result == CUDA_SUCCESS {
            made(&tenant, &mut contexts);
        } else {
            contexts.end(&tenant, device);
        }
    });
    result
}

/// `cuCtxCreate` until `_v2`, and `cuGLCtxCreate`: flags and a device.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create<R: Like<row::cuCtxCreate>>(
    context: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    entering(
        device,
        // SAFETY: the program's own arguments.
        || unsafe { R::call((context, flags, device)) },
        // SAFETY: the driver wrote it.
        |_, contexts| contexts.made(unsafe { *context }, device),
    )
}

/// `cuCtxCreate_v3`: with a share of the multiprocessors.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create_v3<R: Like<row::cuCtxCreate_v3>>(
    context: *mut CUcontext,
    shares: *mut CUexecAffinityParam,
    count: c_int,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    entering(
        device,
        // SAFETY: the program's own arguments.
        || unsafe { R::call((context, shares, count, flags, device)) },
        // SAFETY: the driver wrote it.
        |_, contexts| contexts.made(unsafe { *context }, device),
    )
}

/// `cuCtxCreate_v4`: with a struct of parameters.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create_v4<R: Like<row::cuCtxCreate_v4>>(
    context: *mut CUcontext,
    parameters: *mut CUctxCreateParams,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    entering(
        device,
        // SAFETY: the program's own arguments.
        || unsafe { R::call((context, parameters, flags, device)) },
        // SAFETY: the driver wrote it.
        |_, contexts| contexts.made(unsafe { *context }, device),
    )
}

/// `cuGreenCtxCreate`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create_green<R: Like<row::cuGreenCtxCreate>>(
    context: *mut CUgreenCtx,
    description: CUdevResourceDesc,
    device: CUdevice,
    flags: c_uint,
) -> CUresult {
    entering(
        device,
        // SAFETY: the program's own arguments.
        || unsafe { R::call((context, description, device, flags)) },
        |tenant, contexts| {
            // SAFETY: the driver wrote it.
            contexts.green.insert(unsafe { *context }, device);
            contexts.retained(tenant, device, None);
        },
    )
}

/// `cuVDPAUCtxCreate`: with a device of the video interface.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create_vdpau<R: Like<row::cuVDPAUCtxCreate>>(
    context: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
    video_device: VdpDevice,
    video_functions: *mut VdpGetProcAddress,
) -> CUresult {
    entering(
        device,
        // SAFETY: the program's own arguments.
        || unsafe { R::call((context, flags, device, video_device, video_functions)) },
        // SAFETY: the driver wrote it.
        |_, contexts| contexts.made(unsafe { *context }, device),
    )
}

/// `cuCtxAttach`: one more user.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn attach<R: Like<row::cuCtxAttach>>(
    context: *mut CUcontext,
    flags: c_uint,
) -> CUresult {
    giving(
        |_| Some(()),
        // SAFETY: the program's own arguments.
        || unsafe { R::call((context, flags)) },
        |tenant, (), attached| {
            if !attached {
                return;
            }
            // SAFETY: the driver wrote it.
            let context = unsafe { *context };
            if let Some(made) = locked(&tenant.accounts.contexts).made.get_mut(&context) {
                made.usage += 1;
            }
        },
    )
}

/// `cuCtxDetach`: the last one destroys it.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn detach<R: Like<row::cuCtxDetach>>(context: CUcontext) -> CUresult {
    giving(
        |tenant| ending(tenant, context),
        // SAFETY: the program's own argument.
        || unsafe { R::call((context,)) },
        |tenant, (mut made, mut may_end), detached| {
            made.usage -= usize::from(detached);
            if made.usage == 0 {
                may_end.ended(tenant, context);
                drop(may_end);
                gone(tenant, made.device, context);
            } else {
                locked(&tenant.accounts.contexts).made.insert(context, made);
            }
        },
    )
}

/// `cuCtxDestroy`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn destroy<R: Like<row::cuCtxDestroy>>(context: CUcontext) -> CUresult {
    giving(
        |tenant| ending(tenant, context),
        // SAFETY: the program's own argument.
        || unsafe { R::call((context,)) },
        |tenant, (made, mut may_end), is_gone| {
            if is_gone {
                may_end.ended(tenant, context);
                drop(may_end);
                gone(tenant, made.device, context);
            } else {
                locked(&tenant.accounts.contexts).made.insert(context, made);
            }
        },
    )
}

/// `cuGreenCtxDestroy`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn destroy_green<R: Like<row::cuGreenCtxDestroy>>(
    context: CUgreenCtx,
) -> CUresult {
    giving(
        |tenant| {
            let may_end = MayEnd::begin(tenant);
            let device = locked(&tenant.accounts.contexts).green.remove(&context)?;
            let mut current = CUcontext::default();
            // By this name threads had it as their current one.
            // SAFETY: a green context that lives, and the handle that is written.
            let _ = unsafe { real::cuCtxFromGreenCtx(&raw mut current, context) };
            Some((device, current, may_end))
        },
        // SAFETY: the program's own argument.
        || unsafe { R::call((context,)) },
        |tenant, (device, current, mut may_end), is_gone| {
            let mut contexts = locked(&tenant.accounts.contexts);
            if !is_gone {
                contexts.green.insert(context, device);
                return;
            }
            let context_of_device = contexts.released(device);
            drop(contexts);
            may_end.running.green_ended(context);
            may_end.ended(tenant, current);
            primary_ended(tenant, may_end, device, context_of_device);
        },
    )
}

/// `cuDevicePrimaryCtxRetain`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn retain<R: Like<row::cuDevicePrimaryCtxRetain>>(
    context: *mut CUcontext,
    device: CUdevice,
) -> CUresult {
    entering(
        device,
        // SAFETY: the program's own arguments.
        || unsafe { R::call((context, device)) },
        // SAFETY: the driver wrote it.
        |tenant, contexts| contexts.retained(tenant, device, Some(unsafe { *context })),
    )
}

/// `cuDevicePrimaryCtxRelease`: the last one destroys it.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn release<R: Like<row::cuDevicePrimaryCtxRelease>>(
    device: CUdevice,
) -> CUresult {
    giving(
        |tenant| Some(MayEnd::begin(tenant)),
        // SAFETY: the program's own argument.
        || unsafe { R::call((device,)) },
        |tenant, may_end, released| {
            if released {
                let ended = locked(&tenant.accounts.contexts).released(device);
                primary_ended(tenant, may_end, device, ended);
            }
        },
    )
}

/// `cuDevicePrimaryCtxReset`: destroys it, however often it was retained, and releases nothing.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn reset<R: Like<row::cuDevicePrimaryCtxReset>>(
    device: CUdevice,
) -> CUresult {
    giving(
        |tenant| Some(MayEnd::begin(tenant)),
        // SAFETY: the program's own argument.
        || unsafe { R::call((device,)) },
        |tenant, may_end, was_reset| {
            if was_reset {
                let ended = locked(&tenant.accounts.contexts).was_reset(device);
                primary_ended(tenant, may_end, device, ended);
            }
        },
    )
}

fn primary_ended(
    tenant: &Tenant,
    mut may_end: MayEnd,
    device: CUdevice,
    context: Option<CUcontext>,
) {
    let Some(context) = context else {
        return;
    };
    may_end.ended(tenant, context);
    drop(may_end);
    gone(tenant, device, context);
    if let Place::Listed(index) = tenant.place(device) {
        tenant.look_again(index);
    }
}
