//! Turns over real sockets and pages: processes that keep to their gates, and some that do not.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use sublet_arbiter::ExclusiveSlices;
use sublet_arbiter::admin::{Class, Reply, Request};
use sublet_model::Milli;
use sublet_share::ComputeRange;

use crate::child::{Process, now_us};
use crate::containers::{card, container};
use crate::restart::Killable;
use crate::world::{World, until};

/// Jobs on one card, each with a socket of its own.
struct Jobs {
    world: World,
    dirs: Vec<tempfile::TempDir>,
    asked: Vec<(Class, u16, u16)>,
    ids: Vec<u64>,
}

impl Jobs {
    fn new(n_jobs: usize, exclusive: ExclusiveSlices) -> Jobs {
        Jobs::with(vec![(Class::Guaranteed, 0, 1000); n_jobs], exclusive)
    }

    /// With classes, promises and limits.
    fn with(asked: Vec<(Class, u16, u16)>, exclusive: ExclusiveSlices) -> Jobs {
        let world = World::with(&[1024], |options| options.time.exclusive_slices = exclusive);
        let dirs: Vec<_> = asked.iter().map(|_| tempfile::tempdir().unwrap()).collect();
        let mut jobs = Jobs {
            world,
            dirs,
            asked,
            ids: Vec::new(),
        };
        jobs.ids = jobs.enter();
        jobs
    }

    /// Tells the arbiter of the jobs, with the numbers that they have already.
    fn enter(&self) -> Vec<u64> {
        let each = self.dirs.iter().enumerate().map(|(place, dir)| {
            let mut job = container(&format!("pod-{place}"), dir.path(), vec![card(0, 100)]);
            job.id = self.ids.get(place).copied();
            let (class, request, limit) = self.asked[place];
            let milli = |value| Milli::new(value).unwrap();
            job.class = class;
            job.compute = ComputeRange::new(milli(request), milli(limit)).unwrap();
            self.world.handle.add_container(job).unwrap()
        });
        each.collect()
    }

    fn socket(&self, place: usize) -> PathBuf {
        self.dirs[place].path().join("tenant.sock")
    }

    /// A process of a job.
    fn process(&self, place: usize) -> Process {
        let mut process = Process::start(&self.socket(place));
        assert!(process.tell("hello").starts_with("slot"));
        process
    }

    /// One that is at work whenever it may be.
    fn worker(&self, place: usize) -> Process {
        let mut process = self.process(place);
        assert_eq!(process.tell("turns obey"), "at work");
        process
    }

    /// One that has the card, and does not keep to its gate from now on.
    fn rogue(&self, place: usize, manner: &str) -> Process {
        let mut process = self.worker(place);
        works_for(&mut process, 1000);
        assert_eq!(process.tell(&format!("turns {manner}")), "at work");
        process
    }
}

/// When a process was at work since it was last asked, in microseconds.
fn spans(process: &mut Process) -> Vec<(u64, u64)> {
    let said = process.tell("spans");
    let spans = said.split_whitespace().map(|span| {
        let (from, to) = span.split_once('-').unwrap();
        (from.parse().unwrap(), to.parse().unwrap())
    });
    spans.collect()
}

fn sum(spans: &[(u64, u64)]) -> u64 {
    spans.iter().map(|(from, to)| to - from).sum()
}

/// Time during which both were at work.
fn both(one: &[(u64, u64)], two: &[(u64, u64)]) -> u64 {
    let pairs = one.iter().flat_map(|a| two.iter().map(move |b| (a, b)));
    let common = pairs.map(|(a, b)| a.1.min(b.1).saturating_sub(a.0.max(b.0)));
    common.sum()
}

fn wait(time: Duration) {
    let end = Instant::now() + time;
    until(Instant::now, |now| {
        thread::sleep(Duration::from_millis(1));
        *now >= end
    });
}

/// Waits until a process has worked for this time since the last question.
fn works_for(process: &mut Process, us: u64) {
    let mut worked = 0;
    let mut more = || {
        worked += sum(&spans(process));
        worked
    };
    until(&mut more, |worked| *worked >= us);
}

