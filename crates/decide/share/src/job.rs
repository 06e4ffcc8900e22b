//! A job and its request: the nouns of node decisions.
//!
//! A job is one tenant of this machine: a `sublet run`, or a container that the node agent
//! manages. It asks for an amount of memory on a number of cards, and has a limit on each card
//! that it got.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sublet_model::{Class, Count, MiB, Milli, Part, Role};

/// A job's number on this machine. It is also the tenant's number on the shared pages, and
/// is never used twice in the life of a run folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A process, by the number that the arbiter's own PID namespace has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(pub u32);

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A user of the machine, by the number that the kernel has for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(pub u32);

impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Amount of each of its cards that a job asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// So much memory.
    Memory(MiB),
    /// So much of the memory that the card has.
    Share(Milli),
    /// A card that no other job is on, with all that can be granted there.
    Whole,
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Memory(memory) => memory.fmt(f),
            Amount::Share(share) => share.fmt(f),
            Amount::Whole => f.write_str("a whole GPU"),
        }
    }
}

/// A job's compute time on each of its cards: its promise, and its greatest share, also of
/// time that no other job wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComputeRange {
    request: Milli,
    limit: Milli,
}

impl ComputeRange {
    /// No promise and no limit: the time that others leave, up to all of it.
    pub const ANY: ComputeRange = ComputeRange {
        request: Milli::ZERO,
        limit: Milli::WHOLE,
    };

    /// From a promise up to a limit. `None` for a limit of zero, or below the promise.
    #[must_use]
    pub fn new(request: Milli, limit: Milli) -> Option<ComputeRange> {
        let is_right = limit > Milli::ZERO && request <= limit;
        is_right.then_some(ComputeRange { request, limit })
    }

    /// Promised share.
    #[must_use]
    pub fn request(self) -> Milli {
        self.request
    }

    /// The most.
    #[must_use]
    pub fn limit(self) -> Milli {
        self.limit
    }
}

/// `30 %..80 %`.
impl fmt::Display for ComputeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.request, self.limit)
    }
}

/// A job's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobAsk {
    /// Its name, for people; several jobs may have one name.
    pub name: Arc<str>,
    /// Amount of each card; after a change of its limit, the new one.
    pub memory: Amount,
    /// Amount of each card that it asked for when it came. It decides nothing.
    pub request: Amount,
    /// Limit of pinned host memory; nothing for no limit.
    pub pinned: Option<MiB>,
    /// Compute time of each card. An opportunistic job is promised none.
    pub compute: ComputeRange,
    /// Class: decides which job gives way when compute time is short.
    pub class: Class,
    /// Length of its turns while others wait; nothing for the usual one.
    pub slice: Option<Duration>,
    /// Number of cards.
    pub gpus: Count,
    /// Cards where it may run, by their positions in the machine's inventory; nothing for any
    /// card.
    pub cards: Option<BTreeSet<usize>>,
    /// Its user; nothing for a container, which never waits.
    pub user: Option<UserId>,
    /// Higher goes first among the jobs that wait.
    pub priority: i32,
    /// May it wait until there is room?
    pub may_wait: bool,
}

impl JobAsk {
    /// May it be on that card?
    #[must_use]
    pub fn allows(&self, card: usize) -> bool {
        self.cards
            .as_ref()
            .is_none_or(|cards| cards.contains(&card))
    }
}

/// Room that a cluster has promised. Its scheduler has counted it pod by pod, and the node's
/// agent has checked the sum: such a job is placed at once, past the jobs that wait here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    /// The container's pod, by a name that no other has.
    pub pod: Arc<str>,
    /// When the container runs, compared with the others of its pod.
    pub role: Role,
    /// Its place in the pod's list of (init) containers, from 0.
    pub position: usize,
}

/// A card that a job has, and how much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    /// The card's position in the machine's inventory.
    pub card: usize,
    /// Limit of its use there, contexts and modules included, and its promised compute time.
    pub limit: Part,
    /// Maximum compute time there, also of time that no other job wants.
    pub compute_limit: Milli,
}

impl Holding {
    /// So much memory of a card, and compute time as others leave it.
    #[must_use]
    pub fn of_memory(card: usize, memory: MiB) -> Holding {
        Holding {
            card,
            limit: Part::of_memory(memory),
            compute_limit: Milli::WHOLE,
        }
    }

    /// The same card, with another limit of memory.
    #[must_use]
    pub fn with_memory(self, memory: MiB) -> Holding {
        let limit = Part {
            memory,
            ..self.limit
        };
        Holding { limit, ..self }
    }

    /// Compute time that it has there.
    #[must_use]
    pub fn compute(self) -> ComputeRange {
        ComputeRange {
            request: self.limit.compute,
            limit: self.compute_limit,
        }
    }

    /// The same card, with other compute time.
    #[must_use]
    pub fn with_compute(self, compute: ComputeRange) -> Holding {
        Holding {
            limit: Part {
                compute: compute.request(),
                ..self.limit
            },
            compute_limit: compute.limit(),
            ..self
        }
    }
}

/// A job's state, in one word for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobState {
    /// It has no card yet.
    Waiting,
    /// It has its cards, and uses no more than its limits.
    Running,
    /// It uses more than its limit on some card: new memory is refused there.
    Over,
    /// Its root is gone, and processes of it are left.
    Ending,
}

impl JobState {
    /// The word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            JobState::Waiting => "waiting",
            JobState::Running => "running",
            JobState::Over => "over",
            JobState::Ending => "ending",
        }
    }
}
