//! Differences of the fair profile: victims by node, little work lost, minima in time, loans.

use sublet_model::Time;

use crate::test_cluster::TestCluster;
use crate::{Quota, QuotaTree};

const HOUR: u64 = 60 * 60 * 1000;

fn fair(nodes: usize, cards: u16, quotas: &[&str]) -> TestCluster {
    let mut cluster = TestCluster::new(nodes, cards, quotas);
    cluster.rules.profile = "fair".parse().unwrap();
    cluster
}

/// The evictions among what was told.
fn evictions(told: &[String]) -> Vec<&str> {
    let all = told.iter().map(String::as_str);
    all.filter(|one| one.starts_with("evict")).collect()
}

/// Twelve single cards of `bor` on two nodes of six; those that go first by rank are on both.
fn lent_on_both_nodes(profile: &str) -> TestCluster {
    let mut cluster = TestCluster::new(2, 6, &["bor - 4 12", "own - 8 12"]);
    cluster.rules.profile = profile.parse().unwrap();
    for at in 0..12 {
        cluster.add(&[&format!("x{at:02} bor t{} | w 1 1 1x", at % 2)]);
    }
    assert_eq!(cluster.tick(2).len(), 12);
    cluster
}

/// Issue 42, 1.1: one sequence of victims for the whole cluster is cut off where it is legal, and
/// so many are never on one node.
#[test]
fn an_owner_gets_the_place_that_legal_victims_of_one_node_leave() {
    let mut cluster = lent_on_both_nodes("koordinator");
    cluster.add(&["o own t3 | w 1 1 4x"]);
    let told = cluster.tick(HOUR);
    assert!(evictions(&told).is_empty(), "kept as it is: {told:?}");
    for profile in ["fair", "strict"] {
        let mut cluster = lent_on_both_nodes(profile);
        cluster.add(&["o own t3 | w 1 1 4x"]);
        assert_eq!(cluster.tick(3), [] as [&str; 0], "{profile}");
        assert_eq!(
            cluster.tick(3 + HOUR),
            ["evict x04 x06 x08 x10 for o 1"],
            "{profile}"
        );
    }
}

#[test]
fn guarded_members_use_nothing_up() {
    let mut cluster = lent_on_both_nodes("fair");
    cluster.guarded = vec!["|x10|", "|x08|", "|x06|"];
    cluster.add(&["o own t3 | w 1 1 4x"]);
    cluster.tick(3);
    assert_eq!(cluster.tick(3 + HOUR), ["evict x05 x07 x09 x11 for o 1"]);
}

#[test]
fn of_all_nodes_the_one_goes_where_least_is_lost() {
    let mut cluster = fair(3, 2, &["bor - 0 6", "own - 6 6"]);
    cluster.add(&["a bor | w 1 1 2x"]);
    cluster.tick(0);
    cluster.add(&["b bor | w 1 1 1x", "c bor saves=10 | w 1 1 1x"]);
    cluster.tick(5);
    cluster.add(&["d bor | w 1 1 2x"]);
    cluster.tick(9);
    cluster.add(&["o own t10 | w 1 1 2x"]);
    cluster.tick(10);
    // The youngest loses two cards' time; of the pair one has just saved its work.
    let told = cluster.tick(10 + HOUR);
    assert_eq!(told, ["evict b c for o 1"]);
    cluster.add(&["p own t11 | w 1 1 2x"]);
    cluster.tick(11 + HOUR);
    assert_eq!(cluster.tick(11 + 2 * HOUR), ["evict d for p 1"]);
}

#[test]
fn before_its_time_a_group_costs_others_a_hundredth_of_its_wait() {
    for (ran, waits, goes) in [
        (100, 9_999, false),
        (100, 10_000, true),
        (101, 10_000, false),
    ] {
        let mut cluster = fair(1, 2, &["bor - 0 2", "own - 2 2"]);
        cluster.add(&["x bor | w 1 1 2x"]);
        cluster.tick(20_000 - ran);
        cluster.add(&[&format!("o own t{} | w 1 1 2x", 20_000 - waits)]);
        let told = cluster.tick(20_000);
        assert_eq!(!told.is_empty(), goes, "{ran} {waits}");
    }
}

/// Each time that a group went before doubles what counts as lost.
#[test]
fn who_went_before_costs_more() {
    for (reclaims, goes) in [(0, true), (1, false)] {
        let mut cluster = fair(2, 2, &["bor - 0 4", "own - 4 4"]);
        cluster.add(&["x bor | w 2 2 2x"]);
        cluster.tick(19_900);
        cluster.group("x").past.reclaims = reclaims;
        cluster.add(&["o own t0 | w 1 1 2x"]);
        assert_eq!(!cluster.tick(20_000).is_empty(), goes, "{reclaims}");
    }
}

