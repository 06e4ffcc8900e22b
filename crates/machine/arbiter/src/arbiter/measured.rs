//! Use of each card per job, as the driver measures it: for people, for the record of the last
//! hour, and against jobs that claim to rest and do not.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sublet_model::{Bytes, MiB, Milli, Time};
use sublet_share::{
    BusyReading, Event, JobId, OveruseWatch, RECORD_EVERY_MS, TurnEvent, TurnRules, UsePoint,
    UseRecord,
};
use tracing::warn;

use super::lifetime::TICK_MS;
use super::{Arbiter, now_ms};
use crate::admin::{Reply, UseHistory};
use crate::gpu::CardBusy;
use crate::rows::mib;

/// A job's compute time on one card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ComputeUse {
    /// Share of the card's time used lately, in percent; nothing if it is not measured: the job
    /// is alone, and the driver does not say.
    pub(super) used_percent: Option<f64>,
    /// For how much of the last window it wanted the card and had no turn, in percent.
    pub(super) waited_percent: f64,
    /// It waits because it is at its limit.
    pub(super) is_at_limit: bool,
    /// The card's time used since it came; nothing if it is not measured now.
    pub(super) used_in_all: Option<Duration>,
    /// The time since it came in which it wanted the card and had no turn.
    pub(super) waited_in_all: Duration,
    /// Part of the waiting time spent at its limit.
    pub(super) throttled_in_all: Duration,
}

/// So many readings may still be of the time before a job's turns were watched: the driver's
/// figures are late.
const FIRST_READINGS: u32 = 2;

/// Both figures of a job's use may differ by that, in thousandths of the time: the driver is read
/// some milliseconds before the turns are.
const APART_FROM: u32 = 20;

/// Readings in a row that show one figure to be wrong.
const IN_A_ROW: u8 = 2;

/// The choice between two figures of a job's use: of its turns, which are of the last second, and
/// of the driver, which are late and in whole percent. People see that of the turns, unless the
/// driver contradicts it.
#[derive(Debug, Clone, Copy, Default)]
struct Shown {
    /// By its turns, before the last two readings and the one to come, in thousandths of the time.
    had: [u32; 2],
    n_apart: u8,
}

impl Shown {
    fn note(&mut self, measured: u32, n_processes: u32, had: u32) {
        let [first, second] = self.had;
        self.had = [second, had];
        let (low, high) = (had.min(first).min(second), had.max(first).max(second));
        let slack = n_processes.saturating_mul(BusyReading::ROUNDING) + APART_FROM;
        // A driver that knows nothing of a job does not contradict it.
        let is_less = measured > 0 && measured + slack < low;
        self.n_apart = match measured > high + slack || is_less {
            true => self.n_apart.saturating_add(1),
            false => 0,
        };
    }

    fn is_of_driver(self) -> bool {
        self.n_apart >= IN_A_ROW
    }
}

/// The driver's figure of a job on one card.
#[derive(Debug, Clone, Copy, Default)]
struct JobBusy {
    /// The sum of its processes, in thousandths of the time.
    sum: u32,
    n_processes: u32,
}

/// A job on one card.
#[derive(Debug, Default)]
struct Measured {
    /// By the driver's last figure.
    busy: Option<Milli>,
    shown: Shown,
    overuse: OveruseWatch,
    /// Readings since its turns began to be watched.
    n_watched: u32,
    /// Time that it had worked in its turns, and that it had of the card, at the last comparison.
    worked: Duration,
    had: Duration,
    /// Time of the card used beyond its turns, since it came.
    beyond: Duration,
    /// Since the last point of the record.
    sum: Duration,
    of: Duration,
    had_at_point: Duration,
}

/// All jobs on all cards.
#[derive(Debug, Default)]
pub(super) struct Measures {
    by_card: BTreeMap<(JobId, usize), Measured>,
    record: UseRecord,
    read_at: Option<Instant>,
    point_at: Option<Instant>,
    awake_at: Option<Instant>,
    /// Time that the arbiter slept through, since the driver's last figures.
    slept: Duration,
}

