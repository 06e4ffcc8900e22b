//! Linear memory: `cuMemAlloc`, pitched and managed memory, and what frees it.
//!
//! It is charged as the driver takes it: a large allocation by whole blocks, small ones by the
//! pieces that they share ([`heap`](super::heap)). Managed memory counts as memory of the
//! current device: it can all end up there. What a pointer cost is remembered with the context
//! it belongs to, because the driver frees a context's memory with the context.

mod taking;

use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard};

use sublet_abi::{DeviceIndex, MAX_DEVICES, Packing, Units};

use self::taking::allocating;
use super::c::*;
use super::external::{self, Share};
use super::heap::{Heap, Kind, TINY};
use super::lent::Trace;
use super::pool::Account;
use super::shared::Borrowed;
use super::tenant::{Ask, Charge, Held, Place, Tenant, current_context, current_device, giving};
use super::{locked, real, row};
use crate::real::Like;

/// Who pays for an address.
#[derive(Debug)]
pub enum Owned {
    /// Memory of a context, with blocks for itself.
    Context(Held),
    /// Memory of a context, in a piece that others share.
    Part(Part),
    /// Memory of a pool.
    Pool {
        /// The pool's account.
        account: Account,
        /// Where it is.
        address: CUdeviceptr,
        /// Bytes asked.
        bytes: u64,
    },
    /// Memory of another interface.
    External(Share),
}

/// An allocation in a piece that others share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Where it is.
    pub address: CUdeviceptr,
    /// On which device.
    pub device: DeviceIndex,
    /// Of which kind.
    pub kind: Kind,
    /// Whose it is.
    pub context: CUcontext,
}

impl Part {
    /// It is freed: pays back what is empty now.
    pub fn give_back(self, tenant: &Tenant) {
        let packing = packing_of(tenant, self.device, self.kind);
        let amount = self.heap(tenant).free(self.address, packing.kept);
        tenant.give(Charge {
            budget: self.device.into(),
            amount,
        });
    }

    fn heap(&self, tenant: &Tenant) -> MutexGuard<'static, Heap> {
        locked(tenant.books.heaps.of(self.device, self.kind))
    }
}

/// The pieces of each card.
#[derive(Debug, Default)]
pub struct Heaps([[Mutex<Heap>; 2]; MAX_DEVICES]);

impl Heaps {
    fn of(&self, device: DeviceIndex, kind: Kind) -> &Mutex<Heap> {
        &self.0[device.place()][kind as usize]
    }

    /// Contexts on a device are gone.
    pub(super) fn end(
        &self,
        tenant: &Tenant,
        device: DeviceIndex,
        is_gone: impl Fn(CUcontext) -> bool,
    ) {
        for heap in &self.0[device.place()] {
            let amount = locked(heap).end(&is_gone);
            let budget = device.into();
            tenant.give(Charge { budget, amount });
        }
    }
}

fn packing_of(tenant: &Tenant, device: DeviceIndex, kind: Kind) -> Packing {
    kind.packing(tenant.link.control().device(device).packing())
}

impl Owned {
    /// It is about to be freed: no room that it keeps is counted on any more.
    pub(super) fn leaves(&self, tenant: &Tenant) {
        match self {
            Owned::Part(part) => part.heap(tenant).leave(part.address),
            Owned::Pool {
                account, address, ..
            } => account.leaves(*address),
            Owned::Context(_) | Owned::External(_) => {}
        }
    }

    /// It was not freed after all.
    fn stays(&self, tenant: &Tenant) {
        match self {
            Owned::Part(part) => part.heap(tenant).stay(part.address),
            Owned::Pool {
                account, address, ..
            } => account.stays(*address),
            Owned::Context(_) | Owned::External(_) => {}
        }
    }

    /// It left: pays back what was charged.
    pub fn give_back(self, tenant: &Tenant) {
        match self {
            Owned::Context(held) => tenant.give(held.charge),
            Owned::Part(part) => part.give_back(tenant),
            Owned::Pool {
                account,
                address,
                bytes,
            } => account.freed(tenant, address, bytes),
            Owned::External(share) => external::give(tenant, share),
        }
    }
}

/// All that is known of an address, while the driver is asked to free it.
#[derive(Debug)]
pub(super) struct Known {
    owned: Option<Owned>,
    /// How it was given to others.
    traces: Vec<Trace>,
    /// It is another process's.
    borrowed: Option<Borrowed>,
}

/// Takes an address out of the books.
pub(super) fn take(tenant: &Tenant, address: CUdeviceptr) -> Option<Known> {
    let owned = tenant.books.pointers.remove(address);
    if let Some(owned) = &owned {
        owned.leaves(tenant);
    }
    let traces = tenant.books.exports.remove(address).unwrap_or_default();
    let borrowed = match owned {
        Some(_) => None,
        None => Borrowed::take(tenant, address),
    };
    let is_known = owned.is_some() || borrowed.is_some() || !traces.is_empty();
    is_known.then_some(Known {
        owned,
        traces,
        borrowed,
    })
}

