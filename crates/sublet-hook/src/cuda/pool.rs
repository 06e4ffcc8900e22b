//! Memory pools: `cuMemAllocAsync` and its family.
//!
//! A pool keeps what was freed for the next allocation; [`Kept`] says how that is charged.
//! Before an allocation, what the pool could grow by is reserved: drivers grow pools by large
//! pieces, and do not say whether what a pool keeps is in parts. Only room behind what was ever
//! given out of a piece is sure ([`Heap`]), and is used where the limit leaves no more. After the
//! call the driver says how much the pool has. Should that be even more, it must fit as well, or
//! the allocation is undone.
//!
//! Freed memory goes back to the account when the driver lets go of it. It does so at a
//! synchronisation and does not say it, so pools are looked at again after one
//! ([`synchronised`]) and when an amount is asked for, and trimmed before anything is refused
//! ([`release_unused`]).

mod owner;
pub mod threshold;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sublet_abi::{DeviceIndex, Packing, Units};

use self::owner::{Owner, device_of_stream, owner_of};
pub(super) use self::owner::{is_capturing, meant};
use super::c::*;
use super::heap::Heap;
use super::kept::Kept;
use super::plain::{self, Owned};
use super::tenant::{Place, Tenant, current_device, giving};
use super::{locked, real, row};
use crate::guard::{Inside, calm};
use crate::link::Budget;
use crate::real::Like;

/// True while a pool may keep memory that nobody uses. A child of fork has its parent's word for
/// it, and finds out at its first synchronisation.
static KEEPS: AtomicBool = AtomicBool::new(false);

/// Pools by handle. One of which nobody says where it is has no account.
#[derive(Debug, Default)]
pub struct Pools(HashMap<CUmemoryPool, Option<Account>>);

/// One pool's account. It outlives the pool while allocations do.
#[derive(Debug, Clone)]
pub struct Account(Arc<Mutex<Sums>>);

#[derive(Debug)]
struct Sums {
    /// `None` for a device that is not the tenant's: nothing can be taken there.
    kept: Option<Kept>,
    /// The pool, to be asked what it has reserved; `None` once it was destroyed.
    pool: Option<CUmemoryPool>,
    /// Which part of its pieces was never given out.
    fresh: Heap,
}

