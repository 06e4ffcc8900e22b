//! Why not, as data with the numbers: which card, and by how much. Printed for people at the
//! edge; the same text is why a job waits, and why one that does not wait is refused.

use std::fmt;

use sublet_model::{Count, GpuIndex, MiB, Milli};

use crate::job::JobId;

/// Why something that a job asked is not given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No cards, or no memory.
    Nothing,
    /// More cards than the machine has.
    TooFew {
        /// What was asked.
        asked: Count,
        /// What there is.
        total: Count,
    },
    /// More cards than it named.
    TooFewNamed {
        /// What was asked.
        asked: Count,
        /// Those that it may be on.
        named: Vec<GpuIndex>,
    },
    /// More memory than there are cards of that size, even when they are empty.
    TooLarge {
        /// What was asked of each card.
        asked: MiB,
        /// Of so many cards.
        gpus: Count,
        /// Cards that are large enough.
        fitting: Count,
        /// The largest of the others.
        gpu: GpuIndex,
        /// What can be granted there.
        largest: MiB,
    },
    /// Not now.
    NoRoom {
        /// What was asked of each card.
        asked: MiB,
        /// Of so many cards.
        gpus: Count,
        /// Cards that have room.
        fitting: Count,
        /// The nearest of the others.
        gpu: GpuIndex,
        /// What is free there.
        hole: MiB,
        /// What processes that are no job, and the operator, keep from it.
        kept: MiB,
        /// Cards that are large enough, but sick.
        sick: Count,
    },
    /// The memory is there, and the compute time is promised to others.
    NoCompute {
        /// What was asked of each card.
        asked: Milli,
        /// The card with most of it, among those that have the memory.
        gpu: GpuIndex,
        /// What is left there. As much as is asked, where a job is alone in its class there.
        left: Milli,
    },
    /// Whole cards were asked, and others are on them.
    NotIdle {
        /// What was asked.
        asked: Count,
        /// Cards that no job is on.
        idle: Count,
        /// Cards of the machine.
        total: Count,
        /// Those that it may be on, where it named some.
        named: Vec<GpuIndex>,
    },
    /// Others were here before.
    Behind {
        /// How many jobs wait before this one.
        waiting: u32,
    },
    /// The arbiter was just restarted, and lets the jobs of before come back first.
    Settling,
    /// The cards are a cluster's, which would not know of the job.
    Clustered,
    /// A program inside a job may change nothing.
    Inside(JobId),
    /// A cluster's job cannot have more than it was promised.
    Promised {
        /// What was asked there.
        asked: MiB,
        /// The card.
        gpu: GpuIndex,
        /// What was promised there.
        promised: MiB,
    },
    /// A limit cannot rise so far.
    NoGrowth {
        /// What was asked there.
        asked: MiB,
        /// The card.
        gpu: GpuIndex,
        /// The job's limit there.
        limit: MiB,
        /// What is free there.
        free: MiB,
    },
    /// A card that the machine does not have.
    NoSuchCard {
        /// How many it has.
        total: Count,
    },
    /// Nobody has that number.
    NoSuchJob(JobId),
    /// Somebody has that number already.
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
        /// How many there are.
        slots: u32,
    },
}

impl Refusal {
    /// True if waiting will not help: only other hardware, or another question, would.
    #[must_use]
    pub fn is_final(&self) -> bool {
        match self {
            Refusal::Nothing
            | Refusal::TooFew { .. }
            | Refusal::TooFewNamed { .. }
            | Refusal::TooLarge { .. }
            | Refusal::NoSuchCard { .. }
            | Refusal::NoSuchJob(_)
            | Refusal::Known(_)
            | Refusal::OtherJob(_)
            | Refusal::SlotTaken(_)
            | Refusal::Clustered
            | Refusal::Inside(_)
            | Refusal::Promised { .. }
            | Refusal::Gone(_) => true,
            Refusal::NoRoom { .. }
            | Refusal::NoCompute { .. }
            | Refusal::NotIdle { .. }
            | Refusal::Behind { .. }
            | Refusal::Settling
            | Refusal::NoGrowth { .. }
            | Refusal::NotPlaced(_)
            | Refusal::NoSlot { .. } => false,
        }
    }
}