#[test]
fn a_quota_and_a_site_say_when_a_minimum_is_due() {
    for (site, quota, due) in [(HOUR, None, HOUR), (0, None, 0), (HOUR, Some(5), 5)] {
        let mut cluster = fair(1, 2, &["bor - 0 2", "own - 2 2"]);
        cluster.rules.min_within_ms = site;
        let quotas = cluster.tree.quotas().map(|(known, _)| Quota {
            min_within_ms: quota,
            ..known.clone()
        });
        cluster.tree = QuotaTree::new(quotas.collect()).unwrap();
        cluster.add(&["x bor | w 1 1 2x"]);
        cluster.tick(0);
        cluster.add(&["o own t1000 | w 1 1 2x"]);
        for now in [1000, 999 + due] {
            let told = if due > 0 {
                cluster.tick(now)
            } else {
                Vec::new()
            };
            assert!(evictions(&told).is_empty(), "{told:?}");
        }
        assert_eq!(cluster.tick(1000 + due), ["evict x for o 1"]);
    }
}

/// The time counts from when the minimum has room: before, the quota's own groups had it.
#[test]
fn a_minimum_is_not_due_before_it_has_room() {
    let mut cluster = fair(3, 2, &["bor - 0 6", "own - 2 6"]);
    cluster.add(&[
        "mine own | w 1 1 2x",
        "x bor | w 1 1 2x",
        "y bor | w 1 1 2x",
    ]);
    cluster.tick(0);
    cluster.add(&["o own t1 | w 1 1 2x"]);
    let told = cluster.tick(9 * HOUR);
    assert!(evictions(&told).is_empty(), "{told:?}");
    cluster.remove("mine");
    // Somebody is faster than the queue.
    cluster.add(&["z bor | w 1 1 2x"]);
    cluster.force("z");
    for now in [9 * HOUR, 10 * HOUR - 1] {
        let told = cluster.tick(now);
        assert!(evictions(&told).is_empty(), "{told:?}");
    }
    assert_eq!(cluster.tick(10 * HOUR), ["evict z for o 1"]);
}

#[test]
fn a_gang_larger_than_a_node_goes_only_for_a_minimum() {
    let story = |min: u64| {
        let line = format!("own - {min} 4");
        let mut cluster = fair(2, 2, &["bor - 0 4", &line]);
        cluster.add(&["gang bor | w 2 2 2x"]);
        cluster.tick(100 * HOUR);
        cluster.add(&["o own t0 | w 1 1 2x"]);
        cluster.tick(100 * HOUR + 1)
    };
    assert_eq!(story(2), ["evict gang for o 1"]);
    let told = story(0);
    assert!(evictions(&told).is_empty(), "{told:?}");
}

#[test]
fn idle_cards_are_lent_last_and_go_first() {
    let mut cluster = fair(1, 4, &["a - 1 4", "b - 3 4"]);
    cluster.add(&["a1 a | w 1 1 2x", "a2 a | w 1 1 2x", "b1 b | w 1 1 3x"]);
    // One card is left, and both quotas together ask more: it stays idle only if nobody fits.
    assert_eq!(cluster.tick(0), ["admit b1 1"]);
    cluster.add(&["a3 a t1 | w 1 1 1x", "a4 a t1 firm | w 1 1 1x"]);
    assert_eq!(cluster.tick(1), ["admit a3 1"]);
    cluster.remove("b1");
    cluster.add(&["b2 b t2 | w 1 1 4x"]);
    // The other quota is entitled to one, and has three.
    let told = cluster.tick(2);
    assert!(told.contains(&"admit a1 1".to_owned()), "{told:?}");
    for (profile, goes) in [("fair", true), ("strict", false)] {
        let mut cluster = fair(1, 4, &["a - 0 4", "b - 3 4"]);
        cluster.rules.profile = profile.parse().unwrap();
        cluster.add(&["x a | w 1 1 2x", "y b | w 1 1 3x"]);
        cluster.group("y").not_before = Some(Time::from_ms(99));
        assert_eq!(!cluster.tick(0).is_empty(), goes, "{profile}");
    }
}

