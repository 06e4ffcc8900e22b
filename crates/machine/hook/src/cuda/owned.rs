//! Kinds of linear memory at an address, and the account to tell when it is freed.
//!
//! The driver frees an address without reporting the kind of its memory. This module knows the
//! kind: each kind of memory has an account of its own, and the account gets back its charge.

use super::c::*;
use super::pool_account::Account;
use super::small::SmallAllocation;
use super::tenant::{ContextCharge, Share, Tenant};

/// Memory at an address.
#[derive(Debug)]
pub enum Owned {
    /// Memory of a context, with blocks for itself.
    Context(ContextCharge),
    /// Memory of a context, in a piece that others share.
    Small(SmallAllocation),
    /// Memory of a pool.
    Pool {
        /// The pool's account.
        account: Account,
        /// Its address.
        address: CUdeviceptr,
        /// Bytes asked.
        bytes: u64,
    },
    /// Memory of another interface.
    External(Share),
}

impl Owned {
    /// It is about to be freed: no room that it keeps is counted on any more.
    pub fn leaves(&self, tenant: &Tenant) {
        match self {
            Owned::Small(small) => small.leaves(tenant),
            Owned::Pool {
                account, address, ..
            } => account.leaves(*address),
            Owned::Context(_) | Owned::External(_) => {}
        }
    }

    /// It was not freed after all.
    pub fn stays(&self, tenant: &Tenant) {
        match self {
            Owned::Small(small) => small.stays(tenant),
            Owned::Pool {
                account, address, ..
            } => account.stays(*address),
            Owned::Context(_) | Owned::External(_) => {}
        }
    }

    /// Pays back the charge after the free.
    pub fn give_back(self, tenant: &Tenant) {
        match self {
            Owned::Context(held) => tenant.give(held.charge),
            Owned::Small(small) => small.give_back(tenant),
            Owned::Pool {
                account,
                address,
                bytes,
            } => account.freed(tenant, address, bytes),
            Owned::External(share) => tenant.give_share(share),
        }
    }
}
