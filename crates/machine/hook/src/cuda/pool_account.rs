//! The accounts of memory pools.
//!
//! A pool keeps freed memory for the next allocation; [`DriverCache`] has the rule of its charge.
//! Before an allocation, the pool's largest growth is reserved: drivers grow pools by large pieces,
//! and do not report whether a pool's unused memory is contiguous. Only room behind the part of a
//! piece that was ever given out is sure ([`Heap`]). It is used when the limit leaves no more.
//! After the call the driver reports the pool's size. Should that be even more, it must fit as
//! well, or the allocation is undone.
//!
//! Freed memory goes back to the account when the driver lets go of it. The driver does so at a
//! synchronisation and does not report it. So pools are looked at again after one
//! ([`synchronised`]) and when an amount is asked for, and trimmed before anything is refused.

mod owner;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sublet_abi::{DeviceIndex, Packing, Units};

pub use self::owner::Owner;
use self::owner::owner_of;
use super::c::*;
use super::driver_cache::DriverCache;
use super::heap::Heap;
use super::stream::device_of_stream;
use super::tenant::{CachesMemory, Place, Tenant, current_device};
use super::{locked, real};
use crate::guard::{Inside, catch_panic};
use crate::link::Budget;

/// True while a pool may keep memory that nobody uses. A child of fork has its parent's word for
/// it, and finds out at its first synchronisation.
static KEEPS: AtomicBool = AtomicBool::new(false);

/// Pools by handle. A pool without a known place has no account.
#[derive(Debug, Default)]
pub struct Pools(pub(super) HashMap<CUmemoryPool, Option<Account>>);

/// One pool's account. It outlives the pool while allocations do.
#[derive(Debug, Clone)]
pub struct Account(Arc<Mutex<Sums>>);

#[derive(Debug)]
pub(super) struct Sums {
    /// `None` for a device that is not the tenant's: nothing can be taken there.
    cache: Option<DriverCache>,
    /// The pool, to ask it for its reserved amount; `None` once it was destroyed.
    pool: Option<CUmemoryPool>,
    /// The part of its pieces that was never given out.
    fresh: Heap,
}

impl Account {
    fn new(place: Place, pool: CUmemoryPool) -> Self {
        let cache = match place {
            Place::Listed(device) => Some(DriverCache::new(device)),
            Place::Host => Some(DriverCache::new(Budget::Host)),
            Place::Unlisted => None,
        };
        Self(Arc::new(Mutex::new(Sums {
            cache,
            pool: Some(pool),
            fresh: Heap::default(),
        })))
    }

    /// An allocation is about to be freed.
    pub(super) fn leaves(&self, address: CUdeviceptr) {
        self.sums().fresh.leave(address);
    }

    /// It was not.
    pub(super) fn stays(&self, address: CUdeviceptr) {
        self.sums().fresh.stay(address);
    }

    /// An allocation that was leaving is gone.
    pub fn freed(&self, tenant: &Tenant, address: CUdeviceptr, bytes: u64) {
        let mut sums = self.sums();
        sums.fresh.free(address, 0);
        sums.forget(Units::taken_by(bytes).unwrap_or(Units::ZERO));
        sums.settle(tenant);
        if sums.has_unused() {
            KEEPS.store(true, Ordering::Release);
        }
    }

