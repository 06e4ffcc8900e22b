//! What is learnt from the pods that arrive: which shapes come, and how often.
//!
//! Policies see a demand only through tables that are made from it now and then. Between two
//! such moments (*epochs*) costs depend on the nodes alone and can be kept. What is learnt is
//! a function of the pods that are known, so a restarted scheduler learns it again from the
//! API server.

mod prices;

use std::collections::BTreeMap;

use sublet_model::{Ask, Claim, Ledger, MiB, MilliCpu, Models, Part};

pub(crate) use self::prices::{PARTS, Prices};
use crate::score::{Kind, Tables, Typical};

/// What makes two pods the same to a placement policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// CPU asked.
    pub cpu: MilliCpu,
    /// GPUs asked.
    pub ask: Ask,
    /// Models accepted.
    pub models: Models,
}

impl Shape {
    /// The shape of a claim. Memory of the machine is not part of it: it decides whether a
    /// pod fits, and rarely is what runs out.
    #[must_use]
    pub fn of(claim: &Claim) -> Shape {
        Shape {
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
pub struct Demand {
    counts: BTreeMap<Shape, u64>,
    total: u64,
}

impl Demand {
    /// One pod more.
    pub fn add(&mut self, shape: Shape) {
        *self.counts.entry(shape).or_insert(0) += 1;
        self.total += 1;
    }

    /// One pod less; nothing happens if there is none of that shape.
    pub fn remove(&mut self, shape: &Shape) {
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
    pub fn shapes(&self) -> impl Iterator<Item = (&Shape, u64)> {
        self.counts.iter().map(|(shape, count)| (shape, *count))
    }
}

/// How large a share of a card an amount of memory is, before it is known which card: by the
/// size that most cards of the cluster have.
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

/// Tables that policies look up, and the pods they are made from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Learnt {
    seen: Demand,
    /// Pods that came or went since the tables were made, and since the prices were.
    changes: u64,
    changes_of_prices: u64,
    /// The nodes are others than when the tables were made.
    nodes_changed: bool,
    epochs: Epochs,
    sizes: Sizes,
    /// The typical pods of `fgd`, given beforehand, and those of `fgd-online`.
    given: Typical,
    online: Typical,
    /// What is known of the nodes alone and of what is free on them, and with what was learnt
    /// of pods.
    still: Tables,
    tables: Tables,
}

/// How often each table became another.
#[derive(Debug, Clone, Copy, Default)]
struct Epochs {
    given: u64,
    online: u64,
    still: u64,
    tables: u64,
}

impl Learnt {
    /// Raised whenever a table changes that one of these looks at. Tables that come out as
    /// they were leave costs as they are.
    pub(crate) fn epoch(&self, kinds: impl Iterator<Item = Kind>) -> u64 {
        let epoch = |kind| match kind {
            Kind::Fgd => self.epochs.given,
            Kind::FgdOnline => self.epochs.online,
            Kind::Tiling => self.epochs.tables,
            Kind::TilingStill => self.epochs.still,
            _ => 0,
        };
        kinds.map(epoch).sum()
    }

    /// The typical pods of a policy that has such.
    pub(crate) fn typical(&self, kind: Kind) -> &Typical {
        match kind {
            Kind::Fgd => &self.given,
            _ => &self.online,
        }
    }

    /// The tables of a policy that tiles.
    pub(crate) fn tables(&self, kind: Kind) -> &Tables {
        match kind {
            Kind::TilingStill => &self.still,
            _ => &self.tables,
        }
    }

    /// The demand that `fgd` knows beforehand, as its paper has it.
    pub(crate) fn give(&mut self, demand: &Demand) {
        self.given = Typical::of(demand);
        self.epochs.given += 1;
    }

    /// A node came, went or changed.
    pub(crate) fn node_changed(&mut self) {
        self.nodes_changed = true;
    }

    pub(crate) fn pods(&self) -> u64 {
        self.seen.total()
    }

    pub(crate) fn came(&mut self, shape: Shape) {
        self.seen.add(shape);
        self.changes += 1;
        self.changes_of_prices += 1;
    }

    pub(crate) fn went(&mut self, shape: &Shape) {
        self.seen.remove(shape);
        self.changes += 1;
        self.changes_of_prices += 1;
    }

    /// Makes tables anew that are due: often enough to follow, and so rarely that all of it
    /// together costs a few times the last one. A quarter of the pods must have changed, or
    /// [`MOST_CHANGES`].
    pub(crate) fn catch_up(&mut self, ledger: &Ledger) {
        let before = self.seen.total().saturating_sub(self.changes);
        let due = self.changes >= (before / 4).clamp(FIRST, MOST_CHANGES);
        if !due && !self.nodes_changed {
            return;
        }
        let (still, tables) = (self.still.clone(), self.tables.clone());
        if std::mem::take(&mut self.nodes_changed) {
            self.sizes = Sizes::of(ledger);
            self.still = Tables::of_nodes(ledger);
            self.tables = self.still.clone();
            self.changes_of_prices = self.seen.total();
        }
        self.still.follow(ledger);
        self.changes = 0;
        let online = std::mem::replace(&mut self.online, Typical::of(&self.seen));
        let before = self.seen.total().saturating_sub(self.changes_of_prices);
        if self.changes_of_prices >= (before / 4).max(FIRST) {
            self.changes_of_prices = 0;
            self.tables.price(&self.seen, self.sizes);
        }
        self.tables.refresh(&self.seen, self.sizes, ledger);
        self.epochs.online += u64::from(online != self.online);
        self.epochs.still += u64::from(still != self.still);
        self.epochs.tables += u64::from(tables != self.tables);
    }
}

/// So many pods must have come before anything is learnt. With 200 default is 0.02 points
/// worse, with 1,000 0.06.
const FIRST: u64 = 16;

/// Tables follow at the latest after so many pods: what is free by model moves on. Half and
/// double change default by at most 0.01 points.
const MOST_CHANGES: u64 = 400;
