//! What happens to jobs that have their cards: limits, processes, and what both use.

use std::collections::BTreeSet;

use sublet_model::{Bytes, MiB, Time};

use super::{Held, Job, Machine, SLOTS};
use crate::event::Action;
use crate::job::{Amount, Holding, JobAsk, JobId, Pid, Promise, State};
use crate::reading::{Reading, SlotUse};
use crate::refusal::Refusal;

impl Job {
    pub(super) fn new(ask: JobAsk) -> Job {
        Job {
            ask,
            held: Vec::new(),
            pids: BTreeSet::new(),
            slots: BTreeSet::new(),
            root_gone: false,
            promise: None,
            told: None,
            ends_at: None,
        }
    }

    /// A job that has its cards already.
    pub(super) fn declared(ask: JobAsk, promise: Option<Promise>) -> Job {
        Job {
            promise,
            ..Job::new(ask)
        }
    }

    /// What it has on a card.
    pub(super) fn on(&self, card: usize) -> Option<&Held> {
        self.held.iter().find(|held| held.part.card == card)
    }

    pub(super) fn state(&self) -> State {
        let over = |held: &Held| held.uses.bytes() > Bytes::from(held.part.limit.memory);
        if self.root_gone {
            State::Ending
        } else if self.held.is_empty() {
            State::Waiting
        } else if self.held.iter().any(over) {
            State::Over
        } else {
            State::Running
        }
    }
}

/// So many MiB as hold `bytes`.
pub(super) fn mib_for(bytes: Bytes) -> MiB {
    Bytes::new(bytes.get().saturating_add((1 << 20) - 1)).whole_mib()
}

impl Machine {
    pub(super) fn limit(&mut self, id: JobId, memory: Amount, out: &mut Vec<Action>) {
        out.push(match self.new_limits(id, memory) {
            Err(reason) => Action::KeepLimit { job: id, reason },
            Ok(parts) => {
                self.set_limits(id, memory, &parts);
                Action::Limit { job: id, parts }
            }
        });
    }

    /// The limits that a job would have; none while it waits.
    fn new_limits(&self, id: JobId, memory: Amount) -> Result<Vec<Holding>, Refusal> {
        let job = self.jobs.get(&id).ok_or(Refusal::NoSuchJob(id))?;
        self.cards.check(&JobAsk {
            memory,
            ..job.ask.clone()
        })?;
        let mut parts = Vec::new();
        for held in &job.held {
            let Held { part, charge, .. } = held;
            let limit = self.cards.now(memory, part.card);
            if job.promise.is_some() {
                // Its room is kept for it, and whatever else is free may be promised to others.
                parts.push(self.within_promise(held, limit)?);
                continue;
            }
            // All that nobody else is charged with: what the job uses beyond its limit may
            // have been somebody else's room, and is not made its own by asking for it.
            let others = self.cards.granted(part.card).saturating_sub(*charge);
            let room = self.cards.room_beside(part.card, others);
            let now = part.limit.memory;
            if limit > now && limit > room {
                return Err(Refusal::NoGrowth {
                    asked: limit,
                    gpu: self.cards.inventory().gpus()[part.card].index,
                    limit: now,
                    free: room.saturating_sub(now),
                });
            }
            parts.push(part.with_memory(limit));
        }
        Ok(parts)
    }

    fn within_promise(&self, held: &Held, limit: MiB) -> Result<Holding, Refusal> {
        let card = held.part.card;
        if limit > held.promised {
            return Err(Refusal::Promised {
                asked: limit,
                gpu: self.cards.inventory().gpus()[card].index,
                promised: held.promised,
            });
        }
        Ok(held.part.with_memory(limit))
    }

