//! Fragmentation gradient descent (Weng et al., *Beware of Fragmentation*, USENIX ATC 2023): choose
//! the place where the GPU share that typical pods cannot use grows least.
//!
//! For a typical pod, a *fragment* is the part of a node's free share that the pod cannot use: all
//! of it if the node cannot take the pod, otherwise the free share of the cards that are too full
//! for it. A node's fragmentation is the mean over the typical pods, weighted by how often they
//! come. The score is the paper's, with its steps: 0 to 100, the logistic function of the growth.

use std::sync::{Arc, OnceLock};

use sublet_model::{Ask, Book, Ledger, MiB, Milli};

use super::{Asked, Cost, Kind, Prepared, Score, Site, Then};
use crate::learn::{Known, PodShape, ShapeCounts};

pub(super) const FGD: Kind = Kind {
    name: "fgd",
    make: || Box::new(Fgd::default()),
};

/// The same policy, but it learns the typical pods from those that come.
pub(super) const FGD_ONLINE: Kind = Kind {
    name: "fgd-online",
    make: || {
        Box::new(Fgd {
            learns: true,
            ..Fgd::default()
        })
    },
};

#[derive(Debug, Clone, Default)]
struct Fgd {
    /// If false, it knows the typical pods in advance, as in the paper.
    learns: bool,
    typical: Typical,
}

impl Score for Fgd {
    fn card(&self, site: &Site<'_>, asked: &Asked<'_>, position: usize, _: MiB) -> Cost {
        cost(site, asked, &self.typical, position)
    }

    fn node(&self, site: &Site<'_>, asked: &Asked<'_>, position: usize, _: Then<'_>) -> Cost {
        cost(site, asked, &self.typical, position)
    }

    fn prepare(&self, _: &Ledger, book: &Book) -> Prepared {
        Some(Arc::new(Fragments::of(book, &self.typical)))
    }

    fn learns(&self) -> bool {
        self.learns
    }

    fn rework(&mut self, known: &Known<'_>) -> bool {
        let before = std::mem::replace(&mut self.typical, Typical::of(known.demand));
        before != self.typical
    }

    fn foretell(&mut self, demand: &ShapeCounts) -> bool {
        if self.learns {
            return false;
        }
        self.typical = Typical::of(demand);
        true
    }

    fn sees_host(&self) -> bool {
        true
    }

    fn boxed(&self) -> Box<dyn Score> {
        Box::new(self.clone())
    }
}

/// The most frequent shapes are typical, until so many percent of the pods are covered (the
/// paper's configuration).
const COVERED_PERCENT: u64 = 95;

/// The pods that fragmentation is measured with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Typical {
    shapes: Vec<(PodShape, i64)>,
    /// Number of pods that have these shapes.
    total: i64,
    /// Number of pods in all.
    all: i64,
}

impl Typical {
    /// The typical pods of a demand, sorted by falling count, then by falling size.
    fn of(demand: &ShapeCounts) -> Typical {
        let mut shapes: Vec<_> = demand.shapes().collect();
        shapes.sort_by(|(a, n_a), (b, n_b)| (n_b, b.by_size()).cmp(&(n_a, a.by_size())));
        let mut covered = 0;
        let wanted = demand.total() * COVERED_PERCENT;
        let few = shapes.iter().take_while(|(_, count)| {
            let goes_on = covered * 100 < wanted;
            covered += count;
            goes_on
        });
        let shapes: Vec<_> = few
            .map(|(shape, count)| ((*shape).clone(), super::signed(*count)))
            .collect();
        let total = shapes.iter().map(|(_, count)| count).sum();
        let all = super::signed(demand.total());
        Typical { shapes, total, all }
    }
}

/// Measures how fragmented nodes are, with the typical pods of a demand.
#[derive(Debug, Clone)]
pub struct Fragmentation(Typical);

impl Fragmentation {
    /// Measures with the typical pods of this demand.
    #[must_use]
    pub fn by(demand: &ShapeCounts) -> Fragmentation {
        Fragmentation(Typical::of(demand))
    }

    /// A node's fragmentation. Its unit is a thousandth of a card divided by the number of typical
    /// pods, so that sums are exact.
    #[must_use]
    pub fn of(&self, book: &Book) -> i64 {
        let fragments = Fragments::of(book, &self.0);
        let rows = fragments.rows.iter();
        rows.map(|row| row.weight * row.unusable(fragments.cpu_left, fragments.gpu_left))
            .sum()
    }

