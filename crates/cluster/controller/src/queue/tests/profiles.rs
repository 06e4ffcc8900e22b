//! Profiles of the queue: the time of a minimum, and the count of groups that went for others.

use super::resize::{bound, settle, template, worker_of_job};
use super::*;

const HOUR: u64 = 60 * 60 * 1000;

impl World {
    /// So many cards, under the fair profile.
    fn fair(cards: u32, min_within_ms: u64) -> World {
        let mut world = World::new(cards);
        world.rules.profile = "fair".parse().unwrap();
        world.rules.min_within_ms = min_within_ms;
        world
    }

    /// A quota of cards, with a time for its minimum.
    fn promise(&mut self, name: &str, (min, max): (u32, u32), within: Option<&str>) {
        let quota = serde_json::from_value(json!({
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
            "metadata": {
                "name": name, "namespace": "a", "uid": format!("u-{name}"),
                "annotations": within.map(|within| json!({keys::QUOTA_MIN_WITHIN: within})),
            },
            "spec": {"min": {keys::GPU: min}, "max": {keys::GPU: max}},
        }));
        self.watched.quota(KOORDINATOR, Change::Set(quota.unwrap()));
    }

    /// A gang of pods with a card each, in a quota, which comes now.
    fn gang(&mut self, name: &str, quota: &str, count: u32) {
        let group = serde_json::from_value(json!({
            "apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
            "metadata": {
                "name": name, "namespace": "a", "uid": format!("u-{name}"),
                "creationTimestamp": rfc3339(self.now),
            },
            "spec": {"minMember": count},
        }));
        let change = Change::Set(group.unwrap());
        self.watched
            .object("scheduling.x-k8s.io/v1alpha1", "PodGroup", change);
        self.pods(name, quota, count);
    }

    fn pods(&mut self, gang: &str, quota: &str, count: u32) {
        for at in 0..count {
            let name = format!("{gang}{at}");
            self.pod(&name, gang);
            for pod in self.watched.pods.values_mut() {
                if pod.metadata.name == name {
                    let labels = &mut Arc::make_mut(pod).metadata.labels;
                    labels.insert(keys::QUOTA_NAME.to_owned(), quota.to_owned());
                }
            }
        }
    }

    /// Lets all that can start, and says since when it runs.
    fn run(&mut self) {
        settle(self);
        let now = rfc3339(self.now);
        for pod in self.watched.pods.values_mut() {
            if !pod.spec.node_name.is_empty() {
                let started = &mut Arc::make_mut(pod).status.start_time;
                started.get_or_insert_with(|| now.clone());
            }
        }
    }

    /// Pods whose names begin so are gone.
    fn gone(&mut self, name: &str) {
        self.watched
            .pods
            .retain(|_, pod| !pod.metadata.name.starts_with(name));
    }
}

/// The kind and the annotations of the one merge patch.
fn counted(round: &Round) -> (&str, &Value) {
    assert_eq!(acts(&round.steps), ["merge"]);
    let write = &round.steps[0].write;
    let Act::Merge(object) = &write.act else {
        panic!("{write:?}")
    };
    (&write.to.kind.kind, &object["metadata"]["annotations"])
}

/// Two times a gang goes as a whole. It is counted before anybody is asked to go, and a leader that takes
/// over in between counts no second time.
#[test]
fn a_gang_that_goes_is_counted_first_and_once() {
    for is_successor in [false, true] {
        let mut world = World::fair(4, 0);
        world.promise("bor", (0, 4), None);
        world.promise("own", (2, 4), None);
        world.gang("b", "bor", 4);
        for time in ["1", "2"] {
            world.run();
            world.now += HOUR;
            let owner = format!("o{time}x");
            world.gang(&owner, "own", 2);
            let round = world.look();
            assert_eq!(acts(&round.steps), ["create"]);
            world.carry_out(round.steps);
            let round = world.look();
            let (kind, annotations) = counted(&round);
            let at = rfc3339(world.now);
            let expected = json!({keys::RECLAIMS: time, keys::RECLAIMED_AT: at});
            assert_eq!((kind, annotations), ("PodGroup", &expected));
            world.carry_out(round.steps);
            if is_successor {
                world.memory = Memory::default();
            }
            let round = world.look();
            assert_eq!(acts(&round.steps), ["evict"; 4], "{is_successor}");
            world.carry_out(round.steps);
            world.gone("b");
            settle(&mut world);
            assert_eq!(bound(&world).len(), 2);
            // The owner ends, and the gang comes again.
            world.gone(&owner);
            settle(&mut world);
            world.pods("b", "bor", 4);
        }
    }
}

/// A count that cannot be written keeps no claimant waiting.
#[test]
fn a_count_that_fails_is_tried_once() {
    let mut world = World::fair(4, 0);
    world.promise("q", (0, 4), None);
    world.promise("own", (2, 4), None);
    let object = serde_json::from_value(json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "j", "namespace": "a", "uid": "u-j"},
        "spec": {"parallelism": 4, "template": template()},
    }));
    let change = Change::Set(object.unwrap());
    world.watched.object("batch/v1", "Job", change);
    for at in 0..4 {
        worker_of_job(&mut world, &format!("j{at}"));
    }
    world.run();
    world.now += HOUR;
    world.gang("o", "own", 2);
    let round = world.look();
    world.carry_out(round.steps);
    assert_eq!(counted(&world.look()).0, "Job");
    assert_eq!(acts(&world.look().steps), ["evict"; 4]);
}

/// The site's time, or the quota's own.
#[test]
fn a_minimum_is_there_in_its_time_and_a_successor_counts_anew() {
    for (site, own, due) in [
        (HOUR, None, HOUR),
        (HOUR, Some("0s"), 0),
        (0, Some("90m"), HOUR + HOUR / 2),
        // It counts as if it was not there.
        (HOUR, Some("soon"), HOUR),
    ] {
        for is_successor in [false, true] {
            let mut world = World::fair(4, site);
            world.promise("bor", (0, 4), None);
            world.promise("own", (2, 4), own);
            world.gang("b", "bor", 4);
            world.run();
            world.now += HOUR;
            world.gang("o", "own", 2);
            let mut since = world.now;
            if due > 0 {
                assert_eq!(acts(&world.look().steps), [""; 0]);
                if is_successor {
                    world.now += due / 2;
                    world.memory = Memory::default();
                    assert_eq!(acts(&world.look().steps), [""; 0]);
                    since = world.now;
                }
                world.now = since + due - 1;
                assert_eq!(acts(&world.look().steps), [""; 0], "{site} {own:?}");
            }
            world.now = since + due;
            assert_eq!(acts(&world.look().steps), ["create"], "{site} {own:?}");
        }
    }
}
