//! A cluster as its schedulers see it, and each node's verdict on a pod.
//!
//! `plan`, `explain` and `simulate --snapshot` enter nodes and bound pods here. Then they ask the
//! engine that the extender asks, with the stock scheduler's rules and scores beside it
//! (`sublet_plan::stock`). An object that is only partly readable is counted as far as it can be,
//! and its faults are returned.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use sublet_api::dialect::{ClaimError, claim_of};
use sublet_api::object::{Node, Pod};
use sublet_api::stock::{RuleError, kept_away, node_rules, unmodelled};
use sublet_api::{
    AllocationError, NodeDefaults, NodeError, bound_entry, facts_with_stock, host_of, keys,
    measured_use, pod_key, stock_ask,
};
use sublet_model::{
    Claim, Entry, GpuIndex, Host, NodeIdx, NodeName, PodKey, PodUid, Standing, StockAsk, Time,
    Unit, charges_of,
};
use sublet_plan::stock::{NodeRules, PodRules, PodTerm, Selected, Unmodelled, Waiting, select};
use sublet_plan::{Engine, EngineOptions, Reason, StockRules};

use crate::refusals::{Reasons, Refusals};

/// Nodes and the pods bound to them.
pub(crate) struct Cluster {
    pub(crate) engine: Engine,
    /// By slot of the ledger.
    rules: Vec<Option<NodeRules>>,
    /// Nodes with unreadable parts: they get no pods.
    left_out: BTreeSet<String>,
    /// By a pod's wishes, the nodes that they alone allow or close.
    classes: BTreeMap<PodRules, Arc<Class>>,
    /// The pods that others keep away.
    kept_away: Vec<(PodKey, PodTerm)>,
    /// The lowest priority of any pod that has a place.
    lowest_priority: Option<i32>,
    /// Latest answers, the most recently used first.
    answers: VecDeque<Answer>,
    reasons: Reasons,
}

/// Reasons why nodes refuse pods with the same claim and wishes. In a full cluster most waiting
/// pods ask the same as an earlier pod, and few nodes have changed since.
struct Answer {
    claim: Claim,
    wishes: PodRules,
    /// [`sublet_model::Ledger::version`] of each open node when it was asked.
    asked_at: Vec<Option<u64>>,
    refusals: Arc<Refusals>,
}

/// Nodes that the wishes alone allow or close, however much is taken. The same for all pods with
/// these wishes.
pub(crate) struct Class {
    /// Nodes that may take such a pod.
    pub(crate) open: Vec<NodeIdx>,
    /// The others, and why not.
    closed: Vec<(NodeIdx, Reason)>,
}

/// Fault of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Odd {
    /// Name of the field.
    pub(crate) field: String,
    /// Description of the fault.
    pub(crate) what: String,
}

impl Odd {
    fn new(field: &str, what: &impl ToString) -> Odd {
        Odd {
            field: field.to_owned(),
            what: what.to_string(),
        }
    }

    /// Fault in a pod's annotations.
    fn of_allocation(error: &AllocationError) -> Odd {
        let field = format!("metadata.annotations.{}", error.key());
        Odd::new(&field, &format!("{error}; {UNKNOWN}"))
    }

    /// Fault of a node.
    pub(crate) fn of_node(error: &NodeError) -> Odd {
        let field = match error {
            NodeError::Name(_) => "metadata.name".to_owned(),
            NodeError::Inventory(_) => format!("metadata.annotations.{}", keys::INVENTORY),
            NodeError::Handed(_) => format!("metadata.annotations.{}", keys::HANDED_OVER),
            NodeError::Register { key, .. } => format!("metadata.annotations.{key}"),
            NodeError::Sharing(_) => format!("metadata.labels.{}", keys::SHARING_LABEL),
            NodeError::Capacity { resource, .. } => format!("status.capacity.{resource}"),
            NodeError::Allocatable { resource, .. } => format!("status.allocatable.{resource}"),
            NodeError::Devices(_) => "status.capacity".to_owned(),
        };
        Odd::new(&field, error)
    }

