//! Binding a pod: reserve, one write, and certainty about its outcome.
//!
//! The steps are decided by `sublet_plan::Binding`; here they are performed. The task goes
//! on when the kube-scheduler hangs up, because the reservation must end in one way or the
//! other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use sublet_api::{dialect, keys, pod_uid};
use sublet_client::{EventText, Write, WriteError, perform, read_pod};
use sublet_model::{Allocation, Book, Entry, NodeFacts, NodeName, PodKey, PodUid, Standing, Time};
use sublet_plan::{ApiAnswer, Binding, BindingStep, PodState, Reason};
use sublet_replicas::leader::Leadership;
use sublet_telemetry::metrics::OutcomeLabel;

use crate::plans::Membership;
use crate::state::{MANAGER, Patience, Scheduler, State, now, now_ns};
use crate::waiting::Waiting;

/// The request of a Bind.
#[derive(Debug, Clone)]
pub(crate) struct BindOrder {
    pub(crate) pod: PodKey,
    pub(crate) uid: PodUid,
    pub(crate) node: NodeName,
}

/// Reason why a pod is not bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotBound {
    /// This process does not lead, and has sent nothing.
    Deposed,
    /// For the kube-scheduler to put into the pod's events.
    Why(String),
}

impl From<String> for NotBound {
    fn from(why: String) -> NotBound {
        NotBound::Why(why)
    }
}

/// The end of a Bind under way, for all that wait for it.
pub(crate) type Ending = Shared<BoxFuture<'static, Result<(), NotBound>>>;

/// Binds under way. A repeated Bind gets the answer to the first.
pub(crate) type UnderWay = Mutex<BTreeMap<PodUid, (NodeName, Ending)>>;

/// Binds a pod to a node, here or on the extender that leads.
///
/// # Errors
/// The reason why it is not bound.
pub(crate) async fn bind(
    scheduler: &Arc<Scheduler>,
    order: BindOrder,
    body: Bytes,
) -> Result<(), String> {
    if !scheduler.is_ready() {
        return Err("the ledger of GPUs is not complete yet".to_owned());
    }
    if let Some(replicas) = &scheduler.replicas {
        return replicas.bind(scheduler, order, body).await;
    }
    // A Binding that an earlier process sent just before it was killed may still come through,
    // and would not be in the list that this one began with.
    sleep_until(scheduler.started.plus(scheduler.patience.deadline)).await;
    match bind_here(scheduler, order, None).await {
        Err(NotBound::Why(why)) => Err(why),
        Err(NotBound::Deposed) => Err("this process does not lead".to_owned()),
        Ok(()) => Ok(()),
    }
}

/// Binds a pod from this process; `office`: its leadership, where there are several.
pub(crate) async fn bind_here(
    scheduler: &Arc<Scheduler>,
    order: BindOrder,
    office: Option<(Leadership, u64)>,
) -> Result<(), NotBound> {
    let BindOrder { pod, uid, node } = &order;
    let known = scheduler.state().waiting.get(uid).cloned();
    // The scheduler's watch may be ahead of ours, and know that the pod was let go.
    let known = known.filter(|waiting| !scheduler.is_parked(&waiting.membership));
    let waiting = match known {
        Some(waiting) => Some(waiting),
        // One that has its place already needs no reading.
        None if scheduler.state().own_entry(uid).is_some() => None,
        None => Some(read_waiting(scheduler, pod, uid).await?),
    };
    let ending = {
        let mut under_way = scheduler.under_way();
        match under_way.get(uid) {
            Some((there, ending)) if there == node => ending.clone(),
            Some((there, _)) => {
                let why = format!("{node}: the pod is being bound to node {there}");
                return Err(NotBound::Why(why));
            }
            None => {
                let place = scheduler.state().own_entry(uid).cloned();
                if let Some(place) = place {
                    // The answer to an earlier Bind was lost, or came from an earlier leader.
                    return if place.node == *node {
                        Ok(())
                    } else {
                        let why = format!("the pod already has a place on node {}", place.node);
                        Err(NotBound::Why(why))
                    };
                }
                let Some(waiting) = waiting else {
                    return Err(NotBound::Why("the pod is gone".to_owned()));
                };
                let task = tokio::spawn(see_through(
                    scheduler.clone(),
                    waiting,
                    node.clone(),
                    office,
                ));
                let ending = task.map(|ended| {
                    ended.unwrap_or_else(|error| Err(NotBound::Why(error.to_string())))
                });
                let ending = ending.boxed().shared();
                under_way.insert(uid.clone(), (node.clone(), ending.clone()));
                ending
            }
        }
    };
    ending.await
}

