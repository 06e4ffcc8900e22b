//! Opportunistic jobs use the time that guaranteed ones leave, as long as these get on as fast
//! as without them. (The local coordinator of AntMan, OSDI'20; the signal is the guaranteed
//! job's progress, not its launches: TGS, NSDI'23, counts blocks, and a job of few large ones
//! looks slow to it.)
//!
//! A guaranteed job's *cost* is the time that it wanted its card for one unit of its work: a
//! mini-batch, a request. The cost without opportunistic work is learned whenever there is
//! hardly any on its cards. When the job gets less done in the time by that, or when the cost is
//! much higher, the *duty* of its opportunistic neighbours, their greatest part of the time, is
//! halved, or falls to what last did none if that is less; otherwise it is four times as much, or
//! grows by a quarter where more did harm (as a sender looks for the speed of a network: RFC 5681).
//! With nothing to compare with, it falls to the least at
//! once, as for a new neighbour, so that the cost is learned soon. The duty never falls below
//! [`TurnRules::least`](super::TurnRules::least): there the cost is learned anew, so a job that
//! has become slower by itself holds no neighbour down for long. While the guaranteed jobs want
//! nothing for a while, no duty counts.
//!
//! # Requests
//! A job that waits for requests meets what is left of a neighbour's work at each of them. That
//! makes an answer later, by one drain, and takes nothing from its progress: it would have waited
//! for the next request meanwhile. A mini-batch that is longer by the same time is progress lost.
//! The two are told apart by the job's [pauses](Rests). A loop pauses for about the same time
//! after each mini-batch, whatever its length. Requests come when they come: either pauses
//! differ from each other, or they shrink by as much as the answers take longer.
//!
//! If the units of a job are not known, its time at the gate counts, as long as no guaranteed
//! neighbour can be the reason for it.

use std::collections::BTreeMap;
use std::time::Duration;

use sublet_model::{Class, Milli};

use super::group::Group;
use super::held_job::Job;
use crate::job::JobId;

/// Units that a verdict rests on: fewer say too little.
const UNITS: u64 = 32;

/// Units from which the cost without opportunistic work is learned.
const UNITS_ALONE: u64 = 16;

/// And the mini-batches that it rests on, if it is known how many units one has.
const BATCHES: u64 = 4;

/// Or the longest time for these units.
const LONGEST: Duration = Duration::from_secs(5);

/// Without units: the time over which the time at the gate is taken.
const GATE_TIME: Duration = Duration::from_secs(1);

/// Loss of work in the time, in thousandths, that counts as harm, beside the uncertainty from the
/// number of units.
const HARM: u64 = 30;

/// And growth of the time for one unit, in thousandths, even if the job idles between two: a
/// server that has little to do must answer soon.
const SLOWER: u64 = 250;

/// Opportunistic work of less than this, in thousandths of the time, is hardly any.
const HARDLY_ANY: u32 = 20;

/// A step up is that at least, in thousandths of the time.
const STEP: u16 = 50;

/// Time by which a request may be answered later: what may be left of a neighbour's work when
/// its gate closes (2 ms where somebody has requests), and the kernel that was launched last.
const DRAIN: Duration = Duration::from_millis(3);

/// A shorter pause is part of the work: of a program that waits for each of its kernels.
const PAUSE: Duration = Duration::from_millis(2);

/// Fewer pauses say nothing of their kind.
const PAUSES: u32 = 4;

/// A job that has wanted nothing for that long is idle: longer than a mini-batch's pause as a
/// rule, and short enough that others have its time within two seconds.
const IDLE: Duration = Duration::from_secs(1);

/// A job's work up to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkDone {
    /// In units of its own: mini-batches, requests, or parts of them.
    pub units: u64,
    /// Number of these in a mini-batch; 1 if it is not known. Its units need not be alike, so
    /// only whole mini-batches compare.
    pub units_a_batch: u32,
}

