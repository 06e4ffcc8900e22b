//! Linear memory: `cuMemAlloc`, pitched and managed memory, and what frees it.
//!
//! It is charged as the driver takes it: a large allocation by whole blocks, small ones by the
//! pieces that they share ([`heap`](super::heap)). Managed memory counts as memory of the
//! current device: it can all end up there. What a pointer cost is remembered with the context
//! it belongs to, because the driver frees a context's memory with the context.

use std::ffi::c_uint;
use std::sync::{Mutex, MutexGuard};

use sublet_abi::{DeviceIndex, MAX_DEVICES, Packing, Units};

use super::c::*;
use super::external::{self, Share};
use super::heap::{Heap, Kind, TINY};
use super::lent::Trace;
use super::pool::Account;
use super::shared::Borrowed;
use super::tenant::{Ask, Charge, Held, Place, Tenant, current_context, current_device, giving};
use super::{locked, real};
use crate::guard::{Inside, calm};

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

/// What the driver made: where, and how many bytes.
type Made = (CUdeviceptr, u64);

/// A call that makes linear memory. `expected` is how many bytes that is, as far as it can be
/// said before; `made` what the driver has then written.
fn allocating(
    kind: Kind,
    expected: u64,
    call: impl FnOnce() -> CUresult,
    made: impl FnOnce() -> Made,
) -> CUresult {
    let Some(_inside) = Inside::enter() else {
        return call();
    };
    let Some(tenant) = calm(Tenant::current).flatten() else {
        return call();
    };
    // Without a context the driver refuses the call, and nothing at all, in its own words.
    let place = calm(|| Some(tenant.place(current_device()?))).flatten();
    let Some(place) = place.filter(|_| expected > 0) else {
        return call();
    };
    let Some(device) = place.listed() else {
        return CUDA_ERROR_OUT_OF_MEMORY;
    };
    let packing = packing_of(&tenant, device, kind);
    let small = Small {
        tenant,
        device,
        kind,
        packing,
    };
    if expected <= packing.small {
        small.allocate(expected, call, made)
    } else {
        large(&tenant, place, expected, call, made)
    }
}

/// How small allocations are made on a device.
struct Small {
    tenant: Tenant,
    device: DeviceIndex,
    kind: Kind,
    packing: Packing,
}

impl Small {
    fn allocate(
        &self,
        expected: u64,
        call: impl FnOnce() -> CUresult,
        made: impl FnOnce() -> Made,
    ) -> CUresult {
        let heap = self.tenant.books.heaps.of(self.device, self.kind);
        let mut heap = locked(heap);
        let mut ahead = calm(|| self.tenant.take_at_once(self.piece())).flatten();
        let context = current_context();
        // What is sure of a card's memory is not of memory that moves.
        let is_tiny = expected <= TINY && self.kind == Kind::Device;
        let has_room = || is_tiny && heap.has_room(expected, context);
        if ahead.is_none() && !has_room() {
            // What others give back may be of this heap.
            drop(heap);
            let Some(Ok(taken)) = calm(|| self.tenant.take_or_release(self.piece())) else {
                self.note(expected);
                return CUDA_ERROR_OUT_OF_MEMORY;
            };
            ahead = Some(taken);
            heap = locked(self.tenant.books.heaps.of(self.device, self.kind));
        }
        let result = call();
        if result != CUDA_SUCCESS {
            drop(heap);
            self.give(ahead);
            return result;
        }
        let mut asked = expected;
        let kept = calm(|| {
            let (address, bytes) = made();
            asked = bytes;
            if bytes > self.packing.small {
                // Its rows are longer than was thought.
                drop(heap);
                self.give(ahead);
                let charge = self.tenant.take_or_release(Ask {
                    place: Place::Listed(self.device),
                    bytes,
                });
                return keep_or_undo(&self.tenant, address, charge.ok());
            }
            let is_new = heap.place(address, bytes, context, &self.packing);
            drop(heap);
            let part = Part {
                address,
                device: self.device,
                kind: self.kind,
                context,
            };
            let is_paid = match (is_new, ahead) {
                (true, None) => false,
                (true, Some(_)) => true,
                (false, ahead) => {
                    self.give(ahead);
                    true
                }
            };
            keep(&self.tenant, address, Owned::Part(part));
            is_paid || self.undo(part)
        });
        if kept == Some(false) {
            self.note(asked);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        CUDA_SUCCESS
    }

    /// What one more piece takes.
    fn piece(&self) -> Ask {
        Ask {
            place: Place::Listed(self.device),
            bytes: self.packing.piece,
        }
    }

    /// The driver has taken a piece though there was room in another one. It goes back; true
    /// if it does not, and so must be paid for.
    fn undo(&self, part: Part) -> bool {
        let amount = Units::taken_by(self.packing.piece).unwrap_or(Units::MAX);
        self.tenant.link.charge(self.device, amount);
        // SAFETY: the program does not know the address yet.
        let freed = unsafe { real::cuMemFree_v2(part.address) } == CUDA_SUCCESS;
        if freed && let Some(owned) = self.tenant.books.pointers.remove(part.address) {
            owned.leaves(&self.tenant);
            owned.give_back(&self.tenant);
        }
        !freed
    }

    fn give(&self, charge: Option<Charge>) {
        if let Some(charge) = charge {
            self.tenant.give(charge);
        }
    }

    fn note(&self, bytes: u64) {
        self.tenant.link.note_refusal(self.device, bytes);
    }
}

/// An allocation that has blocks for itself.
fn large(
    tenant: &Tenant,
    place: Place,
    expected: u64,
    call: impl FnOnce() -> CUresult,
    made: impl FnOnce() -> Made,
) -> CUresult {
    let bytes = expected;
    let Some(Ok(charge)) = calm(|| tenant.take(Ask { place, bytes })) else {
        return CUDA_ERROR_OUT_OF_MEMORY;
    };
    let result = call();
    if result != CUDA_SUCCESS {
        tenant.give(charge);
        return result;
    }
    let mut asked = expected;
    let kept = calm(|| {
        let (address, bytes) = made();
        asked = bytes;
        keep_or_undo(tenant, address, corrected(tenant, charge, bytes))
    });
    if kept == Some(false) {
        tenant.link.note_refusal(charge.budget, asked);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result
}

/// The driver has said how much it made: the charge for it, or `None` if that is more than was
/// expected and more than the limit allows.
fn corrected(tenant: &Tenant, charge: Charge, bytes: u64) -> Option<Charge> {
    let place = charge.budget.into();
    let wanted = tenant.amount(Ask { place, bytes })?;
    match wanted.checked_sub(charge.amount) {
        Some(Units::ZERO) => Some(charge),
        Some(more) => {
            let bytes = more.bytes();
            let more = tenant.take_or_release(Ask { place, bytes });
            if more.is_err() {
                tenant.give(charge);
            }
            let amount = charge.amount.saturating_add(more.ok()?.amount);
            Some(Charge { amount, ..charge })
        }
        None => {
            let amount = charge.amount.saturating_sub(wanted);
            tenant.give(Charge { amount, ..charge });
            let amount = wanted;
            Some(Charge { amount, ..charge })
        }
    }
}

/// Remembers memory with its charge. Without one it is freed again: false if that was done.
fn keep_or_undo(tenant: &Tenant, address: CUdeviceptr, charge: Option<Charge>) -> bool {
    if let Some(charge) = charge {
        keep(tenant, address, Owned::Context(Held::here(charge)));
        return true;
    }
    // SAFETY: the program does not know the address yet.
    unsafe { real::cuMemFree_v2(address) != CUDA_SUCCESS }
}

/// `cuMemAlloc_v2`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn alloc<const ROW: usize>(
    address: *mut CUdeviceptr,
    bytes: usize,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut CUdeviceptr, usize) -> CUresult =
        unsafe { real::function(ROW) };
    allocating(
        Kind::Device,
        bytes as u64,
        // SAFETY: the program's own arguments.
        || unsafe { real(address, bytes) },
        // SAFETY: the driver wrote it.
        || (unsafe { *address }, bytes as u64),
    )
}