    /// Fault in a node's measured load, which then counts as not known.
    pub(crate) fn of_measured_use(node: &Node) -> Option<Odd> {
        let field = format!("metadata.annotations.{}", keys::MEASURED_USE);
        Some(Odd::new(&field, &measured_use(node).err()?))
    }

    /// Fault in a pod's request.
    pub(crate) fn of_claim(pod: &Pod, error: &ClaimError) -> Odd {
        Odd::new(&error.field(pod), error)
    }

    pub(crate) fn of_rules(error: &RuleError) -> Odd {
        Odd::new(&error.field, &error.what)
    }
}

/// Answers that a cluster keeps: about as many kinds of pods as wait in one.
const ANSWERS_KEPT: usize = 256;

/// Consequence of an annotation that cannot be read.
const UNKNOWN: &str = "which GPU it has is not known";

/// Returns the pod's request, as the extender and the stock scheduler see it.
///
/// # Errors
/// A part of the request that cannot be read.
pub(crate) fn asked(pod: &Pod, unit: Unit) -> Result<Claim, ClaimError> {
    let claim = match claim_of(pod, unit)? {
        Some(claim) => claim,
        None => Claim::host_only(Host::ZERO),
    };
    let claim = claim.with_host(host_of(pod)?);
    Ok(claim.with_stock(Arc::new(stock_ask(pod)?)))
}

impl Cluster {
    pub(crate) fn new(options: EngineOptions) -> Cluster {
        Cluster {
            engine: Engine::new(EngineOptions {
                stock: StockRules::Here,
                ..options
            }),
            rules: Vec::new(),
            left_out: BTreeSet::new(),
            classes: BTreeMap::new(),
            kept_away: Vec::new(),
            lowest_priority: None,
            answers: VecDeque::new(),
            reasons: Reasons::default(),
        }
    }

    /// Enters a node, before any pod. One without GPUs is entered too, so that it is refused
    /// with its reason. `sick`: cards that an operator listed as unhealthy.
    pub(crate) fn enter_node(
        &mut self,
        node: &Node,
        sick: Option<&BTreeSet<GpuIndex>>,
    ) -> Result<NodeIdx, NodeError> {
        let unit = self.engine.options().unit;
        let read = facts_with_stock(node, NodeDefaults { unit });
        let mut facts = read.inspect_err(|_| {
            self.left_out.insert(node.metadata.name.clone());
        })?;
        if let Some(sick) = sick {
            facts.inventory = Arc::new(facts.inventory.with_sick(sick, keys::UNHEALTHY_REASON));
        }
        let idx = self.engine.set_node(facts);
        let at = idx.0 as usize;
        if self.rules.len() <= at {
            self.rules.resize_with(at + 1, || None);
        }
        self.rules[at] = Some(node_rules(node));
        Ok(idx)
    }

    /// Enters a bound pod. A pod without GPUs takes its request from the machine. Returns the pod's
    /// faults; everything else is counted. A pod that does not say its place on the node counts as
    /// it does for the extender. A pod whose claim cannot be read counts as it does for the stock
    /// scheduler.
    pub(crate) fn enter_pod(&mut self, pod: &Pod) -> Vec<Odd> {
        let unit = self.engine.options().unit;
        let mut odd = Vec::new();
        let claim = asked(pod, unit).inspect(|claim| self.engine.learn(claim));
        let claim = claim.unwrap_or_else(|error| {
            odd.push(Odd::of_claim(pod, &error));
            let stock = stock_ask(pod).unwrap_or_else(|_| StockAsk::default());
            let host = host_of(pod).unwrap_or(Host::ZERO);
            Claim::host_only(host).with_stock(Arc::new(stock))
        });
        match bound_entry(pod, Arc::new(claim)) {
            Ok((entry, problem)) => {
                odd.extend(problem.map(|problem| Odd::of_allocation(&problem)));
                odd.extend(self.strange_cards(pod, &entry));
                self.has_place(entry.priority);
                self.engine.observe(entry);
            }
            Err(error) => odd.push(Odd::new("metadata", &error)),
        }
        if let Err(error) = self.keep_away(pod) {
            odd.push(Odd::of_rules(&error));
        }
        odd
    }

