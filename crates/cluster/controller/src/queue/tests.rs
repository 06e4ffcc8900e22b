//! A cluster without an API server: each write comes back as a watch would tell it.

mod crowd;
mod epochs;
mod profiles;
mod resize;
mod trees;
mod unread;
mod watched_state;
mod waves;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use sublet_api::gang_plan::{GangPlanObject, MOST_SLOTS, slot_entries, slot_of};
use sublet_api::group::QueueScope;
use sublet_api::object::{Node, Pod};
use sublet_api::stock::node_rules;
use sublet_api::{NodeDefaults, facts_with_stock, keys};
use sublet_client::{Act, Change, Write};
use sublet_model::{Entry, NodeIdx, Time, Unit};
use sublet_plan::stock::NodeRules;
use sublet_plan::{Engine, EngineOptions, Policy, StockRules};
use sublet_queue::QueueRules;
use sublet_scheduler::ClusterSnapshot;

use super::memory::{Memory, SOON_MS};
use super::report::StatusReport;
use super::reporter::Room;
use super::round::{QueueLook, Round};
use super::steps::{Step, Then};
use super::watched_state::WatchedState;
use super::watching::KOORDINATOR;

/// The cluster's objects, and the queue that looks at them.
struct World {
    watched: WatchedState,
    engine: Engine,
    nodes: Vec<(NodeIdx, NodeRules)>,
    memory: Memory,
    rules: QueueRules,
    names: u64,
    epoch: u64,
    /// When is looked, and when the Lease was renewed.
    at: (Instant, Instant),
    now: u64,
    version: u64,
    room: Room,
    /// Allocations of the pods on nodes, by UID.
    bound: BTreeMap<String, Entry>,
}