impl Measures {
    /// A job is gone; its record stays.
    pub(super) fn forget(&mut self, job: JobId) {
        self.by_card.retain(|(known, _), _| *known != job);
    }

    /// The arbiter is awake, as it should be once in a tick.
    pub(super) fn awake(&mut self, now: Instant) {
        let tick = Duration::from_millis(TICK_MS);
        let since = self.awake_at.replace(now).map(|before| now - before);
        let late = since.map_or(Duration::ZERO, |since| since.saturating_sub(tick));
        if late > TurnRules::OVERSLEPT {
            self.slept += late;
        }
    }
}

impl Arbiter {
    /// The driver has said how busy processes keep the cards; nothing of a card that does not say.
    pub(super) fn take_busy(&mut self, cards: &[Option<CardBusy>]) {
        let now = Instant::now();
        self.measures.awake(now);
        let slept = std::mem::take(&mut self.measures.slept);
        let before = self.measures.read_at.replace(now);
        let span = before.map(|before| now - before);
        let mut busy: BTreeMap<(JobId, usize), JobBusy> = BTreeMap::new();
        for (card, processes) in cards.iter().enumerate() {
            for (pid, part) in processes.iter().flatten() {
                if let Some((job, _)) = self.machine.process(*pid) {
                    let busy = busy.entry((job, card)).or_default();
                    busy.sum += u32::from(part.get());
                    busy.n_processes += u32::from(part.get() > 0);
                }
            }
        }
        for (job, card) in self.held_cards() {
            if !matches!(cards.get(card), Some(Some(_))) {
                continue;
            }
            let busy = busy.get(&(job, card)).copied().unwrap_or_default();
            let thousandths = busy.sum.min(1000);
            let part = u16::try_from(thousandths).ok().and_then(Milli::new);
            let measured = self.measures.by_card.entry((job, card)).or_default();
            measured.busy = part;
            if let Some(span) = span {
                measured.sum += span * thousandths / 1000;
                measured.of += span;
                self.compare((job, card), span, slept, busy);
            }
        }
    }

    /// Each job with each of its cards.
    fn held_cards(&self) -> Vec<(JobId, usize)> {
        let jobs = self.machine.jobs();
        let held = jobs.flat_map(|job| job.parts.into_iter().map(move |part| (job.id, part.card)));
        held.collect()
    }

    /// Compares the driver's measurement with the time that a job's turns explain.
    fn compare(
        &mut self,
        (job, card): (JobId, usize),
        span: Duration,
        slept: Duration,
        busy: JobBusy,
    ) {
        let view = self.turns.view(job, card);
        let (worked, had) = view.map_or_else(Default::default, |view| (view.worked, view.had));
        let is_watched = self.turns.is_watched(job);
        let closed_for = self.turns.closed_for(job);
        let Some(own) = self.measures.by_card.get_mut(&(job, card)) else {
            return;
        };
        let reading = BusyReading {
            span,
            slept,
            measured: span * busy.sum / 1000,
            n_processes: busy.n_processes,
            worked: worked.saturating_sub(own.worked),
            had: had.saturating_sub(own.had),
            closed_for,
        };
        (own.worked, own.had) = (worked, had);
        if !is_watched {
            // It is alone there and has no limit: its turns explain whatever it does.
            (own.overuse, own.shown, own.n_watched) = Default::default();
        } else {
            own.n_watched = own.n_watched.saturating_add(1);
            if slept.is_zero() {
                let had = u32::from(part_of(reading.had, span).get());
                own.shown.note(busy.sum.min(1000), busy.n_processes, had);
            }
        }
        if own.n_watched <= FIRST_READINGS {
            own.beyond += reading.measured.min(span).saturating_sub(reading.had);
            return;
        }
        let found = own.overuse.note(reading);
        own.beyond += found.beyond;
        if found.is_news {
            self.counters.overused += 1;
            let seen = own.overuse.contradiction();
            warn!(%job, card, ?seen, "a job works on a card for longer than its turns explain");
        }
        if found.is_out_of_turn {
            warn!(%job, card, "a job works on a card without a turn, and cannot be made to pay");
        }
        let is_out_of_turn = own.overuse.is_out_of_turn();
        if !found.charge.is_zero() {
            let by = found.charge;
            self.turns.tell(TurnEvent::Overused { job, card, by });
        }
        if is_out_of_turn {
            self.apply(Event::OutOfTurn(job));
        }
    }

