//! Plans as text, and any plan there and back.

use proptest::prelude::*;
use serde_json::{Value, json};
use sublet_model::{Allocation, CardRef, ContainerName, GpuIndex, GpuUuid, Grant, MiB, Time, Unit};

use super::*;
use crate::object::Pod;

fn object(value: Value) -> GangPlanObject {
    serde_json::from_value(value).unwrap()
}

/// A plan of one group with one slot.
fn plan() -> Value {
    json!({
        "apiVersion": "sublet.dev/v1alpha1", "kind": "GangPlan",
        "metadata": { "name": "p1", "uid": "u", "resourceVersion": "5" },
        "spec": {
            "epoch": 7, "deadline": "2026-11-25T17:00:00Z",
            "groups": [{
                "id": "podgroup/team-a/g1", "quota": "team-a",
                "roles": [{ "name": "worker", "pod": {
                    "metadata": { "namespace": "team-a" },
                    "spec": { "containers": [{
                        "name": "main", "resources": { "limits": { "nvidia.com/gpu": "1" } },
                    }] },
                } }],
                "slots": [{
                    "role": "worker", "index": 0, "node": "n1", "pod": "3d9f",
                    "allocation": [{
                        "container": "main", "index": 2, "uuid": "GPU-2", "memoryMiB": 16_276,
                    }],
                }],
                "victims": [{ "namespace": "team-b", "name": "v", "uid": "77" }],
            }],
        },
    })
}

#[test]
fn a_role_of_a_group_of_gangs_has_a_place_in_the_ledger_too() {
    let mut text = plan();
    let group = &mut text["spec"]["groups"][0];
    group["id"] = "podgroup/a/ps+a/worker".into();
    group["roles"][0]["name"] = "a/worker/pods-1".into();
    group["slots"][0]["role"] = "a/worker/pods-1".into();
    let read = object(text).read().unwrap();
    let entries = slot_entries(&read, |role| role.claim(Unit::MiB)).unwrap();
    let names = entries.values().map(|entry| entry.own.pod.to_string());
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["team-a/worker.a.worker.pods-1.0"]
    );
}

#[test]
fn a_plan_is_read_and_written_as_it_was() {
    let text = plan();
    let read = object(text.clone()).read().unwrap();
    assert_eq!((&*read.name, &*read.version, read.epoch), ("p1", "5", 7));
    assert_eq!(read.deadline, Time::from_ms(1_795_626_000_000));
    let group = &read.groups[0];
    let (role, slot) = (&group.roles[0], &group.slots[0]);
    assert_eq!(slot.allocation.grants[0].card.index, GpuIndex(2));
    assert!(slot.allocation.answers(&role.claim(Unit::MiB).unwrap()));
    let key = SlotKey::of(&read.name, &group.id, slot);
    assert_eq!(
        key.uid().unwrap().as_str(),
        "slot:p1:podgroup:team-a:g1:worker:0"
    );
    assert_eq!(plan_to_object(&read)["spec"], text["spec"]);
}

#[test]
fn what_is_wrong_is_named() {
    let long = "x".repeat(64);
    for (at, value, expected) in [
        (
            "/metadata/name",
            json!(""),
            "`metadata.name`: it must have 1 to 63",
        ),
        (
            "/metadata/name",
            json!(long),
            "`metadata.name`: it must have 1 to 63",
        ),
        ("/spec", Value::Null, "`spec`: "),
        ("/spec/epoch", json!(-1), "`spec`: "),
        ("/spec/deadline", json!("soon"), "`spec.deadline`: "),
        (
            "/spec/deadline",
            json!("1960-01-01T00:00:00Z"),
            "`spec.deadline`: it is before 1970",
        ),
        (
            "/spec/groups/0/id",
            json!(""),
            "`spec.groups[0].id`: it is empty",
        ),
        (
            "/spec/groups/0/roles",
            json!([]),
            "`spec.groups[0].slots[0].role`: there is no role",
        ),
        (
            "/spec/groups/0/roles/0/pod",
            json!({ "spec": 1 }),
            "`spec.groups[0].roles[0].pod`: ",
        ),
        (
            "/spec/groups/0/slots/0/node",
            json!("a b"),
            "`spec.groups[0].slots[0].node`: ",
        ),
        (
            "/spec/groups/0/slots/0/pod",
            json!(""),
            "`spec.groups[0].slots[0].pod`: ",
        ),
        (
            "/spec/groups/0/slots/0/allocation/0/memoryMiB",
            json!(u64::MAX),
            "`spec.groups[0].slots[0].allocation`: ",
        ),
        (
            "/spec/groups/0/victims/0/uid",
            json!(""),
            "`spec.groups[0].victims[0]`: ",
        ),
    ] {
        let mut text = plan();
        *text.pointer_mut(at).unwrap() = value;
        let error = object(text).read().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{at}: {error}");
    }
}

