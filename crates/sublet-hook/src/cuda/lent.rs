//! Memory that this process has freed, and that somebody else may still hold.
//!
//! Freed memory is on the card for as long as another process has it open, a descriptor of it
//! is, or a stream has not come to where it is unmapped; and so long it stays charged to the
//! process that made it. Each way to let others have memory leaves a [`Trace`], by which its
//! end can be seen without asking the driver, which does not say. Most programs end what they
//! borrowed before the lender frees it, as they should: then the traces are cold at once, and
//! nothing comes here.
//!
//! Somebody has to look. Whoever is about to be refused does, and whoever is asked how much is
//! left; and where another process of the job may need the memory while this one sleeps, a
//! thread of ours looks a few times a second, until nothing is lent any more.

mod descriptor;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

pub use self::descriptor::{Descriptor, Probes};
use super::c::*;
use super::plain::{Owned, Part};
use super::pool::Account;
use super::real;
use super::tenant::{Charge, Tenant};
use crate::guard::calm;
use crate::link::marks::Key;
use crate::link::without_signals;

/// How it can be seen whether others still hold memory.
#[derive(Debug, Clone)]
pub enum Trace {
    /// They mark it under this name.
    Mark(Key),
    /// It went out as a descriptor.
    Descriptor(Arc<Descriptor>),
    /// A stream has to come to where it is unmapped.
    Work(Arc<Work>),
    /// It cannot.
    Unseen,
}

impl PartialEq for Trace {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Trace::Mark(key), Trace::Mark(other)) => key == other,
            (Trace::Descriptor(one), Trace::Descriptor(other)) => Arc::ptr_eq(one, other),
            (Trace::Work(one), Trace::Work(other)) => Arc::ptr_eq(one, other),
            (Trace::Unseen, Trace::Unseen) => true,
            _ => false,
        }
    }
}

impl Eq for Trace {}

impl Trace {
    /// The name under which others mark it.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        match self {
            Trace::Mark(key) => Some(*key),
            Trace::Descriptor(descriptor) => descriptor.key(),
            Trace::Work(_) | Trace::Unseen => None,
        }
    }

    /// True while somebody may hold the memory.
    #[must_use]
    pub fn is_warm(&self, tenant: &Tenant) -> bool {
        let marks = tenant.link.marks();
        let is_marked = |key| marks.is_some_and(|marks| marks.is_held_by_another(key));
        self.key().is_some_and(is_marked)
            || match self {
                Trace::Mark(_) => false,
                Trace::Descriptor(descriptor) => descriptor.is_open(),
                Trace::Work(work) => !work.is_done(),
                Trace::Unseen => true,
            }
    }
}

/// A place in a stream.
#[derive(Debug)]
pub struct Work(CUevent);

impl Work {
    /// Where a stream is now.
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

/// What is given back when nobody holds the memory any more.
#[derive(Debug)]
enum Debt {
    Charge(Charge),
    Part(Part),
    Pool {
        account: Account,
        address: CUdeviceptr,
        bytes: u64,
    },
}

#[derive(Debug)]
struct Entry {
    debt: Debt,
    traces: Vec<Trace>,
}

impl Entry {
    /// True if it can be looked at, and given back, without the driver. A thread of ours does
    /// not call a driver that the program may be ending.
    fn is_watched(&self) -> bool {
        let is_seen = |trace: &Trace| matches!(trace, Trace::Mark(_) | Trace::Descriptor(_));
        matches!(self.debt, Debt::Charge(_) | Debt::Part(_)) && self.traces.iter().all(is_seen)
    }

    fn is_over(&mut self, tenant: &Tenant) -> bool {
        self.traces.retain(|trace| trace.is_warm(tenant));
        self.traces.is_empty()
    }

    fn give_back(self, tenant: &Tenant) {
        match self.debt {
            Debt::Charge(charge) => tenant.give(charge),
            Debt::Part(part) => part.give_back(tenant),
            Debt::Pool {
                account,
                address,
                bytes,
            } => account.freed(tenant, address, bytes),
        }
    }
}

/// All that is lent.
#[derive(Debug, Default)]
pub struct Lent {
    entries: Mutex<Vec<Entry>>,
    /// True while there is a thread.
    is_watched: AtomicBool,
    /// Files that are asked whether descriptors are still open.
    pub probes: Probes,
}

/// Between two looks of the thread: as often as the arbiter reads the driver.
const PAUSE: Duration = Duration::from_millis(200);

impl Lent {
    /// Memory of a charge is freed: it is given back, now or when nobody holds it.
    pub(super) fn let_go(&self, tenant: &Tenant, charge: Charge, traces: Vec<Trace>) {
        self.add(tenant, Debt::Charge(charge), traces);
    }

    /// The same for an address.
    pub(super) fn let_go_of(&self, tenant: &Tenant, owned: Owned, traces: Vec<Trace>) {
        match owned {
            Owned::Context(held) => self.add(tenant, Debt::Charge(held.charge), traces),
            Owned::Part(part) => self.add(tenant, Debt::Part(part), traces),
            Owned::Pool {
                account,
                address,
                bytes,
            } => {
                let debt = Debt::Pool {
                    account,
                    address,
                    bytes,
                };
                self.add(tenant, debt, traces);
            }
            Owned::External(_) => owned.give_back(tenant),
        }
    }

    fn add(&self, tenant: &Tenant, debt: Debt, traces: Vec<Trace>) {
        let mut entry = Entry { debt, traces };
        if entry.is_over(tenant) {
            entry.give_back(tenant);
            return;
        }
        let is_watched = entry.is_watched();
        self.entries().push(entry);
        if is_watched {
            self.watch(*tenant);
        }
    }

    /// Gives back what nobody holds any more. True if that was anything.
    pub fn sweep(&self, tenant: &Tenant) -> bool {
        self.sweep_those(tenant, |_| true)
    }

    fn sweep_those(&self, tenant: &Tenant, are_meant: impl Fn(&Entry) -> bool) -> bool {
        let over: Vec<Entry> = {
            let mut entries = self.entries();
            let is_over = |entry: &mut Entry| are_meant(entry) && entry.is_over(tenant);
            entries.extract_if(.., is_over).collect()
        };
        let any = !over.is_empty();
        over.into_iter().for_each(|entry| entry.give_back(tenant));
        any
    }

    /// Sees to it that there is a thread.
    fn watch(&self, tenant: Tenant) {
        if self.is_watched.swap(true, Ordering::AcqRel) {
            return;
        }
        let lent = &tenant.books.lent;
        let started = without_signals(|| {
            thread::Builder::new()
                .name("sublet-lent".into())
                .stack_size(128 << 10)
                .spawn(move || while calm(|| lent.look(&tenant)) == Some(true) {})
        });
        if started.is_err() {
            self.is_watched.store(false, Ordering::Release);
        }
    }

    /// One look of the thread. False if there is nothing to look at any more.
    fn look(&self, tenant: &Tenant) -> bool {
        thread::sleep(PAUSE);
        self.sweep_those(tenant, Entry::is_watched);
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
