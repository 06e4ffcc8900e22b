//! Turns on the cards: passes the processes' reports in their slots to `sublet-share`, and its
//! decisions to the gates of the control pages.
//!
//! A knock, the end of a process and the alarm lead to a *round*: the arbiter reads the slots of
//! jobs that may have news, decides the turns once and sets gates. Rounds keep a distance, so turns
//! take no more than a part of the arbiter's time, whatever tenants do ([`Pace`]). Between two
//! rounds nothing wakes the arbiter but a process that begins. A job alone on its cards is not
//! looked at, and without other jobs there is no alarm.

mod alarm;
mod watched;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::time::ClockId;
use sublet_abi::SlotIndex;
use sublet_model::Class;
use sublet_share::{
    Holding, JobId, LaunchGate, Overlap, Pid, SetGate, TimeShare, TurnEvent, TurnRules, TurnView,
    Turns, shares_beside_mps,
};
use tracing::trace;

use self::alarm::Alarm;
use self::watched::Watched;
use super::Arbiter;
use super::jobs::Jobs;
use super::options::TimeSharing;
use crate::error::ArbiterError;
use crate::job_pages::ALWAYS;

/// Interval of reading all slots while a job waits, even without a knock: a knock can be lost
/// if a socket is full.
const LOOKS_EVERY: Duration = Duration::from_millis(10);

/// Maximum number of repeats of a round at once: a job without a process that follows turns
/// has answered when its gate is closed.
const STEPS_MAX: usize = 4;

/// Turns' own numbers begin at 1 in each life of the arbiter, and the pages outlive it. This
/// addend keeps an old answer from passing for a new one. (2³² divided by the golden ratio; far
/// apart for any two epochs that are near.)
const EPOCHS_APART: u64 = 0x9E37_79B1;

/// When the next round may be. Rounds take a part of the time in the long run; a few may follow
/// each other at once, so that a request is not charged for the time until the next round.
#[derive(Debug, Default)]
struct Pace {
    next: Duration,
    /// Processor time that was spent beyond that part, up to `at`.
    spent: Duration,
    at: Duration,
}

impl Pace {
    /// Rounds are so far apart at least.
    const SHORTEST: Duration = Duration::from_micros(100);
    /// Longest distance between rounds, however long one took: a slice must end.
    const LONGEST: Duration = Duration::from_millis(5);
    /// Part of the time that rounds may take: one in 64.
    const PARTS: u32 = 64;
    /// Processor time that rounds may take beyond that, before they keep a distance.
    const BURST: Duration = Duration::from_millis(3);

    /// Notes that a round began at `now`, and its processor time.
    fn note(&mut self, now: Duration, took: Duration) {
        let earned = now.saturating_sub(self.at) / Pace::PARTS;
        self.spent = self.spent.saturating_sub(earned) + took;
        self.at = now;
        let beyond = self.spent.saturating_sub(Pace::BURST).min(Pace::LONGEST);
        let apart = beyond * Pace::PARTS;
        self.next = now + apart.clamp(Pace::SHORTEST, Pace::LONGEST);
        // What is not waited for now is not waited for later.
        self.spent = self.spent.min(Pace::BURST + Pace::LONGEST / Pace::PARTS);
    }
}

/// The turns of all jobs, and their gates.
#[derive(Debug)]
pub(super) struct CardTurns {
    turns: Turns,
    watched: BTreeMap<JobId, Watched>,
    /// Each job's holdings, and the shares for which it has turns.
    placed: BTreeMap<JobId, (Class, Vec<Holding>)>,
    shared: BTreeMap<JobId, (Class, Vec<TimeShare>)>,
    /// Lengths of the turns of jobs that asked for their own.
    slices: BTreeMap<JobId, Duration>,
    rules: TurnRules,
    /// MPS serves jobs side by side, and only promises that it does not keep need turns.
    is_beside_mps: bool,
    number_of_first: u32,
    /// Something has happened that a round is due for.
    is_due: bool,
    /// Events of jobs since the last round.
    events: Vec<TurnEvent>,
    pace: Pace,
    /// When the slots of all watched jobs are to be read next.
    look_at: Duration,
    alarm: Alarm,
}