    /// Compares a job's use as the driver sees it, in percent of a card's time, with its
    /// turns. Returns both if they contradict each other.
    pub(super) fn overuse(&self, job: JobId, card: usize) -> Option<(u32, u32)> {
        let measured = self.measures.by_card.get(&(job, card))?;
        measured.overuse.contradiction()
    }

    /// True if a job works on a card for long while it has no turn.
    pub(super) fn is_out_of_turn(&self, job: JobId, card: usize) -> bool {
        let measured = self.measures.by_card.get(&(job, card));
        measured.is_some_and(|measured| measured.overuse.is_out_of_turn())
    }

    /// A job's compute time on a card.
    pub(super) fn compute_use(&self, job: JobId, card: usize) -> ComputeUse {
        let view = self.turns.view(job, card);
        let measured = self.measures.by_card.get(&(job, card));
        let busy = measured.and_then(|measured| measured.busy);
        let beyond = measured.map_or(Duration::ZERO, |measured| measured.beyond);
        let is_watched = self.turns.is_watched(job);
        let percent = |part: Duration| f64::from(part_of(part, self.turns.window()).get()) / 10.0;
        let had = view.map_or(Duration::ZERO, |view| view.had);
        let is_of_driver = measured.is_some_and(|measured| {
            measured.shown.is_of_driver() || measured.overuse.contradiction().is_some()
        });
        ComputeUse {
            used_percent: match is_watched && !is_of_driver {
                true => view.map(|view| percent(view.used)),
                false => busy.map(|busy| f64::from(busy.get()) / 10.0),
            },
            // A job that runs beside others under MPS waits for no turn.
            waited_percent: view.map_or(0.0, |view| percent(view.waited)),
            is_at_limit: view.is_some_and(|view| view.is_at_limit),
            used_in_all: (is_watched || busy.is_some()).then(|| had + beyond),
            waited_in_all: view.map_or(Duration::ZERO, |view| view.waited_in_all),
            throttled_in_all: view.map_or(Duration::ZERO, |view| view.throttled_in_all),
        }
    }

    /// Share of a card's time that all jobs together used lately, in percent; nothing if it is
    /// not measured.
    pub(super) fn compute_used_on(&self, card: usize) -> Option<f64> {
        let jobs = self.machine.jobs();
        let uses = jobs.filter_map(|job| self.compute_use(job.id, card).used_percent);
        let sum = uses.reduce(|sum, used| sum + used)?;
        Some(sum.min(100.0))
    }

    /// A job's use over the last hour.
    pub(super) fn history(&self, job: JobId) -> Reply {
        let gpus = self.machine.inventory().gpus();
        let per_gpu = self
            .measures
            .record
            .of(job)
            .map(|(card, at, points)| UseHistory {
                index: gpus[card].index.0,
                ago_ms: now_ms().saturating_sub(at.ms()),
                memory_mib: points.iter().map(|point| point.memory.get()).collect(),
                compute_percent: points
                    .iter()
                    .map(|point| u64::from(point.compute.get() + 5) / 10)
                    .collect(),
            });
        Reply::History {
            every_ms: RECORD_EVERY_MS,
            per_gpu: per_gpu.collect(),
        }
    }

