//! A big gang's wait is bounded, whatever comes after it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sublet_model::Time;

use crate::test_cluster::TestCluster;

/// Jobs of one card come without end, each for ten seconds. When does a gang start that needs all
/// cards, and has come when they were busy?
fn gang_starts(reservation_after: u64) -> Option<u64> {
    let mut cluster = TestCluster::new(4, 4, &["a - 0 16", "b - 0 16"]);
    cluster.rules.reservation_after_ms = reservation_after;
    let mut ends: Vec<(u64, String)> = Vec::new();
    for now in 0..240u64 {
        for (_, name) in ends.extract_if(.., |(at, _)| *at <= now) {
            cluster.remove(&name);
        }
        for one in 0..3 {
            cluster.add(&[&format!("s{now}-{one} a t{now} | w 1 1 1x")]);
        }
        if now == 20 {
            cluster.add(&["big a t20 | w 4 4 4x"]);
        }
        for group in &mut cluster.groups {
            let from = group.started.map_or(now, Time::ms);
            group.ends = Some(Time::from_ms(from + 10));
        }
        cluster.tick(now);
        for group in &cluster.groups {
            let name = group.id.object().to_owned();
            let is_known = ends.iter().any(|(_, known)| *known == name);
            if group.started.is_some() && !is_known {
                ends.push((now + 10, name));
            }
        }
        if now >= 20 && cluster.group("big").started.is_some() {
            return Some(now);
        }
    }
    None
}

#[test]
fn a_gang_that_needs_everything_starts_within_the_bound() {
    assert_eq!(
        gang_starts(u64::MAX),
        None,
        "small jobs keep it waiting for ever"
    );
    let started = gang_starts(30).unwrap();
    // It came at 20, waited for 30, and then no longer than a job runs.
    assert!(started <= 20 + 30 + 10, "at {started}");
}

#[test]
fn while_nodes_are_held_only_who_is_gone_by_then_starts_there() {
    let mut cluster = TestCluster::new(2, 2, &["a - 0 8", "b - 0 8"]);
    cluster.rules.reservation_after_ms = 10;
    // Quotas are generous here: it is room that is missing.
    cluster.there_is("", 8);
    cluster.add(&["x a ends=50 | w 1 1 1x", "y a | w 1 1 2x"]);
    assert_eq!(cluster.tick(0), ["admit x 1", "admit y 1"]);
    cluster.add(&["big b t0 | w 1 1 2x"]);
    assert_eq!(cluster.tick(9), [] as [&str; 0], "it has not waited long");
    assert_eq!(cluster.tick(10), ["hold 1 for big"]);
    assert_eq!(
        cluster.hold.as_ref().unwrap().until,
        Some(Time::from_ms(50))
    );
    cluster.add(&["2long a t20 ends=60 | w 1 1 1x"]);
    assert_eq!(cluster.tick(20), ["hold 1 for big"]);
    cluster.add(&["3short a t20 ends=40 | w 1 1 1x"]);
    assert_eq!(cluster.tick(21), ["admit 3short 1", "hold 1 for big"]);
    cluster.remove("3short");
    cluster.remove("x");
    // The other one has waited long, too, and its turn is next.
    assert_eq!(cluster.tick(50), ["admit big 1", "hold 1 for 2long"]);
}

/// A group of the property below: the time when it comes, the number of its members that start
/// together, the cards of each, its running time, and whether it says that time.
#[derive(Debug, Clone)]
struct Come {
    at: u64,
    quota: &'static str,
    min: u64,
    cards: u64,
    runs: u64,
    tells: bool,
}

/// Groups come so long, and the longest of them runs so long.
const COMING: u64 = 120;
const LONGEST: u64 = 20;
const RESERVATION: u64 = 30;

fn any_group() -> impl Strategy<Value = Come> {
    let size = (1..=4u64).prop_flat_map(|cards| (1..=8 / cards, Just(cards)));
    let when = (0..COMING, 1..=LONGEST, any::<bool>(), any::<bool>());
    (size, when).prop_map(|((min, cards), (at, runs, tells, is_a))| Come {
        at,
        quota: if is_a { "a" } else { "b" },
        min,
        cards,
        runs,
        tells,
    })
}

/// Plays them on four nodes of four cards, and says when each started.
fn play(coming: &[Come]) -> Vec<Option<u64>> {
    // Each quota is entitled to half, whatever the other one asks.
    let mut cluster = TestCluster::new(4, 4, &["a! - 8 8", "b! - 8 8"]);
    cluster.rules.reservation_after_ms = RESERVATION;
    let name = |number: usize| format!("g{number:03}");
    let mut started = vec![None; coming.len()];
    let mut running: BTreeMap<usize, u64> = BTreeMap::new();
    for now in 0..COMING * 20 {
        for (number, _) in running.extract_if(.., |_, ends| *ends <= now) {
            cluster.remove(&name(number));
        }
        for (number, come) in coming.iter().enumerate() {
            let Come {
                at,
                quota,
                min,
                cards,
                ..
            } = come;
            if *at == now {
                cluster.add(&[&format!(
                    "{} {quota} t{at} | w {min} {min} {cards}x",
                    name(number)
                )]);
            }
            let waits = *at <= now && started[number].is_none();
            if waits && come.tells {
                cluster.group(&name(number)).ends = Some(Time::from_ms(now + come.runs));
            }
        }
        cluster.tick(now);
        for (number, come) in coming.iter().enumerate() {
            let is_new = come.at <= now && started[number].is_none();
            if is_new && cluster.group(&name(number)).started.is_some() {
                started[number] = Some(now);
                running.insert(number, now + come.runs);
            }
        }
        if started.iter().all(Option::is_some) {
            break;
        }
    }
    started
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// A group that is entitled to start gets room kept when it has waited long and those before it
    /// have started. Then it waits for the groups that run in its quota, and for those on the nodes
    /// that are kept for it.
    #[test]
    fn who_is_entitled_to_start_does_within_the_bound(
        mut coming in prop::collection::vec(any_group(), 30..80)
    ) {
        coming.sort_by_key(|come| come.at);
        let started = play(&coming);
        let mut before = 0;
        for (come, started) in coming.iter().zip(started) {
            prop_assert!(started.is_some(), "{come:?} never starts");
            let started = started.unwrap_or(u64::MAX);
            let kept = before.max(come.at + RESERVATION);
            prop_assert!(started <= kept + 2 * LONGEST, "{come:?} at {started}, {kept}");
            before = before.max(started);
        }
    }
}