impl Default for WorkDone {
    fn default() -> WorkDone {
        WorkDone {
            units: 0,
            units_a_batch: 1,
        }
    }
}

/// A job's pauses: the times from its last work to its next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Rests {
    since: Option<Duration>,
    last: Duration,
    n: u32,
    /// Those that were about as long as the one before.
    n_alike: u32,
    time: Duration,
}

impl Rests {
    fn begin(&mut self, now: Duration) {
        self.since.get_or_insert(now);
    }

    fn end(&mut self, now: Duration) {
        let since = self.since.take();
        let Some(time) = since.map(|since| now.saturating_sub(since)) else {
            return;
        };
        if time < PAUSE {
            return;
        }
        // Of two times to the next of events that come by chance, the longer is within half as much
        // again as the shorter in one of five cases.
        let (shorter, longer) = (time.min(self.last), time.max(self.last));
        self.n_alike = self
            .n_alike
            .wrapping_add(u32::from(longer * 2 <= shorter * 3));
        self.n = self.n.wrapping_add(1);
        self.time += time;
        self.last = time;
    }

    /// Those since another moment.
    fn since(&self, before: &Rests) -> Rests {
        Rests {
            n: self.n.wrapping_sub(before.n),
            n_alike: self.n_alike.wrapping_sub(before.n_alike),
            time: self.time.saturating_sub(before.time),
            ..*self
        }
    }

    fn mean(&self) -> Option<Duration> {
        self.time.checked_div(self.n)
    }

    /// Whether the job waits for requests, and not for the end of its own work elsewhere. It has
    /// `lost` this time, by its cost, and `alone` is its mean pause without opportunistic work.
    fn are_for_requests(&self, lost: Duration, alone: Option<Duration>) -> bool {
        if self.n < PAUSES {
            return false;
        }
        if self.n_alike * 2 <= self.n {
            return true;
        }
        let (Some(now), Some(alone)) = (self.mean(), alone) else {
            return false;
        };
        let each = lost / self.n;
        // They shrink by it; or they grow by far more: there is less to do.
        now + each / 2 <= alone || now >= alone + each * 2
    }
}

/// Known progress of a guaranteed job.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    /// When the verdict to come began to be measured.
    mark: Option<Mark>,
    /// Without opportunistic work.
    alone: Option<Alone>,
    rests: Rests,
    /// The time that it had wanted its cards when it was last looked at, and when that last changed.
    seen: Option<(Duration, Duration)>,
}

/// A job's work without opportunistic neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Alone {
    /// Time for a unit.
    cost: Duration,
    /// Length of a pause; nothing if it makes none.
    rest: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    at: Duration,
    done: WorkDone,
    worked: Duration,
    waited: Duration,
    /// Time of its cards that opportunistic jobs had.
    others: Duration,
    rests: Rests,
}

/// A guaranteed job's progress beside opportunistic ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Nothing can be said yet.
    Open,
    /// As fast as without them, or it does not want its cards.
    Well,
    Harmed,
    /// It works, and nobody knows how fast it is without them.
    Unknown,
}

/// A look at a guaranteed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Look {
    verdict: Verdict,
    /// It has wanted nothing for a while.
    is_idle: bool,
}

impl Pace {
    /// The job has nothing to do.
    pub(super) fn rests(&mut self, now: Duration) {
        self.rests.begin(now);
    }

    /// It has work again.
    pub(super) fn wakes(&mut self, now: Duration) {
        self.rests.end(now);
    }

    fn look(&mut self, now: Mark, is_only_guaranteed: bool) -> Look {
        let wanted = now.worked + now.waited;
        let (_, changed) = *self.seen.insert(match self.seen {
            Some((before, at)) if before == wanted => (before, at),
            _ => (wanted, now.at),
        });
        Look {
            verdict: self.judge(now, is_only_guaranteed),
            is_idle: changed + IDLE <= now.at,
        }
    }

