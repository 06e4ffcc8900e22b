//! Preempt: chooses the pods that the kube-scheduler should evict, node by node.
//!
//! Its own proposal goes by sums. It accepts other victims from us (`convertToVictims` looks them
//! up by UID), and other nodes too, out of all that it knows (v1.36). It proposes nobody on nodes
//! that filter refused although their sum is free, because no single card has the room; we add
//! those. Among all nodes it then picks the one with victims that break the fewest budgets and
//! matter least.
//!
//! It asks us only if by the sums some node needs victims. If the sum is free on every node, and
//! the room on no card, it evicts nobody; the controller does (`read_replica`).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sublet_api::extender::{MetaPod, MetaVictims, PreemptArgs, PreemptResult};
use sublet_api::object::Pod;
use sublet_api::{BudgetedPod, DisruptionBudget, breaks_budgets, is_guarded};
use sublet_client::Change;
use sublet_model::{Claim, Entry, Ledger, NodeIdx, PodUid, Standing, Time};
use sublet_plan::{Evictable, RefusedNode, Removable};

use crate::plans::Membership;
use crate::routes::{json, read, timed};
use crate::state::{Scheduler, State, now};
use crate::waiting::claim_of;
use crate::watches::Listing;

/// Preempt follows filter at once. A pod is not tried again within a second
/// (`podInitialBackoffSeconds`), so an older refusal belongs to an earlier cycle.
const SAME_CYCLE_MS: u64 = 500;

type Labels = BTreeMap<String, String>;

/// Data for the choice of victims, beside the ledger.
#[derive(Debug, Default)]
pub(crate) struct Evictions {
    pods: BTreeMap<PodUid, Traits>,
    /// Pods of one template share their labels.
    labels: BTreeSet<Arc<Labels>>,
    budgets: BTreeMap<(String, String), DisruptionBudget>,
    refused: Option<Refusal>,
}

/// Facts about a bound pod.
#[derive(Debug)]
struct Traits {
    labels: Arc<Labels>,
    /// RFC 3339 in UTC and whole seconds, so that it sorts as text.
    started: Option<Box<str>>,
    /// Is it being deleted?
    going: bool,
}

/// The last pod that filter refused everywhere.
#[derive(Debug)]
struct Refusal {
    uid: PodUid,
    at: Time,
    /// Nodes where the refusal may not be for ever.
    nodes: Vec<NodeIdx>,
}

impl Evictions {
    /// A bound pod was seen.
    pub(crate) fn set_pod(&mut self, uid: &PodUid, pod: &Pod) {
        let labels = match self.labels.get(&pod.metadata.labels) {
            Some(labels) => labels.clone(),
            None => Arc::new(pod.metadata.labels.clone()),
        };
        self.labels.insert(labels.clone());
        let traits = Traits {
            labels,
            started: pod.status.start_time.as_deref().map(Box::from),
            going: pod.metadata.deletion_timestamp.is_some(),
        };
        if let Some(before) = self.pods.insert(uid.clone(), traits) {
            self.drop_labels(&before.labels);
        }
    }

    /// A pod is gone.
    pub(crate) fn forget(&mut self, uid: &PodUid) {
        if let Some(traits) = self.pods.remove(uid) {
            self.drop_labels(&traits.labels);
        }
    }

    /// Filter was asked, and refused the pod on these nodes; none if it passed any.
    pub(crate) fn filtered(&mut self, uid: &PodUid, refused: &[RefusedNode]) {
        let lasting = |refused: &&RefusedNode| !refused.reason.is_final();
        let nodes: Vec<_> = refused.iter().filter(lasting).map(|it| it.node).collect();
        self.refused = (!nodes.is_empty()).then(|| Refusal {
            uid: uid.clone(),
            at: now(),
            nodes,
        });
    }

    /// Is that pod being deleted?
    pub(crate) fn is_going(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|traits| traits.going)
    }

    /// The pods of a node that may go for one of that priority, the most important first. As
    /// `MoreImportantPod`: by priority, then the longest running; one that has not started is the
    /// least important. `theirs` are pods that the stock scheduler proposes.
    pub(crate) fn removable(
        &self,
        ledger: &Ledger,
        node: NodeIdx,
        priority: i32,
        theirs: &BTreeSet<PodUid>,
    ) -> Vec<Removable> {
        let entries = ledger.book(node).pods();
        let entries = entries.filter_map(|uid| ledger.entry(uid));
        // One that is only reserved may be unknown to the scheduler, which then gives up.
        let mut entries: Vec<_> = entries
            .filter(|entry| entry.standing == Standing::Bound || theirs.contains(&entry.uid))
            .filter(|entry| entry.priority < priority)
            .map(|entry| (entry, self.started(&entry.uid)))
            .collect();
        entries
            .sort_by_key(|(entry, started)| (Reverse(entry.priority), started.is_none(), *started));
        let all: Vec<&Entry> = entries.iter().map(|(entry, _)| *entry).collect();
        let breaks = breaks_budgets(&self.budgets.values(), &self.budgeted(&all));
        let removable = entries.into_iter().zip(breaks);
        removable
            .map(|((entry, started), breaks)| Removable {
                pod: Evictable {
                    uid: entry.uid.clone(),
                    breaks,
                },
                priority: entry.priority,
                started: started.map(Box::from),
            })
            .collect()
    }

    /// Is one of these the system's, or would the eviction of all break a disruption budget?
    pub(crate) fn is_guarded(&self, entries: &[&Entry]) -> bool {
        is_guarded(&self.budgets.values(), &self.budgeted(entries))
    }

    fn budgeted<'a>(&'a self, entries: &[&'a Entry]) -> Vec<BudgetedPod<'a>> {
        let labels = |uid: &PodUid| self.pods.get(uid).map(|traits| &*traits.labels);
        let entries = entries.iter().map(|entry| (&entry.pod, labels(&entry.uid)));
        entries.collect()
    }

    fn started(&self, uid: &PodUid) -> Option<&str> {
        self.pods.get(uid)?.started.as_deref()
    }

    fn drop_labels(&mut self, labels: &Arc<Labels>) {
        // The caller's and the set's own.
        if Arc::strong_count(labels) == 2 {
            self.labels.remove(labels);
        }
    }

    /// The nodes that the pod was refused on in this cycle.
    fn take_refused(&mut self, uid: &PodUid) -> Vec<NodeIdx> {
        let refused = self
            .refused
            .take()
            .filter(|refused| refused.uid == *uid && now() < refused.at.plus_ms(SAME_CYCLE_MS));
        refused.map(|refused| refused.nodes).unwrap_or_default()
    }
}

