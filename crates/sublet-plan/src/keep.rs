//! Costs that are kept: what a question of the same shape found on a node, until the node's
//! page or a learnt table changes.
//!
//! A placement changes one page, so the next question of a shape works out one node anew for
//! every placement since the last; a scan over the rest is a walk over a vector. Nothing here
//! decides: an entry is what `fit` said, no more.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{Ask, Bytes, Claim, Class, Host, Models, NodeIdx, PodUid, StockAsk};

use crate::score::Prepared;
use crate::{Candidate, StockRules};

/// Shapes that are kept at once. The openb lists have up to 151, memory of the machine counted
/// in, and 91 without. A shape costs [`Kept`] for each node: with 5,000 nodes and all of them in
/// use 100 MB, which is why no more are kept.
const MAX_SHAPES: usize = 256;
const _: () = assert!(size_of::<Kept>() <= 80);

/// A shape that was not asked in so many questions is not worked out beforehand. By then the
/// rarest of openb's 151 shapes has mostly been there again.
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

/// When something was worked out: versions of the page and of the learnt tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stamp {
    pub(crate) version: u64,
    pub(crate) epoch: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    stamp: Option<Stamp>,
    candidate: Option<Candidate>,
}

#[derive(Debug, Clone)]
struct Row {
    /// Whoever asked first: all that ask the same get the same.
    asker: (PodUid, Claim),
    nodes: Vec<Kept>,
    used: u64,
    /// How far costs were worked out beforehand, for which epoch.
    warmed: (u64, usize),
}

impl Row {
    fn is_warm(&self, epoch: u64) -> bool {
        self.warmed.0 == epoch && self.warmed.1 >= self.nodes.len()
    }
}

/// Kept costs, by shape and node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Keep {
    rows: BTreeMap<Question, Row>,
    /// By node, what the policy's parts worked out whatever is asked.
    prepared: Vec<Option<(Stamp, Vec<Prepared>)>>,
    questions: u64,
}

/// The kept costs of one shape.
pub(crate) struct Shelf<'a> {
    row: &'a mut Row,
    prepared: &'a mut Vec<Option<(Stamp, Vec<Prepared>)>>,
}

/// What works out costs.
pub(crate) trait Look {
    /// The version of a node's page.
    fn version(&self, node: NodeIdx) -> u64;
    /// What the policy's parts need to know of a node, whatever is asked.
    fn prepare(&self, node: NodeIdx) -> Vec<Prepared>;
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
    /// What the stock scheduler has looked at, and no score looks at, makes no difference.
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

impl Keep {
    pub(crate) fn shelf(&mut self, uid: &PodUid, claim: &Claim, stock: StockRules) -> Shelf<'_> {
        let question = Question::of(claim, stock);
        if self.rows.len() >= MAX_SHAPES && !self.rows.contains_key(&question) {
            let oldest = self.rows.iter().min_by_key(|(_, row)| row.used);
            if let Some(oldest) = oldest.map(|(question, _)| question.clone()) {
                self.rows.remove(&oldest);
            }
        }
        self.questions += 1;
        let row = self.rows.entry(question).or_insert_with(|| Row {
            asker: (uid.clone(), claim.clone()),
            // As many as there are: growing by steps would take up to twice the room.
            nodes: Vec::with_capacity(self.prepared.len()),
            used: 0,
            warmed: (0, 0),
        });
        row.used = self.questions;
        Shelf {
            row,
            prepared: &mut self.prepared,
        }
    }

    /// Looks at so many nodes again where a table has changed since the last look, for the
    /// shapes that were asked last before others; true if there are more.
    pub(crate) fn warm(&mut self, epoch: u64, mut looks: usize, by: &impl Look) -> bool {
        loop {
            let (questions, rows) = (self.questions, self.rows.values_mut());
            let cold = rows.filter(|row| !row.is_warm(epoch) && row.used + RECENT > questions);
            let Some(row) = cold.max_by_key(|row| row.used) else {
                return false;
            };
            if looks == 0 {
                return true;
            }
            let from = if row.warmed.0 == epoch {
                row.warmed.1
            } else {
                0
            };
            let to = row.nodes.len().min(from + looks);
            looks -= to - from;
            row.warmed = (epoch, to);
            let (uid, claim) = row.asker.clone();
            let mut shelf = Shelf {
                row,
                prepared: &mut self.prepared,
            };
            for at in from..to {
                let stale = |stamp: Stamp| stamp.epoch != epoch;
                if shelf.row.nodes[at].stamp.is_some_and(stale) {
                    let node = NodeIdx(at as u32);
                    let version = by.version(node);
                    let look = |prepared: &[Prepared]| by.look(&uid, &claim, node, prepared);
                    shelf.get(node, Stamp { version, epoch }, || by.prepare(node), look);
                }
            }
        }
    }
}

