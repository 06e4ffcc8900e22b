//! Memory that a program makes a context set aside: stacks, a heap, a buffer for `printf`.
//!
//! One call can take gigabytes: each thread that can run on the card at the same time gets a stack.
//! The cost of a context includes its limits at its creation. A raise of the limits is charged
//! here, before the driver is asked. The driver may take the memory later, or a little more; the
//! arbiter finds the rest.

use std::collections::HashMap;
use std::ffi::c_int;

use sublet_abi::Units;

use crate::cuda::c::*;
use crate::cuda::tenant::{
    MemoryCharge, Need, OverLimit, Place, Tenant, current_context, current_device,
};
use crate::cuda::{locked, real, row};
use crate::guard::{Inside, catch_panic};
use crate::real::Like;

/// Cost of raised limits, by context.
#[derive(Debug, Default)]
pub(super) struct Limits(HashMap<(CUcontext, CUlimit), Raised>);

#[derive(Debug)]
struct Raised {
    /// Value of the limit when the context was made.
    initial: u64,
    /// Charge for the part above that value.
    charge: MemoryCharge,
}

impl Limits {
    /// Forgets a context that is gone, and returns its charges.
    pub(super) fn forget(&mut self, context: CUcontext) -> Vec<MemoryCharge> {
        let gone = self.0.extract_if(|(of, _), _| *of == context);
        gone.map(|(_, raised)| raised.charge).collect()
    }
}

/// Bytes that a limit sets aside for each unit of its value; `None` if that is not known.
fn factor(limit: CUlimit, device: CUdevice) -> Option<u64> {
    match limit {
        CU_LIMIT_STACK_SIZE => {
            let processors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)?;
            let threads = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device)?;
            processors.checked_mul(threads)
        }
        CU_LIMIT_MALLOC_HEAP_SIZE | CU_LIMIT_PRINTF_FIFO_SIZE => Some(1),
        _ => None,
    }
}

fn attribute(attribute: CUdevice_attribute, device: CUdevice) -> Option<u64> {
    let mut value: c_int = 0;
    // SAFETY: writes the number it is given.
    let result = unsafe { real::cuDeviceGetAttribute(&raw mut value, attribute, device) };
    u64::try_from(value).ok().filter(|_| result == CUDA_SUCCESS)
}

fn limit_now(limit: CUlimit) -> Option<u64> {
    let mut value = 0;
    // SAFETY: writes the number it is given.
    let result = unsafe { real::cuCtxGetLimit(&raw mut value, limit) };
    (result == CUDA_SUCCESS).then_some(value as u64)
}

/// A change that is about to be made.
struct Change {
    at: (CUcontext, CUlimit),
    initial: u64,
    /// Cost of the new limit.
    wanted: Units,
    /// Its charge, including the memory taken now: the larger of before and after.
    charge: MemoryCharge,
}

/// Takes the memory that a change needs; `None` if no cost of this kind is known.
fn prepare(tenant: &Tenant, limit: CUlimit, value: usize) -> Result<Option<Change>, OverLimit> {
    let at = (current_context(), limit);
    let known = current_device().and_then(|device| {
        let factor = factor(limit, device)?;
        Some((device, factor, limit_now(limit)?))
    });
    let Some((device, factor, before)) = known else {
        return Ok(None);
    };
    let Place::Listed(index) = tenant.place(device) else {
        return Err(OverLimit);
    };
    let nothing = MemoryCharge {
        budget: index.into(),
        amount: Units::ZERO,
    };
    let (initial, charge) = match locked(&tenant.accounts.contexts).limits.0.get(&at) {
        Some(raised) => (raised.initial, raised.charge),
        None => (before, nothing),
    };
    let bytes = (value as u64)
        .saturating_sub(initial)
        .saturating_mul(factor);
    let place = Place::Listed(index);
    let wanted = tenant.amount(Need { place, bytes }).unwrap_or(Units::MAX);
    let bytes = wanted.saturating_sub(charge.amount).bytes();
    let more = tenant.take(Need { place, bytes })?;
    let amount = charge.amount.saturating_add(more.amount);
    Ok(Some(Change {
        at,
        initial,
        wanted,
        charge: MemoryCharge { amount, ..charge },
    }))
}

/// Notes the new charge, and gives back the memory that is not needed.
fn finish(tenant: &Tenant, change: &Change, is_done: bool) {
    let mut contexts = locked(&tenant.accounts.contexts);
    let limits = &mut contexts.limits.0;
    let before = limits.get(&change.at).map(|raised| raised.charge.amount);
    let amount = if is_done {
        change.wanted
    } else {
        before.unwrap_or(Units::ZERO)
    };
    let budget = change.charge.budget;
    let raised = Raised {
        initial: change.initial,
        charge: MemoryCharge { budget, amount },
    };
    limits.insert(change.at, raised);
    drop(contexts);
    let amount = change.charge.amount.saturating_sub(amount);
    tenant.give(MemoryCharge { budget, amount });
}

/// `cuCtxSetLimit`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn set<R: Like<row::cuCtxSetLimit>>(
    limit: CUlimit,
    value: usize,
) -> CUresult {
    // SAFETY: the program's own arguments.
    let call = || unsafe { R::call((limit, value)) };
    let Some(_inside) = Inside::enter() else {
        return call();
    };
    let Some(tenant) = catch_panic(Tenant::current).flatten() else {
        return call();
    };
    let change = match catch_panic(|| prepare(&tenant, limit, value)) {
        None | Some(Ok(None)) => return call(),
        Some(Err(OverLimit)) => return CUDA_ERROR_OUT_OF_MEMORY,
        Some(Ok(Some(change))) => change,
    };
    let result = call();
    let _ = catch_panic(|| finish(&tenant, &change, result == CUDA_SUCCESS));
    result
}
