//! The types and constants of `nvml.h` that Sublet reads or fills.
//!
//! All constants are here, by C's names. The structs are those that report memory, processes and
//! utilisation, or name a device.

#![expect(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    missing_docs,
    reason = "the names are C's, and what they mean is in NVIDIA's documentation"
)]

use std::ffi::c_char;

use crate::as_in_c::{enums, handles, structs};

include!(concat!(env!("OUT_DIR"), "/nvml_constants.rs"));

handles! {
    nvmlComputeInstance_t nvmlDevice_t nvmlEventSet_t nvmlGpuInstance_t nvmlUnit_t
}

structs! {
    nvmlMemory_t { total: u64, free: u64, used: u64, }
    nvmlMemory_v2_t { version: u32, total: u64, reserved: u64, free: u64, used: u64, }
    nvmlBAR1Memory_t { bar1Total: u64, bar1Free: u64, bar1Used: u64, }
    nvmlSetMemoryLimits_v1_t { nameSpace: *const c_char, softLimit: u64, hardLimit: u64, }
    nvmlGetMemoryLimits_v1_t {
        nameSpace: *const c_char,
        softLimit: u64,
        hardLimit: u64,
        currentUsed: u64,
    }
    nvmlUtilization_t { gpu: u32, memory: u32, }
    nvmlProcessInfo_v1_t { pid: u32, usedGpuMemory: u64, }
    /// Used by the functions with `_v2` and by those with `_v3`.
    nvmlProcessInfo_v2_t {
        pid: u32,
        usedGpuMemory: u64,
        gpuInstanceId: u32,
        computeInstanceId: u32,
    }
    nvmlProcessDetail_v1_t {
        pid: u32,
        usedGpuMemory: u64,
        gpuInstanceId: u32,
        computeInstanceId: u32,
        usedGpuCcProtectedMemory: u64,
    }
    nvmlProcessDetailList_v1_t {
        version: u32,
        mode: u32,
        numProcArrayEntries: u32,
        procArray: *mut nvmlProcessDetail_v1_t,
    }
    nvmlProcessUtilizationSample_t {
        pid: u32,
        timeStamp: u64,
        smUtil: u32,
        memUtil: u32,
        encUtil: u32,
        decUtil: u32,
    }
    nvmlProcessUtilizationInfo_v1_t {
        timeStamp: u64,
        pid: u32,
        smUtil: u32,
        memUtil: u32,
        encUtil: u32,
        decUtil: u32,
        jpgUtil: u32,
        ofaUtil: u32,
    }
    nvmlProcessesUtilizationInfo_v1_t {
        version: u32,
        processSamplesCount: u32,
        lastSeenTimeStamp: u64,
        procUtilArray: *mut nvmlProcessUtilizationInfo_v1_t,
    }
    nvmlAccountingStats_t {
        gpuUtilization: u32,
        memoryUtilization: u32,
        maxMemoryUsage: u64,
        time: u64,
        startTime: u64,
        isRunning: u32,
        reserved: [u32; 5],
    }
    /// Used by `nvmlDeviceGetPciInfo_v3`; the older functions leave its end untouched.
    nvmlPciInfo_t {
        busIdLegacy: [u8; 16],
        domain: u32,
        bus: u32,
        device: u32,
        pciDeviceId: u32,
        pciSubSystemId: u32,
        busId: [u8; 32],
    }
    /// A union: 41 characters, or 16 bytes.
    nvmlUUIDValue_t { str: [u8; 41], }
    nvmlUUID_v1_t { version: u32, r#type: u32, value: nvmlUUIDValue_t, }
    /// A union: `f64`, `i32`, `u32`, `u64`, `i64` or `u16`.
    nvmlValue_t { ullVal: u64, }
    nvmlFieldValue_t {
        fieldId: u32,
        scopeId: u32,
        timestamp: i64,
        latencyUsec: i64,
        valueType: nvmlValueType_t,
        nvmlReturn: nvmlReturn_t,
        value: nvmlValue_t,
    }
    nvmlEventData_t {
        device: nvmlDevice_t,
        eventType: u64,
        eventData: u64,
        gpuInstanceId: u32,
        computeInstanceId: u32,
    }
    nvmlTemperature_v1_t {
        version: u32,
        sensorType: nvmlTemperatureSensors_t,
        temperature: i32,
    }
}

/// Name of the struct in the functions with `_v3`.
pub type nvmlProcessInfo_t = nvmlProcessInfo_v2_t;
/// Names of these structs in prototypes, in every version.
pub type nvmlProcessDetailList_t = nvmlProcessDetailList_v1_t;
pub type nvmlProcessesUtilizationInfo_t = nvmlProcessesUtilizationInfo_v1_t;
pub type nvmlUUID_t = nvmlUUID_v1_t;
/// Numbers of 32 bits; the second number is the process.
pub type nvmlEncoderSessionInfo_t = [u32; 8];
/// The same.
pub type nvmlFBCSessionInfo_t = [u32; 12];
/// The process, with which the struct begins. The rest passes through us.
pub type nvmlAccountingStats_v2_t = u32;