impl World {
    /// One node with so many cards of 1,000 MiB.
    fn new(cards: u32) -> World {
        let amounts = json!({
            "cpu": "8", "memory": "64Gi", "pods": "100",
            "aliyun.com/gpu-mem": (cards * 1_000).to_string(),
            "aliyun.com/gpu-count": cards.to_string(),
        });
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n1"},
            "status": {"allocatable": amounts, "capacity": amounts},
        }))
        .unwrap();
        let mut engine = Engine::new(EngineOptions {
            stock: StockRules::Here,
            ..EngineOptions::of(Policy::binpack())
        });
        let facts = facts_with_stock(&node, NodeDefaults { unit: Unit::MiB }).unwrap();
        let idx = engine.set_node(facts);
        let nodes = vec![(idx, node_rules(&node))];
        let mut watched = WatchedState::default();
        watched.node(Change::Set(node));
        World {
            watched,
            engine,
            nodes,
            memory: Memory::default(),
            rules: QueueRules {
                profile: "koordinator".parse().unwrap(),
                ..QueueRules::default()
            },
            names: 0,
            epoch: 3,
            at: (Instant::now(), Instant::now()),
            now: 1_000,
            version: 0,
            room: Room {
                news: true,
                reasons: 50,
                status: true,
            },
            bound: BTreeMap::new(),
        }
    }

    /// A pod of a gang that is held back.
    fn pod(&mut self, name: &str, gang: &str) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "a", "uid": format!("u-{name}"),
                "labels": {keys::PLUGINS_POD_GROUP: gang},
            },
            "spec": {
                "schedulerName": "sublet-scheduler",
                "schedulingGates": [{"name": "other"}, {"name": keys::SCHEDULING_GATE}],
                "containers": [{"name": "c", "resources": {"limits": {"aliyun.com/gpu-mem": "1000"}}}],
            },
        }))
        .unwrap();
        self.watched.pod(Change::Set(pod));
    }

    fn pod_group(&mut self, name: &str, min: u32) {
        let group = serde_json::from_value(json!({
            "apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup",
            "metadata": {"name": name, "namespace": "a", "uid": format!("u-{name}")},
            "spec": {"minMember": min},
        }));
        let change = Change::Set(group.unwrap());
        self.watched
            .object("scheduling.x-k8s.io/v1alpha1", "PodGroup", change);
    }

    /// The allocations of the plans' slots, under the UIDs of the pods that they are for.
    fn slots(&self) -> Vec<Entry> {
        let plans = self.watched.plans.values();
        let plans = plans.filter_map(|watched| watched.plan.as_deref().ok());
        let slots = plans.map(|plan| slot_entries(plan, |role| role.claim(Unit::MiB)).unwrap());
        let slots = slots.flat_map(BTreeMap::into_values).map(|slot| Entry {
            uid: slot.of.unwrap_or(slot.own.uid.clone()),
            ..slot.own
        });
        slots.collect()
    }

    fn look(&mut self) -> Round {
        let scope = QueueScope {
            schedulers: ["sublet-scheduler".to_owned()].into(),
            assign: None,
            unit: Unit::MiB,
        };
        // The ledger has pods on nodes, and the slots of plans, as a read-only replica's has.
        let watched = &self.watched;
        self.bound.retain(|uid, _| watched.pods.contains_key(uid));
        let mut slots = self.slots();
        slots.retain(|slot| !self.bound.contains_key(slot.uid.as_str()));
        slots.extend(self.bound.values().cloned());
        slots
            .iter()
            .for_each(|slot| self.engine.observe(slot.clone()));
        let cluster = ClusterSnapshot {
            engine: &mut self.engine,
            nodes: self.nodes.clone(),
            breaks: &|_| false,
        };
        let look = QueueLook {
            watched: &self.watched,
            namespaces: &BTreeMap::new(),
            scope: &scope,
            rules: &self.rules,
            epoch: self.epoch,
            at: self.at,
            now: Time::from_ms(self.now),
            room: self.room,
        };
        let round = look.round(cluster, &mut self.memory, &mut self.names);
        slots.iter().for_each(|slot| self.engine.forget(&slot.uid));
        round
    }

    /// Looks, and looks again when a group that starts soon has started.
    fn after_a_while(&mut self) -> Round {
        drop(self.look());
        self.now += SOON_MS;
        self.look()
    }

    /// Does the steps, as the API server would.
    fn carry_out(&mut self, steps: Vec<Step>) {
        for Step { write, then } in steps {
            let made = rfc3339(self.now);
            let plan = |version: u64, object: &Value| -> GangPlanObject {
                let mut object = object.clone();
                object["metadata"] = json!({
                    "name": write.to.name, "uid": "u-plan", "resourceVersion": version.to_string(),
                    "creationTimestamp": made,
                });
                serde_json::from_value(object).unwrap()
            };
            self.version += 1;
            match &write.act {
                Act::Create(object) | Act::Replace(object) => {
                    self.watched.plan(Change::Set(plan(self.version, object)));
                }
                Act::Delete { .. } => self
                    .watched
                    .plan(Change::Gone(plan(0, &json!({"spec": {}})))),
                Act::JsonPatch(_) | Act::Evict(_) | Act::Merge(_) => {}
                other => panic!("{other:?}"),
            }
            match then {
                Then::Released(uid, mark) => self.watched.released(&uid, &mark),
                Then::Evicted(uid) => self.watched.evicted(&uid, "2026-01-01T00:00:00Z"),
                Then::Switched(job, suspended) => self.watched.switched(&job, suspended),
                Then::Counted(object, reclaims, at) => {
                    self.watched.counted(&object, reclaims, at);
                }
                _ => {}
            }
        }
    }

    /// The kube-scheduler and the extender bind every pod that was let go.
    fn bind(&mut self) {
        let slots = self.slots();
        let pods: Vec<Pod> = self
            .watched
            .pods
            .values()
            .map(|pod| Pod::clone(pod))
            .collect();
        for mut pod in pods {
            let mark = slot_of(&pod);
            if let Some(mark) = mark.filter(|_| pod.spec.node_name.is_empty()) {
                pod.spec.node_name = mark.node.to_string();
                let of = slots
                    .iter()
                    .find(|slot| slot.uid.as_str() == pod.metadata.uid);
                let entry = of.map(|slot| (pod.metadata.uid.clone(), slot.clone()));
                self.bound.extend(entry);
                self.watched.pod(Change::Set(pod));
            }
        }
    }

    fn plans(&self) -> Vec<&str> {
        self.watched.plans.keys().map(String::as_str).collect()
    }
}

