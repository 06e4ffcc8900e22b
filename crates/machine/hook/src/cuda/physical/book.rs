//! References of this process to memory behind handles, by kind of reference.
//!
//! Pure: it is told the driver's actions, and returns the memory that nobody here refers to any
//! more. A handle refers to its memory. So does each place where the memory is mapped, each part of
//! a sparse array that is mapped to it, and each object that it is bound to. The objects are such
//! memory themselves, of no bytes. Memory that is bound to an object is let go with the last
//! reference to the object: a driver removes a process's bindings with the process's last handle of
//! the object.

use std::collections::{BTreeMap, HashMap};

use sublet_abi::DeviceIndex;

use super::tiles::{Mapped, Region, Tile, Tiles};
use crate::cuda::c::*;
use crate::cuda::deferred_free::Holder;
use crate::cuda::tenant::MemoryCharge;
use crate::link::Budget;
use crate::link::marks::Key;

/// Identity of memory. Handles come and go, and their numbers are used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Id(pub(super) u64);

/// Charge or mark that ends with the last reference.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Holding {
    /// Memory that this process made, and how others may have come to it.
    Own {
        charge: MemoryCharge,
        holders: Vec<Holder>,
    },
    /// Memory of another process, and the mark by which that one sees us; `None` if it cannot.
    Borrowed(Option<Key>),
    /// Something that memory is bound to.
    Object,
}

#[derive(Debug)]
struct Memory {
    holding: Holding,
    /// References: handles, as often as each was given out, and all the other ways.
    references: usize,
}

#[derive(Debug)]
pub(super) struct Mapping {
    end: u64,
    pub(super) memory: Id,
}

/// Target of a binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Object {
    /// A multicast object.
    Multicast(Id),
    /// A logical endpoint, by its number.
    Endpoint(u64),
}

/// Memory that is bound to an object, from an offset on.
#[derive(Debug)]
struct Binding {
    from: u64,
    end: u64,
    /// Its device; `None` for memory of the host, and for memory of others on an unknown device.
    device: Option<DeviceIndex>,
    memory: Id,
}

/// All such memory of the process.
#[derive(Debug, Default)]
pub struct Physical {
    next: u64,
    memories: HashMap<Id, Memory>,
    /// The memory behind a handle, and how often the driver gave that handle out.
    handles: HashMap<CUmemGenericAllocationHandle, (Id, usize)>,
    /// By first address.
    mappings: BTreeMap<u64, Mapping>,
    bound: HashMap<Object, Vec<Binding>>,
    tiles: Tiles,
}

impl Physical {
    /// Notes a new handle, and the memory behind it.
    pub(super) fn made(&mut self, handle: CUmemGenericAllocationHandle, holding: Holding) -> Id {
        let id = Id(self.next);
        self.next += 1;
        let references = 1;
        let memory = Memory {
            holding,
            references,
        };
        self.memories.insert(id, memory);
        self.handles.insert(handle, (id, 1));
        id
    }

    /// The driver gave a handle for the memory mapped at an address.
    pub(super) fn retained(&mut self, handle: CUmemGenericAllocationHandle, address: u64) {
        if let Some(id) = self.mapped_at(address) {
            self.one_more(handle, id);
        }
    }

    /// The driver gave a handle for memory that was exported under a name. If it is one of ours,
    /// it counts once more; another process's memory is another's to pay. True if it is that.
    pub(super) fn imported(
        &mut self,
        handle: CUmemGenericAllocationHandle,
        key: Option<Key>,
    ) -> bool {
        let known = self.handles.get(&handle).map(|known| known.0);
        match known.or_else(|| key.and_then(|key| self.own_by(key))) {
            Some(id) => {
                self.one_more(handle, id);
                false
            }
            None => {
                self.made(handle, Holding::Borrowed(key));
                true
            }
        }
    }

    fn own_by(&self, key: Key) -> Option<Id> {
        let is_it = |memory: &Memory| match &memory.holding {
            Holding::Own { holders, .. } => holders.iter().any(|holder| holder.key() == Some(key)),
            Holding::Borrowed(_) | Holding::Object => false,
        };
        let mut all = self.memories.iter();
        all.find(|(_, memory)| is_it(memory)).map(|(&id, _)| id)
    }

    fn one_more(&mut self, handle: CUmemGenericAllocationHandle, id: Id) {
        let (_, times) = self.handles.entry(handle).or_insert((id, 0));
        *times += 1;
        self.refer(id);
    }

    /// The memory behind a handle.
    pub(super) fn behind(&self, handle: CUmemGenericAllocationHandle) -> Option<Id> {
        self.handles.get(&handle).map(|known| known.0)
    }

    /// A handle is about to be released: it is no longer known, but still refers.
    pub(super) fn take_handle(&mut self, handle: CUmemGenericAllocationHandle) -> Option<Id> {
        let (id, times) = self.handles.get_mut(&handle)?;
        let id = *id;
        *times -= 1;
        if *times == 0 {
            self.handles.remove(&handle);
        }
        Some(id)
    }

    /// It was not released after all.
    pub(super) fn put_handle(&mut self, handle: CUmemGenericAllocationHandle, id: Id) {
        let (_, times) = self.handles.entry(handle).or_insert((id, 0));
        *times += 1;
    }

    pub(super) fn mapped(
        &mut self,
        address: u64,
        bytes: u64,
        handle: CUmemGenericAllocationHandle,
    ) {
        let Some(memory) = self.behind(handle) else {
            return;
        };
        let end = address.saturating_add(bytes);
        self.mappings.insert(address, Mapping { end, memory });
        self.refer(memory);
    }

