//! Takes memory from the tenant's account, and gives it back.
//!
//! Every hook that makes memory has the same three steps, in [`taking`]: reserve, ask the driver,
//! and either remember the charge or give it back. A program over its limit gets
//! `CUDA_ERROR_OUT_OF_MEMORY`, as on a card that is full. Before that, memory that the program's
//! pools only keep for later is taken from them, as the driver does itself on a full card.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use sublet_abi::{DeviceIndex, Units};

use super::c::*;
use super::{CudaAccounts, real};
use crate::guard::{Inside, catch_panic};
use crate::link::{Budget, Link};
use crate::process;

/// A process with a slot.
#[derive(Debug, Clone, Copy)]
pub struct Tenant {
    /// Its account.
    pub link: &'static Link,
    /// Its memory and work.
    pub accounts: &'static CudaAccounts,
}

/// Memory that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "memory that was taken must be given back"]
pub struct MemoryCharge {
    /// Its payer.
    pub budget: Budget,
    /// Its amount.
    pub amount: Units,
}

/// A charge that goes with a context: the driver frees a context's memory with the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextCharge {
    /// Its memory charge.
    pub charge: MemoryCharge,
    /// The context.
    pub context: CUcontext,
}

impl ContextCharge {
    /// In the thread's context.
    pub fn here(charge: MemoryCharge) -> Self {
        let context = current_context();
        Self { charge, context }
    }
}

/// A part in something that is charged once, however many have one. The last one pays back.
pub type Share = Arc<ContextCharge>;

/// Account of memory that the driver only keeps for later, or that is freed and not yet paid back.
/// A call that lacks memory asks all of them, and so does a call that reports the free memory.
pub trait CachesMemory {
    /// Gives back the unused memory of a budget. True if there was any.
    fn release_unused(&self, tenant: &Tenant, budget: Budget) -> bool;

    /// Reads the memory of a device again.
    fn look_again(&self, tenant: &Tenant, device: DeviceIndex);
}

/// Place that memory would come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// One of the tenant's devices.
    Listed(DeviceIndex),
    /// The host: memory that the driver pins there.
    Host,
    /// A device that is not the tenant's: its limit there is nothing.
    Unlisted,
}

impl From<Budget> for Place {
    fn from(budget: Budget) -> Self {
        match budget {
            Budget::Device(device) => Place::Listed(device),
            Budget::Host => Place::Host,
        }
    }
}

impl Place {
    /// Returns the budget that pays for memory there. A device that is not the tenant's has none.
    #[must_use]
    pub fn budget(self) -> Option<Budget> {
        match self {
            Place::Listed(device) => Some(Budget::Device(device)),
            Place::Host => Some(Budget::Host),
            Place::Unlisted => None,
        }
    }

    /// The device, if it is one of the tenant's.
    #[must_use]
    pub fn listed(self) -> Option<DeviceIndex> {
        match self {
            Place::Listed(device) => Some(device),
            Place::Host | Place::Unlisted => None,
        }
    }
}

/// Memory that a call is about to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Its place.
    pub place: Place,
    /// Bytes, before rounding up.
    pub bytes: u64,
}

/// The limit does not allow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverLimit;

impl Tenant {
    /// This process, if it has a slot. Connects at the first call.
    #[must_use]
    pub fn current() -> Option<Self> {
        let process = process::current();
        let link = process.state().link()?;
        Some(Self {
            link,
            accounts: &process.accounts,
        })
    }

    /// Returns the tenant's place of a driver's device.
    #[must_use]
    pub fn place(&self, device: CUdevice) -> Place {
        self.accounts.devices.place(self.link, device)
    }

    /// Returns the amount to charge. On a card that is whole blocks, as the card gives them. `None`
    /// if the amount is more than can be counted.
    #[must_use]
    pub fn amount(&self, need: Need) -> Option<Units> {
        let bytes = match need.place {
            Place::Listed(device) => {
                let packing = self.link.control().device(device).packing();
                packing.blocks(need.bytes)
            }
            Place::Host | Place::Unlisted => need.bytes,
        };
        Units::taken_by(bytes)
    }

