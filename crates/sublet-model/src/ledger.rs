//! The ledger: every live allocation, and so what is free. The one place that takes and
//! returns capacity.
//!
//! It is rebuilt from what the API server says and never from disk, and it accepts what it
//! is told: pods bound by somebody else may exceed a card, which then simply has nothing
//! free. What Sublet itself grants is checked before it gets here (`sublet-plan`).
//!
//! Nodes live in slots addressed by [`NodeIdx`], so that a scan over thousands of them is a
//! walk over a vector; names are resolved once, at the edge. Beside each slot lies its
//! [`Outline`], which spares such a scan most of the pages.

mod charge;
mod outline;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{
    Allocation, Charge, Claim, Count, Host, MachineUse, MiB, Milli, NodeFacts, NodeName, PodKey,
    PodUid,
};

use self::charge::{charge, note_shares, reset};
pub use self::outline::Outline;

/// A node's slot in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIdx(pub u32);

/// One card's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Card {
    /// What the card has.
    pub capacity: MiB,
    /// What is taken from it.
    pub used: MiB,
    /// What soft holds would take: it orders choices and refuses nothing.
    pub held: MiB,
    /// Pods on the card.
    pub tenants: u32,
    /// How many of them have the card for themselves: at most one, unless somebody else
    /// bound them.
    pub whole: u32,
    /// Soft holds on the card.
    pub holds: u32,
    /// May new work be put on it?
    pub healthy: bool,
}

impl Card {
    /// Memory that a new tenant can have.
    #[must_use]
    pub fn free(&self) -> MiB {
        if self.healthy && self.whole == 0 {
            self.capacity.saturating_sub(self.used)
        } else {
            MiB::ZERO
        }
    }

    /// Can it be handed out as a whole?
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.healthy && self.tenants == 0
    }

    fn share_left(&self) -> Milli {
        let room = self.free().saturating_sub(self.held);
        if room.is_zero() {
            return Milli::ZERO;
        }
        Milli::share(room, self.capacity)
    }

    fn take(&mut self, charge: &Charge) {
        self.tenants += 1;
        self.whole += u32::from(charge.whole);
        self.used = self.used.plus(if charge.whole {
            self.capacity
        } else {
            charge.memory
        });
    }
}

/// How firm an entry is.
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
    /// Where it is.
    pub node: NodeName,
    /// What it asked.
    pub claim: Arc<Claim>,
    /// What it got; `None` where a pod was bound without saying which cards.
    pub allocation: Option<Allocation>,
    /// How firm it is.
    pub standing: Standing,
    /// Has the node's agent handed the devices over? Until then, look-alikes stay away.
    pub assigned: bool,
    /// The pod's priority.
    pub priority: i32,
}

/// A soft hold: what a pod that was just placed will probably take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// For whom.
    pub uid: PodUid,
    /// Where.
    pub node: NodeIdx,
    /// Positions of the cards, and the memory on each.
    pub cards: Vec<(usize, MiB)>,
}

/// One node's page.
#[derive(Debug, Clone)]
pub struct Book {
    name: NodeName,
    facts: Option<NodeFacts>,
    cards: Vec<Card>,
    pods: BTreeSet<PodUid>,
    unassigned: Vec<PodUid>,
    unplaced: Count,
    free: MiB,
    capacity: MiB,
    machine: MachineUse,
    /// By card, as the cards: what scores look at.
    shares: Vec<Milli>,
}

impl Book {
    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// What the node says of itself; `None` where pods are bound to a node nobody knows (yet).
    #[must_use]
    pub fn facts(&self) -> Option<&NodeFacts> {
        self.facts.as_ref()
    }

