//! Sublet's own policy: it keeps nodes so that the cards' free shares can be tiled, and so that the
//! free CPU is enough for them. `docs/placement.md` explains it and has its figures.
//!
//! A node's worth is the lesser of two amounts. The first is the worth of the tiles that its free
//! shares can make, at the prices of the shares that pods ask for ([`Prices`]). The second is the
//! worth of the cards that its free CPU can feed, at the CPU that pods ask for with a card, or can
//! count on. It is reduced a little if pods would not find their CPU. The cost of a place is the
//! worth that it takes away, minus the price of the request, in coarse steps. Nodes within one step
//! are equal, and the order of names spreads pods evenly over them.
//!
//! [`Prices`]: prices::Prices

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{Ask, Book, Ledger, MiB};

mod prices;

use self::prices::{PARTS, Prices};
use super::{Asked, Cost, Kind, Prepared, Score, Site, Then};
use crate::PodShape;
use crate::learn::{FIRST, Known, ShapeCounts, Sizes};

pub(super) const TILING: Kind = Kind {
    name: "tiling",
    make: || Box::new(Tiling::default()),
};

/// The same policy, but it learns nothing from pods.
pub(super) const TILING_STILL: Kind = Kind {
    name: "tiling-still",
    make: || {
        Box::new(Tiling {
            is_still: true,
            ..Tiling::default()
        })
    },
};

/// The policy and its tables.
#[derive(Debug, Clone, Default)]
struct Tiling {
    is_still: bool,
    tables: Tables,
    /// Number of pods that came or went since the prices were computed.
    unpriced: u64,
}

impl Score for Tiling {
    /// The loss; if the losses are equal, the card with the least left wins.
    fn card(&self, site: &Site<'_>, asked: &Asked<'_>, position: usize, _: MiB) -> Cost {
        let left = i64::from(site.book.shares()[position].get());
        loss(site, asked, &self.tables, position) * 2 * CARD + left
    }

    /// The loss minus the price of the request, in steps.
    fn node(&self, site: &Site<'_>, asked: &Asked<'_>, position: usize, _: Then<'_>) -> Cost {
        let tables = &self.tables;
        let price = match asked.ask {
            Ask::Parts(parts) => {
                let one = site.card_taken(asked, position);
                i64::from(parts.count().get()) * tables.prices.asked[part(one.unsigned_abs())]
            }
            Ask::Nothing | Ask::WholeCards(_) => site.gpu_taken(asked, position),
        };
        (loss(site, asked, tables, position) - price + STEP / 2).div_euclid(STEP)
    }

    fn prepare(&self, _: &Ledger, book: &Book) -> Prepared {
        Some(Arc::new(Tiles::of(book, &self.tables)))
    }

    fn learns(&self) -> bool {
        true
    }

    /// Prices are expensive to compute and change slowly, so they wait until a quarter of the pods
    /// has changed.
    fn rework(&mut self, known: &Known<'_>) -> bool {
        let before = self.tables.clone();
        let pods = known.demand.total();
        self.unpriced += known.changes;
        if known.nodes_changed {
            self.tables = Tables::of_nodes(known.ledger);
            self.unpriced = pods;
        }
        if self.is_still {
            self.tables.follow(known.ledger);
            return self.tables != before;
        }
        let earlier = pods.saturating_sub(self.unpriced);
        if self.unpriced >= (earlier / 4).max(FIRST) {
            self.unpriced = 0;
            self.tables.price(known.demand, known.sizes);
        }
        self.tables.refresh(known.demand, known.sizes, known.ledger);
        self.tables != before
    }

    fn sees_host(&self) -> bool {
        true
    }

    fn boxed(&self) -> Box<dyn Score> {
        Box::new(self.clone())
    }
}

