//! Memory in stream order: pools, `cuMemAllocAsync`, and the memory of graphs.
//!
//! A pool takes blocks of the card and keeps freed memory, up to its release threshold, until
//! somebody waits for the card. An address is given at once and its memory is there at once, too: a
//! program that keeps to the rules cannot see the difference.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::driver::Driver;
use crate::driver::memory::address_space::{self, BLOCK};
use crate::driver::memory::heap::{ALIGNMENT, Heap};
use crate::driver::memory::ranges::Kind;
use crate::driver::result::{Answer, Code};
use crate::driver::sharing::pool::SharedPool;
use crate::driver::stream::queue::Id;

/// The smallest piece that a pool takes of its card, as in drivers of today.
const PIECE: u64 = 32 << 20;

/// A pool.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// The card its memory is of; `None` for memory of the host.
    pub(crate) card: Option<usize>,
    /// The most it may take; 0 for no limit.
    pub(crate) limit: u64,
    /// Amount of unused memory that it keeps.
    pub(crate) threshold: u64,
    /// The three switches of reuse, as they were set.
    pub(crate) reuse: [u32; 3],
    /// Bytes in use, and the most there were.
    pub(crate) used: (u64, u64),
    /// Bytes taken of the card, and the most there were.
    pub(crate) reserved: (u64, u64),
    /// `CUmemAllocationHandleType`.
    pub(crate) handle_types: u32,
    /// Its state that other processes share.
    pub(crate) shared: Option<SharedPool>,
    pub(crate) heap: Heap,
}

/// All pools of a process.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    /// By handle.
    pub(crate) by_id: HashMap<Id, Pool>,
    /// The initial pool of each visible device.
    pub(crate) default: Vec<Id>,
    /// By visible device, the pool that `cuMemAllocAsync` takes from.
    pub(crate) current: Vec<Id>,
    /// By visible device, the pool of its graphs.
    pub(crate) graph: Vec<Id>,
    /// Sizes of the memory of graphs by address.
    graph_sizes: BTreeMap<u64, (usize, u64)>,
}

impl Driver {
    /// Every device has its pools from the start; they are empty.
    pub(crate) fn make_default_pools(&mut self) {
        for card in self.visible.clone() {
            let default = self.make_pool(Some(card), 0, 0);
            let graph = self.make_pool(Some(card), 0, 0);
            if let Some(pool) = self.pools.by_id.get_mut(&graph) {
                pool.threshold = u64::MAX;
            }
            self.pools.default.push(default);
            self.pools.current.push(default);
            self.pools.graph.push(graph);
        }
    }

    /// Makes a pool.
    pub(crate) fn make_pool(&mut self, card: Option<usize>, limit: u64, handle_types: u32) -> Id {
        let id = self.new_id();
        let pool = Pool {
            card,
            limit,
            reuse: [1; 3],
            handle_types,
            ..Pool::default()
        };
        self.pools.by_id.insert(id, pool);
        id
    }

    /// A pool by its handle.
    pub(crate) fn pool(&mut self, id: Id) -> Answer<&mut Pool> {
        self.pools.by_id.get_mut(&id).ok_or(Code::INVALID_VALUE)
    }

    /// Destroys a pool; its allocations stay until they are freed.
    pub(crate) fn destroy_pool(&mut self, id: Id) -> Answer {
        if self.pools.default.contains(&id) || self.pools.graph.contains(&id) {
            return Err(Code::INVALID_VALUE);
        }
        self.pool(id)?.threshold = 0;
        for place in 0..self.pools.current.len() {
            if self.pools.current[place] == id {
                self.pools.current[place] = self.pools.default[place];
            }
        }
        self.trim_pool(id, 0)?;
        if self.pool(id)?.reserved.0 == 0 {
            self.pools.by_id.remove(&id);
        }
        Ok(())
    }

    /// Memory of a pool.
    pub(crate) fn allocate_from(&mut self, id: Id, size: u64) -> Answer<u64> {
        let context = self.owner()?;
        if size == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if self.pool(id)?.is_imported() {
            return Err(Code::INVALID_VALUE);
        }
        let start = self.take_from(id, size)?;
        let card = self.pool(id)?.card.unwrap_or(self.visible[0]);
        let kind = Kind::Pool {
            pool: id,
            is_live: true,
        };
        self.memory.ranges.insert(start, size, card, context, kind);
        Ok(start)
    }

