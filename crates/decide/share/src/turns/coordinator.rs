//! Opportunistic jobs use the time that guaranteed ones leave, as long as these get on as fast
//! as without them. (The local coordinator of AntMan, OSDI'20; the signal is the guaranteed
//! job's progress, not its launches: TGS, NSDI'23, counts blocks, and a job of few large ones
//! looks slow to it.)
//!
//! A guaranteed job's *cost* is the time that it wanted its card for one unit of its work: a
//! mini-batch, a request. The cost without opportunistic work is learned whenever there is
//! hardly any on its cards. When the job gets less done in the time by that, or when the cost is
//! much higher, the *duty* of its opportunistic neighbours, their greatest part of the time, is
//! halved; otherwise it grows by steps. A new neighbour begins with the least, so that there is
//! something to compare with. The duty never falls below
//! [`TurnRules::least`](super::TurnRules::least): there the cost is learned anew, so a job that
//! has become slower by itself holds no neighbour down for long.
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

/// A step up, in thousandths of the time.
const STEP: u16 = 50;

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

/// Known progress of a guaranteed job.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    /// When the verdict to come began to be measured.
    mark: Option<Mark>,
    /// Time for a unit, without opportunistic work.
    alone: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    at: Duration,
    done: WorkDone,
    worked: Duration,
    waited: Duration,
    /// Time of its cards that opportunistic jobs had.
    others: Duration,
}

/// A guaranteed job's progress beside opportunistic ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Nothing can be said yet.
    Open,
    /// As fast as without them, or it does not want its cards.
    Well,
    Harmed,
}

impl Pace {
    fn judge(&mut self, now: Mark, is_only_guaranteed: bool) -> Verdict {
        let Some(before) = self.mark else {
            self.mark = Some(now);
            return Verdict::Open;
        };
        let elapsed = now.at.saturating_sub(before.at);
        let units = now.done.units.saturating_sub(before.done.units);
        let batch = u64::from(now.done.units_a_batch);
        let knows_units = units > 0 || self.alone.is_some();
        let wait = if knows_units { LONGEST } else { GATE_TIME };
        if units < UNITS.max(BATCHES * batch) && elapsed < wait {
            return Verdict::Open;
        }
        self.mark = Some(now);
        let worked = now.worked.saturating_sub(before.worked);
        let waited = match is_only_guaranteed {
            true => now.waited.saturating_sub(before.waited),
            false => Duration::ZERO,
        };
        let wanted = worked + waited;
        let others = now.others.saturating_sub(before.others);
        let is_alone = others <= elapsed * HARDLY_ANY / 1000;
        let is_harmed = match (u32::try_from(units), self.alone) {
            _ if wanted.is_zero() => false,
            (Ok(0) | Err(_), _) => exceeds(waited, wanted, HARM) && !is_alone,
            (Ok(units), _) if is_alone => {
                self.learn(wanted / units);
                false
            }
            (Ok(_), None) => true,
            (Ok(n), Some(alone)) => {
                let more = (wanted / n).saturating_sub(alone);
                // The last mini-batch was begun. Of very long ones the units must do.
                let doubt = match units < BATCHES * batch {
                    true => 1000 / units,
                    false => 1000 * batch / units,
                };
                exceeds(more * n, elapsed, HARM + doubt) || exceeds(more, alone, SLOWER + doubt)
            }
        };
        if is_harmed {
            Verdict::Harmed
        } else {
            Verdict::Well
        }
    }

    fn learn(&mut self, cost: Duration) {
        self.alone = Some(self.alone.map_or(cost, |alone| (alone + cost) / 2));
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
        let mut verdicts = BTreeMap::new();
        for id in &ids {
            if self.jobs[id].class == Class::Guaranteed {
                verdicts.insert(
                    *id,
                    self.judge(*id, done.get(id).copied().unwrap_or_default()),
                );
            }
        }
        for id in ids {
            let beside = self
                .others_of(id)
                .filter_map(|(other, _)| verdicts.get(&other));
            let beside: Vec<Verdict> = beside.copied().collect();
            let least = self.least_duty();
            if let Some(job) = self.jobs.get_mut(&id)
                && job.class == Class::Opportunistic
            {
                let next = next_duty(job.duty, &beside, least);
                is_changed |= next != job.duty;
                job.set_duty(next);
            }
        }
        is_changed
    }

    fn judge(&mut self, id: JobId, done: WorkDone) -> Verdict {
        let others = self.others_of(id);
        let (opportunistic, guaranteed): (Vec<_>, Vec<_>) =
            others.partition(|(_, other)| other.class == Class::Opportunistic);
        let had = opportunistic.iter().flat_map(|(_, other)| &other.accounts);
        let others = had.map(|account| account.had).sum();
        let is_only_guaranteed = guaranteed.is_empty();
        if opportunistic.is_empty() {
            return Verdict::Well;
        }
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else {
            return Verdict::Open;
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
        };
        job.pace.judge(mark, is_only_guaranteed)
    }

    /// Share that is always left to an opportunistic job.
    fn least_duty(&self) -> Milli {
        let nanos = self.rules.least.as_nanos() * 1000;
        let thousandths = nanos.div_ceil(self.rules.window.as_nanos().max(1));
        let thousandths = u16::try_from(thousandths).unwrap_or(u16::MAX);
        Milli::new(thousandths).unwrap_or(Milli::WHOLE)
    }
}

