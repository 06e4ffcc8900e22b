//! Scores: they make one place better than another. Each policy has one file, and one line in
//! [`ALL`].
//!
//! A score is the cost of taking a place that fits; lower is better. It depends on the node's page,
//! on the request, and on tables that the policy computes from time to time from the pods that came
//! ([`Score::rework`]). So it can be kept until one of these changes, and a placement makes the
//! costs of only one node stale. All policies but the two of memory compute in thousandths of a
//! card, so that cards of different sizes can be compared.

mod best_fit;
mod dot_product;
mod fragment;
mod gpu_clustering;
mod gpu_packing;
mod pack;
mod random;
mod tiling;
#[cfg(test)]
mod toy;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use sublet_model::{Ask, Book, Count, Host, Ledger, MiB, Milli, PodUid};

pub use self::fragment::Fragmentation;
pub(crate) use self::pack::{After, Pack, Then};
use crate::learn::{Known, ShapeCounts};
use crate::policy::{Costs, MAX_PARTS, Policy};

/// Every policy; the first is the default.
pub(crate) const ALL: &[&Kind] = &[
    &tiling::TILING,
    &pack::BINPACK,
    &pack::SPREAD,
    &random::RANDOM,
    &best_fit::BEST_FIT,
    &dot_product::DOT_PRODUCT,
    &gpu_packing::GPU_PACKING,
    &gpu_clustering::GPU_CLUSTERING,
    &fragment::FGD,
    &fragment::FGD_ONLINE,
    &tiling::TILING_STILL,
    #[cfg(test)]
    &toy::TOY,
];

/// A cost: lower is better.
pub(crate) type Cost = i64;

/// A policy with its name on the command line.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// Makes a policy that has learnt nothing yet.
    pub(crate) make: fn() -> Box<dyn Score>,
}

impl PartialEq for Kind {
    fn eq(&self, other: &Kind) -> bool {
        self.name == other.name
    }
}

impl Eq for Kind {}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A way to score places.
pub(crate) trait Score: fmt::Debug + Send + Sync {
    /// Compares the cards of a node: the cost of taking a part of the card at `position` if `left`
    /// of its memory remains; ties go to the first card. Cards with equal accounts must cost the
    /// same, unless [`Score::is_personal`]: this is not called for each of them.
    fn card(&self, site: &Site<'_>, asked: &Asked<'_>, position: usize, left: MiB) -> Cost;

    /// Compares nodes: the cost of the best place on the node. The place is the card at `position`,
    /// or the idle cards if whole cards are asked for.
    fn node(&self, site: &Site<'_>, asked: &Asked<'_>, position: usize, after: Then<'_>) -> Cost;

    /// Does the policy also decide where pods without GPU go? If so, [`Score::node`] is called for
    /// them too: `position` is 0, nothing of a card is taken, and the node may have no cards. Its
    /// answer then outweighs the stock scheduler's scores. Otherwise these scores alone decide.
    fn sees_host(&self) -> bool;

    /// A copy of the policy with all that it has learnt.
    fn boxed(&self) -> Box<dyn Score>;

    /// The functions of a policy of memory alone, so that a scan can use outlines.
    fn pack(&self) -> Option<&'static Pack> {
        None
    }

    /// Are its costs scaled to 0 to 100 over the nodes that fit, even if it is the only policy?
    fn is_relative(&self) -> bool {
        false
    }

    /// Does the cost depend on the pod that asks, so that it cannot be kept?
    fn is_personal(&self) -> bool {
        false
    }

    /// Data of a node that the policy needs for every request. It is computed once for each state
    /// of the node, and returned by [`Site::prepared`].
    fn prepare(&self, _ledger: &Ledger, _book: &Book) -> Prepared {
        None
    }

    /// Does the policy compute tables from the nodes and from the pods that come?
    fn learns(&self) -> bool {
        false
    }

    /// Computes its tables again; true if any cost may have changed. Called when much has changed
    /// ([`Known`]), and only if [`Score::learns`].
    fn rework(&mut self, _known: &Known<'_>) -> bool {
        false
    }

    /// Takes a demand that is known in advance; true if any cost may have changed.
    fn foretell(&mut self, _demand: &ShapeCounts) -> bool {
        false
    }
}

/// A pod's request, as a score sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) ask: &'a Ask,
    pub(crate) host: Host,
    pub(crate) uid: &'a PodUid,
}

/// A node, as a score sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) book: &'a Book,
    prepared: &'a Prepared,
}

/// Data that a policy computed once for a node ([`Score::prepare`]).
pub(crate) type Prepared = Option<Arc<dyn Any + Send + Sync>>;

/// The same for each part of a policy; an array, because it is read for every node in a scan.
pub(crate) type PreparedParts = [Prepared; MAX_PARTS];

impl Asked<'_> {
    /// The share that is asked for on one card of this size; of several parts, that of the first.
    pub(crate) fn share_of(&self, capacity: MiB) -> Milli {
        match self.ask {
            Ask::Nothing => Milli::ZERO,
            Ask::Parts(parts) => parts.first().share_of(capacity),
            Ask::WholeCards(_) => Milli::WHOLE,
        }
    }
}

