//! NVIDIA's MPS on one machine: the daemon's state and restarts, the jobs that it serves, the
//! terms that a job's programs are told, and the jobs that still need turns beside it.
//!
//! Programs are *clients* of a server that the daemon starts, and run on a card side by side. A
//! client is tied to the daemon that it began under: when that is gone, the client can do no more
//! CUDA work, and the next daemon does not know it. A program that begins while no daemon answers
//! runs without MPS (nvidia-cuda-mps-control(1)). So daemons are numbered, and each process of a
//! job is known by the number of its own daemon.
//!
//! A server has one user, and a daemon has one server: a program of another user waits in `cuInit`
//! until the last client of the server has ended.

use std::collections::BTreeMap;
use std::time::Duration;

use sublet_model::{Class, MiB, Milli, Pauses, Time};

use crate::job::{Holding, JobId, UserId};
use crate::turns::TimeShare;

/// Longest time until a started daemon answers.
const START_MS_MAX: u64 = 10_000;

/// The pauses before a daemon that is gone is started again.
const PAUSES: Pauses = Pauses::new(Duration::from_secs(1), Duration::from_secs(60));

/// A daemon that has served for this time did not fail at its start: the count of failures
/// starts anew.
const SERVED_MS: u64 = 60_000;

/// Number of the daemon among those that this arbiter has started, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MpsLife(u32);

/// State of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MpsState {
    /// It was started, and does not answer yet.
    Starting {
        /// When.
        since: Time,
        /// Reason why the last one is gone; nothing for the first.
        after: Option<String>,
    },
    /// It answers.
    Serving {
        /// Since when.
        since: Time,
        /// Number of the daemon.
        life: MpsLife,
    },
    /// It has ended, or could not be started.
    Gone {
        /// When.
        since: Time,
        /// Why.
        why: String,
        /// When it is started again.
        again_at: Time,
    },
}

/// Step that is due for the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MpsDue {
    /// Start it.
    Start,
    /// End it: it was given time to answer, and did not.
    GiveUp,
    /// Ask whether it answers.
    Ask,
}

/// The daemon's life, as a state machine. It begins with a start.
#[derive(Debug, Clone)]
pub struct MpsDaemon {
    state: MpsState,
    lives: u32,
    /// Number of failures or early ends in a row.
    failures: u32,
}

impl MpsDaemon {
    /// It has just been started.
    #[must_use]
    pub fn started_at(now: Time) -> MpsDaemon {
        MpsDaemon {
            state: MpsState::Starting {
                since: now,
                after: None,
            },
            lives: 0,
            failures: 0,
        }
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> &MpsState {
        &self.state
    }

    /// The daemon that serves now.
    #[must_use]
    pub fn serving(&self) -> Option<MpsLife> {
        match self.state {
            MpsState::Serving { life, .. } => Some(life),
            _ => None,
        }
    }

    /// Step that is due now.
    #[must_use]
    pub fn due(&self, now: Time) -> Option<MpsDue> {
        match self.state {
            MpsState::Starting { since, .. } if now >= since.plus_ms(START_MS_MAX) => {
                Some(MpsDue::GiveUp)
            }
            MpsState::Starting { .. } => Some(MpsDue::Ask),
            MpsState::Gone { again_at, .. } if now >= again_at => Some(MpsDue::Start),
            MpsState::Serving { .. } | MpsState::Gone { .. } => None,
        }
    }

    /// It was started again.
    pub fn start(&mut self, now: Time) {
        let after = match &self.state {
            MpsState::Gone { why, .. } => Some(why.clone()),
            _ => None,
        };
        self.state = MpsState::Starting { since: now, after };
    }

    /// It has answered: from now on it serves.
    pub fn answered(&mut self, now: Time) {
        if let MpsState::Starting { .. } = self.state {
            self.lives = self.lives.saturating_add(1);
            let life = MpsLife(self.lives);
            self.state = MpsState::Serving { since: now, life };
        }
    }

    /// It has ended, or could not be started.
    pub fn ended(&mut self, now: Time, why: String) {
        let is_soon = match self.state {
            MpsState::Serving { since, .. } => now < since.plus_ms(SERVED_MS),
            _ => true,
        };
        self.failures = if is_soon { self.failures + 1 } else { 1 };
        self.state = MpsState::Gone {
            since: now,
            why,
            again_at: now.plus(PAUSES.after(self.failures)),
        };
    }
}

/// Under which daemon a process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MpsClient {
    /// Under a daemon that this arbiter has started.
    Of(MpsLife),
    /// Under none: none answered then.
    OfNone,
    /// Under one of an arbiter before this one, which ended with it.
    OfBefore,
}

