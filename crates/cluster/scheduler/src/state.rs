//! The scheduler's state behind one lock: the engine, names to node slots, pods that wait.
//!
//! The lock is held for one decision and never across a call to the API server. Filter is
//! called by a single thread of the kube-scheduler, so a finer lock would win nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::registry::Registry;
use sublet_api::object::{Node, Pod, TolerationSpec};
use sublet_api::{
    NodeDefaults, bound_entry, facts_of, facts_with_stock, facts_without_gpu, is_over, keys,
    measured_use, pod_uid, stock,
};
use sublet_client::Client;
use sublet_model::{Claim, GpuIndex, NodeFacts, NodeIdx, NodeName, PodUid, Standing, Time};
use sublet_plan::stock::{NodeRules, Taint, TaintEffect, soft_taints};
use sublet_plan::{Engine, EngineOptions, StockRules};
use sublet_telemetry::metrics::SchedulerMetrics;
use tokio::sync::{Notify, watch};

use crate::bind::{Ending, UnderWay};
use crate::plans::Plans;
use crate::preempt::Evictions;
use crate::promises::{Promises, promise_of};
use crate::quotas::Quotas;
use crate::replicas::{PATIENCE, Replicas};
use crate::roster::Roster;
use crate::waiting::Waiting;

/// The data that the lock guards.
pub(crate) struct State {
    pub(crate) engine: Engine,
    /// Names of known nodes. The engine's own order is by slot, so that its scan needs none.
    roster: Roster,
    /// PreferNoSchedule taints of the nodes that have any.
    taints: BTreeMap<NodeIdx, Vec<Taint>>,
    /// Nodes as they report themselves, before an operator's list of sick cards.
    reported: BTreeMap<NodeName, NodeFacts>,
    sick: BTreeMap<NodeName, BTreeSet<GpuIndex>>,
    pub(crate) waiting: BTreeMap<PodUid, Waiting>,
    /// Pods that the stock scheduler asked about before the watch told of them, oldest first. The
    /// watch never tells of a pod that was gone by then, so only the last [`EARLY`] are kept.
    early: VecDeque<(PodUid, Arc<Claim>)>,
    /// Pods that went while a list beside the watch was read, which may still have them.
    gone: Option<BTreeSet<PodUid>>,
    pub(crate) evictions: Evictions,
    /// Room that is made for pods which wait.
    pub(crate) promises: Promises,
    /// Facts of nodes that the stock scheduler checks; kept if nobody else checks them.
    pub(crate) node_rules: Option<BTreeMap<NodeIdx, NodeRules>>,
    pub(crate) quotas: Quotas,
    pub(crate) plans: Plans,
}

/// The stock scheduler asks about one pod after the other, and its watch is ahead of ours by
/// milliseconds.
const EARLY: usize = 64;

impl State {
    /// A node was seen.
    pub(crate) fn set_node(&mut self, node: &Node) {
        let unit = self.engine.options().unit;
        let defaults = NodeDefaults { unit };
        let facts = match self.engine.options().stock {
            StockRules::Here => facts_with_stock(node, defaults),
            StockRules::Elsewhere => match facts_of(node, defaults) {
                Ok(Some(facts)) => Ok(facts),
                Ok(None) => facts_without_gpu(node, defaults),
                Err(error) => Err(error),
            },
        };
        if let Err(error) = measured_use(node) {
            let (node, annotation) = (&node.metadata.name, keys::MEASURED_USE);
            tracing::warn!(node, annotation, %error, "measured use is not known");
        }
        match facts {
            Ok(facts) => self.enter_node(facts, node),
            Err(error) => {
                tracing::warn!(node = node.metadata.name, %error, "node cannot be read and gets no pods");
                self.remove_node(&node.metadata.name);
            }
        }
    }

    /// A node is gone.
    pub(crate) fn remove_node(&mut self, name: &str) {
        if let Some(idx) = self.roster.remove(name) {
            self.taints.remove(&idx);
            self.node_rules.iter_mut().for_each(|rules| {
                rules.remove(&idx);
            });
        }
        if let Ok(name) = NodeName::new(name) {
            self.reported.remove(&name);
            self.engine.remove_node(&name);
        }
    }

    /// A complete list has named these nodes; all others are gone.
    pub(crate) fn keep_nodes(&mut self, listed: &BTreeSet<String>) {
        let gone = self.roster.names().filter(|name| !listed.contains(*name));
        let gone: Vec<String> = gone.map(str::to_owned).collect();
        for name in gone {
            self.remove_node(&name);
        }
    }