/// One try, to its end.
async fn see_through(
    scheduler: Arc<Scheduler>,
    waiting: Waiting,
    node: NodeName,
    office: Option<(Leadership, u64)>,
) -> Result<(), NotBound> {
    let outcome = carry_out(&scheduler, &waiting, &node, office).await;
    scheduler.under_way().remove(&waiting.uid);
    let why = match &outcome {
        Err(NotBound::Deposed) => return outcome,
        Err(NotBound::Why(why)) => Some(why),
        Ok(()) => None,
    };
    let label = if why.is_none() { "bound" } else { "failed" };
    scheduler
        .metrics
        .binds
        .get_or_create(&OutcomeLabel { outcome: label })
        .inc();
    match why {
        None => {
            tracing::info!(pod = %waiting.pod, %node, "bound");
            // Whoever made a Deployment does not see what the webhook says of its pods.
            let unit = scheduler.state().engine.options().unit;
            for message in dialect::remarks(&waiting.claim, unit) {
                let text = EventText {
                    reason: "GpuMemorySmall",
                    message,
                };
                crate::events::post(&scheduler, &waiting.pod, &waiting.uid, text);
            }
        }
        Some(why) => {
            tracing::warn!(pod = %waiting.pod, %node, why, "not bound");
            // For others the kube-scheduler's own event says it.
            if waiting.asks_gpu() {
                let message = format!("not bound to {node}: {why}");
                let text = EventText {
                    reason: "GpuBindFailed",
                    message,
                };
                crate::events::post(&scheduler, &waiting.pod, &waiting.uid, text);
            }
        }
    }
    outcome
}

/// A pod that the watch has not shown yet.
async fn read_waiting(
    scheduler: &Scheduler,
    key: &PodKey,
    uid: &PodUid,
) -> Result<Waiting, String> {
    let pod = read_pod(&scheduler.client, key)
        .await
        .map_err(|error| error.to_string())?;
    let pod = pod
        .filter(|pod| pod.metadata.uid == uid.as_str())
        .ok_or("the pod is gone")?;
    let unit = scheduler.state().engine.options().unit;
    Waiting::of(&pod, unit).map_err(|problem| problem.to_string())
}

/// Takes the pod's place in the ledger; returns the content of its Binding.
fn reserve(
    scheduler: &Scheduler,
    waiting: &Waiting,
    node: &NodeName,
) -> Result<BTreeMap<String, String>, String> {
    let mut state = scheduler.state();
    let allocation = match &waiting.membership {
        Membership::Slot(mark) if state.plans.on => state.take_slot(now(), waiting, mark, node)?,
        _ => {
            let Waiting { uid, claim, .. } = waiting;
            let place = state.place_of_member(now(), &waiting.membership, uid, claim);
            place.map_err(|parked| parked.to_string())?;
            reserve_anywhere(&mut state, waiting, node)?
        }
    };
    let Waiting {
        pod, uid, claim, ..
    } = waiting;
    if let Err(over) = state.check_quota(pod, uid, claim, Some(&allocation)) {
        state.release(uid);
        return Err(over.to_string());
    }
    let ledger = state.engine.ledger();
    let book = ledger.find(node.as_str()).map(|idx| ledger.book(idx));
    let nothing = NodeFacts::plain(node.clone(), Arc::default());
    let facts = book.and_then(Book::facts).unwrap_or(&nothing);
    let present = waiting.present.iter().map(String::as_str);
    Ok(dialect::binding_annotations(
        &waiting.claim,
        &allocation,
        facts,
        now_ns(),
        present,
    ))
}