    /// Cards that a pod says it has, and its node has not.
    fn strange_cards(&self, pod: &Pod, entry: &Entry) -> Option<Odd> {
        let node = self.engine.ledger().find(entry.node.as_str())?;
        let inventory = &self.engine.ledger().book(node).facts()?.inventory;
        let allocation = entry.allocation.as_ref()?;
        let charges = charges_of(&entry.claim, allocation);
        let strange = charges
            .iter()
            .find(|c| inventory.position(&c.card).is_none())?;
        let annotations = &pod.metadata.annotations;
        let own = [keys::ALLOCATION, keys::ALIYUN_ALLOCATION, keys::ALIYUN_IDX];
        let key = own.iter().find(|key| annotations.contains_key(**key))?;
        let cards = inventory.gpus().len();
        let what = format!(
            "it says GPU {}, and node {} has {cards} GPUs; {UNKNOWN}",
            strange.card.index, entry.node
        );
        Some(Odd::new(&format!("metadata.annotations.{key}"), &what))
    }

    /// Notes which pods a pod keeps away, bound or as if it were.
    pub(crate) fn keep_away(&mut self, pod: &Pod) -> Result<(), RuleError> {
        let terms = kept_away(pod)?;
        if let Ok(key) = pod_key(pod) {
            let terms = terms.into_iter().map(|term| (key.clone(), term));
            self.kept_away.extend(terms);
        }
        Ok(())
    }

    /// Rules of the pod that the stock scheduler considers and Sublet does not model.
    pub(crate) fn unmodelled(&self, pod: &Pod) -> Vec<Unmodelled> {
        let meta = &pod.metadata;
        let label = |key: &str| meta.labels.get(key).map(String::as_str);
        let of_others = self.kept_away.iter();
        let of_others = of_others.filter(|(_, term)| term.means(&meta.namespace, label));
        let mut found = unmodelled(pod);
        found.extend(of_others.map(|(key, _)| Unmodelled::AntiAffinityOf(key.clone())));
        found
    }

    /// Counts a pod as one that has its devices. On paper there is no race of starting
    /// containers, so a pod that looks the same may follow at once.
    pub(crate) fn start(&mut self, uid: &PodUid) {
        if let Some(mut entry) = self.engine.ledger().entry(uid).cloned() {
            entry.standing = Standing::Bound;
            entry.assigned = true;
            self.has_place(entry.priority);
            self.engine.observe(entry);
        }
    }

    fn has_place(&mut self, priority: i32) {
        let lowest = self.lowest_priority.unwrap_or(priority);
        self.lowest_priority = Some(lowest.min(priority));
    }

    /// Has any pod of a lower priority a place?
    pub(crate) fn has_below(&self, priority: i32) -> bool {
        self.lowest_priority.is_some_and(|lowest| lowest < priority)
    }

    /// Nodes that a pod's wishes alone allow or close.
    pub(crate) fn class(&mut self, wishes: &PodRules) -> Arc<Class> {
        if let Some(class) = self.classes.get(wishes) {
            return Arc::clone(class);
        }
        let mut class = Class {
            open: Vec::new(),
            closed: Vec::new(),
        };
        for (at, rules) in (0..).map(NodeIdx).zip(&self.rules) {
            match rules.as_ref().map(|rules| wishes.check(rules)) {
                Some(Ok(())) => class.open.push(at),
                Some(Err(reason)) => class.closed.push((at, reason)),
                None => {}
            }
        }
        let class = Arc::new(class);
        self.classes.insert(wishes.clone(), Arc::clone(&class));
        class
    }