    /// The node's cards, in the order of [`crate::Inventory::gpus`].
    #[must_use]
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    /// The pods with an entry here.
    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.pods.iter()
    }

    /// The pods whose devices the agent has not handed over yet.
    #[must_use]
    pub fn unassigned(&self) -> &[PodUid] {
        &self.unassigned
    }

    /// Whole cards in use by pods that do not say which.
    #[must_use]
    pub fn unplaced(&self) -> Count {
        self.unplaced
    }

    /// Free memory of all cards together.
    #[must_use]
    pub fn free(&self) -> MiB {
        self.free
    }

    /// Memory of all cards together.
    #[must_use]
    pub fn capacity(&self) -> MiB {
        self.capacity
    }

    /// CPU and memory of the machine that no pod has asked; nothing where nobody knows them.
    #[must_use]
    pub fn host_left(&self) -> Host {
        let whole = self.facts.as_ref().map_or(Host::ZERO, |facts| facts.host);
        whole.saturating_sub(self.machine.host)
    }

    /// What the pods here ask of the machine.
    #[must_use]
    pub fn machine(&self) -> &MachineUse {
        &self.machine
    }

    /// The free share of each card, soft holds counted in; rounded down, so that no score
    /// counts on room that is not there. In the order of [`Book::cards`].
    #[must_use]
    pub fn shares(&self) -> &[Milli] {
        &self.shares
    }
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
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// Enters a node, or replaces what is known of it; its pods are charged again to the
    /// cards it has now.
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
        self.remove(&entry.uid);
        let idx = self.slot(&entry.node);
        self.change(idx, |book, _| {
            book.pods.insert(entry.uid.clone());
            charge(book, &entry);
        });
        self.entries.insert(entry.uid.clone(), entry);
    }

    /// Takes a pod's allocation out and returns it.
    pub fn remove(&mut self, uid: &PodUid) -> Option<Entry> {
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
            for &(position, memory) in &hold.cards {
                if let Some(card) = book.cards.get_mut(position) {
                    card.held = card.held.plus(memory);
                    card.holds += 1;
                }
            }
        });
    }

    /// Counts a soft hold out. A card that went in between took its holds along: harmless,
    /// since they only order choices.
    pub fn release(&mut self, hold: &Hold) {
        self.change(hold.node, |book, _| {
            for &(position, memory) in &hold.cards {
                if let Some(card) = book.cards.get_mut(position) {
                    card.held = card.held.saturating_sub(memory);
                    card.holds = card.holds.saturating_sub(1);
                }
            }
        });
    }

    /// A node's slot. Scanning by name is for people's speed; the scheduler keeps an index.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<NodeIdx> {
        self.by_name.get(name).copied()
    }

    /// A node's page; `idx` came from this ledger.
    #[must_use]
    pub fn book(&self, idx: NodeIdx) -> &Book {
        &self.books[idx.0 as usize]
    }

    /// What a scan looks at before a node's page; `idx` came from this ledger.
    #[must_use]
    pub fn outline(&self, idx: NodeIdx) -> &Outline {
        &self.outlines[idx.0 as usize]
    }

    /// A number that every change of a node's page raises, so that what was worked out from
    /// the page can be kept until then; `idx` came from this ledger.
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

    /// A node's page as it would be without some of its pods: what preemption asks.
    #[must_use]
    pub fn book_without(&self, idx: NodeIdx, gone: &BTreeSet<PodUid>) -> Book {
        let mut book = self.book(idx).clone();
        book.pods.retain(|uid| !gone.contains(uid));
        reset(&mut book);
        for uid in book.pods.clone() {
            charge(&mut book, &self.entries[&uid]);
        }
        note_shares(&mut book);
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
        let counted = |card: &Card| (card.capacity, card.used, card.tenants, card.whole);
        book.cards
            .iter()
            .map(counted)
            .eq(again.cards.iter().map(counted))
            && book.unassigned == again.unassigned
            && book.unplaced == again.unplaced
            && book.free == again.free
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
        let book = Book {
            name: name.clone(),
            facts: None,
            cards: Vec::new(),
            pods: BTreeSet::new(),
            unassigned: Vec::new(),
            unplaced: Count::ZERO,
            free: MiB::ZERO,
            capacity: MiB::ZERO,
            machine: MachineUse::default(),
            shares: Vec::new(),
        };
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
            reset(book);
            for (card, (held, holds)) in book.cards.iter_mut().zip(holds) {
                (card.held, card.holds) = (held, holds);
            }
            for uid in &book.pods.clone() {
                charge(book, &entries[uid]);
            }
        });
    }

    /// Changes a page: every change goes this way, so that the outline is never an old one.
    fn change(&mut self, idx: NodeIdx, change: impl FnOnce(&mut Book, &BTreeMap<PodUid, Entry>)) {
        let book = &mut self.books[idx.0 as usize];
        change(book, &self.entries);
        note_shares(book);
        self.outlines[idx.0 as usize] = Outline::of(book);
        self.versions[idx.0 as usize] += 1;
    }
}

#[cfg(test)]
mod tests;