    /// Writes points into the record, when they are due.
    pub(super) fn keep_record(&mut self, now: u64) {
        let now = Time::from_ms(now);
        if !self.measures.record.take_due(now) {
            return;
        }
        let at = Instant::now();
        let since = self.measures.point_at.replace(at).map(|before| at - before);
        for (job, card) in self.held_cards() {
            let memory = MiB::new(self.memory_of(job, card)).unwrap_or(MiB::MAX);
            let view = self.turns.view(job, card);
            let had = view.map_or(Duration::ZERO, |view| view.had);
            let measured = self.measures.by_card.entry((job, card)).or_default();
            // The driver's figure where there is one; else what its turns were.
            let of_turns = had.saturating_sub(measured.had_at_point);
            let (used, of) = match measured.of.is_zero() {
                true => (of_turns, since.unwrap_or_default()),
                false => (measured.sum, measured.of),
            };
            (measured.sum, measured.of) = Default::default();
            measured.had_at_point = had;
            let compute = part_of(used, of);
            self.measures
                .record
                .add(now, job, card, UsePoint { memory, compute });
        }
    }

    /// A job's use of a card's memory, in MiB.
    fn memory_of(&self, job: JobId, card: usize) -> u64 {
        let pages = self.jobs.pages(job);
        let total = pages.and_then(|pages| {
            let mut totals = pages.totals();
            totals.find(|(own, _)| *own == card).map(|(_, total)| total)
        });
        mib(total.unwrap_or(Bytes::new(0)))
    }
}

/// The part in thousandths.
fn part_of(used: Duration, of: Duration) -> Milli {
    let thousandths = used.as_nanos() * 1000 / of.as_nanos().max(1);
    let thousandths = u16::try_from(thousandths).unwrap_or(u16::MAX);
    Milli::new(thousandths).unwrap_or(Milli::WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_see_the_driver_s_figure_where_it_contradicts_the_turns() {
        for (readings, n_processes, expected) in [
            // As good as the same; of a job that begins, late; of one that changes.
            (&[(520, 500), (530, 500), (490, 500)][..], 1, "ttt"),
            (&[(0, 900), (600, 900), (900, 900)], 1, "ttt"),
            (&[(900, 100), (500, 900), (100, 500), (900, 100)], 1, "tttt"),
            // It works and says that it rests, or it had more of overlaps than was thought.
            (&[(140, 0), (140, 0), (140, 20), (0, 0)], 1, "tddt"),
            (&[(660, 250), (660, 250)], 8, "td"),
            // It rests in its turns.
            (&[(100, 500), (100, 500), (100, 500), (100, 500)], 1, "tttd"),
            // Rounding of many processes, and a driver that says nothing of any.
            (&[(80, 0), (80, 0), (80, 0)], 16, "ttt"),
            (&[(0, 500), (0, 500), (0, 500), (0, 500)], 0, "tttt"),
        ] {
            let mut shown = Shown::default();
            let each = readings.iter().map(|(measured, had)| {
                shown.note(*measured, n_processes, *had);
                match shown.is_of_driver() {
                    true => 'd',
                    false => 't',
                }
            });
            assert_eq!(each.collect::<String>(), expected, "{readings:?}");
        }
    }

    #[test]
    fn only_an_arbiter_that_comes_much_too_late_has_slept() {
        let mut measures = Measures::default();
        let (began, ms) = (Instant::now(), Duration::from_millis);
        for (at, slept) in [
            (0, 0),
            (200, 0),
            (600, 0),
            (1100, 300),
            (1300, 300),
            (6500, 5300),
        ] {
            measures.awake(began + ms(at));
            assert_eq!(measures.slept, ms(slept), "at {at} ms");
        }
    }

    #[test]
    fn a_part_of_the_time_is_never_more_than_all_of_it() {
        for (used_ms, of_ms, expected) in [
            (0, 0, 0),
            (250, 1000, 250),
            (1100, 1000, 1000),
            (u64::MAX / 1000, 1, 1000),
        ] {
            let part = part_of(Duration::from_millis(used_ms), Duration::from_millis(of_ms));
            assert_eq!(part.get(), expected);
        }
    }
}
