//! Physical memory and addresses apart (`cuMemCreate`, `cuMemAddressReserve`, `cuMemMap`). Physical
//! memory is a part of a file without a name, so memory that is mapped again, at the same address
//! or another, still has its bytes.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::sync::Arc;

use crate::driver::memory::address_space::{self, BLOCK};
use crate::driver::memory::ranges::Kind;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;
use crate::driver::{Driver, Session};

/// Physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    /// Bytes.
    pub(crate) size: u64,
    /// The card it is of; `None` for memory of the host.
    pub(crate) card: Option<usize>,
    /// Properties that `cuMemCreate` was given, to be returned again.
    pub(crate) properties: Properties,
    /// Handles that the program has.
    pub(crate) n_handles: u32,
    /// Places where it is mapped.
    pub(crate) mapped: Vec<u64>,
    /// Other things that hold it.
    pub(crate) n_held: u32,
    /// Does another process pay for it?
    pub(crate) is_imported: bool,
    pub(crate) file: Arc<File>,
    pub(crate) offset: u64,
}

/// The part of `CUmemAllocationProp` that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Properties {
    /// `CUmemAllocationHandleType`, a set.
    pub(crate) handle_types: u32,
    /// `CUmemLocationType`.
    pub(crate) location: u32,
    /// Device or NUMA node.
    pub(crate) location_id: i32,
    /// May other PCI devices read it?
    pub(crate) rdma: bool,
}

/// All physical memory and all reserved addresses of a process.
#[derive(Debug, Default)]
pub(crate) struct Physicals {
    by_id: HashMap<Id, Physical>,
    reserved: BTreeMap<u64, u64>,
    /// The file that most of it is in, and how much of that was ever used.
    file: Option<Arc<File>>,
    end: u64,
}

