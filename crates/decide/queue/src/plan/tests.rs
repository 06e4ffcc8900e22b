//! Ticks in short stories: the groups that start, the groups that wait, and their reasons.

mod fair;
mod gangs;
mod keep;
mod promises;
mod properties;
mod reclaim;
mod trees;

use crate::test_cluster::TestCluster;
use crate::{GroupFilter, GroupScore};

#[test]
fn of_two_gangs_that_do_not_fit_together_one_runs_and_one_waits() {
    let mut cluster = TestCluster::new(3, 4, &["a - 0 12", "b - 0 12"]);
    cluster.add(&["x a | w 8 8 1x", "y b | w 8 8 1x"]);
    assert_eq!(cluster.tick(0), ["admit x 8"]);
    assert_eq!(cluster.tick(1), [] as [&str; 0]);
    assert_eq!(cluster.places("y"), "", "never a part of a gang");
    cluster.remove("x");
    assert_eq!(cluster.tick(2), ["admit y 8"]);
}

#[test]
fn who_cannot_start_keeps_nobody_behind_it_waiting() {
    let mut cluster = TestCluster::new(2, 4, &["a - 0 100"]);
    cluster.add(&[
        "0big a p9 | w 1 1 5x",
        "1next a p5 | w 1 1 4x",
        "2last a | w 4 4 1x",
    ]);
    assert_eq!(cluster.tick(0), ["admit 1next 1", "admit 2last 4"]);
    assert_eq!(
        cluster.why("0big", 1),
        "it can never start: were all nodes empty, there would be a place for 0 of the 1 members \
         that start together; the next one is of role w"
    );
}

#[test]
fn whoever_looks_alike_waits_for_the_same_and_all_others_are_tried() {
    let mut cluster = TestCluster::new(2, 4, &["a - 0 100"]);
    cluster.add(&["0busy a | w 2 2 3x"]);
    assert_eq!(cluster.tick(0), ["admit 0busy 2"]);
    // A hundred that find no room, and behind them one that does.
    let wide: Vec<String> = (0..100)
        .map(|at| format!("w{at:03} a t1 | w 1 1 2x"))
        .collect();
    cluster.add(&wide.iter().map(String::as_str).collect::<Vec<_>>());
    cluster.add(&["x a t2 | w 2 2 1x"]);
    assert_eq!(cluster.tick(3), ["admit x 2"]);
    for name in ["w000", "w099"] {
        assert_eq!(
            cluster.why(name, 4),
            "it asks 2 of gpu, and quota a uses 8 of its entitlement of 8; it starts when 2 of \
             that is given back"
        );
    }
}

#[test]
fn one_tick_starts_so_many_and_the_next_goes_on() {
    let mut cluster = TestCluster::new(1, 4, &["a - 0 4"]);
    cluster.rules.most_starts = 2;
    cluster.add(&["0 a | w 1 1 1x", "1 a | w 1 1 1x", "2 a | w 1 1 1x"]);
    assert_eq!(cluster.tick(0), ["admit 0 1", "admit 1 1"]);
    assert_eq!(cluster.tick(1), ["admit 2 1"]);
}

#[test]
fn a_site_chooses_the_order_within_a_priority() {
    for (score, starts) in [
        ("priority", "admit 0wide 1, admit 3high 1"),
        ("need", "admit 1narrow 1, admit 2pair 2, admit 3high 1"),
    ] {
        let mut cluster = TestCluster::new(1, 4, &["a - 0 4"]);
        cluster.rules.score = score.parse().unwrap();
        cluster.add(&[
            "0wide a t1 | w 1 1 3x",
            "1narrow a t2 | w 1 1 1x",
            "2pair a t3 | w 2 2 1x",
            "3high a p1 t4 | w 1 1 1x",
        ]);
        assert_eq!(cluster.tick(5).join(", "), starts, "{score}");
    }
}

#[test]
fn a_site_may_start_only_jobs_that_end() {
    let mut cluster = TestCluster::new(1, 4, &["a - 0 4"]);
    cluster.rules.filters = vec!["known-end".parse().unwrap()];
    cluster.add(&["open a | w 1 1 1x", "timed a ends=99 | w 1 1 1x"]);
    assert_eq!(
        cluster.why("open", 0),
        "here only jobs start that say how long they run; it starts when its job has \
         activeDeadlineSeconds"
    );
    assert_eq!(cluster.tick(0), ["admit timed 1"]);
}

