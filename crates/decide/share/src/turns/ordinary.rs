//! Ordinary programs: they pause, answer requests, have several processes, or launch without end.
//! Each has its promise all the same. (Lines a to l of the measurement that found otherwise.)

use super::world::{Work, World, busy, ms, run, share, shares_over};
use super::*;

const ONE: JobId = JobId(1);
const OTHER: JobId = JobId(2);

/// Never waits, with kernels of 2 ms.
const NEVER_WAITS: Work = Work {
    kernel: Duration::from_millis(2),
    burst: u32::MAX,
    pause: Duration::ZERO,
    n_ahead: 1000,
    is_irregular: false,
};

/// A guaranteed job of a promise in thousandths, on the first card.
fn come(world: &mut World, id: JobId, request: u16, limit: u16, work: Work) {
    let shares = vec![share(0, request, limit)];
    world.arrive(id.0, Class::Guaranteed, shares, work);
}

/// Bursts that a job ends within a time.
fn bursts_over(world: &mut World, id: JobId, time: Duration) -> usize {
    let before = world.tenants[&id].bursts.len();
    run(world, time);
    world.tenants[&id].bursts.len() - before
}

/// A quantile of the time of a job's bursts, in microseconds.
fn burst_us(world: &World, id: JobId, percent: usize) -> u128 {
    let mut all = world.tenants[&id].bursts.clone();
    all.sort_unstable();
    all[(all.len() - 1) * percent / 100].as_micros()
}

/// Pace of a program that launches, waits and pauses, beside its pace alone, in percent.
fn pace(overlap: Overlap, request: u16, (kernels, pause): (u32, u64), other: Work) -> usize {
    let work = Work {
        kernel: ms(1),
        burst: kernels,
        pause: ms(pause),
        n_ahead: kernels,
        is_irregular: false,
    };
    let [alone, beside] = [false, true].map(|is_beside| {
        let mut world = World::new(overlap, 1);
        come(&mut world, ONE, request, 1000, work);
        if is_beside {
            come(&mut world, OTHER, 1000 - request, 1000, other);
        }
        run(&mut world, ms(2000));
        bursts_over(&mut world, ONE, ms(10_000))
    });
    beside * 100 / alone
}

/// Line a, and training loops that use the card for two thirds of their time.
#[test]
fn a_program_that_pauses_keeps_its_pace_as_far_as_its_promise_goes() {
    for (request, loop_of, least) in [
        (750, (10, 5), 85),
        (750, (40, 20), 95),
        (750, (120, 60), 94),
        (500, (40, 20), 71),
        (250, (40, 20), 35),
    ] {
        for other in [NEVER_WAITS, busy(2)] {
            let pace = pace(Overlap::Allowed, request, loop_of, other);
            assert!(pace >= least, "{request} {loop_of:?}: {pace} %");
        }
    }
    // Where turns must not overlap, each end of a pause waits for a whole drain.
    let pace = pace(Overlap::Never, 750, (40, 20), NEVER_WAITS);
    assert!(pace >= 85, "{pace} %");
}

/// Line b: requests of a millisecond wait for a drain, and for no turn.
#[test]
fn requests_wait_for_no_turn() {
    for n_others in [1, 3] {
        for (pause, overlap) in [
            (10, Overlap::Allowed),
            (3, Overlap::Allowed),
            (10, Overlap::Never),
        ] {
            let mut world = World::new(overlap, 1);
            let work = Work {
                kernel: ms(1),
                burst: 1,
                pause: ms(pause),
                n_ahead: 0,
                is_irregular: true,
            };
            come(&mut world, ONE, 500, 1000, work);
            for other in 0..n_others {
                come(
                    &mut world,
                    JobId(2 + other),
                    500 / n_others as u16,
                    1000,
                    NEVER_WAITS,
                );
            }
            run(&mut world, ms(20_000));
            let [half, most] = [50, 99].map(|percent| burst_us(&world, ONE, percent));
            assert!(
                half <= 3500,
                "p50 {half} us of pauses of {pause} ms beside {n_others}"
            );
            assert!(
                most <= 6000,
                "p99 {most} us of pauses of {pause} ms beside {n_others}"
            );
        }
    }
}

/// Line c: a limit is no burst a second.
#[test]
fn a_limit_makes_no_long_pause() {
    let mut world = World::new(Overlap::Allowed, 1);
    let work = Work {
        kernel: ms(1),
        burst: 1,
        pause: ms(10),
        n_ahead: 0,
        is_irregular: true,
    };
    come(&mut world, ONE, 0, 50, work);
    come(&mut world, OTHER, 500, 1000, NEVER_WAITS);
    run(&mut world, ms(2000));
    let had = shares_over(&mut world, 0, ms(10_000))[&ONE];
    assert!((40..=55).contains(&had), "{had} thousandths");
    let wait = world.tenants[&ONE].longest_wait;
    assert!(wait <= ms(110), "{wait:?}");
}

/// Lines d and f: a job of eight processes is one job.
#[test]
fn processes_are_not_shares() {
    for kernel in [1, 4] {
        let mut world = World::new(Overlap::Allowed, 1);
        let work = Work {
            n_ahead: 8,
            ..busy(kernel)
        };
        come(&mut world, ONE, 250, 1000, work);
        world.set_processes(ONE, 8);
        come(&mut world, OTHER, 750, 1000, NEVER_WAITS);
        run(&mut world, ms(2000));
        let had = shares_over(&mut world, 0, ms(5000))[&ONE];
        assert!((220..=280).contains(&had), "{had} thousandths of 250");
    }
}