    fn set_limits(&mut self, id: JobId, memory: Amount, parts: &[Holding]) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.ask.memory = memory;
        let is_whole = memory == Amount::Whole && job.promise.is_none();
        for (held, part) in job.held.iter_mut().zip(parts) {
            held.part = *part;
            // It falls when the ledger, read after the new limit holds, says so.
            held.charge = held.charge.max(part.limit.memory);
        }
        for part in parts {
            self.charge(id, part.card);
            self.cards.set_whole(part.card, id, is_whole);
        }
    }

    pub(super) fn join(
        &mut self,
        now: Time,
        id: JobId,
        pid: Pid,
        wanted: Option<u32>,
        out: &mut Vec<Action>,
    ) {
        match self.slot_for(id, pid, wanted) {
            Err(reason) => out.push(Action::SendAway { pid, reason }),
            Ok((slot, again)) => {
                if let Some(job) = self.jobs.get_mut(&id) {
                    job.pids.insert(pid);
                    job.slots.insert(slot);
                    self.processes.insert(pid, (id, slot));
                }
                if !again {
                    self.looks.after_join(now);
                }
                self.watch.adopt(pid, out);
                self.keep_for_strangers();
                out.push(Action::Welcome {
                    job: id,
                    pid,
                    slot,
                    again,
                });
            }
        }
    }

    fn slot_for(&self, id: JobId, pid: Pid, wanted: Option<u32>) -> Result<(u32, bool), Refusal> {
        let job = self.jobs.get(&id).ok_or(Refusal::NoSuchJob(id))?;
        if let Some(&(owner, slot)) = self.processes.get(&pid) {
            return match owner == id {
                true => Ok((slot, true)),
                false => Err(Refusal::OtherJob(owner)),
            };
        }
        if job.held.is_empty() {
            return Err(Refusal::NotPlaced(id));
        }
        if job.root_gone {
            return Err(Refusal::Gone(id));
        }
        if let Some(slot) = wanted {
            let free = (1..=SLOTS).contains(&slot) && !job.slots.contains(&slot);
            return match free {
                true => Ok((slot, true)),
                false => Err(Refusal::SlotTaken(slot)),
            };
        }
        // Slots are taken from below, so the first gap is the first that does not match.
        let mut taken = job.slots.iter().copied();
        let slot = (1..=SLOTS).find(|slot| taken.next() != Some(*slot));
        let full = Refusal::NoSlot {
            job: id,
            slots: SLOTS,
        };
        slot.map(|slot| (slot, false)).ok_or(full)
    }

    pub(super) fn exit(&mut self, pid: Pid, out: &mut Vec<Action>) {
        let Some((id, slot)) = self.processes.remove(&pid) else {
            return;
        };
        if let Some(job) = self.jobs.get_mut(&id) {
            job.pids.remove(&pid);
            job.slots.remove(&slot);
        }
        self.watch.forget_process(pid);
        out.push(Action::Reclaim { job: id, pid, slot });
        self.end_if_empty(id, out);
    }

    pub(super) fn read(
        &mut self,
        now: Time,
        cards: &[Option<Reading>],
        slots: &[SlotUse],
        may_return: &BTreeSet<Pid>,
        out: &mut Vec<Action>,
    ) {
        self.looks.ended(now);
        // A slot that was taken back while the driver was asked says nothing any more.
        let live = slots
            .iter()
            .filter(|slot| {
                self.processes
                    .get(&slot.pid)
                    .is_some_and(|(job, _)| *job == slot.job)
            })
            .copied();
        let live: Vec<SlotUse> = live.collect();
        if self.watch.measure(cards, &live, out) {
            self.looks.after_first_sight(now);
        }
        let is_ours = |pid| self.processes.contains_key(&pid);
        // Nobody is kept from being reported for longer than others may take to come back.
        let may_return = |pid| !self.settled && may_return.contains(&pid);
        self.watch
            .look_for_strangers(now, cards, is_ours, may_return, out);
        self.keep_for_strangers();
    }

    fn keep_for_strangers(&mut self) {
        for (card, bytes) in self.watch.use_of_strangers().into_iter().enumerate() {
            self.cards.keep(card, mib_for(bytes));
        }
    }
}