#[test]
fn two_who_want_a_card_have_it_in_turns_and_for_equal_times() {
    for exclusive in [ExclusiveSlices::default(), ExclusiveSlices::All] {
        let never_both = exclusive == ExclusiveSlices::All;
        let jobs = Jobs::new(2, exclusive);
        let word = if never_both {
            "exclusive"
        } else {
            "overlapping"
        };
        assert_eq!(jobs.world.snapshot().gpus[0].slices, word);
        let mut workers = [jobs.worker(0), jobs.worker(1)];
        for worker in &mut workers {
            works_for(worker, 30_000);
        }
        for worker in &mut workers {
            spans(worker);
        }
        wait(Duration::from_millis(1200));
        let [one, two] = workers.each_mut().map(spans);
        let (first, second) = (sum(&one), sum(&two));
        let share = first * 100 / (first + second);
        assert!((40..=60).contains(&share), "{share} %: {one:?} {two:?}");
        assert!(one.len() > 5 && two.len() > 5, "{one:?} {two:?}");
        // Little of the card's time is lost, and it is had by one at a time.
        assert!(first + second > 900_000, "{first} + {second}");
        let both = both(&one, &two);
        assert!(both == 0 || !never_both, "{both} us: {one:?} {two:?}");
    }
}

#[test]
fn shares_are_as_promised_and_shown() {
    use Class::{Guaranteed, Opportunistic};
    for (asked, expected) in [
        // A quarter and three quarters.
        (
            vec![(Guaranteed, 250, 1000), (Guaranteed, 750, 1000)],
            [25, 75],
        ),
        // A limit holds though nobody else could have the rest.
        (vec![(Guaranteed, 0, 300), (Guaranteed, 0, 200)], [30, 20]),
        // Who is opportunistic gets the least, which comes once a second.
        (
            vec![(Guaranteed, 1000, 1000), (Opportunistic, 0, 1000)],
            [99, 1],
        ),
    ] {
        let jobs = Jobs::with(asked.clone(), ExclusiveSlices::default());
        let mut workers = [jobs.worker(0), jobs.worker(1)];
        wait(Duration::from_millis(300));
        for worker in &mut workers {
            spans(worker);
        }
        // One window: limits hold in each, and not in any other length of time.
        let began = now_us();
        wait(Duration::from_millis(1000));
        let had = workers.each_mut().map(|worker| sum(&spans(worker)));
        let parts = had.map(|had| had * 100 / (now_us() - began));
        for place in 0..2 {
            let (part, due) = (parts[place], expected[place]);
            assert!(part.abs_diff(due) <= 6, "{parts:?} of {expected:?}");
            let row = jobs.world.job(jobs.ids[place]).unwrap();
            let shown = row.compute_used_percent.unwrap();
            assert!((shown - due as f64).abs() <= 10.0, "{shown} of {due}");
            let waits = row.waiting_percent.unwrap();
            assert!(waits + shown > 80.0, "{waits} beside {shown}");
        }
        let rules = workers.each_mut().map(|worker| worker.tell("rules"));
        for (rules, (class, ..)) in rules.iter().zip(&asked) {
            let expected = match class {
                Guaranteed => "1000 Some(10000)",
                Opportunistic => "100 Some(1000)",
            };
            assert_eq!(rules, expected);
        }
    }
}

#[test]
fn who_works_while_its_gate_is_closed_is_found_by_the_drivers_figures_and_pays() {
    let jobs = Jobs::new(2, ExclusiveSlices::default());
    let liar = jobs.rogue(0, "quiet");
    let mut other = jobs.worker(1);
    jobs.world
        .cards
        .set_busy(0, &[(liar.pid(), 900), (other.pid(), 100)]);
    let reason = || {
        jobs.world
            .job(jobs.ids[0])
            .unwrap()
            .reason
            .unwrap_or_default()
    };
    let said = until(reason, |reason| reason.contains("turns explain"));
    assert!(
        said.starts_with("GPU 0: its programs were at work for"),
        "{said}"
    );
    assert_eq!(jobs.world.snapshot().counters.overused, 1);
    assert_eq!(jobs.world.job(jobs.ids[1]).unwrap().reason, None);
    let used = || {
        jobs.world
            .job(jobs.ids[0])
            .unwrap()
            .compute_used_percent
            .unwrap()
    };
    until(used, |used| *used > 50.0);
    works_for(&mut other, 10_000);
}

