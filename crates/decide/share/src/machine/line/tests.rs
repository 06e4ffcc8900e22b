//! The job that goes first, and that no job waits for ever.

use proptest::prelude::*;
use sublet_model::Time;

use super::super::tests::{ask, machine, tell};
use super::*;
use crate::event::Event;
use crate::job::JobAsk;

impl Machine {
    /// Checks that the queue equals one that is made without knowledge of the past.
    pub(in crate::machine) fn is_line_current(&self, now: Time) -> bool {
        let (mut anew, mut news) = (self.clone(), Vec::new());
        anew.line.shares.clear();
        anew.line.shares_at = None;
        anew.line.asked = None;
        anew.line.patience_ends = Some(now);
        anew.line.moved_from = Some(0);
        anew.advance(now, &mut news);
        let waiting = |user| {
            let waiting = self.line.queue.iter().map(|id| self.jobs[id].ask.user);
            waiting.filter(|own| *own == Some(user)).count()
        };
        let users = (0..9).map(UserId);
        news.is_empty()
            && anew.line.queue == self.line.queue
            && anew.patience_ends() == self.patience_ends()
            && users
                .clone()
                .all(|user| self.waiting_of(user) == waiting(user))
    }
}

/// A job that asks for this number of MiB of one card.
fn of(user: u32, priority: i32, mib: u32) -> JobAsk {
    JobAsk {
        user: Some(UserId(user)),
        priority,
        ..ask(mib, 1, true)
    }
}

fn submit(machine: &mut Machine, at_ms: u64, job: u64, ask: JobAsk) {
    let job = JobId(job);
    tell(machine, at_ms, Event::Submitted { job, ask });
}

fn line(machine: &Machine) -> Vec<u64> {
    machine.line.queue.iter().map(|job| job.0).collect()
}

#[test]
fn priority_then_share_then_age() {
    let mut m = machine(&[100, 100]);
    submit(&mut m, 0, 1, of(1, 0, 80));
    submit(&mut m, 0, 2, of(2, 0, 70));
    submit(&mut m, 0, 3, of(1, 0, 20));
    assert_eq!(m.share_of(UserId(1)), 1000);
    assert_eq!((m.share_of(UserId(2)), m.share_of(UserId(3))), (700, 0));
    for (job, ask) in [
        (11, of(1, 0, 100)),
        (12, of(2, 0, 100)),
        (13, of(3, 0, 100)),
        (14, of(3, 0, 100)),
        (15, of(1, 5, 100)),
        (16, of(3, -1, 10)),
    ] {
        submit(&mut m, 10, job, ask);
    }
    // Job 16 would fit, and passes nobody.
    assert_eq!(line(&m), [15, 13, 14, 12, 11, 16]);
    // With its job gone a user has less, and goes first.
    tell(&mut m, 20, Event::Left(JobId(2)));
    assert_eq!(m.job(JobId(15)).map(|job| job.parts.len()), Some(1));
    assert_eq!(line(&m), [12, 13, 14, 11, 16]);
}

#[test]
fn who_has_waited_long_goes_by_age_within_its_priority() {
    let mut m = machine(&[100]);
    submit(&mut m, 0, 1, of(1, 0, 60));
    submit(&mut m, 1, 2, of(1, 0, 100));
    submit(&mut m, 2, 3, of(2, 0, 100));
    submit(&mut m, 3, 4, of(2, 1, 100));
    assert_eq!(line(&m), [4, 3, 2]);
    assert_eq!(m.wake_at(), Some(Time::from_ms(1 + PATIENCE_MS)));
    tell(&mut m, 1 + PATIENCE_MS, Event::Tick);
    assert_eq!(line(&m), [4, 2, 3]);
    assert_eq!(m.wake_at(), Some(Time::from_ms(2 + PATIENCE_MS)));
    tell(&mut m, 3 + PATIENCE_MS, Event::Tick);
    assert_eq!(m.wake_at(), None);
}

#[test]
fn who_does_not_wait_is_refused_only_by_those_before_it() {
    let mut m = machine(&[100]);
    submit(&mut m, 0, 1, of(1, 0, 60));
    submit(&mut m, 1, 2, of(1, 0, 100));
    let now = |user, priority| Event::Submitted {
        job: JobId(9),
        ask: JobAsk {
            may_wait: false,
            ..of(user, priority, 10)
        },
    };
    assert_eq!(
        tell(&mut m, 2, now(1, 0)),
        "refuse 9: 1 job waits before it"
    );
    assert_eq!(
        tell(&mut m, 2, now(2, -1)),
        "refuse 9: 1 job waits before it"
    );
    assert!(tell(&mut m, 2, now(2, 0)).starts_with("place 9 0:10; wait 2"));
}

