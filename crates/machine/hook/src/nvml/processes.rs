//! Processes on a card: those with slots of this tenant, and the memory they use.
//!
//! Computing processes are listed from the ledger, without asking the library, whose list covers
//! the whole card. Only the library knows the processes that draw or that compute through MPS. For
//! these, the library's list is reduced to the processes with a slot.

use std::collections::BTreeMap;

use sublet_abi::{DeviceIndex, SlotIndex};
use sublet_driver_api::Zeroed;
use sublet_driver_api::nvml::*;

use super::lists::{self, OfProcess, keep_own};
use super::pids::{self, Process};
use super::view::View;
use super::{Library, row, seeing_asked, seeing_own};
use crate::real::{Like, Row};

/// So many slots in a row that nobody ever had, and there are no more. The arbiter hands out
/// the lowest free one, and reading a slot that was never written fills it with memory.
const GAP: usize = 64;

/// No instance of a card that is split by MIG.
const NO_INSTANCE: u32 = u32::MAX;

/// `NVML_VALUE_NOT_AVAILABLE`, in 64 bits.
const NOT_AVAILABLE: u64 = u64::MAX;

/// The tenant's processes, each once, whatever they use.
#[must_use]
pub fn all_of(view: &View, device: DeviceIndex) -> Vec<Process> {
    let ledger = view.ledger();
    let mut unused = 0;
    let mut found: BTreeMap<u32, (u64, Option<u32>)> = BTreeMap::new();
    for index in SlotIndex::processes() {
        let slot = ledger.slot(index);
        unused = if slot.generation() == 0 {
            unused + 1
        } else {
            0
        };
        if unused >= GAP {
            break;
        }
        if slot.is_live() {
            // An arbiter may give a process two slots, one for each library of ours.
            let (bytes, own) = found.entry(slot.pid()).or_default();
            *bytes = bytes.saturating_add(ledger.held(index, device).bytes());
            *own = own.or(slot.own_pid());
        }
    }
    let numbering = view.numbering();
    // What a process says of itself is what its container calls it; where the kernel can be
    // asked, it need not be this one. Who has not said it may be of an older interposer.
    let named = |(told, (bytes, own)): (u32, (u64, Option<u32>))| Process {
        told,
        here: numbering
            .here(told)
            .or(own.filter(|_| !numbering.knows_all())),
        bytes,
    };
    let mut all: Vec<Process> = found.into_iter().map(named).collect();
    pids::tell_apart(&mut all, numbering);
    all
}

/// Returns the processes that use the device and have a number here, as a struct of the library.
fn users<T: ProcessEntry>(view: &View, device: DeviceIndex) -> Vec<T> {
    all_of(view, device)
        .into_iter()
        .filter(|process| process.bytes > 0)
        .filter_map(|process| Some(T::new(process.here?, process.bytes)))
        .collect()
}

/// Returns the processes of the library's list that are the tenant's.
fn among<T: ProcessEntry>(list: &[T], view: &View, device: DeviceIndex) -> Vec<T> {
    keep_own(list, &all_of(view, device))
        .into_iter()
        .map(|(entry, process)| entry.using(process.bytes))
        .collect()
}

/// A struct with a process's usage.
pub trait ProcessEntry: OfProcess {
    /// A process on a whole card.
    fn new(pid: u32, bytes: u64) -> Self;

    /// The same with another amount.
    fn using(self, bytes: u64) -> Self;
}

macro_rules! entries {
    ($($type:ident { $($member:ident: $value:expr),* })*) => {$(
        impl ProcessEntry for $type {
            fn new(pid: u32, bytes: u64) -> Self {
                Self { pid, usedGpuMemory: bytes, $($member: $value),* }
            }

            fn using(self, bytes: u64) -> Self {
                Self { usedGpuMemory: bytes, ..self }
            }
        }
    )*};
}
entries! {
    nvmlProcessInfo_v1_t {}
    nvmlProcessInfo_v2_t { gpuInstanceId: NO_INSTANCE, computeInstanceId: NO_INSTANCE }
    nvmlProcessDetail_v1_t {
        gpuInstanceId: NO_INSTANCE,
        computeInstanceId: NO_INSTANCE,
        usedGpuCcProtectedMemory: NOT_AVAILABLE
    }
}

/// `nvmlDeviceGetComputeRunningProcesses`, of each version.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn computing<T, R>(
    device: nvmlDevice_t,
    count: *mut u32,
    infos: *mut T,
) -> nvmlReturn_t
where
    T: ProcessEntry,
    R: Row<Arguments = (nvmlDevice_t, *mut u32, *mut T), Result = nvmlReturn_t>,
{
    // SAFETY: the caller's arguments are passed on.
    let real = || unsafe { R::call((device, count, infos)) };
    seeing_own(device, real, |view, place| {
        // SAFETY: as the caller says.
        unsafe { lists::answer(&users::<T>(view, place), count, infos) }
    })
}

/// `nvmlDeviceGetGraphicsRunningProcesses` and `nvmlDeviceGetMPSComputeRunningProcesses`, of each
/// version.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn others<T, R>(
    device: nvmlDevice_t,
    count: *mut u32,
    infos: *mut T,
) -> nvmlReturn_t
where
    T: ProcessEntry + Zeroed,
    R: Row<Arguments = (nvmlDevice_t, *mut u32, *mut T), Result = nvmlReturn_t>,
{
    let real = |count: *mut u32, infos: *mut T| {
        // SAFETY: the caller's arguments are passed on.
        unsafe { R::call((device, count, infos)) }
    };
    seeing_own(
        device,
        || real(count, infos),
        |view, place| {
            let keep = |list: Vec<T>| among(&list, view, place);
            // SAFETY: as the caller says.
            unsafe { lists::answer_kept(real, keep, count, infos) }
        },
    )
}

/// `nvmlDeviceGetRunningProcessDetailList`.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn detail_list<R: Like<row::nvmlDeviceGetRunningProcessDetailList>>(
    device: nvmlDevice_t,
    asked: *mut nvmlProcessDetailList_v1_t,
) -> nvmlReturn_t {
    let list = |view: &View, place, asked: &mut _, real: &Library<'_, _>| {
        let asked: &mut nvmlProcessDetailList_v1_t = asked;
        match nvmlProcessMode_t(asked.mode) {
            NVML_PROCESS_MODE_COMPUTE | NVML_PROCESS_MODE_ALL => Ok(users(view, place)),
            NVML_PROCESS_MODE_GRAPHICS | NVML_PROCESS_MODE_MPS => {
                Ok(among(&lists::read_asked(asked, real)?, view, place))
            }
            _ => Err(NVML_ERROR_INVALID_ARGUMENT),
        }
    };
    // SAFETY: as the caller says.
    unsafe { seeing_asked::<_, R>(device, asked, list) }
}
