//! Small allocations, and the pieces of a card that they share.
//!
//! A driver takes a piece of the card when a small allocation would not fit into its pieces, and
//! does not report this. The address shows it: an allocation inside a piece that is paid for costs
//! nothing more, any other one begins a new piece. So room for one piece is reserved before the
//! driver is asked, and given back if it was not needed. One thread at a time does this, so a
//! process holds back one piece at most.
//!
//! The driver does not report the start of a piece either. A piece is assumed to begin with the
//! block of the first address seen in it; this is true if a driver fills an empty piece from its
//! start. The addresses of empty pieces that a driver keeps are unknown: these pieces are paid for,
//! and have no addresses.

use std::collections::{BTreeMap, HashMap};

use sublet_abi::{Packing, Units};

use super::c::*;

/// Groups of allocations that share pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Memory of a card.
    Device,
    /// Memory that moves between card and host. A card takes it by blocks; nothing more is known.
    Managed,
}

impl Kind {
    /// Returns the packing of this kind of memory on a card.
    #[must_use]
    pub fn packing(self, of_card: Packing) -> Packing {
        match self {
            Kind::Device => of_card,
            Kind::Managed => Packing {
                small: of_card.block,
                piece: of_card.block,
                kept: 0,
                ..of_card
            },
        }
    }
}

/// The largest allocation that shares a piece on every driver: far below a piece.
pub const TINY: u64 = 64 << 10;

/// Pieces of one kind on one card, as far as they are paid for.
#[derive(Debug, Default)]
pub struct Heap {
    /// Pieces in use, by their start; they do not overlap.
    pieces: BTreeMap<u64, Piece>,
    /// Charges of the empty pieces that the driver keeps for a context.
    idle: HashMap<CUcontext, Vec<Units>>,
}

#[derive(Debug)]
struct Piece {
    end: u64,
    charge: Units,
    /// Allocations in it.
    live: usize,
    /// So many of these are being freed, or are freed and held by somebody else: the driver may
    /// have them no more.
    leaving: usize,
    /// From here to the end nothing was ever given out.
    fresh: u64,
    /// Does it certainly hold small allocations? One of nearly a piece may have blocks for
    /// itself that look like a piece.
    is_shared: bool,
    /// Context of the piece; null when that context is gone.
    context: CUcontext,
}

impl Heap {
    /// True if a driver with these pieces need not take another one for so many bytes of a context.
    /// Only room that was never given out is sure, in a piece that is certainly one: freed memory
    /// may be in parts, and a piece that is empty, or about to be, may be gone.
    #[must_use]
    pub fn has_room(&self, bytes: u64, context: CUcontext) -> bool {
        let room = |piece: &Piece| piece.end.saturating_sub(piece.fresh);
        let is_sure = |piece: &Piece| {
            piece.is_shared && piece.live > piece.leaving && piece.context == context
        };
        let mut pieces = self.pieces.values();
        pieces.any(|piece| is_sure(piece) && room(piece) >= bytes)
    }

    /// An allocation is about to be freed. [`Heap::free`] or [`Heap::stay`] follows.
    pub fn leave(&mut self, address: u64) {
        if let Some(piece) = self.piece_of(address) {
            piece.leaving += 1;
        }
    }

    /// The driver did not free it.
    pub fn stay(&mut self, address: u64) {
        if let Some(piece) = self.piece_of(address) {
            piece.leaving = piece.leaving.saturating_sub(1);
        }
    }

    /// True if an address lies in one of these pieces.
    #[must_use]
    pub fn knows(&self, address: u64) -> bool {
        self.start_of(address).is_some()
    }

    /// An allocation was made. True if it begins a piece, which must be paid for.
    pub fn place(
        &mut self,
        address: u64,
        bytes: u64,
        context: CUcontext,
        packing: &Packing,
    ) -> bool {
        let to = align(address.saturating_add(bytes));
        // Of what is larger nobody can see whether it shares a piece (`Packing::small`).
        let is_shared = bytes <= TINY.max(packing.piece.saturating_sub(packing.block));
        if let Some(piece) = self.piece_of(address) {
            piece.live += 1;
            piece.is_shared |= is_shared;
            piece.fresh = piece.fresh.max(to);
            return false;
        }
        let start = address - address % packing.block;
        let after = self.pieces.range(start..).next();
        let next = after.map_or(u64::MAX, |(&next, _)| next);
        let kept = self.idle.get_mut(&context).and_then(Vec::pop);
        let new = Units::taken_by(packing.piece).unwrap_or(Units::MAX);
        let piece = Piece {
            end: start.saturating_add(packing.piece).min(next),
            charge: kept.unwrap_or(new),
            live: 1,
            leaving: 0,
            fresh: to,
            is_shared,
            context,
        };
        self.pieces.insert(start, piece);
        kept.is_none()
    }

