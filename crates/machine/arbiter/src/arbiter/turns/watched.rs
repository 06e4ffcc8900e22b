//! One job with a watched gate: combines the reports of its processes on the ledger page into the
//! events that the turns need.

use std::time::Duration;

use sublet_abi::{GateState, GateWord, LedgerPage, SlotIndex};
use sublet_share::{JobId, LaunchGate, Pid, TurnEvent, WorkDone};

/// Time after the opening of its gate in which a job does not count as resting: threads that
/// stood at the gate have left it, and may not have launched yet.
const WAKES_WITHIN: Duration = Duration::from_millis(1);

/// Time after which a process that has not said that it follows its turns counts as one that never
/// will: it only looks at its cards, or could not start its gate keeper.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(1);

/// Time for which a number of processes at work counts, and once more as long: the turn of a job
/// whose gate is not closed.
const COUNTS_FOR: Duration = Duration::from_secs(1);

/// Shortest time over which mini-batches are measured.
const MEASURE_FOR: Duration = Duration::from_secs(1);

/// The combined report of all processes of a job that follow their turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Said {
    pub(super) is_at_work: bool,
    /// Number of processes at work.
    pub(super) n_at_work: u32,
    pub(super) is_at_gate: bool,
    /// One of them has not answered the last closing.
    pub(super) is_unanswered: bool,
    /// One process does not follow turns: it never reports.
    pub(super) has_old: bool,
    /// One process has not said yet whether it follows.
    pub(super) has_new: bool,
}

/// A process with a slot.
#[derive(Debug)]
struct Member {
    pid: Pid,
    slot: SlotIndex,
    since: Duration,
    /// It has said once that it follows its turns. That a program overwrites that later changes
    /// nothing: its gate holds.
    has_followed: bool,
    /// Units of work that it had done when they were last counted.
    n_units: u64,
}

/// A job's time for a mini-batch.
#[derive(Debug, Default)]
struct BatchTime {
    /// When the measuring began, and the units that the job had done by then.
    since: Option<(Duration, u64)>,
    time: Option<Duration>,
}

impl BatchTime {
    fn measure(&mut self, now: Duration, units: u64, units_a_batch: Option<u32>) {
        let (Some((began, before)), Some(a_batch)) = (self.since, units_a_batch) else {
            *self = BatchTime {
                since: Some((now, units)),
                time: None,
            };
            return;
        };
        let elapsed = now.saturating_sub(began);
        let more = units.saturating_sub(before);
        // Of a long one, until one was done.
        if elapsed >= MEASURE_FOR && more >= u64::from(a_batch) {
            let nanos = elapsed.as_nanos() * u128::from(a_batch) / u128::from(more);
            self.time = u64::try_from(nanos).ok().map(Duration::from_nanos);
            self.since = Some((now, units));
        }
    }
}

/// Number of a job's processes at work at once: the most that were seen in this turn and in the one
/// before. As a gate closes they drain one by one, and as it opens they begin one by one: both say
/// nothing of the next turn.
#[derive(Debug)]
struct AtWork {
    /// Zero where nothing was seen.
    most: u32,
    most_before: u32,
    since: Duration,
}

impl AtWork {
    /// Nobody has looked yet, and so many could be.
    fn unseen(now: Duration, n_processes: u32) -> AtWork {
        AtWork {
            most: 0,
            most_before: n_processes,
            since: now,
        }
    }

    /// Another turn begins, or a piece of a long one.
    fn begin_turn(&mut self, now: Duration) {
        if self.most > 0 {
            *self = AtWork::unseen(now, self.most);
        }
    }

    fn see(&mut self, now: Duration, n_processes: u32) {
        if self.since + COUNTS_FOR <= now {
            self.begin_turn(now);
        }
        self.most = self.most.max(n_processes);
    }

    /// No more than so many are there.
    fn limit(&mut self, n_processes: u32) {
        self.most = self.most.min(n_processes);
        self.most_before = self.most_before.min(n_processes);
    }

    fn number(&self) -> u32 {
        self.most.max(self.most_before).max(1)
    }
}

/// A job, its gate, and its last state as far as the turns know.
#[derive(Debug)]
pub(super) struct Watched {
    gate: LaunchGate,
    /// The number of its last closing, as the pages have it.
    number: u32,
    /// The most that all its processes together may have queued.
    queue: Duration,
    at_work: AtWork,
    /// Number of its processes at work, as the turns were told.
    n_at_work: u32,
    members: Vec<Member>,
    /// One of them does not follow turns: it counts as resting and as having answered. Its gate
    /// stays open, because no one would know when to open it again.
    has_old: bool,
    has_new: bool,
    /// It worked for longer than its turns explain. So its gate closes as others do, whatever its
    /// processes say: if one has no keeper, that changes nothing for it.
    is_held: bool,
    /// Whether it wants its cards, as the turns were told since its gate opened or closed.
    told: Option<bool>,
    /// The turns were told that its last closing was answered.
    has_drained: bool,
    /// When its gate was opened, or closed.
    opened_at: Duration,
    /// It said nothing of work or waiting since, and that may be too early.
    may_rest: bool,
    /// Something happened to it since its processes were last heard.
    has_news: bool,
    n_units: u64,
    batch_time: BatchTime,
}

