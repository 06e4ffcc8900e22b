//! Costs that are kept: what a question of the same shape found on a node, until the node's
//! page or a learnt table changes.
//!
//! A placement changes one page, so the next question of a shape works out one node anew for
//! every placement since the last; a scan over the rest is a walk over a vector. Nothing here
//! decides: an entry is what `fit` said, no more.

use std::collections::BTreeMap;

use sublet_model::{Ask, Claim, Host, Models, NodeIdx};

use crate::Candidate;
use crate::score::Prepared;

/// Shapes that are kept at once. The openb lists have a few hundred, memory of the machine
/// counted in. A shape costs [`Kept`] for each node: with 5,000 nodes and all of them in use
/// 100 MB, which is why no more are kept.
const MAX_SHAPES: usize = 256;
const _: () = assert!(size_of::<Kept>() <= 80);

/// All of a claim that `fit` looks at, look-alikes aside.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Question {
    ask: Ask,
    host: Host,
    models: Models,
    has_slot: bool,
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

#[derive(Debug, Clone, Default)]
struct Row {
    nodes: Vec<Kept>,
    used: u64,
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

impl Keep {
    pub(crate) fn shelf(&mut self, claim: &Claim) -> Shelf<'_> {
        let question = Question {
            ask: claim.ask(),
            host: claim.host(),
            models: claim.models().clone(),
            has_slot: claim.has_slot(),
        };
        if self.rows.len() >= MAX_SHAPES && !self.rows.contains_key(&question) {
            let oldest = self.rows.iter().min_by_key(|(_, row)| row.used);
            if let Some(oldest) = oldest.map(|(question, _)| question.clone()) {
                self.rows.remove(&oldest);
            }
        }
        self.questions += 1;
        let row = self.rows.entry(question).or_default();
        row.used = self.questions;
        Shelf {
            row,
            prepared: &mut self.prepared,
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
