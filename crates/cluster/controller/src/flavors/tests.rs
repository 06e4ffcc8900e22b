//! Pods that ask for flavors, and the amounts that they get.

use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value;
use sublet_api::dialect::claim_of;
use sublet_model::{Count, Milli, Portion, Unit};

use super::*;
use crate::admission::{AdmissionError, AdmissionRules, Admitted, admit};

fn flavors() -> KnownFlavors {
    let spec = |value: Value| FlavorSpec::deserialize(value).unwrap();
    BTreeMap::from([
        (
            "half".to_owned(),
            spec(json!({"memoryPercent": 50, "compute": 50})),
        ),
        (
            "spare".to_owned(),
            spec(
                json!({"count": 2, "memory": "4Gi", "computeLimit": 80, "class": "opportunistic"}),
            ),
        ),
    ])
}

fn rules() -> AdmissionRules {
    AdmissionRules {
        unit: Unit::MiB,
        schedulers: ["sublet-scheduler".to_owned()].into(),
        assign: None,
        slots: false,
        queue: false,
    }
}

fn pod(metadata: &Value, limits: &[Value]) -> Value {
    let containers = limits.iter().enumerate();
    let containers: Vec<Value> = containers
        .map(|(at, limits)| json!({"name": format!("c{at}"), "resources": {"limits": limits}}))
        .collect();
    json!({
        "metadata": metadata,
        "spec": {"schedulerName": "sublet-scheduler", "containers": containers},
    })
}

fn asking(flavor: &str) -> Value {
    json!({"labels": {keys::FLAVOR: flavor}})
}

fn admitted(pod: &Value, default: Option<&str>) -> Result<Admitted, AdmissionError> {
    let label = |name: &str| (keys::DEFAULT_FLAVOR_LABEL.to_owned(), name.to_owned());
    let labels = default.map(label).into_iter().collect();
    admit(pod, &labels, Some(&flavors()), &rules())
}

fn after(pod: &Value, default: Option<&str>) -> Value {
    let mut after = pod.clone();
    json_patch::patch(&mut after, &admitted(pod, default).unwrap().patch).unwrap();
    after
}

fn refusal(pod: &Value, default: Option<&str>) -> String {
    admitted(pod, default).unwrap_err().to_string()
}

#[test]
fn a_flavor_becomes_amounts() {
    for (metadata, limits, default) in [
        (asking("half"), json!({}), None),
        (
            json!({"annotations": {keys::FLAVOR: "half"}}),
            json!({"cpu": "1"}),
            None,
        ),
        (asking("default"), json!({}), Some("half")),
        (json!({}), json!({keys::GPU_SLOT: "1"}), Some("half")),
    ] {
        let pod = pod(&metadata, &[limits]);
        let after = after(&pod, default);
        let limits = &after["spec"]["containers"][0]["resources"]["limits"];
        assert_eq!(limits[keys::GPU_MEMORY_PERCENT], "50", "{pod}");
        assert_eq!(limits[keys::GPU_COMPUTE], "50", "{pod}");
        assert_eq!(limits[keys::GPU_SLOT], "1", "{pod}");
        assert_eq!(
            after["metadata"]["annotations"][keys::FLAVOR_APPLIED],
            "half"
        );
        assert!(
            limits.get("cpu") == pod["spec"]["containers"][0]["resources"]["limits"].get("cpu")
        );
        // Once more, as the API server may ask again: nothing is left to do.
        assert_eq!(admitted(&after, default).unwrap().patch.0, []);
    }
}

#[test]
fn every_field_of_a_flavor_counts() {
    let slot = json!({keys::GPU_SLOT: "1"});
    let after = after(&pod(&asking("spare"), &[json!({}), slot]), None);
    let claim = claim_of(&Pod::deserialize(&after).unwrap(), Unit::MiB);
    let claim = claim.unwrap().unwrap();
    let [container] = claim.containers() else {
        panic!("{claim:?}");
    };
    assert_eq!(container.name.as_str(), "c1");
    let demand = &container.demand;
    assert_eq!(demand.gpus, Count::new(2));
    assert_eq!(demand.compute_limit, Milli::new(800).unwrap());
    let Portion::Part(part) = demand.portion else {
        panic!("{demand:?}");
    };
    assert_eq!(part.memory.get(), 4096);
    assert_eq!(
        after["metadata"]["labels"][keys::CLASS_LABEL],
        "opportunistic"
    );
}