/// The duty of an opportunistic job, by the progress of each of its guaranteed neighbours;
/// nothing if it has none.
fn next_duty(duty: Option<Milli>, beside: &[Verdict], least: Milli) -> Option<Milli> {
    if beside.is_empty() {
        return None;
    }
    let Some(duty) = duty else {
        return Some(least);
    };
    let next = if beside.contains(&Verdict::Harmed) {
        duty.get() / 2
    } else if beside.contains(&Verdict::Open) {
        duty.get()
    } else {
        duty.get() + STEP
    };
    Some(Milli::new(next).unwrap_or(Milli::WHOLE).max(least))
}

impl Job {
    fn set_duty(&mut self, duty: Option<Milli>) {
        self.duty = duty;
        for account in &mut self.accounts {
            account.duty = duty.unwrap_or(Milli::WHOLE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The verdicts on seconds of work: units done, time wanted, time that others had.
    fn verdicts(units_a_batch: u32, seconds: &[(u64, u64, u64)]) -> String {
        let mut pace = Pace::default();
        let mut mark = Mark {
            at: ms(0),
            done: WorkDone {
                units: 0,
                units_a_batch,
            },
            worked: ms(0),
            waited: ms(0),
            others: ms(0),
        };
        pace.judge(mark, true);
        let each = seconds.iter().map(|(units, wanted, others)| {
            mark.at += ms(1000);
            mark.done.units += units;
            mark.worked += ms(*wanted);
            mark.others += ms(*others);
            match pace.judge(mark, true) {
                Verdict::Open => '?',
                Verdict::Well => '+',
                Verdict::Harmed => '-',
            }
        });
        each.collect()
    }

    #[test]
    fn a_job_is_compared_with_itself_without_opportunistic_work() {
        for (seconds, expected) in [
            // Learned, then as fast, then slower by a tenth, then as before.
            (
                &[
                    (100, 500, 0),
                    (100, 500, 300),
                    (100, 550, 300),
                    (100, 500, 300),
                ][..],
                "++-+",
            ),
            // It does nothing for most of the time: a tenth more for each unit costs it little,
            // a third is too much.
            (&[(100, 100, 0), (100, 110, 300), (100, 134, 300)], "++-"),
            // Nothing to compare with.
            (&[(100, 500, 300)], "-"),
            // It does not want its cards.
            (&[(0, 0, 900), (0, 0, 900)], "++"),
            // It became slower by itself: that is learned where there is hardly any other work.
            (
                &[
                    (100, 500, 0),
                    (100, 900, 300),
                    (100, 900, 5),
                    (100, 900, 5),
                    (100, 900, 5),
                    (100, 900, 5),
                    (100, 900, 5),
                    (100, 900, 300),
                ],
                "+-++++++",
            ),
            // Few units in a second: several seconds make a verdict.
            (
                &[(10, 900, 0), (10, 900, 0), (10, 900, 0), (10, 900, 0)],
                "???+",
            ),
        ] {
            assert_eq!(verdicts(1, seconds), expected, "{seconds:?}");
        }
    }

    #[test]
    fn only_whole_mini_batches_compare() {
        for (units_a_batch, seconds, expected) in [
            // Two in a second: one that is begun at the wrong moment says nothing yet.
            (50, &[(100, 500, 0); 4][..], "?+?+"),
            (
                50,
                &[
                    (100, 500, 0),
                    (100, 500, 0),
                    (110, 550, 300),
                    (90, 550, 300),
                    (100, 950, 300),
                    (100, 950, 300),
                ],
                "?+?+?-",
            ),
            // So long that nobody waits for four of them: then units must do.
            (
                60,
                &[
                    (10, 500, 0),
                    (10, 500, 0),
                    (10, 500, 0),
                    (10, 500, 0),
                    (10, 500, 0),
                    (10, 600, 300),
                    (10, 600, 300),
                    (10, 600, 300),
                    (10, 600, 300),
                    (10, 600, 300),
                ],
                "????+????-",
            ),
        ] {
            assert_eq!(verdicts(units_a_batch, seconds), expected, "{seconds:?}");
        }
    }

    #[test]
    fn the_duty_falls_by_half_and_rises_by_steps() {
        let milli = |value: u16| Milli::new(value).unwrap();
        let least = milli(5);
        let next = |duty: Option<u16>, beside: &[Verdict]| {
            next_duty(duty.map(milli), beside, least).map(Milli::get)
        };
        use Verdict::{Harmed, Open, Well};
        for (duty, beside, expected) in [
            (None, &[][..], None),
            (Some(80), &[], None),
            (None, &[Well], Some(5)),
            (Some(5), &[Well], Some(55)),
            (Some(980), &[Well, Well], Some(1000)),
            (Some(400), &[Well, Harmed], Some(200)),
            (Some(400), &[Well, Open], Some(400)),
            (Some(6), &[Harmed], Some(5)),
        ] {
            assert_eq!(next(duty, beside), expected, "{duty:?} {beside:?}");
        }
    }
}