    fn judge(&mut self, now: Mark, is_only_guaranteed: bool) -> Verdict {
        let Some(before) = self.mark else {
            self.mark = Some(now);
            return Verdict::Open;
        };
        let elapsed = now.at.saturating_sub(before.at);
        let units = now.done.units.saturating_sub(before.done.units);
        let batch = u64::from(now.done.units_a_batch);
        let others = now.others.saturating_sub(before.others);
        let is_alone = others <= elapsed * HARDLY_ANY / 1000;
        let knows_units = units > 0 || self.alone.is_some();
        let wait = if knows_units { LONGEST } else { GATE_TIME };
        let enough = if is_alone { UNITS_ALONE } else { UNITS };
        if units < enough.max(BATCHES * batch) && elapsed < wait {
            return Verdict::Open;
        }
        self.mark = Some(now);
        let worked = now.worked.saturating_sub(before.worked);
        let waited = match is_only_guaranteed {
            true => now.waited.saturating_sub(before.waited),
            false => Duration::ZERO,
        };
        let wanted = worked + waited;
        let rests = now.rests.since(&before.rests);
        let beyond_drains = |lost: Duration, rest_alone: Option<Duration>| match rests
            .are_for_requests(lost, rest_alone)
        {
            true => lost.saturating_sub(DRAIN * rests.n),
            false => lost,
        };
        let is_harmed = match (u32::try_from(units), self.alone) {
            _ if wanted.is_zero() => false,
            (Ok(0) | Err(_), _) => exceeds(beyond_drains(waited, None), wanted, HARM) && !is_alone,
            (Ok(units), _) if is_alone => {
                self.learn(wanted / units, rests.mean());
                false
            }
            (Ok(_), None) => return Verdict::Unknown,
            (Ok(n), Some(alone)) => {
                let lost = (wanted / n).saturating_sub(alone.cost) * n;
                let lost = beyond_drains(lost, alone.rest);
                // The last mini-batch was begun. Of very long ones the units must do.
                let doubt = match units < BATCHES * batch {
                    true => 1000 / units,
                    false => 1000 * batch / units,
                };
                exceeds(lost, elapsed, HARM + doubt)
                    || exceeds(lost / n, alone.cost, SLOWER + doubt)
            }
        };
        if is_harmed {
            Verdict::Harmed
        } else {
            Verdict::Well
        }
    }

    fn learn(&mut self, cost: Duration, rest: Option<Duration>) {
        let before = self.alone;
        let mean = |before: Option<Duration>, now| before.map_or(now, |before| (before + now) / 2);
        self.alone = Some(Alone {
            cost: mean(before.map(|alone| alone.cost), cost),
            rest: rest.map(|rest| mean(before.and_then(|alone| alone.rest), rest)),
        });
    }
}

/// Checks whether a part is more than `thousandths` of the whole.
fn exceeds(part: Duration, whole: Duration, thousandths: u64) -> bool {
    part.as_nanos() * 1000 > whole.as_nanos() * u128::from(thousandths)
}

impl Group {
    /// Checks the progress of the guaranteed jobs, and gives the opportunistic ones more or
    /// less. `done` is the work of jobs up to now, as far as it is known. Returns true if a
    /// job's duty has changed.
    pub(super) fn coordinate(&mut self, now: Duration, done: &BTreeMap<JobId, WorkDone>) -> bool {
        if self.jobs.values().all(|job| job.class == Class::Guaranteed) {
            return false;
        }
        self.pass_time(now);
        let mut is_changed = false;
        let ids: Vec<JobId> = self.jobs.keys().copied().collect();
        let mut looks = BTreeMap::new();
        for id in &ids {
            if self.jobs[id].class == Class::Guaranteed {
                let look = self.look(*id, done.get(id).copied().unwrap_or_default());
                looks.insert(*id, look);
            }
        }
        for id in ids {
            let beside = self
                .others_of(id)
                .filter_map(|(other, _)| looks.get(&other));
            let beside: Vec<Look> = beside.copied().collect();
            let verdicts: Vec<Verdict> = beside.iter().map(|look| look.verdict).collect();
            let are_idle = beside.iter().all(|look| look.is_idle);
            let least = self.least_duty();
            if let Some(job) = self.jobs.get_mut(&id)
                && job.class == Class::Opportunistic
            {
                job.duty = next_duty(job.duty, &verdicts, least);
                is_changed |= job.apply_duty(are_idle);
            }
        }
        is_changed
    }

