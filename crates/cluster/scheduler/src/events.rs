//! Events on pods: why they wait, with the numbers of each node; and that a bound one does not
//! say which card it has.
//!
//! They come from the pod watch, not from filter calls, because the kube-scheduler drops nodes
//! whose sum is too small before it asks us. The same text is posted once, and again only after
//! five minutes. The watch only notes the work (`pending`): ten thousand pods may wait, and one
//! loop looks at them and posts, a few at a time.

mod pending;

use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use sublet_api::dialect::allocation_of;
use sublet_api::object::Pod;
use sublet_api::{is_over, pod_key, pod_uid, scheduler_of, unsaid};
use sublet_client::{EventText, perform, reference, warning};
use sublet_model::{Ask, Entry, Identity, NodeFacts, NodeIdx, PodKey, PodUid};
use sublet_plan::{Reason, RefusedNode};

pub(crate) use self::pending::Events;
use self::pending::Matters;
use crate::plans::Membership;
use crate::state::{MANAGER, Scheduler, State, now};
use crate::waiting::Waiting;
use crate::watches::{LOOKS, give_way};

/// Limit on the nodes that one event names: people read them.
const NAMED: usize = 6;
/// Number of events that are posted at once.
const AT_ONCE: usize = 4;
/// Time limit for one post, so that a slow answer does not keep the others for ever.
const POSTING: Duration = Duration::from_secs(5);

/// Posts the texts that are due, until it is dropped.
pub(crate) async fn post_all(scheduler: &Scheduler) {
    let next = async |()| Some((scheduler.events.next().await, ()));
    let matters = futures::stream::unfold((), next);
    let tell = |(uid, matters)| tell(scheduler, uid, matters);
    matters.for_each_concurrent(AT_ONCE, tell).await;
}

async fn tell(scheduler: &Scheduler, uid: PodUid, matters: Matters) {
    for (pod, text) in matters.texts.into_values() {
        send(scheduler, &pod, &uid, &text).await;
    }
    if matters.waits
        && let Some((pod, message)) = why_it_waits(scheduler, &uid).await
    {
        let text = EventText {
            reason: "GpuUnavailable",
            message,
        };
        if scheduler.events.admit(&uid, &text, now().ms()) {
            send(scheduler, &pod, &uid, &text).await;
        }
    }
}

async fn send(scheduler: &Scheduler, pod: &PodKey, uid: &PodUid, text: &EventText) {
    let about = reference("v1", "Pod", pod.namespace(), pod.name(), uid.as_str());
    let event = warning(MANAGER, &about, text, Timestamp::now());
    if let Err(error) = perform(&scheduler.client, &event, MANAGER, POSTING).await {
        tracing::debug!(%pod, %error, "event not posted");
    }
}

/// A pod was seen in the watch: notes the texts that are due about it.
pub(crate) fn pod_seen(scheduler: &Scheduler, pod: &Pod) {
    if scheduler.silent || !scheduler.is_ready() || is_over(pod) {
        return;
    }
    if pod.spec.node_name.is_empty() {
        waiting_seen(scheduler, pod);
    } else {
        bound_seen(scheduler, pod);
    }
}

/// Says of a bound pod that it does not say which card it has, where that matters.
fn bound_seen(scheduler: &Scheduler, pod: &Pod) {
    let Ok(uid) = pod_uid(pod) else { return };
    let state = scheduler.state();
    let ledger = state.engine.ledger();
    let Some(entry) = ledger.entry(&uid) else {
        return;
    };
    let facts = ledger.find(&pod.spec.node_name);
    let Some(facts) = facts.and_then(|node| ledger.book(node).facts()) else {
        return;
    };
    let Some(costs) = doubt(facts, entry) else {
        return;
    };
    let problem = allocation_of(pod, &entry.claim).err();
    let problem = problem.map(|problem| problem.to_string());
    let (key, node) = (entry.pod.clone(), facts.name.clone());
    drop(state);
    let (cause, cure) = unsaid(pod, problem.as_deref(), &scheduler.schedulers);
    let message = format!("it does not say which GPU it has: {cause}. {costs}. To fix it: {cure}");
    let text = EventText {
        reason: "GpuUnknown",
        message,
    };
    if post(scheduler, &key, &uid, text) {
        tracing::warn!(pod = %key, %node, cause, "bound pod does not say which GPU it has");
    }
}

