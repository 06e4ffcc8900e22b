//! The processes of jobs: the slots that they take and give back, and the driver's figures on
//! them.

use std::collections::BTreeSet;

use sublet_model::Time;

use super::job::mib_for;
use super::{Machine, SLOTS};
use crate::event::{Action, Reading, SlotUse};
use crate::job::{JobId, Pid};
use crate::refusal::JobRefusal;

impl Machine {
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
                    self.read_schedule.after_join(now);
                }
                self.reconciliation.adopt(pid, out);
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

    fn slot_for(
        &self,
        id: JobId,
        pid: Pid,
        wanted: Option<u32>,
    ) -> Result<(u32, bool), JobRefusal> {
        let job = self.jobs.get(&id).ok_or(JobRefusal::NoSuchJob(id))?;
        if let Some(&(owner, slot)) = self.processes.get(&pid) {
            return match owner == id {
                true => Ok((slot, true)),
                false => Err(JobRefusal::OtherJob(owner)),
            };
        }
        if job.held.is_empty() {
            return Err(JobRefusal::NotPlaced(id));
        }
        if job.root_gone {
            return Err(JobRefusal::Gone(id));
        }
        if let Some(slot) = wanted {
            let free = (1..=SLOTS).contains(&slot) && !job.slots.contains(&slot);
            return match free {
                true => Ok((slot, true)),
                false => Err(JobRefusal::SlotTaken(slot)),
            };
        }
        // Slots are taken from below, so the first gap is the first that does not match.
        let mut taken = job.slots.iter().copied();
        let slot = (1..=SLOTS).find(|slot| taken.next() != Some(*slot));
        let full = JobRefusal::NoSlot {
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
        self.reconciliation.forget_process(pid);
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
        self.read_schedule.ended(now);
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
        if self.reconciliation.measure(cards, &live, out) {
            self.read_schedule.after_first_sight(now);
        }
        let is_ours = |pid| self.processes.contains_key(&pid);
        // Once the time for coming back is over, everybody without a slot is reported.
        let may_return = |pid| !self.settled && may_return.contains(&pid);
        self.reconciliation
            .look_for_strangers(now, cards, is_ours, may_return, out);
        self.keep_for_strangers();
    }

    fn keep_for_strangers(&mut self) {
        for (card, bytes) in self
            .reconciliation
            .use_of_strangers()
            .into_iter()
            .enumerate()
        {
            self.cards.keep(card, mib_for(bytes));
        }
    }
}