impl Shelf<'_> {
    /// What was found on the node, or what `look` finds now.
    pub(crate) fn get(
        &mut self,
        node: NodeIdx,
        stamp: Stamp,
        prepare: impl FnOnce() -> Vec<Prepared>,
        look: impl FnOnce(&[Prepared]) -> Option<Candidate>,
    ) -> Option<Candidate> {
        let at = node.0 as usize;
        if self.row.nodes.len() <= at {
            self.row.nodes.resize(at + 1, Kept::default());
        }
        let kept = &mut self.row.nodes[at];
        if kept.stamp != Some(stamp) {
            if self.prepared.len() <= at {
                self.prepared.resize(at + 1, None);
            }
            let prepared = &mut self.prepared[at];
            if prepared.as_ref().is_none_or(|(when, _)| *when != stamp) {
                *prepared = Some((stamp, prepare()));
            }
            let prepared = prepared.as_ref().map_or(&[][..], |(_, parts)| parts);
            *kept = Kept {
                stamp: Some(stamp),
                candidate: look(prepared),
            };
        }
        kept.candidate
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::script::{on_host, uid};

    /// Counts looks, and finds nothing.
    #[derive(Default)]
    struct Counted(Cell<usize>);

    impl Look for Counted {
        fn version(&self, _: NodeIdx) -> u64 {
            7
        }

        fn prepare(&self, _: NodeIdx) -> Vec<Prepared> {
            Vec::new()
        }

        fn look(&self, _: &PodUid, _: &Claim, _: NodeIdx, _: &[Prepared]) -> Option<Candidate> {
            self.0.set(self.0.get() + 1);
            None
        }
    }

    /// Asks about ten nodes; how many had to be looked at?
    fn ask(keep: &mut Keep, claim: &Claim, epoch: u64) -> usize {
        let (pod, by) = (uid("p"), Counted::default());
        let mut shelf = keep.shelf(&pod, claim, StockRules::Elsewhere);
        for node in (0..10).map(NodeIdx) {
            let stamp = Stamp { version: 7, epoch };
            let look = |prepared: &[Prepared]| by.look(&pod, claim, node, prepared);
            shelf.get(node, stamp, || by.prepare(node), look);
        }
        by.0.get()
    }

    #[test]
    fn what_was_warmed_need_not_be_looked_at_again() {
        let (mut keep, by) = (Keep::default(), Counted::default());
        let (small, large) = (on_host(1, 1, 500, &[]), on_host(2, 1, 500, &[]));
        assert_eq!(
            (ask(&mut keep, &small, 1), ask(&mut keep, &small, 1)),
            (10, 0)
        );
        assert_eq!(ask(&mut keep, &large, 1), 10);
        // The one asked last comes first: all of it, and four nodes of the other.
        assert!(keep.warm(2, 14, &by));
        assert_eq!((by.0.get(), ask(&mut keep, &large, 2)), (14, 0));
        assert_eq!(ask(&mut keep, &small, 2), 6);
        assert!(!keep.warm(2, 100, &by), "nothing is stale");
        assert_eq!(by.0.get(), 14);
        // In a new epoch all of it, but no shape that nobody asks about any more.
        assert!((0..RECENT).all(|_| ask(&mut keep, &small, 2) == 0));
        assert!(!keep.warm(3, 100, &by));
        assert_eq!(by.0.get(), 24);
    }

    #[test]
    fn what_the_stock_scheduler_has_looked_at_makes_no_other_shape() {
        let any = on_host(1, 1, 500, &[]);
        let of = |models: &[&str], stock| Question::of(&on_host(1, 1, 500, models), stock);
        assert!(of(&["T4"], StockRules::Elsewhere) == Question::of(&any, StockRules::Elsewhere));
        assert!(of(&["T4"], StockRules::Here) != Question::of(&any, StockRules::Here));
    }
}
