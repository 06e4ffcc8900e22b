//! Pods that have not come yet: the order in which they arrive, and the pods of workloads, with the
//! fields that the API server will fill in.
//!
//! A workload that has a time of creation is in the cluster already, and so are its pods: it is passed
//! over.

use sublet_api::group::PriorityClasses;
use sublet_api::object::Pod;
use sublet_api::stock::node_rules;
use sublet_api::{Workload, read_workload};
use sublet_plan::stock::NodeRules;

use super::input::{Input, Located, Origin, Unreadable};

/// Arrival of new pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Arrival {
    /// One by one in the order of the files, each when the one before it has its answer, as pods come
    /// that are applied one after another. No priority matters then, and a policy that learns knows
    /// no pod before it comes
    #[default]
    InOrder,
    /// All at once, as when a controller makes them faster than they are placed, or the scheduler was
    /// away: by priority, and a policy that learns knows all of them before it places the first. (A
    /// scheduler that has just started takes those of one priority in any order, and those that are
    /// bound at the same time may get each other's places)
    Together,
}

/// Puts the pods of workloads among the others. An object that makes no pods is left for other
/// readers.
pub(super) fn expand(input: &mut Input) {
    let nodes = input.nodes.iter();
    let nodes: Vec<NodeRules> = nodes.map(|node| node_rules(&node.object)).collect();
    let workloads = input.workloads.drain(..);
    let all: Vec<_> = workloads.chain(input.queued.drain(..)).collect();
    for Located { origin, object } in all {
        let kind = object["kind"].as_str().unwrap_or_default();
        match read_workload(&object) {
            Ok(Some(workload)) => {
                let named = format!(
                    "{kind} {}/{}",
                    workload.metadata.namespace, workload.metadata.name
                );
                enter(input, &origin, &workload, (&named, &nodes));
            }
            // Only the queue reads it.
            Ok(None) => input.queued.push(Located { origin, object }),
            Err(error) => {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let named = format!("{kind} {name}");
                let odd = Unreadable::of(&origin, named, &error.field, error.what);
                input.unreadable.push(odd.of_waiting());
            }
        }
    }
    input.sort_pods();
    fill_in(input);
}

/// Gives pods the numbers of their priorities, as the API server does when they are created.
fn fill_in(input: &mut Input) {
    let mut classes = PriorityClasses::default();
    let unreadable = &mut input.unreadable;
    input.queued.retain(|Located { origin, object }| {
        let is_class = object["kind"] == "PriorityClass";
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if is_class && let Err(error) = classes.enter(name, object) {
            let named = format!("PriorityClass {name}");
            unreadable.push(Unreadable::of(origin, named, &error.field, error.what));
        }
        !is_class
    });
    for Located { object: pod, .. } in &mut input.pods {
        let class = &pod.spec.priority_class_name;
        pod.spec.priority = pod.spec.priority.or_else(|| classes.value(class));
    }
}

fn enter(
    input: &mut Input,
    origin: &Origin,
    workload: &Workload,
    (named, nodes): (&str, &[NodeRules]),
) {
    if workload.metadata.creation_timestamp.is_some() {
        input.notes.push(format!(
            "note: {origin}: passed over, {named} is in the cluster already; its pods count as they are"
        ));
        return;
    }
    let pods = match workload.pods(nodes) {
        Ok(pods) => pods,
        Err(error) => {
            let field = format!("spec.template.{}", error.field);
            let odd = Unreadable::of(origin, named.to_owned(), &field, error.what);
            input.unreadable.push(odd.of_waiting());
            return;
        }
    };
    let when = match workload.is_suspended {
        true => ", which it makes when it is resumed",
        false => "",
    };
    input.notes.push(format!(
        "note: {origin}: {named} is planned by its {} pods{when}",
        pods.len()
    ));
    let located = |object: Pod| Located {
        origin: origin.clone(),
        object,
    };
    input.pods.extend(pods.into_iter().map(located));
}
