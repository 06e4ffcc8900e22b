//! Keeps the results of earlier questions about each node. A result holds until the node's page or
//! a table of the policy changes.
//!
//! A placement changes one page. So the next question of the same kind computes one node and reads
//! the other nodes from a vector. The cache decides nothing: each cost comes from `fit`.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{
    Advertise, Ask, Bytes, CardWishes, Carrier, Claim, Class, Host, Models, NodeIdx, PodUid,
    StockAsk,
};

use crate::policy::MAX_PARTS;
use crate::score::{Cost, Prepared, PreparedParts};
use crate::{Candidate, Preference, StockRules};

/// Limit on the questions kept at once. The openb lists have up to 151 if the machine's memory is
/// part of the question, and 91 if not. A question costs a [`CachedCost`] for each node: 256
/// questions with 5,000 nodes take 40 MB, so no more are kept. A walk over the nodes reads all of
/// them, so two lie on one cache line.
const MAX_QUESTIONS: usize = 256;
const _: () = assert!(size_of::<CachedCost>() == 32);

/// A question that was not among the last so many is not computed in advance. Even the rarest of
/// openb's 151 shapes has usually come again within that number.
const RECENT: u64 = 4096;

/// Everything in a claim that `fit` looks at, except look-alikes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Question {
    ask: Ask,
    class: Class,
    host: Host,
    models: Models,
    wishes: Option<Arc<CardWishes>>,
    carrier: (Carrier, bool),
    stock: Option<Arc<StockAsk>>,
}

/// Costs to the policies of a mix, without the first one.
type OtherCosts = [Cost; MAX_PARTS - 1];

/// The basis of a result: the versions of the page and of the policy's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Stamp {
    version: u64,
    epoch: u64,
}

/// The result of a question on a node, for the policy or for the first one of a mix.
#[derive(Debug, Clone, Copy, Default)]
struct CachedCost {
    stamp: Stamp,
    cost: Cost,
    position: u32,
    preference: Preference,
    finding: Finding,
}