    /// An operator's list of a node's sick cards; an empty one lifts it.
    pub(crate) fn set_sick(&mut self, node: &NodeName, gpus: BTreeSet<GpuIndex>) {
        if gpus.is_empty() {
            self.sick.remove(node);
        } else {
            self.sick.insert(node.clone(), gpus);
        }
        if let Some(facts) = self.reported.get(node).cloned() {
            self.engine.set_node(self.with_sick(facts));
        }
    }

    /// A pod was seen, bound or waiting. One of no GPU counts too: it takes CPU that GPUs need.
    pub(crate) fn set_pod(&mut self, pod: &Pod) {
        let Ok(uid) = pod_uid(pod) else { return };
        if is_over(pod) {
            return self.forget(&uid);
        }
        let unit = self.engine.options().unit;
        let waiting = match Waiting::of(pod, unit) {
            Ok(waiting) => waiting.counted(pod, self.engine.options().stock),
            Err(problem) => {
                if !pod.spec.node_name.is_empty() {
                    let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
                    tracing::warn!(namespace, name, %problem, "bound pod cannot be counted");
                }
                return;
            }
        };
        self.learn(&uid, &waiting.claim);
        if pod.spec.node_name.is_empty() {
            if let Some(promise) = promise_of(pod) {
                self.promises.insert(uid.clone(), promise);
            }
            self.waiting.insert(uid, waiting);
            return;
        }
        self.waiting.remove(&uid);
        self.promises.remove(&uid);
        self.evictions.set_pod(&uid, pod);
        match bound_entry(pod, waiting.claim) {
            // What is wrong with its annotations is said in an event.
            Ok((entry, _problem)) => {
                self.seen_bound(&uid, pod);
                self.engine.observe(entry);
                self.settle_pod(&uid);
            }
            Err(error) => tracing::warn!(pod = %waiting.pod, %error, "bound pod cannot be counted"),
        }
    }

    /// Lets policies that learn see a pod, the first time that it is seen.
    fn learn(&mut self, uid: &PodUid, claim: &Claim) {
        if !self.is_known(uid) && self.take_early(uid).is_none() {
            self.engine.learn(claim);
        }
    }

    /// The same for a pod that the stock scheduler asks about. The policies must learn the same,
    /// whichever of the two watches was faster.
    pub(crate) fn learn_early(&mut self, uid: &PodUid, claim: &Claim) {
        let policy = &self.engine.options().policy;
        if !policy.learns() || self.is_known(uid) || self.early.iter().any(|(u, _)| u == uid) {
            return;
        }
        self.engine.learn(claim);
        self.early.push_back((uid.clone(), Arc::new(claim.clone())));
        if self.early.len() > EARLY
            && let Some((_, claim)) = self.early.pop_front()
        {
            self.engine.unlearn(&claim);
        }
    }

    fn is_known(&self, uid: &PodUid) -> bool {
        self.waiting.contains_key(uid) || self.bound_claim(uid).is_some()
    }

    fn take_early(&mut self, uid: &PodUid) -> Option<Arc<Claim>> {
        let at = self.early.iter().position(|(early, _)| early == uid)?;
        self.early.remove(at).map(|(_, claim)| claim)
    }

    /// The claim of a pod that was seen bound; a pod that is only reserved was not seen yet.
    fn bound_claim(&self, uid: &PodUid) -> Option<Arc<Claim>> {
        let entry = self.engine.ledger().entry(uid)?;
        (entry.standing == Standing::Bound).then(|| entry.claim.clone())
    }

    /// A pod is gone.
    pub(crate) fn forget(&mut self, uid: &PodUid) {
        let waiting = self.waiting.remove(uid).map(|waiting| waiting.claim);
        let seen = waiting.or_else(|| self.bound_claim(uid));
        if let Some(claim) = seen.or_else(|| self.take_early(uid)) {
            self.engine.unlearn(&claim);
        }
        self.evictions.forget(uid);
        self.promises.remove(uid);
        self.engine.forget(uid);
        self.give_back(uid);
        if let Some(gone) = &mut self.gone {
            gone.insert(uid.clone());
        }
    }

    /// A list beside the watch is about to be read.
    pub(crate) fn begin_list(&mut self) {
        self.gone = Some(BTreeSet::new());
    }

    /// It has been read. The watch may have told since of pods that went.
    pub(crate) fn end_list(&mut self, pods: &[Pod]) {
        let gone = self.gone.take().unwrap_or_default();
        for pod in pods {
            if pod_uid(pod).is_ok_and(|uid| !gone.contains(&uid)) {
                self.set_pod(pod);
            }
        }
    }

