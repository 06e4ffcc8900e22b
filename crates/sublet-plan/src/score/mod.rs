//! Scores: what makes one place better than another. One file per policy.
//!
//! A score is a cost, lower is better, of taking a place that fits. It depends on the node's
//! page, on what is asked, and on tables that are learnt slowly ([`Learnt`]); so it can be
//! kept until one of them changes, and a placement makes one node's costs stale. All but the
//! two packing policies of memory work in thousandths of a card, so that cards of different
//! sizes compare.

mod baseline;
mod fragment;
mod pack;
mod tiling;

use sublet_model::{Ask, Book, Host, Ledger, MiB, Milli, PodUid};

pub use self::fragment::Fragmentation;
pub(crate) use self::fragment::{Fragments, Typical};
pub(crate) use self::pack::{After, Pack};
pub(crate) use self::tiling::{Tables, Tiles};
use crate::learn::Learnt;

/// A cost: lower is better.
pub(crate) type Cost = i64;

/// A way to score places.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Binpack,
    Spread,
    Random,
    BestFit,
    DotProduct,
    GpuPacking,
    GpuClustering,
    Fgd,
    FgdOnline,
    Tiling,
    TilingStill,
}

/// What is asked, as a score sees it.
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
    pub(crate) prepared: &'a Prepared,
}

/// What a policy works out once for a node, whatever is asked.
#[derive(Debug, Clone, Default)]
pub(crate) enum Prepared {
    #[default]
    Nothing,
    Fragments(Fragments),
    Classes(baseline::Classes),
    Tiles(Tiles),
}

impl Asked<'_> {
    /// The share of a card of that size that is asked of one card: of parts, that of the first.
    pub(crate) fn share_of(&self, capacity: MiB) -> Milli {
        match self.ask {
            Ask::Nothing => Milli::ZERO,
            Ask::Parts(parts) => parts.first().share_of(capacity),
            Ask::WholeCards(_) => Milli::WHOLE,
        }
    }
}

