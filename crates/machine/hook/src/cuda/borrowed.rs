//! Memory of other processes, at addresses of this one.
//!
//! It costs nothing here: the process that made it pays. While it is here, a mark tells its owner
//! so ([`marks`](crate::link::marks)).

use super::c::*;
use super::tenant::{Tenant, current_context};
use crate::link::marks::Key;

/// Memory of another process, as this one has it.
#[derive(Debug)]
pub struct Borrowed {
    key: Key,
    /// Context in which it is mapped.
    pub context: CUcontext,
}

impl Borrowed {
    /// Another process's memory is at an address, under a name.
    pub fn begin(tenant: &Tenant, address: CUdeviceptr, key: Key) {
        if let Some(marks) = tenant.link.marks() {
            marks.set(key);
            let context = current_context();
            Self { key, context }.keep(tenant, address);
        }
    }

    /// Remembers it. An address can be borrowed several times.
    pub fn keep(self, tenant: &Tenant, address: CUdeviceptr) {
        let mut all = tenant.accounts.borrowed.remove(address).unwrap_or_default();
        all.push(self);
        tenant.accounts.borrowed.insert(address, all);
    }

    /// An address is about to be given back, once.
    pub fn take(tenant: &Tenant, address: CUdeviceptr) -> Option<Self> {
        let mut all = tenant.accounts.borrowed.remove(address)?;
        let last = all.pop();
        if !all.is_empty() {
            tenant.accounts.borrowed.insert(address, all);
        }
        last
    }

    /// It was given back.
    pub fn ended(self, tenant: &Tenant) {
        if let Some(marks) = tenant.link.marks() {
            marks.clear(self.key);
        }
    }
}