    /// Converts such a number to thousandths of a card.
    #[must_use]
    pub fn milli(&self, steps: i64) -> f64 {
        steps as f64 / self.0.total.max(1) as f64
    }
}

/// A node's offer to each typical pod. Other requests change this only a little.
#[derive(Debug, Clone, Default)]
struct Fragments {
    rows: Vec<Row>,
    /// The different capacities of the node's cards.
    capacities: Vec<MiB>,
    /// The share of a card that each typical pod takes: all rows for the first capacity, and so on.
    needs: Vec<Milli>,
    gpu_left: i64,
    cpu_left: i64,
}

#[derive(Debug, Clone, Copy)]
struct Row {
    cpu: i64,
    /// Number of cards that the pod asks for; 0 for a pod that no card of the node can serve.
    cards: i64,
    weight: i64,
    /// Number of cards that have room for it.
    able: i64,
    /// The free share of the other cards.
    low: i64,
}

/// So many cards of one capacity change their free share.
#[derive(Debug, Clone, Copy)]
struct Change {
    class: usize,
    cards: i64,
    from: i64,
    to: i64,
    cpu: i64,
}

impl Fragments {
    fn of(book: &Book, typical: &Typical) -> Fragments {
        let mut fragments = Fragments {
            gpu_left: book.shares().iter().map(|s| i64::from(s.get())).sum(),
            cpu_left: super::signed(book.host_left().cpu.get()),
            ..Fragments::default()
        };
        for card in book.cards() {
            let capacity = card.capacity.memory;
            if !fragments.capacities.contains(&capacity) {
                fragments.capacities.push(capacity);
            }
        }
        let model = book.facts().map_or("", |facts| &facts.model);
        for &capacity in &fragments.capacities {
            let need = |(shape, _): &(PodShape, i64)| match &shape.ask {
                Ask::Nothing => Milli::ZERO,
                Ask::Parts(parts) => parts.first().share_of(capacity),
                Ask::WholeCards(_) => Milli::WHOLE,
            };
            fragments.needs.extend(typical.shapes.iter().map(need));
        }
        let n_rows = typical.shapes.len();
        for (at, (shape, weight)) in typical.shapes.iter().enumerate() {
            let cards = match shape.models.accept(model) {
                true => i64::from(shape.ask.gpus().get()),
                false => 0,
            };
            let mut row = Row {
                cpu: super::signed(shape.cpu.get()),
                cards,
                weight: *weight,
                able: 0,
                low: 0,
            };
            for (card, share) in book.cards().iter().zip(book.shares()) {
                let class = fragments.class(card.capacity.memory);
                let fits = *share >= fragments.needs[class * n_rows + at];
                row.able += i64::from(fits);
                row.low += if fits { 0 } else { i64::from(share.get()) };
            }
            fragments.rows.push(row);
        }
        fragments
    }

    fn class(&self, capacity: MiB) -> usize {
        let class = self.capacities.iter().position(|&known| known == capacity);
        class.unwrap_or(0)
    }

    /// The share of a card of this capacity that each typical pod takes.
    fn needs_of(&self, class: usize) -> &[Milli] {
        &self.needs[class * self.rows.len()..][..self.rows.len()]
    }

    /// The amount by which a change lowers the fragmentation, times the number of typical pods.
    fn gain(&self, change: &Change) -> i64 {
        let cpu_left = self.cpu_left - change.cpu;
        let gpu_left = self.gpu_left - change.cards * (change.from - change.to);
        let mut gain = 0;
        for (row, need) in self.rows.iter().zip(self.needs_of(change.class)) {
            let before = row.unusable(self.cpu_left, self.gpu_left);
            let after = row.after(change, *need).unusable(cpu_left, gpu_left);
            gain += row.weight * (before - after);
        }
        gain
    }
}

impl Row {
    /// The row after a change, for a pod that takes `need` of a card.
    fn after(&self, change: &Change, need: Milli) -> Row {
        let need = i64::from(need.get());
        let low = |left: i64| if left < need { left } else { 0 };
        let able = i64::from(change.to >= need) - i64::from(change.from >= need);
        Row {
            able: self.able + change.cards * able,
            low: self.low + change.cards * (low(change.to) - low(change.from)),
            ..*self
        }
    }