/// A moment as the API server writes it.
fn rfc3339(ms: u64) -> String {
    let ms = i64::try_from(ms).unwrap();
    let moment = jiff::Timestamp::from_millisecond(ms).unwrap();
    moment.to_string()
}

/// Reasons wait for room and are told then; a group with a place does not wait for them.
#[test]
fn what_there_is_no_room_to_tell_is_told_later() {
    let mut world = World::new(4);
    world.pod_group("g", 2);
    world.pod("p0", "g");
    world.room = Room {
        news: true,
        reasons: 0,
        status: false,
    };
    let round = world.after_a_while();
    assert_eq!((round.report, round.idle), (StatusReport::default(), None));
    world.room.status = true;
    let report = world.look().report;
    assert_eq!((report.events.len(), report.status.len()), (0, 1));
    world.room.reasons = 50;
    let report = world.look().report;
    assert!(!events(&report.events).is_empty() && report.status.is_empty());

    world.room.reasons = 0;
    world.pod("p1", "g");
    let round = world.look();
    assert_eq!(acts(&round.steps), ["create"]);
    let told = events(&round.report.events);
    assert!(
        told.iter().all(|text| text.contains("may start")),
        "{told:?}"
    );
    assert!(!told.is_empty());
}

fn acts(steps: &[Step]) -> Vec<&'static str> {
    let act = |step: &Step| match step.write.act {
        Act::Create(_) => "create",
        Act::Replace(_) => "replace",
        Act::Delete { .. } => "delete",
        Act::JsonPatch(_) => "patch",
        Act::Evict(_) => "evict",
        Act::Merge(_) => "merge",
        _ => "other",
    };
    steps.iter().map(act).collect()
}

fn events(told: &[Write]) -> Vec<String> {
    let text = |write: &Write| match &write.act {
        Act::Apply(object) => object["message"].as_str().map(str::to_owned),
        _ => None,
    };
    told.iter().filter_map(text).collect()
}

#[test]
fn a_gang_goes_from_its_scheduling_gates_to_its_places_and_leaves_no_plan() {
    let mut world = World::new(4);
    world.pod_group("g", 2);
    world.pod("p0", "g");
    let round = world.after_a_while();
    assert_eq!(acts(&round.steps), [""; 0]);
    let told = events(&round.report.events);
    assert!(
        told.iter()
            .any(|text| text.contains("starts when there are 2")),
        "{told:?}"
    );

    world.pod("p1", "g");
    let round = world.look();
    assert_eq!(
        acts(&round.steps),
        ["create"],
        "{:?}",
        events(&round.report.events)
    );
    assert_eq!(round.steps[0].then, Then::Planned("plan-3-1".to_owned()));
    world.carry_out(round.steps);
    assert_eq!(world.plans(), ["plan-3-1"]);

    let round = world.look();
    assert_eq!(acts(&round.steps), ["patch", "patch"]);
    let Act::JsonPatch(patch) = &round.steps[0].write.act else {
        panic!("{round:?}")
    };
    assert_eq!(
        patch[0],
        json!({"op": "test", "path": "/metadata/uid", "value": "u-p0"})
    );
    let gate = json!({"op": "remove", "path": "/spec/schedulingGates/1"});
    assert_eq!(patch[2], gate);
    world.carry_out(round.steps);
    assert_eq!(acts(&world.look().steps), [""; 0]);
    world.bind();
    let round = world.look();
    assert_eq!(acts(&round.steps), ["delete"]);
    world.carry_out(round.steps);
    assert_eq!(acts(&world.look().steps), [""; 0]);
}

/// Until the watch tells of a write, no decision is based on the older state.
#[test]
fn nothing_is_planned_twice_while_a_plan_is_on_its_way() {
    let mut world = World::new(4);
    world.pod_group("g", 1);
    world.pod("p0", "g");
    let round = world.look();
    assert_eq!(
        acts(&round.steps),
        ["create"],
        "{:?}",
        events(&round.report.events)
    );
    world
        .memory
        .await_plan("plan-3-1".to_owned(), None, Time::from_ms(world.now));
    assert_eq!(acts(&world.look().steps), [""; 0]);
    world.carry_out(round.steps);
    assert_eq!(acts(&world.look().steps), ["patch"]);
}

