//! The library's measurements of processes: samples, sessions and accounts. A tenant gets those of
//! its own processes, under the numbers that these processes have here.

use std::ffi::c_char;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sublet_abi::DeviceIndex;
use sublet_driver_api::Zeroed;
use sublet_driver_api::nvml::*;

use super::lists::{self, OfProcess, keep_own};
use super::pids::{Process, Whose};
use super::processes::all_of;
use super::view::View;
use super::{Library, devices, real, row, seeing, seeing_asked, seeing_own};
use crate::real::{Like, Row};

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
pub unsafe extern "C" fn utilization<R: Like<row::nvmlDeviceGetProcessUtilization>>(
    device: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut u32,
    since: u64,
) -> nvmlReturn_t {
    let real = |count: *mut u32, samples: *mut nvmlProcessUtilizationSample_t| {
        // SAFETY: the caller's arguments are passed on.
        unsafe { R::call((device, samples, count, since)) }
    };
    seeing_own(
        device,
        || real(count, samples),
        |view, place| {
            if samples.is_null() || count.is_null() {
                return real(count, samples);
            }
            let keep = |list: Vec<_>| own_of(&list, view, place);
            // SAFETY: as the caller says.
            let result = unsafe { lists::answer_kept(real, keep, count, samples) };
            // SAFETY: not null, and written just now.
            let is_nothing = result == NVML_SUCCESS && unsafe { *count } == 0;
            if is_nothing {
                NVML_ERROR_NOT_FOUND
            } else {
                result
            }
        },
    )
}

/// `nvmlDeviceGetProcessesUtilizationInfo`.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn utilization_info<R: Like<row::nvmlDeviceGetProcessesUtilizationInfo>>(
    device: nvmlDevice_t,
    asked: *mut nvmlProcessesUtilizationInfo_v1_t,
) -> nvmlReturn_t {
    let list = |view: &View, place, asked: &mut _, real: &Library<'_, _>| {
        let asked: &mut nvmlProcessesUtilizationInfo_v1_t = asked;
        if asked.procUtilArray.is_null() {
            return Err(real(asked));
        }
        let list = own_of(&lists::read_asked(asked, real)?, view, place);
        if list.is_empty() {
            asked.processSamplesCount = 0;
            return Err(NVML_ERROR_NOT_FOUND);
        }
        Ok(list)
    };
    // SAFETY: as the caller says.
    unsafe { seeing_asked::<_, R>(device, asked, list) }
}

/// `nvmlDeviceGetUtilizationRates`: the share of the tenant's processes, by the library's samples
/// of each. A library without such samples reports the card's rates.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn rates<R: Like<row::nvmlDeviceGetUtilizationRates>>(
    device: nvmlDevice_t,
    rates: *mut nvmlUtilization_t,
) -> nvmlReturn_t {
    // SAFETY: the caller's arguments are passed on.
    let real = || unsafe { R::call((device, rates)) };
    seeing_own(device, real, |view, place| {
        let result = real();
        // SAFETY: null, or what the library just wrote to.
        let rates = unsafe { rates.as_mut() };
        if let Some(rates) = rates.filter(|_| result == NVML_SUCCESS)
            && let Ok(list) = latest_samples(device)
        {
            *rates = own_rates(&list, &all_of(view, place), *rates);
        }
        result
    })
}

/// The longest period over which the library computes its rates.
const PERIOD: Duration = Duration::from_secs(1);

/// One sample for each process that did anything lately.
fn latest_samples(
    device: nvmlDevice_t,
) -> Result<Vec<nvmlProcessUtilizationSample_t>, nvmlReturn_t> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = now.unwrap_or_default().saturating_sub(PERIOD).as_micros();
    let since = u64::try_from(since).unwrap_or(0);
    // SAFETY: `read_all` gives live pointers.
    let list = lists::read_all(|count, samples| unsafe {
        real::nvmlDeviceGetProcessUtilization(device, samples, count, since)
    });
    match list {
        Err(NVML_ERROR_NOT_FOUND) => Ok(Vec::new()),
        list => list,
    }
}

/// The part of some processes, which is never more than the whole.
fn own_rates(
    list: &[nvmlProcessUtilizationSample_t],
    processes: &[Process],
    whole: nvmlUtilization_t,
) -> nvmlUtilization_t {
    let numbers: Vec<u32> = list.iter().map(|sample| sample.pid).collect();
    let whose = Whose::of(&numbers, processes);
    let own = list
        .iter()
        .filter(|sample| whose.find(sample.pid, processes).is_some());
    let (gpu, memory) = own.fold((0_u32, 0_u32), |(gpu, memory), sample| {
        (
            gpu.saturating_add(sample.smUtil),
            memory.saturating_add(sample.memUtil),
        )
    });
    nvmlUtilization_t {
        gpu: gpu.min(whole.gpu),
        memory: memory.min(whole.memory),
    }
}

