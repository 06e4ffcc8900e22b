//! Gangs: minima, match policies, groups of gangs, surplus.

use crate::test_cluster::TestCluster;

#[test]
fn a_gang_starts_when_enough_members_are_there() {
    for (group, expected) in [
        (
            "g a | w 3 2 1x",
            "gang g0 has 2 members that wait, and starts when there are 3",
        ),
        ("g a | w 3 3 1x", "admit g 3"),
        // Two roles, a gang's own minimum above theirs.
        ("g a min=3 | ps 1 1 0 | w 1 4 1x", "admit g 5"),
        (
            "g a min=6 | ps 1 1 0 | w 1 4 1x",
            "gang g0 has 5 members that wait, and starts when there are 6",
        ),
        (
            "g a min=3 | ps 2 1 0 | w 1 4 1x",
            "gang g0 (role ps) has 1 members that wait, and starts when there are 2",
        ),
        // All gangs of a group start, or none.
        (
            "g a | c 2 2 1x | next | d 2 1 1x",
            "gang g1 has 1 members that wait, and starts when there are 2",
        ),
        ("g a | c 2 2 1x | next | d 2 2 1x", "admit g 4"),
        // Their roles have the gangs' names in theirs, and servers ask for no card.
        ("g a | t/ps/p 2 2 0 | next | t/w/p 3 4 1x", "admit g 6"),
    ] {
        let mut cluster = TestCluster::new(2, 4, &["a - 0 8"]);
        cluster.add(&[group]);
        let why = cluster.why("g", 0);
        let found = if why.is_empty() {
            cluster.tick(0).concat()
        } else {
            why
        };
        assert_eq!(found, expected, "{group}");
    }
}

#[test]
fn numbers_that_nobody_means_cost_neither_memory_nor_others() {
    let mut cluster = TestCluster::new(2, 4, &["a - 0 100"]);
    cluster.add(&[
        "0wide a | w 1 2000000000 1x",
        "1huge a | w 2000000000 2000000000 0",
        "2roles a min=3 | x 1 4000000000 5x | y 1 4000000000 5x | z 1 4000000000 5x",
        "3usual a | w 2 2 1x",
    ]);
    assert_eq!(
        cluster.why("1huge", 0),
        "it can never start: 2000000000 members have to start together, and at most 2000 can"
    );
    assert_eq!(cluster.tick(0), ["admit 0wide 6", "admit 3usual 2"]);
}

#[test]
fn who_counts_to_a_minimum_is_a_matter_of_the_match_policy() {
    for (policy, expected) in [
        ("only-waiting", ""),
        ("waiting-and-running", "admit g 2"),
        ("satisfied", "admit g 2"),
        // Once satisfied, which it is not yet.
        ("t0", ""),
    ] {
        let mut cluster = TestCluster::new(2, 4, &["a - 0 8"]);
        // One runs before the others come.
        cluster.add(&["g a | w 1 1 1x"]);
        assert_eq!(cluster.tick(0), ["admit g 1"]);
        let mut grown = crate::test_cluster::group(&format!("g a {policy} | w 3 3 1x"));
        let role = &mut cluster.group("g").gangs[0].roles[0];
        grown.gangs[0].roles[0].members.append(&mut role.members);
        *cluster.group("g") = grown;
        assert_eq!(cluster.tick(1).concat(), expected, "{policy}");
    }
}

#[test]
fn what_is_above_the_minima_starts_where_there_is_room_after_everybody_elses_minima() {
    let mut cluster = TestCluster::new(1, 4, &["a - 0 4", "b - 0 4"]);
    cluster.add(&["x a | w 1 4 1x", "y b | w 2 2 1x"]);
    assert_eq!(cluster.tick(0), ["admit x 2", "admit y 2"]);
    cluster.remove("y");
    assert_eq!(cluster.tick(1), ["admit x 2"]);
    assert_eq!(cluster.places("x"), "w0@n0 w1@n0 w2@n0 w3@n0");
}

#[test]
fn roles_with_parts_of_cards_and_without_cards_are_placed_together() {
    let mut cluster = TestCluster::new(2, 2, &["a - 0 100"]);
    cluster.there_is("", 100);
    cluster.add(&["g a | ps 2 2 0 | part 6 6 300 | whole 1 1 2x"]);
    assert_eq!(cluster.tick(0), ["admit g 9"]);
    let whole = cluster
        .places("g")
        .split(' ')
        .next_back()
        .unwrap()
        .to_owned();
    let node = whole.split('@').next_back().unwrap();
    let on = cluster
        .places("g")
        .matches(&format!("part0@{node}"))
        .count();
    assert_eq!(on, 0, "parts are not where the whole cards went: {whole}");
    cluster.add(&["h a | part 1 1 300"]);
    assert_eq!(
        cluster.tick(1),
        [] as [&str; 0],
        "six of 300 fill two cards of 1000"
    );
}

#[test]
fn members_go_only_where_their_rules_let_them() {
    let mut cluster = TestCluster::new(3, 2, &["a - 0 100"]);
    cluster.add(&["g a | w 2 2 1x"]);
    let shape = |cluster: &mut TestCluster, number: &str| {
        let role = &mut cluster.group("g").gangs[0].roles[0];
        let mut shape = crate::MemberShape::clone(&role.pod);
        shape.rules.selector = [("number".into(), number.into())].into();
        role.pod = shape.into();
    };
    shape(&mut cluster, "7");
    assert!(
        cluster
            .why("g", 0)
            .starts_with("it can never start: were all nodes empty")
    );
    shape(&mut cluster, "2");
    assert_eq!(cluster.tick(0), ["admit g 2"]);
    assert_eq!(cluster.places("g"), "w0@n2 w1@n2");
}

/// A running job is made larger than its quota allows: more of it starts as far as it may, it is
/// told the obstacle, and its members stay entitled to their places.
#[test]
fn a_job_that_is_made_too_large_keeps_what_it_has_and_asks_for_more() {
    for grown in ["w 8 8 1x", "w 3000 3000 1x", "w 2 8 1x"] {
        let mut cluster = TestCluster::new(1, 4, &["q - 2 3", "r - 0 4"]);
        cluster.add(&["g q | w 2 2 1x"]);
        assert_eq!(cluster.tick(0), ["admit g 2"]);
        let mut larger = crate::test_cluster::group(&format!("g q satisfied | {grown}"));
        let role = &mut cluster.group("g").gangs[0].roles[0];
        larger.gangs[0].roles[0].members.append(&mut role.members);
        *cluster.group("g") = larger;
        // Another one asks for what the quota would give up if it asked for nothing.
        cluster.add(&["other r | w 3 3 1x"]);
        assert_eq!(cluster.tick(1), ["admit g 1"], "{grown}");
        assert_eq!(cluster.tick(2), [""; 0], "{grown}");
        assert_eq!(
            cluster.why("g", 2),
            "it asks 1 of gpu, and quota q uses 3 of its max of 3; it starts when 1 of that is \
             given back"
        );
        assert_eq!(cluster.places("g"), "w0@n0 w1@n0 w2@n0");
    }
}
