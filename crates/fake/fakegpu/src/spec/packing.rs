//! Packing of allocations into the memory of cards by a machine's driver. NVIDIA documents none of
//! it, and drivers differ. So it is a property of the machine, and every process of the machine
//! packs alike.

use std::fmt;

use sublet_model::parse_bytes;

use super::text::{MEMORY_MAX_MIB, SpecError, number, shown};
use crate::driver::memory::address_space::BLOCK;

/// Rule by which `cuMemAlloc` and its kin take memory of a card. An allocation is small or large. A
/// large one has whole blocks of 2 MiB for itself. Small ones of a context share pieces. Text:
/// `SMALL:PIECE:KEPT`, such as `512KiB:8MiB:1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackingRule {
    /// An allocation of at most so many bytes is small.
    pub small: u64,
    /// Bytes taken from the card when small allocations need room: a multiple of 2 MiB, and not
    /// less than [`PackingRule::small`].
    pub piece: u64,
    /// Number of empty pieces that a context keeps for later; [`PackingRule::ALL`] if it never
    /// gives one back. They go with the context.
    pub kept: u64,
}

impl Default for PackingRule {
    /// Small is up to half a block, a piece is a block, and an empty one goes at once.
    fn default() -> PackingRule {
        PackingRule {
            small: BLOCK / 2,
            piece: BLOCK,
            kept: 0,
        }
    }
}

impl PackingRule {
    /// Keeps every piece.
    pub const ALL: u64 = u64::MAX;

    /// Reads `SMALL:PIECE:KEPT`.
    pub(super) fn parse(text: &str) -> Result<PackingRule, SpecError> {
        let bytes = |part: &str| {
            let bytes = parse_bytes(part).ok()?.get();
            (bytes <= MEMORY_MAX_MIB << 20).then_some(bytes)
        };
        let read = || {
            let mut parts = text.split(':');
            let packing = PackingRule {
                small: bytes(parts.next()?)?,
                piece: bytes(parts.next()?)?,
                kept: match parts.next()? {
                    "all" => PackingRule::ALL,
                    kept => number(kept)?,
                },
            };
            parts.next().is_none().then_some(packing)
        };
        read()
            .filter(PackingRule::is_sound)
            .ok_or_else(|| SpecError::PackingRule(shown(text)))
    }

    fn is_sound(&self) -> bool {
        self.piece > 0
            && self.piece.is_multiple_of(BLOCK)
            && self.small <= self.piece
            && self.small.is_multiple_of(1 << 10)
    }
}

impl fmt::Display for PackingRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PackingRule { small, piece, kept } = self;
        // Both are whole ([`PackingRule::is_sound`]).
        write!(f, "{}KiB:{}MiB:", small >> 10, piece >> 20)?;
        match *kept {
            PackingRule::ALL => f.write_str("all"),
            kept => write!(f, "{kept}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packing_is_three_parts() {
        let check = |text, small, piece, kept| {
            let packing = PackingRule::parse(text).expect(text);
            assert_eq!(packing, PackingRule { small, piece, kept }, "{text}");
            assert_eq!(
                PackingRule::parse(&packing.to_string()),
                Ok(packing),
                "{text}"
            );
        };
        check("1MiB:2MiB:0", 1 << 20, 2 << 20, 0);
        assert_eq!(
            PackingRule::parse("1MiB:2MiB:0"),
            Ok(PackingRule::default())
        );
        check("512KiB:8MiB:1", 512 << 10, 8 << 20, 1);
        check("3MiB:32MiB:all", 3 << 20, 32 << 20, PackingRule::ALL);
        check("0KiB:1GiB:7", 0, 1 << 30, 7);
        check("2MiB:2MiB:0", 2 << 20, 2 << 20, 0);
    }

    #[test]
    fn what_no_driver_could_do_is_refused() {
        let texts = [
            "",
            "1MiB",
            "1MiB:2MiB",
            "1MiB:2MiB:",
            "1MiB:2MiB:0:0",
            "1MiB:2MiB:some",
            "1MiB:2MiB:-1",
            "1MiB:2MiB:99999999999999999999",
            "1MiB:0MiB:0",
            "1MiB:3MiB:0",
            "3MiB:2MiB:0",
            "0.5KiB:2MiB:0",
            "1MX:2MiB:0",
            "1MiB:8388608GiB:0",
            "18014398509481984KiB:2MiB:0",
        ];
        for text in texts {
            let error = PackingRule::parse(text).expect_err(text).to_string();
            assert!(
                error.starts_with(&format!("`{text}` is no packing")),
                "{error}"
            );
            assert!(error.contains("`packing=512KiB:8MiB:1`"), "{error}");
        }
    }
}
