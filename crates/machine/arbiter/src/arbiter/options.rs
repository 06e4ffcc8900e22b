//! The options of an arbiter.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use sublet_model::{MiB, Milli, SliceLength};
use sublet_plan::Policy;

use crate::error::ArbiterError;
use crate::gauge::Gauge;
use crate::host_lock::HostPlace;
use crate::machine_folder::Folder;

/// The options of an arbiter.
#[derive(Debug)]
pub struct Options {
    /// The folder of its sockets.
    pub folder: Folder,
    /// The meeting place of the arbiters of these cards: users have folders of their own, but they
    /// share the cards. Nothing for cards that nobody else can see.
    pub host: Option<HostPlace>,
    /// Choice among cards that have room.
    pub policy: Policy,
    /// Memory of each card that no job gets.
    pub reserved: MiB,
    /// End processes that use a card without being a job?
    pub evict: bool,
    /// End jobs that have more memory than they may have, by the driver's count?
    pub evict_over: bool,
    /// End jobs that work without a turn, by the driver's count?
    pub evict_overuse: bool,
    /// Measurement of the cards before the first job; nothing if it is not possible.
    pub gauge: Option<Gauge>,
    /// Does it serve every user of the machine, and not only its own?
    pub shared: bool,
    /// True if people may submit jobs. False if a cluster promises these cards' memory.
    pub local_jobs: bool,
    /// Time sharing among jobs on one card.
    pub time: TimeSharing,
    /// End when there has been no job for this time.
    pub idle_exit: Option<Duration>,
    /// After a crash: longest time in which earlier jobs may come back.
    pub settle: Duration,
    /// The arbiter ends in order when this becomes readable.
    pub stop: Option<OwnedFd>,
}

/// Time sharing among jobs on one card.
#[derive(Debug, Clone)]
pub struct TimeSharing {
    /// The cards on which a job's turn begins only when nothing of the last one runs.
    pub exclusive_slices: ExclusiveSlices,
    /// No job's turns are shorter than that, whatever it asks for.
    pub shortest_slice: SliceLength,
    /// Share of the time in which an opportunistic job launches work without an arbiter.
    pub opportunistic_duty: Milli,
    /// The program of MPS's daemon ([`crate::MPS_CONTROL`]), if jobs are to run under MPS.
    pub mps: Option<PathBuf>,
}

impl Default for TimeSharing {
    /// Turns that overlap, and no MPS.
    fn default() -> TimeSharing {
        TimeSharing {
            exclusive_slices: ExclusiveSlices::default(),
            shortest_slice: SliceLength::SHORTEST,
            opportunistic_duty: OPPORTUNISTIC_DUTY,
            mps: None,
        }
    }
}

/// Default share of the time in which an opportunistic job works without an arbiter: it makes
/// progress, and the jobs that it should give way to hardly feel it.
pub const OPPORTUNISTIC_DUTY: Milli = match Milli::new(100) {
    Some(duty) => duty,
    None => Milli::WHOLE,
};

/// The cards on which turns must not overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExclusiveSlices {
    /// All.
    All,
    /// These, by their positions in the machine's inventory.
    Of(BTreeSet<usize>),
}

impl Default for ExclusiveSlices {
    /// No card: the next job takes the time that a job leaves at the end of its turn.
    fn default() -> Self {
        ExclusiveSlices::Of(BTreeSet::new())
    }
}

impl ExclusiveSlices {
    /// Refuses cards that are not there.
    pub(super) fn check(&self, n_cards: usize) -> Result<(), ArbiterError> {
        let ExclusiveSlices::Of(cards) = self else {
            return Ok(());
        };
        match cards.iter().find(|card| **card >= n_cards) {
            None => Ok(()),
            Some(card) => Err(ArbiterError::Setting(format!(
                "there is no GPU {card} to have exclusive slices; this machine has {n_cards}, \
                 numbered from 0"
            ))),
        }
    }

    /// Checks whether a card is one of them.
    #[must_use]
    pub fn has(&self, card: usize) -> bool {
        match self {
            ExclusiveSlices::All => true,
            ExclusiveSlices::Of(cards) => cards.contains(&card),
        }
    }
}

impl Options {
    /// The usual settings, in that folder.
    #[must_use]
    pub fn new(folder: Folder) -> Options {
        Options {
            folder,
            host: None,
            policy: Policy::binpack(),
            reserved: MiB::ZERO,
            evict: false,
            evict_over: false,
            evict_overuse: false,
            gauge: None,
            shared: false,
            local_jobs: true,
            time: TimeSharing::default(),
            idle_exit: None,
            // Interposers look for the arbiter again four times a second, and commands more often.
            settle: Duration::from_secs(2),
            stop: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_slices_are_of_cards_that_are_there() {
        let check = |cards: &[usize]| {
            let cards = ExclusiveSlices::Of(cards.iter().copied().collect());
            cards.check(2).map_err(|error| error.to_string())
        };
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[0, 1]), Ok(()));
        let error = check(&[1, 2]).unwrap_err();
        assert!(error.starts_with("there is no GPU 2"), "{error}");
        assert!(ExclusiveSlices::All.check(0).is_ok());
    }
}