impl Refusal {
    /// What the person who asked can do about it, where that is not to ask for less or to
    /// wait.
    #[must_use]
    pub fn way_out(&self) -> Option<&'static str> {
        match self {
            Refusal::Clustered => Some(
                "run it as a pod; or start this node's agent with --allow-local-jobs, and keep \
                 the cluster's pods away from the memory that such jobs take",
            ),
            Refusal::Inside(_) => Some(
                "ask outside of the job, in another terminal; what a job starts shares its part \
                 without `sublet run`",
            ),
            Refusal::Promised { .. } => Some("change what the pod asks for"),
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

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Nothing => f.write_str("no memory or no GPU was asked; ask for some"),
            Refusal::TooFew { asked, total } => {
                write!(f, "{asked} asked, but this machine has {total}")
            }
            Refusal::TooLarge { .. } | Refusal::NoRoom { .. } => self.fmt_room(f),
            Refusal::TooFewNamed { asked, named } => match named.as_slice() {
                [] => write!(f, "{asked} asked, but no GPU is named"),
                [only] => write!(f, "{asked} asked, but only GPU {only} is named"),
                several => write!(
                    f,
                    "{asked} asked, but only GPUs {} are named",
                    Listed(several)
                ),
            },
            Refusal::NoCompute { asked, gpu, left } if asked > left => write!(
                f,
                "GPU {gpu} lacks {} of its compute time: {asked} asked, and {left} is left there",
                asked.saturating_sub(*left)
            ),
            Refusal::NoCompute { gpu, .. } => write!(
                f,
                "a guaranteed job that asks for all of a GPU's compute time shares GPU {gpu} with no other guaranteed job"
            ),
            Refusal::NotIdle { .. } => self.fmt_idle(f),
            Refusal::Behind { waiting: 1 } => f.write_str("1 job waits before it"),
            Refusal::Behind { waiting } => write!(f, "{waiting} jobs wait before it"),
            Refusal::Settling => f.write_str(
                "the arbiter was just restarted, and its jobs of before come back first",
            ),
            Refusal::Clustered => f.write_str(
                "this machine's GPUs are a cluster's, which would not know of the job and promise \
                 its memory to pods",
            ),
            Refusal::Inside(job) => write!(f, "a program inside job {job} cannot ask this"),
            Refusal::Promised {
                asked,
                gpu,
                promised,
            } => write!(
                f,
                "{asked} of GPU {gpu} asked, and the cluster has promised it {promised}"
            ),
            Refusal::NoGrowth {
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
            Refusal::NoSuchCard { total } => {
                write!(
                    f,
                    "a card is named that this machine has not; it has {total}"
                )
            }
            Refusal::NoSuchJob(job) => write!(f, "there is no job {job}"),
            Refusal::Known(job) => write!(f, "there is a job {job} already"),
            Refusal::NotPlaced(job) => write!(f, "job {job} waits and has no GPU yet"),
            Refusal::Gone(job) => write!(f, "job {job} is ending"),
            Refusal::OtherJob(job) => write!(f, "the process belongs to job {job}"),
            Refusal::SlotTaken(slot) => write!(f, "slot {slot} is not free"),
            Refusal::NoSlot { job, slots } => write!(
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

impl Refusal {
    fn fmt_idle(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal::NotIdle {
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
            Refusal::TooLarge {
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
            Refusal::NoRoom {
                asked,
                gpus,
                fitting,
                gpu,
                hole,
                kept,
                sick,
            } => {
                let lacks = asked.saturating_sub(*hole);
                write!(f, "GPU {gpu} lacks {lacks}: {asked} asked")?;
                each(f, *gpus, *fitting)?;
                write!(f, ", and {hole} are free there")?;
                note(f, *kept, *sick)
            }
            _ => Ok(()),
        }
    }
}
