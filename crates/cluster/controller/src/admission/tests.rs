//! Pods as text, and the results of their admission.

use proptest::prelude::*;

use super::*;

fn rules() -> AdmissionRules {
    AdmissionRules {
        unit: Unit::MiB,
        schedulers: ["sublet-scheduler".to_owned()].into(),
        assign: None,
        slots: false,
        queue: false,
    }
}

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(own).collect()
}

/// A pod of one container with these limits, as the API server sends it.
fn pod(scheduler: &str, limits: &Value) -> Value {
    json!({
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "c0", "resources": {"limits": limits, "requests": limits}}],
        },
    })
}

fn after(pod: &Value, labels: &BTreeMap<String, String>, rules: &AdmissionRules) -> Value {
    let mut after = pod.clone();
    let admitted = admit(pod, labels, None, rules).unwrap();
    json_patch::patch(&mut after, &admitted.patch).unwrap();
    after
}

fn ours() -> Value {
    json!({
        "name": "SUBLET_ALLOCATION",
        "valueFrom": {"fieldRef": {
            "fieldPath": format!("metadata.annotations['{}']", keys::ALLOCATION),
        }},
    })
}

#[test]
fn a_gpu_pod_gets_the_variable_and_nothing_else() {
    let pod = pod("sublet-scheduler", &json!({"aliyun.com/gpu-mem": "100"}));
    let mut wanted = pod.clone();
    wanted["spec"]["containers"][0]["env"] = json!([ours()]);
    assert_eq!(after(&pod, &labels(&[]), &rules()), wanted);
}

/// Every pod that queues has the scheduling gate, GPU or not; no other pod has it.
#[test]
fn a_pod_that_queues_gets_the_scheduling_gate_once() {
    let queue = AdmissionRules {
        queue: true,
        ..rules()
    };
    let opted_in = labels(&[(keys::QUEUE_LABEL, "enabled")]);
    let gpu = json!({"aliyun.com/gpu-mem": "100"});
    let gates = |pod: &Value| pod["spec"]["schedulingGates"].clone();
    let ours = json!([{ "name": keys::SCHEDULING_GATE }]);
    let marked = |mark: &str, key: &str| {
        let mut pod = pod("sublet-scheduler", &json!({"cpu": "1"}));
        pod["metadata"][mark][key] = "x".into();
        pod
    };
    for (pod, labels) in [
        (marked("labels", keys::PLUGINS_POD_GROUP), labels(&[])),
        (marked("labels", keys::KOORDINATOR_POD_GROUP), labels(&[])),
        (marked("annotations", keys::GANG_NAME), labels(&[])),
        (marked("labels", keys::QUOTA_NAME), labels(&[])),
        (pod("sublet-scheduler", &gpu), opted_in.clone()),
        (
            pod("sublet-scheduler", &json!({"cpu": "1"})),
            opted_in.clone(),
        ),
    ] {
        assert_eq!(gates(&after(&pod, &labels, &rules())), Value::Null, "{pod}");
        let queued = after(&pod, &labels, &queue);
        assert_eq!(gates(&queued), ours, "{pod}");
        assert_eq!(after(&queued, &labels, &queue), queued);
    }
    let mut held = marked("labels", keys::QUOTA_NAME);
    held["spec"]["schedulingGates"] = json!([{ "name": "other" }]);
    let both = json!([{ "name": "other" }, { "name": keys::SCHEDULING_GATE }]);
    assert_eq!(gates(&after(&held, &labels(&[]), &queue)), both);

    let mut placed = marked("labels", keys::QUOTA_NAME);
    placed["spec"]["nodeName"] = "n1".into();
    for (pod, labels) in [
        (pod("sublet-scheduler", &gpu), labels(&[])),
        (
            pod("sublet-scheduler", &gpu),
            labels(&[(keys::QUEUE_LABEL, "no")]),
        ),
        (pod("default-scheduler", &gpu), opted_in),
        (placed, labels(&[])),
    ] {
        assert_eq!(gates(&after(&pod, &labels, &queue)), Value::Null, "{pod}");
    }
}