impl CachedCost {
    /// Is it still the answer? Tables of the policy change the cost of a place. They do not change
    /// whether there is a place: that depends on the page alone.
    fn holds(&self, now: Stamp) -> bool {
        match self.finding {
            Finding::Unknown => false,
            Finding::NoPlace => self.stamp.version == now.version,
            Finding::Place | Finding::Contended => self.stamp == now,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Finding {
    /// The question has not been asked for this node.
    #[default]
    Unknown,
    NoPlace,
    Place,
    /// [`Candidate::contended`].
    Contended,
}

/// The results of a question, by node.
#[derive(Debug, Clone)]
struct NodeCosts {
    /// The first pod that asked. All pods with the same question get the same costs.
    asker: (PodUid, Claim),
    nodes: Vec<CachedCost>,
    /// The costs to the other policies of a mix; empty if there are none.
    others: Vec<OtherCosts>,
    used: u64,
    /// The epoch for which costs are computed in advance, and for how many nodes that is done.
    refreshed: (u64, usize),
}

impl NodeCosts {
    fn is_fresh(&self, epoch: u64) -> bool {
        self.refreshed.0 == epoch && self.refreshed.1 >= self.nodes.len()
    }
}

/// By node, the results of the policy's parts that do not depend on the question.
type PreparedNodes = Vec<Option<(Stamp, PreparedParts)>>;

/// [`NodeCosts`] for each question.
#[derive(Debug, Clone, Default)]
pub(crate) struct CostCache {
    costs: BTreeMap<Question, NodeCosts>,
    prepared: PreparedNodes,
    questions: u64,
}

/// Computes the costs that the cache keeps.
pub(crate) trait Source {
    /// The version of a node's page.
    fn version(&self, node: NodeIdx) -> u64;
    /// False if the node certainly has no place for the claim.
    fn may_fit(&self, claim: &Claim, node: NodeIdx) -> bool;
    /// Data of a node that the policy's parts need for every question.
    fn prepare(&self, node: NodeIdx) -> PreparedParts;
    /// The answer to a question on a node.
    fn look(
        &self,
        uid: &PodUid,
        claim: &Claim,
        node: NodeIdx,
        prepared: &[Prepared],
    ) -> Option<Candidate>;
}

impl Question {
    /// Leaves out the fields that only the stock scheduler looks at, since they change no cost.
    fn of(claim: &Claim, stock: StockRules) -> Question {
        let here = stock == StockRules::Here;
        let memory = if here {
            claim.host().memory
        } else {
            Bytes::ZERO
        };
        Question {
            ask: claim.ask().clone(),
            class: claim.class(),
            host: Host {
                memory,
                ..claim.host()
            },
            models: if here {
                claim.models().clone()
            } else {
                Models::default()
            },
            wishes: claim.wishes().cloned(),
            carrier: (claim.carrier_on(Advertise::Units), claim.has_slot()),
            stock: claim.stock().filter(|_| here).cloned(),
        }
    }
}

impl CostCache {
    /// Calls `each` with each of these nodes that the pod fits on, and with its costs there. Where
    /// these are not known for this epoch, `source` computes them.
    pub(crate) fn look_up(
        &mut self,
        (uid, claim, stock): (&PodUid, &Claim, StockRules),
        nodes: &[NodeIdx],
        epoch: u64,
        source: &impl Source,
        mut each: impl FnMut(NodeIdx, Candidate),
    ) {
        let costs = costs_of(&mut self.costs, self.prepared.len(), (uid, claim, stock));
        self.questions += 1;
        costs.used = self.questions;
        for &node in nodes {
            if let Some(candidate) = costs.on(node, epoch, (uid, claim), source, &mut self.prepared)
            {
                each(node, candidate);
            }
        }
    }

    /// Computes stale costs again, on at most so many nodes, for the most recent questions first.
    /// True if more are stale.
    pub(crate) fn refresh(&mut self, epoch: u64, mut nodes: usize, source: &impl Source) -> bool {
        loop {
            let (questions, costs) = (self.questions, self.costs.values_mut());
            let stale = costs.filter(|one| !one.is_fresh(epoch) && one.used + RECENT > questions);
            let Some(costs) = stale.max_by_key(|one| one.used) else {
                return false;
            };
            if nodes == 0 {
                return true;
            }
            let from = if costs.refreshed.0 == epoch {
                costs.refreshed.1
            } else {
                0
            };
            let to = costs.nodes.len().min(from + nodes);
            nodes -= to - from;
            costs.refreshed = (epoch, to);
            let (uid, claim) = costs.asker.clone();
            for at in from..to {
                let known = &costs.nodes[at];
                if known.finding != Finding::Unknown && known.stamp.epoch != epoch {
                    let node = NodeIdx(at as u32);
                    costs.on(node, epoch, (&uid, &claim), source, &mut self.prepared);
                }
            }
        }
    }
}

/// The costs of a question. If there are too many questions, drops the one not used for longest.
fn costs_of<'a>(
    all: &'a mut BTreeMap<Question, NodeCosts>,
    nodes: usize,
    (uid, claim, stock): (&PodUid, &Claim, StockRules),
) -> &'a mut NodeCosts {
    let question = Question::of(claim, stock);
    if all.len() >= MAX_QUESTIONS && !all.contains_key(&question) {
        let oldest = all.iter().min_by_key(|(_, costs)| costs.used);
        if let Some(oldest) = oldest.map(|(question, _)| question.clone()) {
            all.remove(&oldest);
        }
    }
    all.entry(question).or_insert_with(|| NodeCosts {
        asker: (uid.clone(), claim.clone()),
        // The exact capacity: growing by steps could take twice the memory.
        nodes: Vec::with_capacity(nodes),
        others: Vec::new(),
        used: 0,
        refreshed: (0, 0),
    })
}

impl NodeCosts {
    /// The stored result for the node, or a new one.
    #[inline]
    fn on(
        &mut self,
        node: NodeIdx,
        epoch: u64,
        claim: (&PodUid, &Claim),
        source: &impl Source,
        prepared: &mut PreparedNodes,
    ) -> Option<Candidate> {
        let version = source.version(node);
        let stamp = Stamp { version, epoch };
        match self.nodes.get(node.0 as usize) {
            Some(known) if known.holds(stamp) => self.candidate(node.0 as usize, known),
            _ => self.work_out(node, stamp, claim, source, prepared),
        }
    }

    #[inline]
    fn candidate(&self, at: usize, known: &CachedCost) -> Option<Candidate> {
        if known.finding == Finding::NoPlace {
            return None;
        }
        let others = self.others.get(at).copied().unwrap_or_default();
        let [second, third, fourth] = others;
        Some(Candidate {
            position: known.position as usize,
            contended: known.finding == Finding::Contended,
            preference: known.preference,
            costs: [known.cost, second, third, fourth],
        })
    }

    /// A function of its own, so that [`NodeCosts::on`] stays small: it is inlined in a loop over
    /// thousands of nodes.
    #[inline(never)]
    fn work_out(
        &mut self,
        node: NodeIdx,
        stamp: Stamp,
        (uid, claim): (&PodUid, &Claim),
        source: &impl Source,
        prepared: &mut PreparedNodes,
    ) -> Option<Candidate> {
        let at = node.0 as usize;
        if self.nodes.len() <= at {
            self.nodes.resize(at + 1, CachedCost::default());
        }
        if prepared.len() <= at {
            prepared.resize(at + 1, None);
        }
        let candidate = if source.may_fit(claim, node) {
            let prepared = &mut prepared[at];
            if prepared.as_ref().is_none_or(|(when, _)| *when != stamp) {
                *prepared = Some((stamp, source.prepare(node)));
            }
            let prepared = prepared.as_ref().map_or(&[][..], |(_, parts)| &parts[..]);
            source.look(uid, claim, node, prepared)
        } else {
            None
        };
        self.keep(at, stamp, candidate.as_ref());
        candidate
    }