impl CardTurns {
    pub(super) fn new(
        epoch: u64,
        n_cards: usize,
        time: &TimeSharing,
    ) -> Result<CardTurns, ArbiterError> {
        let rules = TurnRules {
            shortest: time.shortest_slice.time(),
            ..TurnRules::default()
        };
        let mut turns = Turns::new(rules);
        for card in (0..n_cards).filter(|card| time.exclusive_slices.has(*card)) {
            turns.set_overlap(card, Overlap::Never);
        }
        let apart = epoch.wrapping_mul(EPOCHS_APART) & u64::from(u32::MAX);
        Ok(CardTurns {
            turns,
            watched: BTreeMap::new(),
            placed: BTreeMap::new(),
            shared: BTreeMap::new(),
            slices: BTreeMap::new(),
            rules,
            is_beside_mps: false,
            number_of_first: u32::try_from(apart).unwrap_or(0),
            is_due: false,
            events: Vec::new(),
            pace: Pace::default(),
            look_at: Duration::ZERO,
            alarm: Alarm::new()?,
        })
    }

    /// A job has its cards, or other limits there. `slice`: length of its turns, if it asked for
    /// one of its own; it is no shorter than the site permits.
    pub(super) fn place(
        &mut self,
        job: JobId,
        class: Class,
        slice: Option<Duration>,
        parts: &[Holding],
    ) {
        self.watched.entry(job).or_insert_with(Watched::new);
        self.placed.insert(job, (class, parts.to_vec()));
        if let Some(slice) = slice {
            self.slices.insert(job, slice.max(self.rules.shortest));
        }
        self.share_out();
    }

    /// Whether MPS serves the jobs has changed, or not.
    pub(super) fn set_beside_mps(&mut self, is_beside_mps: bool) {
        if self.is_beside_mps != is_beside_mps {
            self.is_beside_mps = is_beside_mps;
            self.share_out();
        }
    }

    /// Tells the turns the jobs with changed shares.
    fn share_out(&mut self) {
        let all = match self.is_beside_mps {
            true => shares_beside_mps(&self.placed),
            false => plain_shares(&self.placed),
        };
        for (job, shares) in all {
            let class = self.placed[&job].0;
            let before = self.shared.insert(job, (class, shares.clone()));
            if before.as_ref() == Some(&(class, shares.clone())) {
                continue;
            }
            let is_elsewhere = |(_, before): (Class, Vec<TimeShare>)| {
                let both = before.iter().zip(&shares);
                before.len() != shares.len() || both.into_iter().any(|(a, b)| a.card != b.card)
            };
            if before.is_some_and(is_elsewhere) {
                // Its turns are numbered from the first again.
                self.number_of_first = self.number_of_first.wrapping_add(EPOCHS_APART as u32);
            }
            self.tell(TurnEvent::Placed {
                job,
                class,
                shares,
                slice: self.slices.get(&job).copied(),
            });
        }
    }

    /// A job is gone.
    pub(super) fn remove(&mut self, job: JobId) {
        if self.watched.remove(&job).is_some() {
            self.placed.remove(&job);
            self.shared.remove(&job);
            self.slices.remove(&job);
            self.tell(TurnEvent::Left(job));
            self.share_out();
        }
    }

    /// A process of a job has its slot.
    pub(super) fn add_process(&mut self, job: JobId, pid: Pid, slot: SlotIndex) {
        if let Some(watched) = self.watched.get_mut(&job) {
            watched.add(monotonic(), pid, slot);
            self.is_due |= !watched.is_free();
        }
    }

    /// A process of a job is gone.
    pub(super) fn remove_process(&mut self, job: JobId, pid: Pid) {
        if let Some(watched) = self.watched.get_mut(&job) {
            watched.remove(pid);
            self.is_due |= !watched.is_free();
        }
    }

    /// A process of a job says that its slot has news.
    pub(super) fn knock(&mut self, job: JobId, pid: Pid) {
        let watched = self.watched.get_mut(&job);
        self.is_due |= watched.is_some_and(|watched| watched.knock(pid));
    }

    /// The alarm has rung.
    pub(super) fn ring(&mut self) {
        self.alarm.take();
        self.is_due = true;
    }

    /// Brings accounts up to now, before a reader looks at them.
    pub(super) fn settle(&mut self) {
        self.turns.settle(monotonic());
    }

