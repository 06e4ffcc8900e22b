//! Sets of events and waiting for one. Nothing ever befalls a fake card, so a wait lasts
//! until its time is up; a watcher is kept as quiet as by healthy cards.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sublet_driver_api::nvml::{
    NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_TIMEOUT, nvmlDevice_t,
    nvmlEventData_t, nvmlEventSet_t, nvmlEventTypeAll, nvmlEventTypeXidCriticalError,
};

use super::exported::{Answer, functions};
use super::library::{card, machine};
use super::pointer::Out;

struct Sets {
    live: BTreeSet<nvmlEventSet_t>,
    n_made: usize,
}

static SETS: Mutex<Sets> = Mutex::new(Sets {
    live: BTreeSet::new(),
    n_made: 0,
});
/// Rung when a set is freed.
static FREED: Condvar = Condvar::new();

functions! {
    fn nvmlEventSetCreate(set: Out<nvmlEventSet_t>) {
        machine()?;
        set.check()?;
        let mut sets = lock();
        sets.n_made += 1;
        let new = nvmlEventSet_t(sets.n_made);
        sets.live.insert(new);
        set.write(new)
    }

    fn nvmlEventSetFree(set: nvmlEventSet_t) {
        machine()?;
        let was_there = lock().live.remove(&set);
        FREED.notify_all();
        was_there.then_some(()).ok_or(NVML_ERROR_INVALID_ARGUMENT)
    }

    /// A health check waits for critical errors; a fake card has no other events.
    fn nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, types: Out<u64>) {
        card(device)?;
        types.write(nvmlEventTypeXidCriticalError.into())
    }

    fn nvmlDeviceRegisterEvents(device: nvmlDevice_t, types: u64, set: nvmlEventSet_t) {
        card(device)?;
        if types & !u64::from(nvmlEventTypeAll) != 0 || !lock().live.contains(&set) {
            return Err(NVML_ERROR_INVALID_ARGUMENT);
        }
        if types & !u64::from(nvmlEventTypeXidCriticalError) != 0 {
            return Err(NVML_ERROR_NOT_SUPPORTED);
        }
        Ok(())
    }

    fn nvmlEventSetWait(set: nvmlEventSet_t, data: Out<nvmlEventData_t>, wait_ms: u32) {
        wait(set, data, wait_ms)
    }

    fn nvmlEventSetWait_v2(set: nvmlEventSet_t, data: Out<nvmlEventData_t>, wait_ms: u32) {
        wait(set, data, wait_ms)
    }
}

fn lock() -> MutexGuard<'static, Sets> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees the sets that nobody freed, at the end of the library.
pub(super) fn free_all() {
    lock().live.clear();
    FREED.notify_all();
}

fn wait(set: nvmlEventSet_t, data: Out<nvmlEventData_t>, wait_ms: u32) -> Answer {
    machine()?;
    data.check()?;
    let limit = Duration::from_millis(wait_ms.into());
    let waited = FREED.wait_timeout_while(lock(), limit, |sets| sets.live.contains(&set));
    let (sets, result) = waited.unwrap_or_else(PoisonError::into_inner);
    drop(sets);
    // Not up means that there is no such set, now or already before.
    Err(if result.timed_out() {
        NVML_ERROR_TIMEOUT
    } else {
        NVML_ERROR_INVALID_ARGUMENT
    })
}