/// The cost to other pods of a pod that does not say which cards of the node it has. None if it
/// says so, if there is no doubt, or if kubelet itself keeps whole cards apart.
pub(crate) fn doubt(facts: &NodeFacts, entry: &Entry) -> Option<String> {
    if entry.allocation.is_some() {
        return None;
    }
    let ask = entry.claim.ask();
    let has_agent = facts.identity != Identity::NoAgent && *ask != Ask::Nothing;
    let node = &facts.name;
    let refused = has_agent && !facts.handed.contains_key(&entry.uid);
    let refuses = refused.then(|| format!("the agent of node {node} hands it no GPU"));
    let keeps = facts.kept_free_for(&entry.uid, ask);
    let keeps = keeps
        .map(|kept| format!("until it ends {kept} of each GPU of node {node} is kept free for it"));
    let costs: Vec<String> = refuses.into_iter().chain(keeps).collect();
    (!costs.is_empty()).then(|| costs.join(", and "))
}

/// Notes that a pod waits, if it does because of us.
fn waiting_seen(scheduler: &Scheduler, pod: &Pod) {
    let mut schedulers = scheduler.schedulers.iter();
    let ours = schedulers.any(|name| name == scheduler_of(pod));
    let refused = |c: &sublet_api::object::PodCondition| {
        c.kind == "PodScheduled" && c.status == "False" && c.reason == "Unschedulable"
    };
    if !ours || !pod.status.conditions.iter().any(refused) {
        return;
    }
    let (Ok(key), Ok(uid)) = (pod_key(pod), pod_uid(pod)) else {
        return;
    };
    if scheduler.state().waiting.contains_key(&uid) {
        return scheduler.events.waits(&uid);
    }
    // The state knows no pod that cannot be understood.
    let unit = scheduler.state().engine.options().unit;
    if let Err(problem) = Waiting::of(pod, unit) {
        let text = EventText {
            reason: "GpuUnavailable",
            message: problem.to_string(),
        };
        post(scheduler, &key, &uid, text);
    }
}

/// Has a warning posted, unless the same one was a moment ago: false.
pub(crate) fn post(scheduler: &Scheduler, pod: &PodKey, uid: &PodUid, text: EventText) -> bool {
    scheduler.events.says(pod, uid, text, now().ms())
}

/// The reason why a pod still waits because of us.
pub(crate) async fn why_it_waits(scheduler: &Scheduler, uid: &PodUid) -> Option<(PodKey, String)> {
    let (waiting, parked) = {
        let state = scheduler.state();
        // One with an entry is being bound.
        if state.engine.ledger().entry(uid).is_some() {
            return None;
        }
        let waiting = state.waiting.get(uid)?.clone();
        let is_member = state.plans.on && waiting.membership != Membership::None;
        let parked = is_member.then(|| parked(&state, &waiting));
        (waiting, parked)
    };
    let message = match parked {
        Some(parked) => parked?,
        // The stock scheduler knows why a pod of no GPU waits, and says so.
        None if !waiting.asks_gpu() => return None,
        None => why_not(scheduler, &waiting).await?,
    };
    Some((waiting.pod, message))
}

/// The reason why a member goes nowhere.
fn parked(state: &State, waiting: &Waiting) -> Option<String> {
    let Waiting {
        uid,
        claim,
        membership,
        ..
    } = waiting;
    let place = state.place_of_member(now(), membership, uid, claim);
    place.err().map(|parked| parked.to_string())
}

/// The reasons why no node can take the pod; `None` if a node can, and it waits for other reasons.
///
/// A few hundred nodes are looked at under one lock, so that a call of the kube-scheduler does not
/// wait for thousands. A change between two locks is not noticed.
async fn why_not(scheduler: &Scheduler, waiting: &Waiting) -> Option<String> {
    let Waiting {
        pod, uid, claim, ..
    } = waiting;
    let nodes = {
        let state = scheduler.state();
        if let Err(over) = state.check_quota(pod, uid, claim, None) {
            return Some(over.to_string());
        }
        state.all_nodes()
    };
    let (mut named, mut with_gpu) = (Vec::new(), 0);
    for nodes in nodes.chunks(LOOKS) {
        {
            let state = scheduler.state();
            let ledger = state.engine.ledger();
            let there = |node: &&NodeIdx| ledger.book(**node).facts().is_some();
            let there: Vec<NodeIdx> = nodes.iter().filter(there).copied().collect();
            let refused = state.engine.refusals(uid, claim, &there);
            if refused.len() < there.len() {
                return None;
            }
            for RefusedNode { node, reason } in refused {
                if reason == Reason::NoGpu {
                    continue;
                }
                with_gpu += 1;
                if named.len() < NAMED {
                    named.push(format!("{}: {reason}", ledger.book(node).name()));
                }
            }
        }
        give_way(scheduler).await;
    }
    if named.is_empty() {
        return Some(format!("none of {} nodes has a GPU", nodes.len()));
    }
    let mut message = named.join("; ");
    if with_gpu > NAMED {
        let (more, pod) = (with_gpu - NAMED, pod.name());
        message.push_str(&format!(
            "; and {more} more nodes (sublet explain pod {pod})"
        ));
    }
    Some(message)
}
