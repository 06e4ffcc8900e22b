//! Contexts: what each costs before a byte is allocated in it.
//!
//! The first context of a process on a card takes some hundred MiB, of which no call says how
//! many. The arbiter measures it from outside and writes the last figure into the control page;
//! so much is reserved before the context is made, once for each card, and given back with the
//! last one. When a context goes, the driver frees what was allocated in it, and so do we.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};

use super::c::*;
use super::tenant::{Ask, Charge, OverLimit, Place, Tenant, giving};
use super::{locked, real};
use crate::guard::{Inside, calm};

/// The contexts of the process.
#[derive(Debug, Default)]
pub struct Contexts {
    /// Those the program made, and green ones.
    made: HashMap<Handle, CUdevice>,
    /// The primary ones that it retained.
    primary: HashMap<CUdevice, Primary>,
    /// For each card how many there are, those under way included, and what they cost.
    cards: HashMap<CUdevice, Card>,
}

/// Green contexts have numbers of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Handle {
    Plain(CUcontext),
    Green(CUgreenCtx),
}

#[derive(Debug, Default)]
struct Primary {
    retained: usize,
    context: CUcontext,
}

#[derive(Debug)]
struct Card {
    contexts: usize,
    charge: Charge,
}

impl Contexts {
    /// One more context on a card; the first is paid for.
    fn begin(&mut self, tenant: &Tenant, device: CUdevice) -> Result<(), OverLimit> {
        if let Some(card) = self.cards.get_mut(&device) {
            card.contexts += 1;
            return Ok(());
        }
        let place = tenant.place(device);
        let bytes = match place {
            Place::Listed(index) => tenant.link.control().device(index).context_bytes(),
            Place::Unlisted => 0,
        };
        let charge = tenant.take(Ask { place, bytes })?;
        say(tenant, charge, charge.amount.bytes());
        let contexts = 1;
        self.cards.insert(device, Card { contexts, charge });
        Ok(())
    }

    /// So many contexts fewer; the last is paid back.
    fn end(&mut self, tenant: &Tenant, device: CUdevice, count: usize) {
        let Some(card) = self.cards.get_mut(&device) else {
            return;
        };
        card.contexts = card.contexts.saturating_sub(count);
        if card.contexts == 0
            && let Some(card) = self.cards.remove(&device)
        {
            say(tenant, card.charge, 0);
            tenant.give(card.charge);
        }
    }
}

/// Says in the slot how much of its use is an estimate, so that the arbiter can correct it.
fn say(tenant: &Tenant, charge: Charge, bytes: u64) {
    let slot = tenant.link.ledger().slot(tenant.link.slot());
    slot.set_context_bytes(charge.device, bytes);
}

/// The driver freed what was allocated in a context.
fn forget_memory_of(tenant: &Tenant, context: CUcontext) {
    use super::plain::Owned;
    if context.is_null() {
        return;
    }
    let books = tenant.books;
    let is_gone = |owned: &Owned| matches!(owned, Owned::Context(held) if held.context == context);
    for owned in books.pointers.remove_where(is_gone) {
        owned.give_back(tenant);
    }
    for map in [&books.arrays, &books.externals] {
        for held in map.remove_where(|held| held.context == context) {
            tenant.give(held.charge);
        }
    }
}

/// A call that makes a context or retains one.
fn entering(
    device: CUdevice,
    call: impl FnOnce() -> CUresult,
    made: impl FnOnce(&mut Contexts),
) -> CUresult {
    let Some(_inside) = Inside::enter() else {
        return call();
    };
    let Some(tenant) = calm(Tenant::current).flatten() else {
        return call();
    };
    match calm(|| locked(&tenant.books.contexts).begin(&tenant, device)) {
        None => return call(),
        Some(Err(OverLimit)) => return CUDA_ERROR_OUT_OF_MEMORY,
        Some(Ok(())) => {}
    }
    let result = call();
    let _ = calm(|| {
        let mut contexts = locked(&tenant.books.contexts);
        if result == CUDA_SUCCESS {
            made(&mut contexts);
        } else {
            contexts.end(&tenant, device, 1);
        }
    });
    result
}

/// `cuCtxCreate` until `_v2`: flags and a device.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create<const ROW: usize>(
    context: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut CUcontext, c_uint, CUdevice) -> CUresult =
        unsafe { real::function(ROW) };
    entering(
        device,
        // SAFETY: the program's own arguments.
        || unsafe { real(context, flags, device) },
        |contexts| {
            // SAFETY: the driver wrote it.
            let context = unsafe { *context };
            contexts.made.insert(Handle::Plain(context), device);
        },
    )
}

