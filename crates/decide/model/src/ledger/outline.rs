//! A node's page in one cache line, the first data of a scan over thousands of nodes.
//!
//! An outline never decides. It says for certain which nodes have no room, and within which limits
//! the rest can leave memory over, so that a scan opens the few pages that count. It is worked out
//! from the page, by [`Outline::of`] and nothing else. It knows memory alone: other shortages of a
//! card are on the page.

use super::{Book, Card};
use crate::{Count, MiB, Sharing};

/// Facts about a node that a scan needs before it opens the node's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outline {
    rooms: Rooms,
    left: MiB,
    capacity: MiB,
    smallest: MiB,
    largest: MiB,
    // No node has more than `Inventory::MAX_GPUS` cards, so 16 bits hold every count of them.
    idle: u16,
    wanted: u16,
    /// Cards that a part may go on, full ones counted in.
    open: u16,
}

/// The rooms on a node's cards for a part of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Rooms {
    /// The largest room, soft holds left aside.
    hole: MiB,
    /// The smallest room with soft holds counted in; means nothing if there are no `sizes`.
    tightest: MiB,
    /// Sizes of the rooms with soft holds counted in: a bit for each rung that has one.
    sizes: u64,
}

impl Rooms {
    fn add(&mut self, card: &Card) {
        let free = card.free().memory;
        self.hole = self.hole.max(free);
        if let Some(room) = free.checked_sub(card.held.memory) {
            let first = self.sizes == 0;
            self.tightest = if first { room } else { self.tightest.min(room) };
            self.sizes |= 1 << rung(room);
        }
    }

    fn join(&mut self, other: &Rooms) {
        self.hole = self.hole.max(other.hole);
        self.tightest = match (self.sizes, other.sizes) {
            (_, 0) => self.tightest,
            (0, _) => other.tightest,
            _ => self.tightest.min(other.tightest),
        };
        self.sizes |= other.sizes;
    }
}

impl Outline {
    /// The outline of a page.
    #[must_use]
    pub fn of(book: &Book) -> Outline {
        let Some(facts) = book.facts() else {
            return Outline::default();
        };
        let mut outline = Outline {
            capacity: book.capacity(),
            smallest: MiB::MAX,
            ..Outline::default()
        };
        let mut on_idle = Rooms::default();
        let (mut idle, mut wanted, mut held) = (0, 0, MiB::ZERO);
        for card in book.cards() {
            held = held.plus(card.held.memory);
            if card.is_idle() {
                idle += 1;
                wanted += u16::from(card.holds > 0);
                outline.smallest = outline.smallest.min(card.capacity.memory);
                outline.largest = outline.largest.max(card.capacity.memory);
                on_idle.add(card);
            } else if card.healthy && card.whole == 0 {
                outline.open += 1;
                outline.rooms.add(card);
            }
        }
        outline.left = book.free().saturating_sub(held);
        outline.open += idle;
        outline.rooms.join(&on_idle);
        // A pod that holds whole cards without saying which may have any of them.
        let unplaced = u16::try_from(book.unplaced().get()).unwrap_or(u16::MAX);
        if facts.sharing == Sharing::Whole || unplaced > 0 {
            outline.open = 0;
            outline.rooms = Rooms::default();
        }
        if facts.sharing != Sharing::Memory {
            outline.idle = idle.saturating_sub(unplaced);
            outline.wanted = wanted;
        }
        outline
    }

    /// Has a card that parts may go on so much free, soft holds left aside?
    #[must_use]
    pub fn has_room(&self, asked: MiB) -> bool {
        self.open > 0 && self.rooms.hole >= asked
    }

    /// The largest room on one card, soft holds left aside.
    #[must_use]
    pub fn hole(&self) -> MiB {
        self.rooms.hole
    }

    /// No room of at least `asked`, with soft holds counted in, is smaller than this one;
    /// `None` if there certainly is none at all.
    #[must_use]
    pub fn least_room(&self, asked: MiB) -> Option<MiB> {
        let Rooms {
            tightest, sizes, ..
        } = self.rooms;
        if sizes != 0 && tightest >= asked {
            return Some(tightest);
        }
        let sizes = sizes & (u64::MAX << rung(asked));
        (sizes != 0).then(|| foot(sizes.trailing_zeros()).max(asked))
    }

    /// Idle cards that can be handed out whole.
    #[must_use]
    pub fn idle(&self) -> Count {
        Count::new(self.idle.into())
    }

    /// Idle cards that a soft hold wants.
    #[must_use]
    pub fn wanted(&self) -> Count {
        Count::new(self.wanted.into())
    }

    /// The least and the most that so many idle cards have together.
    #[must_use]
    pub fn idle_memory(&self, cards: Count) -> (MiB, MiB) {
        let times = |memory: MiB| {
            let product = memory.get().saturating_mul(cards.get().into());
            MiB::new(product).unwrap_or(MiB::MAX)
        };
        (times(self.smallest), times(self.largest))
    }

    /// Free memory of all cards together, with soft holds counted in.
    #[must_use]
    pub fn left(&self) -> MiB {
        self.left
    }

    /// Memory of all cards together.
    #[must_use]
    pub fn capacity(&self) -> MiB {
        self.capacity
    }
}

/// The class of an amount, one of 64 sizes: eight to each doubling from 2 GiB, below which few
/// cards are left with anything, up to 448 GiB, which no card has yet.
const fn rung(amount: MiB) -> u32 {
    let units = amount.get() >> 8;
    if units < 8 {
        return 0;
    }
    let doubling = units.ilog2() - 3;
    let rung = 8 * doubling + (units >> doubling) as u32 - 7;
    if rung < 63 { rung } else { 63 }
}

/// The smallest amount on a rung.
fn foot(rung: u32) -> MiB {
    let Some(above) = rung.checked_sub(1) else {
        return MiB::ZERO;
    };
    MiB::from((8 + above % 8) << (above / 8 + 8))
}

#[cfg(test)]
mod tests;
