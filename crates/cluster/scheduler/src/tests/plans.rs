//! Members of groups, and the slots that plans have for them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};
use sublet_client::Change;
use sublet_model::{PodUid, Standing};

use super::world::{Answer, World, pod};
use crate::plans::plans;

/// A plan for the group `g` of these slots: index, node, card, and the pod that it is for or "".
pub(super) fn plan(name: &str, epoch: u64, slots: &[(u32, &str, u16, &str)]) -> Value {
    let slot = |&(index, node, card, of): &(u32, &str, u16, &str)| {
        let grant = json!({ "container": "main", "index": card, "memoryMiB": 8_138 });
        let mut slot = json!({
            "role": "w", "index": index, "node": node, "allocation": [grant],
        });
        if !of.is_empty() {
            slot["pod"] = json!(of);
        }
        slot
    };
    let mut template = pod("x", 8_138);
    template["metadata"] = json!({ "namespace": "default" });
    json!({
        "metadata": { "name": name },
        "spec": { "epoch": epoch, "deadline": "2100-01-01T00:00:00Z", "groups": [{
            "id": "podgroup/default/g", "quota": "q",
            "roles": [{ "name": "w", "pod": template }],
            "slots": slots.iter().map(slot).collect::<Vec<_>>(),
        }] },
    })
}

/// A pod that was let go with a slot.
pub(super) fn member(name: &str, plan: &str, index: u32, node: &str) -> Value {
    let mut member = pod(name, 8_138);
    let mark = json!({
        "plan": plan, "group": "podgroup/default/g", "role": "w", "index": index, "node": node,
    });
    member["metadata"]["annotations"] = json!({ "sublet.dev/slot": mark.to_string() });
    member
}

impl World {
    pub(super) fn plan(&self, plan: Value) {
        let plan = serde_json::from_value(plan).unwrap();
        plans(&self.scheduler, &mut None, &Change::Set(plan));
    }

    pub(super) fn no_plan(&self, name: &str) {
        self.scheduler.state().remove_plan(name);
    }

    fn sees(&self, pod: &Value) {
        let seen = serde_json::from_value(pod.clone()).unwrap();
        self.scheduler.state().set_pod(&seen);
        *self.api.pod.lock().unwrap() = Some(pod.clone());
    }

    /// The ledger: the pod on each card of each node.
    fn entries(&self) -> BTreeMap<String, String> {
        let state = self.scheduler.state();
        let ledger = state.engine.ledger();
        assert!(ledger.is_conserved());
        let entries = ledger.entries().map(|entry| {
            let grants = entry.allocation.iter().flat_map(|one| &one.grants);
            let cards: Vec<String> = grants.map(|one| one.card.index.to_string()).collect();
            let bound = if entry.standing == Standing::Bound {
                "!"
            } else {
                ""
            };
            (
                entry.uid.to_string(),
                format!("{}/{}{bound}", entry.node, cards.join(",")),
            )
        });
        entries.collect()
    }

    fn says(&self) -> String {
        let entries = self.entries();
        let entries = entries
            .iter()
            .map(|(uid, place)| format!("{}={place}", uid.replace(":podgroup:default:g:w", "")));
        entries.collect::<Vec<_>>().join(" ")
    }
}

/// The nodes that filter lets it go to, or the reason for none.
async fn filtered(world: &World, pod: &Value) -> String {
    let answer = world.filter(pod, &["n1", "n2"]).await;
    match answer["NodeNames"].as_array() {
        Some(names) if !names.is_empty() => {
            let names: Vec<_> = names.iter().filter_map(Value::as_str).collect();
            names.join(" ")
        }
        _ => {
            let never = &answer["FailedAndUnresolvableNodes"];
            assert_eq!(
                never.as_object().map(serde_json::Map::len),
                Some(2),
                "{answer}"
            );
            never["n1"].as_str().unwrap().to_owned()
        }
    }
}