#[test]
fn what_cannot_be_served_is_refused_with_its_field() {
    let mixed = pod(&asking("half"), &[json!({"nvidia.com/gpu": "1"})]);
    let twice = json!({"labels": {keys::FLAVOR: "half"}, "annotations": {keys::FLAVOR: "spare"}});
    for (pod, default, wanted) in [
        (
            pod(&asking("third"), &[json!({})]),
            None,
            "`sublet.dev/flavor` is `third`, and there is no such GpuFlavor; there are `half`, `spare`",
        ),
        (
            pod(&asking("default"), &[json!({})]),
            None,
            "`sublet.dev/flavor` is `default`, and the namespace has no label \
             `sublet.dev/default-flavor`: name a flavor",
        ),
        (
            pod(&asking("default"), &[json!({})]),
            Some("gone"),
            "the namespace's label `sublet.dev/default-flavor` is `gone`, and there is no such \
             GpuFlavor; there are `half`, `spare`",
        ),
        (
            pod(&asking("half"), &[json!({}), json!({})]),
            None,
            "the pod has 2 containers: give those that are to have the flavor `sublet.dev/gpu-slot: 1`",
        ),
        (
            mixed,
            None,
            "the pod asks for `sublet.dev/flavor` and for `nvidia.com/gpu`; a pod can use one way \
             of asking for GPUs",
        ),
        (
            pod(&twice, &[json!({})]),
            None,
            "`sublet.dev/flavor` is `half, spare`: write the same as a label and as an annotation, \
             or only one of them",
        ),
    ] {
        assert_eq!(refusal(&pod, default), wanted);
    }
    let pod = pod(&asking("half"), &[json!({})]);
    let unread = admit(&pod, &BTreeMap::new(), None, &rules()).unwrap_err();
    assert!(
        unread.to_string().contains("cannot be read yet"),
        "{unread}"
    );
}

#[test]
fn a_default_is_for_those_alone_that_say_no_amount() {
    for limits in [
        json!({}),
        json!({"cpu": "1"}),
        json!({"nvidia.com/gpu": "1"}),
    ] {
        let pod = pod(&json!({}), &[limits]);
        let after = after(&pod, Some("half"));
        let resources = |pod: &Value| pod["spec"]["containers"][0]["resources"].clone();
        assert_eq!(resources(&after), resources(&pod));
    }
}

#[test]
fn without_the_webhook_the_scheduler_refuses_it() {
    let claim = |pod: &Value| claim_of(&Pod::deserialize(pod).unwrap(), Unit::MiB);
    let half = pod(&asking("half"), &[json!({})]);
    let refused = claim(&half).unwrap_err();
    assert!(matches!(refused, ClaimError::Flavor(_)), "{refused}");
    // Somebody writes that it is done, and it is not.
    let forged =
        json!({"labels": {keys::FLAVOR: "half"}, "annotations": {keys::FLAVOR_APPLIED: ""}});
    assert!(claim(&pod(&forged, &[json!({})])).is_err());
    // A label can be put on a pod that runs. It has no GPU.
    let mut running = half;
    running["spec"]["nodeName"] = json!("n1");
    assert_eq!(claim(&running), Ok(None));
}

#[test]
fn another_schedulers_pod_is_left_alone_with_a_warning() {
    let mut pod = pod(&asking("half"), &[json!({})]);
    pod["spec"]["schedulerName"] = json!("other");
    let admitted = admitted(&pod, None).unwrap();
    assert_eq!(admitted.patch.0, []);
    let [warning] = &admitted.warnings[..] else {
        panic!("{admitted:?}");
    };
    assert!(
        warning.ends_with("set schedulerName: sublet-scheduler"),
        "{warning}"
    );
}

proptest! {
    #[test]
    fn a_second_time_changes_nothing_and_nothing_is_lost(
        flavor in prop::option::of(prop::sample::select(vec!["half", "spare", "default", "x", ""])),
        default in prop::option::of(prop::sample::select(vec!["half", "spare", "x"])),
        limits in prop::collection::vec(prop::sample::select(vec![
            json!({}), json!({keys::GPU_SLOT: "1"}), json!({"cpu": "1"}),
            json!({"nvidia.com/gpu": "1"}), json!({keys::GPU_MEMORY: "1Gi", keys::GPU_SLOT: "1"}),
        ]), 1..4),
    ) {
        let metadata = flavor.map_or_else(|| json!({}), asking);
        let pod = pod(&metadata, &limits);
        if admitted(&pod, default).is_ok() {
            let once = after(&pod, default);
            prop_assert_eq!(admitted(&once, default).unwrap().patch.0, vec![]);
            let claim = claim_of(&Pod::deserialize(&once).unwrap(), Unit::MiB).unwrap();
            prop_assert!(flavor.is_none() || claim.is_some(), "a flavor and no claim");
            for (at, limits) in limits.iter().enumerate() {
                let after = &once["spec"]["containers"][at]["resources"]["limits"];
                for (key, amount) in limits.as_object().unwrap() {
                    prop_assert_eq!(&after[key], amount);
                }
            }
        }
    }
}

#[test]
fn the_shipped_definition_has_every_field() {
    let schema = include_str!("../../../../../deploy/kubernetes/15-flavors.yaml");
    for field in [
        "count",
        "memory",
        "memoryPercent",
        "compute",
        "computeLimit",
        "class",
    ] {
        let entry = format!("\n              {field}:\n");
        assert!(schema.contains(&entry), "no {field} in 15-flavors.yaml");
    }
    let webhook = include_str!("../../../../../deploy/kubernetes/71-webhook.yaml");
    assert!(webhook.contains(&format!("'{}'", keys::FLAVOR)));
}
