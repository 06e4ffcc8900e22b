//! The ledger: every live allocation, and so all free room. The one place that takes and returns
//! capacity.
//!
//! It is rebuilt from the API server's objects and never from disk, and it accepts them as they
//! are. Pods bound by somebody else may exceed a card, which then simply has nothing free. Sublet's
//! own grants are checked before they get here (`sublet-plan`).
//!
//! Nodes live in slots addressed by [`NodeIdx`], so that a scan over thousands of them is a
//! walk over a vector; names are resolved once, at the edge. Beside each slot lies its
//! [`Outline`], which spares such a scan most of the pages.

mod book;
mod outline;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{Allocation, Claim, NodeFacts, NodeName, Part, PodKey, PodUid};

pub use self::book::{Book, Card};
pub use self::outline::Outline;

/// A node's slot in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIdx(pub u32);

/// The firmness of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Sublet granted it and the API server has not confirmed yet.
    Reserved,
    /// The pod is bound.
    Bound,
}

/// One pod's allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The pod.
    pub pod: PodKey,
    /// Its UID.
    pub uid: PodUid,
    /// Node where the pod is.
    pub node: NodeName,
    /// The pod's claim.
    pub claim: Arc<Claim>,
    /// The pod's allocation; `None` if it was bound without saying which cards.
    pub allocation: Option<Allocation>,
    /// The entry's firmness.
    pub standing: Standing,
    /// Has the node's agent handed the devices over? Until then, look-alikes stay away.
    pub assigned: bool,
    /// The pod's priority.
    pub priority: i32,
}

/// A soft hold: the amounts that a pod that was just placed will probably take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// UID of the pod.
    pub uid: PodUid,
    /// Node of the place.
    pub node: NodeIdx,
    /// Positions of the cards, and how much of each; no shares.
    pub cards: Vec<(usize, Part)>,
}

/// Every live allocation of the cluster.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    books: Vec<Book>,
    /// By slot, as the books. Written by [`Ledger::change`] alone.
    outlines: Vec<Outline>,
    /// The same.
    versions: Vec<u64>,
    by_name: BTreeMap<NodeName, NodeIdx>,
    vacant: Vec<NodeIdx>,
    entries: BTreeMap<PodUid, Entry>,
    /// Each changed entry as it was before, since the oldest open checkpoint.
    journal: Vec<(PodUid, Option<Entry>)>,
    open_checkpoints: usize,
}

