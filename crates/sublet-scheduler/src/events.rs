//! Events on pods: why they wait, with the numbers of each node; and that a bound one does not
//! say which card it has.
//!
//! They come from the pod watch, not from filter calls, because the kube-scheduler drops
//! nodes whose sum is too small before it asks us. The same text is posted once, and again
//! only after five minutes.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::{Arc, Mutex, PoisonError};

use sublet_api::dialect::allocation_of;
use sublet_api::object::Pod;
use sublet_api::{is_over, pod_key, pod_uid, scheduler_of, unsaid};
use sublet_client::{EventText, PodEvent, post_pod_event};
use sublet_model::{Ask, Entry, Identity, NodeFacts, PodKey, PodUid};

use crate::plans::Membership;
use crate::state::{Scheduler, State, now, now_ns};
use crate::waiting::Waiting;

/// How long the same text is not posted again.
const QUIET_MS: u64 = 5 * 60 * 1000;
/// How many nodes one event names: people read them.
const NAMED: usize = 6;
/// The API server refuses messages of more than 1,024 characters.
const LONGEST: usize = 1_000;

#[derive(Debug)]
struct Posted {
    hash: u64,
    at_ms: u64,
}

/// What was posted last, by pod.
#[derive(Debug, Default)]
pub(crate) struct Events {
    posted: Mutex<BTreeMap<PodUid, Posted>>,
}

impl Events {
    pub(crate) fn forget(&self, uid: &PodUid) {
        self.posted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(uid);
    }

    /// Is this to be posted?
    fn admit(&self, uid: &PodUid, text: &EventText, at_ms: u64) -> bool {
        let mut hasher = rustc_hash::FxHasher::default();
        hasher.write(text.reason.as_bytes());
        hasher.write(text.message.as_bytes());
        let new = Posted {
            hash: hasher.finish(),
            at_ms,
        };
        let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
        let last = posted.get(uid);
        if last.is_some_and(|last| last.hash == new.hash && at_ms < last.at_ms + QUIET_MS) {
            return false;
        }
        posted.insert(uid.clone(), new);
        true
    }
}

/// A pod was seen in the watch: posts what there is to say of it.
pub(crate) fn pod_seen(scheduler: &Arc<Scheduler>, pod: &Pod) {
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
fn bound_seen(scheduler: &Arc<Scheduler>, pod: &Pod) {
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

/// What it costs others that a pod does not say which cards of the node it has. Nothing if it says
/// so, if there is no doubt, or if kubelet itself keeps whole cards apart.
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

/// Says why a pod waits, if it does because of us.
fn waiting_seen(scheduler: &Arc<Scheduler>, pod: &Pod) {
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
    let message = {
        let state = scheduler.state();
        match Waiting::of(pod, state.engine.options().unit) {
            Ok(waiting) if state.plans.on && waiting.membership != Membership::None => {
                parked(&state, &waiting)
            }
            // The stock scheduler knows why a pod of no GPU waits, and says so.
            Ok(waiting) => waiting
                .asks_gpu()
                .then(|| why_not(&state, &waiting))
                .flatten(),
            Err(problem) => Some(problem.to_string()),
        }
    };
    if let Some(message) = message {
        post(
            scheduler,
            &key,
            &uid,
            EventText {
                reason: "GpuUnavailable",
                message,
            },
        );
    }
}

/// Posts a warning, unless the same one was posted a moment ago: false.
pub(crate) fn post(
    scheduler: &Arc<Scheduler>,
    pod: &PodKey,
    uid: &PodUid,
    mut text: EventText,
) -> bool {
    if text.message.len() > LONGEST {
        let end = text.message.floor_char_boundary(LONGEST);
        text.message.truncate(end);
        text.message.push('…');
    }
    let at_ms = now().ms();
    if !scheduler.events.admit(uid, &text, at_ms) {
        return false;
    }
    let (scheduler, pod, uid) = (scheduler.clone(), pod.clone(), uid.clone());
    tokio::spawn(async move {
        let at = rfc3339(at_ms);
        let event = PodEvent {
            pod: &pod,
            uid: &uid,
            number: now_ns(),
            at: &at,
            text: &text,
        };
        if let Err(error) = post_pod_event(&scheduler.client, &event).await {
            tracing::debug!(%pod, %error, "event not posted");
        }
    });
    true
}

/// Why a member goes nowhere.
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

/// Why no node can take the pod; `None` where some node can, and it waits for other reasons.
fn why_not(state: &State, waiting: &Waiting) -> Option<String> {
    let Waiting {
        pod, uid, claim, ..
    } = waiting;
    if let Err(over) = state.check_quota(pod, uid, claim, None) {
        return Some(over.to_string());
    }
    let nodes = state.all_nodes();
    let refused = state.engine.refusals(&waiting.uid, &waiting.claim, &nodes);
    if refused.len() < nodes.len() {
        return None;
    }
    let has_gpu = |reason: &sublet_plan::Reason| *reason != sublet_plan::Reason::NoGpu;
    let with_gpu: Vec<_> = refused
        .iter()
        .filter(|refused| has_gpu(&refused.reason))
        .collect();
    if with_gpu.is_empty() {
        return Some(format!("none of {} nodes has a GPU", nodes.len()));
    }
    let named = with_gpu.iter().take(NAMED).map(|refused| {
        let name = state.engine.ledger().book(refused.node).name();
        format!("{name}: {}", refused.reason)
    });
    let mut message = named.collect::<Vec<_>>().join("; ");
    if with_gpu.len() > NAMED {
        let more = with_gpu.len() - NAMED;
        message.push_str(&format!(
            "; and {more} more nodes (sublet explain pod {})",
            waiting.pod.name()
        ));
    }
    Some(message)
}

fn rfc3339(ms: u64) -> String {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds)
        .unwrap_or(jiff::Timestamp::UNIX_EPOCH)
        .to_string()
}
