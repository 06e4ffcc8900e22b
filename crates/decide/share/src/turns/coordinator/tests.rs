//! Seconds of a guaranteed job's work, and the verdicts on them.

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
        rests: Rests::default(),
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
            Verdict::Unknown => '0',
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
        (&[(100, 500, 300), (100, 500, 0), (100, 500, 300)], "0++"),
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
        // Few units in a second: several seconds make a verdict, and fewer say what they cost alone.
        (
            &[
                (10, 900, 0),
                (10, 900, 0),
                (10, 900, 300),
                (10, 900, 300),
                (10, 900, 300),
                (10, 900, 300),
            ],
            "?+???+",
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
fn the_duty_falls_to_what_did_no_harm_and_rises_fast_and_with_care_from_there() {
    let least = Milli::new(5).unwrap();
    use Verdict::{Harmed, Open, Unknown, Well};
    assert_eq!(next_duty(None, &[], least), None);
    let mut duty = None;
    for (beside, expected) in [
        (&[Well][..], 5),
        (&[Well], 55),
        (&[Well, Well], 220),
        (&[Well, Open], 220),
        (&[Well], 880),
        (&[Well, Harmed], 220),
        (&[Well], 275),
        (&[Harmed], 137),
        (&[Well], 187),
        (&[Well, Unknown], 5),
        (&[Harmed], 5),
        (&[Well], 55),
        (&[Well], 105),
    ] {
        duty = next_duty(duty, beside, least);
        assert_eq!(
            duty.map(|duty| duty.now.get()),
            Some(expected),
            "{beside:?}"
        );
    }
    assert_eq!(next_duty(duty, &[], least), None);
    let mut most = None;
    for _ in 0..7 {
        most = next_duty(most, &[Well], least);
    }
    assert_eq!(most.map(|duty| duty.now), Some(Milli::WHOLE));
}

/// Pauses of a job, in microseconds.
#[derive(Debug, Clone, Copy)]
enum Coming {
    /// As long after each piece of work, whatever that took.
    Loop(u64),
    /// So far from each other, whatever they took.
    Every(u64),
    /// The same on average, by chance.
    ByChance(u64),
}

/// The verdicts on fifty seconds of a job of this work in microseconds, each piece of which takes
/// longer by some time from the tenth second on, beside opportunistic work.
fn verdicts_beside(coming: Coming, work: u64, longer: u64) -> String {
    let us = Duration::from_micros;
    let (mut pace, mut said) = (Pace::default(), String::new());
    let (mut now, mut wanted, mut units, mut n_looks) = (0, 0, 0, 0);
    let (mut next, mut random) = (0, 1_u64);
    while now < 50_000_000 {
        let is_beside = now >= 10_000_000;
        // Who finds the next piece waiting meets nobody.
        let is_woken = next == now;
        let took = work + if is_beside && is_woken { longer } else { 0 };
        pace.wakes(us(now));
        (now, wanted, units) = (now + took, wanted + took, units + 1);
        pace.rests(us(now));
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let chance = ((random >> 33) as f64 + 1.0) / f64::from(1_u32 << 31);
        next = match coming {
            Coming::Loop(pause) => now + pause,
            Coming::Every(apart) => next + apart,
            Coming::ByChance(apart) => next + (apart as f64 * -chance.ln()) as u64,
        };
        now = now.max(next);
        if now / 200_000 == n_looks {
            continue;
        }
        n_looks = now / 200_000;
        let done = WorkDone {
            units,
            units_a_batch: 1,
        };
        let others = us(now.saturating_sub(10_000_000) / 2);
        let (worked, waited, at, rests) = (us(wanted), ms(0), us(now), pace.rests);
        let mark = Mark {
            at,
            done,
            worked,
            waited,
            others,
            rests,
        };
        said.push(match pace.look(mark, true).verdict {
            Verdict::Open => continue,
            Verdict::Well => '+',
            Verdict::Harmed => '-',
            Verdict::Unknown => '0',
        });
    }
    said
}

#[test]
fn a_drain_is_no_loss_to_who_waits_for_requests_and_is_one_to_a_loop() {
    use Coming::{ByChance, Every, Loop};
    for (coming, work, longer, harms) in [
        // A server at 8 %, and at a half.
        (ByChance(12_500), 1000, 2000, false),
        (ByChance(12_500), 1000, 6000, true),
        (ByChance(8000), 4000, 2000, false),
        (Every(12_500), 1000, 2000, false),
        (Every(12_500), 1000, 6000, true),
        // A loop of the same work, and one whose mini-batches take long.
        (Loop(11_500), 1000, 2000, true),
        (Loop(5000), 10_000, 2000, true),
        (Loop(5000), 10_000, 300, false),
        (Loop(200_000), 400_000, 3000, false),
        (Loop(200_000), 400_000, 150_000, true),
    ] {
        let said = verdicts_beside(coming, work, longer);
        let last: Vec<char> = said.chars().rev().take(5).collect();
        let n_harmed = last.iter().filter(|verdict| **verdict == '-').count();
        let what = format!("{coming:?}, {work} us, {longer} us longer: {said}");
        assert!(n_harmed == if harms { 5 } else { 0 }, "{what}");
        assert!(!said.starts_with('-'), "{what}");
    }
}

#[test]
fn a_job_is_idle_a_second_after_its_last_work() {
    let mut pace = Pace::default();
    let idle = [(0, 0), (800, 500), (1000, 500), (1800, 500), (2000, 510)].map(|(at, wanted)| {
        let mark = Mark {
            at: ms(at),
            done: WorkDone::default(),
            worked: ms(wanted),
            waited: ms(0),
            others: ms(0),
            rests: Rests::default(),
        };
        pace.look(mark, true).is_idle
    });
    assert_eq!(idle, [false, false, false, true, false]);
}
