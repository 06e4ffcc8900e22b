//! Memory of cards and of the host, as `cuMemAlloc` and its kin give it.
//!
//! A card gives blocks of 2 MiB, and programs count bytes. A small allocation takes a part of a
//! piece of some blocks, which it shares with others of its context; a large one has its blocks for
//! itself. The machine's [`PackingRule`] defines the limit of small sizes, the length of a piece,
//! and what becomes of an empty piece. NVML and `cuMemGetInfo` show blocks, including empty pieces.

use std::collections::HashMap;

use crate::driver::memory::address_space::BLOCK;
use crate::driver::memory::heap::Heap;
use crate::driver::memory::physical::Physicals;
use crate::driver::memory::ranges::{Kind, Range, Ranges};
use crate::driver::result::{Answer, Code};
use crate::driver::sharing::Imports;
use crate::driver::sharing::external::Externals;
use crate::driver::sharing::retained::Outliving;
use crate::driver::stream::queue::Id;
use crate::driver::{Driver, Session};
use crate::spec::PackingRule;

pub(crate) mod address_space;
pub(crate) mod array;
pub(crate) mod heap;
pub(crate) mod physical;
pub(crate) mod pool;
pub(crate) mod ranges;

/// Rows of `cuMemAllocPitch` begin at multiples of this.
pub(crate) const PITCH: u64 = 512;

/// All memory of the process that the driver knows.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Ranges by address.
    pub(crate) ranges: Ranges,
    /// Small allocations, by context.
    heaps: HashMap<Id, Heap>,
    /// Physical memory, and addresses that were reserved for it.
    pub(crate) physicals: Physicals,
    /// Memory of other processes.
    pub(crate) imports: Imports,
    /// Memory of other drivers.
    pub(crate) externals: Externals,
    /// Memory that is still held when it is given back.
    pub(crate) outliving: Outliving,
}

impl Memory {
    /// May the card use every byte?
    #[must_use]
    pub(crate) fn is_accessible(&self, start: u64, size: u64) -> bool {
        self.ranges.is_usable(start, size, false)
    }

    /// May it, now or when a graph runs that is being made?
    #[must_use]
    pub(crate) fn is_accessible_in_graph(&self, start: u64, size: u64) -> bool {
        self.ranges.is_usable(start, size, true)
    }

    /// The blocks that hold an allocation: where they start, and how long they are.
    #[must_use]
    pub(crate) fn blocks_of(&self, range: &Range) -> Option<(u64, u64)> {
        match self
            .heaps
            .get(&range.context)
            .and_then(|heap| heap.chunk_of(range.start))
        {
            Some(chunk) => Some(chunk),
            None => Some((range.start, address_space::round_up(range.size, BLOCK)?)),
        }
    }
}

impl Driver {
    /// Memory of the current context's card.
    pub(crate) fn allocate(&mut self, size: u64) -> Answer<u64> {
        let context = self.owner()?;
        let card = self.context(context)?.card;
        self.allocate_in(context, card, size, Kind::Device)
    }

    /// Memory of a card, for a context.
    pub(crate) fn allocate_in(
        &mut self,
        context: Id,
        card: usize,
        size: u64,
        kind: Kind,
    ) -> Answer<u64> {
        if size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let start = if size <= self.packing().small {
            self.take_part(context, card, size)?
        } else {
            self.take_blocks(card, size)?.0
        };
        self.memory.ranges.insert(start, size, card, context, kind);
        Ok(start)
    }

    fn take_part(&mut self, context: Id, card: usize, size: u64) -> Answer<u64> {
        let heap = self.memory.heaps.entry(context).or_default();
        if let Some(start) = heap.take(size) {
            return Ok(start);
        }
        let (piece, length) = self.take_blocks(card, self.packing().piece)?;
        let heap = self.memory.heaps.entry(context).or_default();
        heap.add(piece, length);
        heap.take(size).ok_or(Code::UNKNOWN)
    }

    /// Blocks of a card, and addresses for them: where, and how many bytes they are.
    pub(crate) fn take_blocks(&mut self, card: usize, size: u64) -> Answer<(u64, u64)> {
        let size = address_space::round_up(size, BLOCK).ok_or(Code::OUT_OF_MEMORY)?;
        let charged = self.registration.charge(card, size);
        charged.map_err(|_| Code::OUT_OF_MEMORY)?;
        match address_space::allocate(size, BLOCK) {
            Ok(start) => Ok((start, size)),
            Err(_) => {
                self.registration.refund(card, size);
                Err(Code::OUT_OF_MEMORY)
            }
        }
    }

    /// Gives blocks back.
    pub(crate) fn give_blocks(&mut self, card: usize, start: u64, size: u64) {
        address_space::release(start, size);
        if !self.is_outlived(card, start, size) {
            self.registration.refund(card, size);
        }
        self.forget_export(start);
    }

    /// Memory that host and card share. The card is charged as long as it has room; a
    /// real card moves pages in and out, and never refuses.
    pub(crate) fn allocate_managed(&mut self, size: u64, attach: u32) -> Answer<u64> {
        let context = self.owner()?;
        if size == 0 || !matches!(attach, 1 | 2 | 4) {
            return Err(Code::INVALID_VALUE);
        }
        let card = self.context(context)?.card;
        let blocks = address_space::round_up(size, BLOCK).ok_or(Code::OUT_OF_MEMORY)?;
        let charged = match self.registration.charge(card, blocks) {
            Ok(()) => blocks,
            Err(_) => 0,
        };
        let start = address_space::allocate(blocks, BLOCK).map_err(|_| {
            self.registration.refund(card, charged);
            Code::OUT_OF_MEMORY
        })?;
        let kind = Kind::Managed { attach, charged };
        self.memory.ranges.insert(start, size, card, context, kind);
        Ok(start)
    }