/// The worth of a card. A worth is in thousandths of a card.
const CARD: i64 = 1000;
/// Losses within one step are equal. With half and double of it: 3.71 and 3.75 % on `default`.
const STEP: i64 = 20;
/// The cost of using a free card for a part of one.
const OPEN: i64 = 10;
/// The cost of being the first pod on a node that few other nodes could replace. It is more than
/// the worth that a pod of four cards can starve elsewhere. With half of it, and nothing learnt,
/// such pods take nodes of eight cards and many cores.
const RARE: i64 = 2000;
/// Few means less than one node in so many. From 5 to 20 nothing changes; at 2½ large pods starve.
const FEW: usize = 10;
/// Chances are in 1024ths.
const SURE: i64 = 1024;
/// Share of a node's worth that may be lost to the doubt that pods find their CPU, in 1024ths.
const DOUBT: i64 = 256;
/// While no pods are known, pods with GPUs can count on one in so many of the free cores. With all
/// cores openb's cpu300 is worse than with best-fit; with a quarter `default` is 0.4 points worse.
const UNKNOWN: u128 = 2;
/// A node with more free cores than this can serve any pod of one card.
const CORES: usize = 128;
/// Pressure is in 64ths before it is raised to the fourth power.
const FULL: i64 = 64;

/// The tables that the policy has learnt and that score places.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tables {
    prices: Prices,
    /// The CPU that pods get with each card, in thousandths of a core.
    level: i64,
    /// By free cores: how many of 1024 pods of one card ask for no more CPU, with the doubt
    /// reduced.
    chance: [i64; CORES + 1],
    /// By model: the cost of a thousandth of a card, in 1024ths, because pods ask for this model.
    pressure: BTreeMap<Arc<str>, i64>,
    /// Kinds of nodes (cards, CPU) that few other nodes could replace.
    rare: Vec<(usize, u64)>,
}

impl Default for Tables {
    fn default() -> Tables {
        Tables {
            prices: Prices::by_size(),
            level: i64::MAX,
            chance: [SURE; CORES + 1],
            pressure: BTreeMap::new(),
            rare: Vec::new(),
        }
    }
}

impl Tables {
    /// Tables from the nodes alone, with nothing learnt from pods.
    fn of_nodes(ledger: &Ledger) -> Tables {
        let mut kinds: BTreeMap<(usize, u64), usize> = BTreeMap::new();
        for facts in ledger.books().filter_map(|(_, book)| book.facts()) {
            let gpus = facts.inventory.gpus().len();
            if gpus > 0 {
                *kinds.entry((gpus, facts.host.cpu.get())).or_insert(0) += 1;
            }
        }
        let all: usize = kinds.values().sum();
        let stand_ins = |kind: &(usize, u64)| -> usize {
            let alike = kinds
                .iter()
                .filter(|(other, _)| other.0 >= kind.0 && other.1 >= kind.1);
            alike.map(|(_, count)| count).sum()
        };
        let rare = kinds.keys().filter(|kind| stand_ins(kind) * FEW < all);
        Tables {
            level: fed(ledger, None),
            rare: rare.copied().collect(),
            ..Tables::default()
        }
    }

    /// Updates the level for the room that is free now, with nothing learnt from pods.
    fn follow(&mut self, ledger: &Ledger) {
        self.level = fed(ledger, None);
    }

    /// Computes the prices again.
    fn price(&mut self, demand: &ShapeCounts, sizes: Sizes) {
        let mut asked = [0; PARTS + 1];
        for (shape, count) in demand.shapes() {
            if let Ask::Parts(parts) = &shape.ask {
                for one in parts.iter() {
                    asked[part(sizes.share_of(one))] += count;
                }
            }
        }
        self.prices = Prices::of(&asked);
    }

