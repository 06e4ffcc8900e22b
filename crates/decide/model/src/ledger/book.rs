//! One node's page of the ledger, and its cards' accounts: the cost of a pod to them.
//!
//! A page is changed by the ledger alone; everybody else reads it, or asks for a copy with
//! one pod more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Entry;
use crate::tags::Neighbour;
use crate::{
    Ask, CardTags, Class, Count, Host, Inventory, KeptFree, MachineUse, MiB, Milli, NodeFacts,
    NodeName, Part, PodUid, TagConflict, charges_of,
};

/// One card's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Card {
    /// The card's size.
    pub capacity: Part,
    /// The amount that is taken from it.
    pub used: Part,
    /// Further amount that may be in use by pods that do not say which card they have: each of them
    /// is counted here on every card that it may be on.
    pub unsure: Part,
    /// The amount that soft holds would take: it orders choices and refuses nothing.
    pub held: Part,
    /// Pods on the card.
    pub tenants: u32,
    /// Number of tenants of the class [`Class::Guaranteed`], including those that ask for no
    /// compute time.
    pub guaranteed: u32,
    /// Number of tenants that have the card for themselves: at most one, unless somebody else bound
    /// them.
    pub whole: u32,
    /// Soft holds on the card.
    pub holds: u32,
    /// May new work be put on it?
    pub healthy: bool,
}

impl Card {
    /// The room for a new tenant: none on a card on which somebody else put too much.
    #[must_use]
    pub fn free(&self) -> Part {
        self.room().unwrap_or(Part::ZERO)
    }

    /// The same; `None` where the card takes no tenant at all.
    fn room(&self) -> Option<Part> {
        let takes = self.healthy && self.whole == 0 && self.used.fits_in(self.capacity);
        takes.then(|| self.capacity.saturating_sub(self.used.plus(self.unsure)))
    }

    /// The room left for others if a tenant took so much; `None` if it cannot have it.
    ///
    /// A guaranteed tenant that asks for all of the compute time is the only one of its class.
    #[must_use]
    pub fn left_beside(&self, asked: Part, class: Class) -> Option<Part> {
        let left = self.room()?.checked_sub(asked.on(self.capacity.memory))?;
        self.can_promise(asked.compute, class).then_some(left)
    }

    /// Compute time that is promised to nobody, whether the card is healthy or not.
    #[must_use]
    pub fn unpromised(&self) -> Milli {
        let promised = self.used.plus(self.unsure);
        self.capacity.saturating_sub(promised).compute
    }

    /// Can a tenant of that class be promised so much compute time, beside those that are here?
    #[must_use]
    pub fn can_promise(&self, compute: Milli, class: Class) -> bool {
        let company = self.guaranteed > 0 || !self.unsure.is_zero();
        let alone = compute == Milli::WHOLE && company;
        let refused = self.guaranteed == 1 && self.used.compute == Milli::WHOLE;
        let is_admitted = class == Class::Opportunistic || !(alone || refused);
        is_admitted && compute <= self.unpromised()
    }

    /// Can it be handed out as a whole?
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.healthy && self.tenants == 0 && self.unsure.is_zero()
    }

    pub(super) fn share_left(&self) -> Milli {
        let room = self.free().saturating_sub(self.held);
        room.share_left_of(self.capacity.memory)
    }

    /// One pod more, which has so much of the card.
    fn add(&mut self, part: Part, class: Class) {
        self.tenants += 1;
        self.guaranteed += u32::from(class == Class::Guaranteed);
        self.used = self.used.plus(part.on(self.capacity.memory));
    }

    /// One pod more, which has all of the card.
    fn add_whole(&mut self) {
        self.whole += 1;
        self.add(self.capacity, Class::Guaranteed);
    }
}

