//! Changes of limits while a job has its cards: the callers that may ask for them, and the
//! range in which a limit may move.
//!
//! A limit of a card falls at once, even below the job's use: then the job is over its limit
//! and gets nothing new. It rises into memory that no other job is charged with. A job that a
//! cluster placed never gets more than its promise.
//!
//! Compute time is promised at most once, as when a job is placed: a promise falls at any time,
//! and rises into time that is promised to no job. Its limit takes nothing from others.
//!
//! A limit of pinned host memory takes nothing from others, so any amount is right.

use sublet_model::MiB;

use super::Machine;
use super::job::HeldCard;
use crate::event::Action;
use crate::job::{Amount, ComputeRange, Holding, JobAsk, JobId, Pid};
use crate::refusal::JobRefusal;

/// The job that a process belongs to by its parents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ancestry {
    /// Its parents cannot be seen.
    Unseen,
    /// Below no job's root.
    NoJob,
    /// Below this job's root, which is the nearest.
    Job(JobId),
}

impl Machine {
    /// Checks whether a process may start, change or end anything on this machine. A program
    /// inside a job may not: it could free itself of its limits.
    ///
    /// # Errors
    /// It is inside a job, or it is not visible whether it is.
    pub fn permits_change(&self, pid: Pid, ancestry: Ancestry) -> Result<(), JobRefusal> {
        match (self.process(pid), ancestry) {
            (Some((job, _)), _) | (None, Ancestry::Job(job)) => Err(JobRefusal::Inside(job)),
            (None, Ancestry::Unseen) => Err(JobRefusal::Unseen),
            (None, Ancestry::NoJob) => Ok(()),
        }
    }

    pub(super) fn limit_pinned(&mut self, id: JobId, memory: MiB, out: &mut Vec<Action>) {
        out.push(match self.new_pinned_limit(id, memory) {
            Err(reason) => Action::KeepLimit { job: id, reason },
            Ok(parts) => Action::LimitPinned {
                job: id,
                memory,
                parts,
            },
        });
    }

    /// Sets the limit. Returns the job's cards, which stay as they are.
    fn new_pinned_limit(&mut self, id: JobId, memory: MiB) -> Result<Vec<Holding>, JobRefusal> {
        let job = self.jobs.get_mut(&id).ok_or(JobRefusal::NoSuchJob(id))?;
        job.ask.pinned = Some(memory);
        Ok(job.held.iter().map(|held| held.part).collect())
    }

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
    fn new_limits(&self, id: JobId, memory: Amount) -> Result<Vec<Holding>, JobRefusal> {
        let job = self.jobs.get(&id).ok_or(JobRefusal::NoSuchJob(id))?;
        self.cards.check(&JobAsk {
            memory,
            ..job.ask.clone()
        })?;
        let mut parts = Vec::new();
        for held in &job.held {
            let HeldCard { part, charge, .. } = held;
            let limit = self.cards.now(memory, part.card);
            if let Some(promised) = held.promised {
                // Its room is kept for it, and whatever else is free may be promised to others.
                let promised = promised.limit.memory;
                if limit > promised {
                    return Err(JobRefusal::Promised {
                        asked: limit,
                        gpu: self.cards.inventory().gpus()[part.card].index,
                        promised,
                    });
                }
                parts.push(part.with_memory(limit));
                continue;
            }
            // All that nobody else is charged with: what the job uses beyond its limit may
            // have been somebody else's room, and is not made its own by asking for it.
            let others = self.cards.granted(part.card).saturating_sub(*charge);
            let room = self.cards.room_beside(part.card, others);
            let now = part.limit.memory;
            if limit > now && limit > room {
                return Err(JobRefusal::NoGrowth {
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

    fn set_limits(&mut self, id: JobId, memory: Amount, parts: &[Holding]) {
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.ask.memory = memory;
        self.line.ask_again();
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
}

impl Machine {
    pub(super) fn limit_compute(
        &mut self,
        id: JobId,
        compute: ComputeRange,
        out: &mut Vec<Action>,
    ) {
        if let Err(reason) = self.check_compute(id, compute) {
            return out.push(Action::KeepLimit { job: id, reason });
        }
        let Some(job) = self.jobs.get_mut(&id) else {
            return;
        };
        job.ask.compute = compute;
        self.line.ask_again();
        for held in &mut job.held {
            held.part = held.part.with_compute(compute);
        }
        let parts: Vec<Holding> = job.held.iter().map(|held| held.part).collect();
        for part in &parts {
            self.charge(id, part.card);
        }
        out.push(Action::LimitCompute { job: id, parts });
    }

    /// May a job have that compute time of each of its cards?
    fn check_compute(&self, id: JobId, compute: ComputeRange) -> Result<(), JobRefusal> {
        let job = self.jobs.get(&id).ok_or(JobRefusal::NoSuchJob(id))?;
        self.cards.check(&JobAsk {
            compute,
            ..job.ask.clone()
        })?;
        for HeldCard { part, promised, .. } in &job.held {
            let (card, request) = (part.card, compute.request());
            if let Some(promised) = promised {
                let promised = promised.compute();
                if request > promised.request() || compute.limit() > promised.limit() {
                    return Err(JobRefusal::PromisedCompute {
                        asked: compute,
                        gpu: self.cards.inventory().gpus()[card].index,
                        promised,
                    });
                }
            } else if request > part.limit.compute {
                let class = job.ask.class;
                self.cards.check_promise((card, id), request, class)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
