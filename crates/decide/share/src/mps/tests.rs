//! The daemon's life in pictures, the terms for clients, and the jobs that keep turns.

use super::*;
use crate::job::ComputeRange;

fn at(ms: u64) -> Time {
    Time::from_ms(ms)
}

fn milli(percent: u16) -> Milli {
    Milli::new(percent * 10).unwrap()
}

fn gone_until(daemon: &MpsDaemon) -> u64 {
    match daemon.state() {
        MpsState::Gone { again_at, .. } => again_at.ms(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_daemon_is_asked_until_it_answers_and_given_up_if_it_does_not() {
    let mut daemon = MpsDaemon::started_at(at(5));
    assert_eq!(daemon.due(at(5)), Some(MpsDue::Ask));
    assert_eq!(daemon.due(at(10_004)), Some(MpsDue::Ask));
    assert_eq!(daemon.due(at(10_005)), Some(MpsDue::GiveUp));
    assert_eq!(daemon.serving(), None);
    daemon.answered(at(300));
    assert_eq!(daemon.serving(), Some(MpsLife(1)));
    assert_eq!(daemon.due(at(1_000_000)), None);
    // An answer that comes late changes nothing.
    daemon.answered(at(400));
    assert_eq!(daemon.serving(), Some(MpsLife(1)));
}

#[test]
fn it_is_started_again_later_and_later_until_one_has_served_for_a_while() {
    let mut daemon = MpsDaemon::started_at(at(0));
    daemon.answered(at(0));
    let mut now = 0;
    for (served_ms, wait_ms) in [
        (100_000, 1_000),
        (10, 2_000),
        (10, 4_000),
        (59_999, 8_000),
        (60_000, 1_000),
    ] {
        now += served_ms;
        daemon.ended(at(now), "exit status: 1".to_owned());
        assert_eq!(gone_until(&daemon) - now, wait_ms, "after {served_ms} ms");
        assert_eq!(daemon.due(at(now + wait_ms - 1)), None);
        now += wait_ms;
        assert_eq!(daemon.due(at(now)), Some(MpsDue::Start));
        daemon.start(at(now));
        let after = Some("exit status: 1".to_owned());
        assert_eq!(
            *daemon.state(),
            MpsState::Starting {
                since: at(now),
                after
            }
        );
        daemon.answered(at(now));
    }
    assert_eq!(daemon.serving(), Some(MpsLife(6)));
    for _ in 0..100 {
        daemon.ended(at(now), String::new());
    }
    assert_eq!(gone_until(&daemon) - now, 60_000);
}

#[test]
fn a_job_is_lost_with_the_daemon_of_any_of_its_processes() {
    use MpsClient::{Of, OfBefore, OfNone};
    let (old, new) = (Of(MpsLife(1)), Of(MpsLife(2)));
    for (serving, processes, expected) in [
        (2, &[][..], "serving"),
        (2, &[new, new], "serving"),
        (2, &[new, old], "lost"),
        (2, &[OfBefore], "lost"),
        (2, &[new, OfNone], "without"),
        (2, &[OfNone, old], "lost"),
        (0, &[], "without"),
        (0, &[OfNone], "without"),
        (0, &[old], "lost"),
    ] {
        let life = (serving > 0).then_some(MpsLife(serving));
        let processes = processes.iter().map(|client| (*client, Some(UserId(7))));
        let standing = MpsStanding::of(life, Some(UserId(7)), processes);
        assert_eq!(standing.word(), expected, "{serving}");
    }
}

#[test]
fn a_job_of_another_user_than_the_server_s_waits() {
    use MpsClient::{Of, OfBefore, OfNone};
    let (zero, one) = (Some(UserId(0)), Some(UserId(1)));
    let ours = Of(MpsLife(1));
    for (served, processes, expected) in [
        (None, &[(ours, zero), (ours, one)][..], "serving"),
        (one, &[(ours, one)], "serving"),
        (one, &[(ours, None)], "serving"),
        (one, &[], "serving"),
        (one, &[(ours, zero)], "waiting"),
        (zero, &[(ours, zero), (ours, one)], "waiting"),
        (zero, &[(ours, one), (OfNone, zero)], "without"),
        (zero, &[(ours, one), (OfBefore, zero)], "lost"),
    ] {
        let standing = MpsStanding::of(Some(MpsLife(1)), served, processes.iter().copied());
        assert_eq!(standing.word(), expected, "{served:?}: {processes:?}");
    }
    let behind = MpsStanding::of(Some(MpsLife(1)), zero, [(ours, one)]);
    assert_eq!(behind, MpsStanding::Waiting(UserId(0)));
}

#[test]
fn clients_are_told_their_limits_card_by_card() {
    let check = |limit: u16, memory: &[u32]| {
        let terms = MpsTerms {
            pipe: "/r/pipe".to_owned(),
            compute_limit: Milli::new(limit).unwrap(),
            memory: memory.iter().map(|mib| MiB::from(*mib)).collect(),
        };
        terms.variables().map(|(_, value)| value).join(" ")
    };
    assert_eq!(check(1000, &[4096]), "/r/pipe 100 0=4096M");
    assert_eq!(check(300, &[512, 1024]), "/r/pipe 30 0=512M,1=1024M");
    assert_eq!(check(305, &[1]), "/r/pipe 30 0=1M");
    assert_eq!(check(4, &[1]), "/r/pipe 1 0=1M");
}

/// Jobs as `g25..50@0,1`: class, promise, limit, cards. The result says on which cards each has
/// turns.
fn timed(jobs: &[&str]) -> Vec<Vec<usize>> {
    let job = |text: &&str| {
        let (what, cards) = text[1..].split_once('@').unwrap();
        let (request, limit) = what.split_once("..").unwrap();
        let compute = ComputeRange::new(
            milli(request.parse().unwrap()),
            milli(limit.parse().unwrap()),
        );
        let cards = cards.split(',').map(|card| card.parse().unwrap());
        let part = |card| Holding::of_memory(card, MiB::from(1)).with_compute(compute.unwrap());
        let class = match text.starts_with('o') {
            true => Class::Opportunistic,
            false => Class::Guaranteed,
        };
        (class, cards.map(part).collect())
    };
    let numbers = (0..).map(JobId);
    let jobs: BTreeMap<_, _> = numbers.zip(jobs.iter().map(job)).collect();
    let shares = shares_beside_mps(&jobs);
    let mut all = shares.values().flatten();
    assert!(all.all(|share| share.limit == Milli::WHOLE));
    let cards = |shares: Vec<TimeShare>| shares.iter().map(|share| share.card).collect();
    shares.into_values().map(cards).collect()
}

#[test]
fn turns_stay_where_mps_cannot_keep_a_promise() {
    for (jobs, expected) in [
        // Alone, or nobody is promised anything: side by side.
        (&["g30..100@0"][..], &[&[][..]][..]),
        (&["g0..100@0", "g0..100@0"], &[&[], &[]]),
        (&["o0..100@0", "o0..100@0"], &[&[], &[]]),
        // The limits fit on the card.
        (&["g30..50@0", "g50..50@0"], &[&[], &[]]),
        (&["g30..70@0", "o0..30@0"], &[&[], &[]]),
        // They do not.
        (&["g30..50@0", "g50..60@0"], &[&[0], &[0]]),
        (&["g30..100@0", "g0..100@0"], &[&[0], &[0]]),
        (&["g0..100@0", "o0..100@0"], &[&[0], &[0]]),
        // Each card by itself.
        (
            &["g30..100@0,1", "g0..100@1", "g0..50@2"],
            &[&[1], &[1], &[]],
        ),
    ] {
        assert_eq!(timed(jobs), expected, "{jobs:?}");
    }
}