#[test]
fn the_scheduler_is_filled_in_where_the_pod_names_none() {
    let limits = json!({"aliyun.com/gpu-mem": "100"});
    let assign = AdmissionRules {
        assign: Some("sublet-scheduler".to_owned()),
        ..rules()
    };
    let label = |name| labels(&[(keys::ASSIGN_SCHEDULER_LABEL, name)]);
    for (named, labels, rules, wanted) in [
        (
            "default-scheduler",
            labels(&[]),
            rules(),
            "default-scheduler",
        ),
        (
            "default-scheduler",
            labels(&[]),
            assign.clone(),
            "sublet-scheduler",
        ),
        ("", labels(&[]), assign.clone(), "sublet-scheduler"),
        ("other", labels(&[]), assign.clone(), "other"),
        (
            "default-scheduler",
            label("sublet-scheduler"),
            rules(),
            "sublet-scheduler",
        ),
        (
            "default-scheduler",
            label("default-scheduler"),
            assign.clone(),
            "default-scheduler",
        ),
        ("other", label("sublet-scheduler"), rules(), "other"),
    ] {
        let after = after(&pod(named, &limits), &labels, &rules);
        assert_eq!(after["spec"]["schedulerName"], wanted, "{named} {labels:?}");
        // Only pods of a scheduler that asks Sublet are made ready for it.
        let has_env = after["spec"]["containers"][0]["env"].is_array();
        assert_eq!(has_env, wanted == "sublet-scheduler", "{named} {labels:?}");
    }
    // Somebody has chosen its node.
    let mut bound = pod("default-scheduler", &limits);
    bound["spec"]["nodeName"] = json!("n1");
    assert_eq!(after(&bound, &labels(&[]), &assign), bound);
}

#[test]
fn slots_are_filled_in_where_they_are_wanted_and_lacking() {
    let with = AdmissionRules {
        slots: true,
        ..rules()
    };
    let label = |text| labels(&[(keys::ADD_SLOTS_LABEL, text)]);
    let part = json!({"aliyun.com/gpu-mem": "100"});
    let own = json!({"aliyun.com/gpu-mem": "100", "sublet.dev/gpu-slot": "2"});
    let whole = json!({"nvidia.com/gpu": "1"});
    for (limits, labels, rules, wanted) in [
        (&part, labels(&[]), rules(), None),
        (&part, labels(&[]), with.clone(), Some("1")),
        (&part, label("true"), rules(), Some("1")),
        (&part, label("false"), with.clone(), None),
        (&part, label("maybe"), with.clone(), Some("1")),
        (&own, labels(&[]), with.clone(), Some("2")),
        (&whole, labels(&[]), with.clone(), None),
    ] {
        let after = after(&pod("sublet-scheduler", limits), &labels, &rules);
        let slot = &after["spec"]["containers"][0]["resources"]["limits"][keys::GPU_SLOT];
        assert_eq!(slot.as_str(), wanted, "{limits} {labels:?}");
    }
    let told = admit(
        &pod("sublet-scheduler", &part),
        &label("maybe"),
        None,
        &with,
    )
    .unwrap();
    assert_eq!(
        told.warnings,
        ["the namespace's label `sublet.dev/add-slots` is `maybe`; write `true` or `false`"]
    );
    // A request alone is refused by the API server, but not by a panic of ours.
    let mut request = pod("sublet-scheduler", &json!({}));
    request["spec"]["containers"][0]["resources"] = json!({"requests": part});
    let after = after(&request, &labels(&[]), &with);
    let resources = &after["spec"]["containers"][0]["resources"];
    assert_eq!(resources["limits"], json!({"sublet.dev/gpu-slot": "1"}));
}

#[test]
fn the_last_variable_of_the_name_is_ours() {
    let mut pod = pod("sublet-scheduler", &json!({"nvidia.com/gpu": "1"}));
    let forged = json!({"name": "SUBLET_ALLOCATION", "value": "all"});
    let other = json!({"name": "A", "value": "b"});
    pod["spec"]["containers"][0]["env"] = json!([ours(), forged, other]);
    let after = after(&pod, &labels(&[]), &rules());
    let env = &after["spec"]["containers"][0]["env"];
    assert_eq!(*env, json!([ours(), forged, other, ours()]));
}