#[tokio::test]
async fn what_is_planned_counts_as_used() {
    let world = World::of_queue();
    let slots = [
        (0, "n1", 0, ""),
        (1, "n1", 0, ""),
        (2, "n1", 1, ""),
        (3, "n2", 0, "p"),
    ];
    world.plan(plan("a", 1, &slots));
    assert_eq!(
        world.says(),
        "p=n2/0 slot:a:0=n1/0 slot:a:1=n1/0 slot:a:2=n1/1"
    );
    assert_eq!(filtered(&world, &pod("other", 16_276)).await, "n2");
    // A complete list of pods has none of them, and they stay.
    crate::watches::pods(&world.scheduler, &mut Some([].into()), &Change::ListEnds);
    assert_eq!(world.entries().len(), 4);
    world.plan(plan("a", 1, &slots[..1]));
    assert_eq!(world.says(), "slot:a:0=n1/0");
    world.no_plan("a");
    assert_eq!(world.says(), "");
}

/// A plan out of another cluster's backup may have any epoch.
#[tokio::test]
async fn an_epoch_counts_for_as_long_as_a_plan_has_it() {
    let world = World::of_queue();
    world.plan(plan("a", 7, &[(0, "n2", 1, "p")]));
    world.plan(plan("b", 900, &[]));
    let first = member("p", "a", 0, "n2");
    let old = "plan a waits for the queue's controller to take it over";
    assert_eq!(filtered(&world, &first).await, old);
    world.no_plan("b");
    assert_eq!(filtered(&world, &first).await, "n2");
}

#[tokio::test]
async fn a_member_goes_to_its_slot_and_else_nowhere() {
    let world = World::of_queue();
    let (first, second) = (member("p", "a", 0, "n2"), member("q", "a", 1, "n1"));
    assert_eq!(
        filtered(&world, &first).await,
        "its place in plan a is gone; it waits for another one"
    );
    world.plan(plan("a", 1, &[(0, "n2", 1, "p"), (1, "n1", 0, "")]));
    assert_eq!(filtered(&world, &first).await, "n2");
    assert_eq!(filtered(&world, &second).await, "n1");
    let refused = [
        (member("r", "a", 0, "n2"), "its place is another pod's"),
        (
            member("p", "a", 0, "n1"),
            "its place in plan a is gone; it waits for another one",
        ),
        (
            member("p", "a", 7, "n2"),
            "its place in plan a is gone; it waits for another one",
        ),
    ];
    for (pod, why) in refused {
        assert_eq!(filtered(&world, &pod).await, why);
    }
    let mut greedy = member("q", "a", 1, "n1");
    greedy["spec"]["containers"][0]["resources"]["limits"]["aliyun.com/gpu-mem"] = json!("9000");
    assert_eq!(
        filtered(&world, &greedy).await,
        "its place is another pod's"
    );
    // What its operator or a webhook gave it is not in the plan: the training operator adds an init
    // container to the workers of a PyTorchJob.
    let mut grown = second.clone();
    let amounts = json!({"limits": {"cpu": "100m", "memory": "20Mi"}});
    grown["spec"]["initContainers"] = json!([{"name": "init", "resources": amounts}]);
    grown["spec"]["containers"][0]["resources"]["limits"]["sublet.dev/gpu-slot"] = json!("1");
    assert_eq!(filtered(&world, &grown).await, "n1");
    let mut odd = first.clone();
    odd["metadata"]["annotations"]["sublet.dev/slot"] = json!("{");
    assert!(
        filtered(&world, &odd)
            .await
            .starts_with("it is queued, and cannot be read: ")
    );
    let mut gang = pod("s", 100);
    gang["metadata"]["labels"] = json!({ "pod-group.scheduling.sigs.k8s.io": "g" });
    let waits = "its group waits in the queue (sublet queue)";
    assert_eq!(filtered(&world, &gang).await, waits);

    // Another leadership has begun, and has not taken that plan over.
    world.plan(plan("b", 2, &[]));
    let old = "plan a waits for the queue's controller to take it over";
    assert_eq!(filtered(&world, &first).await, old);
    world.plan(plan("a", 2, &[(0, "n2", 1, "p"), (1, "n1", 0, "")]));
    assert_eq!(filtered(&world, &first).await, "n2");
    let mut late = plan("a", 2, &[(0, "n2", 1, "p")]);
    late["spec"]["deadline"] = json!("2000-01-01T00:00:00Z");
    world.plan(late);
    assert_eq!(
        filtered(&world, &first).await,
        "its place in plan a has lapsed"
    );

    // Nobody is evicted for a member, and one that is no member is asked as before.
    let args = json!({ "Pod": gang, "NodeNameToMetaVictims": { "n1": { "Pods": [] } } });
    let (_, answer) = world.call("/sublet/preempt", &args.to_string()).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["NodeNameToMetaVictims"], json!({}));
    assert_eq!(filtered(&world, &pod("t", 100)).await, "n2 n1");
}