/// Takes the best place on the node.
fn reserve_anywhere(
    state: &mut State,
    waiting: &Waiting,
    node: &NodeName,
) -> Result<Allocation, String> {
    let entry = Entry {
        pod: waiting.pod.clone(),
        uid: waiting.uid.clone(),
        node: node.clone(),
        claim: waiting.claim.clone(),
        allocation: None,
        standing: Standing::Reserved,
        assigned: false,
        priority: waiting.priority,
    };
    match state.engine.reserve(now(), entry) {
        Ok(allocation) => Ok(allocation),
        // The stock scheduler knows a node that we do not know yet or cannot read. A pod that asks
        // for no GPU need not wait for us.
        Err(Reason::Unknown) if !waiting.asks_gpu() => Ok(Allocation::default()),
        Err(reason) => Err(format!("{node}: {reason}")),
    }
}

async fn carry_out(
    scheduler: &Arc<Scheduler>,
    waiting: &Waiting,
    node: &NodeName,
    office: Option<(Leadership, u64)>,
) -> Result<(), NotBound> {
    let annotations = reserve(scheduler, waiting, node)?;
    let Patience { deadline, settle } = scheduler.patience;
    let (mut binding, mut step) = Binding::start(now(), settle.as_millis() as u64);
    loop {
        let (asked_at, seen) = match step {
            BindingStep::Post => {
                let Waiting { pod, uid, .. } = waiting;
                let write = Write::bind(pod, uid, node, &annotations);
                let posting = perform(&scheduler.client, &write, MANAGER, deadline);
                let posted = match &office {
                    None => Some(posting.await),
                    Some((leadership, number)) => leadership.write(*number, posting).await,
                };
                let Some(posted) = posted else {
                    scheduler.state().release(uid);
                    return Err(NotBound::Deposed);
                };
                (
                    now(),
                    match posted {
                        Ok(()) => ApiAnswer::Accepted,
                        Err(WriteError::Refused { code, message }) => {
                            ApiAnswer::Refused { code, message }
                        }
                        Err(WriteError::Unanswered(why)) => ApiAnswer::Unanswered(why),
                    },
                )
            }
            BindingStep::Read(at) => {
                sleep_until(at).await;
                (
                    now(),
                    read(scheduler, waiting, node, annotations.get(keys::ALLOCATION)).await,
                )
            }
            BindingStep::Bound => return Ok(()),
            BindingStep::Failed(why) => {
                scheduler.state().release(&waiting.uid);
                return Err(NotBound::Why(why));
            }
        };
        step = binding.apply(asked_at, seen);
    }
}

async fn read(
    scheduler: &Scheduler,
    waiting: &Waiting,
    node: &NodeName,
    allocation: Option<&String>,
) -> ApiAnswer {
    // A read that hangs says nothing, and the next one may not.
    let reading = tokio::time::timeout(
        scheduler.patience.deadline,
        read_pod(&scheduler.client, &waiting.pod),
    )
    .await;
    let pod = match reading {
        Ok(Ok(pod)) => pod,
        Ok(Err(error)) => return ApiAnswer::Unreadable(error.to_string()),
        Err(_) => return ApiAnswer::Unreadable("no answer".to_owned()),
    };
    let Some(pod) = pod.filter(|pod| pod_uid(pod).as_ref() == Ok(&waiting.uid)) else {
        return ApiAnswer::Pod(PodState::Gone);
    };
    let written = pod.metadata.annotations.get(keys::ALLOCATION);
    ApiAnswer::Pod(match pod.spec.node_name.as_str() {
        "" => PodState::Unbound,
        name if name == node.as_str() && written == allocation => PodState::AsAsked,
        name => PodState::Elsewhere(format!("somebody else bound the pod, to {name}")),
    })
}

async fn sleep_until(at: Time) {
    tokio::time::sleep(Duration::from_millis(at.ms().saturating_sub(now().ms()))).await;
}