    /// Opportunistic jobs get more or less, by the progress of the guaranteed ones beside
    /// them.
    fn coordinate(&mut self, jobs: &mut Jobs) {
        let watched = self
            .watched
            .iter_mut()
            .filter(|(_, watched)| !watched.is_free());
        let (now, mut gates) = (monotonic(), Vec::new());
        let done = watched.filter_map(|(job, watched)| {
            let ledger = jobs.pages(*job).and_then(|pages| pages.ledger())?;
            Some((*job, watched.count_work(now, ledger.page())))
        });
        let done = done.collect();
        self.turns.coordinate(now, &done, &mut gates);
        self.is_due |= !gates.is_empty();
        for set in gates {
            self.set_gate(now, set, jobs);
        }
        // With another duty somebody may be due at another time.
        self.alarm.set(self.wake_at());
    }

    /// True if something has happened that a round is due for.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// A job's state on a card.
    pub(super) fn view(&self, job: JobId, card: usize) -> Option<TurnView> {
        let views = self.turns.view(job).into_iter();
        let mut on_card = views.filter(|view| view.share.card == card);
        on_card.next()
    }

    /// A job's time for a mini-batch, if it is known.
    pub(super) fn batch_time(&self, job: JobId) -> Option<Duration> {
        self.watched.get(&job)?.batch_time()
    }

    /// True if a job's use of its cards is known from its turns.
    pub(super) fn is_watched(&self, job: JobId) -> bool {
        let watched = self.watched.get(&job);
        watched.is_some_and(|watched| !watched.is_free())
    }

    /// For how long a job's gate has been closed now.
    pub(super) fn closed_for(&self, job: JobId) -> Duration {
        let watched = self.watched.get(&job);
        watched.map_or(Duration::ZERO, |watched| watched.closed_for(monotonic()))
    }

    /// Whether turns of a card may overlap, in a word for people.
    pub(super) fn slices(&self, card: usize) -> &'static str {
        match self.turns.overlap(card) {
            Overlap::Allowed => "overlapping",
            Overlap::Never => "exclusive",
        }
    }

    /// The time that use and waiting are of.
    pub(super) fn window(&self) -> Duration {
        self.rules.window
    }

    /// Something has happened to a job.
    pub(super) fn tell(&mut self, event: TurnEvent) {
        if let TurnEvent::Overused { job, .. } = event
            && let Some(watched) = self.watched.get_mut(&job)
        {
            watched.hold();
        }
        self.events.push(event);
        self.is_due = true;
    }

    /// Runs a round if one is due and may run now. Otherwise returns the time until it may: no news
    /// of jobs needs to wake the arbiter meanwhile.
    pub(super) fn advance(&mut self, jobs: &mut Jobs) -> Duration {
        if !self.is_due {
            return Duration::ZERO;
        }
        let now = monotonic();
        // What happened to jobs themselves is rare, and must not wait.
        if now < self.pace.next && self.events.is_empty() {
            return self.pace.next - now;
        }
        let began = processor_time();
        self.round(now, jobs);
        self.pace.note(now, processor_time().saturating_sub(began));
        self.alarm.set(self.wake_at());
        Duration::ZERO
    }

    fn wake_at(&self) -> Option<Duration> {
        let is_pending = self.watched.values().any(Watched::is_pending);
        let look = is_pending.then_some(self.look_at);
        let again = self.watched.values().filter_map(Watched::look_again_at);
        let turns = self.turns.wake_at().map(|at| at.max(self.pace.next));
        look.into_iter().chain(again).chain(turns).min()
    }

    fn round(&mut self, now: Duration, jobs: &mut Jobs) {
        self.is_due = false;
        let mut gates = Vec::new();
        for _ in 0..STEPS_MAX {
            self.look(now, jobs);
            for event in &self.events {
                trace!(?event, "EV");
            }
            self.events.push(TurnEvent::Tick);
            let events = self.events.drain(..);
            self.turns.apply_all(now, events, &mut gates);
            if gates.is_empty() {
                return;
            }
            for set in gates.drain(..) {
                self.set_gate(now, set, jobs);
            }
        }
        self.is_due = true;
    }

    /// Reads the reports of the processes of watched jobs: of those that may have news, and of
    /// all when that is due.
    fn look(&mut self, now: Duration, jobs: &mut Jobs) {
        let at_all = now >= self.look_at;
        if at_all {
            self.look_at = self.rules.common_moment(now + LOOKS_EVERY);
        }
        for (job, watched) in &mut self.watched {
            if watched.is_free() || !(at_all || watched.may_have_news(now)) {
                continue;
            }
            let ledger = jobs.pages(*job).and_then(|pages| pages.ledger());
            // Without pages there is no process either.
            let said = ledger.map(|ledger| watched.read(now, ledger.page()));
            let said = said.unwrap_or_default();
            let needs_word = watched.hear(now, *job, said, &mut self.events);
            if let Some(pages) = jobs.pages_mut(*job) {
                pages.set_queue(watched.queue_us());
                if needs_word {
                    pages.set_gate(watched.word());
                }
            }
        }
    }

    fn set_gate(&mut self, now: Duration, set: SetGate, jobs: &mut Jobs) {
        let Some(watched) = self.watched.get_mut(&set.job) else {
            return;
        };
        let number = match set.gate {
            LaunchGate::Closed(turn) => number_of(self.number_of_first, turn),
            _ => watched.number(),
        };
        watched.set(now, set.gate, number);
        watched.set_queue(set.queue);
        if let Some(pages) = jobs.pages_mut(set.job) {
            // First, so that who sees the gate sees its bound.
            pages.set_queue(watched.queue_us());
            pages.set_gate(watched.word());
        }
        trace!(job = %set.job, gate = ?set.gate, queue = ?set.queue, "gate set");
    }
}