#[test]
fn no_slot_is_there_twice_and_no_pod_has_two() {
    let with = |slot: Value| {
        let mut text = plan();
        let slots = text.pointer_mut("/spec/groups/0/slots").unwrap();
        slots.as_array_mut().unwrap().push(slot);
        let read = object(text).read();
        read.map(drop).map_err(|error| error.to_string())
    };
    let twice = with(json!({ "role": "worker", "index": 0, "node": "n2" }));
    assert_eq!(
        twice.unwrap_err(),
        "`spec.groups[podgroup/team-a/g1].slots`: worker/0 is there twice"
    );
    let one_pod = with(json!({ "role": "worker", "index": 1, "node": "n2", "pod": "3d9f" }));
    assert!(one_pod.unwrap_err().ends_with("the pod 3d9f has two slots"));
    assert_eq!(
        with(json!({ "role": "worker", "index": 1, "node": "n2" })),
        Ok(())
    );
    let slots = |count: usize| {
        let mut text = plan();
        *text.pointer_mut("/spec/groups/0/slots").unwrap() = (0..count)
            .map(|index| json!({ "role": "worker", "index": index, "node": "n" }))
            .collect();
        object(text).read().is_ok()
    };
    assert!(slots(MOST_SLOTS) && !slots(MOST_SLOTS + 1));
}

#[test]
fn a_plan_keeps_of_a_pod_what_its_claim_is_read_from() {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": "w-0", "namespace": "a", "uid": "1",
            "labels": { "app": "x", "sublet.dev/class": "opportunistic" },
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{…}",
                "nvidia.com/use-gputype": "A100", "sublet.dev/allocation": "[]",
                "sublet.dev/slot": "{}",
            },
        },
        "spec": {
            "schedulerName": "s", "priority": 5, "nodeSelector": { "zone": "z" },
            "containers": [{ "name": "main", "resources": {
                "limits": { "nvidia.com/gpu": 2 } }, "ports": [{ "containerPort": 1, "hostPort": 2 }],
            }],
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{ "matchExpressions": [
                    { "key": "zone", "operator": "Exists" },
                    { "key": "nvidia.com/gpu.product", "operator": "In", "values": ["A100"] },
                ] }],
            } } },
            "tolerations": [{ "operator": "Exists" }],
        },
    }))
    .unwrap();
    assert_eq!(
        role_pod::to_json(&PlannedRole::new("w", &pod).pod),
        json!({
            "metadata": {
                "namespace": "a", "labels": { "sublet.dev/class": "opportunistic" },
                "annotations": { "nvidia.com/use-gputype": "A100" },
            },
            "spec": {
                "priority": 5,
                "containers": [{
                    "name": "main", "resources": { "limits": { "nvidia.com/gpu": "2" } },
                    "ports": [{ "containerPort": 1, "hostPort": 2 }],
                }],
                "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{ "matchExpressions": [{
                        "key": "nvidia.com/gpu.product", "operator": "In", "values": ["A100"],
                    }] }],
                } } },
            },
        })
    );
}

/// Keys by which pods ask, and one that says nothing.
const ASKS: [(&str, &str); 7] = [
    ("nvidia.com/gpu", "1"),
    ("aliyun.com/gpu-mem", "100"),
    ("sublet.dev/gpu-memory", "4Gi"),
    ("nvidia.com/gpumem", "3000"),
    ("koordinator.sh/gpu-memory-ratio", "50"),
    ("cpu", "1500m"),
    ("memory", "1Gi"),
];

const SAYS: [(&str, &str); 6] = [
    ("sublet.dev/class", "opportunistic"),
    ("nvidia.com/use-gputype", "A100"),
    ("sharedgpu/gpu_limit", "0.5"),
    ("sharedgpu/gpu_request", "0.5"),
    ("gpu-fraction", "0.5"),
    ("app", "x"),
];

fn any_pod() -> impl Strategy<Value = Pod> {
    let asks = || proptest::sample::subsequence(&ASKS[..], 0..3);
    let says = || proptest::sample::subsequence(&SAYS[..], 0..3);
    let map = |pairs: Vec<(&str, &str)>| -> Value {
        pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), json!(value)))
            .collect()
    };
    let always = prop_oneof![Just(Value::Null), Just(json!("Always"))];
    let models = prop_oneof![Just("A100"), Just("H100")];
    let shape = (
        asks(),
        asks(),
        says(),
        says(),
        always,
        models,
        any::<bool>(),
        0..3_u8,
    );
    shape.prop_map(move |(init, main, labels, annotations, always, model, net, where_)| {
        let wish = json!({ "key": "nvidia.com/gpu.product", "operator": "In", "values": [model] });
        let zone = json!({ "key": "zone", "operator": "In", "values": ["z"] });
        let terms = match where_ {
            0 => json!([]),
            1 => json!([{ "matchExpressions": [wish, zone] }]),
            _ => json!([{ "matchExpressions": [wish] }, { "matchExpressions": [zone] }]),
        };
        serde_json::from_value(json!({
            "metadata": {
                "name": "x", "namespace": "a", "uid": "1",
                "labels": map(labels), "annotations": map(annotations),
            },
            "spec": {
                "priority": where_, "hostNetwork": net, "overhead": { "cpu": "1" },
                "nodeSelector": { "nvidia.com/gpu.product": model, "zone": "z" },
                "affinity": { "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
                } },
                "initContainers": [{
                    "name": "i", "restartPolicy": always, "resources": { "limits": map(init) },
                }],
                "containers": [{
                    "name": "m", "resources": { "requests": map(main.clone()), "limits": map(main) },
                    "ports": [{ "containerPort": 8_080, "hostPort": 80, "hostIP": "10.0.0.1" }],
                }],
            },
        }))
        .unwrap()
    })
}

