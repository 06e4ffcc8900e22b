//! SharePods as their users write them, and the pods and statuses that come of them. Cases s5 to s7
//! are those of KubeShare's README, in our words.

use proptest::prelude::*;
use sublet_model::Unit;

use super::*;

fn rules() -> AdmissionRules {
    AdmissionRules {
        unit: Unit::MiB,
        schedulers: ["other-of-ours".to_owned(), "sublet-scheduler".to_owned()].into(),
        assign: Some("sublet-scheduler".to_owned()),
        slots: false,
        queue: false,
    }
}

/// A SharePod with these annotations under `kubeshare/`, changed.
fn share_pod(annotations: &str, change: impl FnOnce(&mut Value)) -> SharePod {
    let annotations = annotations.split_whitespace().map(|word| {
        let (key, value) = word.split_once('=').unwrap();
        (format!("kubeshare/{key}"), json!(value))
    });
    let mut object = json!({
        "metadata": {
            "name": "s", "namespace": "ns", "uid": "u",
            "annotations": annotations.collect::<Map<String, Value>>(),
        },
        "spec": {"containers": [{"name": "c0", "image": "i"}]},
    });
    change(&mut object);
    SharePod::deserialize(&object).unwrap()
}

const PART: &str = "gpu_request=0.5 gpu_limit=1.0 gpu_mem=1048576";

fn made(share_pod: &SharePod) -> Result<Value, String> {
    let none = BTreeMap::new();
    pod_of(share_pod, &none, None, &rules()).map_err(|error| error.to_string())
}

#[test]
fn the_pod_has_its_name_its_spec_and_what_it_asks() {
    let pod = made(&share_pod(&format!("{PART} sched_affinity=a"), |object| {
        object["metadata"]["labels"] = json!({"app": "x"});
        object["metadata"]["annotations"][LAST_APPLIED] = "{}".into();
        object["metadata"]["annotations"][keys::ALLOCATION] = "forged".into();
        object["metadata"]["annotations"][keys::PREEMPTING] = "forged".into();
        object["spec"]["terminationGracePeriodSeconds"] = 0.into();
    }));
    assert_eq!(
        pod.unwrap(),
        json!({
            "metadata": {
                "name": "s", "namespace": "ns",
                "labels": {"app": "x", "sublet.dev/sharepod": "true"},
                "annotations": {
                    "kubeshare/gpu_request": "0.5", "kubeshare/gpu_limit": "1.0",
                    "kubeshare/gpu_mem": "1048576", "kubeshare/sched_affinity": "a",
                },
                "ownerReferences": [{
                    "apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", "name": "s",
                    "uid": "u", "controller": true,
                }],
            },
            "spec": {
                "schedulerName": "sublet-scheduler",
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "c0", "image": "i",
                    "resources": {"limits": {"sublet.dev/gpu-slot": "1"}},
                    "env": [{
                        "name": "SUBLET_ALLOCATION",
                        "valueFrom": {"fieldRef": {
                            "fieldPath": "metadata.annotations['sublet.dev/allocation']",
                        }},
                    }],
                }],
            },
        })
    );
}

#[test]
fn a_share_pod_of_no_gpu_is_a_pod_like_any_other() {
    let pod = made(&share_pod("", |_| ())).unwrap();
    assert_eq!(
        pod["spec"]["containers"],
        json!([{"name": "c0", "image": "i", "resources": {}}])
    );
    let own = |object: &mut Value| object["spec"]["schedulerName"] = "mine".into();
    let pod = made(&share_pod("", own)).unwrap();
    assert_eq!(pod["spec"]["schedulerName"], "mine");
}

#[test]
fn s6_its_node_becomes_a_wish_beside_its_others() {
    let on_node = |change: fn(&mut Value)| {
        let pod = made(&share_pod(&format!("{PART} GPUID=abcde"), |object| {
            object["spec"]["nodeName"] = "n1".into();
            change(object);
        }));
        let pod = pod.unwrap();
        assert_eq!(pod["spec"].get("nodeName"), None);
        let nodes = &pod["spec"]["affinity"]["nodeAffinity"];
        nodes["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"].clone()
    };
    let here = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
    assert_eq!(on_node(|_| ()), json!([{"matchFields": [here]}]));
    let zone = json!({"key": "zone", "operator": "Exists"});
    let both = on_node(|object| {
        object["spec"]["affinity"] = json!({"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, {},
            ]},
        }});
    });
    let wanted = json!([
        {"matchExpressions": [zone], "matchFields": [here]}, {"matchFields": [here]},
    ]);
    assert_eq!(both, wanted);
}

