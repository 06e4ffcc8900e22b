//! Room and victims.

use super::*;

#[test]
fn case_20_the_oldest_go_until_there_is_room_and_no_more() {
    let mut script = Script::new(300);
    for (n, set) in (1..).zip(["a", "b", "c"]) {
        script.unused(set, n, 80);
    }
    script.free = 0;
    script.apply(CacheEvent::Space(script.disk()));
    script.ask("r", "d");
    let both = [CacheAction::Evict(digest(1)), CacheAction::Evict(digest(2))];
    assert_eq!(script.listed("d", listing(4, 100)), both);
    assert_eq!(script.evicted(1, 80), []);
    assert_eq!(script.evicted(2, 80), [fetch("d", 100)]);
    assert_eq!(script.state("c"), DatasetState::Ready);
}

#[test]
fn a_small_set_is_spared_where_the_next_one_does_alone() {
    let mut script = Script::new(300);
    script.unused("small", 1, 10);
    script.unused("large", 2, 200);
    script.ask("r", "d");
    assert_eq!(
        script.listed("d", listing(4, 150)),
        [CacheAction::Evict(digest(2))]
    );
}

#[test]
fn case_21_a_set_in_use_is_passed_over() {
    let mut script = Script::new(250);
    script.unused("a", 1, 80);
    script.unused("b", 2, 80);
    script.ask("job", "a");
    script.listed("a", listing(1, 80));
    script.ask("r", "d");
    assert_eq!(
        script.listed("d", listing(4, 80)),
        [CacheAction::Evict(digest(2))]
    );
}

#[test]
fn case_22_where_all_are_in_use_nothing_goes() {
    let mut script = Script::new(250);
    for (n, set) in (1..).zip(["a", "b"]) {
        script.ask(set, set);
        script.listed(set, listing(n, 100));
        script.fetched(set, made(n, 100));
    }
    script.ask("r", "d");
    assert_eq!(
        script.listed("d", listing(4, 100)),
        [does_not_fit("r", 120, 50)]
    );
    // One that has time waits until a job ends.
    assert_eq!(script.ask_as("s", "d", true), [CacheAction::List(key("d"))]);
    assert_eq!(script.listed("d", listing(4, 100)), []);
    assert_eq!(script.state("d"), DatasetState::Waiting);
    let left = script.leave("a");
    assert_eq!(left[1..], [CacheAction::Evict(digest(1))]);
    assert_eq!(script.evicted(1, 100), [fetch("d", 100)]);
}

#[test]
fn case_23_larger_than_the_disk_is_refused_at_once() {
    let mut script = Script::new(250);
    script.unused("a", 1, 100);
    script.ask_as("r", "d", true);
    assert_eq!(
        script.listed("d", listing(4, 250)),
        [does_not_fit("r", 300, 250)]
    );
    assert_eq!(script.state("a"), DatasetState::Ready);
}

#[test]
fn case_24_if_all_would_not_do_nothing_goes() {
    let mut script = Script::new(300);
    script.unused("a", 1, 50);
    script.ask("job", "b");
    script.listed("b", listing(2, 100));
    script.fetched("b", made(2, 100));
    script.ask("r", "d");
    assert_eq!(
        script.listed("d", listing(4, 170)),
        [does_not_fit("r", 204, 200)]
    );
    assert_eq!(script.state("a"), DatasetState::Ready);
}

#[test]
fn case_25_two_that_fit_singly_are_fetched_one_after_the_other() {
    let mut script = Script::new(200);
    script.ask("r", "a");
    script.ask("s", "b");
    assert_eq!(script.listed("a", listing(1, 100)), [fetch("a", 100)]);
    assert_eq!(script.listed("b", listing(2, 100)), []);
    assert_eq!(script.state("b"), DatasetState::Waiting);
    // It never came, and left nothing.
    let next = script.failed("a", FaultKind::Lasting, 0);
    assert_eq!(next[1..], [fetch("b", 100)]);
}

#[test]
fn case_27_packs_of_two_versions_stay_until_both_are_gone() {
    let mut script = Script::new(300);
    script.unused("a", 1, 100);
    let mut second = made(2, 100);
    second.packs.insert(PackId([1; 32]), units(100));
    script.ask("b", "b");
    script.listed("b", listing(2, 100));
    script.free += 100;
    script.fetched("b", second);
    assert_eq!(script.free, 100);
    script.leave("b");
    script.ask("r", "d");
    // The older alone frees nothing: the younger goes too, and both are needed.
    let both = [CacheAction::Evict(digest(1)), CacheAction::Evict(digest(2))];
    assert_eq!(script.listed("d", listing(4, 200)), both);
}

#[test]
fn case_28_a_plan_that_is_cancelled_keeps_its_part_until_room_is_needed() {
    let mut script = Script::new(200);
    script.ask("plan", "a");
    script.listed("a", listing(1, 100));
    script.free -= 60;
    let written = CacheEvent::Written {
        set: key("a"),
        bytes: units(60),
        disk: script.disk(),
    };
    script.apply(written);
    assert_eq!(script.leave("plan"), [CacheAction::Stop(key("a"))]);
    script.failed("a", FaultKind::Stopped, 60);
    script.ask("r", "d");
    assert_eq!(
        script.listed("d", listing(4, 150)),
        [CacheAction::Drop(key("a"))]
    );
    script.free += 60;
    let dropped = CacheEvent::Dropped {
        set: key("a"),
        disk: script.disk(),
    };
    assert_eq!(script.apply(dropped), [fetch("d", 150)]);
}

#[test]
fn a_set_without_room_beside_its_old_version_replaces_it() {
    let mut script = Script::new(200);
    script.unused("a", 1, 120);
    script.ask("r", "a");
    assert_eq!(
        script.listed("a", listing(2, 120)),
        [CacheAction::Evict(digest(1))]
    );
    assert_eq!(script.evicted(1, 120), [fetch("a", 120)]);
}

#[test]
fn a_pinned_set_stays() {
    let mut script = Script::new(200);
    script.unused("a", 1, 100);
    script.apply(CacheEvent::Pinned(key("a"), true));
    script.ask("r", "d");
    assert_eq!(
        script.listed("d", listing(4, 100)),
        [does_not_fit("r", 120, 100)]
    );
}