    fn take_from(&mut self, id: Id, size: u64) -> Answer<u64> {
        let pool = self.pool(id)?;
        let start = match pool.heap.take(size) {
            Some(start) => start,
            None => {
                self.grow_pool(id, size)?;
                let taken = self.pool(id)?.heap.take(size);
                taken.ok_or(Code::OUT_OF_MEMORY)?
            }
        };
        let pool = self.pool(id)?;
        pool.used.0 += size.next_multiple_of(ALIGNMENT);
        pool.used.1 = pool.used.1.max(pool.used.0);
        Ok(start)
    }

    fn grow_pool(&mut self, id: Id, size: u64) -> Answer {
        let size = address_space::round_up(size, BLOCK).ok_or(Code::OUT_OF_MEMORY)?;
        let pool = self.pool(id)?;
        let (card, limit, reserved) = (pool.card, pool.limit, pool.reserved.0);
        let room = if limit == 0 {
            u64::MAX
        } else {
            limit.saturating_sub(reserved)
        };
        // When a whole piece is too much, what was asked for may still fit.
        let wanted = [size.max(PIECE), size];
        for size in wanted.into_iter().filter(|size| *size <= room) {
            let taken = match card {
                _ if self.pool(id)?.handle_types != 0 => self.take_shared_blocks(id, size),
                Some(card) => self.take_blocks(card, size).map(|(start, _)| start),
                None => address_space::allocate(size, BLOCK).map_err(|_| Code::OUT_OF_MEMORY),
            };
            if let Ok(start) = taken {
                let pool = self.pool(id)?;
                pool.heap.add(start, size);
                pool.reserved.0 += size;
                pool.reserved.1 = pool.reserved.1.max(pool.reserved.0);
                return Ok(());
            }
        }
        Err(Code::OUT_OF_MEMORY)
    }

    /// A part of a pool is free again.
    pub(crate) fn give_to_pool(&mut self, id: Id, start: u64, size: u64) {
        if let Ok(pool) = self.pool(id) {
            pool.heap.give(start, size);
            let size = size.next_multiple_of(ALIGNMENT);
            pool.used.0 = pool.used.0.saturating_sub(size);
        }
    }

    /// Gives back the unused memory of a pool, down to `keep` bytes.
    pub(crate) fn trim_pool(&mut self, id: Id, keep: u64) -> Answer {
        loop {
            let pool = self.pool(id)?;
            if pool.reserved.0 <= keep {
                return Ok(());
            }
            let Some((start, size)) = pool.heap.remove_empty() else {
                return Ok(());
            };
            pool.reserved.0 -= size;
            pool.forget_shared(start, size);
            match pool.card {
                Some(card) => self.give_blocks(card, start, size),
                None => address_space::release(start, size),
            }
        }
    }

    /// Somebody waited for the card: pools give back the memory above their thresholds.
    pub(crate) fn trim_pools(&mut self) {
        let over: Vec<(Id, u64)> = self
            .pools
            .by_id
            .iter()
            .filter(|(_, pool)| pool.reserved.0 > pool.threshold)
            .map(|(id, pool)| (*id, pool.threshold))
            .collect();
        for (id, threshold) in over {
            // Only fails for a pool that is not there.
            let _ = self.trim_pool(id, threshold);
        }
    }

    /// The turn of a free in stream order has come.
    pub(crate) fn ordered_free(&mut self, start: u64) {
        if let Some((device, size)) = self.pools.graph_sizes.get(&start).copied() {
            self.graph_memory_ends(start, device, size);
        } else {
            self.drop_range(start);
        }
    }

    /// Addresses for the memory of a graph's node; there is no memory yet.
    pub(crate) fn reserve_graph_memory(&mut self, card: usize, size: u64) -> Answer<u64> {
        let whole = address_space::round_up(size.max(1), BLOCK).ok_or(Code::OUT_OF_MEMORY)?;
        let start = address_space::reserve(whole, BLOCK, 0).map_err(|_| Code::OUT_OF_MEMORY)?;
        let device = self.device_of(card) as usize;
        let pool = self.pools.graph[device];
        let kind = Kind::Pool {
            pool,
            is_live: false,
        };
        self.memory.ranges.insert(start, size, card, 0, kind);
        self.pools.graph_sizes.insert(start, (device, size));
        Ok(start)
    }

