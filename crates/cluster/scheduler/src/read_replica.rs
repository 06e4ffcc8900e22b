//! The ledger in a process that binds nothing. It finds the pods to evict for a pod that waits, and
//! the data that the queue decides on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sublet_api::Preempting;
use sublet_api::gang_plan::GangPlanObject;
use sublet_api::object::{Node, Pod};
use sublet_api::stock::{pod_rules, unmodelled};
use sublet_client::{Change, Client};
use sublet_model::{Entry, NodeIdx, PodKey, PodUid, Victim};
use sublet_plan::stock::NodeRules;
use sublet_plan::{Engine, EngineOptions, NoRescue, Prospect};
use sublet_tasks::{Vital, VitalTask};

use crate::promises::{entry_of, promise_of};
use crate::state::{Scheduler, State, now};
use crate::waiting::Waiting;
use crate::watches::follow;

/// Pause between checks whether all is known.
const LOOK: Duration = Duration::from_millis(50);

/// Follows the cluster until it is dropped.
pub struct ReadReplica {
    scheduler: Arc<Scheduler>,
    _following: VitalTask<()>,
}

/// Hears each change that the watches tell, once the ledger has it. It must not wait.
pub trait EventSink: Send + Sync {
    /// A pod has changed.
    fn pod(&self, change: Change<Pod>);
    /// A node has changed.
    fn node(&self, change: Change<Node>);
    /// A plan has changed; the ledger has its slots too.
    fn plan(&self, change: Change<GangPlanObject>);
}

/// Data for a decision about the whole cluster, while nothing changes.
pub struct ClusterSnapshot<'a> {
    /// The ledger, to try out on.
    pub engine: &'a mut Engine,
    /// Nodes, with the facts that the stock scheduler checks.
    pub nodes: Vec<(NodeIdx, NodeRules)>,
    /// Would a disruption budget be broken if all of these were evicted?
    pub breaks: &'a dyn Fn(&[&Entry]) -> bool,
}

/// Chances of a waiting pod to get room by eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PreemptionVerdict {
    /// The pod is none that others are evicted for: it asks for no GPU,
    /// cannot be read, has a requirement that only the stock scheduler can check, or is a member of a
    /// group, for which only the queue has others go.
    Unknown,
    /// Room was decided on for it before. These of the victims are still to be evicted.
    Decided(Preempting, Vec<Victim>),
    /// Room can be made like this.
    Possible(Preempting),
    /// Nobody is to be evicted.
    No(NoRescue),
}

impl ReadReplica {
    /// Begins to follow. Amounts of `aliyun.com/gpu-mem` are in the unit of `options`. `queue`
    /// hears the changes. Where there is one, extenders obey its plans, so their slots count.
    #[must_use]
    pub fn begin(
        client: Client,
        options: EngineOptions,
        vital: &Vital,
        queue: Option<Arc<dyn EventSink>>,
    ) -> ReadReplica {
        let scheduler = Scheduler::silent(client, options);
        let scheduler = Arc::new(match queue {
            Some(_) => scheduler.queued(),
            None => scheduler,
        });
        let following = follow(scheduler.clone(), queue);
        ReadReplica {
            scheduler,
            _following: vital.start_for_now("the watch of a read-only replica", following),
        }
    }