impl AsFd for CardTurns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }
}

impl Arbiter {
    /// Runs a round of turns, if one is due.
    ///
    /// If many jobs contend, each wake-up costs more than its purpose is worth. So news
    /// between two rounds waits in its sockets, for 5 ms at most. A process that begins does not
    /// wait: it is rare, and all of its own news comes after the answer.
    pub(super) fn take_turns(&mut self) -> Result<(), ArbiterError> {
        let too_early = self.turns.advance(&mut self.jobs);
        if !too_early.is_zero() {
            for key in self.sources.wait_for_callers(too_early)? {
                self.serve(key);
            }
        }
        Ok(())
    }

    /// A job has its cards, or other limits there: its turns follow.
    pub(super) fn enter_turns(&mut self, job: JobId, parts: &[Holding]) {
        let Some(view) = self.machine.job(job) else {
            return;
        };
        let (class, slice) = (view.ask.class, view.ask.slice);
        if let Some(pages) = self.jobs.pages_mut(job) {
            pages.set_without_arbiter(match class {
                Class::Guaranteed => ALWAYS,
                Class::Opportunistic => self.opportunistic_duty.get().into(),
            });
        }
        self.turns.place(job, class, slice, parts);
    }

    /// Checks the progress of guaranteed jobs beside opportunistic ones.
    pub(super) fn coordinate_turns(&mut self) {
        self.turns.coordinate(&mut self.jobs);
    }
}

/// The shares of jobs that have turns on all their cards.
fn plain_shares(
    placed: &BTreeMap<JobId, (Class, Vec<Holding>)>,
) -> BTreeMap<JobId, Vec<TimeShare>> {
    let share = |part: &Holding| TimeShare {
        card: part.card,
        request: part.limit.compute,
        limit: part.compute_limit,
    };
    let jobs = placed.iter();
    jobs.map(|(job, (_, parts))| (*job, parts.iter().map(share).collect()))
        .collect()
}

/// A turn's number, as the pages have it: never zero, which a new process has answered.
fn number_of(first: u32, turn: u32) -> u32 {
    const NUMBERS: u32 = (1 << 30) - 1;
    (first % NUMBERS).wrapping_add(turn % NUMBERS) % NUMBERS + 1
}

/// The clock that the turns are decided by.
fn monotonic() -> Duration {
    clock(ClockId::Monotonic)
}

/// The time that this thread has had of the processor.
fn processor_time() -> Duration {
    clock(ClockId::ThreadCPUTime)
}

fn clock(id: ClockId) -> Duration {
    let now = rustix::time::clock_gettime(id);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}

#[cfg(test)]
mod tests;
