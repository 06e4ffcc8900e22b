//! The watches that feed the ledger: nodes, pods, and lists of sick cards.
//!
//! A broken connection is reported and tried again; the state stays as it was until the
//! next complete list, which also tells what has gone in between.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use sublet_api::object::{ConfigMap, Node, Pod};
use sublet_api::{pod_uid, unhealthy_gpus};
use sublet_client::{Change, ConfigMaps, Nodes, Pods, read_pod, watch};
use sublet_model::{NodeName, PodKey, PodUid, Standing};

use crate::state::{Listed, Scheduler};

/// Follows everything until it is dropped.
pub(crate) async fn follow(scheduler: Arc<Scheduler>) {
    let client = &scheduler.client;
    let nodes = each(watch::<Nodes>(client, None), |change| {
        nodes(&scheduler, change);
    });
    let pods = each(watch::<Pods>(client, None), |change| {
        pods(&scheduler, change);
    });
    let maps = watch::<ConfigMaps>(client, Some("kube-system"));
    let maps = each(maps, |change| config_maps(&scheduler, change));
    futures::join!(nodes, pods, maps);
}

async fn each<T, E: std::error::Error>(
    changes: impl Stream<Item = Result<Change<T>, E>>,
    mut take: impl FnMut(Change<T>),
) {
    let mut changes = pin!(changes);
    while let Some(change) = changes.next().await {
        match change {
            Ok(change) => take(change),
            Err(error) => tracing::warn!(error = chain(&error), "watch broken; trying again"),
        }
    }
}

fn nodes(scheduler: &Scheduler, change: Change<Node>) {
    let mut state = scheduler.state();
    match change {
        Change::All(nodes) => {
            state.set_all_nodes(&nodes);
            drop(state);
            scheduler.mark_listed(Listed::Nodes);
        }
        Change::Set(node) => state.set_node(&node),
        Change::Gone(node) => state.remove_node(&node.metadata.name),
    }
}

fn pods(scheduler: &Arc<Scheduler>, change: Change<Pod>) {
    match change {
        Change::All(pods) => {
            replace_pods(scheduler, &pods);
            scheduler.mark_listed(Listed::Pods);
            // What waits may have waited since before this process was started.
            for pod in &pods {
                crate::events::pod_seen(scheduler, pod);
            }
        }
        Change::Set(pod) => {
            scheduler.state().set_pod(&pod);
            crate::events::pod_seen(scheduler, &pod);
        }
        Change::Gone(pod) => {
            if let Ok(uid) = pod_uid(&pod) {
                scheduler.state().forget(&uid);
                scheduler.events.forget(&uid);
            }
        }
    }
}

/// Takes a complete list of pods. A pod that the ledger has and the list has not is gone,
/// except one that was reserved here: it may be newer than the list. Those are looked up
/// one by one.
fn replace_pods(scheduler: &Arc<Scheduler>, pods: &[Pod]) {
    let listed: BTreeSet<PodUid> = pods.iter().filter_map(|pod| pod_uid(pod).ok()).collect();
    let mut doubtful = Vec::new();
    {
        let mut state = scheduler.state();
        let missing = state
            .engine
            .ledger()
            .entries()
            .filter(|entry| !listed.contains(&entry.uid));
        let missing: Vec<_> = missing
            .map(|entry| (entry.uid.clone(), entry.pod.clone(), entry.standing))
            .collect();
        for (uid, pod, standing) in missing {
            match standing {
                Standing::Bound => state.forget(&uid),
                Standing::Reserved => doubtful.push((uid, pod)),
            }
        }
        state.waiting.retain(|uid, _| listed.contains(uid));
        for pod in pods {
            state.set_pod(pod);
        }
    }
    if !doubtful.is_empty() {
        tokio::spawn(look_up(scheduler.clone(), doubtful));
    }
}

async fn look_up(scheduler: Arc<Scheduler>, doubtful: Vec<(PodUid, PodKey)>) {
    for (uid, key) in doubtful {
        match read_pod(&scheduler.client, &key).await {
            Ok(Some(pod)) if pod.metadata.uid == uid.as_str() => scheduler.state().set_pod(&pod),
            Ok(_) => scheduler.state().forget(&uid),
            // Kept: capacity that is held for nothing is found at the next list.
            Err(error) => tracing::warn!(pod = %key, %error, "reserved pod cannot be read"),
        }
    }
}

fn config_maps(scheduler: &Scheduler, change: Change<ConfigMap>) {
    let mut state = scheduler.state();
    match change {
        Change::All(maps) => {
            let lists: Vec<_> = maps.iter().filter_map(unhealthy_gpus).collect();
            let named: BTreeSet<&NodeName> = lists.iter().map(|(node, _)| node).collect();
            for node in state.sick_nodes() {
                if !named.contains(&node) {
                    state.set_sick(&node, BTreeSet::new());
                }
            }
            for (node, gpus) in lists {
                state.set_sick(&node, gpus);
            }
        }
        Change::Set(map) => {
            if let Some((node, gpus)) = unhealthy_gpus(&map) {
                state.set_sick(&node, gpus);
            }
        }
        Change::Gone(map) => {
            if let Some((node, _)) = unhealthy_gpus(&map) {
                state.set_sick(&node, BTreeSet::new());
            }
        }
    }
}

/// An error and what it came from: the cause of a failed connection is the last of them.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
