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

/// Shortest time over which mini-batches are measured.
const MEASURE_FOR: Duration = Duration::from_secs(1);

/// The combined report of all processes of a job that follow their turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Said {
    pub(super) is_at_work: bool,
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

/// A job, its gate, and its last state as far as the turns know.
#[derive(Debug)]
pub(super) struct Watched {
    gate: LaunchGate,
    /// The number of its last closing, as the pages have it.
    number: u32,
    members: Vec<Member>,
    /// One of them does not follow turns: it counts as resting and as having answered. Its gate
    /// stays open, because no one would know when to open it again.
    has_old: bool,
    has_new: bool,
    /// Whether it wants its cards, as the turns were told since its gate opened or closed.
    told: Option<bool>,
    /// The turns were told that its last closing was answered.
    has_drained: bool,
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
            members: Vec::new(),
            has_old: false,
            has_new: false,
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
            n_units: 0,
        });
    }

    /// Removes a process that is gone: its last report does not count.
    pub(super) fn remove(&mut self, pid: Pid) {
        self.members.retain(|member| member.pid != pid);
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

    /// Its gate was set; `number` is that of its last closing.
    pub(super) fn set(&mut self, now: Duration, gate: LaunchGate, number: u32) {
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
    pub(super) fn read(&self, now: Duration, ledger: &LedgerPage) -> Said {
        let mut all = Said::default();
        for member in &self.members {
            let report = ledger.slot(member.slot).turns();
            // Before it is read: what comes later is knocked for again.
            report.hear();
            if !report.follows() {
                let is_old = member.since + FOLLOWS_WITHIN <= now;
                all.has_old |= is_old;
                all.has_new |= !is_old;
                continue;
            }
            all.is_at_work |= report.is_at_work();
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
mod tests {
    use super::*;

    const JOB: JobId = JobId(3);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// `w`orks, stands at the `g`ate, has not `a`nswered.
    fn said(text: &str) -> Said {
        Said {
            is_at_work: text.contains('w'),
            is_at_gate: text.contains('g'),
            is_unanswered: text.contains('a'),
            has_old: text.contains('o'),
            has_new: false,
        }
    }

    fn word(event: &TurnEvent) -> &'static str {
        match event {
            TurnEvent::Wants(_) => "wants",
            TurnEvent::Rests(_) => "rests",
            TurnEvent::Drained { wants: true, .. } => "drained and wants",
            TurnEvent::Drained { .. } => "drained",
            _ => "?",
        }
    }

    #[test]
    fn what_processes_say_is_told_once_and_by_what_the_gate_is() {
        use LaunchGate::{Closed, Contended, Free, Open};
        for (gate, all_said, expected) in [
            (Free, &["w", ""][..], &[][..]),
            (Open, &["w", "w", "g", "", ""], &["wants", "rests"]),
            (Contended, &["", "w"], &["rests", "wants"]),
            // Who still works is not news; who comes to the gate is, and who leaves it.
            (
                Closed(1),
                &["wa", "wga", "wa", "wga"],
                &["wants", "rests", "wants"],
            ),
            // An answer while something works is none.
            (Closed(1), &["wa", "w", "", "g"], &["drained", "wants"]),
            (
                Closed(1),
                &["wga", "g", "g"],
                &["wants", "drained and wants", "wants"],
            ),
            (Closed(1), &["", ""], &["drained"]),
            // Who does not follow rests, and has answered.
            (Contended, &["w", "wo"], &["wants", "rests"]),
            (Closed(1), &["wga", "wgao"], &["wants", "drained"]),
        ] {
            let mut watched = Watched::new();
            watched.set(ms(0), gate, 1);
            let mut out = Vec::new();
            for text in all_said {
                watched.hear(ms(5), JOB, said(text), &mut out);
            }
            let told: Vec<_> = out.iter().map(word).collect();
            assert_eq!(told, expected, "{gate:?}: {all_said:?}");
        }
    }

    #[test]
    fn a_mini_batch_is_timed_by_its_units() {
        for (looks, expected) in [
            // Ten units a second, five a mini-batch.
            (&[(0, 0, 5), (1000, 10, 5)][..], Some(500)),
            (&[(0, 0, 5), (500, 5, 5)], None),
            // One that takes long.
            (&[(0, 0, 5), (1000, 2, 5), (2000, 4, 5)], None),
            (&[(0, 0, 5), (1000, 2, 5), (2500, 5, 5)], Some(2500)),
            // It stands until there is another one, or the program repeats itself no more.
            (&[(0, 0, 5), (1000, 10, 5), (1500, 10, 5)], Some(500)),
            (&[(0, 0, 5), (1000, 10, 5), (1500, 20, 0)], None),
        ] {
            let mut time = BatchTime::default();
            for (at, units, a_batch) in looks {
                let a_batch = Some(*a_batch).filter(|units| *units > 0);
                time.measure(ms(*at), *units, a_batch);
            }
            assert_eq!(time.time, expected.map(ms), "{looks:?}");
        }
    }

    #[test]
    fn only_who_may_have_news_is_read_again() {
        let (mut watched, mut out) = (Watched::new(), Vec::new());
        watched.add(ms(0), Pid(7), SlotIndex::new(1).unwrap());
        assert!(watched.may_have_news(ms(0)), "it came");
        for (what, is_news) in [
            ("nothing", false),
            ("a knock", true),
            ("a knock of another one", false),
            ("a gate", true),
            ("an end", true),
        ] {
            watched.hear(ms(5), JOB, said("w"), &mut out);
            match what {
                "a knock" => assert!(watched.knock(Pid(7))),
                "a knock of another one" => assert!(!watched.knock(Pid(8))),
                "a gate" => watched.set(ms(5), LaunchGate::Open, 1),
                "an end" => watched.remove(Pid(7)),
                _ => {}
            }
            assert_eq!(watched.may_have_news(ms(5)), is_news, "{what}");
        }
        // Who may yet launch is read again in time.
        watched.set(ms(6), LaunchGate::Closed(1), 1);
        watched.set(ms(6), LaunchGate::Contended, 1);
        watched.hear(ms(6), JOB, said(""), &mut out);
        let due = [6, 7].map(|at| watched.may_have_news(ms(at)));
        assert_eq!(due, [false, true]);
    }

    #[test]
    fn the_gate_of_one_who_does_not_follow_stays_open() {
        let mut watched = Watched::new();
        watched.set(ms(0), LaunchGate::Closed(1), 7);
        assert_eq!(watched.word(), GateWord::new(GateState::Closed, 7));
        for (text, is_news, state) in [
            ("a", false, GateState::Closed),
            ("ao", true, GateState::Free),
            ("ao", false, GateState::Free),
            ("a", true, GateState::Closed),
        ] {
            let was_news = watched.hear(ms(5), JOB, said(text), &mut Vec::new());
            assert_eq!((was_news, watched.word().state()), (is_news, state));
        }
    }

    #[test]
    fn who_was_just_let_go_is_given_time_to_launch() {
        let mut watched = Watched::new();
        let mut out = Vec::new();
        watched.set(ms(0), LaunchGate::Closed(1), 1);
        watched.set(ms(10), LaunchGate::Contended, 1);
        watched.hear(ms(10), JOB, said(""), &mut out);
        assert_eq!((&out[..], watched.look_again_at()), (&[][..], Some(ms(11))));
        watched.hear(ms(11), JOB, said(""), &mut out);
        assert_eq!(out, [TurnEvent::Rests(JOB)]);
        assert_eq!(watched.look_again_at(), None);
        // Another word of the same open gate changes nothing.
        watched.set(ms(12), LaunchGate::Open, 1);
        watched.hear(ms(12), JOB, said("w"), &mut out);
        assert_eq!(out.last(), Some(&TurnEvent::Wants(JOB)));
    }
}