    /// Mappings within a range are about to go; the driver only unmaps whole ones.
    pub(super) fn take_mappings(&mut self, address: u64, bytes: u64) -> Vec<(u64, Mapping)> {
        let end = address.saturating_add(bytes);
        let gone: Vec<u64> = self
            .mappings
            .range(address..end)
            .filter(|(_, mapping)| mapping.end <= end)
            .map(|(&start, _)| start)
            .collect();
        gone.into_iter()
            .filter_map(|start| Some((start, self.mappings.remove(&start)?)))
            .collect()
    }

    /// They did not go after all.
    pub(super) fn put_mappings(&mut self, mappings: Vec<(u64, Mapping)>) {
        self.mappings.extend(mappings);
    }

    /// The memory at an address.
    pub(super) fn mapped_at(&self, address: u64) -> Option<Id> {
        let (_, mapping) = self.mappings.range(..=address).next_back()?;
        (address < mapping.end).then_some(mapping.memory)
    }

    /// All memory with an address of a range.
    pub(super) fn mapped_within(&self, address: u64, bytes: u64) -> Vec<Id> {
        let end = address.saturating_add(bytes);
        let first = self.mapped_at(address);
        let more = self.mappings.range(address..end);
        let more = more.map(|(_, mapping)| mapping.memory);
        let mut all: Vec<Id> = first.into_iter().chain(more).collect();
        all.dedup();
        all
    }

    /// Notes that memory went to others. Holders that no longer have it are forgotten on the way.
    pub(super) fn add_holder(&mut self, id: Id, holder: Holder, is_held: impl Fn(&Holder) -> bool) {
        let memory = self.memories.get_mut(&id);
        if let Some(Holding::Own { holders, .. }) = memory.map(|memory| &mut memory.holding) {
            holders.retain(|known| *known != holder && is_held(known));
            holders.push(holder);
        }
    }

    /// Notes that memory was bound to an object. The memory's device decides the part of the
    /// object.
    pub(super) fn bound(&mut self, object: Object, from: u64, bytes: u64, memory: Id) {
        let Some(known) = self.memories.get(&memory) else {
            return;
        };
        let device = match &known.holding {
            Holding::Own { charge, .. } => match charge.budget {
                Budget::Device(device) => Some(device),
                Budget::Host => None,
            },
            Holding::Borrowed(_) | Holding::Object => None,
        };
        let end = from.saturating_add(bytes);
        let binding = Binding {
            from,
            end,
            device,
            memory,
        };
        self.bound.entry(object).or_default().push(binding);
        self.refer(memory);
    }

    /// Unbinds the memory of one device in a range of an object.
    pub(super) fn unbound(
        &mut self,
        object: Object,
        device: Option<DeviceIndex>,
        from: u64,
        bytes: u64,
        gone: &mut Vec<Holding>,
    ) {
        let end = from.saturating_add(bytes);
        let Some(bindings) = self.bound.get_mut(&object) else {
            return;
        };
        let is_meant = |binding: &mut Binding| {
            let on_it = binding.device.is_none() || binding.device == device;
            on_it && from <= binding.from && binding.end <= end
        };
        let unbound: Vec<Binding> = bindings.extract_if(.., is_meant).collect();
        for binding in unbound {
            self.drop_reference(binding.memory, gone);
        }
    }

    /// An object is gone, or this process's part in it.
    pub(super) fn forget_object(&mut self, object: Object, gone: &mut Vec<Holding>) {
        for binding in self.bound.remove(&object).into_iter().flatten() {
            self.drop_reference(binding.memory, gone);
        }
    }

    /// A part of an array is mapped to memory now, or to none.
    pub(super) fn set_tiles(
        &mut self,
        tile: Tile,
        region: Region,
        memory: Option<Id>,
        gone: &mut Vec<Holding>,
    ) {
        let known = memory.filter(|id| self.memories.contains_key(id));
        let change = self.tiles.set(tile, region, known);
        // First those that come: what is in both stays.
        change.came.iter().for_each(|&id| self.refer(id));
        change
            .went
            .iter()
            .for_each(|&id| self.drop_reference(id, gone));
    }

    /// An array is about to go: the memory mapped into it is no longer known, but referred to.
    pub(super) fn take_array(&mut self, array: u64) -> Mapped {
        self.tiles.take(array)
    }

    /// It did not go after all.
    pub(super) fn put_array(&mut self, mapped: Mapped) {
        self.tiles.put(mapped);
    }

    /// It is gone.
    pub(super) fn drop_array(&mut self, mapped: Mapped, gone: &mut Vec<Holding>) {
        mapped
            .memories()
            .for_each(|id| self.drop_reference(id, gone));
    }

    fn refer(&mut self, id: Id) {
        if let Some(memory) = self.memories.get_mut(&id) {
            memory.references += 1;
        }
    }

    /// Drops one reference. Holdings that end with it are added to `gone`.
    pub(super) fn drop_reference(&mut self, id: Id, gone: &mut Vec<Holding>) {
        let Some(memory) = self.memories.get_mut(&id) else {
            return;
        };
        memory.references -= 1;
        if memory.references > 0 {
            return;
        }
        if let Some(memory) = self.memories.remove(&id) {
            gone.push(memory.holding);
        }
        self.forget_object(Object::Multicast(id), gone);
    }
}

#[cfg(test)]
mod tests;
