//! Requests, flights and versions.

use super::*;

#[test]
fn case_06_the_same_request_again_is_the_same_record() {
    let mut script = Script::new(1000);
    assert_eq!(script.ask("r", "a"), [CacheAction::List(key("a"))]);
    assert_eq!(script.ask("r", "a"), []);
    assert_eq!(script.listed("a", listing(1, 100)), [fetch("a", 100)]);
    assert_eq!(script.ask("r", "a"), []);
    assert_eq!(script.fetched("a", made(1, 100)), [ready("r", 1)]);
    // No second look at the source either.
    assert_eq!(script.ask("r", "a"), [ready("r", 1)]);
    assert_eq!(script.cache.set(&key("a")).unwrap().leases, 1);
}

#[test]
fn case_08_ten_requests_share_one_fetch() {
    let mut script = Script::new(1000);
    let asked: Vec<_> = (0..10)
        .flat_map(|n| script.ask(&format!("r{n}"), "a"))
        .collect();
    assert_eq!(asked, [CacheAction::List(key("a"))]);
    assert_eq!(script.listed("a", listing(1, 100)), [fetch("a", 100)]);
    let answers: Vec<_> = (0..10).map(|n| ready(&format!("r{n}"), 1)).collect();
    assert_eq!(script.fetched("a", made(1, 100)), answers);
}

#[test]
fn case_09_one_that_leaves_stops_nothing_and_the_last_one_keeps_the_part() {
    let mut script = Script::new(1000);
    script.ask("r", "a");
    script.ask("s", "a");
    script.listed("a", listing(1, 100));
    assert_eq!(script.leave("r"), []);
    assert_eq!(script.leave("s"), [CacheAction::Stop(key("a"))]);
    // One that comes while it stops: the source is looked at again.
    assert_eq!(script.ask("t", "a"), []);
    assert_eq!(
        script.failed("a", FaultKind::Stopped, 40),
        [CacheAction::List(key("a"))]
    );
    assert_eq!(script.leave("t"), []);
    assert_eq!(script.listed("a", listing(1, 100)), []);
    let view = script.cache.set(&key("a")).unwrap();
    assert_eq!(
        (view.state, view.written),
        (DatasetState::Absent, units(40))
    );
}

#[test]
fn case_15_another_content_is_a_version_beside_the_one_in_use() {
    let mut script = Script::new(1000);
    script.ask("old", "a");
    script.listed("a", listing(1, 100));
    script.fetched("a", made(1, 100));
    assert_eq!(script.ask("new", "a"), [CacheAction::List(key("a"))]);
    assert_eq!(script.listed("a", listing(2, 10)), [fetch("a", 10)]);
    assert_eq!(script.fetched("a", made(2, 10)), [ready("new", 2)]);
    let released = CacheAction::Released {
        request: RequestId("old".to_owned()),
        version: digest(1),
        at: Time::from_ms(script.now + 1000),
    };
    assert_eq!(
        script.leave("old"),
        [released, CacheAction::Evict(digest(1))]
    );
}

#[test]
fn a_source_that_is_unchanged_is_a_hit() {
    let mut script = Script::new(1000);
    script.unused("a", 1, 100);
    assert_eq!(script.ask("r", "a"), [CacheAction::List(key("a"))]);
    assert_eq!(script.listed("a", listing(1, 100)), [ready("r", 1)]);
    // Another owner's set with the same source, listed with its own right: no byte moves.
    assert_eq!(script.ask("s", "b"), [CacheAction::List(key("b"))]);
    assert_eq!(script.listed("b", listing(1, 100)), [ready("s", 1)]);
}

#[test]
fn as_cached_is_given_without_a_look() {
    let mut script = Script::new(1000);
    script.unused("a", 1, 100);
    let asked = script.apply(CacheEvent::Asked {
        request: RequestId("r".to_owned()),
        set: key("a"),
        urgency: Urgency::Now,
        freshness: Freshness::AsCached,
        waits: false,
    });
    assert_eq!(asked, [ready("r", 1)]);
}

#[test]
fn a_failure_is_tried_again_and_then_told() {
    let mut script = Script::new(1000);
    script.ask("r", "a");
    script.listed("a", listing(1, 100));
    // Changed: the next listing comes at once.
    assert_eq!(
        script.failed("a", FaultKind::Changed, 0),
        [CacheAction::List(key("a"))]
    );
    script.listed("a", listing(1, 100));
    assert_eq!(script.failed("a", FaultKind::Passing, 0), []);
    assert_eq!(script.state("a"), DatasetState::Resting);
    script.now += 60_000;
    assert_eq!(
        script.apply(CacheEvent::Tick),
        [CacheAction::List(key("a"))]
    );
    script.listed("a", listing(1, 100));
    let told = answer("r", CacheAnswer::Failed("no".to_owned()));
    assert_eq!(
        script.failed("a", FaultKind::Passing, 0),
        std::slice::from_ref(&told)
    );
    assert_eq!(script.state("a"), DatasetState::Failed);
    // What another try would find again is told at once.
    script.ask("r", "a");
    script.listed("a", listing(1, 100));
    assert_eq!(script.failed("a", FaultKind::Lasting, 0), [told]);
    script.now += 3_600_000;
    script.apply(CacheEvent::Tick);
    assert_eq!(script.cache.sets().count(), 0);
}