    /// Returns its sums, for one thread at a time.
    pub(super) fn sums(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sums {
    /// Returns the amount that the driver reports for the pool.
    pub(super) fn reserved(&self) -> Units {
        let Some(pool) = self.pool else {
            return Units::ZERO;
        };
        let bytes = owner::attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        Units::taken_by(bytes.unwrap_or(0)).unwrap_or(Units::MAX)
    }

    pub(super) fn budget(&self) -> Option<Budget> {
        self.cache.as_ref().map(DriverCache::budget)
    }

    fn has_unused(&self) -> bool {
        self.cache.as_ref().is_some_and(DriverCache::has_unused)
    }

    pub(super) fn forget(&mut self, amount: Units) {
        if let Some(cache) = &mut self.cache {
            cache.freed(amount);
        }
    }

    pub(super) fn settle(&mut self, tenant: &Tenant) -> bool {
        let reserved = self.reserved();
        let cache = self.cache.as_mut();
        cache.is_some_and(|cache| cache.settle(tenant, reserved))
    }

    pub(super) fn make_room(&mut self, tenant: &Tenant, amount: Units) -> bool {
        let Some(cache) = &mut self.cache else {
            return false;
        };
        let growth = match cache.budget() {
            Budget::Device(device) => {
                let packing = tenant.link.control().device(device).packing();
                Units::taken_by(packing.pool_growth(amount.bytes())).unwrap_or(Units::MAX)
            }
            // A host has pages, and no pieces that are known.
            Budget::Host => Units::ZERO,
        };
        cache.make_room(tenant, amount, growth)
    }

    /// The driver has given `bytes` at an address. True if the memory that it took for them fits.
    pub(super) fn took(
        &mut self,
        tenant: &Tenant,
        address: CUdeviceptr,
        bytes: u64,
        before: Units,
    ) -> bool {
        let reserved = self.reserved();
        let growth = reserved.saturating_sub(before).bytes();
        if growth > 0 || self.fresh.knows(address) {
            let context = CUcontext::default();
            let packing = Packing {
                piece: growth.max(bytes),
                ..Packing::default()
            };
            self.fresh.place(address, bytes, context, &packing);
        }
        let cache = self.cache.as_mut();
        cache.is_none_or(|cache| cache.take_growth(tenant, reserved))
    }

    /// Counts an allocation for which there is room that was never given out.
    pub(super) fn use_fresh(&mut self, bytes: u64, amount: Units) -> bool {
        let has_room = self.fresh.has_room(bytes, CUcontext::default());
        let cache = self.cache.as_mut().filter(|_| has_room);
        cache.is_some_and(|cache| cache.use_unused(amount))
    }

    /// Undoes an allocation that did not fit: it is freed again.
    pub(super) fn undo(&mut self, address: CUdeviceptr) {
        self.fresh.leave(address);
        self.fresh.free(address, 0);
    }

    /// The pool is destroyed; its allocations may still be there.
    pub(super) fn destroyed(&mut self, tenant: &Tenant) {
        self.pool = None;
        self.settle(tenant);
    }

    /// Notes for `sublet top` that so much was asked and not given.
    pub(super) fn refused(&self, tenant: &Tenant, bytes: usize) {
        if let Some(budget) = self.budget() {
            tenant.link.note_refusal(budget, bytes as u64);
        }
    }

    /// Takes from the pool the memory that it only keeps. True if there was any.
    pub(super) fn trim(&mut self, tenant: &Tenant) -> bool {
        if let Some(pool) = self.pool {
            // SAFETY: a live pool; nothing that is in use is released.
            let _ = unsafe { real::cuMemPoolTrimTo(pool, 0) };
        }
        self.settle(tenant)
    }
}

/// All accounts. They are worked with one by one, without the lock of the list.
fn accounts(pools: &Mutex<Pools>) -> Vec<Account> {
    locked(pools).0.values().flatten().cloned().collect()
}

/// After a synchronisation: gives back the memory that the driver has let go of.
pub fn synchronised() {
    if !KEEPS.load(Ordering::Acquire) {
        return;
    }
    let Some(_inside) = Inside::enter() else {
        return;
    };
    let _ = catch_panic(|| {
        let tenant = Tenant::current()?;
        // Before they are looked at: what is freed meanwhile says so again.
        KEEPS.store(false, Ordering::Release);
        for account in accounts(&tenant.accounts.pools) {
            // One with which another thread works is looked at next time.
            let keeps = account.0.try_lock().map_or(true, |mut sums| {
                sums.settle(&tenant);
                sums.has_unused()
            });
            KEEPS.fetch_or(keeps, Ordering::Release);
        }
        Some(())
    });
}

impl CachesMemory for Mutex<Pools> {
    fn release_unused(&self, tenant: &Tenant, budget: Budget) -> bool {
        let mut released = false;
        for account in accounts(self) {
            // A pool whose allocation is under way in another thread is left alone: that thread
            // may be waiting for this one's pool.
            let Ok(mut sums) = account.0.try_lock() else {
                continue;
            };
            if sums.budget() == Some(budget) && sums.has_unused() {
                released |= sums.trim(tenant);
            }
        }
        released
    }

    fn look_again(&self, tenant: &Tenant, device: DeviceIndex) {
        for account in accounts(self) {
            if let Ok(mut sums) = account.0.try_lock()
                && sums.budget() == Some(Budget::Device(device))
            {
                sums.settle(tenant);
            }
        }
    }
}

/// The account of a pool; `None` if nobody says where it is.
pub(super) fn account_of(tenant: &Tenant, pool: CUmemoryPool, stream: CUstream) -> Option<Account> {
    if let Some(known) = locked(&tenant.accounts.pools).0.get(&pool) {
        return known.clone();
    }
    // The driver is asked without the lock: it may call back.
    let place = place_of(tenant, owner_of(pool), || device_of_stream(stream));
    let account = place.map(|place| Account::new(place, pool));
    let mut pools = locked(&tenant.accounts.pools);
    pools.0.entry(pool).or_insert(account).clone()
}

/// Returns the place that an owner's memory is taken from. If the owner is not known, `otherwise`
/// names the device.
fn place_of(
    tenant: &Tenant,
    owner: Option<Owner>,
    otherwise: impl FnOnce() -> Option<CUdevice>,
) -> Option<Place> {
    match owner {
        Some(Owner::Device(device)) => Some(tenant.place(device)),
        Some(Owner::Host) => Some(Place::Host),
        None => otherwise().map(|device| tenant.place(device)),
    }
}

/// Notes that the program made a pool. Without a place from the program, the pool is on the current
/// device.
pub(super) fn made(tenant: &Tenant, pool: CUmemoryPool, owner: Option<Owner>) {
    let place = place_of(tenant, owner, current_device);
    let account = place.map(|place| Account::new(place, pool));
    locked(&tenant.accounts.pools).0.insert(pool, account);
}

/// A pool came from another process: its cost is charged there.
pub fn imported(tenant: &Tenant, pool: CUmemoryPool) {
    locked(&tenant.accounts.pools).0.insert(pool, None);
}