#[test]
fn what_cannot_be_served_is_refused_with_the_name_of_the_field() {
    let mut two = pod(
        "sublet-scheduler",
        &json!({"aliyun.com/gpu-mem": "1", "nvidia.com/gpu": "1"}),
    );
    let refusal = |pod: &Value| {
        admit(pod, &labels(&[]), None, &rules())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refusal(&two),
        "the pod asks for `aliyun.com/gpu-mem` and for `nvidia.com/gpu`; a pod can use one way of \
         asking for GPUs"
    );
    let odd = pod("sublet-scheduler", &json!({"aliyun.com/gpu-mem": "100m"}));
    assert!(
        refusal(&odd).starts_with("container c0: `aliyun.com/gpu-mem` is `100m`: "),
        "{}",
        refusal(&odd)
    );
    let unreadable = json!({"spec": {"containers": 7}});
    assert!(refusal(&unreadable).starts_with("the pod cannot be read: "));
    // What another scheduler makes of it is not ours to say.
    two["spec"]["schedulerName"] = json!("other");
    assert_eq!(after(&two, &labels(&[]), &rules()), two);
    // A mirror pod runs already.
    let mut mirror = odd;
    mirror["metadata"]["annotations"] = json!({keys::MIRROR: "x"});
    assert_eq!(after(&mirror, &labels(&[]), &rules()), mirror);
}

/// GPUShare's own samples mean GiB.
#[test]
fn few_units_of_a_mib_are_warned_of() {
    let warned = |limits: &Value, unit| {
        let rules = AdmissionRules { unit, ..rules() };
        let pod = pod("sublet-scheduler", limits);
        admit(&pod, &labels(&[]), None, &rules).unwrap().warnings
    };
    let few = json!({"aliyun.com/gpu-mem": "2"});
    let [warning] = &warned(&few, Unit::MiB)[..] else {
        panic!("no warning")
    };
    let words = "container c0 asks for 2 of `aliyun.com/gpu-mem`, and one is a MiB here";
    assert!(warning.starts_with(words), "{warning}");
    assert_eq!(warned(&few, Unit::GiB), [""; 0]);
    let more = json!({"aliyun.com/gpu-mem": "64"});
    assert_eq!(warned(&more, Unit::MiB), [""; 0]);
}

#[test]
fn a_gpu_pod_whose_author_chose_its_node_is_refused() {
    let on_node = |scheduler, limits: &Value| {
        let mut pod = pod(scheduler, limits);
        pod["spec"]["nodeName"] = json!("n1");
        pod
    };
    let part = json!({"aliyun.com/gpu-mem": "100"});
    let bound = on_node("sublet-scheduler", &part);
    let refusal = admit(&bound, &labels(&[]), None, &rules()).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "`spec.nodeName` is `n1`, and the pod asks for a GPU: nobody would choose its card, and node n1 \
         would fail it; leave `nodeName` out, and say `nodeSelector: {kubernetes.io/hostname: n1}` if \
         it must be this node"
    );
    let mut mirror = bound;
    mirror["metadata"]["annotations"] = json!({keys::MIRROR: "x"});
    for pod in [
        mirror,
        on_node("sublet-scheduler", &json!({"cpu": "1"})),
        on_node("other", &part),
    ] {
        assert_eq!(after(&pod, &labels(&[]), &rules()), pod);
    }
}

/// Only fields that creation alone can give, and only if the pod would be admitted now.
#[test]
fn what_an_uncompleted_pod_lacks_is_named() {
    let with = AdmissionRules {
        slots: true,
        ..rules()
    };
    let half: sublet_api::FlavorSpec =
        serde_json::from_value(json!({"memoryPercent": 50})).unwrap();
    let flavors = KnownFlavors::from([("half".to_owned(), half)]);
    let flavored = |name: &str| {
        let mut pod = pod("sublet-scheduler", &json!({"cpu": "1"}));
        pod["metadata"]["labels"] = json!({keys::FLAVOR: name});
        pod
    };
    let part = json!({"aliyun.com/gpu-mem": "100"});
    let ours = |limits: &Value| pod("sublet-scheduler", limits);
    let slotted = json!({"aliyun.com/gpu-mem": "100", "sublet.dev/gpu-slot": "1"});
    let own = json!({"sublet.dev/gpu-memory": "4Gi"});
    for (pod, rules, wanted) in [
        (ours(&part), rules(), None),
        (ours(&part), with.clone(), Some(keys::GPU_SLOT)),
        (ours(&slotted), with.clone(), None),
        (ours(&own), rules(), Some(keys::GPU_SLOT)),
        (flavored("half"), rules(), Some(keys::FLAVOR)),
        (flavored("none"), rules(), None),
        (ours(&json!({"cpu": "1"})), with.clone(), None),
        (
            ours(&json!({"aliyun.com/gpu-mem": "1k5"})),
            with.clone(),
            None,
        ),
        (pod("other", &part), with.clone(), None),
    ] {
        let read = Pod::deserialize(&pod).unwrap();
        let lacks = lacking(&read, &labels(&[]), Some(&flavors), &rules).unwrap();
        assert_eq!(lacks, wanted, "{pod}");
        // Once admitted, it lacks nothing.
        if lacks.is_some() {
            let mut made = pod.clone();
            let admitted = admit(&pod, &labels(&[]), Some(&flavors), &rules).unwrap();
            json_patch::patch(&mut made, &admitted.patch).unwrap();
            let read = Pod::deserialize(&made).unwrap();
            let lacks = lacking(&read, &labels(&[]), Some(&flavors), &rules);
            assert_eq!(lacks, Ok(None), "{made}");
        }
    }
    let early = Pod::deserialize(&flavored("half")).unwrap();
    assert!(lacking(&early, &labels(&[]), None, &rules()).is_err());
}

