//! The block of images and packs, and a pack as others name it.

use sublet_cache::PackId;

/// Each file begins at a multiple of it: the block of the image.
pub(crate) const BLOCK: u64 = 4096;

/// Size with padding.
pub(crate) fn padded(size: u64) -> u64 {
    size.next_multiple_of(BLOCK)
}

/// A pack in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoredPack {
    pub(crate) id: PackId,
    /// Bytes of its files, padded.
    pub(crate) data: u64,
    /// Bytes on the disk.
    pub(crate) room: u64,
}
