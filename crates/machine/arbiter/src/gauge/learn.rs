//! Finds out the driver's packing of memory by allocating and reading its figures.
//!
//! The driver says only the total use of a process on a card. So each question is put as an
//! allocation: the growth that it causes, and the rest after it was freed.

use sublet_abi::Packing;

/// A card with one process on it, which does nothing else meanwhile. `None` if the driver
/// refuses.
pub(crate) trait Card {
    /// Linear memory; its address.
    fn allocate(&mut self, bytes: u64) -> Option<u64>;

    /// Gives that back.
    fn free(&mut self, address: u64) -> Option<()>;

    /// The process's use of the card in bytes, by the driver's count.
    fn used(&mut self) -> Option<u64>;

    /// Memory that a pool takes on the card for its first byte, in bytes.
    fn pool(&mut self) -> Option<u64>;
}

/// Large on every driver.
const LARGE: u64 = 64 << 20;

/// Small on every driver: an eighth of what one of today's takes at once is 256 KiB.
const TINY: u64 = 64 << 10;

/// Maximum number of tiny allocations until a driver takes a new piece. If it takes none by
/// then, its pieces are useless to any program: 256 MiB of allocations.
const TINIES_MAX: u64 = (256 << 20) / TINY;

/// So many pieces are filled to see how many of them stay.
const FILLED: u64 = 4;

/// Packing of memory by the driver there; `None` if it refuses the measurement.
pub(crate) fn learn(card: &mut impl Card) -> Option<Packing> {
    let block = block(card)?;
    let usual = Packing {
        block,
        small: block,
        piece: block,
        kept: 0,
        pool: Packing::default().pool,
    };
    let pool = card.pool().filter(|pool| pool.is_multiple_of(block));
    let pool = pool.filter(|pool| *pool > 0).unwrap_or(usual.pool);
    let packing = match pieces(card, block)? {
        Some((piece, kept)) => {
            let small = small(card, block, piece, kept)?;
            Packing {
                small,
                piece,
                kept,
                pool,
                ..usual
            }
        }
        None => Packing { pool, ..usual },
    };
    Some(packing).filter(Packing::is_sound)
}

/// The block size, by an allocation of a little more than a round number.
fn block(card: &mut impl Card) -> Option<u64> {
    let block = grown(card, LARGE + 1)?.checked_sub(LARGE)?;
    block.is_power_of_two().then_some(block)
}

/// Memory taken by an allocation while it exists.
fn grown(card: &mut impl Card, bytes: u64) -> Option<u64> {
    let before = card.used()?;
    let address = card.allocate(bytes)?;
    let after = card.used()?;
    card.free(address)?;
    Some(after.saturating_sub(before))
}

/// Size of a piece, and number of empty ones that stay. Nothing if not even tiny allocations
/// share one.
fn pieces(card: &mut impl Card, block: u64) -> Option<Option<(u64, u32)>> {
    let mut live = Vec::new();
    let found = fill(card, &mut live);
    for address in live.drain(..) {
        card.free(address)?;
    }
    let Some((piece, before, filled)) = found? else {
        return Some(None);
    };
    let left = card.used()?.saturating_sub(before);
    let is_odd = !piece.is_multiple_of(block) || !left.is_multiple_of(piece);
    if is_odd {
        return None;
    }
    let kept = if left >= filled {
        u32::MAX
    } else {
        u32::try_from(left / piece).ok()?
    };
    Some(Some((piece, kept)))
}

/// Fills pieces. Returns the size of one, the use before the first, and the use of all.
fn fill(card: &mut impl Card, live: &mut Vec<u64>) -> Option<Option<(u64, u64, u64)>> {
    let mut before = card.used()?;
    let mut piece = 0;
    for _ in 0..TINIES_MAX {
        live.push(card.allocate(TINY)?);
        let now = card.used()?;
        if now > before {
            piece = now - before;
            break;
        }
        before = now;
    }
    if piece < 2 * TINY {
        return Some(None);
    }
    live.push(card.allocate(TINY)?);
    if card.used()? > before + piece {
        return Some(None);
    }
    for _ in 0..(FILLED - 1) * (piece / TINY) {
        live.push(card.allocate(TINY)?);
    }
    let filled = card.used()? - before;
    Some(Some((piece, before, filled)))
}

