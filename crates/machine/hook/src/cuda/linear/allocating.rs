//! Reserves, makes and remembers linear memory: small pieces one at a time, large ones by their
//! blocks. Memory that the driver gave beyond the limit is freed again.

use sublet_abi::{DeviceIndex, Packing, Units};

use crate::cuda::address::keep;
use crate::cuda::c::*;
use crate::cuda::heap::{Kind, TINY};
use crate::cuda::owned::Owned;
use crate::cuda::small::{SmallAllocation, packing_of};
use crate::cuda::tenant::{
    ContextCharge, MemoryCharge, Need, Place, Tenant, current_context, current_device,
};
use crate::cuda::{locked, real};
use crate::guard::{Inside, catch_panic};

/// Memory that the driver made: its address, and its size in bytes.
type Made = (CUdeviceptr, u64);

/// A call that makes linear memory. `expected` is its size in bytes, as far as it is known before;
/// `made` returns the memory that the driver has then made.
pub(super) fn allocating(
    kind: Kind,
    expected: u64,
    call: impl FnOnce() -> CUresult,
    made: impl FnOnce() -> Made,
) -> CUresult {
    let Some(_inside) = Inside::enter() else {
        return call();
    };
    let Some(tenant) = catch_panic(Tenant::current).flatten() else {
        return call();
    };
    // Without a context the driver refuses the call, and nothing at all, in its own words.
    let place = catch_panic(|| Some(tenant.place(current_device()?))).flatten();
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
    if packing.is_shared(expected) {
        small.allocate(expected, call, made)
    } else {
        large(&tenant, place, expected, call, made)
    }
}

/// Parameters of small allocations on a device.
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
        let heap = self.tenant.accounts.heaps.of(self.device, self.kind);
        let mut heap = locked(heap);
        let mut ahead = catch_panic(|| self.tenant.take_at_once(self.piece())).flatten();
        let context = current_context();
        // What is sure of a card's memory is not of memory that moves.
        let is_tiny = expected <= TINY && self.kind == Kind::Device;
        let has_room = || is_tiny && heap.has_room(expected, context);
        if ahead.is_none() && !has_room() {
            // What others give back may be of this heap.
            drop(heap);
            let Some(Ok(taken)) = catch_panic(|| self.tenant.take_or_release(self.piece())) else {
                self.note(expected);
                return CUDA_ERROR_OUT_OF_MEMORY;
            };
            ahead = Some(taken);
            heap = locked(self.tenant.accounts.heaps.of(self.device, self.kind));
        }
        let result = call();
        if result != CUDA_SUCCESS {
            drop(heap);
            self.give(ahead);
            return result;
        }
        let mut asked = expected;
        let kept = catch_panic(|| {
            let (address, bytes) = made();
            asked = bytes;
            if !self.packing.is_shared(bytes) {
                // Its rows are longer than was thought.
                drop(heap);
                self.give(ahead);
                let charge = self.tenant.take_or_release(Need {
                    place: Place::Listed(self.device),
                    bytes,
                });
                return keep_or_undo(&self.tenant, address, charge.ok());
            }
            let is_new = heap.place(address, bytes, context, &self.packing);
            drop(heap);
            let small = SmallAllocation {
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
            keep(&self.tenant, address, Owned::Small(small));
            is_paid || self.undo(small)
        });
        if kept == Some(false) {
            self.note(asked);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        CUDA_SUCCESS
    }

    /// Returns the need of one more piece.
    fn piece(&self) -> Need {
        Need {
            place: Place::Listed(self.device),
            bytes: self.packing.piece,
        }
    }

    /// The driver has taken a piece though there was room in another one. It goes back; true
    /// if it does not, and so must be paid for.
    fn undo(&self, small: SmallAllocation) -> bool {
        let amount = Units::taken_by(self.packing.piece).unwrap_or(Units::MAX);
        self.tenant.link.charge(self.device, amount);
        // SAFETY: the program does not know the address yet.
        let freed = unsafe { real::cuMemFree_v2(small.address) } == CUDA_SUCCESS;
        if freed && let Some(owned) = self.tenant.accounts.pointers.remove(small.address) {
            owned.leaves(&self.tenant);
            owned.give_back(&self.tenant);
        }
        !freed
    }

    fn give(&self, charge: Option<MemoryCharge>) {
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
    let Some(Ok(charge)) = catch_panic(|| tenant.take(Need { place, bytes })) else {
        return CUDA_ERROR_OUT_OF_MEMORY;
    };
    let result = call();
    if result != CUDA_SUCCESS {
        tenant.give(charge);
        return result;
    }
    let mut asked = expected;
    let kept = catch_panic(|| {
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
fn corrected(tenant: &Tenant, charge: MemoryCharge, bytes: u64) -> Option<MemoryCharge> {
    let place = charge.budget.into();
    let wanted = tenant.amount(Need { place, bytes })?;
    match wanted.checked_sub(charge.amount) {
        Some(Units::ZERO) => Some(charge),
        Some(more) => {
            let bytes = more.bytes();
            let more = tenant.take_or_release(Need { place, bytes });
            if more.is_err() {
                tenant.give(charge);
            }
            let amount = charge.amount.saturating_add(more.ok()?.amount);
            Some(MemoryCharge { amount, ..charge })
        }
        None => {
            let amount = charge.amount.saturating_sub(wanted);
            tenant.give(MemoryCharge { amount, ..charge });
            let amount = wanted;
            Some(MemoryCharge { amount, ..charge })
        }
    }
}

/// Remembers memory with its charge. Without one it is freed again: false if that was done.
fn keep_or_undo(tenant: &Tenant, address: CUdeviceptr, charge: Option<MemoryCharge>) -> bool {
    if let Some(charge) = charge {
        keep(tenant, address, Owned::Context(ContextCharge::here(charge)));
        return true;
    }
    // SAFETY: the program does not know the address yet.
    unsafe { real::cuMemFree_v2(address) != CUDA_SUCCESS }
}