#[test]
fn nothing_is_lent_that_a_quota_keeps_or_another_tree_has_or_a_max_forbids() {
    for (quotas, other_tree, goes) in [
        (["a - 0 4", "b! - 3 4"], 0, false),
        (["a - 0 4", "b - 3 4"], 0, true),
        (["a - 0 1", "b - 3 4"], 0, false),
        (["a - 0 4", "b@x - 0 4"], 3, false),
    ] {
        let mut cluster = fair(1, 4, &quotas);
        cluster.there_is("", 4 - other_tree);
        cluster.there_is("x", other_tree);
        cluster.add(&["x a | w 1 1 2x"]);
        // It asks for its part, and cannot start: a rule of the site keeps it.
        cluster.add(&["y b | w 1 1 3x"]);
        cluster.group("y").not_before = Some(Time::from_ms(99));
        assert_eq!(!cluster.tick(0).is_empty(), goes, "{quotas:?}");
    }
}

/// A group that was reclaimed comes back within its quota's entitlement only; a gang that no node could hold
/// may borrow again.
#[test]
fn who_went_borrows_no_more_but_a_wide_gang_does() {
    for (ask, again) in [("1 1 2x", false), ("2 2 2x", true)] {
        let mut cluster = fair(3, 2, &["a - 0 6", "b - 6 6"]);
        cluster.add(&[
            &format!("x a | w {ask}"),
            "y b | w 1 1 2x",
            "z b t1 | w 3 3 2x",
        ]);
        cluster.group("x").past.reclaims = 1;
        cluster.group("z").not_before = Some(Time::from_ms(99));
        let told = cluster.tick(0).join(", ");
        assert_eq!(told.contains("admit x"), again, "{told}");
    }
}

#[test]
fn large_groups_that_wait_pass_others() {
    let day = 24 * HOUR;
    for (waited, first) in [(0, "admit small"), (20 * day, "admit large")] {
        let mut cluster = fair(1, 8, &["a - 0 16", "b - 0 16"]);
        cluster.there_is("", 16);
        let since = 30 * day - waited;
        cluster.add(&["run b | w 1 1 1x", "0run a | w 1 1 1x"]);
        cluster.tick(30 * day);
        // They ask for the rest of each half, and are not tried.
        cluster.add(&["wa a | w 1 1 5x", "wb b | w 1 1 1x"]);
        for name in ["wa", "wb"] {
            cluster.group(name).not_before = Some(Time::from_ms(u64::MAX));
        }
        cluster.add(&[
            &format!("small a t{} | w 1 1 2x", 30 * day),
            &format!("large b t{since} | w 1 1 6x"),
        ]);
        let told = cluster.tick(30 * day + 1).join(", ");
        assert!(told.starts_with(first), "{told}");
    }
}

/// Twice where they have checkpoints.
#[test]
fn a_wide_gang_takes_from_smaller_groups_of_its_own_once() {
    for (reclaims, words, goes) in [
        (0, "p0", true),
        (1, "p0", false),
        (1, "p0 saves=9", true),
        (2, "p0 saves=9", false),
        (0, "p1", false),
    ] {
        let mut cluster = fair(2, 2, &["a - 4 4"]);
        for at in 0..4 {
            cluster.add(&[&format!("s{at} a {words} | w 1 1 1x")]);
        }
        cluster.tick(100 * HOUR);
        for at in 0..4 {
            cluster.group(&format!("s{at}")).past.reclaims = reclaims;
        }
        cluster.add(&["gang a | w 2 2 2x"]);
        let told = cluster.tick(100 * HOUR + 1);
        assert_eq!(!told.is_empty(), goes, "{reclaims} {words} {told:?}");
    }
}

#[test]
fn a_hold_keeps_no_quota() {
    let mut cluster = fair(2, 2, &["a - 4 4"]);
    cluster.rules.reservation_after_ms = 10;
    cluster.add(&["x a | w 1 1 1x", "y a | w 1 1 2x"]);
    cluster.tick(0);
    cluster.add(&["big a t0 | w 1 1 2x"]);
    cluster.tick(20);
    cluster.add(&["one a t21 | w 1 1 1x"]);
    assert_eq!(cluster.tick(21), ["admit one 1"], "its quota has one left");
}

