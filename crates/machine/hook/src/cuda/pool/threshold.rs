//! The memory that a pool may keep for later: never more than its tenant's limit.

use std::ffi::c_void;

use crate::cuda::c::*;
use crate::cuda::pool_account::account_of;
use crate::cuda::row;
use crate::cuda::tenant::Tenant;
use crate::guard::{Inside, catch_panic};
use crate::real::Like;

/// `cuMemPoolSetAttribute`: a pool may keep its tenant's limit, and no more. Programs set the
/// threshold to all memory (PyTorch and RMM do), and mean the card.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn set_attribute<R: Like<row::cuMemPoolSetAttribute>>(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> CUresult {
    let mut capped = None;
    if attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && !value.is_null() {
        // SAFETY: not null, and this attribute is a number of eight bytes.
        let asked = unsafe { value.cast::<u64>().read_unaligned() };
        capped = limit_of(pool).map(|limit| asked.min(limit));
    }
    match &mut capped {
        // SAFETY: the program's own arguments, with a number of ours.
        Some(threshold) => unsafe {
            R::call((pool, attribute, std::ptr::from_mut(threshold).cast()))
        },
        // SAFETY: the program's own arguments.
        None => unsafe { R::call((pool, attribute, value)) },
    }
}

/// Returns the tenant's limit at the pool's place.
fn limit_of(pool: CUmemoryPool) -> Option<u64> {
    let _inside = Inside::enter()?;
    catch_panic(|| {
        let tenant = Tenant::current()?;
        let account = account_of(&tenant, pool, CU_STREAM_LEGACY)?;
        let budget = account.sums().budget()?;
        Some(tenant.link.limit_bytes(budget))
    })
    .flatten()
}
