//! Tests which members are evicted for a group. The rows of Kueue's and KAI's own tests are here if
//! their rule and ours say the same.

use crate::test_cluster::TestCluster;

/// Quotas `a`, `b` and `c` with a minimum of three each, on nine cards. `running`: `a3 b5` for
/// three groups of one card in `a` and five in `b`. Returns what happens when a group of so many
/// cards comes.
fn when(running: &str, comes: &str) -> String {
    let mut cluster = TestCluster::new(1, 9, &["a - 3 9", "b - 3 9", "c - 3 9"]);
    for word in running.split_whitespace() {
        let (quota, count) = word.split_at(1);
        for at in 0..count.parse::<u32>().unwrap() {
            cluster.add(&[&format!("{quota}{at} {quota} | w 1 1 1x")]);
        }
    }
    cluster.tick(0);
    assert!(
        cluster
            .groups
            .iter()
            .all(|group| group.members().count() == 1),
        "{running}"
    );
    let (quota, cards) = comes.split_once('+').unwrap();
    cluster.add(&[&format!("new {quota} t1 | w {cards} {cards} 1x")]);
    cluster.tick(1).join(", ")
}

#[test]
fn what_was_lent_comes_back_to_who_asks_for_it() {
    for (running, comes, expected) in [
        ("a3 b5 c1", "c+1", "evict b4 for new 1"),
        ("a3 b5 c1", "a+1", "evict b4 for new 1"),
        ("a3 b3 c3", "c+1", ""),
        ("a2 b7", "a+5", ""),
        ("b7", "a+6", ""),
        ("b9", "a+1", "evict b8 for new 1"),
        ("b9", "a+3", "evict b6 b7 b8 for new 3"),
        ("a2 b6", "a+1", "admit new 1"),
    ] {
        assert_eq!(when(running, comes), expected, "{running}, {comes}");
    }
}

#[test]
fn who_needs_evictions_uses_up_a_tick_sooner() {
    let mut cluster = TestCluster::new(1, 4, &["a - 2 4", "b - 2 4"]);
    cluster.rules.most_starts = 100;
    cluster.add(&["a0 a | w 1 1 1x", "a1 a | w 1 1 1x"]);
    cluster.add(&["a2 a | w 1 1 1x", "a3 a | w 1 1 1x"]);
    assert_eq!(cluster.tick(0).len(), 4);
    cluster.add(&["b0 b t1 | w 1 1 1x", "b1 b t1 | w 1 1 1x"]);
    assert_eq!(cluster.tick(1), ["evict a3 for b0 1"]);
    assert_eq!(cluster.tick(2), ["evict a2 for b1 1"]);
}

#[test]
fn a_gang_goes_whole_and_its_surplus_goes_first() {
    let mut cluster = TestCluster::new(2, 4, &["a - 4 8", "b - 4 8"]);
    cluster.add(&["x a | w 2 4 1x", "y a | w 4 4 1x"]);
    assert_eq!(cluster.tick(0), ["admit x 4", "admit y 4"]);
    cluster.add(&["z b | w 2 2 1x"]);
    assert_eq!(cluster.tick(1), ["evict x for z 2"]);
    assert_eq!(cluster.group("x").members().count(), 2, "its minimum stays");
    cluster.add(&["zz b | w 2 2 1x"]);
    // Two members are left over, and the gang that still borrows has four.
    assert_eq!(cluster.tick(2), ["evict x for zz 2"]);
    assert_eq!(cluster.group("x").members().count(), 0);
    for now in 3..9 {
        assert_eq!(cluster.tick(now), [] as [&str; 0], "and then it is quiet");
    }
}

#[test]
fn opportunistic_work_goes_first_and_is_owed_nothing() {
    let mut cluster = TestCluster::new(2, 4, &["a - 4 8", "b - 4 8"]);
    cluster.add(&[
        "o1 a low | w 2 2 500",
        "o2 b low | w 2 2 500",
        "x a | w 6 6 1x",
    ]);
    assert_eq!(cluster.tick(0), ["admit o1 2", "admit o2 2", "admit x 6"]);
    cluster.add(&["y b | w 2 2 1x"]);
    // The opportunistic members go, although the gang of six borrows two cards.
    let told = cluster.tick(1).concat();
    assert!(
        told.starts_with("evict o") && told.ends_with("for y 2"),
        "{told}"
    );
    assert_eq!(cluster.group("x").members().count(), 6);
    // What is left over is theirs again when it comes free.
    cluster.remove("y");
    assert!(!cluster.tick(2).is_empty());
    // They evict nobody themselves.
    cluster.add(&["o3 b low p9 | w 8 8 1000"]);
    assert_eq!(cluster.tick(3), [] as [&str; 0]);
}

#[test]
fn within_a_quota_the_higher_priority_goes_first() {
    let mut cluster = TestCluster::new(1, 4, &["a - 4 4", "b - 0 4"]);
    cluster.add(&["low a p1 | w 2 2 1x", "same a p5 | w 2 2 1x"]);
    assert_eq!(cluster.tick(0), ["admit low 2", "admit same 2"]);
    cluster.add(&["high a p5 t1 | w 2 2 1x"]);
    assert_eq!(cluster.tick(1), ["evict low for high 2"]);
    // A high priority is nothing to another quota.
    cluster.add(&["other b p9 | w 1 1 1x"]);
    assert_eq!(cluster.tick(2), [] as [&str; 0]);
}

#[test]
fn nobody_is_evicted_who_is_guarded_or_for_whom_there_would_be_no_place() {
    let running = |words: &str| {
        let mut cluster = TestCluster::new(2, 2, &["a - 0 4", "b - 4 4"]);
        for at in 0..4 {
            cluster.add(&[&format!("x{at} a {words} | w 1 1 1x")]);
        }
        cluster.tick(0);
        cluster
    };
    let mut cluster = running("p0");
    cluster.add(&["y b | w 1 1 2x"]);
    assert_eq!(cluster.tick(1).len(), 1, "two cards of one node come free");
    let mut cluster = running("p0");
    cluster.add(&["y b | w 1 1 3x"]);
    assert_eq!(cluster.tick(1), [] as [&str; 0], "no node has three");
    let mut cluster = running("p0");
    cluster.guarded = vec!["|x0|", "|x1|", "|x2|", "|x3|"];
    cluster.add(&["y b | w 1 1 2x"]);
    assert_eq!(
        cluster.why("y", 1),
        "evictions would make room, but disruption budgets or a namespace of the system forbid them; \
         it starts when those pods end"
    );
    let mut cluster = TestCluster::new(2, 2, &["a - 4 4", "b - 4 4"]);
    cluster.add(&["x a firm | w 4 4 1x"]);
    cluster.tick(0);
    cluster.add(&["y b | w 1 1 2x"]);
    assert_eq!(cluster.tick(1), [] as [&str; 0], "it must not be evicted");
}