impl Physicals {
    /// Physical memory by its handle.
    pub(crate) fn get(&self, id: Id) -> Answer<&Physical> {
        self.by_id.get(&id).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn get_mut(&mut self, id: Id) -> Answer<&mut Physical> {
        self.by_id.get_mut(&id).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn insert(&mut self, id: Id, physical: Physical) {
        self.by_id.insert(id, physical);
    }

    /// A part of the file that was never used before.
    fn room(&mut self, size: u64) -> std::io::Result<(Arc<File>, u64)> {
        let file = match &self.file {
            Some(file) => file.clone(),
            None => {
                let file = Arc::new(address_space::unnamed_file()?);
                self.file = Some(file.clone());
                file
            }
        };
        let offset = self.end;
        file.set_len(offset + size)?;
        self.end = offset + size;
        Ok((file, offset))
    }

    fn is_reserved(&self, start: u64, size: u64) -> bool {
        let before = self.reserved.range(..=start).next_back();
        before.is_some_and(|(from, length)| {
            start
                .checked_add(size)
                .is_some_and(|end| end <= from + length)
        })
    }
}

impl Driver {
    /// Makes physical memory of a card, or of the host.
    pub(crate) fn create_physical(
        &mut self,
        size: u64,
        card: Option<usize>,
        properties: Properties,
    ) -> Answer<Id> {
        if size == 0 || !size.is_multiple_of(BLOCK) {
            return Err(Code::INVALID_VALUE);
        }
        if let Some(card) = card {
            let charged = self.registration.charge(card, size);
            charged.map_err(|_| Code::OUT_OF_MEMORY)?;
        }
        let room = self.memory.physicals.room(size);
        let (file, offset) = room.map_err(|_| {
            if let Some(card) = card {
                self.registration.refund(card, size);
            }
            Code::OUT_OF_MEMORY
        })?;
        let id = self.new_id();
        let physical = Physical {
            size,
            card,
            properties,
            n_handles: 1,
            mapped: Vec::new(),
            n_held: 0,
            is_imported: false,
            file,
            offset,
        };
        self.memory.physicals.insert(id, physical);
        Ok(id)
    }

    /// Gives a handle of physical memory back. The memory stays while it is mapped.
    pub(crate) fn release_physical(&mut self, id: Id) -> Answer {
        let physical = self.memory.physicals.get_mut(id)?;
        if physical.n_handles == 0 {
            return Err(Code::INVALID_VALUE);
        }
        physical.n_handles -= 1;
        self.drop_physical_if_unused(id);
        Ok(())
    }

    /// One more handle for the physical memory behind an address.
    pub(crate) fn retain_physical(&mut self, address: u64) -> Answer<Id> {
        let range = self.memory.ranges.at(address).ok_or(Code::INVALID_VALUE)?;
        let Kind::Mapped { physical, .. } = range.kind else {
            return Err(Code::INVALID_VALUE);
        };
        self.memory.physicals.get_mut(physical)?.n_handles += 1;
        Ok(physical)
    }

    /// The physical memory that is mapped at a range of addresses, which is a whole mapping's
    /// beginning.
    pub(crate) fn physical_at(&self, start: u64, size: u64) -> Answer<Id> {
        let range = self.memory.ranges.starting(start);
        match range.ok_or(Code::INVALID_VALUE)?.kind {
            Kind::Mapped { physical, .. } if size <= self.memory.physicals.get(physical)?.size => {
                Ok(physical)
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// All physical memory that is mapped in a range of addresses.
    pub(crate) fn physicals_within(&self, start: u64, size: u64) -> Vec<Id> {
        let ranges = self.memory.ranges.within(start, size);
        let physical = |range: &crate::driver::memory::ranges::Range| match range.kind {
            Kind::Mapped { physical, .. } => Some(physical),
            _ => None,
        };
        ranges.filter_map(physical).collect()
    }

    pub(crate) fn drop_physical_if_unused(&mut self, id: Id) {
        let physicals = &mut self.memory.physicals.by_id;
        let is_unused = |physical: &Physical| {
            physical.n_handles == 0 && physical.n_held == 0 && physical.mapped.is_empty()
        };
        if !physicals.get(&id).is_some_and(is_unused) {
            return;
        }
        if let Some(physical) = physicals.remove(&id) {
            self.unbind_all(id);
            if physical.is_imported {
                return;
            }
            address_space::punch(&physical.file, physical.offset, physical.size);
            if let Some(card) = physical.card {
                self.registration.refund(card, physical.size);
            }
        }
    }

    /// Reserves addresses.
    pub(crate) fn reserve_addresses(
        &mut self,
        size: u64,
        alignment: u64,
        hint: u64,
    ) -> Answer<u64> {
        let sound = alignment == 0 || alignment.is_power_of_two();
        if size == 0 || !size.is_multiple_of(BLOCK) || !sound {
            return Err(Code::INVALID_VALUE);
        }
        let start = address_space::reserve(size, alignment.max(BLOCK), hint);
        let start = start.map_err(|_| Code::OUT_OF_MEMORY)?;
        self.memory.physicals.reserved.insert(start, size);
        Ok(start)
    }

    /// Gives addresses back; nothing may be mapped there.
    pub(crate) fn free_addresses(&mut self, start: u64, size: u64) -> Answer {
        let reserved = &mut self.memory.physicals.reserved;
        if reserved.get(&start) != Some(&size) {
            return Err(Code::INVALID_VALUE);
        }
        if self.memory.ranges.within(start, size).next().is_some() {
            return Err(Code::INVALID_VALUE);
        }
        reserved.remove(&start);
        address_space::release(start, size);
        Ok(())
    }

    /// Maps physical memory at reserved addresses. The card may not use it before access
    /// is set.
    pub(crate) fn map_physical(&mut self, start: u64, size: u64, offset: u64, id: Id) -> Answer {
        let physical = self.memory.physicals.get(id)?;
        // A driver of today takes whole handles only.
        if offset != 0 || size != physical.size || !start.is_multiple_of(BLOCK) {
            return Err(Code::INVALID_VALUE);
        }
        if !self.memory.physicals.is_reserved(start, size)
            || self.memory.ranges.within(start, size).next().is_some()
        {
            return Err(Code::INVALID_VALUE);
        }
        let placed = address_space::place(start, size, &physical.file, physical.offset);
        placed.map_err(|_| Code::OUT_OF_MEMORY)?;
        let card = physical.card.unwrap_or(self.visible[0]);
        self.memory.physicals.get_mut(id)?.mapped.push(start);
        let kind = Kind::Mapped {
            physical: id,
            access: false,
        };
        self.memory.ranges.insert(start, size, card, 0, kind);
        Ok(())
    }

    /// Sets whether the card may use the memory mapped in a range of addresses. The range begins
    /// and ends where mappings do, and has no holes.
    pub(crate) fn set_access(&mut self, start: u64, size: u64, allowed: bool) -> Answer {
        let mut starts = Vec::new();
        let mut next = start;
        let end = start.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        while next < end {
            let range = self
                .memory
                .ranges
                .starting(next)
                .ok_or(Code::INVALID_VALUE)?;
            if !matches!(range.kind, Kind::Mapped { .. }) {
                return Err(Code::INVALID_VALUE);
            }
            starts.push(next);
            next += range.size;
        }
        if next != end || size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        for start in starts {
            if let Some(range) = self.memory.ranges.starting_mut(start)
                && let Kind::Mapped { access, .. } = &mut range.kind
            {
                *access = allowed;
            }
        }
        Ok(())
    }

    fn unmap(&mut self, start: u64, size: u64) -> Answer {
        let whole: Vec<(u64, u64, Id)> = self
            .memory
            .ranges
            .within(start, size)
            .filter_map(|range| match range.kind {
                Kind::Mapped { physical, .. } => Some((range.start, range.size, physical)),
                _ => None,
            })
            .collect();
        // Only whole mappings, one after the other, can be taken away.
        let mut next = start;
        for (from, length, _) in &whole {
            if *from != next {
                return Err(Code::INVALID_VALUE);
            }
            next += length;
        }
        if whole.is_empty() || Some(next) != start.checked_add(size) {
            return Err(Code::INVALID_VALUE);
        }
        for (from, length, id) in whole {
            self.memory.ranges.remove(from);
            // If it fails the old bytes stay readable, which no program may rely on.
            let _ = address_space::clear(from, length);
            if let Ok(physical) = self.memory.physicals.get_mut(id) {
                physical.mapped.retain(|place| *place != from);
            }
            self.drop_physical_if_unused(id);
        }
        Ok(())
    }
}

impl Session {
    /// Unmaps physical memory, after all work that could use it.
    pub(crate) fn unmap_physical(&mut self, start: u64, size: u64) -> Answer {
        let seq = self.queues.last();
        self.wait_until(|driver| {
            let mut streams = driver.queues.iter();
            streams.all(|(id, _)| driver.queues.is_done(id, seq))
        });
        self.unmap(start, size)
    }
}
