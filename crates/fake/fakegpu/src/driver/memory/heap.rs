//! Owners of the parts of a chunk of memory. Small allocations share a chunk, as they do in a
//! driver: the card gives whole chunks, programs count bytes. Pure: addresses are numbers here.

use std::collections::BTreeMap;

/// The start of every allocation is a multiple of this; PyTorch and others rely on 512.
pub(crate) const ALIGNMENT: u64 = 512;

/// Chunks and their free parts.
#[derive(Debug, Default)]
pub(crate) struct Heap {
    chunks: BTreeMap<u64, Chunk>,
}

#[derive(Debug)]
struct Chunk {
    size: u64,
    /// Free parts by their start, never two side by side.
    free: BTreeMap<u64, u64>,
    n_live: usize,
}

impl Heap {
    /// The start of a free part of `size` bytes, now taken. `None` if no chunk has one.
    pub(crate) fn take(&mut self, size: u64) -> Option<u64> {
        let size = part(size)?;
        for chunk in self.chunks.values_mut() {
            let fitting = chunk.free.iter().find(|(_, length)| **length >= size);
            let Some((&start, &length)) = fitting else {
                continue;
            };
            chunk.free.remove(&start);
            if length > size {
                chunk.free.insert(start + size, length - size);
            }
            chunk.n_live += 1;
            return Some(start);
        }
        None
    }

    /// Adds an empty chunk.
    pub(crate) fn add(&mut self, start: u64, size: u64) {
        let free = BTreeMap::from([(start, size)]);
        let chunk = Chunk {
            size,
            free,
            n_live: 0,
        };
        self.chunks.insert(start, chunk);
    }

    /// Gives a part back. True if its chunk is empty now.
    pub(crate) fn give(&mut self, start: u64, size: u64) -> bool {
        let Some(size) = part(size) else { return false };
        let Some((_, chunk)) = self.chunks.range_mut(..=start).next_back() else {
            return false;
        };
        let (mut from, mut length) = (start, size);
        if let Some((&before, &n)) = chunk.free.range(..start).next_back()
            && before + n == start
        {
            chunk.free.remove(&before);
            (from, length) = (before, n + length);
        }
        if let Some(n) = chunk.free.remove(&(start + size)) {
            length += n;
        }
        chunk.free.insert(from, length);
        chunk.n_live = chunk.n_live.saturating_sub(1);
        chunk.n_live == 0
    }

    /// Takes an empty chunk away, if there is one: its start and size.
    pub(crate) fn remove_empty(&mut self) -> Option<(u64, u64)> {
        let empty = self.chunks.iter().find(|(_, chunk)| chunk.n_live == 0);
        let (&start, chunk) = empty?;
        let size = chunk.size;
        self.chunks.remove(&start);
        Some((start, size))
    }

    /// Returns the number of empty chunks.
    #[must_use]
    pub(crate) fn n_empty(&self) -> u64 {
        let empty = self.chunks.values().filter(|chunk| chunk.n_live == 0);
        empty.count() as u64
    }

    /// The chunk with this address in it: its start and size.
    #[must_use]
    pub(crate) fn chunk_of(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, chunk) = self.chunks.range(..=address).next_back()?;
        (address - start < chunk.size).then_some((start, chunk.size))
    }
}

fn part(size: u64) -> Option<u64> {
    crate::driver::memory::address_space::round_up(size.max(1), ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_chunk_that_was_emptied_is_whole_again() {
        let mut heap = Heap::default();
        heap.add(4096, 2048);
        let parts = [heap.take(1), heap.take(600), heap.take(512)];
        assert_eq!(parts, [Some(4096), Some(4608), Some(5632)]);
        assert_eq!(heap.take(1), None);
        assert!(!heap.give(4608, 600));
        assert!(!heap.give(4096, 1));
        assert!(heap.give(5632, 512));
        assert_eq!(heap.chunk_of(6143), Some((4096, 2048)));
        assert_eq!(heap.chunk_of(6144), None);
        assert_eq!(heap.take(2048), Some(4096));
        assert_eq!(heap.remove_empty(), None);
    }

    proptest! {
        #[test]
        fn parts_never_overlap_and_nothing_is_lost(
            steps in proptest::collection::vec((any::<bool>(), 1_u64..3000), 1..80),
        ) {
            let mut heap = Heap::default();
            heap.add(1 << 20, 16 << 10);
            heap.add(4 << 20, 8 << 10);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (take, size) in steps {
                if take || live.is_empty() {
                    let Some(start) = heap.take(size) else { continue };
                    let end = start + size.next_multiple_of(ALIGNMENT);
                    prop_assert!(heap.chunk_of(end - 1).is_some_and(|(from, _)| from <= start));
                    for (other, length) in &live {
                        let other_end = other + length.next_multiple_of(ALIGNMENT);
                        prop_assert!(end <= *other || other_end <= start);
                    }
                    live.push((start, size));
                } else {
                    let (start, size) = live.swap_remove(size as usize % live.len());
                    heap.give(start, size);
                }
            }
            for (start, size) in live {
                heap.give(start, size);
            }
            prop_assert_eq!(heap.take(16 << 10), Some(1 << 20));
            prop_assert_eq!(heap.take(8 << 10), Some(4 << 20));
        }
    }
}
