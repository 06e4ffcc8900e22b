//! Addresses of linear memory: the entry of each, and the steps when one is freed.
//!
//! An address may be freed by `cuMemFree`, by `cuMemFreeAsync` or by the end of its context. In
//! each case it is taken out of the accounts before the driver is asked, and its payer is told
//! afterwards: for memory of this process its account ([`Owned`]), later if others still hold it
//! ([`deferred_free`](super::deferred_free)); for memory of another process that process
//! ([`Borrowed`]).

use super::borrowed::Borrowed;
use super::c::*;
use super::deferred_free::Holder;
use super::owned::Owned;
use super::tenant::Tenant;

/// All that is known of an address, while the driver is asked to free it.
#[derive(Debug)]
pub struct Known {
    owned: Option<Owned>,
    /// Others that may hold it.
    holders: Vec<Holder>,
    /// It is another process's.
    borrowed: Option<Borrowed>,
}

/// Takes an address out of the accounts.
pub fn take(tenant: &Tenant, address: CUdeviceptr) -> Option<Known> {
    let owned = tenant.accounts.pointers.remove(address);
    if let Some(owned) = &owned {
        owned.leaves(tenant);
    }
    let holders = tenant.accounts.exports.remove(address).unwrap_or_default();
    let borrowed = match owned {
        Some(_) => None,
        None => Borrowed::take(tenant, address),
    };
    let is_known = owned.is_some() || borrowed.is_some() || !holders.is_empty();
    is_known.then_some(Known {
        owned,
        holders,
        borrowed,
    })
}

/// Remembers the charge of an address.
pub fn keep(tenant: &Tenant, address: CUdeviceptr, owned: Owned) {
    if let Some(before) = tenant.accounts.pointers.insert(address, owned) {
        // The driver gave the address out again, so what was there is gone.
        before.leaves(tenant);
        before.give_back(tenant);
    }
}

/// After a free: pays back, or remembers the memory again if the driver did not free it.
pub fn after_free(tenant: &Tenant, address: CUdeviceptr, known: Known, freed: bool) {
    let Known {
        owned,
        holders,
        borrowed,
    } = known;
    match borrowed {
        Some(borrowed) if freed => borrowed.ended(tenant),
        Some(borrowed) => borrowed.keep(tenant, address),
        None => {}
    }
    match owned {
        Some(owned) if freed => tenant
            .accounts
            .deferred_frees
            .pay_back(tenant, owned, holders),
        owned => {
            if let Some(owned) = owned {
                owned.stays(tenant);
                keep(tenant, address, owned);
            }
            if !freed && !holders.is_empty() {
                tenant.accounts.exports.insert(address, holders);
            }
        }
    }
}

/// The driver has freed addresses by itself, with a context: pays back for those that are gone.
pub fn forget_where(tenant: &Tenant, is_gone: impl Fn(&Owned) -> bool) {
    let accounts = tenant.accounts;
    for (address, owned) in accounts.pointers.remove_where(is_gone) {
        owned.leaves(tenant);
        let holders = accounts.exports.remove(address).unwrap_or_default();
        accounts.deferred_frees.pay_back(tenant, owned, holders);
    }
}