fn any_slot() -> impl Strategy<Value = Slot> {
    let grant = (
        "[a-z]{1,5}",
        0..8_u16,
        proptest::option::of("GPU-[0-9]{1,3}"),
        0..90_000_u32,
    );
    let grant = grant.prop_map(|(container, index, uuid, memory)| Grant {
        container: ContainerName::new(&container).unwrap(),
        card: CardRef {
            index: GpuIndex(index),
            uuid: uuid.map(|uuid| GpuUuid::new(&uuid).unwrap()),
        },
        memory: MiB::from(memory),
    });
    let grants = proptest::collection::vec(grant, 0..3);
    ("n[0-9]{1,3}", grants, any::<bool>()).prop_map(|(node, grants, has_pod)| Slot {
        role: Arc::from("w"),
        index: 0,
        node: NodeName::new(&node).unwrap(),
        allocation: Allocation { grants },
        pod: has_pod.then(|| PodUid::new("u").unwrap()),
    })
}

proptest! {
    /// For any pod, the members of its role in a plan have the same request.
    #[test]
    fn a_role_asks_what_its_pod_asks(pod in any_pod()) {
        let role = PlannedRole::new("w", &pod);
        let read = Pod::deserialize(&role_pod::to_json(&role.pod)).unwrap();
        prop_assert_eq!(&read, &*role.pod);
        let of_pod = dialect::claim_of(&pod, Unit::MiB);
        let of_pod = of_pod.map(|claim| claim.unwrap_or_else(|| {
            Claim::host_only(host_of(&pod).unwrap())
        }));
        prop_assert_eq!(role.claim(Unit::MiB), of_pod);
        prop_assert_eq!(crate::stock_ask(&role.pod), crate::stock_ask(&pod));
        prop_assert_eq!(crate::amounts_of(&role.pod), crate::amounts_of(&pod));
    }

    #[test]
    fn every_plan_comes_back(
        pod in any_pod(),
        slots in proptest::collection::vec(any_slot(), 0..6),
        epoch in any::<u64>(),
        deadline in 0..4_000_000_000_000_u64,
    ) {
        let mut slots = slots;
        for (index, slot) in (0..).zip(&mut slots) {
            slot.index = index;
            slot.pod = slot.pod.take().map(|_| PodUid::new(&format!("u{index}")).unwrap());
        }
        let victim = Victim {
            pod: PodKey::new("a", "v").unwrap(),
            uid: PodUid::new("77").unwrap(),
        };
        let plan = GangPlan {
            name: Arc::from("p"),
            version: Arc::from("9"),
            epoch,
            deadline: Time::from_ms(deadline),
            groups: vec![PlannedGroup {
                id: GroupId::new("job/a/j"),
                quota: Arc::from("a"),
                roles: vec![PlannedRole::new("w", &pod)],
                slots,
                victims: vec![victim],
            }],
        };
        let mut text = plan_to_object(&plan);
        text["metadata"] = json!({ "name": "p", "resourceVersion": "9" });
        let text = text.to_string();
        let read: GangPlanObject = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(read.read(), Ok(plan));
    }

    /// A damaged object is read or named, and never breaks the list that it is in.
    #[test]
    fn any_damage_is_read_or_named(
        at in proptest::sample::select(&[
            "/spec", "/spec/epoch", "/spec/deadline", "/spec/groups", "/spec/groups/0",
            "/spec/groups/0/roles/0/pod", "/spec/groups/0/slots", "/spec/groups/0/slots/0/index",
            "/spec/groups/0/slots/0/allocation/0", "/spec/groups/0/victims/0",
        ][..]),
        with in prop_oneof![
            Just(Value::Null), Just(json!(-1)), Just(json!("x")), Just(json!([])), Just(json!({})),
            Just(json!([[]])), Just(json!(1.5)), Just(json!({ "a": [null] })),
        ],
    ) {
        let mut text = plan();
        *text.pointer_mut(at).unwrap() = with;
        let read: GangPlanObject = serde_json::from_str(&text.to_string()).unwrap();
        if let Err(error) = read.read() {
            prop_assert!(!error.field.is_empty() && !error.why.is_empty());
        }
    }
}
