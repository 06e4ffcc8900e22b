//! Figures of small stories, counted by hand: what a tenant has beside a partition of its own.

use super::*;

/// A tenant's waits alone and here, whether it is no worse off, and its lag.
fn beside(outcome: &ReplayOutcome, tenant: &str) -> Option<(Vec<u64>, Vec<u64>, bool, u64)> {
    let of = outcome.tenants.iter().find(|of| &*of.of == tenant).unwrap();
    let alone = of.alone.clone()?;
    let is_no_worse = alone.is_no_worse_here();
    Some((alone.waits, alone.here, is_no_worse, alone.lag_seconds))
}

#[test]
fn a_tenant_is_compared_with_a_partition_of_its_own() {
    // Two nodes of four, one for each. a takes both at once, and b waits for one until 100.
    let jobs = ["4,0,100,a", "4,0,100,a", "4,10,20,b"];
    let story = Story::new(&[4, 4], &jobs).with_quotas("a,4\nb,4\n");
    let (told, outcome) = story.told("partitions");
    assert_eq!(told, "0 +0, 10 +2, 100 +1");
    assert_eq!(outcome.sharing_incentive(PartitionSize::WholeNodes), (2, 2));
    assert_eq!(outcome.largest_lag(PartitionSize::WholeNodes).unwrap().1, 0);
    let (told, outcome) = story.told("fifo");
    assert_eq!(told, "0 +0 +1, 100 +2");
    let of_a = (vec![0, 100], vec![0, 0], true, 0);
    assert_eq!(beside(&outcome, "a"), Some(of_a));
    // Alone it has run for 20 s on all of its min when it has not yet begun here.
    let of_b = (vec![0], vec![90], false, 20);
    assert_eq!(beside(&outcome, "b"), Some(of_b));
    assert_eq!(outcome.sharing_incentive(PartitionSize::WholeNodes), (1, 2));
    assert_eq!(
        outcome.largest_lag(PartitionSize::WholeNodes),
        Some((&"b".into(), 20))
    );
    assert!((outcome.mean_wait - 30.0).abs() < 1e-9, "{outcome:?}");
    // 1, 1, and 110 s for a run of 20.
    assert!((outcome.bounded_slowdown - 2.5).abs() < 1e-9);
}

#[test]
fn a_partition_has_whole_nodes_and_jobs_beyond_it_are_left_out() {
    // b's min of 5 is two nodes of four. The gang of twelve is too large for them. c has no min.
    let jobs = ["8,0,10,b", "12,0,10,b", "1,0,10,c"];
    let story = Story::new(&[4, 4, 4], &jobs).with_quotas("b,5\nc,0\n");
    let (told, outcome) = story.told("partitions");
    assert_eq!((told.as_str(), outcome.too_large), ("0 +0", 2));
    let (told, outcome) = story.told("fifo");
    assert_eq!(
        (told.as_str(), outcome.too_large),
        ("0 +0, 10 +1, 20 +2", 0)
    );
    assert_eq!(outcome.tenants[0].alone.as_ref().unwrap().gpus, 8);
    assert_eq!(beside(&outcome, "b"), Some((vec![0], vec![0], true, 0)));
    assert_eq!(beside(&outcome, "c"), None);
    // On its min and nothing above it the job of eight has no room, so there is none to compare.
    let on_min = outcome.tenants[0].on_min.as_ref().unwrap();
    assert_eq!((on_min.gpus, &on_min.waits[..]), (5, &[][..]));
    // One of them is large enough to count.
    assert_eq!(outcome.sharing_incentive(PartitionSize::WholeNodes), (1, 1));
}

#[test]
fn the_slowdown_of_short_jobs_is_bounded() {
    // One card: 0 s after 5 s of waiting is 5 s of 10, hence 1; 2 s after 28 s are 30 s of 10.
    let story = Story::new(&[1], &["1,0,5,a", "1,0,0,a", "1,0,23,a", "1,0,2,a"]);
    let (told, outcome) = story.told("fifo");
    assert_eq!(told, "0 +0, 5 +1 +2, 28 +3");
    let expected = (1.0 + 1.0 + 28.0 / 23.0 + 3.0) / 4.0;
    assert!(
        (outcome.bounded_slowdown - expected).abs() < 1e-9,
        "{outcome:?}"
    );
}

#[test]
fn a_lost_run_makes_a_tenant_late_at_that_moment() {
    // b borrows a's cards from 0 and has to give them back at 10: 10 s on two cards are lost, when it
    // would have run 10 s on two of its own.
    let jobs = ["2,0,100,b", "2,0,100,b", "2,10,20,a"];
    let story = Story::new(&[2, 2], &jobs).with_quotas("a,2\nb,2\n");
    let (told, outcome) = story.told("sublet");
    assert_eq!(told, "0 +0 +1, 10 -1 +2, 30 +1");
    let of_b = (vec![0, 100], vec![0, 30], true, 0);
    assert_eq!(beside(&outcome, "b"), Some(of_b));
    // b's one run takes a card of a's, which a takes back at 10. At 30, when it starts again, it would
    // have got 120 s of one card alone, 40 s of its min.
    let story = Story::new(&[4, 4], &["4,0,100,b", "5,10,20,a"]).with_quotas("a,5\nb,3\n");
    let (told, outcome) = story.told("sublet");
    assert_eq!(told, "0 +0, 10 -0 +1, 30 +0");
    assert_eq!(beside(&outcome, "b"), Some((vec![0], vec![30], false, 40)));
}

/// No two of them fit beside each other. Those of two cards are long, which is learnt when one of each
/// size has ended.
#[test]
fn who_is_known_to_be_short_goes_first() {
    let jobs = ["2,0,8000,a", "3,0,100,a", "2,100,8000,a", "3,100,100,a"];
    let mut story = Story::new(&[3], &jobs).with_quotas("a,3\n");
    story.profile = "strict".parse().unwrap();
    for (known, told) in [
        (RunTimes::Unknown, "0 +0, 8000 +1, 8100 +2, 16100 +3"),
        (RunTimes::Declared, "0 +1, 100 +3, 200 +0, 8200 +2"),
        (RunTimes::Learnt, "0 +0, 8000 +1, 8100 +3, 8200 +2"),
    ] {
        story.run_times = known;
        assert_eq!(story.told("sublet").0, told, "{known:?}");
    }
}

/// A job waits for cards that others borrow until its time has come. Moments without an arrival or an
/// end are none.
#[test]
fn the_longest_wait_within_a_minimum_is_told() {
    let jobs = ["2,0,100,b", "2,10,20,a", "1,41,5,b"];
    let mut story = Story::new(&[2], &jobs).with_quotas("a,2\nb,0\n");
    story.profile = "fair".parse().unwrap();
    story.min_within = Some(30);
    let (told, outcome) = story.told("sublet");
    assert_eq!(told, "0 +0, 41 -0 +1, 61 +0, 161 +2");
    // Half an hour more would be late.
    let expected = WithinMin {
        longest: 31,
        late: 0,
    };
    assert_eq!(outcome.within_min, Some(expected));
    assert_eq!(story.told("backfill").1.within_min, None);
}