impl Account {
    fn new(place: Place, pool: CUmemoryPool) -> Self {
        let kept = match place {
            Place::Listed(device) => Some(Kept::new(device)),
            Place::Host => Some(Kept::new(Budget::Host)),
            Place::Unlisted => None,
        };
        Self(Arc::new(Mutex::new(Sums {
            kept,
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

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sums {
    /// What the driver says the pool has.
    fn reserved(&self) -> Units {
        let Some(pool) = self.pool else {
            return Units::ZERO;
        };
        let bytes = owner::attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
        Units::taken_by(bytes.unwrap_or(0)).unwrap_or(Units::MAX)
    }

    fn budget(&self) -> Option<Budget> {
        self.kept.as_ref().map(Kept::budget)
    }

    fn has_unused(&self) -> bool {
        self.kept.as_ref().is_some_and(Kept::has_unused)
    }

    fn forget(&mut self, amount: Units) {
        if let Some(kept) = &mut self.kept {
            kept.freed(amount);
        }
    }

    fn settle(&mut self, tenant: &Tenant) -> bool {
        let reserved = self.reserved();
        let kept = self.kept.as_mut();
        kept.is_some_and(|kept| kept.settle(tenant, reserved))
    }

    fn make_room(&mut self, tenant: &Tenant, amount: Units) -> bool {
        let Some(kept) = &mut self.kept else {
            return false;
        };
        let growth = match kept.budget() {
            Budget::Device(device) => {
                let packing = tenant.link.control().device(device).packing();
                Units::taken_by(packing.pool_growth(amount.bytes())).unwrap_or(Units::MAX)
            }
            // A host has pages, and no pieces that are known.
            Budget::Host => Units::ZERO,
        };
        kept.make_room(tenant, amount, growth)
    }

    /// The driver has given `bytes` at an address. True if what it took for them fits.
    fn took(&mut self, tenant: &Tenant, address: CUdeviceptr, bytes: u64, before: Units) -> bool {
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
        let kept = self.kept.as_mut();
        kept.is_none_or(|kept| kept.take_growth(tenant, reserved))
    }

    /// Counts an allocation for which there is room that was never given out.
    fn use_fresh(&mut self, bytes: u64, amount: Units) -> bool {
        let has_room = self.fresh.has_room(bytes, CUcontext::default());
        let kept = self.kept.as_mut().filter(|_| has_room);
        kept.is_some_and(|kept| kept.use_unused(amount))
    }

    /// Notes for `sublet top` that so much was asked and not given.
    fn refused(&self, tenant: &Tenant, bytes: usize) {
        if let Some(budget) = self.budget() {
            tenant.link.note_refusal(budget, bytes as u64);
        }
    }

    /// Takes from the pool what it only keeps. True if that was anything.
    fn trim(&mut self, tenant: &Tenant) -> bool {
        if let Some(pool) = self.pool {
            // SAFETY: a live pool; nothing that is in use is released.
            let _ = unsafe { real::cuMemPoolTrimTo(pool, 0) };
        }
        self.settle(tenant)
    }
}

/// All accounts. They are worked with one by one, without the lock of the list.
fn accounts(tenant: &Tenant) -> Vec<Account> {
    let pools = locked(&tenant.books.pools);
    pools.0.values().flatten().cloned().collect()
}

/// After a synchronisation: gives back what the driver has let go of.
pub fn synchronised() {
    if !KEEPS.load(Ordering::Acquire) {
        return;
    }
    let Some(_inside) = Inside::enter() else {
        return;
    };
    let _ = calm(|| {
        let tenant = Tenant::current()?;
        // Before they are looked at: what is freed meanwhile says so again.
        KEEPS.store(false, Ordering::Release);
        for account in accounts(&tenant) {
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

/// Takes from the pools of a budget what they only keep. True if that was anything.
pub fn release_unused(tenant: &Tenant, budget: impl Into<Budget>) -> bool {
    let budget = budget.into();
    let accounts = accounts(tenant);
    let mut released = tenant.books.lent.sweep(tenant);
    if let Budget::Device(device) = budget {
        released |= super::graph::release_unused(tenant, device);
    }
    for account in accounts {
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

/// Looks at what the pools and graphs of a device have now, and what is lent, before it is
/// reported.
pub fn look_again(tenant: &Tenant, device: DeviceIndex) {
    tenant.books.lent.sweep(tenant);
    super::graph::look_again(tenant, device);
    for account in accounts(tenant) {
        if let Ok(mut sums) = account.0.try_lock()
            && sums.budget() == Some(Budget::Device(device))
        {
            sums.settle(tenant);
        }
    }
}

/// The account of a pool; `None` if nobody says where it is.
fn account_of(tenant: &Tenant, pool: CUmemoryPool, stream: CUstream) -> Option<Account> {
    if let Some(known) = locked(&tenant.books.pools).0.get(&pool) {
        return known.clone();
    }
    // The driver is asked without the lock: it may call back.
    let place = place_of(tenant, owner_of(pool), || device_of_stream(stream));
    let account = place.map(|place| Account::new(place, pool));
    let mut pools = locked(&tenant.books.pools);
    pools.0.entry(pool).or_insert(account).clone()
}

/// Where an owner's memory is taken from; that of a device where the owner is not known.
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

/// A pool came from another process: what it costs is charged there.
pub fn imported(tenant: &Tenant, pool: CUmemoryPool) {
    locked(&tenant.books.pools).0.insert(pool, None);
}

/// An allocation from a pool. `pool` says from which.
fn alloc(
    address: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    pool: impl FnOnce() -> Option<CUmemoryPool>,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(_inside) = Inside::enter() else {
        return call();
    };
    let found = calm(|| {
        let tenant = Tenant::current()?;
        if is_capturing(stream) {
            return None;
        }
        let account = account_of(&tenant, pool()?, stream)?;
        Some((tenant, account))
    });
    let Some((tenant, account)) = found.flatten() else {
        return call();
    };
    let mut sums = account.sums();
    // More than can be counted is more than there is.
    let amount = Units::taken_by(bytes as u64).unwrap_or(Units::MAX);
    let fits = calm(|| {
        sums.make_room(&tenant, amount) || {
            sums.trim(&tenant);
            if let Some(budget) = sums.budget() {
                release_unused(&tenant, budget);
            }
            sums.make_room(&tenant, amount) || sums.use_fresh(bytes as u64, amount)
        }
    });
    if fits != Some(true) {
        sums.refused(&tenant, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    let before = sums.reserved();
    let result = call();
    let kept = calm(|| {
        if result == CUDA_SUCCESS {
            // SAFETY: the driver wrote it.
            let address = unsafe { *address };
            if sums.took(&tenant, address, bytes as u64, before) {
                return true;
            }
            sums.fresh.leave(address);
            sums.fresh.free(address, 0);
            // SAFETY: the program does not know it yet.
            let _ = unsafe { real::cuMemFreeAsync(address, stream) };
        }
        sums.forget(amount);
        sums.trim(&tenant);
        false
    });
    if result == CUDA_SUCCESS && kept == Some(false) {
        sums.refused(&tenant, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    drop(sums);
    if result == CUDA_SUCCESS {
        let bytes = bytes as u64;
        // SAFETY: the driver wrote it.
        let address = unsafe { *address };
        let _ = calm(|| {
            plain::keep(
                &tenant,
                address,
                Owned::Pool {
                    account,
                    address,
                    bytes,
                },
            );
        });
    }
    result
}

/// `cuMemAllocAsync`: from the current pool of the stream's device.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn alloc_async<R: Like<row::cuMemAllocAsync>>(
    address: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> CUresult {
    let pool = || {
        let device = device_of_stream(stream)?;
        let mut pool = CUmemoryPool::default();
        // SAFETY: writes the handle it is given.
        let result = unsafe { real::cuDeviceGetMemPool(&raw mut pool, device) };
        (result == CUDA_SUCCESS).then_some(pool)
    };
    // SAFETY: the program's own arguments.
    alloc(address, bytes, meant::<R>(stream), pool, || unsafe {
        R::call((address, bytes, stream))
    })
}

/// `cuMemAllocFromPoolAsync`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn alloc_from_pool<R: Like<row::cuMemAllocFromPoolAsync>>(
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> CUresult {
    // SAFETY: the program's own arguments.
    alloc(
        address,
        bytes,
        meant::<R>(stream),
        || Some(pool),
        || unsafe { R::call((address, bytes, pool, stream)) },
    )
}

/// `cuMemFreeAsync`. Memory of a context may be freed by it too.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn free_async<R: Like<row::cuMemFreeAsync>>(
    address: CUdeviceptr,
    stream: CUstream,
) -> CUresult {
    giving(
        |tenant| {
            // Recorded for a graph: the memory stays until that runs.
            let now = !is_capturing(meant::<R>(stream));
            now.then(|| plain::take(tenant, address)).flatten()
        },
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, stream)) },
        |tenant, known, freed| plain::freed_or_kept(tenant, address, known, freed),
    )
}

/// `cuMemPoolCreate`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn create<R: Like<row::cuMemPoolCreate>>(
    pool: *mut CUmemoryPool,
    properties: *const CUmemPoolProps_v1,
) -> CUresult {
    giving(
        // SAFETY: null or the program's struct.
        |_| Some(unsafe { properties.as_ref() }.and_then(Owner::asked)),
        // SAFETY: the program's own arguments.
        || unsafe { R::call((pool, properties)) },
        |tenant, owner, made| {
            if !made {
                return;
            }
            // SAFETY: the driver wrote it.
            let pool = unsafe { *pool };
            let place = place_of(tenant, owner, current_device);
            let account = place.map(|place| Account::new(place, pool));
            locked(&tenant.books.pools).0.insert(pool, account);
        },
    )
}

/// `cuMemPoolDestroy`: the pool goes when its last allocation goes.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn destroy<R: Like<row::cuMemPoolDestroy>>(pool: CUmemoryPool) -> CUresult {
    giving(
        |tenant| locked(&tenant.books.pools).0.remove(&pool),
        // SAFETY: the program's own argument.
        || unsafe { R::call((pool,)) },
        |tenant, account, gone| {
            if !gone {
                locked(&tenant.books.pools).0.insert(pool, account);
                return;
            }
            if let Some(account) = account {
                let mut sums = account.sums();
                sums.pool = None;
                sums.settle(tenant);
            }
        },
    )
}

/// `cuMemPoolTrimTo`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn trim_to<R: Like<row::cuMemPoolTrimTo>>(
    pool: CUmemoryPool,
    keep: usize,
) -> CUresult {
    giving(
        |tenant| locked(&tenant.books.pools).0.get(&pool).cloned().flatten(),
        // SAFETY: the program's own arguments.
        || unsafe { R::call((pool, keep)) },
        |tenant, account, _| {
            account.sums().settle(tenant);
        },
    )
}
