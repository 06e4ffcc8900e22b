//! The part of a pod from which a claim is read. A plan keeps this part for a role's members.
//!
//! [`trimmed`] leaves out the rest, so that a plan is small and reads back unchanged. A property
//! test compares the claim of the trimmed pod with the claim of the whole pod.

use serde_json::{Map, Value, json};

use crate::keys;
use crate::object::{
    Affinity, Container, Meta, NodeAffinity, NodeSelector, NodeTerm, Pod, PodSpec,
    ResourceRequirements, SelectorRequirement,
};

/// The pod without the fields that no claim is read from.
pub(super) fn trimmed(pod: &Pod) -> Pod {
    let is_known = |key: &String| keys::ALL.iter().any(|known| known.name == *key);
    let known = |map: &std::collections::BTreeMap<String, String>| {
        let kept = map.iter().filter(|(key, _)| is_known(key));
        kept.map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    let Meta {
        namespace,
        labels,
        annotations,
        ..
    } = &pod.metadata;
    let spec = &pod.spec;
    let mut node_selector = spec.node_selector.clone();
    node_selector.retain(|label, _| keys::MODEL_LABELS.contains(&label.as_str()));
    let mut annotations: std::collections::BTreeMap<_, _> = known(annotations);
    // What a pod got before is none of its claim.
    annotations.retain(|key, _| {
        key != keys::SLOT && crate::dialect::result_keys().all(|result| result != key)
    });
    Pod {
        metadata: Meta {
            namespace: namespace.clone(),
            labels: known(labels),
            annotations,
            ..Meta::default()
        },
        spec: PodSpec {
            priority: spec.priority,
            node_selector,
            overhead: spec.overhead.clone(),
            resources: spec.resources.clone(),
            host_network: spec.host_network,
            init_containers: spec.init_containers.clone(),
            containers: spec.containers.clone(),
            affinity: models_only(&spec.affinity),
            ..PodSpec::default()
        },
        ..Pod::default()
    }
}

/// Only the terms about GPU models. A term without such a requirement accepts all models.
fn models_only(affinity: &Affinity) -> Affinity {
    let about = |wish: &&SelectorRequirement| keys::MODEL_LABELS.contains(&wish.key.as_str());
    let term = |term: &NodeTerm| NodeTerm {
        match_expressions: term
            .match_expressions
            .iter()
            .filter(about)
            .cloned()
            .collect(),
        ..NodeTerm::default()
    };
    let required = affinity.node_affinity.required.as_ref();
    let terms = required.map(|required| required.node_selector_terms.iter().map(term));
    let terms: Option<Vec<NodeTerm>> = terms.map(Iterator::collect);
    // Terms that all accept everything say nothing.
    let terms = terms.filter(|terms| terms.iter().any(|term| *term != NodeTerm::default()));
    Affinity {
        node_affinity: NodeAffinity {
            required: terms.map(|node_selector_terms| NodeSelector {
                node_selector_terms,
            }),
            ..NodeAffinity::default()
        },
        ..Affinity::default()
    }
}

/// A trimmed pod as Kubernetes writes it.
pub(super) fn to_json(pod: &Pod) -> Value {
    let Pod { metadata, spec, .. } = pod;
    let mut meta = Map::new();
    put(&mut meta, "namespace", json!(metadata.namespace));
    put(&mut meta, "labels", json!(metadata.labels));
    put(&mut meta, "annotations", json!(metadata.annotations));
    let mut body = Map::new();
    if let Some(priority) = spec.priority {
        body.insert("priority".to_owned(), json!(priority));
    }
    if spec.host_network {
        body.insert("hostNetwork".to_owned(), json!(true));
    }
    put(&mut body, "nodeSelector", json!(spec.node_selector));
    put(&mut body, "overhead", amounts(&spec.overhead));
    put(&mut body, "resources", resources(&spec.resources));
    put(&mut body, "affinity", models_to_json(&spec.affinity));
    let containers = |list: &[Container]| list.iter().map(container).collect();
    put(
        &mut body,
        "initContainers",
        containers(&spec.init_containers),
    );
    put(&mut body, "containers", containers(&spec.containers));
    json!({ "metadata": meta, "spec": body })
}

/// Puts a value that is not empty.
fn put(into: &mut Map<String, Value>, key: &str, value: Value) {
    let is_empty = match &value {
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    };
    if !is_empty {
        into.insert(key.to_owned(), value);
    }
}

fn container(container: &Container) -> Value {
    let mut body = Map::new();
    put(&mut body, "name", json!(container.name));
    if let Some(policy) = &container.restart_policy {
        body.insert("restartPolicy".to_owned(), json!(policy));
    }
    put(&mut body, "resources", resources(&container.resources));
    let ports = container.ports.iter().map(|port| {
        let mut body = Map::new();
        body.insert("containerPort".to_owned(), json!(port.container_port));
        body.insert("hostPort".to_owned(), json!(port.host_port));
        put(&mut body, "hostIP", json!(port.host_ip));
        put(&mut body, "protocol", json!(port.protocol));
        Value::Object(body)
    });
    put(&mut body, "ports", ports.collect());
    Value::Object(body)
}

fn resources(resources: &ResourceRequirements) -> Value {
    let mut body = Map::new();
    put(&mut body, "limits", amounts(&resources.limits));
    put(&mut body, "requests", amounts(&resources.requests));
    Value::Object(body)
}

fn amounts(amounts: &std::collections::BTreeMap<String, crate::object::Quantity>) -> Value {
    let amounts = amounts.iter();
    amounts
        .map(|(name, amount)| (name.clone(), json!(amount.0)))
        .collect()
}

fn models_to_json(affinity: &Affinity) -> Value {
    let Some(required) = &affinity.node_affinity.required else {
        return json!({});
    };
    let wish = |wish: &SelectorRequirement| json!({ "key": wish.key, "operator": wish.operator, "values": wish.values });
    let term = |term: &NodeTerm| {
        let wishes: Vec<Value> = term.match_expressions.iter().map(wish).collect();
        json!({ "matchExpressions": wishes })
    };
    let terms: Vec<Value> = required.node_selector_terms.iter().map(term).collect();
    json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": terms,
    } } })
}