#[test]
fn what_would_start_a_job_is_said() {
    let mut m = machine(&[100, 100]);
    submit(&mut m, 0, 1, of(1, 0, 60));
    submit(&mut m, 0, 2, of(1, 0, 60));
    submit(&mut m, 0, 3, of(1, 0, 30));
    let when = |m: &Machine, job| m.starts_when(JobId(job)).map(|when| when.to_string());
    assert_eq!(when(&m, 1), None);
    let asks = |mib, gpus| JobAsk {
        gpus: sublet_model::Count::new(gpus),
        ..of(2, 0, mib)
    };
    submit(&mut m, 1, 4, asks(65, 1));
    assert_eq!(when(&m, 4).as_deref(), Some("one of the jobs 1, 2 ends"));
    submit(&mut m, 2, 5, asks(100, 1));
    let after = "the job before it has started, and there is room";
    assert_eq!(when(&m, 5).as_deref(), Some(after));
    tell(&mut m, 3, Event::Left(JobId(4)));
    let ends = when(&m, 5);
    assert_eq!(ends.as_deref(), Some("job 2 ends"), "{:?}", m.line.queue);
    submit(
        &mut m,
        4,
        6,
        JobAsk {
            priority: 1,
            ..asks(100, 2)
        },
    );
    assert_eq!(when(&m, 6).as_deref(), Some("several jobs end"));
}

/// A job that comes: its time, user, size and duration.
type Arrival = (u64, u32, u32, u64);

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let one = (0..3_600_000_u64, 0..3_u32, 1..=50_u32, 1_000..=120_000_u64);
    prop::collection::vec(one, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Users 1 and 2 send small jobs without end; user 0 has one running and wants both cards. It
    /// gets them when the jobs before it at the end of its patience have ended.
    #[test]
    fn a_large_job_is_not_kept_waiting_for_ever(arrivals in arrivals()) {
        const LONGEST: u64 = 120_000;
        let mut m = machine(&[100, 100]);
        submit(&mut m, 0, 1, of(0, 0, 10));
        let large = JobAsk { gpus: sublet_model::Count::new(2), ..of(0, 0, 100) };
        submit(&mut m, 0, 2, large);
        let mut arrivals = arrivals;
        arrivals.sort_unstable();
        // The first job of its user ends at once where nobody looks after it: it has its hour.
        let mut ends = vec![(60_000, JobId(1))];
        let mut lasts = BTreeMap::new();
        let (mut now, mut next) = (0, 0);
        let mut started = None;
        while started.is_none() && now <= PATIENCE_MS + 4_000_000 {
            now += 1_000;
            while let Some((_, user, mib, length)) = arrivals.get(next).filter(|one| one.0 <= now) {
                let job = 10 + next as u64;
                lasts.insert(JobId(job), *length);
                submit(&mut m, now, job, of(*user, 0, *mib));
                next += 1;
            }
            let over: Vec<JobId> = ends.iter().filter(|one| one.0 <= now).map(|one| one.1).collect();
            ends.retain(|one| one.0 > now);
            for job in over {
                tell(&mut m, now, Event::Left(job));
            }
            tell(&mut m, now, Event::Tick);
            // Who has a card from now on.
            lasts.retain(|job, length| match m.job(*job) {
                Some(view) if !view.parts.is_empty() => {
                    ends.push((now + *length, *job));
                    false
                }
                view => view.is_some(),
            });
            let has_cards = m.job(JobId(2)).is_some_and(|job| !job.parts.is_empty());
            started = has_cards.then_some(now);
        }
        let bound = PATIENCE_MS + LONGEST + 2_000;
        prop_assert!(started.is_some_and(|at| at <= bound), "{started:?} of {bound}");
    }

    /// The first of two waiting jobs has the higher priority, or waits longer if both are
    /// impatient, or its user has no more.
    #[test]
    fn the_line_is_in_order(
        jobs in prop::collection::vec((0..4_u32, -2..3_i32, 1..120_u32, 0..900_000_u64), 1..24)
    ) {
        let mut m = machine(&[60, 60]);
        let mut jobs = jobs;
        jobs.sort_unstable_by_key(|job| job.3);
        let mut now = 0;
        for (id, (user, priority, mib, at)) in (1..).zip(jobs) {
            submit(&mut m, at, id, of(user, priority, mib.min(60)));
            now = at;
            prop_assert!(m.is_line_current(Time::from_ms(now)));
            if mib % 3 == 0 {
                tell(&mut m, now, Event::Left(JobId(id / 2 + 1)));
                prop_assert!(m.is_line_current(Time::from_ms(now)));
            }
        }
        for pair in m.line.queue.windows(2) {
            let [first, second] = [pair[0], pair[1]].map(|id| &m.jobs[&id]);
            prop_assert!(first.ask.priority >= second.ask.priority);
            if first.ask.priority > second.ask.priority {
                continue;
            }
            let patient = |job: &Job| now < job.since.ms() + PATIENCE_MS;
            let share = |job: &Job| m.share_of(job.ask.user.unwrap());
            match (patient(first), patient(second)) {
                (false, true) => {}
                (true, false) => prop_assert!(false, "a patient one before an impatient one"),
                (false, false) => prop_assert!(first.since <= second.since),
                (true, true) => prop_assert!(share(first) <= share(second)),
            }
        }
    }
}