#[test]
fn an_unknown_rule_is_answered_with_those_that_there_are() {
    let score = "fast".parse::<GroupScore>().unwrap_err();
    assert_eq!(score.to_string(), "`fast` is none of priority, need");
    let filter = "".parse::<GroupFilter>().unwrap_err();
    assert_eq!(filter.to_string(), "`` is none of known-end");
}

#[test]
fn what_no_nodes_could_hold_is_known_though_its_quota_is_in_the_way() {
    let mut cluster = TestCluster::new(3, 4, &["a - 0 12"]);
    cluster.add(&["small a | w 1 1 1x"]);
    assert_eq!(cluster.tick(0), ["admit small 1"]);
    cluster.add(&["wide a t1 | w 4 4 3x"]);
    assert_eq!(
        cluster.why("wide", 1),
        "it can never start: were all nodes empty, there would be a place for 3 of the 4 members \
         that start together; the next one is of role w"
    );
}

#[test]
fn who_has_run_is_not_taken_for_one_that_looks_like_it() {
    for names in [["a-new", "b-old"], ["b-new", "a-old"]] {
        let [new, old] = names;
        let mut cluster = TestCluster::new(3, 4, &["a - 0 99"]);
        let lines = [
            format!("{new} a | w 4 4 3x"),
            format!("{old} a satisfied | w 4 4 3x"),
        ];
        cluster.add(&[&lines[0], &lines[1]]);
        assert!(cluster.why(new, 0).starts_with("it can never start"));
        assert_eq!(cluster.tick(0), [format!("admit {old} 3")]);
    }
}

#[test]
fn tenants_take_turns_by_share_and_a_tenants_groups_by_priority_and_age() {
    let mut cluster = TestCluster::new(1, 4, &["a - 0 4", "b - 0 4"]);
    cluster.add(&[
        "a1 a t1 | w 1 1 1x",
        "a2 a t2 | w 1 1 1x",
        "a3 a t3 p1 | w 1 1 1x",
        "a4 a t0 | w 1 1 1x",
        "b1 b t9 | w 1 1 1x",
        "b2 b t8 | w 1 1 1x",
        "b3 b t7 p-1 | w 1 1 1x",
    ]);
    assert_eq!(
        cluster.tick(10),
        ["admit a3 1", "admit a4 1", "admit b1 1", "admit b2 1"]
    );
    assert_eq!(
        cluster.why("a1", 11),
        "it asks 1 of gpu, and quota a uses 2 of its entitlement of 2; it starts when 1 of that \
         is given back"
    );
}

#[test]
fn what_can_never_start_says_so_with_numbers() {
    let mut cluster = TestCluster::new(2, 4, &["a - 2 6", "b - 6 8"]);
    cluster.add(&[
        "beyond-max a | w 7 7 1x",
        "beyond-min a firm | w 3 3 1x",
        "beyond-all b | w 9 9 1x",
        "entitled-to-less a | w 6 6 1x",
        "other b t1 | w 6 6 1x",
        "nobodys c | w 1 1 1x",
        "part b | w 3 2 1x",
    ]);
    for (name, why) in [
        (
            "beyond-max",
            "it can never start: it asks 7 of gpu, and quota a has 6 at most (max)",
        ),
        (
            "beyond-min",
            "it can never start: it must not be evicted and asks 3 of gpu, and quota a has 2 for \
             such groups (min)",
        ),
        (
            "beyond-all",
            "it can never start: it asks 9 of gpu, and quota b has 8 at most (max)",
        ),
        (
            "entitled-to-less",
            "it asks 6 of gpu, and quota a has 2 while others ask for their parts; it starts when \
             they ask less, or when the quota has a larger min",
        ),
        (
            "nobodys",
            "there is no quota c; it starts when there is one",
        ),
        (
            "part",
            "gang g0 has 2 members that wait, and starts when there are 3",
        ),
    ] {
        assert_eq!(cluster.why(name, 1), why);
    }
    assert_eq!(cluster.tick(1), ["admit other 6"]);
}
