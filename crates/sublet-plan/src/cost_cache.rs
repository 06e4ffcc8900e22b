//! What the same question found on a node before. It holds until the node's page or a table of the
//! policy changes.
//!
//! A placement changes one page. So the next question of that kind works out one node anew and
//! reads the rest from a vector. Nothing is decided here: a cost is what `fit` said.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{Ask, Bytes, Claim, Class, Host, Models, NodeIdx, PodUid, StockAsk};

use crate::policy::MAX_PARTS;
use crate::score::{Cost, Prepared, PreparedParts};
use crate::{Candidate, CardLoad, StockRules};

/// Questions that are kept at once. The openb lists have up to 151, memory of the machine counted
/// in, and 91 without. A question costs a [`CachedCost`] for each node: with 5,000 nodes and all of
/// them in use 40 MB, which is why no more are kept. A walk over the nodes reads all of them, so two
/// lie on one cache line.
const MAX_QUESTIONS: usize = 256;
const _: () = assert!(size_of::<CachedCost>() == 32);

/// A question that was not among the last so many is not worked out beforehand. The rarest of
/// openb's 151 shapes has mostly come again by then.
const RECENT: u64 = 4096;

/// All of a claim that `fit` looks at, look-alikes aside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Question {
    ask: Ask,
    class: Class,
    host: Host,
    models: Models,
    has_slot: bool,
    stock: Option<Arc<StockAsk>>,
}

/// Costs to the policies of a mix after the first.
type OtherCosts = [Cost; MAX_PARTS - 1];

/// When something was worked out: versions of the page and of the policy's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Stamp {
    version: u64,
    epoch: u64,
}

/// What a question found on a node, to the policy or to the first one of a mix.
#[derive(Debug, Clone, Copy, Default)]
struct CachedCost {
    stamp: Stamp,
    cost: Cost,
    position: u32,
    load: CardLoad,
    finding: Finding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Finding {
    /// Nobody has looked.
    #[default]
    Unknown,
    NoPlace,
    Place,
    /// [`Candidate::contended`].
    Contended,
}

/// What a question found, by node.
#[derive(Debug, Clone)]
struct NodeCosts {
    /// The pod that asked first. All that ask the same get the same costs.
    asker: (PodUid, Claim),
    nodes: Vec<CachedCost>,
    /// What the nodes cost to the other policies of a mix; empty where there are none.
    others: Vec<OtherCosts>,
    used: u64,
    /// How far costs were worked out beforehand, for which epoch.
    refreshed: (u64, usize),
}

impl NodeCosts {
    fn is_fresh(&self, epoch: u64) -> bool {
        self.refreshed.0 == epoch && self.refreshed.1 >= self.nodes.len()
    }
}

/// By node, what the policy's parts worked out whatever is asked.
type PreparedNodes = Vec<Option<(Stamp, PreparedParts)>>;

/// NodeCosts, by question and node.
#[derive(Debug, Clone, Default)]
pub(crate) struct CostCache {
    costs: BTreeMap<Question, NodeCosts>,
    prepared: PreparedNodes,
    questions: u64,
}

/// What works out costs.
pub(crate) trait Source {
    /// The version of a node's page.
    fn version(&self, node: NodeIdx) -> u64;
    /// False where it certainly has no place for the claim.
    fn may_fit(&self, claim: &Claim, node: NodeIdx) -> bool;
    /// What the policy's parts need to know of a node, whatever is asked.
    fn prepare(&self, node: NodeIdx) -> PreparedParts;
    /// What a question finds on a node.
    fn look(
        &self,
        uid: &PodUid,
        claim: &Claim,
        node: NodeIdx,
        prepared: &[Prepared],
    ) -> Option<Candidate>;
}

impl Question {
    /// What only the stock scheduler looks at is left out: it changes no cost.
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
            has_slot: claim.has_slot(),
            stock: claim.stock().filter(|_| here).cloned(),
        }
    }
}

impl CostCache {
    /// Tells `each` of these nodes on which the pod fits what it costs there, worked out by
    /// `source` where that is not known for this epoch.
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

    /// Works out stale costs again, on so many nodes at most, for the most recent questions first.
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

/// The costs of a question; the one asked longest ago goes where there are too many.
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
        // As many as there are: growing by steps would take up to twice the room.
        nodes: Vec::with_capacity(nodes),
        others: Vec::new(),
        used: 0,
        refreshed: (0, 0),
    })
}

impl NodeCosts {
    /// What was found on the node, or what is found now.
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
            Some(known) if known.stamp == stamp && known.finding != Finding::Unknown => {
                self.candidate(node.0 as usize, known)
            }
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
            load: known.load,
            costs: [known.cost, second, third, fourth],
        })
    }

    /// Apart from [`NodeCosts::on`], which walks over thousands of nodes for each pod.
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
            load: candidate.map_or_else(CardLoad::default, |found| found.load),
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

    /// A source that counts how often it is asked, and finds no place.
    #[derive(Default)]
    struct Counted(Cell<usize>);

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
            self.0.set(self.0.get() + 1);
            None
        }
    }

    /// Asks about ten nodes; how many had to be looked at?
    fn ask(cache: &mut CostCache, claim: &Claim, epoch: u64) -> usize {
        let (pod, source) = (uid("p"), Counted::default());
        let nodes: Vec<NodeIdx> = (0..10).map(NodeIdx).collect();
        let question = (&pod, claim, StockRules::Elsewhere);
        cache.look_up(question, &nodes, epoch, &source, |_, _| {});
        source.0.get()
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
        // The one asked last comes first: all of it, and four nodes of the other.
        assert!(cache.refresh(2, 14, &source));
        assert_eq!((source.0.get(), ask(&mut cache, &large, 2)), (14, 0));
        assert_eq!(ask(&mut cache, &small, 2), 6);
        assert!(!cache.refresh(2, 100, &source), "nothing is stale");
        assert_eq!(source.0.get(), 14);
        // In a new epoch all of it, but no question that nobody asks any more.
        assert!((0..RECENT).all(|_| ask(&mut cache, &small, 2) == 0));
        assert!(!cache.refresh(3, 100, &source));
        assert_eq!(source.0.get(), 24);
    }

    #[test]
    fn what_the_stock_scheduler_has_looked_at_makes_no_other_question() {
        let any = on_host(1, 1, 500, &[]);
        let of = |models: &[&str], stock| Question::of(&on_host(1, 1, 500, models), stock);
        assert!(of(&["T4"], StockRules::Elsewhere) == Question::of(&any, StockRules::Elsewhere));
        assert!(of(&["T4"], StockRules::Here) != Question::of(&any, StockRules::Here));
    }
}