#[tokio::test]
async fn without_the_queue_nobody_is_a_member() {
    let world = World::of_three();
    assert_eq!(
        world.filter(&member("p", "a", 0, "n2"), &["n3"]).await["NodeNames"],
        json!(["n3"])
    );
}

#[tokio::test]
async fn a_binding_takes_the_slot_once_and_gives_it_back_if_it_fails() {
    let world = World::of_queue();
    world.plan(plan("a", 1, &[(0, "n1", 1, ""), (1, "n1", 0, "q")]));
    world.sees(&member("p", "a", 0, "n1"));
    assert_eq!(world.bind("p", "n2").await, "its place is on node n1");
    world
        .api
        .script
        .lock()
        .unwrap()
        .push_back(Answer::Status(409));
    assert!(!world.bind("p", "n1").await.is_empty());
    assert_eq!(world.says(), "q=n1/0 slot:a:0=n1/1");
    assert_eq!(world.bind("p", "n1").await, "");
    assert_eq!(world.says(), "p=n1/1 q=n1/0");
    assert_eq!(world.bind("p", "n1").await, "");
    let bindings = world.api.bindings.lock().unwrap().clone();
    assert_eq!(bindings.len(), 2);
    let allocation = bindings[1]["metadata"]["annotations"]["sublet.dev/allocation"].as_str();
    assert!(
        allocation.unwrap().contains("\"index\":1"),
        "{allocation:?}"
    );

    // The slot is spent, whatever else says that it has it.
    world.sees(&member("r", "a", 0, "n1"));
    assert_eq!(world.bind("r", "n1").await, "its place is another pod's");
    // A pod that nobody let go is not bound, whoever asks.
    let mut gang = pod("s", 100);
    gang["metadata"]["labels"] = json!({ "pod-group.scheduling.sigs.k8s.io": "g" });
    world.sees(&gang);
    assert!(world.bind("s", "n1").await.starts_with("its group waits"));
}

#[tokio::test]
async fn cards_that_somebody_has_are_not_given_to_a_slot() {
    let world = World::of_queue();
    // A plan that came late, for a card that another one has.
    world.plan(plan("a", 1, &[(0, "n1", 0, ""), (1, "n1", 0, "")]));
    world.plan(plan("b", 1, &[(0, "n1", 0, "p")]));
    world.sees(&member("p", "b", 0, "n1"));
    assert_eq!(
        world.bind("p", "n1").await,
        "n1: the cards of its place are not free"
    );
    assert_eq!(world.says(), "p=n1/0 slot:a:0=n1/0 slot:a:1=n1/0");
    assert_eq!(world.standing("p"), Some(Standing::Reserved));
    world.no_plan("a");
    assert_eq!(world.bind("p", "n1").await, "");
}

#[tokio::test]
async fn a_slot_that_two_pods_have_is_free_when_both_are_gone() {
    let world = World::of_queue();
    for name in ["p", "q"] {
        let mut bound = member(name, "a", 0, "n1");
        bound["spec"]["nodeName"] = "n1".into();
        world.sees(&bound);
    }
    world.plan(plan("a", 1, &[(0, "n1", 0, "")]));
    let slots = || {
        world
            .entries()
            .keys()
            .filter(|name| name.starts_with("slot:"))
            .count()
    };
    for (gone, left) in [("q", 0), ("p", 1)] {
        world.scheduler.state().forget(&PodUid::new(gone).unwrap());
        assert_eq!(slots(), left, "{gone} is gone");
    }
}

/// Events, in any order: each stream has its own.
#[derive(Debug, Clone)]
enum Event {
    /// Plan `a` or `b` is this now: its slots by index, each for the pod that it names.
    Plan(bool, Vec<(u32, Option<bool>)>),
    NoPlan(bool),
    /// Pod `p` or `q` has this slot of plan `a` or `b`, and is bound there or not.
    Pod(bool, Option<(bool, u32)>, bool),
    Gone(bool),
}

const NODES: [&str; 2] = ["n1", "n2"];

