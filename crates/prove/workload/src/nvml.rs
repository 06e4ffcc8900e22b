//! The machine as NVML reports it, and as `nvidia-smi` would show it.
//!
//! Every program here that uses NVML calls a function of this module.

use std::collections::BTreeMap;
use std::ffi::c_uint;

use serde_json::{Value, json};
use sublet_driver_api::NVML;
use sublet_driver_api::nvml::{
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_NOT_FOUND, nvmlDevice_t, nvmlMemory_v2_t,
    nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t,
};

use crate::driver::{Name, name_to_string};
use crate::raw::Nvml;
use crate::reach::Library;
use crate::report::Failure;

/// Room for so many processes at first; a driver that has more says how many.
const PROCESSES: usize = 64;
/// C's NVML_STRUCT_VERSION: the size of the struct and, above it, its number.
const MEMORY_VERSION: u32 = size_of::<nvmlMemory_v2_t>() as u32 | 2 << 24;

/// Driver version, devices, their memory and the processes on them.
pub(crate) fn look(library: &str) -> Result<Value, Failure> {
    let nvml = Nvml::new(Library::open_plain(library, &NVML)?)?;
    // SAFETY: takes nothing.
    unsafe { nvml.nvmlInit_v2()? };
    let seen = devices(&nvml);
    // SAFETY: undoes the call above.
    unsafe { nvml.nvmlShutdown()? };
    let (version, devices) = seen?;
    Ok(json!({
        "library": nvml.file(),
        "driverVersion": version,
        "devices": devices,
    }))
}

/// Calls `more` with the memory in use on the first device, again and again until it says no.
pub(crate) fn used_again_and_again(
    library: &str,
    mut more: impl FnMut(u64) -> bool,
) -> Result<(), Failure> {
    let nvml = Nvml::new(Library::open_plain(library, &NVML)?)?;
    // SAFETY: takes nothing; the device is a live value.
    let device = unsafe {
        nvml.nvmlInit_v2()?;
        let mut device = nvmlDevice_t::default();
        nvml.nvmlDeviceGetHandleByIndex_v2(0, &raw mut device)?;
        device
    };
    while more(memory(&nvml, device)?.used) {}
    // SAFETY: undoes the first call.
    unsafe { nvml.nvmlShutdown() }
}

/// Utilisation of the first device by its processes, as NVML samples it.
pub(crate) struct Utilisation {
    nvml: Nvml,
    device: nvmlDevice_t,
    last_seen: u64,
}

// SAFETY: NVML's handles are the same for all threads, and its functions take locks of their own.
unsafe impl Send for Utilisation {}

impl Utilisation {
    pub(crate) fn of_first_device(library: &str) -> Result<Self, Failure> {
        let nvml = Nvml::new(Library::open_plain(library, &NVML)?)?;
        let mut device = nvmlDevice_t::default();
        // SAFETY: the device is a live value.
        unsafe {
            nvml.nvmlInit_v2()?;
            nvml.nvmlDeviceGetHandleByIndex_v2(0, &raw mut device)?;
        }
        Ok(Self {
            nvml,
            device,
            last_seen: 0,
        })
    }

    /// Percent of the device in the last sample of each process. Nobody is there while NVML has no
    /// sample that is newer than the last one seen.
    pub(crate) fn by_process(&mut self) -> Result<BTreeMap<u32, u32>, Failure> {
        let mut samples = [nvmlProcessUtilizationSample_t::default(); PROCESSES];
        let mut count = samples.len() as c_uint;
        let (at, last) = (samples.as_mut_ptr(), self.last_seen);
        // SAFETY: the count is the array's length.
        let asked = unsafe {
            let nvml = &self.nvml;
            nvml.nvmlDeviceGetProcessUtilization(self.device, at, &raw mut count, last)
        };
        match asked {
            Err(Failure::Driver { code, .. }) if code == NVML_ERROR_NOT_FOUND.0 => count = 0,
            other => other?,
        }
        let samples = &mut samples[..(count as usize).min(PROCESSES)];
        samples.sort_by_key(|sample| sample.timeStamp);
        self.last_seen = samples.last().map_or(last, |sample| sample.timeStamp);
        let each = samples.iter().map(|sample| (sample.pid, sample.smUtil));
        Ok(each.collect())
    }

