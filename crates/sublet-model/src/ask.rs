//! What a pod asks of cards at its worst moment, all its containers together.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

use crate::{Count, MiB, Milli, Part};

/// Parts of cards, each of another card: one at least, the largest amounts of memory first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Parts(Arc<[Part]>);

/// An order for map keys; it does not say which of two is larger.
impl Ord for Parts {
    fn cmp(&self, other: &Parts) -> Ordering {
        self.iter().map(by_memory).cmp(other.iter().map(by_memory))
    }
}

impl PartialOrd for Parts {
    fn partial_cmp(&self, other: &Parts) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn by_memory(part: Part) -> (MiB, Milli, Milli) {
    (part.memory, part.memory_share, part.compute)
}

impl Parts {
    /// The most parts that one pod can ask: four times the cards of the largest machines sold.
    pub const MAX: usize = 64;

    /// A part of one card.
    #[must_use]
    pub fn one(part: Part) -> Parts {
        Parts(Arc::from([part]))
    }

    /// These parts; `None` for none, and for more than [`Parts::MAX`].
    #[must_use]
    pub fn new(mut parts: Vec<Part>) -> Option<Parts> {
        parts.sort_unstable_by_key(|part| Reverse(by_memory(*part)));
        (1..=Parts::MAX)
            .contains(&parts.len())
            .then(|| Parts(Arc::from(parts)))
    }

    /// The one with most memory.
    #[must_use]
    pub fn first(&self) -> Part {
        self.0[0]
    }

    /// The largest amount of memory and of compute time that any of them asks.
    #[must_use]
    pub fn largest(&self) -> Part {
        self.iter().fold(Part::ZERO, Part::or)
    }

    /// The amounts of memory that they ask, shares left out.
    #[must_use]
    pub fn memory(&self) -> MiB {
        self.iter().map(|part| part.memory).sum()
    }

    /// Memory of all of them together, on cards with so much each.
    #[must_use]
    pub fn memory_on(&self, card: MiB) -> MiB {
        self.iter().map(|part| part.on(card).memory).sum()
    }

    /// Is any of them a share of its card's memory?
    #[must_use]
    pub fn has_shares(&self) -> bool {
        self.iter().any(|part| part.memory_share > Milli::ZERO)
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> Count {
        Count::new(self.0.len() as u32)
    }

    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Part> + Clone {
        self.0.iter().copied()
    }
}

/// What a pod needs of GPUs at its worst moment, and so what is taken from the ledger for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    /// No card: the pod asks CPU and memory of the machine only.
    Nothing,
    /// Parts of cards: all containers share them.
    Parts(Parts),
    /// So many cards, each for this pod alone.
    WholeCards(Count),
}

impl Ask {
    /// So much memory of one card.
    #[must_use]
    pub fn of_memory(memory: MiB) -> Ask {
        Ask::Parts(Parts::one(Part::of_memory(memory)))
    }

    /// Thousandths of cards that are asked, of cards of that size.
    #[must_use]
    pub fn milli(&self, card: MiB) -> u64 {
        match self {
            Ask::Nothing => 0,
            Ask::Parts(parts) => parts
                .iter()
                .map(|p| u64::from(p.share_of(card).get()))
                .sum(),
            Ask::WholeCards(count) => 1000 * u64::from(count.get()),
        }
    }

    /// On how many cards it is.
    #[must_use]
    pub fn gpus(&self) -> Count {
        match self {
            Ask::Nothing => Count::ZERO,
            Ask::Parts(parts) => parts.count(),
            Ask::WholeCards(count) => *count,
        }
    }
}
