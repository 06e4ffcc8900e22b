//! Refusals as data with the numbers: the card, and the missing amount. Printed for people at
//! the edge; the same text explains the wait of a job, and the refusal of one that does not
//! wait.

use std::fmt;

use sublet_model::{Count, GpuIndex, MiB, Milli};

use crate::job::{ComputeRange, JobId};

/// Reason why a job's request is not granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobRefusal {
    /// No cards, or no memory.
    Nothing,
    /// More cards than the machine has.
    TooFew {
        /// Requested number.
        asked: Count,
        /// Number of cards.
        total: Count,
    },
    /// More cards than it named.
    TooFewNamed {
        /// Requested number.
        asked: Count,
        /// The cards where it may run.
        named: Vec<GpuIndex>,
    },
    /// More memory than there are cards of that size, even when they are empty.
    TooLarge {
        /// Requested memory of each card.
        asked: MiB,
        /// Requested number of cards.
        gpus: Count,
        /// Cards that are large enough.
        fitting: Count,
        /// The largest of the others.
        gpu: GpuIndex,
        /// Maximum memory that can be granted there.
        largest: MiB,
    },
    /// Not now.
    NoRoom {
        /// Requested memory of each card.
        asked: MiB,
        /// Requested number of cards.
        gpus: Count,
        /// Cards that have room.
        fitting: Count,
        /// The nearest of the others.
        gpu: GpuIndex,
        /// Free memory there.
        free: MiB,
        /// Memory kept for the operator, and used by processes outside any job.
        kept: MiB,
        /// Cards that are large enough, but sick.
        sick: Count,
    },
    /// The memory is there, and the compute time is promised to others.
    NoCompute {
        /// Requested compute time of each card.
        asked: Milli,
        /// The card with most of it, among the cards with enough memory.
        gpu: GpuIndex,
        /// Rest of it there. It can be enough: a job that asks for all of it shares with no
        /// guaranteed job.
        left: Milli,
    },
    /// Compute time was asked for a job that gets only the time that others leave.
    Opportunistic {
        /// Requested compute time of each card.
        asked: Milli,
    },
    /// Whole cards were asked, and others are on them.
    NotIdle {
        /// Requested number.
        asked: Count,
        /// Cards that no job is on.
        idle: Count,
        /// Cards of the machine.
        total: Count,
        /// The cards where it may run, if it named some.
        named: Vec<GpuIndex>,
    },
    /// Others were here before.
    Behind {
        /// Number of jobs that wait before this one.
        waiting: u32,
    },
    /// The arbiter was just restarted, and lets earlier jobs come back first.
    Settling,
    /// The cards are a cluster's, which would not know of the job.
    Clustered,
    /// A program inside a job may change nothing.
    Inside(JobId),
    /// Whether a program is inside a job cannot be seen.
    Unseen,
    /// A cluster's job cannot have more than it was promised.
    Promised {
        /// Requested memory there.
        asked: MiB,
        /// The card.
        gpu: GpuIndex,
        /// Promised memory there.
        promised: MiB,
    },
    /// The same of compute time.
    PromisedCompute {
        /// Requested compute time there.
        asked: ComputeRange,
        /// The card.
        gpu: GpuIndex,
        /// Promised compute time there, and its limit.
        promised: ComputeRange,
    },
    /// A limit cannot rise so far.
    NoGrowth {
        /// Requested memory there.
        asked: MiB,
        /// The card.
        gpu: GpuIndex,
        /// The job's limit there.
        limit: MiB,
        /// Free memory there.
        free: MiB,
    },
    /// A card that the machine does not have.
    NoSuchCard {
        /// Number of its cards.
        total: Count,
    },
    /// No job has that number.
    NoSuchJob(JobId),
    /// Another job has that number already.
    Known(JobId),
    /// The job has no card yet.
    NotPlaced(JobId),
    /// The job's root is gone.
    Gone(JobId),
    /// A process is another job's.
    OtherJob(JobId),
    /// Another process has that slot, or there is no such slot.
    SlotTaken(u32),
    /// Every slot for a process is taken.
    NoSlot {
        /// The job.
        job: JobId,
        /// Number of slots.
        slots: u32,
    },
}