    /// Memory of the host that the card can reach.
    pub(crate) fn allocate_host(&mut self, size: u64, flags: u32) -> Answer<u64> {
        let context = self.owner()?;
        if size == 0 || flags & !7 != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let card = self.context(context)?.card;
        let whole =
            address_space::round_up(size, address_space::PAGE).ok_or(Code::OUT_OF_MEMORY)?;
        let start =
            address_space::allocate(whole, address_space::PAGE).map_err(|_| Code::OUT_OF_MEMORY)?;
        let ranges = &mut self.memory.ranges;
        ranges.insert(start, size, card, context, Kind::Host);
        Ok(start)
    }

    /// Makes memory of the program known to the card.
    pub(crate) fn register_host(&mut self, start: u64, size: u64, flags: u32) -> Answer {
        let context = self.owner()?;
        if start == 0 || size == 0 || flags & !0xf != 0 || start.checked_add(size).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        if self.memory.ranges.within(start, size).next().is_some() {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let card = self.context(context)?.card;
        let ranges = &mut self.memory.ranges;
        ranges.insert(start, size, card, context, Kind::Registered);
        Ok(())
    }

    /// Undoes [`Driver::register_host`].
    pub(crate) fn unregister_host(&mut self, start: u64) -> Answer {
        self.current()?;
        match self.memory.ranges.starting(start).map(|range| &range.kind) {
            Some(Kind::Registered) => {
                self.memory.ranges.remove(start);
                Ok(())
            }
            _ => Err(Code::HOST_MEMORY_NOT_REGISTERED),
        }
    }

    /// Takes a range away that nothing uses any more.
    pub(crate) fn drop_range(&mut self, start: u64) {
        let Some(range) = self.memory.ranges.remove(start) else {
            return;
        };
        let Range {
            start,
            size,
            card,
            context,
            ..
        } = range;
        match range.kind {
            Kind::Device | Kind::Global => self.give(context, card, start, size),
            Kind::Managed { charged, .. } => {
                address_space::release(start, size.next_multiple_of(BLOCK));
                self.registration.refund(card, charged);
            }
            Kind::Host => {
                address_space::release(start, size.next_multiple_of(address_space::PAGE));
            }
            Kind::Pool { pool, .. } => self.give_to_pool(pool, start, size),
            Kind::Borrowed { mapping, .. } => address_space::release(mapping.0, mapping.1),
            Kind::External { part } => self.unmap_external(part),
            Kind::Registered | Kind::Mapped { .. } | Kind::Imported => {}
        }
    }

    fn give(&mut self, context: Id, card: usize, start: u64, size: u64) {
        if let Some(heap) = self.memory.heaps.get_mut(&context)
            && heap.chunk_of(start).is_some()
        {
            heap.give(start, size);
            self.trim_heap(context, card, self.packing().kept);
            return;
        }
        self.give_blocks(card, start, size.next_multiple_of(BLOCK));
    }

    /// Gives the empty pieces of a context back, but for `kept` of them.
    fn trim_heap(&mut self, context: Id, card: usize, kept: u64) {
        while let Some(heap) = self.memory.heaps.get_mut(&context)
            && heap.n_empty() > kept
            && let Some((piece, length)) = heap.remove_empty()
        {
            self.give_blocks(card, piece, length);
        }
    }

    fn packing(&self) -> PackingRule {
        self.registration.machine().packing()
    }

    /// Removes the memory of a context of a card.
    pub(crate) fn free_memory_of(&mut self, context: Id, card: usize) {
        let owned = self.memory.ranges.iter().filter(|range| {
            let outlives = matches!(range.kind, Kind::Pool { .. } | Kind::Mapped { .. });
            range.context == context && !outlives
        });
        let starts: Vec<u64> = owned.map(|range| range.start).collect();
        for start in starts {
            if self
                .memory
                .ranges
                .starting(start)
                .is_some_and(|range| range.kind == Kind::Imported)
            {
                self.drop_import(start);
            } else {
                self.drop_range(start);
            }
        }
        self.trim_heap(context, card, 0);
        self.memory.heaps.remove(&context);
        self.drop_arrays_of(context);
        self.drop_externals_of(context);
    }
}

impl Session {
    /// Returns the range to be freed. The range knows its context, so no context has to be current,
    /// as with NVIDIA's driver (NVIDIA/cuda-python#2750): programs pop theirs before they clean up.
    fn owned_at(&self, start: u64) -> Answer<&Range> {
        match self.memory.ranges.starting(start) {
            Some(range) => Ok(range),
            None => self.current().and(Err(Code::INVALID_VALUE)),
        }
    }

    /// `cuMemFree`: waits for the context's work, then removes the memory.
    pub(crate) fn free(&mut self, start: u64) -> Answer {
        if start == 0 {
            return Ok(());
        }
        let range = self.owned_at(start)?;
        match range.kind {
            Kind::Device
            | Kind::Managed { .. }
            | Kind::Pool { is_live: true, .. }
            | Kind::Borrowed { .. }
            | Kind::External { .. } => {
                self.finish_context(range.context);
                self.ordered_free(start);
                Ok(())
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// `cuMemFreeHost`.
    pub(crate) fn free_host(&mut self, start: u64) -> Answer {
        if start == 0 {
            return Ok(());
        }
        let range = self.owned_at(start)?;
        if !matches!(range.kind, Kind::Host) {
            return Err(Code::INVALID_VALUE);
        }
        self.finish_context(range.context);
        self.drop_range(start);
        Ok(())
    }
}