#[test]
fn s5_what_cannot_be_served_is_refused_with_its_field() {
    type Change = fn(&mut Value);
    let nothing: Change = |_| ();
    for (annotations, change, words) in [
        (
            "gpu_request=0.5 gpu_limit=0.3 gpu_mem=5",
            nothing,
            "`kubeshare/gpu_limit` is `0.3`",
        ),
        (
            "gpu_request=0.5 gpu_limit=1.2 gpu_mem=5",
            nothing,
            "`kubeshare/gpu_limit` is `1.2`",
        ),
        (
            "gpu_request=0.5 gpu_limit=1.0",
            nothing,
            "`kubeshare/gpu_mem` is ``",
        ),
        (
            "GPUID=abcde",
            nothing,
            "`kubeshare/GPUID` is there, and counts only beside",
        ),
        (
            "sched_exclusion=a",
            |object| object["metadata"]["labels"] = json!({"sublet.dev/flavor": "half"}),
            "`kubeshare/sched_exclusion` is there, and counts only beside",
        ),
        (
            "",
            |object| object["metadata"]["labels"] = json!({"sublet.dev/flavor": "half"}),
            "`sublet.dev/flavor` is `half`, and flavors cannot be read yet",
        ),
        (
            PART,
            |object| object["spec"]["schedulerName"] = "default-scheduler".into(),
            "`spec.schedulerName` is `default-scheduler`, which does not ask Sublet",
        ),
        (
            PART,
            |object| {
                object["spec"]["nodeName"] = "n1".into();
                object["spec"]["affinity"] = "none".into();
            },
            "`spec.affinity` cannot be read",
        ),
        (
            PART,
            |object| object["spec"]["containers"] = "c".into(),
            "the pod cannot be read",
        ),
    ] {
        let refused = made(&share_pod(annotations, change)).unwrap_err();
        assert!(refused.contains(words), "{annotations}: {refused}");
    }
}

fn keeper() -> SharePodKeeper {
    SharePodKeeper {
        rules: rules(),
        known: Known {
            namespaces: tokio::sync::watch::channel(None).1,
            flavors: tokio::sync::watch::channel(None).1,
            quotas: tokio::sync::watch::channel(None).1,
        },
    }
}

fn decided(share_pod: &SharePod, pod: Result<Option<Value>, String>) -> Decision {
    let mut object: SharePodWire = serde_json::from_value(json!({})).unwrap();
    object.object = share_pod.clone();
    let snapshot = SharePodSnapshot {
        pod,
        labels: BTreeMap::new(),
        flavors: None,
    };
    keeper().decide(&object, &snapshot, Timestamp::UNIX_EPOCH)
}