impl JobRefusal {
    /// True if waiting will not help: only other hardware, or another question, would.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            JobRefusal::Nothing
            | JobRefusal::TooFew { .. }
            | JobRefusal::TooFewNamed { .. }
            | JobRefusal::TooLarge { .. }
            | JobRefusal::NoSuchCard { .. }
            | JobRefusal::NoSuchJob(_)
            | JobRefusal::Known(_)
            | JobRefusal::OtherJob(_)
            | JobRefusal::SlotTaken(_)
            | JobRefusal::Clustered
            | JobRefusal::Inside(_)
            | JobRefusal::Unseen
            | JobRefusal::Opportunistic { .. }
            | JobRefusal::Promised { .. }
            | JobRefusal::PromisedCompute { .. }
            | JobRefusal::Gone(_) => true,
            JobRefusal::NoRoom { .. }
            | JobRefusal::NoCompute { .. }
            | JobRefusal::NotIdle { .. }
            | JobRefusal::Behind { .. }
            | JobRefusal::Settling
            | JobRefusal::NoGrowth { .. }
            | JobRefusal::NotPlaced(_)
            | JobRefusal::NoSlot { .. } => false,
        }
    }
}

impl JobRefusal {
    /// Remedy for the person who asked, if it is not to ask for less or to wait.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            JobRefusal::Clustered => Some(
                "run it as a pod; or start this node's agent with --allow-local-jobs, and keep \
                 the cluster's pods away from the memory that such jobs take",
            ),
            JobRefusal::Inside(_) => Some(
                "ask outside of the job, in another terminal; what a job starts shares its part \
                 without `sublet run`",
            ),
            JobRefusal::Opportunistic { .. } => Some(
                "write `0%..30%` to limit it to 30 % without a promise; or make it a guaranteed \
                 job",
            ),
            JobRefusal::Promised { .. } | JobRefusal::PromisedCompute { .. } => {
                Some("change what the pod asks for")
            }
            JobRefusal::NotPlaced(_) => {
                Some("change its limits when it runs; `sublet queue` shows what it waits for")
            }
            _ => None,
        }
    }
}

fn each(f: &mut fmt::Formatter<'_>, gpus: Count, fitting: Count) -> fmt::Result {
    if gpus.get() == 1 {
        return Ok(());
    }
    write!(f, " of each of {gpus}, and {fitting} would do")
}

fn note(f: &mut fmt::Formatter<'_>, kept: MiB, sick: Count) -> fmt::Result {
    if !kept.is_zero() {
        write!(f, "; {kept} of it are kept from jobs")?;
    }
    match sick.get() {
        0 => Ok(()),
        1 => f.write_str("; 1 GPU is unhealthy"),
        n => write!(f, "; {n} GPUs are unhealthy"),
    }
}

impl fmt::Display for JobRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobRefusal::Nothing => f.write_str("no memory or no GPU was asked; ask for some"),
            JobRefusal::TooFew { asked, total } => {
                write!(f, "{asked} asked, but this machine has {total}")
            }
            JobRefusal::TooLarge { .. } | JobRefusal::NoRoom { .. } => self.fmt_room(f),
            JobRefusal::TooFewNamed { asked, named } => match named.as_slice() {
                [] => write!(f, "{asked} asked, but no GPU is named"),
                [only] => write!(f, "{asked} asked, but only GPU {only} is named"),
                several => write!(
                    f,
                    "{asked} asked, but only GPUs {} are named",
                    Listed(several)
                ),
            },
            JobRefusal::NoCompute { asked, gpu, left } if asked > left => write!(
                f,
                "GPU {gpu} lacks {} of its compute time: {asked} asked, and {left} is left there",
                asked.saturating_sub(*left)
            ),
            JobRefusal::NoCompute { gpu, .. } => write!(
                f,
                "a guaranteed job that asks for all of a GPU's compute time shares GPU {gpu} with no other guaranteed job"
            ),
            JobRefusal::Opportunistic { asked } => write!(
                f,
                "an opportunistic job is promised no compute time, and {asked} is asked"
            ),
            JobRefusal::NotIdle { .. } => self.fmt_idle(f),
            JobRefusal::Behind { waiting: 1 } => f.write_str("1 job waits before it"),
            JobRefusal::Behind { waiting } => write!(f, "{waiting} jobs wait before it"),
            JobRefusal::Settling => f.write_str(
                "the arbiter was just restarted, and its jobs of before come back first",
            ),
            JobRefusal::Clustered => f.write_str(
                "this machine's GPUs are a cluster's, which would not know of the job and promise \
                 its memory to pods",
            ),
            JobRefusal::Inside(_)
            | JobRefusal::Unseen
            | JobRefusal::Promised { .. }
            | JobRefusal::PromisedCompute { .. }
            | JobRefusal::NoGrowth { .. } => self.fmt_change(f),
            JobRefusal::NoSuchCard { total } => {
                write!(
                    f,
                    "a GPU is named that this machine has not; it has {total}"
                )
            }
            JobRefusal::NoSuchJob(job) => write!(f, "there is no job {job}"),
            JobRefusal::Known(job) => write!(f, "there is a job {job} already"),
            JobRefusal::NotPlaced(job) => write!(f, "job {job} waits and has no GPU yet"),
            JobRefusal::Gone(job) => write!(f, "job {job} is ending"),
            JobRefusal::OtherJob(job) => write!(f, "the process belongs to job {job}"),
            JobRefusal::SlotTaken(slot) => write!(f, "slot {slot} is not free"),
            JobRefusal::NoSlot { job, slots } => write!(
                f,
                "job {job} has {slots} processes on GPUs, and there is no room for one more"
            ),
        }
    }
}

