//! Memory that this process has freed, and that somebody else may still hold.
//!
//! Freed memory stays on the card as long as another process has it open, a descriptor of it is
//! open, or a stream has not yet reached the unmapping. As long, it stays charged to the process
//! that made it. Each way of sharing memory leaves a [`Holder`], which can be checked for whether
//! it still holds the memory; the driver does not report it. Most programs end their use of
//! borrowed memory before the lender frees it, as they should: then nobody holds it, and nothing
//! comes here.
//!
//! Somebody has to look. A call that is about to be refused does, and so does a call that reports
//! the free memory. If another process of the job may need the memory while this one sleeps, a
//! thread of ours looks a few times a second, until nothing is left.

mod descriptor;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use sublet_abi::DeviceIndex;

pub use self::descriptor::{Descriptor, Probes};
use super::c::*;
use super::owned::Owned;
use super::real;
use super::tenant::{CachesMemory, MemoryCharge, Tenant};
use crate::guard::catch_panic;
use crate::link::marks::Key;
use crate::link::{Budget, without_signals};

/// Others that may hold memory, by the way in which they can be seen.
#[derive(Debug, Clone)]
pub enum Holder {
    /// Processes that mark it under this name.
    Mark(Key),
    /// Every process with the descriptor under which the memory was exported.
    Descriptor(Arc<Descriptor>),
    /// A stream that has not yet reached the unmapping.
    Work(Arc<Work>),
    /// Invisible holders: they hold the memory for ever.
    Unseen,
}

impl PartialEq for Holder {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Holder::Mark(key), Holder::Mark(other)) => key == other,
            (Holder::Descriptor(one), Holder::Descriptor(other)) => Arc::ptr_eq(one, other),
            (Holder::Work(one), Holder::Work(other)) => Arc::ptr_eq(one, other),
            (Holder::Unseen, Holder::Unseen) => true,
            _ => false,
        }
    }
}

impl Eq for Holder {}

impl Holder {
    /// The name under which others mark it.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        match self {
            Holder::Mark(key) => Some(*key),
            Holder::Descriptor(descriptor) => descriptor.key(),
            Holder::Work(_) | Holder::Unseen => None,
        }
    }

    /// True while somebody may hold the memory.
    #[must_use]
    pub fn still_holds(&self, tenant: &Tenant) -> bool {
        let marks = tenant.link.marks();
        let is_marked = |key| marks.is_some_and(|marks| marks.is_held_by_another(key));
        self.key().is_some_and(is_marked)
            || match self {
                Holder::Mark(_) => false,
                Holder::Descriptor(descriptor) => descriptor.is_open(),
                Holder::Work(work) => !work.is_done(),
                Holder::Unseen => true,
            }
    }
}

/// A place in a stream.
#[derive(Debug)]
pub struct Work(CUevent);

impl Work {
    /// Marks the current end of a stream.
    #[must_use]
    pub fn in_stream(stream: CUstream) -> Option<Self> {
        let mut event = CUevent::default();
        // SAFETY: writes the handle it is given.
        let made = unsafe { real::cuEventCreate(&raw mut event, CU_EVENT_DISABLE_TIMING.0) };
        if made != CUDA_SUCCESS {
            return None;
        }
        let work = Self(event);
        // SAFETY: a live event, and the program's own stream.
        let recorded = unsafe { real::cuEventRecord(event, stream) };
        (recorded == CUDA_SUCCESS).then_some(work)
    }

    /// True once the stream has passed it, or is no more.
    fn is_done(&self) -> bool {
        // SAFETY: asks about an event that lives as long as this.
        (unsafe { real::cuEventQuery(self.0) }) != CUDA_ERROR_NOT_READY
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // SAFETY: ours, and nobody has it any more.
        let _ = unsafe { real::cuEventDestroy_v2(self.0) };
    }
}

/// Charge or memory to give back when nobody holds the memory any more.
#[derive(Debug)]
pub enum Debt {
    /// A charge alone.
    Charge(MemoryCharge),
    /// The memory at an address.
    Owned(Owned),
}

impl Debt {
    fn give_back(self, tenant: &Tenant) {
        match self {
            Debt::Charge(charge) => tenant.give(charge),
            Debt::Owned(owned) => owned.give_back(tenant),
        }
    }