/// Remembers what an address cost.
pub(super) fn keep(tenant: &Tenant, address: CUdeviceptr, owned: Owned) {
    if let Some(before) = tenant.books.pointers.insert(address, owned) {
        // The driver gave the address out again, so what was there is gone.
        before.leaves(tenant);
        before.give_back(tenant);
    }
}

/// `cuMemAlloc_v2`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn alloc<R: Like<row::cuMemAlloc_v2>>(
    address: *mut CUdeviceptr,
    bytes: usize,
) -> CUresult {
    allocating(
        Kind::Device,
        bytes as u64,
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, bytes)) },
        // SAFETY: the driver wrote it.
        || (unsafe { *address }, bytes as u64),
    )
}

/// `cuMemAlloc` of 32-bit times: addresses and sizes of four bytes.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn alloc_v1<R: Like<row::cuMemAlloc>>(
    address: *mut u32,
    bytes: c_uint,
) -> CUresult {
    allocating(
        Kind::Device,
        u64::from(bytes),
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, bytes)) },
        // SAFETY: the driver wrote it.
        || (u64::from(unsafe { *address }), u64::from(bytes)),
    )
}

/// `cuMemAllocManaged`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn managed<R: Like<row::cuMemAllocManaged>>(
    address: *mut CUdeviceptr,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    allocating(
        Kind::Managed,
        bytes as u64,
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, bytes, flags)) },
        // SAFETY: the driver wrote it.
        || (unsafe { *address }, bytes as u64),
    )
}

/// Rows of pitched memory begin at multiples of this on every card so far; the driver does not
/// say before it has allocated.
const PITCH: u64 = 512;

/// What pitched memory will take, as far as that can be known before; saturating, so that
/// nonsense is refused like any amount that no card has.
fn pitched(width: u64, height: u64) -> u64 {
    let pitch = width.div_ceil(PITCH).saturating_mul(PITCH);
    pitch.saturating_mul(height)
}

/// `cuMemAllocPitch_v2`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn pitch<R: Like<row::cuMemAllocPitch_v2>>(
    address: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> CUresult {
    allocating(
        Kind::Device,
        pitched(width as u64, height as u64),
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, pitch, width, height, element)) },
        || {
            // SAFETY: the driver wrote both.
            let (address, pitch) = unsafe { (*address, *pitch) };
            (address, (pitch as u64).saturating_mul(height as u64))
        },
    )
}

/// `cuMemAllocPitch` of 32-bit times.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn pitch_v1<R: Like<row::cuMemAllocPitch>>(
    address: *mut u32,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    element: c_uint,
) -> CUresult {
    allocating(
        Kind::Device,
        pitched(u64::from(width), u64::from(height)),
        // SAFETY: the program's own arguments.
        || unsafe { R::call((address, pitch, width, height, element)) },
        || {
            // SAFETY: the driver wrote both.
            let (address, pitch) = unsafe { (*address, *pitch) };
            (u64::from(address), u64::from(pitch) * u64::from(height))
        },
    )
}

/// `cuMemFree_v2`. Memory of a pool may be freed by it too.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn free<R: Like<row::cuMemFree_v2>>(address: CUdeviceptr) -> CUresult {
    giving(
        |tenant| take(tenant, address),
        // SAFETY: the program's own argument.
        || unsafe { R::call((address,)) },
        |tenant, known, freed| freed_or_kept(tenant, address, known, freed),
    )
}

/// `cuMemFree` of 32-bit times.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn free_v1<R: Like<row::cuMemFree>>(address: u32) -> CUresult {
    giving(
        |tenant| take(tenant, u64::from(address)),
        // SAFETY: the program's own argument.
        || unsafe { R::call((address,)) },
        |tenant, known, freed| freed_or_kept(tenant, u64::from(address), known, freed),
    )
}

/// After a free: pays back, or remembers again what the driver did not free.
pub(super) fn freed_or_kept(tenant: &Tenant, address: CUdeviceptr, known: Known, freed: bool) {
    let Known {
        owned,
        traces,
        borrowed,
    } = known;
    match borrowed {
        Some(borrowed) if freed => borrowed.ended(tenant),
        Some(borrowed) => borrowed.keep(tenant, address),
        None => {}
    }
    match owned {
        Some(owned) if freed => tenant.books.lent.let_go_of(tenant, owned, traces),
        owned => {
            if let Some(owned) = owned {
                owned.stays(tenant);
                keep(tenant, address, owned);
            }
            if !freed && !traces.is_empty() {
                tenant.books.exports.insert(address, traces);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pitched_memory_is_charged_by_whole_rows() {
        for (width, height, bytes) in [
            (1, 1, 512),
            (512, 3, 1536),
            (513, 3, 3072),
            (0, 7, 0),
            (u64::MAX, 2, u64::MAX),
            (1 << 40, 1 << 40, u64::MAX),
        ] {
            assert_eq!(pitched(width, height), bytes, "{width} × {height}");
        }
    }
}
