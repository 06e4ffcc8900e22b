//! Bindings by all sorts of users, and their outcomes.

use serde_json::{Value, json};

use super::*;

fn rules() -> BindingRules {
    BindingRules {
        unit: Unit::MiB,
        schedulers: ["sublet-scheduler".to_owned()].into(),
        account: "system:serviceaccount:sublet-system:sublet-scheduler".to_owned(),
    }
}

/// The outcome for a Binding.
fn bound(
    user: &str,
    name: &str,
    inside: &str,
    node: &Value,
) -> Result<Option<StrangersBinding>, String> {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "operation": "CREATE", "namespace": "ns", "name": name,
            "userInfo": {"username": user},
            "kind": {"group": "", "version": "v1", "kind": "Binding"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "subResource": "binding",
            "object": {
                "apiVersion": "v1", "kind": "Binding",
                "metadata": {"name": inside, "namespace": "ns"},
                "target": {"kind": "Node", "name": node},
            },
        },
    });
    let body = review.to_string();
    strangers_binding(&Review::read(body.as_bytes()).unwrap(), &rules())
}

#[test]
fn only_strangers_are_looked_at() {
    let node = json!("n1");
    let ours = bound(&rules().account, "p", "p", &node);
    assert_eq!(ours, Ok(None));
    let wanted = StrangersBinding {
        pod: PodKey::new("ns", "p").unwrap(),
        node: NodeName::new("n1").unwrap(),
        user: "eve".to_owned(),
    };
    for (name, inside) in [("p", "p"), ("", "p"), ("p", "")] {
        let found = bound("eve", name, inside, &node);
        assert_eq!(found, Ok(Some(wanted.clone())), "{name:?} {inside:?}");
    }
    for (name, node) in [("", json!("n1")), ("p", json!(null)), ("p", json!(7))] {
        let odd = bound("eve", name, name, &node);
        assert!(odd.is_err(), "{name} {node}");
    }
}

fn pod(scheduler: &str, limits: &Value) -> Pod {
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "c0", "resources": {"limits": limits, "requests": limits}}],
        },
    });
    serde_json::from_value(pod).unwrap()
}

/// The outcome for eve's Binding of that pod to a node with our agent, or without.
fn said(pod: &Pod, has_agent: bool) -> String {
    let mut node = Node::default();
    if has_agent {
        let report = (keys::INVENTORY.to_owned(), "{}".to_owned());
        node.metadata.annotations.extend([report]);
    }
    let binding = bound("eve", "p", "p", &json!("n1"));
    let binding = binding.unwrap().unwrap();
    match judge(&binding, pod, &node, &rules()) {
        Ok(()) => "allowed".to_owned(),
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn a_gpu_pod_reaches_a_node_of_ours_by_our_scheduler_alone() {
    let part = json!({"aliyun.com/gpu-mem": "5"});
    let whole = json!({"nvidia.com/gpu": "1"});
    for limits in [&part, &whole] {
        let others = pod("default-scheduler", limits);
        assert_eq!(said(&others, false), "allowed");
        assert_eq!(
            said(&others, true),
            "pod ns/p asks for a GPU, and node n1 hands out only cards that Sublet has chosen; \
             this Binding by eve chooses none; create it with `schedulerName: sublet-scheduler`, \
             or bind it to a node without Sublet's agent"
        );
        let ours = said(&pod("sublet-scheduler", limits), true);
        let cure = "; leave it to its scheduler, sublet-scheduler";
        assert!(ours.ends_with(cure), "{ours}");
    }
    let plain = pod("default-scheduler", &json!({"cpu": "1"}));
    assert_eq!(said(&plain, true), "allowed");
    assert!(!is_ours(&plain, Unit::MiB));

    let odd = pod("default-scheduler", &json!({"aliyun.com/gpu-mem": "much"}));
    assert!(is_ours(&odd, Unit::MiB));
    assert_eq!(said(&odd, false), "allowed");
    let words =
        "pod ns/p would get no GPU on node n1: container c0: `aliyun.com/gpu-mem` is `much`: ";
    assert!(said(&odd, true).starts_with(words), "{}", said(&odd, true));
}