    /// The class of fragment in the published program (except the class of the usable part), and
    /// the amount that falls into it.
    fn published_class(&self, need: Milli, cpu_left: i64, gpu_left: i64) -> (usize, i64) {
        let has_cpu = cpu_left >= self.cpu;
        match (need == Milli::ZERO, self.cards == 0) {
            (true, _) => (if has_cpu { 3 } else { 4 }, gpu_left),
            (false, true) => (5, gpu_left),
            (false, false) => match (self.able >= self.cards, has_cpu) {
                (true, true) => (1, self.low),
                (true, false) => (2, gpu_left),
                (false, true) => (1, gpu_left),
                (false, false) => (0, gpu_left),
            },
        }
    }

    /// The free share of the node that the pod cannot use.
    fn unusable(&self, cpu_left: i64, gpu_left: i64) -> i64 {
        if self.cards == 0 || self.able < self.cards || cpu_left < self.cpu {
            gpu_left
        } else {
            self.low
        }
    }
}

/// The cost of a place: the negative of the paper's score.
fn cost(site: &Site<'_>, asked: &Asked<'_>, typical: &Typical, position: usize) -> Cost {
    let Some(fragments) = site.prepared::<Fragments>() else {
        return 0;
    };
    let cards = site.book.cards();
    let class = cards
        .get(position)
        .map_or(0, |c| fragments.class(c.capacity.memory));
    let from = site.book.shares().get(position);
    let from = from.map_or(0, |share| i64::from(share.get()));
    let mut change = Change {
        class,
        cards: 0,
        from,
        to: from,
        cpu: super::signed(asked.host.cpu.get()),
    };
    match asked.ask {
        Ask::Nothing => {}
        Ask::Parts(parts) => {
            change.cards = i64::from(parts.count().get());
            change.to = (from - site.card_taken(asked, position)).max(0);
        }
        Ask::WholeCards(count) => {
            change.cards = i64::from(count.get());
            change.to = 0;
        }
    }
    if cards.is_empty() || typical.total == 0 {
        return -50;
    }
    let gain = fragments.gain(&change);
    if gain == 0 {
        return published_tie(fragments, &change, typical);
    }
    let gain = gain as f64 / (1000 * typical.total) as f64;
    -(thresholds().partition_point(|&threshold| threshold <= gain) as Cost)
}

/// The cost of a place that leaves the fragmentation exactly as it is: -50 in exact arithmetic. In
/// the published program, rounding errors decide whether the score is 49 or 50, and later
/// placements depend on it. So the sums here have the same order as there
/// (`NodeGpuShareFragAmount` and `FragAmountSumExceptQ3`).
fn published_tie(fragments: &Fragments, change: &Change, typical: &Typical) -> Cost {
    let all = typical.all as f64;
    let covered = typical.total as f64 / all;
    let (mut before, mut after) = ([0.0; 6], [0.0; 6]);
    let cpu_after = fragments.cpu_left - change.cpu;
    let gpu_after = fragments.gpu_left - change.cards * (change.from - change.to);
    for (row, need) in fragments.rows.iter().zip(fragments.needs_of(change.class)) {
        let often = row.weight as f64 / all / covered;
        let changed = row.after(change, *need);
        let (class, milli) = row.published_class(*need, fragments.cpu_left, fragments.gpu_left);
        before[class] += often * milli as f64;
        let (class, milli) = changed.published_class(*need, cpu_after, gpu_after);
        after[class] += often * milli as f64;
    }
    let sum = |classes: [f64; 6]| classes.iter().fold(0.0, |sum, class| sum + class);
    let gain: f64 = (sum(before) - sum(after)) / 1000.0;
    -((1.0 / (1.0 + (-gain).exp()) * 100.0) as Cost)
}

/// The values at which 100 times the logistic function reaches 1, 2, … 99.
fn thresholds() -> &'static [f64; 99] {
    static THRESHOLDS: OnceLock<[f64; 99]> = OnceLock::new();
    THRESHOLDS.get_or_init(|| {
        std::array::from_fn(|at| {
            let percent = (at + 1) as f64;
            (percent / (100.0 - percent)).ln()
        })
    })
}

#[cfg(test)]
mod tests;