    /// True if it is given back without a call of the driver.
    fn needs_no_driver(&self) -> bool {
        match self {
            Debt::Charge(_) | Debt::Owned(Owned::Context(_) | Owned::Small(_)) => true,
            Debt::Owned(Owned::Pool { .. } | Owned::External(_)) => false,
        }
    }
}

impl From<MemoryCharge> for Debt {
    fn from(charge: MemoryCharge) -> Self {
        Debt::Charge(charge)
    }
}

impl From<Owned> for Debt {
    fn from(owned: Owned) -> Self {
        Debt::Owned(owned)
    }
}

/// One freed piece of memory.
#[derive(Debug)]
struct Entry {
    debt: Debt,
    holders: Vec<Holder>,
}

impl Entry {
    /// True if it can be looked at, and given back, without the driver. A thread of ours does
    /// not call a driver that the program may be ending.
    fn is_watched(&self) -> bool {
        let is_seen = |holder: &Holder| matches!(holder, Holder::Mark(_) | Holder::Descriptor(_));
        self.debt.needs_no_driver() && self.holders.iter().all(is_seen)
    }

    fn is_over(&mut self, tenant: &Tenant) -> bool {
        self.holders.retain(|holder| holder.still_holds(tenant));
        self.holders.is_empty()
    }
}

/// All memory that is freed and not paid back yet.
#[derive(Debug, Default)]
pub struct DeferredFrees {
    entries: Mutex<Vec<Entry>>,
    /// True while there is a thread.
    is_watched: AtomicBool,
    /// Files that are asked whether descriptors are still open.
    pub probes: Probes,
}

/// Between two looks of the thread: as often as the arbiter reads the driver.
const PAUSE: Duration = Duration::from_millis(200);

impl DeferredFrees {
    /// Memory is freed: it is paid back, now or when nobody holds it any more. Memory of another
    /// interface is that one's to end, and is paid back now.
    pub fn pay_back(&self, tenant: &Tenant, debt: impl Into<Debt>, holders: Vec<Holder>) {
        let debt = debt.into();
        let mut entry = Entry { debt, holders };
        if matches!(entry.debt, Debt::Owned(Owned::External(_))) || entry.is_over(tenant) {
            entry.debt.give_back(tenant);
            return;
        }
        let is_watched = entry.is_watched();
        self.entries().push(entry);
        if is_watched {
            self.watch(*tenant);
        }
    }

    /// Gives back the memory that nobody holds any more. True if there was any.
    fn sweep(&self, tenant: &Tenant, are_meant: impl Fn(&Entry) -> bool) -> bool {
        let over: Vec<Entry> = {
            let mut entries = self.entries();
            let is_over = |entry: &mut Entry| are_meant(entry) && entry.is_over(tenant);
            entries.extract_if(.., is_over).collect()
        };
        let any = !over.is_empty();
        for entry in over {
            entry.debt.give_back(tenant);
        }
        any
    }

    /// Sees to it that there is a thread.
    fn watch(&self, tenant: Tenant) {
        if self.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let frees = &tenant.accounts.deferred_frees;
        let started = without_signals(|| {
            thread::Builder::new()
                .name("sublet-freed".into())
                .stack_size(128 << 10)
                .spawn(move || while catch_panic(|| frees.look(&tenant)) == Some(true) {})
        });
        if started.is_err() {
            self.is_watched.store(false, Ordering::Release);
        }
    }

    /// One look of the thread. False if there is nothing to look at any more.
    fn look(&self, tenant: &Tenant) -> bool {
        thread::sleep(PAUSE);
        self.sweep(tenant, Entry::is_watched);
        // Under the lock, so that whoever adds sees that there is no thread.
        let entries = self.entries();
        let is_needed = entries.iter().any(Entry::is_watched);
        self.is_watched.store(is_needed, Ordering::Release);
        is_needed
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachesMemory for DeferredFrees {
    /// Ignores the budget: all deferred frees are looked at.
    fn release_unused(&self, tenant: &Tenant, _: Budget) -> bool {
        self.sweep(tenant, |_| true)
    }

    fn look_again(&self, tenant: &Tenant, _: DeviceIndex) {
        self.sweep(tenant, |_| true);
    }
}