    /// Removes an allocation that was leaving. Returns the amount to give back: an empty piece,
    /// unless the driver keeps it.
    pub fn free(&mut self, address: u64, kept: u32) -> Units {
        let Some(piece) = self.piece_of(address) else {
            return Units::ZERO;
        };
        piece.live = piece.live.saturating_sub(1);
        piece.leaving = piece.leaving.saturating_sub(1);
        if piece.live > 0 {
            return Units::ZERO;
        }
        let start = self.start_of(address);
        let Some(piece) = start.and_then(|start| self.pieces.remove(&start)) else {
            return Units::ZERO;
        };
        let idle = self.idle.entry(piece.context).or_default();
        if piece.context.is_null() || idle.len() >= kept as usize {
            return piece.charge;
        }
        idle.push(piece.charge);
        Units::ZERO
    }

    /// Removes contexts, and the pieces that they kept. Returns the amount to give back.
    pub fn end(&mut self, is_gone: impl Fn(CUcontext) -> bool) -> Units {
        for piece in self.pieces.values_mut() {
            if is_gone(piece.context) {
                piece.context = CUcontext::default();
            }
        }
        let gone = self.idle.extract_if(|context, _| is_gone(*context));
        let charges = gone.flat_map(|(_, charges)| charges);
        charges.fold(Units::ZERO, Units::saturating_add)
    }

    fn start_of(&self, address: u64) -> Option<u64> {
        let (&start, piece) = self.pieces.range(..=address).next_back()?;
        (address < piece.end).then_some(start)
    }

    fn piece_of(&mut self, address: u64) -> Option<&mut Piece> {
        let (_, piece) = self.pieces.range_mut(..=address).next_back()?;
        (address < piece.end).then_some(piece)
    }
}