fn any_container() -> impl Strategy<Value = Value> {
    let amounts = prop::collection::btree_map(
        prop::sample::select(vec![
            "aliyun.com/gpu-mem",
            "aliyun.com/gpu-core.percentage",
            "nvidia.com/gpu",
            "sublet.dev/gpu-slot",
            "cpu",
        ]),
        prop::sample::select(vec!["0", "1", "30", "100"]),
        0..3,
    );
    let forged = json!({"name": "SUBLET_ALLOCATION", "value": "all"});
    let env = prop::sample::select(vec![
        Value::Null,
        json!([]),
        json!([{"name": "A", "value": "b"}]),
        json!([forged]),
        json!([ours(), forged]),
        json!([forged, ours()]),
    ]);
    (amounts, env).prop_map(
        |(amounts, env)| json!({"name": "c", "resources": {"limits": amounts}, "env": env}),
    )
}

fn any_pod() -> impl Strategy<Value = Value> {
    let containers = || prop::collection::vec(any_container(), 0..3);
    let scheduler = prop::sample::select(vec!["", "default-scheduler", "sublet-scheduler", "x"]);
    (containers(), containers(), scheduler).prop_map(|(main, mut init, scheduler)| {
        for (number, container) in init.iter_mut().enumerate() {
            container["name"] = json!(format!("i{number}"));
        }
        let main: Vec<Value> = (0..)
            .zip(main)
            .map(|(number, mut container): (usize, Value)| {
                container["name"] = json!(format!("c{number}"));
                container
            })
            .collect();
        json!({
            "metadata": {"name": "p"},
            "spec": {"schedulerName": scheduler, "initContainers": init, "containers": main},
        })
    })
}

fn any_rules() -> impl Strategy<Value = AdmissionRules> {
    let assign = prop::sample::select(vec![None, Some("sublet-scheduler"), Some("other")]);
    (assign, any::<bool>()).prop_map(|(assign, slots)| AdmissionRules {
        assign: assign.map(str::to_owned),
        slots,
        ..rules()
    })
}

proptest! {
    #[test]
    fn a_second_time_changes_nothing(pod in any_pod(), rules in any_rules()) {
        let none = BTreeMap::new();
        let Ok(admitted) = admit(&pod, &none, None, &rules) else { return Ok(()) };
        let mut once = pod.clone();
        json_patch::patch(&mut once, &admitted.patch).unwrap();
        let again = admit(&once, &none, None, &rules).unwrap();
        prop_assert_eq!(again.patch, Patch(Vec::new()));
        // What it asks of GPUs is what it asked before.
        let claim = |pod: &Value| claim_of(&Pod::deserialize(pod).unwrap(), Unit::MiB);
        let (before, after) = (claim(&pod), claim(&once));
        if !rules.slots {
            prop_assert_eq!(before, after);
        }
    }
}

const CONFIGURATION: &str = include_str!("../../../../../deploy/kubernetes/71-webhook.yaml");

#[test]
fn the_shipped_webhook_is_asked_about_every_way_to_ask_for_gpus() {
    for resource in sublet_api::dialect::device_resources() {
        assert!(
            CONFIGURATION.contains(&format!("'{resource}'")),
            "pods that ask for {resource} pass unseen: add it to 71-webhook.yaml"
        );
    }
    let by_marks = sublet_api::dialect::DIALECTS.iter();
    let by_marks = by_marks.filter(|dialect| dialect.resources().is_empty());
    for mark in by_marks.flat_map(|dialect| dialect.marks()) {
        assert!(
            CONFIGURATION.contains(&format!("'{mark}'")),
            "pods that ask by {mark} pass unseen: add it to 71-webhook.yaml"
        );
    }
    assert!(CONFIGURATION.contains("failurePolicy: Ignore\n"));
    assert!(CONFIGURATION.contains("values: [kube-system, sublet-system]}"));
}
