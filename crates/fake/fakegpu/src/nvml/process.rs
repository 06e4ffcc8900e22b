//! Processes that use a card, with their memory and their share of its time.
//!
//! All processes of the fake machine compute; none draws, and there is no MPS.

use std::time::{SystemTime, UNIX_EPOCH};

use sublet_driver_api::nvml::{
    NVML_COMPUTE_INSTANCE_ID_ANY, NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    NVML_ERROR_INSUFFICIENT_SIZE, NVML_ERROR_INVALID_ARGUMENT, NVML_ERROR_NOT_FOUND,
    NVML_ERROR_NOT_SUPPORTED, NVML_FEATURE_DISABLED, NVML_GPU_INSTANCE_ID_ANY,
    NVML_PROCESS_MODE_ALL, NVML_PROCESS_MODE_COMPUTE, NVML_PROCESS_MODE_GRAPHICS,
    NVML_PROCESS_MODE_MPS, nvmlAccountingStats_t, nvmlDevice_t, nvmlEnableState_t,
    nvmlProcessDetail_v1_t, nvmlProcessDetailList_v1, nvmlProcessDetailList_v1_t,
    nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessMode_t, nvmlProcessUtilizationInfo_v1_t,
    nvmlProcessUtilizationSample_t, nvmlProcessesUtilizationInfo_v1,
    nvmlProcessesUtilizationInfo_v1_t, nvmlUtilization_t,
};

use super::exported::{Answer, functions};
use super::library::{card, percent};
use super::pointer::{Out, list};
use crate::machine::ProcessUse;

/// Value that NVML writes where it has no value.
const NOT_AVAILABLE: u64 = u64::MAX;
/// Accounting is off, but its buffer has a size: that of current drivers.
const ACCOUNTING_BUFFER: u32 = 4000;

