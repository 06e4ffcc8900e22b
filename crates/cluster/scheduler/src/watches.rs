//! The watches that feed the ledger: nodes, pods, and lists of sick cards; and disruption budgets,
//! for preempt.
//!
//! A broken connection is reported and tried again. Until the next complete list the state stays as
//! it was; that list also tells which objects have gone in between.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use sublet_api::gang_plan::GangPlanObject;
use sublet_api::object::{ConfigMap, Node, Pod};
use sublet_api::{is_over, pod_uid, unhealthy_gpus};
use sublet_client::{
    Budgets, Change, ConfigMaps, GangPlans, Nodes, Pods, Quotas, is_unknown_kind,
    list as list_objects, read_pod, watch,
};
use sublet_model::{Entry, NodeName, PodKey, PodUid, Standing};

use crate::read_replica::EventSink;
use crate::state::{Listed, Scheduler};

/// Follows everything until it is dropped. `sink` hears of nodes and pods too. It ends with the first
/// watch that does, for the ledger is as old as that from then on.
pub(crate) async fn follow(scheduler: Arc<Scheduler>, sink: Option<Arc<dyn EventSink>>) {
    let client = &scheduler.client;
    let mut listed = None;
    let nodes = each(watch::<Nodes>(client, None), |change| {
        nodes(&scheduler, &mut listed, &change);
        if let Some(sink) = &sink {
            sink.node(change);
        }
    });
    let mut listed = None;
    let pods = each(watch::<Pods>(client, None), |change| {
        pods(&scheduler, &mut listed, &change);
        if let Some(sink) = &sink {
            sink.pod(change);
        }
    });
    let mut listed = None;
    let maps = watch::<ConfigMaps>(client, Some("kube-system"));
    let maps = each(maps, |change| {
        config_maps(&scheduler, &mut listed, change);
    });
    let mut listed = None;
    let budgets = each(watch::<Budgets>(client, None), |change| {
        crate::preempt::budgets(&scheduler, &mut listed, change);
    });
    let mut listed = None;
    let quotas = each(watch::<Quotas>(client, None), |change| {
        crate::quotas::quotas(&scheduler, &mut listed, change);
    });
    let ended = tokio::select! {
        () = nodes => "nodes",
        () = pods => "pods",
        () = maps => "lists of sick cards",
        () = budgets => "disruption budgets",
        () = quotas => "quotas",
        () = follow_plans(&scheduler, sink.as_deref()) => "plans",
        () = crate::events::post_all(&scheduler) => "events",
        never = refresh_costs(&scheduler) => match never {},
    };
    tracing::error!("what follows {ended} has ended");
}

/// Follows the plans, where this process obeys them. As long as nobody has defined any, there are none.
async fn follow_plans(scheduler: &Arc<Scheduler>, sink: Option<&dyn EventSink>) {
    if !scheduler.state().plans.on {
        return std::future::pending().await;
    }
    let mut listed = None;
    let mut tell = |change: Change<GangPlanObject>| {
        crate::plans::plans(scheduler, &mut listed, &change);
        if let Some(sink) = sink {
            sink.plan(change);
        }
    };
    let mut changes = pin!(watch::<GangPlans>(&scheduler.client, None));
    while let Some(change) = changes.next().await {
        match change {
            Ok(change) => tell(change),
            Err(error) if is_unknown_kind(&error) => {
                tracing::debug!("no CRD of GangPlans in the cluster, will look again");
                tell(Change::ListBegins);
                tell(Change::ListEnds);
            }
            Err(error) => tracing::warn!(error = chain(&error), "watch broken; trying again"),
        }
    }
}

/// So many nodes are looked at under one lock: a tenth of a millisecond.
pub(crate) const LOOKS: usize = 500;
/// Pause in which a caller that waits for the lock gets it.
const BREATH: Duration = Duration::from_millis(1);

/// Lets others have the lock before it is taken again.
pub(crate) async fn give_way(scheduler: &Scheduler) {
    if scheduler.is_wanted() {
        tokio::time::sleep(BREATH).await;
    } else {
        tokio::task::yield_now().await;
    }
}