    /// Computes everything but the prices again.
    fn refresh(&mut self, demand: &ShapeCounts, sizes: Sizes, ledger: &Ledger) {
        let asked: Vec<_> = demand
            .shapes()
            .filter(|(shape, _)| shape.ask != Ask::Nothing)
            .map(|(shape, count)| (shape, count, count * sizes.milli_of(&shape.ask)))
            .collect();
        let milli: u64 = asked.iter().map(|(_, _, milli)| milli).sum();
        if milli == 0 {
            return;
        }
        let cpu: u128 = asked
            .iter()
            .map(|(shape, count, _)| u128::from(*count) * u128::from(shape.cpu.get()))
            .sum();
        self.level = per_card(cpu, milli).min(fed(ledger, Some(cpu)));
        // Only pods of one card count: the others are few and need whole nodes anyway.
        let singles = || asked.iter().filter(|(shape, ..)| shape.ask.gpus() == ONE);
        let all: u64 = singles().map(|(_, _, milli)| milli).sum();
        self.chance = std::array::from_fn(|cores| {
            let content = singles().filter(|(shape, ..)| shape.cpu.get() <= 1000 * cores as u64);
            let content: u64 = content.map(|(_, _, milli)| milli).sum();
            let doubt = super::signed(
                (DOUBT as u64 * content)
                    .checked_div(all)
                    .unwrap_or(DOUBT as u64),
            );
            SURE - DOUBT + doubt
        });
        self.pressure = pressure(&asked, milli, ledger);
    }
}

const ONE: sublet_model::Count = sublet_model::Count::new(1);

/// The scarcity of each model to come: the share of the demand that names it, compared with the
/// share of free cards that this demand accepts. It counts with its fourth power, so that only a
/// model that is about to run out is spared.
fn pressure(
    asked: &[(&PodShape, u64, u64)],
    milli: u64,
    ledger: &Ledger,
) -> BTreeMap<Arc<str>, i64> {
    let mut free: BTreeMap<Arc<str>, u64> = BTreeMap::new();
    for (_, book) in ledger.books() {
        if let Some(facts) = book.facts() {
            *free.entry(facts.model.clone()).or_insert(0) += left_of(book);
        }
    }
    let in_all: u64 = free.values().sum();
    let of = |model: &Arc<str>| {
        let mut expected: u128 = 0;
        let naming = asked.iter().filter(|(shape, ..)| !shape.models.is_any());
        for (shape, _, asked) in naming.filter(|(shape, ..)| shape.models.accept(model)) {
            let accepted = free.iter().filter(|(model, _)| shape.models.accept(model));
            let accepted: u64 = accepted.map(|(_, left)| left).sum();
            let whole = u128::from(milli) * u128::from(accepted.max(CARD as u64));
            expected += ((u128::from(*asked) * u128::from(in_all)) << 20) / whole;
        }
        let lack = super::signed((expected.min(1 << 20) >> 14) as u64);
        2 * lack.pow(4) * SURE / FULL.pow(4)
    };
    free.keys()
        .map(|model| (model.clone(), of(model)))
        .collect()
}

/// The CPU that pods can count on for each free card. It is a portion of the free CPU on nodes with
/// GPUs: the same portion that pods with GPUs have of the CPU in use there. `asked`: the request of
/// these pods, if it is known.
fn fed(ledger: &Ledger, asked: Option<u128>) -> i64 {
    let (mut cpu, mut taken, mut free) = (0, 0, 0);
    for (_, book) in ledger.books() {
        let host = book.facts().map_or(0, |facts| facts.host.cpu.get());
        if host > 0 && !book.shares().is_empty() {
            let left = book.host_left().cpu.get();
            cpu += u128::from(left);
            taken += u128::from(host.saturating_sub(left));
            free += left_of(book);
        }
    }
    let theirs = match asked {
        None => cpu / UNKNOWN,
        Some(asked) if asked < taken => cpu.saturating_mul(asked) / taken,
        Some(_) => cpu,
    };
    per_card(theirs, free)
}