impl Site<'_> {
    /// Free share of all cards together, in thousandths of a card.
    pub(crate) fn gpu_left(&self) -> i64 {
        let shares = self.book.shares().iter();
        shares.map(|share| i64::from(share.get())).sum()
    }

    /// CPU that no pod has asked, in thousandths of a core.
    pub(crate) fn cpu_left(&self) -> i64 {
        signed(self.book.host_left().cpu.get())
    }

    /// What the claim takes in all, in thousandths of a card; `position` is its first card. The
    /// cards of a node are alike, or nearly so: parts are counted as if all were on such cards.
    pub(crate) fn gpu_taken(&self, asked: &Asked<'_>, position: usize) -> i64 {
        match asked.ask {
            Ask::Nothing => 0,
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

    /// What it takes of its first card.
    pub(crate) fn card_taken(&self, asked: &Asked<'_>, position: usize) -> i64 {
        let card = self.book.cards().get(position);
        card.map_or(0, |card| {
            i64::from(asked.share_of(card.capacity.memory).get())
        })
    }
}

impl Kind {
    pub(crate) const ALL: [(&'static str, Kind); 11] = [
        ("tiling", Kind::Tiling),
        ("binpack", Kind::Binpack),
        ("spread", Kind::Spread),
        ("random", Kind::Random),
        ("best-fit", Kind::BestFit),
        ("dot-product", Kind::DotProduct),
        ("gpu-packing", Kind::GpuPacking),
        ("gpu-clustering", Kind::GpuClustering),
        ("fgd", Kind::Fgd),
        ("fgd-online", Kind::FgdOnline),
        ("tiling-still", Kind::TilingStill),
    ];

    pub(crate) fn name(self) -> &'static str {
        let found = Kind::ALL.iter().find(|(_, kind)| *kind == self);
        found.map_or("", |(name, _)| name)
    }

    /// The two policies of memory, which a scan can screen by outlines.
    pub(crate) fn pack(self) -> Option<&'static Pack> {
        match self {
            Kind::Binpack => Some(&pack::BINPACK),
            Kind::Spread => Some(&pack::SPREAD),
            _ => None,
        }
    }

    /// Are its costs scaled to 0 to 100 over the nodes that fit, even when it is alone?
    pub(crate) fn is_relative(self) -> bool {
        self == Kind::BestFit
    }

    /// Does the cost depend on who asks, so that it cannot be kept?
    pub(crate) fn is_personal(self) -> bool {
        self == Kind::Random
    }

    /// Does it need tables that are made of the nodes or of the pods that arrive?
    pub(crate) fn learns(self) -> bool {
        matches!(self, Kind::FgdOnline | Kind::Tiling | Kind::TilingStill)
    }

    /// Does it need to know something of a node, whatever is asked?
    pub(crate) fn prepares(self) -> bool {
        self.learns() || matches!(self, Kind::Fgd | Kind::GpuClustering)
    }

    /// What the policy needs to know of a node, whatever is asked.
    pub(crate) fn prepare(self, ledger: &Ledger, book: &Book, learnt: &Learnt) -> Prepared {
        match self {
            Kind::Fgd | Kind::FgdOnline => {
                Prepared::Fragments(Fragments::of(book, learnt.typical(self)))
            }
            Kind::Tiling | Kind::TilingStill => {
                Prepared::Tiles(Tiles::of(book, learnt.tables(self)))
            }
            Kind::GpuClustering => Prepared::Classes(baseline::Classes::of(ledger, book)),
            _ => Prepared::Nothing,
        }
    }

    /// Which of the node's cards? The cost of taking a part of the card at `position`, of
    /// which `left` would be left; ties go to the first card.
    pub(crate) fn card(
        self,
        site: &Site<'_>,
        asked: &Asked<'_>,
        learnt: &Learnt,
        position: usize,
        left: MiB,
    ) -> Cost {
        match self {
            Kind::Binpack => (pack::BINPACK.card)(left),
            Kind::Spread => (pack::SPREAD.card)(left),
            Kind::Random => baseline::draw_card(asked.uid, position),
            Kind::BestFit | Kind::DotProduct | Kind::GpuPacking | Kind::GpuClustering => {
                i64::from(site.book.shares()[position].get())
            }
            Kind::Fgd | Kind::FgdOnline => {
                fragment::cost(site, asked, learnt.typical(self), position)
            }
            Kind::Tiling | Kind::TilingStill => {
                tiling::card(site, asked, learnt.tables(self), position)
            }
        }
    }

    /// Which node? The cost of the best place on it: the card at `position`, or the idle
    /// cards for whole ones.
    pub(crate) fn node(
        self,
        site: &Site<'_>,
        asked: &Asked<'_>,
        learnt: &Learnt,
        position: usize,
        after: &After,
    ) -> Cost {
        match self {
            Kind::Binpack => (pack::BINPACK.node)(after),
            Kind::Spread => (pack::SPREAD.node)(after),
            Kind::Random => baseline::draw_node(asked.uid, site.book.name()),
            Kind::BestFit => baseline::best_fit(site, asked, position),
            Kind::DotProduct => baseline::dot_product(site, asked, position),
            Kind::GpuPacking => baseline::gpu_packing(site, asked, position),
            Kind::GpuClustering => baseline::gpu_clustering(site, asked),
            Kind::Tiling | Kind::TilingStill => {
                tiling::node(site, asked, learnt.tables(self), position)
            }
            Kind::Fgd | Kind::FgdOnline => {
                fragment::cost(site, asked, learnt.typical(self), position)
            }
        }
    }
}

/// Amounts of CPU and of cards are far below 2^63.
pub(crate) fn signed(amount: u64) -> i64 {
    i64::try_from(amount).unwrap_or(i64::MAX)
}
