//! Treatment of each function: one line for every function that is not simply forwarded.
//!
//! Functions that change a card, the machine or its driver are denied, whichever verb NVIDIA gives
//! them. A function without a line goes to the real library unchanged. So a function of a later
//! header is forwarded until somebody has read its documentation: the test below finds those with
//! names that sound like a change.

use std::ffi::{c_char, c_void};

use sublet_driver_api::nvml::*;

use super::real::REAL;
use super::{devices, memory, processes, row, samples, start};
use crate::real::{Row, implement_row};

/// Target of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The real function.
    Forward,
    /// One of ours, with the same arguments.
    Hook(*const c_void),
    /// `NVML_ERROR_NO_PERMISSION`.
    Deny,
}

macro_rules! table {
    (
        hook { $($hooked:ident: $module:ident::$hook:ident $(::<$of:ty>)?;)* }
        deny { $($denied:ident)* }
    ) => {
        $(row::prototype!($hooked implement_row);)*

        /// Returns the target of a row's name.
        #[must_use]
        pub fn kind(index: usize) -> Kind {
            match index {
                $(row::$hooked => {
                    // A hook of another type than its row does not compile.
                    let hook: <row::$hooked as Row>::Function =
                        $module::$hook::<$($of,)? row::$hooked>;
                    Kind::Hook(hook as *const c_void)
                })*
                $(row::$denied => Kind::Deny,)*
                _ => Kind::Forward,
            }
        }
    };
}