#[test]
fn what_was_used_can_be_asked_for_later() {
    let jobs = Jobs::new(1, ExclusiveSlices::default());
    let mut one = jobs.process(0);
    assert_eq!(one.tell("reserve 0 60"), "reserved");
    let id = jobs.ids[0];
    let history = || match jobs.world.call(&Request::History { id }) {
        Reply::History { per_gpu, every_ms } => {
            assert_eq!(every_ms, 10_000);
            per_gpu
        }
        other => panic!("{other:?}"),
    };
    let seen = until(history, |seen| !seen.is_empty());
    assert_eq!((seen.len(), seen[0].index), (1, 0));
    assert_eq!(seen[0].memory_mib.len(), seen[0].compute_percent.len());
    assert!(seen[0].ago_ms < 20_000);
    match jobs.world.call(&Request::History { id: 99 }) {
        Reply::History { per_gpu, .. } => assert_eq!(per_gpu, []),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_that_is_alone_is_never_asked_to_stop() {
    let jobs = Jobs::new(2, ExclusiveSlices::default());
    let mut one = jobs.worker(0);
    let mut idle = jobs.process(1);
    works_for(&mut one, 1000);
    wait(Duration::from_millis(200));
    assert_eq!(spans(&mut one).len(), 1, "its one turn goes on");
    assert_eq!(one.tell("gate"), "Open");
    drop(idle.tell("close"));
    // Without company it need not even say when it works.
    jobs.world.handle.remove_container(jobs.ids[1]).unwrap();
    drop(idle);
    until(|| one.tell("gate"), |gate| gate == "Free");
    assert_eq!(one.tell("rules"), "1000 Some(250000)");
}

#[test]
fn the_end_of_a_process_ends_its_turn() {
    let mut best = u64::MAX;
    for _ in 0..5 {
        let jobs = Jobs::new(2, ExclusiveSlices::All);
        let mut holder = jobs.rogue(0, "mute");
        let mut waiter = jobs.worker(1);
        until(|| holder.tell("gate"), |gate| gate == "Closed");
        // It has not answered, so nobody else has the card.
        wait(Duration::from_millis(60));
        assert_eq!(spans(&mut waiter), []);
        let killed = now_us();
        holder.kill();
        let began = until(|| spans(&mut waiter), |spans| !spans.is_empty())[0].0;
        best = best.min(began - killed);
    }
    assert!(best < 20_000, "{best} us");
}

#[test]
fn who_never_answers_keeps_a_card_from_others_only_where_turns_must_not_overlap() {
    let jobs = Jobs::new(2, ExclusiveSlices::default());
    let mut mute = jobs.rogue(0, "mute");
    let mut other = jobs.worker(1);
    works_for(&mut other, 100_000);
    until(|| mute.tell("gate"), |gate| gate == "Closed");
}

#[test]
fn an_answer_is_none_while_the_process_is_at_work() {
    let jobs = Jobs::new(2, ExclusiveSlices::All);
    let mut liar = jobs.rogue(0, "false");
    let mut waiter = jobs.worker(1);
    until(|| liar.tell("gate"), |gate| gate == "Closed");
    wait(Duration::from_millis(100));
    assert_eq!(spans(&mut waiter), []);
}

#[test]
fn a_process_that_follows_no_turns_is_not_kept_waiting_for_ever() {
    let jobs = Jobs::new(2, ExclusiveSlices::default());
    let mut old = jobs.process(0);
    let mut other = jobs.worker(1);
    until(|| old.tell("gate"), |gate| gate == "Free");
    works_for(&mut other, 50_000);
    assert_eq!(old.tell("gate"), "Free");
}

#[test]
fn after_a_restart_turns_go_on_and_old_answers_are_none() {
    let mut jobs = Jobs::new(2, ExclusiveSlices::All);
    let mut workers = [jobs.worker(0), jobs.worker(1)];
    for worker in &mut workers {
        works_for(worker, 30_000);
    }
    jobs.world
        .restart(|options| options.time.exclusive_slices = ExclusiveSlices::All);
    assert_eq!(jobs.enter(), jobs.ids);
    for worker in &mut workers {
        assert!(worker.tell("again").starts_with("slot"));
        // The thread that it had follows the page of before, and is heard in its old slot.
        assert_eq!(worker.tell("turns obey"), "at work");
        works_for(worker, 20_000);
    }
}

#[test]
fn who_knocks_without_end_does_not_cost_the_arbiter_its_time() {
    let base = tempfile::tempdir().unwrap();
    let arbiter = Killable::start(base.path());
    let (_line, placed) = arbiter.place("100MiB");
    let mut flooder = Process::start(&arbiter.folder.tenant_socket());
    flooder.tell("hello");
    let before = arbiter.processor_ms();
    assert_eq!(flooder.tell("flood 1000"), "true");
    let used = arbiter.processor_ms() - before;
    assert!(used < 150, "{used} ms of a second");
    // It is still heard, and the arbiter still works.
    let row = arbiter.snapshot().tenants;
    assert_eq!(row[0].id, Some(placed.id));
    assert_eq!(row[0].pids, [flooder.pid()]);
}