/// `cuMemAlloc` of 32-bit times: addresses and sizes of four bytes.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn alloc_v1<const ROW: usize>(address: *mut u32, bytes: c_uint) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut u32, c_uint) -> CUresult = unsafe { real::function(ROW) };
    allocating(
        Kind::Device,
        u64::from(bytes),
        // SAFETY: the program's own arguments.
        || unsafe { real(address, bytes) },
        // SAFETY: the driver wrote it.
        || (u64::from(unsafe { *address }), u64::from(bytes)),
    )
}

/// `cuMemAllocManaged`.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn managed<const ROW: usize>(
    address: *mut CUdeviceptr,
    bytes: usize,
    flags: c_uint,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut CUdeviceptr, usize, c_uint) -> CUresult =
        unsafe { real::function(ROW) };
    allocating(
        Kind::Managed,
        bytes as u64,
        // SAFETY: the program's own arguments.
        || unsafe { real(address, bytes, flags) },
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
pub unsafe extern "C" fn pitch<const ROW: usize>(
    address: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut CUdeviceptr, *mut usize, usize, usize, c_uint) -> CUresult =
        unsafe { real::function(ROW) };
    allocating(
        Kind::Device,
        pitched(width as u64, height as u64),
        // SAFETY: the program's own arguments.
        || unsafe { real(address, pitch, width, height, element) },
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
pub unsafe extern "C" fn pitch_v1<const ROW: usize>(
    address: *mut u32,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    element: c_uint,
) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut u32, *mut c_uint, c_uint, c_uint, c_uint) -> CUresult =
        unsafe { real::function(ROW) };
    allocating(
        Kind::Device,
        pitched(u64::from(width), u64::from(height)),
        // SAFETY: the program's own arguments.
        || unsafe { real(address, pitch, width, height, element) },
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
pub unsafe extern "C" fn free<const ROW: usize>(address: CUdeviceptr) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(CUdeviceptr) -> CUresult = unsafe { real::function(ROW) };
    giving(
        |tenant| take(tenant, address),
        // SAFETY: the program's own argument.
        || unsafe { real(address) },
        |tenant, known, freed| freed_or_kept(tenant, address, known, freed),
    )
}

/// `cuMemFree` of 32-bit times.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn free_v1<const ROW: usize>(address: u32) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(u32) -> CUresult = unsafe { real::function(ROW) };
    giving(
        |tenant| take(tenant, u64::from(address)),
        // SAFETY: the program's own argument.
        || unsafe { real(address) },
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