    /// Waits until all is known.
    pub async fn ready(&self) {
        while !self.scheduler.is_ready() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Decides something about the whole cluster. Meanwhile nothing is entered.
    pub fn decide<T>(&self, decide: impl FnOnce(ClusterSnapshot<'_>) -> T) -> T {
        let mut state = self.scheduler.state();
        let State {
            engine,
            evictions,
            node_rules,
            ..
        } = &mut *state;
        let rules = node_rules.iter().flatten();
        decide(ClusterSnapshot {
            engine,
            nodes: rules.map(|(node, rules)| (*node, rules.clone())).collect(),
            breaks: &|set| evictions.is_guarded(set),
        })
    }

    /// Returns the verdict on this pod. Room that is found possible counts as decided for other
    /// pods.
    #[must_use]
    pub fn preemption_verdict(&self, pod: &Pod) -> PreemptionVerdict {
        self.scheduler.preemption_verdict(pod)
    }
}

impl Scheduler {
    pub(crate) fn preemption_verdict(&self, pod: &Pod) -> PreemptionVerdict {
        let mut state = self.state();
        let &EngineOptions { unit, stock, .. } = state.engine.options();
        let Ok(waiting) = Waiting::of(pod, unit) else {
            return PreemptionVerdict::Unknown;
        };
        let waiting = waiting.counted(pod, stock);
        if !waiting.asks_gpu() || !unmodelled(pod).is_empty() {
            return PreemptionVerdict::Unknown;
        }
        if state.is_of_queue(&waiting.membership) {
            return PreemptionVerdict::Unknown;
        }
        if pod
            .metadata
            .annotations
            .contains_key(sublet_api::keys::PREEMPTING)
        {
            // One that cannot be read was not written by us, and is not followed.
            return promise_of(pod).map_or(PreemptionVerdict::Unknown, |decided| {
                let left = left_of(&state, &waiting, &decided);
                PreemptionVerdict::Decided(decided, left)
            });
        }
        // One that its namespace's quota keeps waiting is helped by nobody's eviction.
        let Waiting { pod: key, uid, .. } = &waiting;
        if state.check_quota(key, uid, &waiting.claim, None).is_err() {
            return PreemptionVerdict::No(NoRescue::NobodyHelps);
        }
        let Some(prospects) = prospects(&state, pod, &waiting) else {
            return PreemptionVerdict::Unknown;
        };
        let (now, entry) = (now(), entry_of(&waiting));
        let State {
            engine, evictions, ..
        } = &mut *state;
        let rescue = engine.rescue(now, &entry, &prospects, |set| evictions.is_guarded(set));
        match rescue {
            Err(no) => PreemptionVerdict::No(no),
            Ok(rescue) => {
                let node = state.engine.ledger().book(rescue.node).name().clone();
                let victims = rescue.victims.into_iter();
                let victims = victims.filter_map(|uid| victim(&state, uid)).collect();
                let at = now;
                let decided = Preempting { node, at, victims };
                state.promises.insert(waiting.uid, decided.clone());
                PreemptionVerdict::Possible(decided)
            }
        }
    }
}

/// The victims that are still there and do not go yet. Only pods that may be evicted for this one
/// count, whatever the text says.
fn left_of(state: &State, waiting: &Waiting, decided: &Preempting) -> Vec<Victim> {
    let ledger = state.engine.ledger();
    let left = decided.victims.iter().filter(|victim| {
        let entry = ledger.entry(&victim.uid);
        entry.is_some_and(|entry| {
            entry.pod == victim.pod
                && entry.node == decided.node
                && entry.priority < waiting.priority
                && entry.claim.has_gpu()
                && !state.evictions.is_going(&victim.uid)
        })
    });
    left.cloned().collect()
}

fn victim(state: &State, uid: PodUid) -> Option<Victim> {
    let entry = state.engine.ledger().entry(&uid)?;
    let pod: PodKey = entry.pod.clone();
    Some(Victim { pod, uid })
}

/// The nodes that would take the pod by the rules that count nothing, each with the pods that may
/// go. `None` if the pod's own rules cannot be read.
fn prospects(state: &State, pod: &Pod, waiting: &Waiting) -> Option<Vec<Prospect>> {
    let rules = pod_rules(pod).ok()?;
    let ledger = state.engine.ledger();
    // What was found for this very pod before was not noted, and counts no more.
    let others = state
        .promises
        .iter()
        .filter(|(uid, _)| **uid != waiting.uid);
    let promised: BTreeSet<&PodUid> = others
        .flat_map(|(_, promise)| promise.victims.iter().map(|victim| &victim.uid))
        .collect();
    // Where somebody without a GPU is in the way, a sum is not free.
    let has_gpu = |uid: &PodUid| ledger.entry(uid).is_some_and(|entry| entry.claim.has_gpu());
    let goes =
        |entry: &&Entry| promised.contains(&entry.uid) || state.evictions.is_going(&entry.uid);
    let prospect = |node: NodeIdx| {
        let entries = ledger.book(node).pods();
        let going = entries.filter_map(|uid| ledger.entry(uid)).filter(goes);
        let going: BTreeSet<PodUid> = going.map(|entry| entry.uid.clone()).collect();
        let row = state
            .evictions
            .removable(ledger, node, waiting.priority, &BTreeSet::new());
        let row = row.into_iter().filter(|one| {
            let uid = &one.pod.uid;
            !going.contains(uid) && has_gpu(uid)
        });
        Prospect {
            node,
            row: row.collect(),
            going,
        }
    };
    let open = state.node_rules.iter().flatten();
    let open = open.filter(|(_, node)| rules.check(node).is_ok());
    Some(open.map(|(node, _)| prospect(*node)).collect())
}