fn any_event() -> impl Strategy<Value = Event> {
    let slot = (0..2_u32, proptest::option::of(any::<bool>()));
    let slots = proptest::collection::vec(slot, 0..3);
    prop_oneof![
        (any::<bool>(), slots).prop_map(|(which, slots)| Event::Plan(which, slots)),
        any::<bool>().prop_map(Event::NoPlan),
        (
            any::<bool>(),
            proptest::option::of((any::<bool>(), 0..2_u32)),
            any::<bool>()
        )
            .prop_map(|(which, slot, bound)| Event::Pod(which, slot, bound)),
        any::<bool>().prop_map(Event::Gone),
    ]
}

fn plan_name(which: bool) -> &'static str {
    if which { "a" } else { "b" }
}

fn pod_name(which: bool) -> &'static str {
    if which { "p" } else { "q" }
}

/// The last word of the watches.
#[derive(Default)]
struct Told {
    plans: BTreeMap<&'static str, Value>,
    pods: BTreeMap<&'static str, Value>,
}

impl Told {
    fn take(&mut self, world: &World, event: Event) {
        match event {
            Event::Plan(which, slots) => {
                let name = plan_name(which);
                let slots: BTreeMap<u32, Option<bool>> = slots.into_iter().collect();
                let mut used = Vec::new();
                let slots = slots.into_iter().map(|(index, of)| {
                    // No pod has two slots of one plan.
                    let of = of.map_or("", pod_name);
                    let of = if used.contains(&of) { "" } else { of };
                    used.push(of);
                    (index, NODES[index as usize], u16::from(which), of)
                });
                let plan = plan(name, 1, &slots.collect::<Vec<_>>());
                world.plan(plan.clone());
                self.plans.insert(name, plan);
            }
            Event::NoPlan(which) => {
                world.no_plan(plan_name(which));
                self.plans.remove(plan_name(which));
            }
            Event::Pod(which, slot, bound) => {
                let name = pod_name(which);
                let is_bound = |pod: &Value| pod["spec"]["nodeName"].is_string();
                if self.pods.get(name).is_some_and(is_bound) {
                    // It stays where it is.
                    return;
                }
                let mut told = match slot {
                    Some((plan, index)) => {
                        member(name, plan_name(plan), index, NODES[index as usize])
                    }
                    None => pod(name, 8_138),
                };
                if bound {
                    told["spec"]["nodeName"] = json!(NODES[slot.map_or(0, |(_, at)| at as usize)]);
                }
                world.sees(&told);
                self.pods.insert(name, told);
            }
            Event::Gone(which) => {
                world
                    .scheduler
                    .state()
                    .forget(&PodUid::new(pod_name(which)).unwrap());
                self.pods.remove(pod_name(which));
            }
        }
    }
}

proptest! {
    /// For any changes in any order, the ledger has every slot of every plan once, as its own or as
    /// its pod's, and every bound pod. It equals the ledger of another process that hears of the
    /// same state for the first time.
    #[test]
    fn a_slot_is_never_lost_and_never_there_twice(
        events in proptest::collection::vec(any_event(), 1..25),
    ) {
        // Clients are made in one.
        let executor = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _inside = executor.enter();
        let world = World::of_queue();
        let mut told = Told::default();
        for event in events {
            told.take(&world, event);
            let entries = world.entries();
            for (order, pods_first) in [("pods first", true), ("plans first", false)] {
                let fresh = World::of_queue();
                let pods = || told.pods.values().for_each(|pod| fresh.sees(pod));
                if pods_first {
                    pods();
                }
                told.plans.values().for_each(|plan| fresh.plan(plan.clone()));
                if !pods_first {
                    pods();
                }
                // Two plans may want one pod: whose slot has its name is a matter of order.
                let places = |world: &BTreeMap<String, String>| {
                    let mut places: Vec<String> = world.values().cloned().collect();
                    places.sort();
                    places
                };
                prop_assert_eq!(places(&entries), places(&fresh.entries()), "{}", order);
            }
            for (name, pod) in &told.pods {
                let node = pod["spec"]["nodeName"].as_str();
                let has = entries.get(*name).is_some_and(|place| place.ends_with('!'));
                prop_assert_eq!(has, node.is_some(), "{}", name);
            }
        }
    }
}