    /// The slots of these nodes, and the names that are not known.
    pub(crate) fn resolve<'a>(&mut self, names: &[&'a str]) -> (Vec<NodeIdx>, Vec<&'a str>) {
        self.roster.resolve(names)
    }

    /// The nodes of this list with untolerated PreferNoSchedule taints, and the count of each, by
    /// slot.
    pub(crate) fn soft_ranks(
        &self,
        nodes: &[NodeIdx],
        tolerations: &[TolerationSpec],
    ) -> Vec<(NodeIdx, u32)> {
        if self.taints.is_empty() {
            return Vec::new();
        }
        let tolerations = stock::tolerations(tolerations);
        let rank = |&node: &NodeIdx| {
            let rank = soft_taints(self.taints.get(&node)?, &tolerations);
            (rank > 0).then_some((node, rank))
        };
        let mut ranks: Vec<_> = nodes.iter().filter_map(rank).collect();
        ranks.sort_unstable();
        ranks
    }

    /// Nodes for which an operator lists sick cards.
    pub(crate) fn sick_nodes(&self) -> Vec<NodeName> {
        self.sick.keys().cloned().collect()
    }

    /// Every known node's slot, by name.
    pub(crate) fn all_nodes(&self) -> Vec<NodeIdx> {
        let books = self.engine.ledger().books();
        books
            .filter(|(_, book)| book.facts().is_some())
            .map(|(idx, _)| idx)
            .collect()
    }

    fn enter_node(&mut self, facts: NodeFacts, node: &Node) {
        let name = facts.name.clone();
        self.reported.insert(name.clone(), facts.clone());
        let idx = self.engine.set_node(self.with_sick(facts));
        self.roster.insert(name.as_str(), idx);
        if let Some(rules) = &mut self.node_rules {
            rules.insert(idx, stock::node_rules(node));
        }
        let mut soft = stock::taints(&node.spec.taints);
        soft.retain(|taint| taint.effect == TaintEffect::PreferNoSchedule);
        if soft.is_empty() {
            self.taints.remove(&idx);
        } else {
            self.taints.insert(idx, soft);
        }
    }

    fn with_sick(&self, mut facts: NodeFacts) -> NodeFacts {
        if let Some(sick) = self.sick.get(&facts.name) {
            facts.inventory = Arc::new(facts.inventory.with_sick(sick, keys::UNHEALTHY_REASON));
        }
        facts
    }
}

/// The lists that must be complete before anything is decided.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Listed {
    Nodes = 1,
    Pods = 2,
    Quotas = 4,
    /// Read only if there are plans; else it counts as complete.
    Plans = 8,
}

/// All of them.
const ALL_LISTED: u8 =
    Listed::Nodes as u8 | Listed::Pods as u8 | Listed::Quotas as u8 | Listed::Plans as u8;

/// The extender's name as field manager, and in events.
pub(crate) const MANAGER: &str = "sublet-extender";

/// Time limits of one Binding. The kube-scheduler waits 15 s in all
/// (deploy/kubernetes/40-scheduler-config.yaml).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Time that the API server itself may work on it (its `timeout` parameter).
    pub(crate) deadline: Duration,
    /// After this time a Binding without an answer takes effect no more: the deadline, a second
    /// for the journey, and the 7 s after which etcd gives up a write (5 s and two elections).
    pub(crate) settle: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            deadline: Duration::from_secs(3),
            settle: Duration::from_secs(11),
        }
    }
}

/// Time in which waits for news may be paid off later: that of half a second of waits.
const PATIENCE_AHEAD_MS: u64 = 2_000;

/// The extender: its state, its way to the API server, its metrics.
pub struct Scheduler {
    state: Mutex<State>,
    /// Number of callers that wait for the lock.
    wanted: AtomicUsize,
    listed: AtomicU8,
    /// Notified of every change that may have made room.
    pub(crate) freed: watch::Sender<()>,
    /// Told of pods that policies may have learnt from.
    pub(crate) learnt: Notify,
    /// Moment (ms) at which the waits for news so far are paid off, as in the generic cell rate
    /// algorithm (ITU-T I.371).
    patience_paid_ms: AtomicU64,
    pub(crate) client: Client,
    /// The names of the schedulers that ask us.
    pub(crate) schedulers: Vec<String>,
    /// The time limits of Bindings.
    pub(crate) patience: Patience,
    pub(crate) started: Time,
    under_way: UnderWay,
    /// The others, if there may be any.
    pub(crate) replicas: Option<Arc<Replicas>>,
    /// It only looks on, and posts no events.
    pub(crate) silent: bool,
    pub(crate) events: crate::events::Events,
    pub(crate) metrics: SchedulerMetrics,
    pub(crate) registry: Registry,
}