    fn keep(&mut self, at: usize, stamp: Stamp, candidate: Option<&Candidate>) {
        let finding = match candidate {
            None => Finding::NoPlace,
            Some(candidate) if candidate.contended => Finding::Contended,
            Some(_) => Finding::Place,
        };
        let [cost, others @ ..] = candidate.map_or([0; MAX_PARTS], |found| found.costs);
        self.nodes[at] = CachedCost {
            stamp,
            cost,
            position: candidate.map_or(0, |found| found.position as u32),
            preference: candidate.map_or_else(Preference::default, |found| found.preference),
            finding,
        };
        if others != OtherCosts::default() && self.others.len() <= at {
            self.others.resize(at + 1, OtherCosts::default());
        }
        if let Some(known) = self.others.get_mut(at) {
            *known = others;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::script::{on_host, uid};

    /// A source that counts how often it is asked, and finds a place or none.
    #[derive(Default)]
    struct Counted {
        asked: Cell<usize>,
        is_full: bool,
    }

    impl Source for Counted {
        fn version(&self, _: NodeIdx) -> u64 {
            7
        }

        fn may_fit(&self, _: &Claim, _: NodeIdx) -> bool {
            true
        }

        fn prepare(&self, _: NodeIdx) -> PreparedParts {
            PreparedParts::default()
        }

        fn look(&self, _: &PodUid, _: &Claim, _: NodeIdx, _: &[Prepared]) -> Option<Candidate> {
            self.asked.set(self.asked.get() + 1);
            (!self.is_full).then(|| Candidate {
                position: 0,
                contended: false,
                preference: Preference::default(),
                costs: [0; MAX_PARTS],
            })
        }
    }

    /// Asks about ten nodes; returns how many the source had to compute.
    fn ask(cache: &mut CostCache, claim: &Claim, epoch: u64) -> usize {
        ask_of(&Counted::default(), cache, claim, epoch)
    }

    fn ask_of(source: &Counted, cache: &mut CostCache, claim: &Claim, epoch: u64) -> usize {
        let (pod, before) = (uid("p"), source.asked.get());
        let nodes: Vec<NodeIdx> = (0..10).map(NodeIdx).collect();
        let question = (&pod, claim, StockRules::Elsewhere);
        cache.look_up(question, &nodes, epoch, source, |_, _| {});
        source.asked.get() - before
    }

    #[test]
    fn a_node_without_a_place_has_none_whatever_a_place_costs() {
        let (mut cache, claim) = (CostCache::default(), on_host(1, 1, 500, &[]));
        let full = Counted {
            is_full: true,
            ..Counted::default()
        };
        let asked = [1, 2, 3].map(|epoch| ask_of(&full, &mut cache, &claim, epoch));
        assert_eq!(asked, [10, 0, 0]);
        cache.refresh(4, 10, &full);
        assert_eq!(full.asked.get(), 10);
        let (mut cache, open) = (CostCache::default(), Counted::default());
        let asked = [1, 2, 2].map(|epoch| ask_of(&open, &mut cache, &claim, epoch));
        assert_eq!(asked, [10, 10, 0], "costs are computed again");
    }

    #[test]
    fn what_was_refreshed_need_not_be_looked_at_again() {
        let (mut cache, source) = (CostCache::default(), Counted::default());
        let (small, large) = (on_host(1, 1, 500, &[]), on_host(2, 1, 500, &[]));
        assert_eq!(
            (ask(&mut cache, &small, 1), ask(&mut cache, &small, 1)),
            (10, 0)
        );
        assert_eq!(ask(&mut cache, &large, 1), 10);
        // The question used last comes first: all of its nodes, then four nodes of the other.
        assert!(cache.refresh(2, 14, &source));
        assert_eq!((source.asked.get(), ask(&mut cache, &large, 2)), (14, 0));
        assert_eq!(ask(&mut cache, &small, 2), 6);
        assert!(!cache.refresh(2, 100, &source), "nothing is stale");
        assert_eq!(source.asked.get(), 14);
        // In a new epoch all of `small` is refreshed, but not a question that nobody asks any more.
        assert!((0..RECENT).all(|_| ask(&mut cache, &small, 2) == 0));
        assert!(!cache.refresh(3, 100, &source));
        assert_eq!(source.asked.get(), 24);
    }

    #[test]
    fn what_the_stock_scheduler_has_looked_at_makes_no_other_question() {
        let any = on_host(1, 1, 500, &[]);
        let of = |models: &[&str], stock| Question::of(&on_host(1, 1, 500, models), stock);
        assert!(of(&["T4"], StockRules::Elsewhere) == Question::of(&any, StockRules::Elsewhere));
        assert!(of(&["T4"], StockRules::Here) != Question::of(&any, StockRules::Here));
    }
}
