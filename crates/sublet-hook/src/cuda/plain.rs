//! Linear memory: `cuMemAlloc`, pitched and managed memory, and what frees it.
//!
//! A program is charged the bytes it asked for. Managed memory counts as memory of the current
//! device: it can all end up there. What a pointer cost is remembered with the context it
//! belongs to, because the driver frees a context's memory with the context.

use std::ffi::c_uint;

use super::c::*;
use super::external::{self, Share};
use super::lent::Trace;
use super::pool::Account;
use super::real;
use super::shared::Borrowed;
use super::tenant::{Ask, Charge, Held, Tenant, giving, on_current_device, taking};

/// Who pays for an address.
#[derive(Debug)]
pub enum Owned {
    /// Memory of a context.
    Context(Held),
    /// Memory of a pool.
    Pool {
        /// The pool's account.
        account: Account,
        /// Bytes asked.
        bytes: u64,
    },
    /// Memory of another interface.
    External(Share),
}

impl Owned {
    /// Pays back what was charged.
    pub fn give_back(self, tenant: &Tenant) {
        match self {
            Owned::Context(held) => tenant.give(held.charge),
            Owned::Pool { account, bytes } => account.freed(tenant, bytes),
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
        before.give_back(tenant);
    }
}

fn keep_in_context(tenant: &Tenant, address: CUdeviceptr, charge: Charge) {
    keep(tenant, address, Owned::Context(Held::here(charge)));
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
    taking(
        |tenant| on_current_device(tenant, bytes as u64),
        // SAFETY: the program's own arguments.
        || unsafe { real(address, bytes) },
        // SAFETY: the driver wrote it.
        |tenant, charge| keep_in_context(tenant, unsafe { *address }, charge),
    )
}

/// `cuMemAlloc` of 32-bit times: addresses and sizes of four bytes.
///
/// # Safety
/// As the driver documents.
pub unsafe extern "C" fn alloc_v1<const ROW: usize>(address: *mut u32, bytes: c_uint) -> CUresult {
    // SAFETY: the row's type.
    let real: unsafe extern "C" fn(*mut u32, c_uint) -> CUresult = unsafe { real::function(ROW) };
    taking(
        |tenant| on_current_device(tenant, u64::from(bytes)),
        // SAFETY: the program's own arguments.
        || unsafe { real(address, bytes) },
        // SAFETY: the driver wrote it.
        |tenant, charge| keep_in_context(tenant, u64::from(unsafe { *address }), charge),
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
    taking(
        |tenant| on_current_device(tenant, bytes as u64),
        // SAFETY: the program's own arguments.
        || unsafe { real(address, bytes, flags) },
        // SAFETY: the driver wrote it.
        |tenant, charge| keep_in_context(tenant, unsafe { *address }, charge),
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

/// The driver has said which pitch it took: the charge for it, or `None` if it is more than
/// was expected and more than the limit allows.
fn corrected(tenant: &Tenant, charge: Charge, bytes: u64) -> Option<Charge> {
    let amount = sublet_abi::Units::taken_by(bytes)?;
    let budget = charge.budget;
    if let Some(surplus) = charge.amount.checked_sub(amount) {
        tenant.give(Charge {
            budget,
            amount: surplus,
        });
        return Some(Charge { budget, amount });
    }
    let ask = Ask {
        place: budget.into(),
        bytes: amount.saturating_sub(charge.amount).bytes(),
    };
    let more = tenant.take(ask).ok()?;
    let amount = charge.amount.saturating_add(more.amount);
    Some(Charge { budget, amount })
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
    let mut over = false;
    let result = taking(
        |tenant| on_current_device(tenant, pitched(width as u64, height as u64)),
        // SAFETY: the program's own arguments.
        || unsafe { real(address, pitch, width, height, element) },
        |tenant, charge| {
            // SAFETY: the driver wrote both.
            let (address, pitch) = unsafe { (*address, *pitch) };
            let bytes = (pitch as u64).saturating_mul(height as u64);
            over = !keep_pitched(tenant, address, charge, bytes);
        },
    );
    if over {
        CUDA_ERROR_OUT_OF_MEMORY
    } else {
        result
    }
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
    let mut over = false;
    let result = taking(
        |tenant| on_current_device(tenant, pitched(u64::from(width), u64::from(height))),
        // SAFETY: the program's own arguments.
        || unsafe { real(address, pitch, width, height, element) },
        |tenant, charge| {
            // SAFETY: the driver wrote both.
            let (address, pitch) = unsafe { (*address, *pitch) };
            let bytes = u64::from(pitch) * u64::from(height);
            over = !keep_pitched(tenant, u64::from(address), charge, bytes);
        },
    );
    if over {
        CUDA_ERROR_OUT_OF_MEMORY
    } else {
        result
    }
}

/// False if the memory was too much after all, and is freed again.
fn keep_pitched(tenant: &Tenant, address: CUdeviceptr, charge: Charge, bytes: u64) -> bool {
    match corrected(tenant, charge, bytes) {
        Some(charge) => {
            keep_in_context(tenant, address, charge);
            true
        }
        None => {
            tenant.link.note_refusal(charge.budget, bytes);
            // SAFETY: the program does not know the address yet.
            let freed = unsafe { real::cuMemFree_v2(address) } == CUDA_SUCCESS;
            if freed {
                tenant.give(charge);
            } else {
                keep_in_context(tenant, address, charge);
            }
            !freed
        }
    }
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