/// A budget was listed, new, changed or gone.
pub(crate) fn budgets(
    scheduler: &Scheduler,
    listed: &mut Listing<(String, String)>,
    change: Change<DisruptionBudget>,
) {
    let budgets = &mut scheduler.state().evictions.budgets;
    let key = |budget: &DisruptionBudget| {
        let meta = &budget.metadata;
        (meta.namespace.clone(), meta.name.clone())
    };
    match change {
        Change::ListBegins => *listed = Some(BTreeSet::new()),
        Change::ListEnds => {
            let listed = listed.take().unwrap_or_default();
            budgets.retain(|key, _| listed.contains(key));
        }
        Change::Set(budget) => {
            let key = key(&budget);
            listed.iter_mut().for_each(|listed| {
                listed.insert(key.clone());
            });
            budgets.insert(key, budget);
        }
        Change::Gone(budget) => {
            budgets.remove(&key(&budget));
        }
    }
}

pub(crate) async fn preempt(Shared(scheduler): Shared<Arc<Scheduler>>, body: Bytes) -> Response {
    timed(&scheduler, "preempt", || {
        let args = match read::<PreemptArgs>(&body) {
            Ok(args) => args,
            Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
        };
        let mut state = scheduler.state();
        let claim = claim_of(&args.pod, state.engine.options().unit).ok();
        // A pod of no GPU: the stock scheduler has decided already.
        let claim = claim.filter(Claim::has_gpu);
        // Whoever goes for a member goes before it is let go.
        if state.is_of_queue(&Membership::of(&args.pod)) {
            return json(&PreemptResult {
                node_name_to_meta_victims: BTreeMap::new(),
            });
        }
        let priority = args.pod.spec.priority.unwrap_or(0);
        let uid = PodUid::new(&args.pod.metadata.uid);
        let theirs = args.victims();
        let offers = match (claim, uid) {
            (Some(claim), Ok(uid)) => offers(&mut state, &uid, &claim, priority, theirs),
            _ => theirs,
        };
        json(&PreemptResult {
            node_name_to_meta_victims: offers,
        })
    })
}

/// Every node where an eviction helps, with the victims.
fn offers(
    state: &mut State,
    uid: &PodUid,
    claim: &Claim,
    priority: i32,
    theirs: BTreeMap<String, MetaVictims>,
) -> BTreeMap<String, MetaVictims> {
    let refused = state.evictions.take_refused(uid);
    let (engine, ledger) = (&state.engine, state.engine.ledger());
    let mut offers = BTreeMap::new();
    for (name, proposal) in theirs {
        let Some(node) = ledger.find(&name) else {
            continue;
        };
        let pods = proposal.pods.iter().flatten();
        let pods = pods.filter_map(|pod| PodUid::new(&pod.uid).ok());
        let pods: BTreeSet<PodUid> = pods.collect();
        let row = row(state, node, priority, &pods);
        if !pods.iter().all(|pod| row.iter().any(|it| it.uid == *pod)) {
            // The scheduler knows of a pod that we do not know. We can only say whether its
            // victims suffice.
            if engine.fits_without(uid, claim, node, &pods) {
                offers.insert(name, proposal);
            }
            continue;
        }
        let Some(victims) = engine.victims(uid, claim, node, &row, &pods) else {
            continue;
        };
        let same = victims.len() == pods.len() && victims.iter().all(|it| pods.contains(&it.uid));
        let offer = if same { proposal } else { meta(&victims) };
        offers.insert(name, offer);
    }
    for node in refused {
        let name = ledger.book(node).name().as_str();
        if offers.contains_key(name) {
            continue;
        }
        let none = BTreeSet::new();
        let row = row(state, node, priority, &none);
        if let Some(victims) = engine.victims(uid, claim, node, &row, &none) {
            offers.insert(name.to_owned(), meta(&victims));
        }
    }
    offers
}

/// The pods that may go from a node.
fn row(state: &State, node: NodeIdx, priority: i32, theirs: &BTreeSet<PodUid>) -> Vec<Evictable> {
    let ledger = state.engine.ledger();
    let all = state.evictions.removable(ledger, node, priority, theirs);
    all.into_iter().map(|one| one.pod).collect()
}

/// The victims as the scheduler reads them: it takes the first for the most important.
fn meta(victims: &[Evictable]) -> MetaVictims {
    let uid = |victim: &Evictable| MetaPod {
        uid: victim.uid.to_string(),
    };
    let broken = victims.iter().filter(|victim| victim.breaks).count();
    MetaVictims {
        pods: Some(victims.iter().map(uid).collect()),
        pdb_violations: i64::try_from(broken).unwrap_or(i64::MAX),
    }
}