/// `nvmlDeviceGetEncoderSessions` (eight words each), `nvmlDeviceGetFBCSessions` (twelve).
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn sessions<T, R>(
    device: nvmlDevice_t,
    count: *mut u32,
    sessions: *mut T,
) -> nvmlReturn_t
where
    T: OfProcess + Zeroed,
    R: Row<Arguments = (nvmlDevice_t, *mut u32, *mut T), Result = nvmlReturn_t>,
{
    let real = |count: *mut u32, sessions: *mut T| {
        // SAFETY: the caller's arguments are passed on.
        unsafe { R::call((device, count, sessions)) }
    };
    seeing_own(
        device,
        || real(count, sessions),
        |view, place| {
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
pub unsafe extern "C" fn accounting_pids<R: Like<row::nvmlDeviceGetAccountingPids>>(
    device: nvmlDevice_t,
    count: *mut u32,
    pids: *mut u32,
) -> nvmlReturn_t {
    let real = |count: *mut u32, pids: *mut u32| {
        // SAFETY: the caller's arguments are passed on.
        unsafe { real::nvmlDeviceGetAccountingPids(device, count, pids) }
    };
    seeing_own(
        device,
        || real(count, pids),
        |view, place| {
            let keep = |list: Vec<u32>| own_of(&list, view, place);
            // SAFETY: as the caller says.
            unsafe { lists::answer_kept(real, keep, count, pids) }
        },
    )
}

/// Returns the library's accounting number of one of the tenant's processes.
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
pub unsafe extern "C" fn accounting_stats<R: Like<row::nvmlDeviceGetAccountingStats>>(
    device: nvmlDevice_t,
    pid: u32,
    stats: *mut nvmlAccountingStats_t,
) -> nvmlReturn_t {
    let real = |pid| {
        // SAFETY: the caller's arguments are passed on.
        unsafe { R::call((device, pid, stats)) }
    };
    seeing_own(
        device,
        || real(pid),
        |view, place| {
            let number = accounting_number(view, device, place, pid);
            number.map_or_else(|error| error, real)
        },
    )
}

/// `nvmlDeviceGetAccountingStats_v2`, whose struct begins with the process.
///
/// # Safety
/// As NVIDIA documents.
pub unsafe extern "C" fn accounting_stats_v2<R: Like<row::nvmlDeviceGetAccountingStats_v2>>(
    device: nvmlDevice_t,
    stats: *mut nvmlAccountingStats_v2_t,
) -> nvmlReturn_t {
    // SAFETY: the caller's arguments are passed on.
    let real = || unsafe { R::call((device, stats)) };
    seeing_own(device, real, |view, place| {
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
pub unsafe extern "C" fn process_name<R: Like<row::nvmlSystemGetProcessName>>(
    pid: u32,
    name: *mut c_char,
    length: u32,
) -> nvmlReturn_t {
    // SAFETY: the caller's arguments are passed on.
    let real = || unsafe { R::call((pid, name, length)) };
    seeing(real, |view| {
        let mut devices = view.control().devices();
        let is_own = pid == std::process::id()
            || devices.next().is_some_and(|(device, _)| {
                let processes = all_of(view, device);
                processes.iter().any(|process| process.here == Some(pid))
            });
        if is_own {
            real()
        } else {
            devices::once_initialised(NVML_ERROR_NOT_FOUND)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rates_are_those_of_the_tenants_processes() {
        let process = |told, here| Process {
            told,
            here,
            bytes: 0,
        };
        let sample = |pid, sm, memory| nvmlProcessUtilizationSample_t {
            pid,
            smUtil: sm,
            memUtil: memory,
            ..Default::default()
        };
        let processes = [process(900, Some(7)), process(901, None)];
        let whole = nvmlUtilization_t {
            gpu: 70,
            memory: 30,
        };
        for (list, expected) in [
            (&[][..], (0, 0)),
            (&[sample(17, 50, 20)], (0, 0)),
            // One that has no name here counts too.
            (
                &[sample(900, 20, 5), sample(901, 10, 5), sample(17, 40, 20)],
                (30, 10),
            ),
            (&[sample(7, 20, 5)], (20, 5)),
            (&[sample(900, 60, 5), sample(901, 60, 5)], (70, 10)),
        ] {
            let own = own_rates(list, &processes, whole);
            assert_eq!((own.gpu, own.memory), expected, "{list:?}");
        }
    }
}