impl Watched {
    pub(super) fn new() -> Watched {
        Watched {
            gate: LaunchGate::Free,
            number: 0,
            queue: Duration::ZERO,
            at_work: AtWork::unseen(Duration::ZERO, 1),
            n_at_work: 1,
            members: Vec::new(),
            has_old: false,
            has_new: false,
            is_held: false,
            told: None,
            has_drained: false,
            opened_at: Duration::ZERO,
            may_rest: false,
            has_news: false,
            n_units: 0,
            batch_time: BatchTime::default(),
        }
    }

    /// A process has its slot.
    pub(super) fn add(&mut self, now: Duration, pid: Pid, slot: SlotIndex) {
        self.remove(pid);
        let since = now;
        self.members.push(Member {
            pid,
            slot,
            since,
            has_followed: false,
            n_units: 0,
        });
    }

    /// Removes a process that is gone: its last report does not count.
    pub(super) fn remove(&mut self, pid: Pid) {
        self.members.retain(|member| member.pid != pid);
        self.at_work.limit(self.n_members());
        self.has_news = true;
    }

    /// That process has news. False if it is none of its processes.
    pub(super) fn knock(&mut self, pid: Pid) -> bool {
        let is_member = self.members.iter().any(|member| member.pid == pid);
        self.has_news |= is_member;
        is_member
    }

    /// True if its processes may say something else than when they were last heard.
    pub(super) fn may_have_news(&self, now: Duration) -> bool {
        self.has_news || self.look_again_at().is_some_and(|at| at <= now)
    }

