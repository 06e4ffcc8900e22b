//! The accounts of one kind of memory on a page: a device's, or the host's. They have words of
//! their own and one protocol, and a process must be able to die in either. Nothing here needs
//! memory, since a victim calls it.

use sublet_abi::{
    Contended, DeviceIndex, HostLedger, LedgerPage, NotCharged, NotReleased, NotReserved,
    SlotIndex, Units,
};

use crate::page::Page;

/// Owner of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Device(DeviceIndex),
    Host,
}

/// All accounts of that kind on one page.
#[derive(Clone, Copy)]
pub(crate) struct Account {
    ledger: &'static LedgerPage,
    host: &'static HostLedger,
    kind: Kind,
}

impl Account {
    pub(crate) fn of(page: &Page, kind: Kind) -> Account {
        let ledger = page.ledger();
        let host = ledger.host();
        Account { ledger, host, kind }
    }

    pub(crate) fn reserve(
        &self,
        slot: SlotIndex,
        amount: Units,
        limit: Units,
    ) -> Result<(), NotReserved> {
        let limit = || limit;
        match self.kind {
            Kind::Device(device) => self.ledger.reserve(slot, device, amount, limit),
            Kind::Host => self.host.reserve(slot, amount, limit),
        }
    }

    pub(crate) fn release(&self, slot: SlotIndex, amount: Units) -> Result<(), NotReleased> {
        match self.kind {
            Kind::Device(device) => self.ledger.release(slot, device, amount),
            Kind::Host => self.host.release(slot, amount),
        }
    }

    pub(crate) fn charge(&self, slot: SlotIndex, amount: Units) -> Result<(), NotCharged> {
        match self.kind {
            Kind::Device(device) => self.ledger.charge(slot, device, amount),
            Kind::Host => self.host.charge(slot, amount),
        }
    }

    pub(crate) fn reclaim(&self, slot: SlotIndex) -> Result<Units, Contended> {
        match self.kind {
            Kind::Device(device) => self.ledger.reclaim(slot, device),
            Kind::Host => self.host.reclaim(slot),
        }
    }

    pub(crate) fn total(&self) -> Units {
        match self.kind {
            Kind::Device(device) => self.ledger.total(device),
            Kind::Host => self.host.total(),
        }
    }

    pub(crate) fn held(&self, slot: SlotIndex) -> Units {
        match self.kind {
            Kind::Device(device) => self.ledger.held(slot, device),
            Kind::Host => self.host.held(slot),
        }
    }

    /// Returns the total of all other kinds of memory on the page.
    pub(crate) fn others_total(&self) -> Units {
        let kinds = DeviceIndex::all().map(Kind::Device).chain([Kind::Host]);
        let others = kinds.filter(|kind| *kind != self.kind);
        others.fold(Units::ZERO, |sum, kind| {
            sum.saturating_add(Account { kind, ..*self }.total())
        })
    }
}