    fn look(&mut self, id: JobId, done: WorkDone) -> Look {
        let others = self.others_of(id);
        let (opportunistic, guaranteed): (Vec<_>, Vec<_>) =
            others.partition(|(_, other)| other.class == Class::Opportunistic);
        let had = opportunistic.iter().flat_map(|(_, other)| &other.accounts);
        let others = had.map(|account| account.had).sum();
        let is_only_guaranteed = guaranteed.is_empty();
        let nobody_cares = Look {
            verdict: Verdict::Well,
            is_idle: false,
        };
        if opportunistic.is_empty() {
            return nobody_cares;
        }
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else {
            return nobody_cares;
        };
        let most = |of: fn(&super::account::Account) -> Duration| {
            job.accounts.iter().map(of).max().unwrap_or_default()
        };
        let mark = Mark {
            at: now,
            done,
            worked: most(|account| account.worked),
            waited: most(|account| account.kept_waiting),
            others,
            rests: job.pace.rests,
        };
        job.pace.look(mark, is_only_guaranteed)
    }

    /// Share that is always left to an opportunistic job.
    fn least_duty(&self) -> Milli {
        let nanos = self.rules.least.as_nanos() * 1000;
        let thousandths = nanos.div_ceil(self.rules.window.as_nanos().max(1));
        let thousandths = u16::try_from(thousandths).unwrap_or(u16::MAX);
        Milli::new(thousandths).unwrap_or(Milli::WHOLE)
    }
}

/// The greatest part of the time of an opportunistic job, beside guaranteed ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Duty {
    now: Milli,
    /// The last duty that did no harm.
    harmless: Milli,
    /// More did harm when it was last tried: from here on it rises by smaller steps.
    careful_from: Milli,
}

/// The duty of an opportunistic job, by the progress of each of its guaranteed neighbours;
/// nothing if it has none.
fn next_duty(duty: Option<Duty>, beside: &[Verdict], least: Milli) -> Option<Duty> {
    if beside.is_empty() {
        return None;
    }
    let Some(duty) = duty else {
        return Some(Duty {
            now: least,
            harmless: least,
            careful_from: Milli::WHOLE,
        });
    };
    let now = duty.now.get();
    let at_least = |value: u16| Milli::new(value).unwrap_or(Milli::WHOLE).max(least);
    let rises_to = |value: u16| Duty {
        now: at_least(value),
        harmless: duty.now,
        ..duty
    };
    Some(if beside.contains(&Verdict::Unknown) {
        Duty { now: least, ..duty }
    } else if beside.contains(&Verdict::Harmed) {
        let less = at_least((now / 2).min(duty.harmless.get()));
        Duty {
            now: less,
            harmless: less,
            careful_from: less,
        }
    } else if beside.contains(&Verdict::Open) {
        duty
    } else if duty.now < duty.careful_from {
        rises_to(now + (now * 3).max(STEP))
    } else {
        rises_to(now + (now / 4).max(STEP))
    })
}

impl Job {
    /// Lets the duty count on its cards, unless its guaranteed neighbours are idle. Returns true if
    /// that changes anything.
    fn apply_duty(&mut self, are_idle: bool) -> bool {
        let duty = self.duty.filter(|_| !are_idle);
        let duty = duty.map_or(Milli::WHOLE, |duty| duty.now);
        let mut is_changed = false;
        for account in &mut self.accounts {
            is_changed |= account.duty != duty;
            account.duty = duty;
        }
        is_changed
    }
}

#[cfg(test)]
mod tests;