functions! {
    fn nvmlDeviceGetComputeRunningProcesses(
        device: nvmlDevice_t,
        count: Out<u32>,
        infos: Out<nvmlProcessInfo_v1_t>,
    ) {
        let processes = card(device)?.processes()?;
        let shortened = processes.iter().map(|process| nvmlProcessInfo_v1_t {
            pid: process.pid,
            usedGpuMemory: process.bytes,
        });
        list(count, infos, &shortened.collect::<Vec<_>>())
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(
        device: nvmlDevice_t,
        count: Out<u32>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) {
        computing(device, count, infos)
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: nvmlDevice_t,
        count: Out<u32>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) {
        computing(device, count, infos)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(
        device: nvmlDevice_t,
        count: Out<u32>,
        infos: Out<nvmlProcessInfo_v1_t>,
    ) {
        nobody(device, count, infos)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: nvmlDevice_t,
        count: Out<u32>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) {
        nobody(device, count, infos)
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: nvmlDevice_t,
        count: Out<u32>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) {
        nobody(device, count, infos)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses(
        device: nvmlDevice_t,
        count: Out<u32>,
        infos: Out<nvmlProcessInfo_v1_t>,
    ) {
        nobody(device, count, infos)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: nvmlDevice_t,
        count: Out<u32>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) {
        nobody(device, count, infos)
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: nvmlDevice_t,
        count: Out<u32>,
        infos: Out<nvmlProcessInfo_v2_t>,
    ) {
        nobody(device, count, infos)
    }

    fn nvmlDeviceGetRunningProcessDetailList(
        device: nvmlDevice_t,
        wanted: Out<nvmlProcessDetailList_v1_t>,
    ) {
        let card = card(device)?;
        let mut asked = wanted.read()?;
        if asked.version != nvmlProcessDetailList_v1 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let processes = match nvmlProcessMode_t(asked.mode) {
            NVML_PROCESS_MODE_COMPUTE | NVML_PROCESS_MODE_ALL => card.processes()?,
            NVML_PROCESS_MODE_GRAPHICS | NVML_PROCESS_MODE_MPS => Vec::new(),
            _ => return Err(NVML_ERROR_INVALID_ARGUMENT),
        };
        let details: Vec<_> = processes.iter().map(detail).collect();
        let room = asked.numProcArrayEntries as usize;
        let array = Out::of_member(asked.procArray);
        asked.numProcArrayEntries = u32::try_from(details.len()).unwrap_or(u32::MAX);
        wanted.write(asked)?;
        // Here a missing array asks for the number, however much room is claimed.
        if details.len() > room || (array.is_null() && !details.is_empty()) {
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        array.fill(room, &details)
    }

    /// The memory that the kernels used is not known, so that half stays 0.
    fn nvmlDeviceGetUtilizationRates(device: nvmlDevice_t, rates: Out<nvmlUtilization_t>) {
        let gpu = card(device)?.percent_busy();
        rates.write(nvmlUtilization_t { gpu, memory: 0 })
    }

    fn nvmlDeviceGetProcessUtilization(
        device: nvmlDevice_t,
        samples: Out<nvmlProcessUtilizationSample_t>,
        count: Out<u32>,
        last_seen: u64,
    ) {
        let working = working(device, last_seen)?;
        if samples.is_null() {
            count.read()?;
            count.write(u32::try_from(working.len()).unwrap_or(u32::MAX))?;
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        let found = working.iter().map(|sample| nvmlProcessUtilizationSample_t {
            pid: sample.pid,
            timeStamp: sample.timeStamp,
            smUtil: sample.smUtil,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        });
        list(count, samples, &found.collect::<Vec<_>>())
    }

    fn nvmlDeviceGetProcessesUtilizationInfo(
        device: nvmlDevice_t,
        wanted: Out<nvmlProcessesUtilizationInfo_v1_t>,
    ) {
        card(device)?;
        let mut asked = wanted.read()?;
        if asked.version != nvmlProcessesUtilizationInfo_v1 {
            return Err(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        let working = working(device, asked.lastSeenTimeStamp)?;
        let room = asked.processSamplesCount as usize;
        let array = Out::of_member(asked.procUtilArray);
        asked.processSamplesCount = u32::try_from(working.len()).unwrap_or(u32::MAX);
        wanted.write(asked)?;
        if working.len() > room || array.is_null() {
            return Err(NVML_ERROR_INSUFFICIENT_SIZE);
        }
        array.fill(room, &working)
    }

    fn nvmlDeviceGetAccountingMode(device: nvmlDevice_t, mode: Out<nvmlEnableState_t>) {
        card(device)?;
        mode.write(NVML_FEATURE_DISABLED)
    }

    fn nvmlDeviceGetAccountingBufferSize(device: nvmlDevice_t, size: Out<u32>) {
        card(device)?;
        size.write(ACCOUNTING_BUFFER)
    }

    fn nvmlDeviceGetAccountingPids(device: nvmlDevice_t, count: Out<u32>, _pids: Out<u32>) {
        card(device)?;
        count.check()?;
        Err(NVML_ERROR_NOT_SUPPORTED)
    }

    fn nvmlDeviceGetAccountingStats(
        device: nvmlDevice_t,
        _pid: u32,
        stats: Out<nvmlAccountingStats_t>,
    ) {
        card(device)?;
        stats.check()?;
        Err(NVML_ERROR_NOT_SUPPORTED)
    }
}

fn computing(device: nvmlDevice_t, count: Out<u32>, infos: Out<nvmlProcessInfo_v2_t>) -> Answer {
    let processes = card(device)?.processes()?;
    let infos_of = processes.iter().map(|process| nvmlProcessInfo_v2_t {
        pid: process.pid,
        usedGpuMemory: process.bytes,
        gpuInstanceId: NVML_GPU_INSTANCE_ID_ANY,
        computeInstanceId: NVML_COMPUTE_INSTANCE_ID_ANY,
    });
    list(count, infos, &infos_of.collect::<Vec<_>>())
}

fn nobody<T: Copy>(device: nvmlDevice_t, count: Out<u32>, infos: Out<T>) -> Answer {
    card(device)?;
    list(count, infos, &[])
}

fn detail(process: &ProcessUse) -> nvmlProcessDetail_v1_t {
    nvmlProcessDetail_v1_t {
        pid: process.pid,
        usedGpuMemory: process.bytes,
        gpuInstanceId: NVML_GPU_INSTANCE_ID_ANY,
        computeInstanceId: NVML_COMPUTE_INSTANCE_ID_ANY,
        usedGpuCcProtectedMemory: NOT_AVAILABLE,
    }
}

/// Returns one sample for each process with kernels in the last second. The real library answers
/// "not found" if there is no sample newer than the caller's last one.
fn working(device: nvmlDevice_t, last_seen: u64) -> Answer<Vec<nvmlProcessUtilizationInfo_v1_t>> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    let mut working = Vec::new();
    for process in card(device)?.processes()? {
        let busy = percent(process.busy);
        if busy > 0 && now > last_seen {
            working.push(nvmlProcessUtilizationInfo_v1_t {
                timeStamp: now,
                pid: process.pid,
                smUtil: busy,
                memUtil: 0,
                encUtil: 0,
                decUtil: 0,
                jpgUtil: 0,
                ofaUtil: 0,
            });
        }
    }
    if working.is_empty() {
        return Err(NVML_ERROR_NOT_FOUND);
    }
    Ok(working)
}
