//! Small allocations of linear memory: several share a piece of a card.
//!
//! [`Heap`] knows the pieces of one kind on one card. This module has all heaps, and the steps when
//! an allocation in one of them is freed.

use std::sync::{Mutex, MutexGuard};

use sublet_abi::{DeviceIndex, MAX_DEVICES, Packing};

use super::c::*;
use super::heap::{Heap, Kind};
use super::locked;
use super::tenant::{MemoryCharge, Tenant};

/// An allocation in a piece that others share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallAllocation {
    /// Its address.
    pub address: CUdeviceptr,
    /// Its device.
    pub device: DeviceIndex,
    /// Its kind.
    pub kind: Kind,
    /// Its context.
    pub context: CUcontext,
}

impl SmallAllocation {
    /// Pays back the pieces that are empty after the free.
    pub fn give_back(self, tenant: &Tenant) {
        let packing = packing_of(tenant, self.device, self.kind);
        let amount = self.heap(tenant).free(self.address, packing.kept);
        tenant.give(MemoryCharge {
            budget: self.device.into(),
            amount,
        });
    }

    /// It is about to be freed: the room in its piece is not counted on.
    pub fn leaves(&self, tenant: &Tenant) {
        self.heap(tenant).leave(self.address);
    }

    /// It was not freed after all.
    pub fn stays(&self, tenant: &Tenant) {
        self.heap(tenant).stay(self.address);
    }

    fn heap(&self, tenant: &Tenant) -> MutexGuard<'static, Heap> {
        locked(tenant.accounts.heaps.of(self.device, self.kind))
    }
}

/// The pieces of each card.
#[derive(Debug, Default)]
pub struct Heaps([[Mutex<Heap>; 2]; MAX_DEVICES]);

impl Heaps {
    /// Returns the pieces of one kind on one card.
    #[must_use]
    pub fn of(&self, device: DeviceIndex, kind: Kind) -> &Mutex<Heap> {
        &self.0[device.place()][kind as usize]
    }

    /// Contexts on a device are gone.
    pub fn end(&self, tenant: &Tenant, device: DeviceIndex, is_gone: impl Fn(CUcontext) -> bool) {
        for heap in &self.0[device.place()] {
            let amount = locked(heap).end(&is_gone);
            let budget = device.into();
            tenant.give(MemoryCharge { budget, amount });
        }
    }
}

/// Returns a card's packing of memory of a kind.
#[must_use]
pub fn packing_of(tenant: &Tenant, device: DeviceIndex, kind: Kind) -> Packing {
    kind.packing(tenant.link.control().device(device).packing())
}
