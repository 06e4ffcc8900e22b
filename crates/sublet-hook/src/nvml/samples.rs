//! What the library measured of each process: its samples, sessions and accounts, of which a
//! tenant gets its own, with the numbers that its processes have here.

use std::ffi::c_char;

use sublet_abi::DeviceIndex;
use sublet_driver_api::nvml::*;

use super::devices::place;
use super::lists::{self, OfProcess, keep_own};
use super::pids::{Process, Whose};
use super::processes::all_of;
use super::view::View;
use super::{real, seeing};

fn own_of<T: OfProcess>(list: &[T], view: &View, device: DeviceIndex) -> Vec<T> {
    keep_own(list, &all_of(view, device))
        .into_iter()
        .map(|(element, _)| element)
        .collect()
}

/// `nvmlDeviceGetProcessUtilization`. Asked without an array it tells how much room to make,
/// which is the library's own number: enough whatever is left out.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn utilization<const ROW: usize>(
    device: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut u32,
    since: u64,
) -> nvmlReturn_t {
    let real = |count: *mut u32, samples: *mut nvmlProcessUtilizationSample_t| {
        // SAFETY: the row has this type, and the caller's arguments are passed on.
        unsafe {
            let real: unsafe extern "C" fn(
                nvmlDevice_t,
                *mut nvmlProcessUtilizationSample_t,
                *mut u32,
                u64,
            ) -> nvmlReturn_t = real::function(ROW);
            real(device, samples, count, since)
        }
    };
    seeing(
        || real(count, samples),
        |view| match place(view, device) {
            Err(error) => error,
            Ok(_) if samples.is_null() || count.is_null() => real(count, samples),
            Ok(place) => match lists::read_all(real) {
                Err(error) => error,
                // SAFETY: as the caller says.
                Ok(list) => unsafe { some(&own_of(&list, view, place), count, samples) },
            },
        },
    )
}

/// Nothing is an error here.
///
/// # Safety
/// As for [`lists::answer`].
unsafe fn some<T: Copy>(list: &[T], count: *mut u32, room: *mut T) -> nvmlReturn_t {
    // SAFETY: as the caller says.
    match unsafe { lists::answer(list, count, room) } {
        NVML_SUCCESS if list.is_empty() => NVML_ERROR_NOT_FOUND,
        result => result,
    }
}

/// `nvmlDeviceGetProcessesUtilizationInfo`.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn utilization_info<const ROW: usize>(
    device: nvmlDevice_t,
    asked: *mut nvmlProcessesUtilizationInfo_v1_t,
) -> nvmlReturn_t {
    let real = |info: *mut nvmlProcessesUtilizationInfo_v1_t| {
        // SAFETY: the row has this type, and the caller's arguments are passed on.
        unsafe {
            let real: unsafe extern "C" fn(
                nvmlDevice_t,
                *mut nvmlProcessesUtilizationInfo_v1_t,
            ) -> nvmlReturn_t = real::function(ROW);
            real(device, info)
        }
    };
    seeing(
        || real(asked),
        |view| {
            let place = match place(view, device) {
                Ok(place) => place,
                Err(error) => return error,
            };
            // SAFETY: null, or the struct that the caller gives.
            let Some(info) = (unsafe { asked.as_mut() }) else {
                return NVML_ERROR_INVALID_ARGUMENT;
            };
            // A later version may hold what is not known here.
            if info.version != nvmlProcessesUtilizationInfo_v1 {
                return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
            }
            if info.procUtilArray.is_null() {
                return real(info);
            }
            let list = lists::read_all(|count, room| {
                let mut own = *info;
                own.procUtilArray = room;
                // SAFETY: `read_all` gives live pointers.
                own.processSamplesCount = unsafe { *count };
                let result = real(&raw mut own);
                // SAFETY: as above.
                unsafe { *count = own.processSamplesCount };
                result
            });
            let count = &raw mut info.processSamplesCount;
            match list {
                Err(error) => error,
                // SAFETY: the struct's own member, and its array, as the caller says.
                Ok(list) => unsafe { some(&own_of(&list, view, place), count, info.procUtilArray) },
            }
        },
    )
}

/// `nvmlDeviceGetEncoderSessions` (eight words each), `nvmlDeviceGetFBCSessions` (twelve).
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn sessions<const ROW: usize, const WORDS: usize>(
    device: nvmlDevice_t,
    count: *mut u32,
    sessions: *mut [u32; WORDS],
) -> nvmlReturn_t {
    let real = |count: *mut u32, sessions: *mut [u32; WORDS]| {
        // SAFETY: the rows have this type but for what the array is called, and the caller's
        // arguments are passed on.
        unsafe {
            let real: unsafe extern "C" fn(
                nvmlDevice_t,
                *mut u32,
                *mut [u32; WORDS],
            ) -> nvmlReturn_t = real::function(ROW);
            real(device, count, sessions)
        }
    };
    seeing(
        || real(count, sessions),
        |view| {
            let place = match place(view, device) {
                Ok(place) => place,
                Err(error) => return error,
            };
            let list = match lists::read_all(real) {
                Ok(list) => own_of(&list, view, place),
                Err(error) => return error,
            };
            // SAFETY: null, or a number, as the caller says.
            match unsafe { count.as_mut() } {
                // SAFETY: as the caller says; 0 asks for the number and is no error here.
                Some(0) => unsafe { lists::answer_first(&list, count, sessions) },
                // SAFETY: as the caller says.
                _ => unsafe { lists::answer(&list, count, sessions) },
            }
        },
    )
}