/// Computes the costs for the next calls beforehand, each time that a policy has learnt something.
pub(crate) async fn refresh_costs(scheduler: &Scheduler) -> Infallible {
    loop {
        scheduler.learnt.notified().await;
        while scheduler.state().engine.refresh_costs(LOOKS) {
            give_way(scheduler).await;
        }
    }
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

/// The objects read so far of the list that is being read; nothing between lists.
pub(crate) type Listing<T> = Option<BTreeSet<T>>;

fn nodes(scheduler: &Arc<Scheduler>, listed: &mut Listing<String>, change: &Change<Node>) {
    match change {
        Change::ListBegins => *listed = Some(BTreeSet::new()),
        Change::ListEnds => {
            scheduler
                .state()
                .keep_nodes(&listed.take().unwrap_or_default());
            list_ended(scheduler, Listed::Nodes);
        }
        Change::Set(node) => {
            scheduler.state().set_node(node);
            scheduler.freed.send_replace(());
            if let Some(listed) = listed {
                listed.insert(node.metadata.name.clone());
            }
        }
        Change::Gone(node) => scheduler.state().remove_node(&node.metadata.name),
    }
}

pub(crate) fn pods(scheduler: &Arc<Scheduler>, listed: &mut Listing<PodUid>, change: &Change<Pod>) {
    match change {
        Change::ListBegins => *listed = Some(BTreeSet::new()),
        Change::ListEnds => {
            forget_unlisted(scheduler, &listed.take().unwrap_or_default());
            list_ended(scheduler, Listed::Pods);
        }
        Change::Set(pod) => {
            scheduler.state().set_pod(pod);
            scheduler.learnt.notify_one();
            if is_over(pod) {
                scheduler.freed.send_replace(());
            }
            crate::events::pod_seen(scheduler, pod);
            if let Some(listed) = listed {
                listed.extend(pod_uid(pod));
            }
        }
        Change::Gone(pod) => {
            if let Ok(uid) = pod_uid(pod) {
                scheduler.state().forget(&uid);
                scheduler.learnt.notify_one();
                scheduler.freed.send_replace(());
                scheduler.events.forget(&uid);
            }
        }
    }
}

/// One of the lists that the ledger rests on is complete. With the last of them, pods are looked
/// at that waited, or were bound without a card, before this process started. While they were
/// listed the ledger was not complete, so nothing was said of them.
pub(crate) fn list_ended(scheduler: &Arc<Scheduler>, list: Listed) {
    if !scheduler.mark_listed(list) || scheduler.silent {
        return;
    }
    let scheduler = scheduler.clone();
    tokio::spawn(async move {
        match list_objects::<Pods>(&scheduler.client, Some("spec.nodeName=")).await {
            Ok(pods) => pods
                .iter()
                .for_each(|pod| crate::events::pod_seen(&scheduler, pod)),
            Err(error) => tracing::warn!(error = chain(&error), "waiting pods cannot be listed"),
        }
        for key in unsaid(&scheduler) {
            if let Ok(Some(pod)) = read_pod(&scheduler.client, &key).await {
                crate::events::pod_seen(&scheduler, &pod);
            }
        }
    });
}

/// The bound pods that do not say which cards they have, if that matters.
fn unsaid(scheduler: &Scheduler) -> Vec<PodKey> {
    let state = scheduler.state();
    let ledger = state.engine.ledger();
    let matters = |entry: &&Entry| {
        let facts = ledger.find(entry.node.as_str());
        let facts = facts.and_then(|node| ledger.book(node).facts());
        facts.is_some_and(|facts| crate::events::doubt(facts, entry).is_some())
    };
    let unsaid = ledger.entries().filter(matters);
    unsaid.map(|entry| entry.pod.clone()).collect()
}

/// A complete list of pods has been read. A pod that the ledger has and the list lacks is gone,
/// unless it was reserved here and may be newer than the list. Such pods are looked up one by one.
fn forget_unlisted(scheduler: &Arc<Scheduler>, listed: &BTreeSet<PodUid>) {
    let mut state = scheduler.state();
    let ledger = state.engine.ledger();
    // What is kept for a plan is no pod yet.
    let missing = ledger
        .entries()
        .filter(|entry| !listed.contains(&entry.uid) && !state.plans.holds(&entry.uid));
    let (doubtful, gone): (Vec<_>, Vec<_>) = missing
        .map(|entry| (entry.uid.clone(), entry.pod.clone(), entry.standing))
        .partition(|(_, _, standing)| *standing == Standing::Reserved);
    for (uid, ..) in gone {
        state.forget(&uid);
    }
    // One that is being bound is looked up below.
    let ledger = state.engine.ledger();
    let waited = state.waiting.keys();
    let waited = waited.filter(|uid| !listed.contains(*uid) && ledger.entry(uid).is_none());
    for uid in waited.cloned().collect::<Vec<_>>() {
        state.forget(&uid);
    }
    let ledger = state.engine.ledger();
    let stays = |uid: &PodUid| listed.contains(uid) || ledger.entry(uid).is_some();
    scheduler.events.keep(stays);
    if !doubtful.is_empty() {
        tokio::spawn(look_up(scheduler.clone(), doubtful));
    }
}

async fn look_up(scheduler: Arc<Scheduler>, doubtful: Vec<(PodUid, PodKey, Standing)>) {
    for (uid, key, _) in doubtful {
        match read_pod(&scheduler.client, &key).await {
            Ok(Some(pod)) if pod.metadata.uid == uid.as_str() => scheduler.state().set_pod(&pod),
            Ok(_) => scheduler.state().forget(&uid),
            // It stays entered. Capacity that is held in vain is found at the next list.
            Err(error) => tracing::warn!(pod = %key, %error, "reserved pod cannot be read"),
        }
    }
}

fn config_maps(scheduler: &Scheduler, listed: &mut Listing<NodeName>, change: Change<ConfigMap>) {
    let mut state = scheduler.state();
    match change {
        Change::ListBegins => *listed = Some(BTreeSet::new()),
        Change::ListEnds => {
            let listed = listed.take().unwrap_or_default();
            for node in state.sick_nodes() {
                if !listed.contains(&node) {
                    state.set_sick(&node, BTreeSet::new());
                }
            }
        }
        Change::Set(map) => {
            if let Some((node, gpus)) = unhealthy_gpus(&map) {
                state.set_sick(&node, gpus);
                if let Some(listed) = listed {
                    listed.insert(node);
                }
            }
        }
        Change::Gone(map) => {
            if let Some((node, _)) = unhealthy_gpus(&map) {
                state.set_sick(&node, BTreeSet::new());
            }
        }
    }
}

/// An error and its causes: the cause of a failed connection is the last of them.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