/// Each hour that a group runs counts as ten that it came later: the long one is passed for ten hours
/// of its own run time.
#[test]
fn who_runs_for_less_goes_first_in_its_quota_for_a_while() {
    let tick = |profile: &str, later: u64| {
        let mut cluster = fair(1, 1, &["a - 1 1"]);
        cluster.rules.profile = profile.parse().unwrap();
        let long = format!("long a t{HOUR} runs={HOUR} | w 1 1 1x");
        let short = format!("short a t{} runs=1000 | w 1 1 1x", HOUR + later);
        cluster.add(&[&long, &short]);
        cluster.tick(30 * HOUR).swap_remove(0)
    };
    // An hour is 2^22 ms rounded up.
    let passed_for = 10 * ((1 << 22) - 1024);
    for (profile, later, first) in [
        ("fair", 1, "admit short 1"),
        ("fair", passed_for - 1, "admit short 1"),
        ("fair", passed_for + 1, "admit long 1"),
        ("strict", 1, "admit short 1"),
        ("koordinator", 1, "admit long 1"),
    ] {
        assert_eq!(tick(profile, later), first, "{profile} {later}");
    }
    // Who does not say it counts as one of an hour.
    let mut cluster = fair(1, 1, &["a - 1 1"]);
    let hours = |name: &str, hours: u64| format!("{name} a runs={} | w 1 1 1x", hours * HOUR);
    cluster.add(&[&hours("x", 4), "y a | w 1 1 1x", &hours("z", 2)]);
    assert_eq!(cluster.tick(0)[0], "admit y 1");
}

/// On both nodes one card is free when somebody is asked to leave, and somebody must stay: on the
/// first since long ago.
#[test]
fn room_is_kept_where_those_that_must_stay_are_young() {
    let mut cluster = fair(3, 2, &["a - 2 6", "own - 4 6"]);
    cluster.rules.reservation_after_ms = u64::MAX;
    cluster.add(&["old a firm | w 1 1 1x", "x a | w 1 1 1x"]);
    cluster.tick(0);
    cluster.add(&["o own | w 1 1 2x"]);
    assert_eq!(cluster.tick(1), ["admit o 1"]);
    cluster.add(&["young a firm | w 1 1 1x", "y a | w 1 1 1x"]);
    cluster.tick(HOUR);
    assert_eq!(cluster.places("old"), cluster.places("x"));
    assert_eq!(cluster.places("young"), cluster.places("y"));
    cluster.add(&[&format!("p own t{} | w 1 1 2x", 2 * HOUR)]);
    assert_eq!(cluster.tick(2 * HOUR), [] as [&str; 0]);
    assert_eq!(cluster.tick(3 * HOUR), ["hold 1 for p"]);
    let held = cluster.hold.as_ref().unwrap().nodes[0];
    let of_young = cluster.engine.ledger().book(held).name().to_string();
    assert!(cluster.places("young").contains(&of_young), "{of_young}");
}

/// Room is kept by true age: nobody has it sooner by what it says of itself.
#[test]
fn who_says_to_be_short_is_not_kept_room_for_before_others() {
    let mut cluster = fair(2, 2, &["a - 4 4"]);
    cluster.rules.reservation_after_ms = 10;
    cluster.add(&["x a | w 1 1 1x", "y a | w 1 1 2x"]);
    cluster.tick(0);
    cluster.remove("y");
    cluster.add(&["z a | w 1 1 1x", "zz a | w 1 1 1x"]);
    cluster.tick(1);
    // One card is left on each node.
    cluster.remove("x");
    cluster.add(&["old a t2 runs=9000000 | w 1 1 2x"]);
    cluster.add(&["short a t5 runs=1 | w 1 1 2x"]);
    cluster.tick(20);
    let hold = cluster
        .hold
        .as_ref()
        .map(|hold| hold.group.object().to_owned());
    assert_eq!(hold.as_deref(), Some("old"));
}

/// Beyond what its quota is entitled to it takes the place of others that are, each once.
#[test]
fn a_wide_gang_takes_from_other_borrowers_once() {
    for (reclaims, goes) in [(0, true), (1, false)] {
        let mut cluster = fair(2, 2, &["a - 0 4", "b - 0 4", "c - 3 4"]);
        for at in 0..4 {
            cluster.add(&[&format!("s{at} b | w 1 1 1x")]);
        }
        cluster.tick(100 * HOUR);
        for at in 0..4 {
            cluster.group(&format!("s{at}")).past.reclaims = reclaims;
        }
        // It asks for its part, and is not tried.
        cluster.add(&["y c | w 1 1 2x", "z c | w 1 1 1x", "gang a | w 2 2 2x"]);
        for name in ["y", "z"] {
            cluster.group(name).not_before = Some(Time::from_ms(u64::MAX));
        }
        let told = cluster.tick(100 * HOUR + 1);
        assert_eq!(!evictions(&told).is_empty(), goes, "{reclaims} {told:?}");
    }
}