/// State of a job that began under MPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MpsStanding {
    /// All its processes are clients of the daemon that serves now, and new ones will be.
    Serving,
    /// A process of it is a client of a daemon that is gone: it can do no more CUDA work.
    Lost,
    /// A process of it runs without MPS, or a new one would.
    Without,
    /// A process of it waits until the programs of this user have ended.
    Waiting(UserId),
}

impl MpsStanding {
    /// The word of a job that waits.
    pub const WAITING: &str = "waiting";

    /// The state of a job with these processes and their users. `served`: the user of the daemon's
    /// server, if there is a server, and if it has one user.
    #[must_use]
    pub fn of(
        serving: Option<MpsLife>,
        served: Option<UserId>,
        processes: impl IntoIterator<Item = (MpsClient, Option<UserId>)>,
    ) -> MpsStanding {
        let mut is_beside = serving.is_none();
        let mut behind = None;
        for (process, user) in processes {
            behind = behind.or(served.filter(|served| user.is_some_and(|user| user != *served)));
            match process {
                MpsClient::Of(life) if Some(life) == serving => {}
                MpsClient::Of(_) | MpsClient::OfBefore => return MpsStanding::Lost,
                MpsClient::OfNone => is_beside = true,
            }
        }
        match (is_beside, behind) {
            (true, _) => MpsStanding::Without,
            (false, Some(served)) => MpsStanding::Waiting(served),
            (false, None) => MpsStanding::Serving,
        }
    }

    /// The word for people and programs.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            MpsStanding::Serving => "serving",
            MpsStanding::Lost => "lost",
            MpsStanding::Without => "without",
            MpsStanding::Waiting(_) => MpsStanding::WAITING,
        }
    }
}

/// Terms that the programs of a job are told when they begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpsTerms {
    /// The folder with the daemon's sockets, as the programs see it.
    pub pipe: String,
    /// The most compute time of each card: as much of its multiprocessors they get.
    pub compute_limit: Milli,
    /// Their limit of memory, card by card in the order in which they count them.
    pub memory: Vec<MiB>,
}

/// A limit of compute time as MPS takes it: whole percent, rounded down, never 0.
#[must_use]
pub fn mps_percent(limit: Milli) -> u32 {
    u32::from(limit.get() / 10).max(1)
}

impl MpsTerms {
    /// The variables that NVIDIA's driver reads in a client (CUDA Multi-Process Service,
    /// "Environment Variables").
    #[must_use]
    pub fn variables(&self) -> [(&'static str, String); 3] {
        let percent = mps_percent(self.compute_limit);
        let cards = self.memory.iter().enumerate();
        let limits: Vec<String> = cards
            .map(|(card, memory)| format!("{card}={}M", memory.get()))
            .collect();
        [
            ("CUDA_MPS_PIPE_DIRECTORY", self.pipe.clone()),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent.to_string()),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limits.join(",")),
        ]
    }
}

/// The compute shares for which jobs need turns while MPS serves them. `jobs` has every job with
/// its holdings.
///
/// MPS keeps each job to its limit, as a part of the multiprocessors, and knows no promises. If the
/// limits on a card add up to no more than the card, every job has its promise, and all run side by
/// side. The same holds if no job has a promise and none gives way. On other cards promises need
/// turns. Limits do not: a job in its turn would be held to the limit twice.
#[must_use]
pub fn shares_beside_mps(
    jobs: &BTreeMap<JobId, (Class, Vec<Holding>)>,
) -> BTreeMap<JobId, Vec<TimeShare>> {
    let mut cards: BTreeMap<usize, Vec<(Class, Holding)>> = BTreeMap::new();
    for (class, parts) in jobs.values() {
        for part in parts {
            cards.entry(part.card).or_default().push((*class, *part));
        }
    }
    let shares = |parts: &[Holding]| {
        let timed = parts.iter().filter(|part| needs_turns(&cards[&part.card]));
        let share = timed.map(|part| TimeShare {
            card: part.card,
            request: part.limit.compute,
            limit: Milli::WHOLE,
        });
        share.collect()
    };
    let all = jobs.iter();
    all.map(|(job, (_, parts))| (*job, shares(parts))).collect()
}

/// Checks whether MPS alone cannot keep the promises to the jobs of a card.
fn needs_turns(jobs: &[(Class, Holding)]) -> bool {
    let limits = jobs
        .iter()
        .map(|(_, part)| u32::from(part.compute_limit.get()));
    let is_too_much = limits.sum::<u32>() > u32::from(Milli::WHOLE.get());
    let is_promised = |(_, part): &(Class, Holding)| part.limit.compute > Milli::ZERO;
    let has = |class| jobs.iter().any(|(own, _)| *own == class);
    let gives_way = has(Class::Opportunistic) && has(Class::Guaranteed);
    jobs.len() > 1 && is_too_much && (gives_way || jobs.iter().any(is_promised))
}

#[cfg(test)]
mod tests;