/// The CPU for each card, rounded to tenths of a core, so that small changes do not make costs
/// stale. No bound if there are no cards.
fn per_card(cpu: u128, milli: u64) -> i64 {
    let cores = cpu
        .saturating_mul(CARD as u128)
        .checked_div(u128::from(milli));
    cores.map_or(i64::MAX, |cpu| {
        i64::try_from(cpu.saturating_add(50) / 100 * 100).unwrap_or(i64::MAX)
    })
}

/// Thousandths of cards that are free.
fn left_of(book: &Book) -> u64 {
    let shares = book.shares().iter();
    shares.map(|share| u64::from(share.get())).sum()
}

/// The hundredths of a card that so many thousandths take.
fn part(milli: u64) -> usize {
    (milli.div_ceil(10) as usize).clamp(1, PARTS)
}

/// Data of a node that a policy needs for every request.
#[derive(Debug, Clone, Copy, Default)]
struct Tiles {
    /// The worth of its free shares.
    tiles: i64,
    /// The worth of the node.
    worth: i64,
    /// The CPU that one of its cards needs; 0 if the node does not say how much CPU it has.
    level: i64,
    /// The cost of being the first pod.
    first: i64,
    /// The cost of a thousandth of a card, in 1024ths.
    pressure: i64,
}

impl Tiles {
    fn of(book: &Book, tables: &Tables) -> Tiles {
        let Some(facts) = book.facts() else {
            return Tiles::default();
        };
        let cards = facts.inventory.gpus().len();
        let cpu = facts.host.cpu.get();
        let per_card = super::signed(cpu.checked_div(cards as u64).unwrap_or(0));
        let shares = book.shares().iter();
        let free = &tables.prices.free;
        let mut tiles = Tiles {
            tiles: shares
                .map(|share| free[usize::from(share.get() / 10)])
                .sum(),
            level: if cpu == 0 {
                0
            } else {
                per_card.min(tables.level).max(1)
            },
            pressure: tables.pressure.get(&facts.model).copied().unwrap_or(0),
            ..Tiles::default()
        };
        if book.pods().next().is_none() && tables.rare.contains(&(cards, cpu)) {
            tiles.first = RARE;
        }
        let cpu_left = super::signed(book.host_left().cpu.get());
        tiles.worth = tiles.with(tiles.tiles, cpu_left, tables);
        tiles
    }

    /// The node's worth with another worth of its free shares and other free CPU.
    fn with(&self, tiles: i64, cpu_left: i64, tables: &Tables) -> i64 {
        if self.level == 0 {
            return tiles;
        }
        let worth = tiles.min(cpu_left * CARD / self.level);
        let cores = usize::try_from(cpu_left / 1000).unwrap_or(0).min(CORES);
        (worth.max(0) * tables.chance[cores]) >> 10
    }
}

/// The worth that a place takes away.
fn loss(site: &Site<'_>, asked: &Asked<'_>, tables: &Tables, position: usize) -> i64 {
    let Some(node) = site.prepared::<Tiles>() else {
        return 0;
    };
    let cpu_left = site.cpu_left() - super::signed(asked.host.cpu.get());
    let taken = site.gpu_taken(asked, position);
    let mut tiles = node.tiles;
    let mut opened = 0;
    match asked.ask {
        Ask::Nothing => {}
        Ask::WholeCards(_) => tiles -= taken,
        Ask::Parts(parts) => {
            let taken = site.card_taken(asked, position);
            let share = site.book.shares().get(position);
            let share = share.map_or(0, |share| i64::from(share.get()));
            let free = |share: i64| tables.prices.free[(share.max(0) / 10) as usize];
            let cards = i64::from(parts.count().get());
            tiles += cards * (free(share - taken) - free(share));
            opened = if share == CARD { cards * OPEN } else { 0 };
        }
    }
    let pressure = (node.pressure * taken) >> 10;
    node.worth - node.with(tiles, cpu_left, tables) + opened + node.first + pressure
}

#[cfg(test)]
mod tests;