/// `nvmlDeviceGetAccountingPids`. Processes that ended are the tenant's no more.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn accounting_pids<const ROW: usize>(
    device: nvmlDevice_t,
    count: *mut u32,
    pids: *mut u32,
) -> nvmlReturn_t {
    let real = |count: *mut u32, pids: *mut u32| {
        // SAFETY: the row has this type, and the caller's arguments are passed on.
        unsafe { real::nvmlDeviceGetAccountingPids(device, count, pids) }
    };
    seeing(
        || real(count, pids),
        |view| match place(view, device) {
            Err(error) => error,
            Ok(place) => match lists::read_all(real) {
                Err(error) => error,
                // SAFETY: as the caller says.
                Ok(list) => unsafe { lists::answer(&own_of(&list, view, place), count, pids) },
            },
        },
    )
}

/// What the library's accounts call one of the tenant's processes.
fn accounting_number(
    view: &View,
    device: nvmlDevice_t,
    place: DeviceIndex,
    pid: u32,
) -> Result<u32, nvmlReturn_t> {
    // SAFETY: `read_all` gives live pointers.
    let list = lists::read_all(|count, pids| unsafe {
        real::nvmlDeviceGetAccountingPids(device, count, pids)
    })?;
    let processes = all_of(view, place);
    let whose = Whose::of(&list, &processes);
    processes
        .iter()
        .find(|process: &&Process| process.here == Some(pid))
        .and_then(|process| whose.number(process))
        .ok_or(NVML_ERROR_NOT_FOUND)
}

/// `nvmlDeviceGetAccountingStats`.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn accounting_stats<const ROW: usize>(
    device: nvmlDevice_t,
    pid: u32,
    stats: *mut nvmlAccountingStats_t,
) -> nvmlReturn_t {
    let real = |pid| {
        // SAFETY: the row has this type, and the caller's arguments are passed on.
        unsafe {
            let real: unsafe extern "C" fn(
                nvmlDevice_t,
                u32,
                *mut nvmlAccountingStats_t,
            ) -> nvmlReturn_t = real::function(ROW);
            real(device, pid, stats)
        }
    };
    seeing(
        || real(pid),
        |view| {
            let number =
                place(view, device).and_then(|place| accounting_number(view, device, place, pid));
            number.map_or_else(|error| error, real)
        },
    )
}

/// `nvmlDeviceGetAccountingStats_v2`, whose struct begins with the process.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn accounting_stats_v2<const ROW: usize>(
    device: nvmlDevice_t,
    stats: *mut u32,
) -> nvmlReturn_t {
    // SAFETY: the row has this type but for what the struct is called, and the caller's
    // arguments are passed on.
    let real = || unsafe {
        let real: unsafe extern "C" fn(nvmlDevice_t, *mut u32) -> nvmlReturn_t =
            real::function(ROW);
        real(device, stats)
    };
    seeing(real, |view| {
        let place = match place(view, device) {
            Ok(place) => place,
            Err(error) => return error,
        };
        if stats.is_null() {
            return NVML_ERROR_INVALID_ARGUMENT;
        }
        // SAFETY: not null, and begins with a number.
        let pid = unsafe { stats.read() };
        match accounting_number(view, device, place, pid) {
            Err(error) => error,
            Ok(number) => {
                // SAFETY: as above; through the pointer alone, because the library writes the
                // rest of the struct.
                unsafe { stats.write(number) };
                let result = real();
                // SAFETY: as above.
                unsafe { stats.write(pid) };
                result
            }
        }
    })
}

/// `nvmlSystemGetProcessName`, which reads it from this namespace's `/proc`: of the tenant's
/// processes, and of the one that asks.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn process_name<const ROW: usize>(
    pid: u32,
    name: *mut c_char,
    length: u32,
) -> nvmlReturn_t {
    // SAFETY: the row has this type, and the caller's arguments are passed on.
    let real = || unsafe {
        let real: unsafe extern "C" fn(u32, *mut c_char, u32) -> nvmlReturn_t = real::function(ROW);
        real(pid, name, length)
    };
    seeing(real, |view| {
        let mut devices = view.control().devices();
        let is_own = pid == std::process::id()
            || devices.next().is_some_and(|(device, _)| {
                let processes = all_of(view, device);
                processes.iter().any(|process| process.here == Some(pid))
            });
        if is_own { real() } else { NVML_ERROR_NOT_FOUND }
    })
}