/// A moment that the ledger's entries can be brought back to.
#[derive(Debug)]
#[must_use = "the ledger notes every change until it is rolled back or kept"]
pub struct Checkpoint(usize);

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// Enters a node, or replaces its facts; its pods are charged again to the cards it has now.
    pub fn set_node(&mut self, facts: NodeFacts) -> NodeIdx {
        let idx = self.slot(&facts.name);
        self.recount(idx, |book| book.facts = Some(facts));
        idx
    }

    /// Forgets a node. Its pods stay entered, for the node may come back.
    pub fn remove_node(&mut self, name: &NodeName) {
        let Some(&idx) = self.by_name.get(name) else {
            return;
        };
        self.recount(idx, |book| book.facts = None);
        self.vacate(idx);
    }

    /// Enters a pod's allocation, in place of an earlier one of the same pod.
    pub fn enter(&mut self, entry: Entry) {
        let before = self.take(&entry.uid);
        self.note(&entry.uid, before.as_ref());
        self.put(entry);
    }

    /// Takes a pod's allocation out and returns it.
    pub fn remove(&mut self, uid: &PodUid) -> Option<Entry> {
        let before = self.take(uid);
        if before.is_some() {
            self.note(uid, before.as_ref());
        }
        before
    }

    /// Notes every change of an entry from now on. Checkpoints are closed in the reverse order,
    /// each by [`Ledger::roll_back`] or [`Ledger::keep`]. Changes of nodes and soft holds are not
    /// noted.
    pub fn checkpoint(&mut self) -> Checkpoint {
        self.open_checkpoints += 1;
        Checkpoint(self.journal.len())
    }

    /// The nodes with an entry that came, went or changed since then.
    #[must_use]
    pub fn changed_since(&self, then: &Checkpoint) -> BTreeSet<NodeIdx> {
        let changes = self.journal[then.0..].iter();
        let entries = changes.flat_map(|(uid, before)| [before.as_ref(), self.entries.get(uid)]);
        let nodes = entries
            .flatten()
            .filter_map(|entry| self.by_name.get(&entry.node));
        nodes.copied().collect()
    }

    /// Brings every entry back to its state at the checkpoint.
    pub fn roll_back(&mut self, then: Checkpoint) {
        for (uid, before) in self.journal.split_off(then.0).into_iter().rev() {
            self.take(&uid);
            if let Some(entry) = before {
                self.put(entry);
            }
        }
        self.keep(then);
    }

    /// Leaves entries as they are now.
    pub fn keep(&mut self, then: Checkpoint) {
        drop(then);
        self.open_checkpoints -= 1;
        if self.open_checkpoints == 0 {
            self.journal.clear();
        }
    }

    fn note(&mut self, uid: &PodUid, before: Option<&Entry>) {
        if self.open_checkpoints > 0 {
            self.journal.push((uid.clone(), before.cloned()));
        }
    }

    fn put(&mut self, entry: Entry) {
        let idx = self.slot(&entry.node);
        self.change(idx, |book, _| {
            book.pods.insert(entry.uid.clone());
            book.charge(&entry);
        });
        self.entries.insert(entry.uid.clone(), entry);
    }

    fn take(&mut self, uid: &PodUid) -> Option<Entry> {
        let entry = self.entries.remove(uid)?;
        let idx = self.by_name[&entry.node];
        self.recount(idx, |book| {
            book.pods.remove(uid);
        });
        self.vacate(idx);
        Some(entry)
    }

    /// Counts a soft hold in.
    pub fn hold(&mut self, hold: &Hold) {
        self.change(hold.node, |book, _| {
            for &(position, part) in &hold.cards {
                if let Some(card) = book.cards.get_mut(position) {
                    card.held = card.held.plus(part);
                    card.holds += 1;
                }
            }
        });
    }

    /// Takes a soft hold off its cards.
    pub fn release(&mut self, hold: &Hold) {
        self.change(hold.node, |book, _| {
            for &(position, part) in &hold.cards {
                if let Some(card) = book.cards.get_mut(position) {
                    card.held = card.held.saturating_sub(part);
                    card.holds = card.holds.saturating_sub(1);
                }
            }
        });
    }

    /// The slot of the node of that name. It looks at every node; the scheduler keeps an index of
    /// its own.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeIdx> {
        self.by_name.get(name).copied()
    }

    /// A node's page; `idx` came from this ledger.
    #[must_use]
    pub fn book(&self, idx: NodeIdx) -> &Book {
        &self.books[idx.0 as usize]
    }

    /// The outline, which a scan looks at before a node's page; `idx` came from this ledger.
    #[must_use]
    pub fn outline(&self, idx: NodeIdx) -> &Outline {
        &self.outlines[idx.0 as usize]
    }

    /// A number that every change of a node's page raises, so that results from the page can be
    /// kept until then; `idx` came from this ledger.
    #[must_use]
    pub fn version(&self, idx: NodeIdx) -> u64 {
        self.versions[idx.0 as usize]
    }

    /// All nodes that are known or have pods, by name.
    pub fn books(&self) -> impl Iterator<Item = (NodeIdx, &Book)> {
        self.by_name.values().map(|&idx| (idx, self.book(idx)))
    }

    /// A pod's entry.
    #[must_use]
    pub fn entry(&self, uid: &PodUid) -> Option<&Entry> {
        self.entries.get(uid)
    }

    /// All entries, by UID.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// A node's page as it would be without some of its pods, for preemption.
    #[must_use]
    pub fn book_without(&self, idx: NodeIdx, gone: &BTreeSet<PodUid>) -> Book {
        let mut book = self.book(idx).clone();
        book.pods.retain(|uid| !gone.contains(uid));
        book.reset();
        for uid in book.pods.clone() {
            book.charge(&self.entries[&uid]);
        }
        book.note_shares();
        book
    }

    /// True if every account is the sum of its entries. Tests and the simulator call this
    /// after each step; it looks at every entry.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        let listed: usize = self.books.iter().map(|book| book.pods.len()).sum();
        listed == self.entries.len() && self.books().all(|(idx, _)| self.is_conserved_at(idx))
    }

    /// The same for one node, which is cheap enough for every step of a debug build.
    #[must_use]
    pub fn is_conserved_at(&self, idx: NodeIdx) -> bool {
        let book = self.book(idx);
        let again = self.book_without(idx, &BTreeSet::new());
        let counted = |card: &Card| {
            let Card {
                capacity,
                used,
                unsure,
                tenants,
                guaranteed,
                whole,
                ..
            } = *card;
            (capacity, used, unsure, tenants, guaranteed, whole)
        };
        book.cards
            .iter()
            .map(counted)
            .eq(again.cards.iter().map(counted))
            && book.unassigned == again.unassigned
            && book.unplaced == again.unplaced
            && book.free == again.free
            && book.neighbours == again.neighbours
            && book.machine == again.machine
            && *self.outline(idx) == Outline::of(book)
            && book
                .shares
                .iter()
                .copied()
                .eq(book.cards.iter().map(Card::share_left))
    }

    fn slot(&mut self, name: &NodeName) -> NodeIdx {
        if let Some(&idx) = self.by_name.get(name) {
            return idx;
        }
        let book = Book::empty(name.clone());
        let idx = if let Some(idx) = self.vacant.pop() {
            self.change(idx, |page, _| *page = book);
            idx
        } else {
            self.books.push(book);
            // Of a page without facts and cards.
            self.outlines.push(Outline::default());
            self.versions.push(0);
            NodeIdx(u32::try_from(self.books.len() - 1).expect("fewer than 2^32 nodes"))
        };
        self.by_name.insert(name.clone(), idx);
        idx
    }

    fn vacate(&mut self, idx: NodeIdx) {
        let book = &self.books[idx.0 as usize];
        if book.facts.is_none() && book.pods.is_empty() {
            self.by_name.remove(&book.name);
            self.vacant.push(idx);
        }
    }

    /// Changes a page and charges its pods anew; soft holds stay on their cards.
    fn recount(&mut self, idx: NodeIdx, change: impl FnOnce(&mut Book)) {
        self.change(idx, |book, entries| {
            change(book);
            let holds = book.cards.iter().map(|card| (card.held, card.holds));
            let holds: Vec<_> = holds.collect();
            book.reset();
            for (card, (held, holds)) in book.cards.iter_mut().zip(holds) {
                (card.held, card.holds) = (held, holds);
            }
            for uid in &book.pods.clone() {
                book.charge(&entries[uid]);
            }
        });
    }

    /// Changes a page: every change goes this way, so that the outline is never an old one.
    fn change(&mut self, idx: NodeIdx, change: impl FnOnce(&mut Book, &BTreeMap<PodUid, Entry>)) {
        let book = &mut self.books[idx.0 as usize];
        change(book, &self.entries);
        book.note_shares();
        self.outlines[idx.0 as usize] = Outline::of(book);
        self.versions[idx.0 as usize] += 1;
    }
}

#[cfg(test)]
mod tests;
