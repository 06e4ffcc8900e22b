//! Numbers of turns, the pace of rounds, and the length of turns that a job asks for.

mod callers;

use sublet_model::{MiB, Milli, SliceLength};

use super::*;

#[test]
fn a_job_has_turns_of_its_own_length_and_none_shorter_than_the_site_permits() {
    let time = TimeSharing {
        shortest_slice: SliceLength::of(Duration::from_millis(3)),
        ..TimeSharing::default()
    };
    let mut turns = CardTurns::new(1, 1, &time).unwrap();
    assert_eq!(turns.rules.shortest, Duration::from_millis(3));
    let mut told = |job: u64, asked: Option<u64>, compute: u16| {
        let part = Holding {
            compute_limit: Milli::new(compute).unwrap(),
            ..Holding::of_memory(0, MiB::from(1))
        };
        let asked = asked.map(Duration::from_millis);
        turns.place(JobId(job), Class::Guaranteed, asked, &[part]);
        let Some(TurnEvent::Placed { job, slice, .. }) = turns.events.pop() else {
            panic!("nothing was said of job {job}");
        };
        (job.0, slice.map(|slice| slice.as_millis()))
    };
    assert_eq!(told(1, None, 1000), (1, None));
    assert_eq!(told(2, Some(1), 1000), (2, Some(3)));
    assert_eq!(told(3, Some(7), 1000), (3, Some(7)));
    // Other limits later.
    assert_eq!(told(3, Some(7), 500), (3, Some(7)));
    turns.remove(JobId(3));
    assert!(!turns.slices.contains_key(&JobId(3)));
}

#[test]
fn numbers_of_two_lives_are_apart_and_none_is_zero() {
    let of = |epoch: u64| {
        let time = TimeSharing::default();
        CardTurns::new(epoch, 1, &time).unwrap().number_of_first
    };
    for epoch in 1..1000 {
        let (now, next) = (of(epoch), of(epoch + 1));
        let apart = number_of(now, 0).abs_diff(number_of(next, 0));
        assert!(apart > 1 << 24, "{epoch}: {apart}");
    }
    for turn in [0, 1, (1 << 30) - 2, (1 << 30) - 1, u32::MAX] {
        for first in [0, 5, u32::MAX] {
            let number = number_of(first, turn);
            assert!((1..1 << 30).contains(&number), "{first}, {turn}: {number}");
        }
    }
}

#[test]
fn rounds_take_no_more_than_a_part_of_the_time() {
    for (took_us, first_us, last_us) in [
        (1, 100, 100),
        (12, 100, 768),
        (50, 100, 3200),
        (9000, 5000, 5000),
    ] {
        let mut pace = Pace::default();
        let mut now = Duration::from_secs(7);
        let mut aparts = Vec::new();
        for _ in 0..4000 {
            pace.note(now, Duration::from_micros(took_us));
            aparts.push((pace.next - now).as_micros());
            now = pace.next;
        }
        let last = aparts[aparts.len() - 1];
        assert_eq!((aparts[0], last), (first_us, last_us), "{took_us}");
        // After a rest it may hurry again.
        now += Duration::from_secs(1);
        pace.note(now, Duration::from_micros(took_us));
        assert_eq!((pace.next - now).as_micros(), first_us, "{took_us}");
    }
}