/// With two gangs of three on four cards, one starts, and the other says why it waits.
#[test]
fn what_is_planned_is_used() {
    let mut world = World::new(4);
    for gang in ["g", "h"] {
        world.pod_group(gang, 3);
        for at in 0..3 {
            world.pod(&format!("{gang}{at}"), gang);
        }
    }
    let round = world.look();
    assert_eq!(
        acts(&round.steps),
        ["create"],
        "{:?}",
        events(&round.report.events)
    );
    world.carry_out(round.steps);
    world.now += SOON_MS;
    let round = world.look();
    let told = events(&round.report.events);
    assert!(
        told.iter()
            .any(|text| text.starts_with("position 1 in its quota: ")),
        "{told:?}"
    );
    world.carry_out(round.steps);
    for _ in 0..3 {
        let round = world.look();
        assert!(!acts(&round.steps).contains(&"create"), "{round:?}");
        world.carry_out(round.steps);
    }
}

/// A gang that no plan can hold is told so, and is in nobody's way.
#[test]
fn a_gang_larger_than_a_plan_is_told_so_and_others_start() {
    let mut world = World::new(4);
    world.pod_group("big", 2_001);
    for at in 0..=MOST_SLOTS {
        world.pod(&format!("big{at}"), "big");
    }
    world.pod_group("small", 4);
    for at in 0..4 {
        world.pod(&format!("small{at}"), "small");
    }
    let round = world.look();
    assert_eq!(acts(&round.steps), ["create"]);
    let told = events(&round.report.events);
    let why = "2001 members have to start together, and at most 2000 can";
    assert!(told.iter().any(|text| text.ends_with(why)), "{told:?}");
    assert!(
        told.iter()
            .any(|text| text.starts_with("4 pods have their places")),
        "{told:?}"
    );
}

/// A gang that runs loses a member: the others stay, and the new member gets a place for itself. A
/// leader that takes over in the meantime does not know that the gang ran, and touches nobody
/// either.
#[test]
fn a_gang_that_ran_as_a_whole_is_mended_and_not_taken_apart() {
    for is_successor in [false, true] {
        let mut world = World::new(4);
        world.pod_group("g", 3);
        for name in ["p0", "p1", "p2"] {
            world.pod(name, "g");
        }
        for _ in 0..4 {
            let round = world.look();
            world.carry_out(round.steps);
            world.bind();
        }
        assert_eq!(world.plans(), [""; 0]);
        world.watched.pods.remove("u-p1");
        if is_successor {
            world.memory = Memory::default();
        }
        assert_eq!(acts(&world.look().steps), [""; 0]);
        world.pod("p3", "g");
        let round = world.look();
        assert_eq!(
            acts(&round.steps),
            ["create"],
            "{:?}",
            events(&round.report.events)
        );
        world.carry_out(round.steps);
        assert_eq!(acts(&world.look().steps), ["patch"]);
        // It has no place in time: still nobody goes.
        world.now += 3_600_000;
        assert_eq!(acts(&world.look().steps), ["delete"]);
    }
}

/// A gang without a running member is no gang that ran: members bound without the others go.
#[test]
fn a_part_of_a_gang_that_never_ran_goes() {
    let mut world = World::new(4);
    world.pod_group("g", 3);
    for name in ["p0", "p1", "p2"] {
        world.pod(name, "g");
    }
    for _ in 0..2 {
        let round = world.look();
        world.carry_out(round.steps);
    }
    world.bind();
    let unbound = Arc::make_mut(world.watched.pods.get_mut("u-p2").unwrap());
    unbound.spec.node_name.clear();
    assert_eq!(acts(&world.look().steps), [""; 0]);
    world.now += 3_600_000;
    assert_eq!(acts(&world.look().steps), ["evict", "evict"]);
}