table! {
hook {
    nvmlInit: start::init;
    nvmlInit_v2: start::init;
    nvmlInitWithFlags: start::init_with_flags;
    nvmlErrorString: start::error_string;
    nvmlInternalGetExportTable: start::export_table;

    nvmlDeviceGetCount: devices::count;
    nvmlDeviceGetCount_v2: devices::count;
    nvmlDeviceGetHandleByIndex: devices::by_index;
    nvmlDeviceGetHandleByIndex_v2: devices::by_index;
    nvmlDeviceGetHandleByPciBusId: devices::by_key::<c_char>;
    nvmlDeviceGetHandleByPciBusId_v2: devices::by_key::<c_char>;
    nvmlDeviceGetHandleBySerial: devices::by_key::<c_char>;
    nvmlDeviceGetHandleByUUID: devices::by_key::<c_char>;
    nvmlDeviceGetHandleByUUIDV: devices::by_key::<nvmlUUID_t>;
    nvmlDeviceGetIndex: devices::index;
    nvmlDeviceGetTopologyNearestGpus: devices::nearest;
    nvmlSystemGetTopologyGpuSet: devices::near_cpu;
    nvmlUnitGetDevices: devices::of_unit;

    nvmlDeviceGetMemoryInfo: memory::info::<nvmlMemory_t>;
    nvmlDeviceGetMemoryInfo_v2: memory::info::<nvmlMemory_v2_t>;
    nvmlDeviceGetBAR1MemoryInfo: memory::info::<nvmlBAR1Memory_t>;
    nvmlDeviceGetConfComputeProtectedMemoryUsage: memory::info::<nvmlMemory_t>;

    nvmlDeviceGetComputeRunningProcesses: processes::computing::<nvmlProcessInfo_v1_t>;
    nvmlDeviceGetComputeRunningProcesses_v2: processes::computing::<nvmlProcessInfo_t>;
    nvmlDeviceGetComputeRunningProcesses_v3: processes::computing::<nvmlProcessInfo_t>;
    nvmlDeviceGetGraphicsRunningProcesses: processes::others::<nvmlProcessInfo_v1_t>;
    nvmlDeviceGetGraphicsRunningProcesses_v2: processes::others::<nvmlProcessInfo_t>;
    nvmlDeviceGetGraphicsRunningProcesses_v3: processes::others::<nvmlProcessInfo_t>;
    nvmlDeviceGetMPSComputeRunningProcesses: processes::others::<nvmlProcessInfo_v1_t>;
    nvmlDeviceGetMPSComputeRunningProcesses_v2: processes::others::<nvmlProcessInfo_t>;
    nvmlDeviceGetMPSComputeRunningProcesses_v3: processes::others::<nvmlProcessInfo_t>;
    nvmlDeviceGetRunningProcessDetailList: processes::detail_list;

    nvmlDeviceGetProcessUtilization: samples::utilization;
    nvmlDeviceGetProcessesUtilizationInfo: samples::utilization_info;
    nvmlDeviceGetUtilizationRates: samples::rates;
    nvmlDeviceGetEncoderSessions: samples::sessions::<nvmlEncoderSessionInfo_t>;
    nvmlDeviceGetFBCSessions: samples::sessions::<nvmlFBCSessionInfo_t>;
    nvmlDeviceGetAccountingPids: samples::accounting_pids;
    nvmlDeviceGetAccountingStats: samples::accounting_stats;
    nvmlDeviceGetAccountingStats_v2: samples::accounting_stats_v2;
    nvmlSystemGetProcessName: samples::process_name;
}
deny {
    nvmlComputeInstanceDestroy nvmlDeviceClearAccountingPids nvmlDeviceClearEccErrorCounts
    nvmlDeviceClearFieldValues nvmlDeviceCreateGpuInstance
    nvmlDeviceCreateGpuInstanceWithPlacement nvmlDeviceDiscoverGpus
    nvmlDeviceFreezeNvLinkUtilizationCounter nvmlDeviceGetMemoryLimits_v1
    nvmlDeviceLockNvlinkRemapTable_v1 nvmlDeviceModifyDrainState
    nvmlDevicePowerSmoothingActivatePresetProfile nvmlDevicePowerSmoothingSetState
    nvmlDevicePowerSmoothingUpdatePresetProfileParam nvmlDeviceReadWritePRM_v1
    nvmlDeviceRemoveGpu nvmlDeviceRemoveGpu_v2 nvmlDeviceResetApplicationsClocks
    nvmlDeviceResetGpuLockedClocks nvmlDeviceResetMemoryLockedClocks
    nvmlDeviceResetNvLinkErrorCounters nvmlDeviceResetNvLinkUtilizationCounter
    nvmlDeviceSetAPIRestriction nvmlDeviceSetAccountingMode nvmlDeviceSetAdaptiveTgpMode_v1
    nvmlDeviceSetApplicationsClocks nvmlDeviceSetAutoBoostedClocksEnabled
    nvmlDeviceSetClockOffsets nvmlDeviceSetComputeMode
    nvmlDeviceSetConfComputeUnprotectedMemSize nvmlDeviceSetDefaultAutoBoostedClocksEnabled
    nvmlDeviceSetDefaultFanSpeed_v2 nvmlDeviceSetDramEncryptionMode nvmlDeviceSetDriverModel
    nvmlDeviceSetEccMode nvmlDeviceSetFanControlPolicy nvmlDeviceSetFanSpeed_v2
    nvmlDeviceSetGpcClkVfOffset nvmlDeviceSetGpuLockedClocks nvmlDeviceSetGpuOperationMode
    nvmlDeviceSetHostname_v1 nvmlDeviceSetMemClkVfOffset nvmlDeviceSetMemoryLimits_v1
    nvmlDeviceSetMemoryLockedClocks nvmlDeviceSetMigMode
    nvmlDeviceSetNvLinkDeviceLowPowerThreshold nvmlDeviceSetNvLinkUtilizationControl
    nvmlDeviceSetNvlinkBwMode nvmlDeviceSetNvlinkBwModeAsync_v1 nvmlDeviceSetNvlinkNvleReady_v1
    nvmlDeviceSetPersistenceMode nvmlDeviceSetPowerManagementLimit
    nvmlDeviceSetPowerManagementLimit_v2 nvmlDeviceSetPowerMizerMode_v1 nvmlDeviceSetPowerMode
    nvmlDeviceSetRusdSettings_v1 nvmlDeviceSetTemperatureThreshold nvmlDeviceSetVgpuCapabilities
    nvmlDeviceSetVgpuHeterogeneousMode nvmlDeviceSetVgpuSchedulerState
    nvmlDeviceSetVgpuSchedulerState_v2 nvmlDeviceSetVirtualizationMode
    nvmlDeviceSetupNvlinkNvleEncryptionKey_v1 nvmlDeviceValidateInforom
    nvmlDeviceVgpuForceGspUnload nvmlDeviceWorkloadPowerProfileClearRequestedProfiles
    nvmlDeviceWorkloadPowerProfileSetRequestedProfiles
    nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1 nvmlGpmSetStreamingEnabled
    nvmlGpuInstanceCreateComputeInstance nvmlGpuInstanceCreateComputeInstanceWithPlacement
    nvmlGpuInstanceDestroy nvmlGpuInstanceSetVgpuHeterogeneousMode
    nvmlGpuInstanceSetVgpuSchedulerState nvmlGpuInstanceSetVgpuSchedulerState_v2
    nvmlSetVgpuVersion nvmlSystemSetConfComputeGpusReadyState
    nvmlSystemSetConfComputeKeyRotationThresholdInfo nvmlSystemSetNvlinkBwMode
    nvmlUnitSetLedState nvmlVgpuInstanceClearAccountingPids nvmlVgpuInstanceSetEncoderCapacity
}
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_driver_api::NVML;

    /// Sound like a change, and change nothing but the caller's own.
    const HARMLESS: [&str; 2] = [
        // The CPUs on which the calling thread runs.
        "nvmlDeviceSetCpuAffinity",
        "nvmlDeviceClearCpuAffinity",
    ];

    const VERBS: [&str; 19] = [
        "Set",
        "Reset",
        "Clear",
        "Create",
        "Destroy",
        "Freeze",
        "Modify",
        "Remove",
        "Discover",
        "Validate",
        "ReadWrite",
        "Activate",
        "Update",
        "Lock",
        "Force",
        "Setup",
        "Write",
        "Delete",
        "Enable",
    ];

    /// The words of a name, with `EventSet` as one: it is a set, and sets nothing.
    fn sounds_like_a_change(symbol: &str) -> bool {
        let name = symbol.replace("EventSet", "Event_set");
        let is_verb = |verb: &&str| {
            name.match_indices(*verb).any(|(at, _)| {
                let rest = &name[at + verb.len()..];
                !rest.starts_with(|next: char| next.is_ascii_lowercase())
            })
        };
        let asks = ["Get", "Is", "Query"].iter().any(|verb| {
            name.find(verb).is_some_and(|at| {
                let earlier = &name[..at];
                !VERBS.iter().any(|change| earlier.contains(change))
            })
        });
        !asks && VERBS.iter().any(is_verb)
    }

    #[test]
    fn whatever_changes_something_is_denied() {
        for (index, function) in NVML.iter().enumerate() {
            let symbol = function.symbol;
            let is_a_set = symbol.contains("EventSetCreate");
            let expected = sounds_like_a_change(symbol) && !HARMLESS.contains(&symbol) && !is_a_set;
            let denied = kind(index) == Kind::Deny;
            let is_limits = symbol == "nvmlDeviceGetMemoryLimits_v1";
            assert_eq!(denied, expected || is_limits, "{symbol}");
        }
    }

    #[test]
    fn every_version_of_a_hooked_function_is_hooked() {
        for (index, function) in NVML.iter().enumerate() {
            if matches!(kind(index), Kind::Hook(_)) {
                for &version in NVML.versions(function.base) {
                    let hooked = matches!(kind(usize::from(version)), Kind::Hook(_));
                    assert!(hooked, "{}", NVML[usize::from(version)].symbol);
                }
            }
        }
    }

    /// Functions that tell a program the size of a card, and the processes that use it.
    const OF_THE_PART: [&str; 22] = [
        "nvmlDeviceGetAccountingPids",
        "nvmlDeviceGetAccountingStats",
        "nvmlDeviceGetBAR1MemoryInfo",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetConfComputeProtectedMemoryUsage",
        "nvmlDeviceGetCount",
        "nvmlDeviceGetEncoderSessions",
        "nvmlDeviceGetFBCSessions",
        "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetHandleByPciBusId",
        "nvmlDeviceGetHandleBySerial",
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetHandleByUUIDV",
        "nvmlDeviceGetMPSComputeRunningProcesses",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetProcessesUtilizationInfo",
        "nvmlDeviceGetRunningProcessDetailList",
        "nvmlDeviceGetUtilizationRates",
        "nvmlSystemGetProcessName",
        "nvmlDeviceGetIndex",
    ];

    #[test]
    fn what_tells_of_the_part_is_answered_for_it() {
        for base in OF_THE_PART {
            let versions = NVML.versions(base);
            assert!(!versions.is_empty(), "{base} is no function");
            for &version in versions {
                let kind = kind(usize::from(version));
                assert!(matches!(kind, Kind::Hook(_)), "{base}: {kind:?}");
            }
        }
    }

    /// `nvmlDeviceGetFieldValues` is forwarded, because no field tells of processes, nor of memory
    /// in use; a later header may bring one.
    #[test]
    fn fields_tell_of_the_card_alone() {
        let constants = include_str!("../../../../speak/driver-api/table/nvml_constants.tsv");
        let fields: Vec<&str> = constants
            .lines()
            .filter_map(|line| line.split('\t').find(|name| name.starts_with("NVML_FI_")))
            .collect();
        assert!(fields.len() > 300, "only {} fields", fields.len());
        for words in ["PROC", "_PID", "USED", "FREE_", "BAR1", "_FB_", "GPU_UTIL"] {
            let told = fields.iter().find(|name| name.contains(words));
            assert_eq!(told, None, "it tells of the card's tenants");
        }
    }
}