/// The start of every allocation is a multiple of this; PyTorch and others rely on 512.
fn align(address: u64) -> u64 {
    address.div_ceil(512).saturating_mul(512)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;
    const CONTEXT: CUcontext = CUcontext(64);

    fn packing(piece: u64, kept: u32) -> Packing {
        Packing {
            small: piece / 2,
            piece,
            kept,
            ..Packing::default()
        }
    }

    #[test]
    fn an_address_says_whether_a_piece_is_new() {
        let by_two = packing(2 * MIB, 0);
        let mut heap = Heap::default();
        let base = 100 * MIB;
        assert!(heap.place(base, 1, CONTEXT, &by_two));
        assert!(!heap.place(base + 512, 600, CONTEXT, &by_two));
        assert!(heap.has_room(2 * MIB - 2048, CONTEXT) && !heap.has_room(2 * MIB - 1024, CONTEXT));
        // What leaves may be gone already.
        heap.leave(base);
        assert!(heap.has_room(1, CONTEXT), "the other one stays");
        heap.leave(base + 512);
        heap.stay(base);
        assert!(heap.has_room(1, CONTEXT));
        heap.leave(base);
        assert!(!heap.has_room(1, CONTEXT));
        heap.stay(base);
        heap.stay(base + 512);
        assert!(!heap.has_room(1, CUcontext(128)), "another context's");
        assert!(heap.place(base + 2 * MIB, 1, CONTEXT, &by_two));
        // Given back with the last allocation, whichever that is.
        assert_eq!(heap.free(base, 0), Units::ZERO);
        assert_eq!(heap.free(base + 512, 0).bytes(), 2 * MIB);
        assert_eq!(heap.free(base + 2 * MIB, 0).bytes(), 2 * MIB);
        assert_eq!(heap.free(base, 0), Units::ZERO, "nobody knows that address");
        assert!(!heap.has_room(1, CONTEXT));
    }

    #[test]
    fn empty_pieces_that_a_driver_keeps_stay_paid_for_until_the_context_goes() {
        let keeps = packing(8 * MIB, 1);
        let mut heap = Heap::default();
        let starts = [80 * MIB, 160 * MIB];
        for start in starts {
            assert!(heap.place(start, MIB, CONTEXT, &keeps));
        }
        assert_eq!(heap.free(starts[0], 1), Units::ZERO);
        assert!(
            !heap.has_room(1 << 10 << 10 << 3, CONTEXT),
            "7 MiB are left of one"
        );
        assert!(heap.has_room(7 * MIB, CONTEXT), "the other one is in use");
        assert_eq!(heap.free(starts[1], 1).bytes(), 8 * MIB);
        assert!(!heap.has_room(1, CONTEXT), "an empty piece may be gone");
        // Nobody knows which of them was kept: it is paid for, wherever it is.
        assert!(!heap.place(starts[1], 1, CONTEXT, &keeps), "paid for");
        assert_eq!(heap.end(|context| context == CUcontext(128)), Units::ZERO);
        assert_eq!(heap.end(|context| context == CONTEXT), Units::ZERO);
        // Somebody else held it for longer than its context lived.
        assert_eq!(heap.free(starts[1], 1).bytes(), 8 * MIB);
    }

    #[test]
    fn blocks_that_look_like_a_piece_have_no_room() {
        // Whether the driver takes it for small or for large, it takes one block.
        let by_two = packing(2 * MIB, 0);
        let mut heap = Heap::default();
        assert!(heap.place(40 * MIB, 3 * MIB / 2, CONTEXT, &by_two));
        assert!(!heap.has_room(1, CONTEXT));
        assert!(!heap.place(40 * MIB + 3 * MIB / 2, 1, CONTEXT, &by_two));
        assert!(heap.has_room(1, CONTEXT), "it does share");
    }

    #[test]
    fn an_empty_piece_has_no_addresses() {
        // The driver gives one back, and takes another one that begins where it ended before.
        let by_eight = packing(8 * MIB, 0);
        let mut heap = Heap::default();
        assert!(heap.place(40 * MIB, 1, CONTEXT, &by_eight));
        heap.leave(40 * MIB);
        assert_eq!(heap.free(40 * MIB, 0).bytes(), 8 * MIB);
        assert!(heap.place(42 * MIB, 1, CONTEXT, &by_eight));
        assert!(!heap.place(49 * MIB, 1, CONTEXT, &by_eight));
        assert!(heap.place(50 * MIB, 1, CONTEXT, &by_eight));
    }

    proptest! {
        /// Against a driver that packs in this way, whatever it is asked: never below the truth,
        /// and in the end nothing is left.
        #[test]
        fn it_is_never_below_what_a_driver_takes(
            steps in proptest::collection::vec((any::<bool>(), 1_u64..(4 * MIB)), 1..200),
            (piece, kept, small, known) in prop_oneof![
                // Of pieces of one block nobody sees up to which size they are shared.
                Just((2 * MIB, 0, TINY, 2 * MIB)),
                Just((2 * MIB, 0, MIB, 2 * MIB)),
                Just((8 * MIB, 1, 4 * MIB, 4 * MIB)),
                Just((8 * MIB, u32::MAX, MIB, MIB)),
                Just((32 * MIB, 0, 16 * MIB, 16 * MIB)),
            ],
        ) {
            let packing = Packing { small: known, ..packing(piece, kept) };
            let (kept_pieces, pieces, next) = (kept as usize, Vec::new(), 1 << 40);
            let mut driver = Driver { small, piece, kept: kept_pieces, pieces, next };
            let (mut heap, mut charged) = (Heap::default(), 0_u64);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (allocate, bytes) in steps {
                if allocate || live.is_empty() {
                    let bytes = bytes.min(packing.small);
                    let (had_room, before) = (heap.has_room(bytes, CONTEXT), driver.taken());
                    let address = driver.allocate(bytes);
                    prop_assert!(!had_room || bytes > small || driver.taken() == before);
                    if heap.place(address, bytes, CONTEXT, &packing) {
                        charged += piece;
                    }
                    live.push((address, bytes));
                } else {
                    let (address, bytes) = live.swap_remove(bytes as usize % live.len());
                    driver.free(address, bytes);
                    charged -= heap.free(address, kept).bytes();
                }
                prop_assert!(charged >= driver.taken(), "{charged} < {}", driver.taken());
                prop_assert_eq!(charged, driver.taken());
            }
            for (address, bytes) in live {
                driver.free(address, bytes);
                charged -= heap.free(address, kept).bytes();
            }
            prop_assert_eq!(charged - heap.end(|_| true).bytes(), 0);
        }
    }

    /// A driver's own heap: first fit, lowest piece first.
    struct Driver {
        /// Larger allocations have a piece for themselves.
        small: u64,
        piece: u64,
        kept: usize,
        /// Start of each piece, and its parts that are taken.
        pieces: Vec<(u64, BTreeMap<u64, u64>)>,
        next: u64,
    }

    impl Driver {
        fn taken(&self) -> u64 {
            self.pieces.len() as u64 * self.piece
        }

        fn allocate(&mut self, bytes: u64) -> u64 {
            let bytes = if bytes > self.small {
                self.piece
            } else {
                align(bytes)
            };
            for (start, parts) in &mut self.pieces {
                let mut at = *start;
                for (&from, &length) in &*parts {
                    if from - at >= bytes {
                        break;
                    }
                    at = from + length;
                }
                if at + bytes <= *start + self.piece {
                    parts.insert(at, bytes);
                    return at;
                }
            }
            // As low as it fits between the others, at any block.
            self.pieces.sort_by_key(|(start, _)| *start);
            let mut at = self.next;
            for (start, _) in &self.pieces {
                if at + self.piece <= *start {
                    break;
                }
                at = start + self.piece + self.next % (6 * MIB);
            }
            let start = at;
            self.next += 2 * MIB;
            self.pieces.push((start, BTreeMap::from([(start, bytes)])));
            start
        }

        fn free(&mut self, address: u64, _bytes: u64) {
            for (_, parts) in &mut self.pieces {
                parts.remove(&address);
            }
            while self
                .pieces
                .iter()
                .filter(|(_, parts)| parts.is_empty())
                .count()
                > self.kept
            {
                let empty = self.pieces.iter().position(|(_, parts)| parts.is_empty());
                self.pieces.remove(empty.expect("there is one"));
            }
        }
    }
}
