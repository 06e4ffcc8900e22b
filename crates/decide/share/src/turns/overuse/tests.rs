//! Jobs that say what they do, jobs that do not, and figures that are rounded, late or slept
//! through.

use proptest::prelude::*;

use super::*;

fn percent(percent: u64) -> Duration {
    Duration::from_millis(percent * 10)
}

/// A second of one process, by its measured time, and the time that its turns explain.
fn second(measured: u64, explained: u64) -> BusyReading {
    BusyReading {
        span: percent(100),
        measured: percent(measured),
        n_processes: u32::from(measured > 0),
        worked: percent(explained),
        had: percent(explained),
        ..BusyReading::default()
    }
}

/// Tells after each reading whether the job is marked.
fn marks_of(readings: impl IntoIterator<Item = BusyReading>) -> String {
    let mut watch = OveruseWatch::default();
    let each = readings.into_iter().map(|reading| {
        watch.note(reading);
        match watch.contradiction() {
            Some(_) => '!',
            None => '.',
        }
    });
    each.collect()
}

fn marks(seconds: &[(u64, u64)]) -> String {
    let seconds = seconds.iter();
    marks_of(seconds.map(|(measured, explained)| second(*measured, *explained)))
}

#[test]
fn who_says_that_it_rests_and_works_is_found_within_seconds() {
    for (seconds, expected) in [
        (&[(100, 0); 6][..], ".!!!!!"),
        (&[(60, 10); 6], "...!!!"),
        // The driver rounds, and is late.
        (&[(53, 53); 12], "............"),
        (
            &[(0, 100), (100, 100), (100, 100), (100, 0), (0, 0)],
            ".....",
        ),
        (&[(0, 100), (0, 0), (100, 0), (0, 0), (50, 0)], "....."),
        // It works in its turns again, and after some time that is seen.
        (
            &[
                (80, 0),
                (80, 0),
                (80, 0),
                (50, 50),
                (50, 50),
                (50, 50),
                (50, 50),
                (50, 50),
                (50, 50),
                (50, 50),
                (50, 50),
            ],
            ".!!!!!!!!!.",
        ),
    ] {
        assert_eq!(marks(seconds), expected, "{seconds:?}");
    }
}

/// After this number of seconds of the same use the job is found.
fn found_after(reading: BusyReading) -> Option<usize> {
    marks_of(std::iter::repeat_n(reading, 300)).find('!')
}

#[test]
fn a_second_and_a_half_within_a_hundred_is_too_much_however_small_the_pieces() {
    // Half a percent is rounding.
    assert_eq!(found_after(second(14, 2)), Some(13));
    assert_eq!(found_after(second(4, 0)), Some(42));
    assert_eq!(found_after(second(2, 1)), None, "half a second in all");
    // So is half a percent of each of eight.
    let of_eight = |measured| BusyReading {
        n_processes: 8,
        ..second(measured, 10)
    };
    assert_eq!(found_after(of_eight(14)), None);
    assert_eq!(found_after(of_eight(24)), Some(14));
}

#[test]
fn only_one_that_is_marked_pays_and_then_for_all_of_it() {
    let mut watch = OveruseWatch::default();
    let reading = second(90, 20);
    let all: Vec<Overuse> = (0..4).map(|_| watch.note(reading)).collect();
    let charges = all.iter().map(|one| one.charge).collect::<Vec<_>>();
    // All but half a percent.
    let each = percent(70) - Duration::from_millis(5);
    assert_eq!(
        charges,
        [Duration::ZERO, Duration::ZERO, each * 3, each],
        "1.4 seconds are none"
    );
    assert!(all.iter().all(|one| one.beyond == each), "it is shown");
    let news = all.iter().map(|one| one.is_news).collect::<Vec<_>>();
    assert_eq!(news, [false, false, true, false]);
    assert_eq!(watch.contradiction(), Some((90, 20)));
}

#[test]
fn what_an_arbiter_slept_through_accuses_nobody() {
    // It was stopped for five seconds, and the driver's figures are a second late.
    let stopped = BusyReading {
        span: percent(520),
        slept: percent(500),
        measured: percent(390),
        worked: percent(15),
        had: percent(15),
        ..second(75, 0)
    };
    // Nobody noticed: a driver that did not answer.
    let unseen = BusyReading {
        slept: Duration::ZERO,
        ..stopped
    };
    for odd in [stopped, unseen] {
        let after = [
            second(75, 0),
            second(75, 30),
            second(75, 75),
            second(75, 75),
        ];
        let readings = [second(75, 75), odd].into_iter().chain(after);
        assert_eq!(marks_of(readings), "......", "{odd:?}");
    }
    // One that sleeps for a moment now and then finds a liar all the same.
    let nodding = BusyReading {
        slept: percent(20),
        ..second(90, 0)
    };
    assert!(found_after(nodding).is_some_and(|at| at < 4));
}

#[test]
fn a_gate_that_does_not_hold_is_told_from_one_that_does() {
    let closed = |measured, closed_for| BusyReading {
        closed_for: percent(closed_for),
        ..second(measured, 0)
    };
    let found = |readings: &[BusyReading]| {
        let mut watch = OveruseWatch::default();
        let cycle = readings.iter().cycle().take(100);
        let news = cycle.map(|reading| watch.note(*reading).is_out_of_turn);
        let news: Vec<bool> = news.collect();
        assert!(news.iter().filter(|news| **news).count() <= 1, "said once");
        news.iter().position(|news| *news)
    };
    assert_eq!(found(&[closed(50, 9000)]), Some(22));
    // In its turns it lies, and between them it stands at its gate.
    assert_eq!(
        found(&[closed(90, 0), closed(60, 100), closed(0, 200)]),
        None
    );
    // It is closed in each second anew: the figures may be of the time before.
    assert_eq!(found(&[closed(50, 150)]), None);
    // A kernel that runs on for nine seconds, and then nothing does.
    let long = [closed(100, 900); 9].into_iter().chain([closed(0, 900)]);
    assert_eq!(found(&long.collect::<Vec<_>>()), None);
}

proptest! {
    /// Figures that are late by up to a second, and rounded as the driver rounds, accuse nobody
    /// who says what it does.
    #[test]
    fn who_says_what_it_does_is_never_found(
        seconds in proptest::collection::vec(0..=100_u64, 1..400),
        late in 0..=100_u64,
        up in any::<bool>(),
    ) {
        let mut watch = OveruseWatch::default();
        let mut before = 0;
        for worked in seconds {
            let measured = before * late + worked * (100 - late);
            let measured = measured / 100 + u64::from(up && measured % 100 >= 50);
            before = worked;
            let found = watch.note(second(measured, worked));
            prop_assert_eq!((found.is_news, found.charge), (false, Duration::ZERO));
        }
    }

    /// Whatever pattern a job of false reports has, it gets no more than a second and a half in
    /// a hundred, beside what is rounded, that it does not pay for.
    #[test]
    fn nobody_gets_more_than_a_second_and_a_half_for_nothing(
        seconds in proptest::collection::vec((0..=100_u64, 0..=100_u64), 100),
    ) {
        let mut watch = OveruseWatch::default();
        let (mut took, mut paid) = (Duration::ZERO, Duration::ZERO);
        for (measured, explained) in seconds {
            let measured = measured.max(explained);
            took += percent(measured);
            paid += percent(explained) + watch.note(second(measured, explained)).charge;
        }
        prop_assert!(took <= paid + percent(150) + percent(50), "{took:?} for {paid:?}");
    }
}
