//! Packing of a program's allocations into the memory that a driver takes from the card.
//!
//! A card gives memory in blocks, and programs ask for bytes. A large allocation has its blocks for
//! itself. Small ones share a piece, which the driver takes as a whole when no piece has room. No
//! document states the border between small and large, the size of a piece, or whether an empty
//! piece goes back. So the arbiter makes a process of its own allocate and free, watches the
//! driver's figures meanwhile, and writes its findings here.

use crate::units::UNIT_BYTES;

/// The driver's packing of memory on one card. All sizes in bytes, multiples of [`UNIT_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// The card's unit: every large allocation is a multiple of it.
    pub block: u64,
    /// The largest allocation that shares a piece with others.
    pub small: u64,
    /// Bytes that the driver takes for small allocations at once; a multiple of the block.
    pub piece: u64,
    /// Number of empty pieces that a context keeps; `u32::MAX` for all of them.
    pub kept: u32,
    /// The least growth of a memory pool (`cuMemAllocAsync`); a multiple of the block.
    pub pool: u64,
}

impl Default for Packing {
    /// Packing of drivers since CUDA 10.2 on cards since Volta, as far as known: blocks of 2 MiB,
    /// which are pieces too, and pools that grow by 32 MiB. Every allocation below the size of a
    /// block is taken for small, and its address then shows whether it shares a block.
    fn default() -> Self {
        Self {
            block: 2 << 20,
            small: 2 << 20,
            piece: 2 << 20,
            kept: 0,
            pool: 32 << 20,
        }
    }
}

impl Packing {
    /// True if an allocation of so many bytes may lie in a piece with others, or in one that the
    /// driver keeps when it is empty. One that fills a piece has it for itself, as if it were of
    /// blocks.
    #[must_use]
    pub const fn is_shared(&self, bytes: u64) -> bool {
        bytes <= self.small && (bytes < self.piece || self.kept > 0)
    }

    /// The blocks of a large allocation, in bytes; saturating, so that nonsense is refused like
    /// any amount that no card has.
    #[must_use]
    pub const fn blocks(&self, bytes: u64) -> u64 {
        up(bytes, self.block)
    }

    /// The most that a pool grows by for an allocation.
    #[must_use]
    pub const fn pool_growth(&self, bytes: u64) -> u64 {
        up(bytes, self.pool)
    }

    /// The words of a control page. `None` if a size has no place there.
    pub(crate) fn words(&self) -> Option<(u32, u64, u64)> {
        let units = |bytes: u64| u32::try_from(bytes / UNIT_BYTES).ok();
        let both = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let block = units(self.block)?;
        let pieces = both(units(self.small)?, units(self.piece)?);
        Some((block, pieces, both(self.kept, units(self.pool)?)))
    }

    /// Reads the words of a control page; returns the default if no driver could pack as they say.
    pub(crate) fn of_words(block: u32, pieces: u64, rest: u64) -> Packing {
        let bytes = |units: u64| units * UNIT_BYTES; // below 2^41
        let low = |word: u64| word & u64::from(u32::MAX);
        let said = Packing {
            block: bytes(u64::from(block)),
            small: bytes(low(pieces)),
            piece: bytes(pieces >> 32),
            kept: low(rest) as u32, // 32 bits
            pool: bytes(rest >> 32),
        };
        if said.is_sound() {
            said
        } else {
            Packing::default()
        }
    }

    /// True if a driver can pack so.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        let Packing {
            block,
            small,
            piece,
            pool,
            ..
        } = *self;
        block.is_power_of_two()
            && block >= UNIT_BYTES
            && piece >= block
            && piece.is_multiple_of(block)
            && pool >= block
            && pool.is_multiple_of(block)
            && small <= piece
    }
}

/// `bytes` as a multiple of `step`, which is not 0.
const fn up(bytes: u64, step: u64) -> u64 {
    bytes.div_ceil(step).saturating_mul(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_is_written_is_read() {
        for (small, piece, kept, pool) in [
            (MIB, 2 * MIB, 0, 32 * MIB),
            (512 << 10, 8 * MIB, 1, 2 * MIB),
            (3 * MIB, 32 * MIB, u32::MAX, 64 * MIB),
            (0, 2 * MIB, 7, 32 * MIB),
        ] {
            let packing = Packing {
                block: 2 * MIB,
                small,
                piece,
                kept,
                pool,
            };
            let (block, pieces, rest) = packing.words().expect("it has a place");
            assert_eq!(Packing::of_words(block, pieces, rest), packing);
        }
    }

    #[test]
    fn a_page_that_says_nothing_or_nonsense_means_the_default() {
        let (block, pieces, rest) = Packing::default().words().expect("it has a place");
        for words in [
            (0, 0, 0),
            (block, 0, 0),
            (block + 1, pieces, rest),
            (block, pieces, 0),
            (block, pieces << 1 | 1, rest),
            (u32::MAX, u64::MAX, u64::MAX),
        ] {
            let read = Packing::of_words(words.0, words.1, words.2);
            assert_eq!(read, Packing::default(), "{words:?}");
        }
        let vast = Packing {
            piece: u64::MAX / 2 + 1,
            ..Packing::default()
        };
        assert_eq!(vast.words(), None);
    }

    #[test]
    fn what_fills_a_piece_shares_none_unless_the_driver_keeps_it() {
        let packing = |small, kept| Packing {
            small,
            kept,
            ..Packing::default()
        };
        for (small, kept, bytes, is_shared) in [
            (MIB, 0, MIB, true),
            (MIB, 0, MIB + 1, false),
            (2 * MIB, 0, 2 * MIB - 1, true),
            (2 * MIB, 0, 2 * MIB, false),
            (2 * MIB, 1, 2 * MIB, true),
            (2 * MIB, 1, 2 * MIB + 1, false),
        ] {
            let packing = packing(small, kept);
            assert_eq!(packing.is_shared(bytes), is_shared, "{bytes} {packing:?}");
        }
    }

    #[test]
    fn amounts_are_rounded_up_and_never_overflow() {
        let packing = Packing::default();
        for (bytes, blocks) in [
            (0, 0),
            (1, 2 * MIB),
            (2 * MIB, 2 * MIB),
            (2 * MIB + 1, 4 * MIB),
            (u64::MAX, u64::MAX),
        ] {
            assert_eq!(packing.blocks(bytes), blocks, "{bytes}");
        }
        assert_eq!(packing.pool_growth(33 * MIB), 64 * MIB);
    }
}