#[test]
fn case_29_and_30_wrong_bytes_are_repaired_or_the_version_is_given_to_nobody() {
    let mut script = Script::new(300);
    script.ask("job", "a");
    script.listed("a", listing(1, 100));
    script.fetched("a", made(1, 100));
    let damaged = CacheEvent::Damaged(digest(1));
    assert_eq!(
        script.apply(damaged.clone()),
        [CacheAction::Repair(digest(1))]
    );
    assert_eq!(script.apply(damaged.clone()), []);
    // Whoever comes waits for the repair.
    script.ask("r", "a");
    assert_eq!(script.listed("a", listing(1, 100)), []);
    assert_eq!(script.state("a"), DatasetState::Repairing);
    assert_eq!(
        script.apply(CacheEvent::Repaired(digest(1), true)),
        [ready("r", 1)]
    );
    // The source has other bytes now.
    script.apply(damaged);
    script.ask("s", "a");
    script.listed("a", listing(1, 100));
    let lost = script.apply(CacheEvent::Repaired(digest(1), false));
    assert_eq!(lost, [CacheAction::List(key("a"))]);
    assert_eq!(script.listed("a", listing(1, 100)), [fetch("a", 100)]);
    assert_eq!(script.fetched("a", made(5, 100)), [ready("s", 5)]);
    script.leave("job");
    assert_eq!(
        script.leave("r").last(),
        Some(&CacheAction::Evict(digest(1)))
    );
}

#[test]
fn a_deleted_set_is_gone_when_its_last_user_leaves() {
    let mut script = Script::new(300);
    script.ask("job", "a");
    script.listed("a", listing(1, 100));
    script.fetched("a", made(1, 100));
    script.apply(CacheEvent::Pinned(key("a"), true));
    assert_eq!(script.apply(CacheEvent::Unwanted(key("a"))), []);
    assert_eq!(
        script.leave("job").last(),
        Some(&CacheAction::Evict(digest(1)))
    );
    assert_eq!(script.evicted(1, 100), []);
    assert_eq!(script.cache.sets().count(), 0);
    // One that is on its way: its waiters are told, and its part goes.
    script.ask("r", "b");
    script.listed("b", listing(2, 100));
    let told = [
        answer("r", CacheAnswer::Deleted),
        CacheAction::Stop(key("b")),
    ];
    assert_eq!(script.apply(CacheEvent::Unwanted(key("b"))), told);
    assert_eq!(
        script.failed("b", FaultKind::Stopped, 30),
        [CacheAction::Drop(key("b"))]
    );
}

#[test]
fn who_waits_makes_a_planned_fetch_urgent() {
    let mut script = Script::new(300);
    script.apply(CacheEvent::Asked {
        request: RequestId("plan".to_owned()),
        set: key("a"),
        urgency: Urgency::Ahead,
        freshness: Freshness::Compared,
        waits: true,
    });
    let ahead = CacheAction::Fetch {
        set: key("a"),
        room: units(100),
        urgency: Urgency::Ahead,
    };
    assert_eq!(script.listed("a", listing(1, 100)), [ahead]);
    let hasten = |urgency| CacheAction::Hasten {
        set: key("a"),
        urgency,
    };
    assert_eq!(script.ask("r", "a"), [hasten(Urgency::Now)]);
    assert_eq!(script.leave("r"), [hasten(Urgency::Ahead)]);
}

#[test]
fn a_cache_that_starts_again_knows_its_leases() {
    let found = Recovered {
        versions: vec![KnownVersion {
            version: digest(1),
            fingerprints: BTreeSet::from([SourceFingerprint([1; 32])]),
            packs: BTreeMap::from([(PackId([1; 32]), units(100))]),
            own: Bytes::ZERO,
            size: units(100),
            used: NOW,
        }],
        sets: vec![KnownDataset {
            key: key("a"),
            version: Some(digest(1)),
            is_pinned: false,
            part: Bytes::ZERO,
            part_used: NOW,
        }],
        leases: vec![
            (RequestId("job".to_owned()), key("a"), digest(1)),
            (RequestId("lost".to_owned()), key("b"), digest(9)),
        ],
        disk: DiskSpace::default(),
    };
    let mut cache = DatasetCache::new(CacheLimits::default(), found);
    assert_eq!(cache.set(&key("a")).unwrap().leases, 1);
    assert_eq!(cache.packs().count(), 1);
    let left = cache.apply(NOW, CacheEvent::Left(RequestId("job".to_owned())));
    assert_eq!(left.len(), 1);
    assert!(
        cache
            .apply(NOW, CacheEvent::Left(RequestId("lost".to_owned())))
            .is_empty()
    );
}

#[test]
fn two_sets_of_one_source_are_fetched_once() {
    let mut script = Script::new(1000);
    script.ask("r", "a");
    script.ask("s", "b");
    assert_eq!(script.listed("a", listing(1, 100)), [fetch("a", 100)]);
    assert_eq!(script.listed("b", listing(1, 100)), []);
    assert_eq!(
        script.fetched("a", made(1, 100)),
        [ready("r", 1), ready("s", 1)]
    );
    // If the first one fails, the second one is fetched.
    script.ask("t", "c");
    script.ask("u", "d");
    script.listed("c", listing(2, 100));
    script.listed("d", listing(2, 100));
    let failed = script.failed("c", FaultKind::Lasting, 0);
    assert_eq!(failed[1..], [fetch("d", 100)]);
}
