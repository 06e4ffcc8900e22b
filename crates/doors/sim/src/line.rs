//! The pods that wait, and among them those worth a try.
//!
//! A try costs a search, and thousands may wait. Pods of one kind are alike, so if one was refused,
//! the others need not ask. A kind that was refused everywhere can find room only on a node that
//! something has left since. Nothing is placed here.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The place of a pod in the line: by priority, then by arrival.
type Turn = (Reverse<i32>, usize);

/// Pods that wait, in the order in which they are tried.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// Waiting pods, by kind.
    waiting: Vec<BTreeSet<Turn>>,
    /// Kinds that have come since the last moment.
    fresh: BTreeSet<usize>,
    /// Kinds that wait since all nodes refused them.
    refused: BTreeSet<usize>,
    /// The first of each kind that is worth a try at this moment.
    heads: BTreeSet<(Turn, usize)>,
}

/// The next pod to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    turn: Turn,
    kind: usize,
    /// Its number in order of arrival.
    pub(crate) number: usize,
    /// Did all nodes refuse its kind at an earlier moment? Then only those have room that
    /// something has left at this one.
    pub(crate) was_refused: bool,
}

impl Line {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.iter().all(BTreeSet::is_empty)
    }

    /// A pod joins.
    pub(crate) fn join(&mut self, kind: usize, priority: i32, number: usize) {
        if self.waiting.len() <= kind {
            self.waiting.resize_with(kind + 1, BTreeSet::new);
        }
        self.waiting[kind].insert((Reverse(priority), number));
        if !self.refused.contains(&kind) {
            self.fresh.insert(kind);
        }
    }

    /// All that come at a moment have joined; `freed`: something has left, so that refused pods may
    /// try again.
    pub(crate) fn open(&mut self, freed: bool) {
        let fresh = std::mem::take(&mut self.fresh);
        let again = self.refused.iter().filter(|_| freed);
        for &kind in fresh.iter().chain(again) {
            let first = self.waiting[kind].first();
            self.heads.extend(first.map(|turn| (*turn, kind)));
        }
    }

    /// The next pod to try; `None` if no pod is worth a try.
    pub(crate) fn first(&self) -> Option<Head> {
        let &(turn, kind) = self.heads.first()?;
        Some(Head {
            turn,
            kind,
            number: turn.1,
            was_refused: self.refused.contains(&kind),
        })
    }

    /// Enters the result of the try.
    pub(crate) fn tried(&mut self, head: Head, placed: bool) {
        self.heads.remove(&(head.turn, head.kind));
        if !placed {
            self.refused.insert(head.kind);
            return;
        }
        let waiting = &mut self.waiting[head.kind];
        waiting.remove(&head.turn);
        match waiting.first() {
            Some(next) => {
                self.heads.insert((*next, head.kind));
            }
            None => {
                self.refused.remove(&head.kind);
            }
        }
    }
}