/// The largest allocation that shares a piece.
fn small(card: &mut impl Card, block: u64, piece: u64, kept: u32) -> Option<u64> {
    // Where an empty piece is there, whatever shares pieces takes nothing. Where none is, it
    // takes a whole one; and of what is larger than all blocks of a piece but one, nobody can
    // tell the difference, nor need to.
    let has_empty = kept > 0;
    let most = if has_empty { piece } else { piece - block };
    let mut is_small = |bytes: u64| {
        let grown = grown(card, bytes)?;
        Some(grown == 0 || !has_empty && grown == piece)
    };
    if most < TINY || is_small(most)? {
        return Some(piece);
    }
    let (mut small, mut large) = (TINY, most);
    while large - small > 1 {
        let middle = small.midpoint(large);
        if is_small(middle)? {
            small = middle;
        } else {
            large = middle;
        }
    }
    // The page counts in 512 bytes, and a limit that is not round is a step of the driver's.
    Some(small.next_multiple_of(512).min(piece))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A driver that packs in some way, in a context that has something already.
    struct Driver {
        block: u64,
        small: u64,
        piece: u64,
        kept: usize,
        pool: u64,
        used: u64,
        next: u64,
        large: BTreeMap<u64, u64>,
        /// Pieces by their begin: free bytes at their end, and bytes in use.
        pieces: Vec<(u64, u64, u64)>,
        n_asked: usize,
    }

    impl Card for Driver {
        fn allocate(&mut self, bytes: u64) -> Option<u64> {
            if bytes > self.small {
                let blocks = bytes.next_multiple_of(self.block);
                self.used += blocks;
                self.large.insert(self.next, blocks);
                self.next += blocks;
                return Some(self.next - blocks);
            }
            let has_room = |(_, free, _): &&mut (u64, u64, u64)| *free >= bytes;
            if self.pieces.iter_mut().find(has_room).is_none() {
                self.used += self.piece;
                self.pieces.push((self.next, self.piece, 0));
                self.next += self.piece;
            }
            let (start, free, live) = self.pieces.iter_mut().find(has_room)?;
            let address = *start + self.piece - *free;
            *free -= bytes;
            *live += 1;
            Some(address)
        }

        fn free(&mut self, address: u64) -> Option<()> {
            if let Some(blocks) = self.large.remove(&address) {
                self.used -= blocks;
                return Some(());
            }
            let is_in = |start: u64| (start..start + self.piece).contains(&address);
            let (_, free, live) = self.pieces.iter_mut().find(|(start, ..)| is_in(*start))?;
            *live -= 1;
            if *live == 0 {
                *free = self.piece;
            }
            let empty = |(_, _, live): &(u64, u64, u64)| *live == 0;
            while self.pieces.iter().filter(|piece| empty(piece)).count() > self.kept {
                let at = self.pieces.iter().position(empty)?;
                self.pieces.remove(at);
                self.used -= self.piece;
            }
            Some(())
        }

        fn used(&mut self) -> Option<u64> {
            self.n_asked += 1;
            Some(self.used)
        }

        fn pool(&mut self) -> Option<u64> {
            Some(self.pool)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn whatever_a_driver_does_is_found_out(
            small in 128_u64..8192,
            piece in 1_u64..32,
            kept in prop_oneof![Just(0_usize), Just(1), Just(2), Just(usize::MAX)],
            before in 0_u64..4,
        ) {
            let (block, piece) = (2 * MIB, piece * 2 * MIB);
            let small = (small * 512).min(piece);
            let mut driver = Driver {
                block,
                small,
                piece,
                kept,
                pool: 32 * MIB,
                used: 300 * MIB,
                next: 1 << 40,
                large: BTreeMap::new(),
                pieces: Vec::new(),
                n_asked: 0,
            };
            // What the context itself has in the first piece.
            for _ in 0..before {
                driver.allocate(50_000);
            }
            let found = learn(&mut driver).expect("it answers");
            let most = if kept == 0 { piece - block } else { piece };
            let expected = Packing {
                block,
                small: if small >= most { piece } else { small },
                piece,
                kept: u32::try_from(kept).unwrap_or(u32::MAX),
                pool: 32 * MIB,
            };
            prop_assert_eq!(found, expected);
            prop_assert!(driver.n_asked < 1200, "asked {} times", driver.n_asked);
        }
    }

    #[test]
    fn a_driver_that_shares_nothing_has_no_pieces() {
        let mut driver = Driver {
            block: 2 * MIB,
            small: 0,
            piece: 2 * MIB,
            kept: 0,
            pool: 7,
            used: 0,
            next: 1 << 40,
            large: BTreeMap::new(),
            pieces: Vec::new(),
            n_asked: 0,
        };
        assert_eq!(learn(&mut driver), Some(Packing::default()));
    }
}