    /// Takes memory if the limit allows it as things are.
    #[must_use]
    pub fn take_at_once(&self, need: Need) -> Option<MemoryCharge> {
        let budget = need.place.budget()?;
        let amount = self.amount(need)?;
        // Also where the use is above the limit, nothing is nothing.
        if amount > Units::ZERO {
            self.link.reserve(budget, amount).ok()?;
        }
        Some(MemoryCharge { budget, amount })
    }

    /// Takes memory, from pools that only keep it if need be.
    ///
    /// # Errors
    /// If the limit does not allow it.
    pub fn take_or_release(&self, need: Need) -> Result<MemoryCharge, OverLimit> {
        let again = || {
            let budget = need.place.budget()?;
            let released = self.release_unused(budget);
            released.then(|| self.take_at_once(need)).flatten()
        };
        self.take_at_once(need).or_else(again).ok_or(OverLimit)
    }

    /// The same.
    ///
    /// # Errors
    /// If the limit does not allow it. It is noted for `sublet top`.
    pub fn take(&self, need: Need) -> Result<MemoryCharge, OverLimit> {
        let taken = self.take_or_release(need);
        if let (Err(OverLimit), Some(budget)) = (&taken, need.place.budget()) {
            self.link.note_refusal(budget, need.bytes);
        }
        taken
    }

    /// Takes from the driver the memory of a budget that it only keeps. True if there was any.
    pub fn release_unused(&self, budget: impl Into<Budget>) -> bool {
        let budget = budget.into();
        let caches = self.accounts.caches().into_iter();
        caches.fold(false, |released, cache| {
            cache.release_unused(self, budget) | released
        })
    }

    /// Reads the memory of a device again, before it is reported.
    pub fn look_again(&self, device: DeviceIndex) {
        for cache in self.accounts.caches() {
            cache.look_again(self, device);
        }
    }

    /// Gives memory back.
    pub fn give(&self, charge: MemoryCharge) {
        if charge.amount > Units::ZERO {
            self.link.release(charge.budget, charge.amount);
        }
    }

    /// Gives a part back.
    pub fn give_share(&self, share: Share) {
        if let Some(held) = Arc::into_inner(share) {
            self.give(held.charge);
        }
    }
}

/// The device of the thread's context; `None` without one.
#[must_use]
pub fn current_device() -> Option<CUdevice> {
    let mut device = 0;
    // SAFETY: writes the number it is given.
    (unsafe { real::cuCtxGetDevice(&raw mut device) } == CUDA_SUCCESS).then_some(device)
}

/// True if the driver is sure that it has no such device. It then refuses whatever is asked of
/// it there, in its own words: not for want of memory.
#[must_use]
pub fn is_absent(device: CUdevice) -> bool {
    let mut count = 0;
    // SAFETY: writes the number it is given.
    let is_known = unsafe { real::cuDeviceGetCount(&raw mut count) } == CUDA_SUCCESS;
    is_known && !(0..count).contains(&device)
}

/// The answer to a call that the limit does not allow. Before `cuInit` the driver says no to every
/// call; the tenant's place of a device is not known then, and memory is not what lacks.
#[must_use]
pub fn refusal() -> CUresult {
    let mut count = 0;
    // SAFETY: writes the number it is given.
    match unsafe { real::cuDeviceGetCount(&raw mut count) } {
        CUDA_SUCCESS => CUDA_ERROR_OUT_OF_MEMORY,
        error => error,
    }
}

/// The thread's context; null without one.
#[must_use]
pub fn current_context() -> CUcontext {
    let mut context = CUcontext::default();
    // SAFETY: writes the handle it is given.
    let result = unsafe { real::cuCtxGetCurrent(&raw mut context) };
    if result == CUDA_SUCCESS {
        context
    } else {
        CUcontext::default()
    }
}

/// Returns the need for memory of the current device. `None` without a context: the driver then
/// refuses the call, with its own error.
#[must_use]
pub fn on_current_device(tenant: &Tenant, bytes: u64) -> Option<Need> {
    let place = tenant.place(current_device()?);
    Some(Need { place, bytes })
}