    /// The card of a graph's memory, and how many bytes have room there.
    pub(crate) fn graph_memory_at(&self, start: u64) -> Option<(usize, u64)> {
        let (device, size) = self.pools.graph_sizes.get(&start)?;
        Some((self.visible[*device], size.next_multiple_of(BLOCK)))
    }

    /// Takes the memory that a graph needs before the graph is launched: each address once.
    pub(crate) fn charge_graph_memory(&mut self, starts: &[u64]) -> Answer {
        let mut wanted: BTreeMap<usize, u64> = BTreeMap::new();
        for start in starts.iter().collect::<BTreeSet<_>>() {
            if let Some((device, size)) = self.pools.graph_sizes.get(start) {
                *wanted.entry(*device).or_default() += size.next_multiple_of(BLOCK);
            }
        }
        for (device, size) in wanted {
            let (id, card) = (self.pools.graph[device], self.visible[device]);
            let pool = self.pool(id)?;
            let free = pool.reserved.0 - pool.used.0;
            let more = size.saturating_sub(free);
            if more > 0 {
                let charged = self.registration.charge(card, more);
                charged.map_err(|_| Code::OUT_OF_MEMORY)?;
                let pool = self.pool(id)?;
                pool.reserved.0 += more;
                pool.reserved.1 = pool.reserved.1.max(pool.reserved.0);
            }
        }
        Ok(())
    }

    /// A node that allocates has its turn: the addresses have memory from now on.
    pub(crate) fn graph_memory_begins(&mut self, start: u64) {
        let Some((device, size)) = self.pools.graph_sizes.get(&start).copied() else {
            return;
        };
        let whole = size.next_multiple_of(BLOCK);
        if self.is_live_graph_memory(start) || address_space::open(start, whole).is_err() {
            return;
        }
        self.set_graph_memory(start, true);
        let id = self.pools.graph[device];
        if let Ok(pool) = self.pool(id) {
            pool.used.0 += whole;
            pool.used.1 = pool.used.1.max(pool.used.0);
        }
    }

    fn graph_memory_ends(&mut self, start: u64, device: usize, size: u64) {
        if !self.is_live_graph_memory(start) {
            return;
        }
        let whole = size.next_multiple_of(BLOCK);
        self.set_graph_memory(start, false);
        // If it fails the bytes stay, which no program may rely on.
        let _ = address_space::clear(start, whole);
        let id = self.pools.graph[device];
        if let Ok(pool) = self.pool(id) {
            pool.used.0 = pool.used.0.saturating_sub(whole);
        }
        if !self.has_graph_with(start) {
            self.forget_graph_memory(start);
        }
    }

    /// Gives back the unused memory of a device's graphs.
    pub(crate) fn trim_graph_memory(&mut self, device: usize) -> Answer {
        let (id, card) = (self.pools.graph[device], self.visible[device]);
        let pool = self.pool(id)?;
        let unused = pool.reserved.0.saturating_sub(pool.used.0);
        pool.reserved.0 -= unused;
        self.registration.refund(card, unused);
        Ok(())
    }

    /// A graph that had this memory is gone.
    pub(crate) fn forget_graph_memory(&mut self, start: u64) {
        if self.is_live_graph_memory(start) {
            return;
        }
        if let Some((_, size)) = self.pools.graph_sizes.remove(&start) {
            self.memory.ranges.remove(start);
            address_space::release(start, size.next_multiple_of(BLOCK));
        }
    }

    /// Is this address the start of a graph's memory that is in use?
    #[must_use]
    pub(crate) fn is_live_graph_memory(&self, start: u64) -> bool {
        let range = self.memory.ranges.starting(start);
        self.pools.graph_sizes.contains_key(&start)
            && range.is_some_and(|range| matches!(range.kind, Kind::Pool { is_live: true, .. }))
    }

    fn set_graph_memory(&mut self, start: u64, live: bool) {
        if let Some(range) = self.memory.ranges.starting_mut(start)
            && let Kind::Pool { is_live, .. } = &mut range.kind
        {
            *is_live = live;
        }
    }
}