/// One node's page.
#[derive(Debug, Clone)]
pub struct Book {
    pub(super) name: NodeName,
    pub(super) facts: Option<NodeFacts>,
    pub(super) cards: Vec<Card>,
    pub(super) pods: BTreeSet<PodUid>,
    pub(super) unassigned: Vec<PodUid>,
    pub(super) unplaced: Count,
    pub(super) free: MiB,
    pub(super) capacity: MiB,
    pub(super) machine: MachineUse,
    /// By card, in the same order: the shares that scores look at.
    pub(super) shares: Vec<Milli>,
    /// The tags of pods here.
    pub(super) neighbours: Neighbours,
}

impl Book {
    /// The page of a node without known facts.
    pub(super) fn empty(name: NodeName) -> Book {
        Book {
            name,
            facts: None,
            cards: Vec::new(),
            pods: BTreeSet::new(),
            unassigned: Vec::new(),
            unplaced: Count::ZERO,
            free: MiB::ZERO,
            capacity: MiB::ZERO,
            machine: MachineUse::default(),
            shares: Vec::new(),
            neighbours: Neighbours::new(),
        }
    }

    /// The page as it would be with that pod on it too, for preemption.
    #[must_use]
    pub fn with(&self, entry: &Entry) -> Book {
        let mut book = self.clone();
        book.pods.insert(entry.uid.clone());
        book.charge(entry);
        book.note_shares();
        book
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &NodeName {
        &self.name
    }

    /// The node's facts about itself; `None` for a node that nobody knows (yet), with pods bound to
    /// it.
    #[must_use]
    pub fn facts(&self) -> Option<&NodeFacts> {
        self.facts.as_ref()
    }

    /// The node's cards, in the order of [`Inventory::gpus`].
    #[must_use]
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    /// The pods with an entry here.
    pub fn pods(&self) -> impl Iterator<Item = &PodUid> {
        self.pods.iter()
    }

    /// The pods that wait for the agent to hand over their devices.
    #[must_use]
    pub fn unassigned(&self) -> &[PodUid] {
        &self.unassigned
    }

    /// Whole cards in use by pods that do not say which, where kubelet itself keeps them apart:
    /// without our agent. No part of any card is given out meanwhile.
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

    /// The requests of the pods here to the machine.
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

    /// Does any pod here have tags?
    #[must_use]
    pub fn has_tags(&self) -> bool {
        !self.neighbours.is_empty()
    }

    /// May a pod with these tags go on the card at `position`, beside the tags of those there?
    #[must_use]
    pub fn suits(&self, tags: &CardTags, position: usize) -> bool {
        self.tag_conflict(tags, position).is_none()
    }

    /// The tag that keeps a pod with these tags away from the card at `position`.
    #[must_use]
    pub fn tag_conflict(&self, tags: &CardTags, position: usize) -> Option<TagConflict> {
        let here = tags.conflict(&self.cards[position], self.neighbours_at(position));
        here.or_else(|| {
            let elsewhere = self.is_called_elsewhere(tags, position);
            let name = tags.virtual_gpu.clone().filter(|_| elsewhere);
            name.map(TagConflict::VirtualGpu)
        })
    }

    /// Is the pod's virtual GPU another card than the one at `position`?
    fn is_called_elsewhere(&self, tags: &CardTags, position: usize) -> bool {
        let of_same = |one: &Neighbour| one.tags.virtual_gpu == tags.virtual_gpu;
        let mut others = self.neighbours.iter().filter(|(at, _)| **at != position);
        tags.virtual_gpu.is_some() && others.any(|(_, there)| there.iter().any(of_same))
    }

    /// Is a pod of the same affinity, or of the same virtual GPU, on the card at `position`? False
    /// for pods without one.
    #[must_use]
    pub fn has_friend(&self, tags: &CardTags, position: usize) -> bool {
        let same =
            |mine: &Option<Arc<str>>, other: &Option<Arc<str>>| mine.is_some() && mine == other;
        self.neighbours_at(position).iter().any(|one| {
            one.certain
                && (same(&tags.affinity, &one.tags.affinity)
                    || same(&tags.virtual_gpu, &one.tags.virtual_gpu))
        })
    }

    fn neighbours_at(&self, position: usize) -> &[Neighbour] {
        self.neighbours.get(&position).map_or(&[], Vec::as_slice)
    }

    /// Empties the page's accounts, keeping its facts and its list of pods.
    pub(super) fn reset(&mut self) {
        let none = Inventory::default();
        let inventory = self.facts.as_ref().map_or(&none, |facts| &facts.inventory);
        self.cards = inventory
            .gpus()
            .iter()
            .map(|gpu| Card {
                capacity: Part::whole(gpu.memory),
                healthy: gpu.health.is_healthy(),
                ..Card::default()
            })
            .collect();
        self.neighbours.clear();
        self.unassigned.clear();
        self.unplaced = Count::ZERO;
        self.machine = MachineUse::default();
        self.free = self.memory_free();
        self.capacity = inventory.memory();
    }

    pub(super) fn note_shares(&mut self) {
        self.shares.clear();
        self.shares.extend(self.cards.iter().map(Card::share_left));
    }

    /// Charges one pod to the page.
    pub(super) fn charge(&mut self, entry: &Entry) {
        self.machine.charge(&entry.claim);
        if !entry.assigned {
            // Kept in UID order, so that a recount gives the same list.
            let at = self.unassigned.partition_point(|uid| *uid < entry.uid);
            self.unassigned.insert(at, entry.uid.clone());
        }
        let Some(facts) = &self.facts else { return };
        match (&entry.allocation, entry.claim.ask()) {
            (Some(allocation), _) => {
                for charge in charges_of(&entry.claim, allocation) {
                    // A card that is no longer on the node cannot be charged.
                    if let Some(position) = facts.inventory.position(&charge.card) {
                        let card = &mut self.cards[position];
                        if charge.whole {
                            card.add_whole();
                        } else {
                            card.add(charge.part, entry.claim.class());
                        }
                        note_tags(&mut self.neighbours, entry, position, true);
                    }
                }
            }
            (None, ask) => self.charge_somewhere(entry, ask),
        }
        self.free = self.memory_free();
    }

    fn memory_free(&self) -> MiB {
        self.cards.iter().map(|card| card.free().memory).sum()
    }

    /// Charges a pod that does not say which cards it has: in full, on each card that it may have.
    fn charge_somewhere(&mut self, entry: &Entry, ask: &Ask) {
        let Some(facts) = &self.facts else { return };
        let known = facts.handed_to(&entry.uid);
        match (ask, facts.kept_free_for(&entry.uid, ask)) {
            (Ask::Nothing, _) => {}
            (_, Some(kept)) => {
                for at in 0..self.cards.len() {
                    let card = &mut self.cards[at];
                    card.unsure = card.unsure.plus(match kept {
                        KeptFree::Part(part) => part.on(card.capacity.memory),
                        KeptFree::All => card.capacity,
                    });
                    note_tags(&mut self.neighbours, entry, at, false);
                }
            }
            (Ask::Parts(parts), None) => {
                // The node has no more cards than the pod asks, or the agent knows them, so the
                // cards are certain. Which part is on which card is not; each card is charged the
                // largest.
                let all = (0..self.cards.len()).collect();
                let at = if known.is_empty() { all } else { known };
                for at in at {
                    self.cards[at].add(parts.largest(), entry.claim.class());
                    note_tags(&mut self.neighbours, entry, at, true);
                }
            }
            (Ask::WholeCards(count), None) if known.is_empty() => {
                self.unplaced = self.unplaced.plus(*count);
            }
            (Ask::WholeCards(_), None) => {
                for at in known {
                    self.cards[at].add_whole();
                }
            }
        }
    }
}

/// Pods with tags, by the position of the card.
type Neighbours = BTreeMap<usize, Vec<Neighbour>>;

/// Notes the tags of a pod on a card.
fn note_tags(neighbours: &mut Neighbours, entry: &Entry, position: usize, certain: bool) {
    let tags = entry.claim.tags();
    if !tags.are_none() {
        let tags = tags.clone();
        let one = Neighbour { tags, certain };
        let there = neighbours.entry(position).or_default();
        // Sorted, so that a recount gives the same list.
        there.insert(there.partition_point(|other| *other < one), one);
    }
}
