//! Several trees of quotas: each has a part of the cluster, and nobody borrows from another one.

use crate::test_cluster::TestCluster;

#[test]
fn a_group_starts_within_what_its_own_tree_has() {
    let mut cluster = TestCluster::new(1, 8, &["a - 0 8", "b@x - 0 8"]);
    cluster.there_is("", 4);
    cluster.there_is("x", 4);
    cluster.add(&["p a | w 1 1 3x", "q b | w 1 1 3x", "r b t1 | w 1 1 2x"]);
    assert_eq!(cluster.tick(0), ["admit p 1", "admit q 1"]);
    // Two cards are free, and what the other tree does not ask for is not for this one.
    let why = cluster.why("r", 1);
    assert!(why.contains("quota b uses 3 of its entitlement"), "{why}");
    cluster.remove("p");
    assert_eq!(cluster.tick(2), [] as [&str; 0]);
    cluster.add(&["s a | w 1 1 5x", "t b | w 1 1 5x"]);
    assert_eq!(
        [cluster.why("s", 3), cluster.why("t", 3)],
        [
            "it can never start: it asks 5 of gpu, and the cluster has 4 in all",
            "it can never start: it asks 5 of gpu, and tree x has 4 in all",
        ]
    );
    cluster.totals.remove("x");
    assert_eq!(
        cluster.why("r", 4),
        "it can never start: it asks 2 of gpu, and tree x has 0 in all"
    );
}

#[test]
fn who_uses_more_than_its_tree_has_gives_way_to_another_tree() {
    for (of_other, expected) in [(2, vec!["evict r for p 1"]), (4, vec![])] {
        let mut cluster = TestCluster::new(1, 4, &["a - 0 4", "b@x - 0 4"]);
        cluster.there_is("x", of_other);
        cluster.add(&["r b | w 4 4 1x"]);
        cluster.force("r");
        cluster.add(&["p a t1 | w 1 1 2x"]);
        assert_eq!(cluster.tick(2), expected, "tree x has {of_other}");
    }
}
