//! A job of the world: its work pattern, and what its processes have on the cards.

use std::collections::BTreeMap;
use std::time::Duration;

use sublet_model::Class;

use crate::turns::{LaunchGate, TimeShare};

/// A job's work pattern.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::turns) struct Work {
    /// Time of a kernel with the card for itself.
    pub(in crate::turns) kernel: Duration,
    /// Kernels between two pauses.
    pub(in crate::turns) burst: u32,
    /// Length of its pause; nothing if it always has work.
    pub(in crate::turns) pause: Duration,
    /// Kernels that it launches before the first of them has ended.
    pub(in crate::turns) n_ahead: u32,
    /// Pauses are drawn by lot, with that mean: bursts are requests of many users.
    pub(in crate::turns) is_irregular: bool,
}

/// Ways in which a job's answers go wrong.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::turns) struct Faults {
    /// Delay until it says that it is drained.
    pub(in crate::turns) late: Duration,
    /// It says so twice.
    pub(in crate::turns) twice: bool,
    /// It says that it never works, and that it is drained at once.
    pub(in crate::turns) lies: bool,
}

/// One process of a job.
#[derive(Debug, Clone, Default)]
pub(super) struct Process {
    /// Rest of the running kernel, by card.
    running: BTreeMap<usize, Duration>,
    /// Kernels behind that.
    n_queued: u32,
    launched: u32,
    resumes_at: Duration,
}

impl Process {
    pub(super) fn begun(now: Duration) -> Process {
        Process {
            resumes_at: now,
            ..Process::default()
        }
    }

    fn has_work(&self, now: Duration) -> bool {
        !self.running.is_empty() || self.resumes_at <= now
    }

    /// True if it has a kernel to launch now, and may queue it.
    fn may_launch(&self, now: Duration, work: &Work, queue: Duration) -> bool {
        let n_running = u32::from(!self.running.is_empty()) + self.n_queued;
        let fits = n_running == 0 || work.kernel * (n_running + 1) <= queue;
        self.resumes_at <= now && self.launched < work.burst && n_running <= work.n_ahead && fits
    }

    /// Time of a card that its kernels need.
    pub(super) fn pending(&self, card: usize, kernel: Duration) -> Duration {
        let running = self.running.get(&card);
        running.map_or(Duration::ZERO, |left| *left + kernel * self.n_queued)
    }
}

#[derive(Debug)]
pub(in crate::turns) struct Tenant {
    pub(in crate::turns) class: Class,
    pub(in crate::turns) shares: Vec<TimeShare>,
    pub(in crate::turns) work: Work,
    pub(in crate::turns) faults: Faults,
    pub(super) gate: LaunchGate,
    /// The most that it may have queued.
    pub(super) queue: Duration,
    pub(super) processes: Vec<Process>,
    pub(super) random: u64,
    pub(super) has_said: Option<bool>,
    pub(super) quiet_since: Option<Duration>,
    pub(super) answered: Option<u32>,
    /// Number of ended kernels.
    pub(in crate::turns) n_done: u64,
    /// Time of each card that it really had.
    pub(in crate::turns) had: BTreeMap<usize, Duration>,
    /// Time of each of its bursts, from the end of the pause.
    pub(in crate::turns) bursts: Vec<Duration>,
    /// When it last had the card, and the longest time since it then wanted it in vain.
    pub(super) last_ran: Duration,
    pub(in crate::turns) longest_wait: Duration,
}

impl Tenant {
    /// True if it runs, or would.
    pub(in crate::turns) fn has_work(&self, now: Duration) -> bool {
        self.processes.iter().any(|process| process.has_work(now))
    }

    pub(in crate::turns) fn is_on(&self, card: usize) -> bool {
        let mut processes = self.processes.iter();
        processes.any(|process| process.running.contains_key(&card))
    }

    pub(super) fn is_running(&self) -> bool {
        let mut processes = self.processes.iter();
        processes.any(|process| !process.running.is_empty())
    }

    /// The most that each of its processes may have queued.
    fn queue_of_each(&self) -> Duration {
        self.queue / self.processes.len() as u32
    }

    /// True if one of its processes has a kernel to launch now, and may queue it.
    pub(super) fn may_launch(&self, now: Duration) -> bool {
        let (work, queue) = (&self.work, self.queue_of_each());
        let mut processes = self.processes.iter();
        processes.any(|process| process.may_launch(now, work, queue))
    }

    /// Draws the length of its next pause.
    fn next_pause(&mut self) -> Duration {
        if !self.work.is_irregular {
            return self.work.pause;
        }
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let uniform = (self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f64;
        let uniform = (uniform + 0.5) / (1 << 24) as f64;
        self.work.pause.mul_f64(-uniform.ln())
    }

    /// Its processes launch what they may.
    pub(super) fn launch(&mut self, now: Duration) {
        let (work, queue) = (self.work, self.queue_of_each());
        for process in &mut self.processes {
            while process.may_launch(now, &work, queue) {
                process.launched += 1;
                if process.running.is_empty() {
                    process.running = kernel(&self.shares, &work);
                } else {
                    process.n_queued += 1;
                }
            }
        }
    }

    /// Ends bursts that are done, and begins their pauses.
    pub(super) fn end_bursts(&mut self, now: Duration) {
        for at in 0..self.processes.len() {
            let process = &self.processes[at];
            if process.running.is_empty() && process.launched >= self.work.burst {
                self.bursts.push(now.saturating_sub(process.resumes_at));
                let resumes_at = now + self.next_pause();
                let process = &mut self.processes[at];
                (process.launched, process.resumes_at) = (0, resumes_at);
            }
        }
    }

    /// A process has its part of a step on each card.
    pub(super) fn run(&mut self, at: usize, mut parts: BTreeMap<usize, Duration>) {
        let process = &mut self.processes[at];
        while !process.running.is_empty() {
            for (card, left) in &mut process.running {
                let budget = parts.entry(*card).or_default();
                let part = (*budget).min(*left);
                *left -= part;
                *budget -= part;
                *self.had.entry(*card).or_default() += part;
            }
            process.running.retain(|_, left| !left.is_zero());
            if !process.running.is_empty() {
                break;
            }
            self.n_done += 1;
            if process.n_queued > 0 {
                process.n_queued -= 1;
                process.running = kernel(&self.shares, &self.work);
            }
        }
    }
}

/// A kernel on all cards of a job.
fn kernel(shares: &[TimeShare], work: &Work) -> BTreeMap<usize, Duration> {
    let cards = shares.iter().map(|share| share.card);
    cards.map(|card| (card, work.kernel)).collect()
}