/// `cuCtxCreate_v3`: with a share of the multiprocessors.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create_v3<const ROW: usize>(
    context: *mut CUcontext,
    shares: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        *mut CUcontext,
        *mut c_void,
        c_int,
        c_uint,
        CUdevice,
    ) -> CUresult = unsafe { real::function(ROW) };
    entering(
        device,
        // SAFETY: the program's own arguments.
        || unsafe { real(context, shares, count, flags, device) },
        |contexts| {
            // SAFETY: the driver wrote it.
            let context = unsafe { *context };
            contexts.made.insert(Handle::Plain(context), device);
        },
    )
}

/// `cuCtxCreate_v4`: with a struct of parameters.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create_v4<const ROW: usize>(
    context: *mut CUcontext,
    parameters: *mut c_void,
    flags: c_uint,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut CUcontext, *mut c_void, c_uint, CUdevice) -> CUresult =
        unsafe { real::function(ROW) };
    entering(
        device,
        // SAFETY: the program's own arguments.
        || unsafe { real(context, parameters, flags, device) },
        |contexts| {
            // SAFETY: the driver wrote it.
            let context = unsafe { *context };
            contexts.made.insert(Handle::Plain(context), device);
        },
    )
}

/// `cuGreenCtxCreate`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create_green<const ROW: usize>(
    context: *mut CUgreenCtx,
    description: CUdevResourceDesc,
    device: CUdevice,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(
        *mut CUgreenCtx,
        CUdevResourceDesc,
        CUdevice,
        c_uint,
    ) -> CUresult = unsafe { real::function(ROW) };
    entering(
        device,
        // SAFETY: the program's own arguments.
        || unsafe { real(context, description, device, flags) },
        |contexts| {
            // SAFETY: the driver wrote it.
            let context = unsafe { *context };
            contexts.made.insert(Handle::Green(context), device);
        },
    )
}

/// `cuCtxDestroy`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn destroy<const ROW: usize>(context: CUcontext) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUcontext) -> CUresult = unsafe { real::function(ROW) };
    // SAFETY: the program's own argument.
    leaving(Handle::Plain(context), || unsafe { real(context) })
}

/// `cuGreenCtxDestroy`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn destroy_green<const ROW: usize>(context: CUgreenCtx) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUgreenCtx) -> CUresult = unsafe { real::function(ROW) };
    // SAFETY: the program's own argument.
    leaving(Handle::Green(context), || unsafe { real(context) })
}

fn leaving(handle: Handle, call: impl FnOnce() -> CUresult) -> CUresult {
    giving(
        |tenant| locked(&tenant.books.contexts).made.remove(&handle),
        call,
        |tenant, device, gone| {
            if !gone {
                locked(&tenant.books.contexts).made.insert(handle, device);
                return;
            }
            if let Handle::Plain(context) = handle {
                forget_memory_of(tenant, context);
            }
            locked(&tenant.books.contexts).end(tenant, device, 1);
        },
    )
}

/// `cuDevicePrimaryCtxRetain`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn retain<const ROW: usize>(
    context: *mut CUcontext,
    device: CUdevice,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut CUcontext, CUdevice) -> CUresult =
        unsafe { real::function(ROW) };
    entering(
        device,
        // SAFETY: the program's own arguments.
        || unsafe { real(context, device) },
        |contexts| {
            let primary = contexts.primary.entry(device).or_default();
            primary.retained += 1;
            // SAFETY: the driver wrote it.
            primary.context = unsafe { *context };
        },
    )
}

/// `cuDevicePrimaryCtxRelease`: the last one destroys it.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn release<const ROW: usize>(device: CUdevice) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUdevice) -> CUresult = unsafe { real::function(ROW) };
    giving(
        |_| Some(()),
        // SAFETY: the program's own argument.
        || unsafe { real(device) },
        |tenant, (), released| {
            if released {
                drop_primary(tenant, device, 1);
            }
        },
    )
}

/// `cuDevicePrimaryCtxReset`: destroys it, however often it was retained.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn reset<const ROW: usize>(device: CUdevice) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUdevice) -> CUresult = unsafe { real::function(ROW) };
    giving(
        |_| Some(()),
        // SAFETY: the program's own argument.
        || unsafe { real(device) },
        |tenant, (), was_reset| {
            if was_reset {
                drop_primary(tenant, device, usize::MAX);
            }
        },
    )
}

fn drop_primary(tenant: &Tenant, device: CUdevice, times: usize) {
    let mut contexts = locked(&tenant.books.contexts);
    let Some(primary) = contexts.primary.get_mut(&device) else {
        return;
    };
    let times = times.min(primary.retained);
    primary.retained -= times;
    let gone = (primary.retained == 0).then_some(primary.context);
    if gone.is_some() {
        contexts.primary.remove(&device);
    }
    contexts.end(tenant, device, times);
    drop(contexts);
    if let Some(context) = gone {
        forget_memory_of(tenant, context);
        if let Place::Listed(index) = tenant.place(device) {
            super::pool::look_again(tenant, index);
        }
    }
}
