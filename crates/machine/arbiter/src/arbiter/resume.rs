//! After a restart: processes that were there before come back with the ledger that they
//! kept. The first of a job brings the ledger, and with it the slots of all the others,
//! whether they come back, have died meanwhile, or never notice.

use std::os::fd::OwnedFd;

use sublet_abi::SlotIndex;
use sublet_abi::message::{RefusedCode, SlotClaim};
use sublet_model::Bytes;
use sublet_share::{Ancestry, Event, JobId, Pid};
use tracing::{info, warn};

use super::jobs::Root;
use super::{Arbiter, now_ms};
use crate::pages::LedgerMemory;
use crate::peer;
use crate::poller::Key;

impl Arbiter {
    pub(super) fn come_back(
        &mut self,
        key: Key,
        (job, pid): (JobId, Pid),
        held: SlotClaim,
        descriptors: Vec<OwnedFd>,
    ) {
        let Some(memory) = descriptors.into_iter().next() else {
            return self.send_away(key, RefusedCode::Claims, "no ledger came with the message");
        };
        let Some(pages) = self.jobs.pages_mut(job) else {
            return self.send_away(key, RefusedCode::Stranger, "its job is gone");
        };
        if !pages.matches(&held) {
            let why = "its claims are about other GPUs than its job has";
            return self.send_away(key, RefusedCode::Claims, why);
        }
        let pinned = self.machine.job(job).and_then(|job| job.ask.pinned);
        let is_ours = match pages.ledger() {
            Some(ledger) => ledger.is(&memory),
            None if pages.expects_ledger => {
                let adopted = LedgerMemory::adopt(memory).and_then(|ledger| {
                    pages.adopt(self.identity.epoch(), now_ms(), ledger, pinned)
                });
                if let Err(error) = adopted {
                    return self.send_away(key, RefusedCode::Claims, &error.to_string());
                }
                self.adopt_slots(job, pid);
                true
            }
            // Nobody was here before it: what it brings is no ledger of ours.
            None => false,
        };
        let slot = held.slot.get();
        if is_ours && self.is_in_slot(job, pid, &held) {
            // Its slot was taken over with the ledger, or it never lost it.
            match self.machine.process(pid) {
                Some(_) => self.apply_for(Some(key), Event::Joined { job, pid }),
                None => self.apply_for(Some(key), Event::Returned { job, pid, slot }),
            }
        } else {
            // Its ledger is nobody's any more: it gets a slot in the new one, and is charged
            // there with what it says it has. Less than the truth shows in the driver's
            // numbers.
            self.forget_process(pid);
            if let Some(connection) = self.connections.get_mut(key) {
                connection.claims = Some(held);
            }
            self.apply_for(Some(key), Event::Joined { job, pid });
        }
    }

    /// Checks, by the page and our own list, whether the process is in the slot that it names.
    fn is_in_slot(&self, job: JobId, pid: Pid, held: &SlotClaim) -> bool {
        if let Some(known) = self.machine.process(pid) {
            return known == (job, held.slot.get());
        }
        let ledger = self.jobs.pages(job).and_then(|pages| pages.ledger());
        ledger.is_some_and(|ledger| {
            let page = ledger.page();
            let slot = page.slot(held.slot);
            slot.is_live() && slot.pid() == pid.0 && slot.generation() == held.generation
        })
    }

    /// Looks through a ledger that was taken over: dead processes give back their memory;
    /// living ones are watched from now on, though they have not come back.
    fn adopt_slots(&mut self, job: JobId, first: Pid) {
        let Some(pages) = self.jobs.pages(job) else {
            return;
        };
        let Some(page) = pages.ledger().map(LedgerMemory::page) else {
            return;
        };
        let mut living = Vec::new();
        let mut dead = Vec::new();
        for slot in SlotIndex::processes() {
            let place = page.slot(slot);
            if place.is_live() {
                let (pid, generation) = (Pid(place.pid()), place.generation());
                match self.watch_adopted(job, pid, first) {
                    Some(pidfd) => living.push((slot, pid, generation, pidfd)),
                    None => dead.push(slot),
                }
            }
        }
        let overheads: Vec<(usize, u64)> = pages
            .devices()
            .map(|(device, card)| {
                let bytes = page.held(SlotIndex::ARBITER, device).bytes();
                (card.card, bytes)
            })
            .collect();
        for slot in &dead {
            pages.reclaim(*slot);
        }
        info!(%job, living = living.len(), dead = dead.len(), "took over a job's ledger");
        self.counters.reclaimed += dead.len() as u64;
        for (card, bytes) in overheads {
            self.machine.remember_overhead(job, card, Bytes::new(bytes));
        }
        for (slot, pid, generation, pidfd) in living {
            self.adopt_process(job, slot, pid, generation, pidfd);
        }
    }

    /// A descriptor of a process that a ledger names, if it lives and belongs to that job. A
    /// ledger may say anything, so no process counts as another job's by its word.
    fn watch_adopted(&self, job: JobId, pid: Pid, first: Pid) -> Option<OwnedFd> {
        let pidfd = peer::open(pid).ok()?;
        let is_own = match self.jobs.root(job)? {
            // One that lives, and whose parents cannot be seen, keeps what it has.
            Root::Run { .. } => {
                let ancestry = self.ancestry(pid);
                ancestry == Ancestry::Unseen || ancestry == Ancestry::Job(job)
            }
            Root::Container { .. } => peer::share_container(pid, first),
        };
        (is_own && self.machine.process(pid).is_none()).then_some(pidfd)
    }

    fn adopt_process(
        &mut self,
        job: JobId,
        slot: SlotIndex,
        pid: Pid,
        generation: u32,
        pidfd: OwnedFd,
    ) {
        if !self.processes.watch(&mut self.sources, pid, pidfd) {
            warn!(%pid, "cannot look after a process that was there before");
            return;
        }
        if let Some(pages) = self.jobs.pages_mut(job) {
            pages.remember(slot, generation);
        }
        let slot = slot.get();
        self.apply(Event::Returned { job, pid, slot });
    }
}