impl Scheduler {
    /// An extender that knows nothing yet.
    #[must_use]
    pub fn new(client: Client, options: EngineOptions, schedulers: Vec<String>) -> Scheduler {
        let (metrics, registry) = SchedulerMetrics::registered();
        let state = State {
            engine: Engine::new(options),
            roster: Roster::default(),
            taints: BTreeMap::new(),
            reported: BTreeMap::new(),
            sick: BTreeMap::new(),
            waiting: BTreeMap::new(),
            early: VecDeque::new(),
            gone: None,
            evictions: Evictions::default(),
            promises: Promises::default(),
            node_rules: None,
            quotas: Quotas::default(),
            plans: Plans::default(),
        };
        Scheduler {
            state: Mutex::new(state),
            wanted: AtomicUsize::new(0),
            listed: AtomicU8::new(Listed::Plans as u8),
            freed: watch::Sender::new(()),
            learnt: Notify::new(),
            patience_paid_ms: AtomicU64::new(0),
            client,
            schedulers,
            patience: Patience::default(),
            started: now(),
            under_way: UnderWay::default(),
            replicas: None,
            silent: false,
            events: crate::events::Events::default(),
            metrics,
            registry,
        }
    }

    /// One that obeys the plans of the queue.
    pub(crate) fn queued(mut self) -> Scheduler {
        let state = self.state.get_mut();
        state.unwrap_or_else(PoisonError::into_inner).plans.on = true;
        self.listed = AtomicU8::new(0);
        self
    }

    /// One that looks on: it posts no events, and knows the rules that are else checked by the
    /// stock scheduler.
    pub(crate) fn silent(client: Client, options: EngineOptions) -> Scheduler {
        let mut scheduler = Scheduler::new(client, options, Vec::new());
        scheduler.silent = true;
        let state = scheduler.state.get_mut();
        state.unwrap_or_else(PoisonError::into_inner).node_rules = Some(BTreeMap::new());
        scheduler
    }

    /// The state. A panic while it was locked has not damaged it: each decision ends with its last
    /// write to the ledger.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.wanted.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock();
        self.wanted.fetch_sub(1, Ordering::Relaxed);
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// One of several.
    pub(crate) fn among(mut self, replicas: Arc<Replicas>) -> Scheduler {
        self.replicas = Some(replicas);
        self.patience = PATIENCE;
        self
    }

    /// Binds under way.
    pub(crate) fn under_way(&self) -> MutexGuard<'_, BTreeMap<PodUid, (NodeName, Ending)>> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Does anybody wait for the state? The lock is not fair, so a caller that takes it again and
    /// again should then pause.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// Notes that a list is complete; true if the ledger is complete now.
    pub(crate) fn mark_listed(&self, list: Listed) -> bool {
        let before = self.listed.fetch_or(list as u8, Ordering::AcqRel);
        let completes = before | list as u8 != before && self.is_ready();
        if completes {
            let mut state = self.state();
            // Policies learn from all of it, whichever list came first.
            state.engine.relearn();
            let pods = state.engine.ledger().entries().count();
            tracing::info!(nodes = state.roster.len(), pods, "ledger complete");
        }
        completes
    }

    /// May a filter call wait for news now? The scheduler's cycle stands still meanwhile: at most a
    /// fifth of the time, and half a second in a row. One wait in vain is often followed by another:
    /// a pod that goes is changed before it is gone, and the kube-scheduler asks again after both.
    pub(crate) fn may_catch_up(&self) -> bool {
        let paid_ms = self.patience_paid_ms.load(Ordering::Relaxed);
        let ahead_ms = paid_ms.saturating_sub(now().ms());
        // More than waits can make it: the clock was set back.
        !(PATIENCE_AHEAD_MS..2 * PATIENCE_AHEAD_MS).contains(&ahead_ms)
    }

    /// A filter call has waited so long.
    pub(crate) fn caught_up(&self, waited: Duration) {
        let (now_ms, price_ms) = (now().ms(), 5 * waited.as_millis() as u64);
        let paid_ms = self.patience_paid_ms.load(Ordering::Relaxed);
        let paid_ms = paid_ms.clamp(now_ms, now_ms + PATIENCE_AHEAD_MS) + price_ms;
        self.patience_paid_ms.store(paid_ms, Ordering::Relaxed);
    }

    /// Is the ledger complete?
    pub(crate) fn is_ready(&self) -> bool {
        self.listed.load(Ordering::Acquire) == ALL_LISTED
    }
}

/// Nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The moment for the engine.
pub(crate) fn now() -> Time {
    Time::from_ms(now_ns() / 1_000_000)
}
