//! Memory by address: every range of memory that the driver knows, of the card or of the program,
//! by its start. Pure: addresses are numbers here.

use std::collections::BTreeMap;

use crate::driver::sharing::external::Part;
use crate::driver::stream::queue::Id;

/// Kind of a range's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// `cuMemAllocManaged`, with the bytes of the card that were charged for it.
    Managed {
        /// `CUmemAttach_flags`.
        attach: u32,
        /// Bytes of the card.
        charged: u64,
    },
    /// `cuMemHostAlloc`.
    Host,
    /// `cuMemHostRegister`.
    Registered,
    /// Memory of a pool.
    Pool {
        /// The pool.
        pool: Id,
        /// Was it given back in stream order, or is it of a graph that has not run yet?
        is_live: bool,
    },
    /// Physical memory at a reserved address.
    Mapped {
        /// The physical memory.
        physical: Id,
        /// May the card use it?
        access: bool,
    },
    /// Memory of another process.
    Imported,
    /// Memory of another process's pool.
    Borrowed {
        /// The pool as it was imported.
        pool: Id,
        /// The pages around it: where, and how many bytes.
        mapping: (u64, u64),
    },
    /// Memory of another driver.
    External {
        /// The part.
        part: Part,
    },
    /// The variables of a module.
    Global,
}

/// A range of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    /// Its first address.
    pub(crate) start: u64,
    /// Bytes, as asked for.
    pub(crate) size: u64,
    /// The card it is of; of host memory, the card of its context.
    pub(crate) card: usize,
    /// The context it belongs to; 0 if to none.
    pub(crate) context: Id,
    /// A number that no other range ever has.
    pub(crate) number: u64,
    /// Its kind.
    pub(crate) kind: Kind,
}

impl Kind {
    /// Is it memory of a card?
    #[must_use]
    pub(crate) fn is_on_card(&self) -> bool {
        !matches!(self, Kind::Host | Kind::Registered)
    }

    fn is_usable(&self, later: bool) -> bool {
        match self {
            Kind::Pool { is_live, .. } => *is_live || later,
            Kind::Mapped { access, .. } => *access,
            _ => true,
        }
    }
}

/// All ranges; no two overlap.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    by_start: BTreeMap<u64, Range>,
    n_ranges: u64,
}

impl Ranges {
    /// Adds a range; its number.
    pub(crate) fn insert(
        &mut self,
        start: u64,
        size: u64,
        card: usize,
        context: Id,
        kind: Kind,
    ) -> u64 {
        self.n_ranges += 1;
        let number = self.n_ranges;
        let range = Range {
            start,
            size,
            card,
            context,
            number,
            kind,
        };
        self.by_start.insert(start, range);
        number
    }

    /// The range with this address in it.
    #[must_use]
    pub(crate) fn at(&self, address: u64) -> Option<&Range> {
        let (_, range) = self.by_start.range(..=address).next_back()?;
        (address - range.start < range.size).then_some(range)
    }

    /// The range that begins here.
    #[must_use]
    pub(crate) fn starting(&self, start: u64) -> Option<&Range> {
        self.by_start.get(&start)
    }

    /// As [`Ranges::starting`], to change it.
    pub(crate) fn starting_mut(&mut self, start: u64) -> Option<&mut Range> {
        self.by_start.get_mut(&start)
    }

    /// Forgets the range that begins here.
    pub(crate) fn remove(&mut self, start: u64) -> Option<Range> {
        self.by_start.remove(&start)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range> {
        self.by_start.values()
    }

    /// The ranges with any address of `start..start+size` in them.
    pub(crate) fn within(&self, start: u64, size: u64) -> impl Iterator<Item = &Range> {
        let end = start.saturating_add(size);
        let first = self.at(start).map_or(start, |range| range.start);
        self.by_start.range(first..end).map(|(_, range)| range)
    }

    /// May the card use every byte of `start..start+size`? Ranges that are side by side,
    /// as pieces of a mapping are, count as one. With `later`, memory of a graph counts
    /// that will be there when the graph runs.
    #[must_use]
    pub(crate) fn is_usable(&self, start: u64, size: u64, later: bool) -> bool {
        let Some(end) = start.checked_add(size) else {
            return false;
        };
        let mut next = start;
        while next < end {
            match self.at(next) {
                Some(range) if range.kind.is_usable(later) => next = range.start + range.size,
                _ => return false,
            }
        }
        size > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_count_as_one_and_holes_do_not() {
        let mut ranges = Ranges::default();
        let mapped = |access| Kind::Mapped {
            physical: 1,
            access,
        };
        ranges.insert(100, 50, 0, 0, mapped(true));
        ranges.insert(150, 50, 0, 0, mapped(true));
        ranges.insert(201, 9, 0, 0, mapped(true));
        ranges.insert(210, 10, 0, 0, mapped(false));
        assert!(ranges.is_usable(100, 100, false) && ranges.is_usable(149, 2, false));
        assert!(!ranges.is_usable(99, 2, false) && !ranges.is_usable(199, 3, false));
        assert!(!ranges.is_usable(205, 6, false) && !ranges.is_usable(100, u64::MAX, false));
        assert!(!ranges.is_usable(100, 0, false));
        let starts: Vec<u64> = ranges.within(140, 65).map(|range| range.start).collect();
        assert_eq!(starts, [100, 150, 201]);
        assert_eq!(ranges.at(200), None);
    }
}