    /// Percent of the device in the last sample of this process; 0 while there is none.
    pub(crate) fn of_this_process(&mut self) -> Result<u32, Failure> {
        let all = self.by_process()?;
        Ok(all.get(&std::process::id()).copied().unwrap_or(0))
    }
}

fn memory(nvml: &Nvml, device: nvmlDevice_t) -> Result<nvmlMemory_v2_t, Failure> {
    let mut memory = nvmlMemory_v2_t {
        version: MEMORY_VERSION,
        ..nvmlMemory_v2_t::default()
    };
    // SAFETY: the struct says its own version.
    unsafe { nvml.nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory)? };
    Ok(memory)
}

fn devices(nvml: &Nvml) -> Result<(String, Vec<Value>), Failure> {
    let mut version: Name = [0; 256];
    let mut count = 0;
    // SAFETY: the length is that of the array, the count a live value.
    unsafe {
        nvml.nvmlSystemGetDriverVersion(version.as_mut_ptr(), version.len() as c_uint)?;
        nvml.nvmlDeviceGetCount_v2(&raw mut count)?;
    }
    let devices = (0..count).map(|index| device(nvml, index));
    Ok((name_to_string(&version), devices.collect::<Result<_, _>>()?))
}

fn device(nvml: &Nvml, index: c_uint) -> Result<Value, Failure> {
    let mut device = nvmlDevice_t::default();
    let (mut name, mut uuid): (Name, Name) = ([0; 256], [0; 256]);
    // SAFETY: the lengths are those of the arrays.
    unsafe {
        nvml.nvmlDeviceGetHandleByIndex_v2(index, &raw mut device)?;
        nvml.nvmlDeviceGetName(device, name.as_mut_ptr(), name.len() as c_uint)?;
        nvml.nvmlDeviceGetUUID(device, uuid.as_mut_ptr(), uuid.len() as c_uint)?;
    }
    let memory = memory(nvml, device)?;
    let processes: Vec<Value> = processes(nvml, device)?
        .iter()
        .map(|process| json!({"pid": process.pid, "used": process.usedGpuMemory}))
        .collect();
    Ok(json!({
        "index": index,
        "name": name_to_string(&name),
        "uuid": name_to_string(&uuid),
        "memory": {
            "total": memory.total,
            "reserved": memory.reserved,
            "free": memory.free,
            "used": memory.used,
        },
        "processes": processes,
    }))
}

/// The processes of a device. Asks again with more room while the driver says that there are more.
fn processes(nvml: &Nvml, device: nvmlDevice_t) -> Result<Vec<nvmlProcessInfo_v2_t>, Failure> {
    let mut list = vec![nvmlProcessInfo_v2_t::default(); PROCESSES];
    loop {
        let mut count = c_uint::try_from(list.len()).unwrap_or(c_uint::MAX);
        // SAFETY: the count is the length of the list.
        let answer = unsafe {
            nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, list.as_mut_ptr())
        };
        match answer {
            Err(Failure::Driver { code, .. })
                if code == NVML_ERROR_INSUFFICIENT_SIZE.0 && count as usize > list.len() =>
            {
                list.resize(count as usize + PROCESSES, nvmlProcessInfo_v2_t::default());
            }
            Err(failure) => return Err(failure),
            Ok(()) => {
                list.truncate(count as usize);
                return Ok(list);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_is_what_the_header_computes() {
        assert_eq!(super::MEMORY_VERSION, 0x0200_0028);
    }
}