    /// Soft taints of a node that the wishes do not tolerate.
    pub(crate) fn soft_taints(&self, wishes: &PodRules, node: NodeIdx) -> u32 {
        let rules = self.rules.get(node.0 as usize).and_then(Option::as_ref);
        rules.map_or(0, |rules| wishes.soft_taints(rules))
    }

    /// The node that the stock scheduler would take for the pod, by the extender's filter and
    /// scores and its own.
    pub(crate) fn select(&mut self, now: Time, pod: Waiting<'_>) -> Option<Selected> {
        let class = self.class(pod.rules);
        let rules = &self.rules;
        let of = |node: NodeIdx| {
            rules[node.0 as usize]
                .as_ref()
                .expect("an open node is known")
        };
        select(&mut self.engine, now, pod, &class.open, of)
    }

    /// Every node that cannot take the pod, and why.
    pub(crate) fn refusals(
        &mut self,
        uid: &PodUid,
        claim: &Claim,
        wishes: &PodRules,
    ) -> Arc<Refusals> {
        let class = self.class(wishes);
        let mut answer = self.last_answer(claim, wishes, &class);
        let ledger = self.engine.ledger();
        let nodes = class.open.iter().zip(&mut answer.asked_at);
        let changed = nodes.filter_map(|(node, asked_at)| {
            let version = ledger.version(*node);
            (asked_at.replace(version) != Some(version)).then_some(*node)
        });
        let changed: Vec<NodeIdx> = changed.collect();
        if !changed.is_empty() {
            let refused = self.engine.refusals(uid, claim, &changed);
            let mut refused = refused.into_iter().peekable();
            let news = changed.iter().filter_map(|node| {
                let name = &self.rules[node.0 as usize].as_ref()?.name;
                let reason = refused.next_if(|refused| refused.node == *node);
                let reason = reason.map(|refused| self.reasons.share(refused.reason));
                Some((Arc::clone(name), reason))
            });
            Arc::make_mut(&mut answer.refusals).update(news.collect());
        }
        let refusals = Arc::clone(&answer.refusals);
        self.answers.truncate(ANSWERS_KEPT - 1);
        self.answers.push_front(answer);
        refusals
    }

    /// Returns the last answer to the same question, or else a new one from the wishes alone.
    fn last_answer(&mut self, claim: &Claim, wishes: &PodRules, class: &Class) -> Answer {
        let mut answers = self.answers.iter();
        let same = answers.position(|answer| answer.claim == *claim && answer.wishes == *wishes);
        if let Some(answer) = same.and_then(|at| self.answers.remove(at)) {
            return answer;
        }
        let closed = class.closed.iter().filter_map(|(node, reason)| {
            let name = &self.rules[node.0 as usize].as_ref()?.name;
            Some((Arc::clone(name), reason.clone()))
        });
        let left_out = self.left_out.iter().map(|name| Arc::from(name.as_str()));
        let left_out = left_out.map(|name| (name, Reason::Unknown));
        let never = closed.chain(left_out);
        let mut refusals = Refusals::NONE;
        let share = |(name, reason)| (name, Some(self.reasons.share(reason)));
        refusals.update(never.map(share).collect());
        Answer {
            claim: claim.clone(),
            wishes: wishes.clone(),
            asked_at: vec![None; class.open.len()],
            refusals: Arc::new(refusals),
        }
    }

    /// Every node that is known, and its rules.
    pub(crate) fn nodes(&self) -> Vec<(NodeIdx, NodeRules)> {
        let all = (0..).map(NodeIdx).zip(&self.rules);
        all.filter_map(|(at, rules)| Some((at, rules.clone()?)))
            .collect()
    }

    pub(crate) fn name(&self, node: NodeIdx) -> &NodeName {
        self.engine.ledger().book(node).name()
    }

    /// The names of all nodes, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let known = self.engine.ledger().books();
        let known = known.filter(|(_, book)| book.facts().is_some());
        known.map(|(_, book)| book.name().as_str())
    }
}
