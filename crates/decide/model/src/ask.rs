//! A pod's request for cards at its worst moment, all its containers together.

use std::cmp::{Ordering, Reverse};
use std::sync::Arc;

use crate::{Count, MiB, Milli, Part, Role, peak_of};

/// Parts of cards: one at least, the largest amounts of memory first. Each is of another card,
/// unless containers choose for themselves ([`Parts::own`]).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Parts {
    each: Arc<[Part]>,
    own: Option<Arc<[OwnParts]>>,
}

/// The request of one container, if each container of a pod has cards of its own choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnParts {
    /// When the container runs.
    pub role: Role,
    /// On how many different cards it is.
    pub gpus: Count,
    /// Amount that it takes of each.
    pub part: Part,
}

/// An order for map keys; it does not say which of two is larger.
impl Ord for Parts {
    fn cmp(&self, other: &Parts) -> Ordering {
        let own = |parts: &Parts| -> Vec<_> {
            let own = parts.own.iter().flat_map(|own| own.iter());
            own.map(|own| (own.role, own.gpus, by_memory(own.part)))
                .collect()
        };
        let each = self.iter().map(by_memory).cmp(other.iter().map(by_memory));
        each.then_with(|| own(self).cmp(&own(other)))
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
        Parts {
            each: Arc::from([part]),
            own: None,
        }
    }

    /// These parts; `None` for none, and for more than [`Parts::MAX`].
    #[must_use]
    pub fn new(mut parts: Vec<Part>) -> Option<Parts> {
        parts.sort_unstable_by_key(|part| Reverse(by_memory(*part)));
        (1..=Parts::MAX).contains(&parts.len()).then(|| Parts {
            each: Arc::from(parts),
            own: None,
        })
    }

    /// The parts of containers that choose their cards each for itself, in the order in which they
    /// start; `None` for none, and for more than [`Parts::MAX`]. The same as other parts if it is
    /// only one container.
    #[must_use]
    pub fn of_containers(containers: &[OwnParts]) -> Option<Parts> {
        let count = containers.iter().map(|own| u64::from(own.gpus.get()));
        if count.sum::<u64>() > Parts::MAX as u64 {
            return None;
        }
        let parts = containers.iter();
        let parts = parts.flat_map(|own| vec![own.part; own.gpus.get() as usize]);
        let parts = Parts::new(parts.collect())?;
        Some(Parts {
            own: (containers.len() > 1).then(|| Arc::from(containers)),
            ..parts
        })
    }

    /// The request of each container, if they choose their cards each for itself: parts of
    /// different containers may be on one card.
    #[must_use]
    pub fn own(&self) -> Option<&[OwnParts]> {
        self.own.as_deref()
    }

    /// The one with most memory.
    #[must_use]
    pub fn first(&self) -> Part {
        self.each[0]
    }

    /// The largest amount of memory and of compute time that may be taken from one card.
    #[must_use]
    pub fn largest(&self) -> Part {
        match &self.own {
            None => self.iter().fold(Part::ZERO, Part::or),
            // All containers on one card.
            Some(own) => {
                let amounts: Vec<_> = own.iter().map(|own| (own.role, own.part)).collect();
                peak_of(&amounts)
            }
        }
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

    /// Number of parts.
    #[must_use]
    pub fn count(&self) -> Count {
        Count::new(self.each.len() as u32)
    }

    /// Each of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Part> + Clone {
        self.each.iter().copied()
    }
}

/// A pod's need of GPUs at its worst moment; the same is taken from the ledger for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ask {
    /// No card: the pod asks CPU and memory of the machine only.
    Nothing,
    /// Parts of cards.
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

    /// On how many cards it is, at most.
    #[must_use]
    pub fn gpus(&self) -> Count {
        match self {
            Ask::Nothing => Count::ZERO,
            Ask::Parts(parts) => parts.count(),
            Ask::WholeCards(count) => *count,
        }
    }
}