/// Numbers with commas.
struct Listed<'a>(&'a [GpuIndex]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, gpu) in self.0.iter().enumerate() {
            let gap = if at == 0 { "" } else { ", " };
            write!(f, "{gap}{gpu}")?;
        }
        Ok(())
    }
}

impl JobRefusal {
    /// Writes the reason why a setting stays as it is.
    fn fmt_change(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobRefusal::Inside(job) => write!(f, "a program inside job {job} cannot ask this"),
            JobRefusal::Unseen => {
                f.write_str("the arbiter cannot see whose child asks this; try again")
            }
            JobRefusal::Promised {
                asked,
                gpu,
                promised,
            } => write!(
                f,
                "{asked} of GPU {gpu} asked, and the cluster has promised it {promised}"
            ),
            JobRefusal::PromisedCompute {
                asked,
                gpu,
                promised,
            } => write!(
                f,
                "{asked} of the compute time of GPU {gpu} asked, and the cluster has promised it \
                 {promised}"
            ),
            JobRefusal::NoGrowth {
                asked,
                gpu,
                limit,
                free,
            } => {
                let lacks = asked.saturating_sub(*limit).saturating_sub(*free);
                write!(
                    f,
                    "GPU {gpu} lacks {lacks}: {asked} asked, where the limit is {limit} and {free} are free"
                )
            }
            _ => Ok(()),
        }
    }

    fn fmt_idle(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JobRefusal::NotIdle {
            asked,
            idle,
            total,
            named,
        } = self
        else {
            return Ok(());
        };
        write!(f, "{asked} asked without company, but ")?;
        let idle = idle.get();
        match named.as_slice() {
            [] => write!(f, "only {idle} of {total} idle"),
            [only] => write!(f, "GPU {only} is not idle"),
            several => write!(f, "of GPUs {} only {idle} idle", Listed(several)),
        }
    }

    fn fmt_room(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobRefusal::TooLarge {
                asked,
                gpus,
                fitting,
                gpu,
                largest,
            } => {
                let lacks = asked.saturating_sub(*largest);
                write!(f, "{asked} asked")?;
                each(f, *gpus, *fitting)?;
                write!(f, ", but GPU {gpu} has {largest} in all ({lacks} too few)")
            }
            JobRefusal::NoRoom {
                asked,
                gpus,
                fitting,
                gpu,
                free,
                kept,
                sick,
            } => {
                let lacks = asked.saturating_sub(*free);
                write!(f, "GPU {gpu} lacks {lacks}: {asked} asked")?;
                each(f, *gpus, *fitting)?;
                write!(f, ", and {free} are free there")?;
                note(f, *kept, *sick)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_fits_the_cause() {
        let asked = Milli::WHOLE;
        for (refusal, part) in [
            (JobRefusal::NotPlaced(JobId(1)), Some("`sublet queue`")),
            (JobRefusal::Inside(JobId(1)), Some("outside of the job")),
            (JobRefusal::Opportunistic { asked }, Some("`0%..30%`")),
            (JobRefusal::Clustered, Some("as a pod")),
            // To wait, or to ask for less, which the command says.
            (JobRefusal::Behind { waiting: 1 }, None),
            (JobRefusal::Nothing, None),
        ] {
            let hint = refusal.hint();
            assert_eq!(hint.is_some(), part.is_some(), "{refusal}: {hint:?}");
            let has = hint.unwrap_or_default().contains(part.unwrap_or_default());
            assert!(has, "{refusal}: {hint:?}");
        }
    }
}