/// The only write, as `create`, `status` or the reason of an event.
fn written(decision: &Decision) -> String {
    match &decision.writes[..] {
        [] => "nothing".to_owned(),
        [
            Write {
                act: Act::Create(_),
                ..
            },
        ] => "create".to_owned(),
        [
            Write {
                act: Act::ApplyStatus(_),
                ..
            },
        ] => "status".to_owned(),
        [
            Write {
                act: Act::Apply(event),
                ..
            },
        ] => event["reason"].as_str().unwrap().to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_pod_that_is_gone_is_made_again_unless_it_has_ended() {
    for (policy, phase, deleted, expected) in [
        (None, None, false, "create"),
        (None, Some("Failed"), false, "create"),
        (Some("Always"), Some("Succeeded"), false, "create"),
        (Some("OnFailure"), Some("Failed"), false, "create"),
        (Some("OnFailure"), Some("Succeeded"), false, "nothing"),
        (Some("Never"), Some("Running"), false, "create"),
        (Some("Never"), Some("Failed"), false, "nothing"),
        (Some("Never"), Some("Succeeded"), false, "nothing"),
        // s7
        (None, None, true, "nothing"),
    ] {
        let share_pod = share_pod(PART, |object| {
            if let Some(policy) = policy {
                object["spec"]["restartPolicy"] = policy.into();
            }
            if let Some(phase) = phase {
                object["status"]["PodStatus"]["phase"] = phase.into();
            }
            if deleted {
                object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
        });
        let decision = decided(&share_pod, Ok(None));
        assert_eq!(
            written(&decision),
            expected,
            "{policy:?} {phase:?} {deleted}"
        );
        assert_eq!(decision.again, None);
    }
}

#[test]
fn a_pod_of_its_name_is_its_own_or_in_its_way() {
    let share_pod = share_pod(PART, |_| ());
    let pod = |owner: &str, kind: &str| {
        json!({"metadata": {
            "name": "s", "labels": {keys::SHARE_POD_LABEL: "true"},
            "ownerReferences": [{"uid": owner, "kind": kind, "controller": true}],
        }})
    };
    let decide = |pod| decided(&share_pod, Ok(Some(pod)));
    let own = decide(pod("u", "SharePod"));
    assert_eq!((written(&own).as_str(), own.again), ("status", None));
    // As KubeShare's controller made it: nobody is told when it goes.
    let mut theirs = pod("u", "SharePod");
    theirs["metadata"]["labels"] = json!({});
    let theirs = decide(theirs);
    assert_eq!(
        (written(&theirs).as_str(), theirs.again),
        ("status", Some(AGAIN))
    );
    let before = decide(pod("old", "SharePod"));
    assert_eq!(
        (written(&before).as_str(), before.again),
        ("nothing", Some(AGAIN))
    );
    // Whatever its labels say.
    for foreign in [pod("old", "ReplicaSet"), json!({"metadata": {"name": "s"}})] {
        let foreign = decide(foreign);
        assert_eq!(
            (written(&foreign).as_str(), foreign.again),
            ("FailedCreate", Some(AGAIN))
        );
    }
    let unknown = decided(&share_pod, Err("no answer".to_owned()));
    assert_eq!(
        (written(&unknown).as_str(), unknown.again),
        ("nothing", Some(ASK_AGAIN))
    );
}

#[test]
fn what_is_refused_is_told_on_the_share_pod() {
    let wrong = share_pod("gpu_limit=2", |_| ());
    let decision = decided(&wrong, Ok(None));
    let [
        Write {
            to,
            act: Act::Apply(event),
        },
    ] = &decision.writes[..]
    else {
        panic!("{decision:?}")
    };
    assert_eq!(to.name, "failedcreate.u");
    assert_eq!(event["involvedObject"]["kind"], "SharePod");
    assert!(
        event["message"]
            .as_str()
            .unwrap()
            .contains("`kubeshare/gpu_request` is ``")
    );
    assert_eq!(decision.again, Some(AGAIN));

    let object: SharePodWire = serde_json::from_value(json!({})).unwrap();
    let create = decided(&share_pod(PART, |_| ()), Ok(None)).writes.remove(0);
    let tell =
        |write: &Write| keeper().refused(&object, write, "exceeded quota", Timestamp::UNIX_EPOCH);
    let told = tell(&create).unwrap();
    let Act::Apply(told) = told.act else {
        panic!("{told:?}")
    };
    assert_eq!(told["message"], "exceeded quota");
    let status = Write {
        act: Act::ApplyStatus(json!({})),
        ..create.clone()
    };
    assert_eq!(tell(&status), None);
}

#[test]
fn the_status_is_in_their_form_and_written_when_it_changes() {
    let allocation = r#"[{"container":"c0","index":0,"uuid":"GPU-a","memoryMiB":1}]"#;
    let pod = json!({
        "metadata": {
            "name": "s", "uid": "p", "managedFields": [{"manager": "x"}],
            "annotations": {keys::ALLOCATION: allocation},
            "ownerReferences": [{"uid": "u", "controller": true}],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "lastProbeTime": null}]},
    });
    let before = share_pod(PART, |_| ());
    let decision = decided(&before, Ok(Some(pod.clone())));
    let [
        Write {
            to,
            act: Act::ApplyStatus(patch),
        },
    ] = &decision.writes[..]
    else {
        panic!("{decision:?}")
    };
    assert_eq!(
        (to.kind.plural.as_str(), to.name.as_str()),
        ("sharepods", "s")
    );
    assert_eq!(patch["metadata"]["uid"], "u");
    let status = &patch["status"];
    assert_eq!(status["PodStatus"]["phase"], "Running");
    assert_eq!(
        status["PodStatus"]["conditions"],
        json!([{"type": "Ready"}])
    );
    assert_eq!(status["PodObjectMeta"]["uid"], "p");
    assert_eq!(status["PodObjectMeta"].get("managedFields"), None);
    assert_eq!(status["BoundDeviceID"], "GPU-a");
    assert_eq!(status["PodManagerPort"], 0);
    let after = share_pod(PART, |object| object["status"] = status.clone());
    assert_eq!(written(&decided(&after, Ok(Some(pod)))), "nothing");
}

/// Any JSON.
fn json_values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z0-9.]{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let members = proptest::collection::btree_map("[a-z]{1,8}", inner.clone(), 0..4);
        prop_oneof![
            proptest::collection::vec(inner, 0..4).prop_map(Value::from),
            members.prop_map(|members| members.into_iter().collect()),
        ]
    })
}

proptest! {
    /// For any value in one field of a spec, there is a pod or a refusal, and the scheduler would
    /// read from the pod what the SharePod says.
    #[test]
    fn any_spec_is_a_pod_or_is_refused(
        field in "containers|initContainers|affinity|nodeName|schedulerName|restartPolicy",
        value in json_values(),
    ) {
        let share_pod = share_pod(PART, |object| {
            object["spec"]["nodeName"] = "n".into();
            object["spec"][&field] = value;
        });
        match made(&share_pod) {
            Err(error) => prop_assert!(!error.is_empty()),
            Ok(pod) => {
                prop_assert_eq!(&pod["metadata"]["ownerReferences"][0]["uid"], "u");
                let decision = decided(&share_pod, Ok(None));
                prop_assert_eq!(written(&decision), "create");
            }
        }
    }

    /// For any status and any pod, a decision is made.
    #[test]
    fn any_status_and_any_pod_lead_to_a_decision(status in json_values(), pod in json_values()) {
        let share_pod = share_pod(PART, |object| object["status"] = status);
        let decision = decided(&share_pod, Ok(Some(pod)));
        prop_assert!(decision.writes.len() <= 1);
    }
}
