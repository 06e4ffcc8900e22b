//! Memory pools: `cuMemAllocAsync` and its family. [`pool_account`](super::pool_account) has the
//! cost of a pool.

mod threshold;

use std::sync::MutexGuard;

use sublet_abi::Units;

pub use self::threshold::set_attribute;
use super::c::*;
use super::owned::Owned;
use super::pool_account::{self, Account, Owner, Sums, account_of};
use super::stream::{device_of_stream, is_capturing, may_take, meant};
use super::tenant::{Tenant, giving};
use super::{address, locked, real, row};
use crate::guard::{Inside, catch_panic};
use crate::real::Like;

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
    let found = catch_panic(|| {
        let tenant = Tenant::current()?;
        if !may_take(stream) {
            return None;
        }
        let account = account_of(&tenant, pool()?, stream)?;
        Some((tenant, account))
    });
    let Some((tenant, account)) = found.flatten() else {
        return call();
    };
    // More than can be counted is more than there is.
    let amount = Units::taken_by(bytes as u64).unwrap_or(Units::MAX);
    let (mut sums, fits) = make_room(&tenant, &account, bytes as u64, amount);
    if !fits {
        sums.refused(&tenant, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    let before = sums.reserved();
    let result = call();
    let kept = catch_panic(|| {
        if result == CUDA_SUCCESS {
            // SAFETY: the driver wrote it.
            let address = unsafe { *address };
            if sums.took(&tenant, address, bytes as u64, before) {
                return true;
            }
            sums.undo(address);
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
        // SAFETY: the driver wrote it.
        let address = unsafe { *address };
        let owned = Owned::Pool {
            account,
            address,
            bytes: bytes as u64,
        };
        let _ = catch_panic(|| address::keep(&tenant, address, owned));
    }
    result
}

/// Reserves room in a pool's account, and leaves the account locked. False if the limit allows
/// none.
fn make_room<'account>(
    tenant: &Tenant,
    account: &'account Account,
    bytes: u64,
    amount: Units,
) -> (MutexGuard<'account, Sums>, bool) {
    let mut sums = account.sums();
    let mut fits = catch_panic(|| {
        sums.make_room(tenant, amount) || {
            sums.trim(tenant);
            false
        }
    });
    if let (Some(false), Some(budget)) = (fits, sums.budget()) {
        // What is given back may be of this pool, and would wait for its lock.
        drop(sums);
        let released = catch_panic(|| tenant.release_unused(budget));
        sums = account.sums();
        let try_again = || sums.make_room(tenant, amount) || sums.use_fresh(bytes, amount);
        fits = released.and_then(|_| catch_panic(try_again));
    }
    (sums, fits == Some(true))
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
            now.then(|| address::take(tenant, address)).flatten()
        },
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, stream)) },
        |tenant, known, freed| address::after_free(tenant, address, known, freed),
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
            pool_account::made(tenant, unsafe { *pool }, owner);
        },
    )
}

/// `cuMemPoolDestroy`: the pool goes when its last allocation goes.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn destroy<R: Like<row::cuMemPoolDestroy>>(pool: CUmemoryPool) -> CUresult {
    giving(
        |tenant| locked(&tenant.accounts.pools).0.remove(&pool),
        // SAFETY: the program's own argument.
        || unsafe { R::call((pool,)) },
        |tenant, account, gone| {
            if !gone {
                locked(&tenant.accounts.pools).0.insert(pool, account);
                return;
            }
            if let Some(account) = account {
                account.sums().destroyed(tenant);
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
        |tenant| {
            locked(&tenant.accounts.pools)
                .0
                .get(&pool)
                .cloned()
                .flatten()
        },
        // SAFETY: the program's own arguments.
        || unsafe { R::call((pool, keep)) },
        |tenant, account, _| {
            account.sums().settle(tenant);
        },
    )
}
