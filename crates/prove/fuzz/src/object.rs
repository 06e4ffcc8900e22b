//! Pods and nodes from a few lines of text: a form in which a fuzzer that changes bytes at random
//! still writes objects, and most of them ask for a GPU in some dialect.
//!
//! A line is a place, a key and a value: `annotation gpu-fraction=0.5`. A key that is a number is
//! the one at that place in the list of all names that Sublet knows.

use std::collections::BTreeMap;

use sublet_api::keys;
use sublet_api::object::{Container, Meta, Node, Pod, Quantity};

/// The lines of a text, each with its place, its key and its value.
fn lines(text: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    text.lines().map(|line| {
        let (place, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
        let known = key.parse::<usize>().ok();
        let known = known.map(|at| keys::ALL[at % keys::ALL.len()].name);
        (place, known.unwrap_or(key), value)
    })
}

/// The pod that a text describes. Amounts are of the container that was begun last.
pub(crate) fn pod(text: &str) -> Pod {
    let mut pod = Pod::default();
    for (place, key, value) in lines(text) {
        let spec = &mut pod.spec;
        match place {
            "main" => spec.containers.push(container(key, None)),
            "init" => spec.init_containers.push(container(key, None)),
            "sidecar" => {
                let always = Some("Always".to_owned());
                spec.init_containers.push(container(key, always));
            }
            "node" => value.clone_into(&mut spec.node_name),
            "scheduler" => value.clone_into(&mut spec.scheduler_name),
            "select" => add(&mut spec.node_selector, key, value),
            "overhead" => add_amount(&mut spec.overhead, key, value),
            "limit" | "request" => {
                let last = spec
                    .containers
                    .last_mut()
                    .or(spec.init_containers.last_mut());
                if let Some(container) = last {
                    let resources = &mut container.resources;
                    let amounts = match place {
                        "limit" => &mut resources.limits,
                        _ => &mut resources.requests,
                    };
                    add_amount(amounts, key, value);
                }
            }
            _ => add_meta(&mut pod.metadata, (place, key, value)),
        }
    }
    pod
}

/// The node that a text describes.
pub(crate) fn node(text: &str) -> Node {
    let mut node = Node::default();
    for (place, key, value) in lines(text) {
        match place {
            "capacity" => add_amount(&mut node.status.capacity, key, value),
            "allocatable" => add_amount(&mut node.status.allocatable, key, value),
            _ => add_meta(&mut node.metadata, (place, key, value)),
        }
    }
    node
}

fn add_meta(meta: &mut Meta, (place, key, value): (&str, &str, &str)) {
    match place {
        "annotation" => add(&mut meta.annotations, key, value),
        "label" => add(&mut meta.labels, key, value),
        "name" => value.clone_into(&mut meta.name),
        "namespace" => value.clone_into(&mut meta.namespace),
        "uid" => value.clone_into(&mut meta.uid),
        _ => {}
    }
}

fn container(name: &str, restart_policy: Option<String>) -> Container {
    Container {
        name: name.to_owned(),
        restart_policy,
        ..Container::default()
    }
}

fn add(texts: &mut BTreeMap<String, String>, key: &str, value: &str) {
    texts.insert(key.to_owned(), value.to_owned());
}

fn add_amount(amounts: &mut BTreeMap<String, Quantity>, key: &str, value: &str) {
    amounts.insert(key.to_owned(), Quantity(value.to_owned()));
}