impl<'a> Site<'a> {
    /// The result of the policy's own [`Score::prepare`] for the node.
    pub(crate) fn prepared<T: 'static>(&self) -> Option<&'a T> {
        self.prepared.as_ref()?.downcast_ref()
    }

    /// The free share of all cards together, in thousandths of a card.
    pub(crate) fn gpu_left(&self) -> i64 {
        let shares = self.book.shares().iter();
        shares.map(|share| i64::from(share.get())).sum()
    }

    /// The CPU that no pod has asked for, in thousandths of a core.
    pub(crate) fn cpu_left(&self) -> i64 {
        signed(self.book.host_left().cpu.get())
    }

    /// The amount that the claim takes in all, in thousandths of a card; `position` is its first
    /// card. The cards of a node are alike, or nearly so, and all parts are counted as if they were
    /// on such a card.
    pub(crate) fn gpu_taken(&self, asked: &Asked<'_>, position: usize) -> i64 {
        match asked.ask {
            Ask::Nothing => 0,
            Ask::Parts(parts) if parts.count() == Count::new(1) => self.card_taken(asked, position),
            Ask::Parts(parts) => {
                let card = self.book.cards().get(position);
                card.map_or(0, |card| {
                    let shares = parts.iter().map(|p| p.share_of(card.capacity.memory));
                    shares.map(|share| i64::from(share.get())).sum()
                })
            }
            Ask::WholeCards(count) => 1000 * i64::from(count.get()),
        }
    }

    /// The amount that the claim takes on its first card.
    pub(crate) fn card_taken(&self, asked: &Asked<'_>, position: usize) -> i64 {
        let card = self.book.cards().get(position);
        card.map_or(0, |card| {
            i64::from(asked.share_of(card.capacity.memory).get())
        })
    }
}

/// The parts of an engine's policy, with all that they have learnt.
#[derive(Debug)]
pub(crate) struct Scores {
    parts: Vec<Box<dyn Score>>,
    /// The index of the part that chooses the card on a node.
    leader: usize,
    is_personal: bool,
    /// Raised whenever a table changes.
    epoch: u64,
}

impl Clone for Scores {
    fn clone(&self) -> Scores {
        Scores {
            parts: self.parts.iter().map(|part| part.boxed()).collect(),
            ..*self
        }
    }
}

impl Scores {
    /// The parts of a policy, which have learnt nothing yet.
    pub(crate) fn of(policy: &Policy) -> Scores {
        let parts: Vec<Box<dyn Score>> = policy.kinds().map(|kind| (kind.make)()).collect();
        Scores {
            leader: policy.leader(),
            is_personal: parts.iter().any(|part| part.is_personal()),
            parts,
            epoch: 0,
        }
    }

    /// Does a cost depend on the pod that asks?
    pub(crate) fn is_personal(&self) -> bool {
        self.is_personal
    }

    /// A number that changes whenever costs may change although no node has changed.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The policy that chooses the card, if it is a policy of memory.
    pub(crate) fn pack(&self) -> Option<&'static Pack> {
        self.parts[self.leader].pack()
    }

    /// Data of a node that each part of the policy needs.
    pub(crate) fn prepare(&self, ledger: &Ledger, book: &Book) -> PreparedParts {
        let mut all = PreparedParts::default();
        for (prepared, part) in all.iter_mut().zip(&self.parts) {
            *prepared = part.prepare(ledger, book);
        }
        all
    }

    /// The cost of a card to the part of the policy that chooses cards.
    pub(crate) fn card(
        &self,
        (book, prepared): (&Book, &[Prepared]),
        asked: &Asked<'_>,
        position: usize,
        left: MiB,
    ) -> Cost {
        let site = site(book, prepared, self.leader);
        self.parts[self.leader].card(&site, asked, position, left)
    }

    /// The cost of a node to each part of the policy.
    pub(crate) fn node(
        &self,
        (book, prepared): (&Book, &[Prepared]),
        asked: &Asked<'_>,
        position: usize,
        after: Then<'_>,
    ) -> Costs {
        let mut costs = Costs::default();
        for (at, part) in self.parts.iter().enumerate() {
            costs[at] = part.node(&site(book, prepared, at), asked, position, after);
        }
        costs
    }

    pub(crate) fn rework(&mut self, known: &Known<'_>) {
        for part in self.parts.iter_mut().filter(|part| part.learns()) {
            self.epoch += u64::from(part.rework(known));
        }
    }

    pub(crate) fn foretell(&mut self, demand: &ShapeCounts) {
        for part in &mut self.parts {
            self.epoch += u64::from(part.foretell(demand));
        }
    }
}

/// The node as one part of a policy sees it.
fn site<'a>(book: &'a Book, prepared: &'a [Prepared], part: usize) -> Site<'a> {
    const NOTHING: &Prepared = &None;
    Site {
        book,
        prepared: prepared.get(part).unwrap_or(NOTHING),
    }
}

/// Converts an amount; amounts of CPU and of cards are far below 2^63.
pub(crate) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