/// The same on a card that gives each process a slice in turn, as far as it has work, with an arbiter
/// that hears what happens a little late. Each process of a crowd has little queued and leaves most
/// of its slice to the other, which no split by processes knows.
#[test]
fn processes_are_not_shares_where_the_driver_slices() {
    for (n_processes, request, kernel, round) in [
        (8, 250, 1, 0),
        (8, 250, 1, 2),
        (8, 250, 1, 3),
        (8, 250, 4, 2),
        (8, 500, 1, 2),
        (8, 750, 1, 2),
        (3, 250, 1, 2),
    ] {
        let mut world = World::new(Overlap::Allowed, 1);
        (world.slice, world.round) = (ms(2), ms(round));
        let waits = |kernel| Work {
            n_ahead: 15,
            burst: 16,
            ..busy(kernel)
        };
        come(&mut world, ONE, request, 1000, waits(kernel));
        world.set_processes(ONE, n_processes);
        come(&mut world, OTHER, 1000 - request, 1000, waits(1));
        run(&mut world, ms(2000));
        let charged_of = |world: &World, id| world.turns.view(id)[0].had;
        let before = charged_of(&world, ONE);
        let had = shares_over(&mut world, 0, ms(5000))[&ONE];
        let charged = (charged_of(&world, ONE) - before).as_millis() as i64 / 5;
        let is_near = |share: i64| (i64::from(request) - share).abs() <= 30;
        assert!(
            is_near(had) && is_near(charged),
            "{n_processes} processes with kernels of {kernel}, rounds of {round} ms: {had} and \
             charged {charged} thousandths of {request}"
        );
    }
}

/// Line e: what was queued while a job was alone is made up within a second.
#[test]
fn a_backlog_is_made_up_within_a_second() {
    for kernel in [2, 10] {
        let mut world = World::new(Overlap::Allowed, 1);
        let work = Work {
            kernel: ms(kernel),
            ..NEVER_WAITS
        };
        come(&mut world, ONE, 250, 1000, work);
        run(&mut world, ms(3000));
        come(&mut world, OTHER, 750, 1000, busy(2));
        run(&mut world, ms(1000));
        for second in 0..6 {
            let had = shares_over(&mut world, 0, ms(1000))[&OTHER];
            let most = if second == 0 { 1000 } else { 790 };
            assert!(
                (710..=most).contains(&had),
                "{had} thousandths of 750 in second {second}"
            );
        }
    }
}

/// Line g: debts outlive the short pauses of others.
#[test]
fn long_kernels_are_paid_for_though_the_other_pauses() {
    let mut world = World::new(Overlap::Allowed, 1);
    let long = Work {
        kernel: ms(100),
        n_ahead: 3,
        ..NEVER_WAITS
    };
    come(&mut world, ONE, 250, 1000, long);
    let other = Work {
        kernel: ms(1),
        burst: 200,
        pause: ms(3),
        n_ahead: 8,
        is_irregular: false,
    };
    come(&mut world, OTHER, 750, 1000, other);
    run(&mut world, ms(2000));
    let had = shares_over(&mut world, 0, ms(22_000))[&OTHER];
    assert!((700..=800).contains(&had), "{had} thousandths of 750");
}

/// Line l: after a stop each has its share at once.
#[test]
fn an_arbiter_that_was_stopped_blames_nobody() {
    let mut world = World::new(Overlap::Allowed, 1);
    come(&mut world, ONE, 250, 1000, NEVER_WAITS);
    come(&mut world, OTHER, 750, 1000, busy(2));
    run(&mut world, ms(3000));
    world.stop(ms(5000));
    run(&mut world, ms(5000));
    run(&mut world, ms(200));
    let had = shares_over(&mut world, 0, ms(800))[&OTHER];
    assert!((690..=810).contains(&had), "{had} thousandths of 750");
}

/// Nor is anything charged for the time that it slept through.
#[test]
fn nothing_is_charged_for_the_time_that_an_arbiter_slept_through() {
    let mut turns = Turns::new(TurnRules::default());
    let mut out = Vec::new();
    for job in [ONE, OTHER] {
        let shares = vec![share(0, 500, 1000)];
        let (class, slice) = (Class::Guaranteed, None);
        let placed = TurnEvent::Placed {
            job,
            class,
            shares,
            slice,
        };
        turns.apply(ms(0), placed, &mut out);
    }
    turns.apply(ms(0), TurnEvent::Wants(ONE), &mut out);
    turns.apply(ms(1), TurnEvent::Wants(OTHER), &mut out);
    assert_eq!(turns.wake_at(), Some(ms(2)));
    turns.apply(ms(5002), TurnEvent::Tick, &mut out);
    let had = [ONE, OTHER].map(|job| turns.view(job)[0].had);
    assert_eq!(had, [ms(1), ms(0)]);
}

/// A job that wakes often has no more than its share for it.
#[test]
fn who_wakes_often_has_no_more_time() {
    for pause in [1, 2, 5, 20] {
        let mut world = World::new(Overlap::Allowed, 1);
        let work = Work {
            kernel: ms(1),
            burst: 20,
            pause: ms(pause),
            n_ahead: 2,
            is_irregular: true,
        };
        come(&mut world, ONE, 250, 1000, work);
        come(&mut world, OTHER, 750, 1000, NEVER_WAITS);
        run(&mut world, ms(2000));
        let had = shares_over(&mut world, 0, ms(10_000));
        assert!(
            had[&ONE] <= 275 && had[&OTHER] >= 700,
            "{had:?} with pauses of {pause} ms"
        );
    }
}
