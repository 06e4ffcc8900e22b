//! What is learnt from the pods that arrive: which shapes come, and how often.
//!
//! Policies see a demand only through tables that they make of it now and then. Between two
//! such moments (*epochs*) costs depend on the nodes alone and can be kept. What is learnt is
//! a function of the pods that are known, so a restarted scheduler learns it again from the
//! API server.

use std::collections::BTreeMap;

use sublet_model::{Ask, Claim, Ledger, MiB, MilliCpu, Models, Part};

/// What makes two pods the same to a placement policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodShape {
    /// CPU asked.
    pub cpu: MilliCpu,
    /// GPUs asked.
    pub ask: Ask,
    /// Models accepted.
    pub models: Models,
}

impl PodShape {
    /// The shape of a claim. Memory of the machine is not part of it: it decides whether a
    /// pod fits, and rarely is what runs out.
    #[must_use]
    pub fn of(claim: &Claim) -> PodShape {
        PodShape {
            cpu: claim.host().cpu,
            ask: claim.ask().clone(),
            models: match claim.ask() {
                Ask::Nothing => Models::default(),
                _ => claim.models().clone(),
            },
        }
    }

    /// Smaller shapes first.
    pub(crate) fn by_size(&self) -> (MilliCpu, u64, u32, &Models) {
        let (portion, cards) = match &self.ask {
            Ask::Nothing => (0, 0),
            Ask::Parts(parts) => (parts.first().memory.get(), parts.count().get()),
            Ask::WholeCards(count) => (u64::MAX, count.get()),
        };
        (self.cpu, portion, cards, &self.models)
    }
}

/// How many pods of each shape there are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShapeCounts {
    counts: BTreeMap<PodShape, u64>,
    total: u64,
}

impl ShapeCounts {
    /// One pod more.
    pub fn add(&mut self, shape: PodShape) {
        *self.counts.entry(shape).or_insert(0) += 1;
        self.total += 1;
    }

    /// One pod less; nothing happens if there is none of that shape.
    pub fn remove(&mut self, shape: &PodShape) {
        if let Some(count) = self.counts.get_mut(shape) {
            *count -= 1;
            self.total -= 1;
            if *count == 0 {
                self.counts.remove(shape);
            }
        }
    }

    /// All pods.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The shapes and how many pods have each.
    pub fn shapes(&self) -> impl Iterator<Item = (&PodShape, u64)> {
        self.counts.iter().map(|(shape, count)| (shape, *count))
    }
}

/// Turns an amount of memory into a share of a card before the card is known: by the size that
/// most cards of the cluster have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Sizes {
    card: MiB,
}

impl Sizes {
    fn of(ledger: &Ledger) -> Sizes {
        let mut counts: BTreeMap<MiB, usize> = BTreeMap::new();
        for (_, book) in ledger.books() {
            for card in book.cards() {
                *counts.entry(card.capacity.memory).or_insert(0) += 1;
            }
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        let card = most.map_or(MiB::ZERO, |(capacity, _)| capacity);
        Sizes { card }
    }

    /// Thousandths of cards that are asked.
    pub(crate) fn milli_of(self, ask: &Ask) -> u64 {
        ask.milli(self.card)
    }

    /// The same of one part.
    pub(crate) fn share_of(self, part: Part) -> u64 {
        u64::from(part.share_of(self.card).get())
    }
}

/// What is known when a policy makes its tables anew.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    /// The pods that are there.
    pub(crate) demand: &'a ShapeCounts,
    pub(crate) sizes: Sizes,
    pub(crate) ledger: &'a Ledger,
    /// The nodes are others than at the last time.
    pub(crate) nodes_changed: bool,
    /// Pods that came or went since the last time.
    pub(crate) changes: u64,
}

/// The pods that came, and when policies make their tables anew of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Learnt {
    seen: ShapeCounts,
    /// Pods that came or went since tables were made.
    changes: u64,
    /// The nodes are others than when tables were made.
    nodes_changed: bool,
    sizes: Sizes,
}

impl Learnt {
    /// A node came, went or changed.
    pub(crate) fn node_changed(&mut self) {
        self.nodes_changed = true;
    }

    pub(crate) fn pods(&self) -> u64 {
        self.seen.total()
    }

    pub(crate) fn came(&mut self, shape: PodShape) {
        self.seen.add(shape);
        self.changes += 1;
    }

    pub(crate) fn went(&mut self, shape: &PodShape) {
        self.seen.remove(shape);
        self.changes += 1;
    }

    /// What to make tables of, if they are due: once a quarter of the pods has changed, or
    /// [`MOST_CHANGES`]. So tables follow the demand, and all of them together cost a few times
    /// the last one.
    pub(crate) fn due<'a>(&'a mut self, ledger: &'a Ledger) -> Option<Known<'a>> {
        let before = self.seen.total().saturating_sub(self.changes);
        let due = self.changes >= (before / 4).clamp(FIRST, MOST_CHANGES);
        if !due && !self.nodes_changed {
            return None;
        }
        let nodes_changed = std::mem::take(&mut self.nodes_changed);
        if nodes_changed {
            self.sizes = Sizes::of(ledger);
        }
        Some(Known {
            demand: &self.seen,
            sizes: self.sizes,
            ledger,
            nodes_changed,
            changes: std::mem::take(&mut self.changes),
        })
    }
}

/// Nothing is learnt before so many pods have come. With 200 the list `default` is 0.02 points
/// worse, with 1,000 it is 0.06.
pub(crate) const FIRST: u64 = 16;

/// Tables are made anew at the latest after so many changes, because what is free of each model
/// changes. Half and double of it change the list `default` by at most 0.01 points.
const MOST_CHANGES: u64 = 400;