    fn n_members(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    /// Its gate was set; `number` is that of its last closing.
    pub(super) fn set(&mut self, now: Duration, gate: LaunchGate, number: u32) {
        match (self.gate, gate) {
            (LaunchGate::Free, _) => self.at_work = AtWork::unseen(now, self.n_members()),
            (LaunchGate::Closed(_), LaunchGate::Open | LaunchGate::Contended) => {
                self.at_work.begin_turn(now);
            }
            _ => {}
        }
        let was_open = matches!(self.gate, LaunchGate::Open | LaunchGate::Contended);
        let is_open = matches!(gate, LaunchGate::Open | LaunchGate::Contended);
        if !(was_open && is_open) {
            self.told = None;
            self.has_drained = false;
            self.may_rest = false;
            self.opened_at = now;
        }
        if gate == LaunchGate::Free {
            // Units are not counted there.
            self.batch_time = BatchTime::default();
        }
        self.gate = gate;
        self.number = number;
        self.has_news = true;
    }

    /// It worked for longer than its turns explain.
    pub(super) fn hold(&mut self) {
        self.is_held = true;
        self.has_news = true;
    }

    /// Sets the most that its processes may have queued together.
    pub(super) fn set_queue(&mut self, queue: Duration) {
        self.queue = queue;
    }

    /// Each process's part of that, in microseconds. At a free gate nobody knows which of them
    /// work.
    pub(super) fn queue_us(&self) -> u32 {
        let n_processes = match self.gate {
            LaunchGate::Free => self.n_members(),
            _ => self.at_work.number(),
        };
        let each = self.queue / n_processes.max(1);
        u32::try_from(each.as_micros()).unwrap_or(u32::MAX).max(1)
    }

    /// The word for its page.
    pub(super) fn word(&self) -> GateWord {
        let state = match self.gate {
            _ if self.has_old => GateState::Free,
            LaunchGate::Free => GateState::Free,
            LaunchGate::Open => GateState::Open,
            LaunchGate::Contended => GateState::Contended,
            LaunchGate::Closed(_) => GateState::Closed,
        };
        GateWord::new(state, self.number)
    }

    /// For how long its gate has been closed now.
    pub(super) fn closed_for(&self, now: Duration) -> Duration {
        match self.gate {
            LaunchGate::Closed(_) => now.saturating_sub(self.opened_at),
            _ => Duration::ZERO,
        }
    }

    /// Returns true if it needs no watching.
    pub(super) fn is_free(&self) -> bool {
        self.gate == LaunchGate::Free
    }

    /// Returns true if its gate is closed, and it has not answered, or wants to go on, or it is
    /// not known yet whether it ever will say so.
    pub(super) fn is_pending(&self) -> bool {
        let is_awaited = !self.has_drained || self.told == Some(true) || self.has_new;
        matches!(self.gate, LaunchGate::Closed(_)) && is_awaited
    }

    /// The number of its last closing, as the pages have it.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// When it must be looked at again, because it may still turn out to rest.
    pub(super) fn look_again_at(&self) -> Option<Duration> {
        self.may_rest.then(|| self.opened_at + WAKES_WITHIN)
    }

    /// Reads the reports of its processes. Each of them may knock again.
    pub(super) fn read(&mut self, now: Duration, ledger: &LedgerPage) -> Said {
        let mut all = Said::default();
        for member in &mut self.members {
            let report = ledger.slot(member.slot).turns();
            // Before it is read: what comes later is knocked for again.
            report.hear();
            member.has_followed |= report.follows();
            if !(member.has_followed || self.is_held) {
                let is_old = member.since + FOLLOWS_WITHIN <= now;
                all.has_old |= is_old;
                all.has_new |= !is_old;
                continue;
            }
            all.is_at_work |= report.is_at_work();
            all.n_at_work += u32::from(report.is_at_work());
            all.is_at_gate |= report.is_at_gate();
            all.is_unanswered |= report.answered() != self.number;
        }
        all
    }

    /// Time for a mini-batch, by the last second or the last mini-batch; nothing if it is not
    /// known.
    pub(super) fn batch_time(&self) -> Option<Duration> {
        self.batch_time.time
    }

    /// Work done by the job, also in processes that are gone. Each process does its part of a
    /// mini-batch.
    pub(super) fn count_work(&mut self, now: Duration, ledger: &LedgerPage) -> WorkDone {
        let mut units_a_batch: Option<u32> = None;
        for member in &mut self.members {
            let report = ledger.slot(member.slot).turns();
            if let Some(units) = report.units_a_batch() {
                units_a_batch = Some(units_a_batch.unwrap_or(0).saturating_add(units));
            }
            let n_units = report.n_units();
            let more = n_units.saturating_sub(member.n_units);
            member.n_units = n_units;
            self.n_units = self.n_units.saturating_add(more);
        }
        self.batch_time.measure(now, self.n_units, units_a_batch);
        WorkDone {
            units: self.n_units,
            units_a_batch: units_a_batch.unwrap_or(1),
        }
    }

    /// Adds the news to the turns. Returns true if its page needs another word.
    pub(super) fn hear(
        &mut self,
        now: Duration,
        job: JobId,
        mut said: Said,
        out: &mut Vec<TurnEvent>,
    ) -> bool {
        let is_news = self.has_old != said.has_old;
        self.has_news = false;
        self.has_old = said.has_old;
        self.has_new = said.has_new;
        if self.has_old {
            said = Said::default();
        }
        if said.n_at_work > 0 {
            self.at_work.see(now, said.n_at_work);
            let n_processes = self.at_work.number();
            if self.n_at_work != n_processes {
                self.n_at_work = n_processes;
                out.push(TurnEvent::AtWork { job, n_processes });
            }
        }
        self.tell(now, job, said, out);
        is_news
    }

    fn tell(&mut self, now: Duration, job: JobId, said: Said, out: &mut Vec<TurnEvent>) {
        let wants = match self.gate {
            LaunchGate::Free => return,
            LaunchGate::Open | LaunchGate::Contended => {
                let wants = said.is_at_work || said.is_at_gate;
                self.may_rest = !wants && now < self.opened_at + WAKES_WITHIN;
                if self.may_rest {
                    return;
                }
                wants
            }
            LaunchGate::Closed(turn) => {
                if !self.has_drained && !said.is_unanswered && !said.is_at_work {
                    self.has_drained = true;
                    self.told = Some(said.is_at_gate);
                    let wants = said.is_at_gate;
                    out.push(TurnEvent::Drained { job, turn, wants });
                    // One that has just got its cards was never open, and has nothing to answer.
                    if wants {
                        out.push(TurnEvent::Wants(job));
                    }
                    return;
                }
                // While it closes, who works is expected to; who stands at the gate is news.
                said.is_at_gate
            }
        };
        let is_closing = matches!(self.gate, LaunchGate::Closed(_));
        // That nobody stands at a gate that was just closed is no news.
        let is_news = self.told.map_or(wants || !is_closing, |told| told != wants);
        self.told = Some(wants);
        if is_news {
            out.push(if wants {
                TurnEvent::Wants(job)
            } else {
                TurnEvent::Rests(job)
            });
        }
    }
}

#[cfg(test)]
mod tests;