/// A call that takes memory. `need` says how much and where, or that it is not to be counted;
/// `call` asks the driver; `keep` remembers the charge of memory that was made.
pub fn taking(
    need: impl FnOnce(&Tenant) -> Option<Need>,
    call: impl FnOnce() -> CUresult,
    keep: impl FnOnce(&Tenant, MemoryCharge),
) -> CUresult {
    let Some(_inside) = Inside::enter() else {
        return call();
    };
    let Some(tenant) = catch_panic(Tenant::current).flatten() else {
        return call();
    };
    match catch_panic(|| need(&tenant).map(|need| tenant.take(need))).flatten() {
        None => call(),
        Some(Err(OverLimit)) => refusal(),
        Some(Ok(charge)) => {
            let result = call();
            let _ = catch_panic(|| {
                if result == CUDA_SUCCESS {
                    keep(&tenant, charge);
                } else {
                    tenant.give(charge);
                }
            });
            result
        }
    }
}

/// A call that gives memory back. `forget` takes the entry out of the accounts *before* the driver
/// frees the memory, since the next moment another thread can be given the same address; `done`
/// gets the entry back with the driver's answer.
pub fn giving<T>(
    forget: impl FnOnce(&Tenant) -> Option<T>,
    call: impl FnOnce() -> CUresult,
    done: impl FnOnce(&Tenant, T, bool),
) -> CUresult {
    let Some(_inside) = Inside::enter() else {
        return call();
    };
    let Some(tenant) = catch_panic(Tenant::current).flatten() else {
        return call();
    };
    let known = catch_panic(|| forget(&tenant)).flatten();
    let result = call();
    if let Some(known) = known {
        let _ = catch_panic(|| done(&tenant, known, result == CUDA_SUCCESS));
    }
    result
}

/// The driver's numbers of devices are small; more than these are looked up each time.
const REMEMBERED: usize = 64;

/// The tenant's place of each device of the driver. The order in the control page never changes, so
/// an answer is good for ever.
#[derive(Debug)]
pub struct Devices([AtomicU8; REMEMBERED]);

const UNKNOWN: u8 = 255;
const UNLISTED: u8 = 254;

impl Default for Devices {
    fn default() -> Self {
        Self([const { AtomicU8::new(UNKNOWN) }; REMEMBERED])
    }
}

impl Devices {
    fn place(&self, link: &Link, device: CUdevice) -> Place {
        let cell = usize::try_from(device)
            .ok()
            .and_then(|number| self.0.get(number));
        let known = cell.map_or(UNKNOWN, |cell| cell.load(Ordering::Relaxed));
        match known {
            UNKNOWN => {}
            UNLISTED => return Place::Unlisted,
            place => {
                let place = DeviceIndex::new(u32::from(place));
                return place.map_or(Place::Unlisted, Place::Listed);
            }
        }
        // A driver that cannot say is asked again the next time.
        let names = names_of(device);
        if names.is_empty() {
            return Place::Unlisted;
        }
        let mut names = names.iter();
        let found = names.find_map(|uuid| link.control().find(uuid));
        if let Some(cell) = cell {
            let known = found.map_or(UNLISTED, |place| place.get() as u8);
            cell.store(known, Ordering::Relaxed);
        }
        found.map_or(Place::Unlisted, Place::Listed)
    }
}

/// Returns a device's UUIDs. If a card is split by MIG, the newer function names the instance, and
/// the older one names the card of the instance.
fn names_of(device: CUdevice) -> Vec<[u8; 16]> {
    let (mut instance, mut card) = (CUuuid::default(), CUuuid::default());
    // SAFETY: both write the bytes they are given.
    let results = unsafe {
        [
            real::cuDeviceGetUuid_v2(&raw mut instance, device),
            real::cuDeviceGetUuid(&raw mut card, device),
        ]
    };
    let names = [instance, card].into_iter().zip(results);
    names
        .filter(|(_, result)| *result == CUDA_SUCCESS)
        .map(|(name, _)| name.bytes)
        .collect()
}
