//! Every function of the driver is reached through the interposer with its arguments and its
//! result unchanged, and none is missing.
//!
//! NVIDIA's headers declare the functions, in C. `cargo xtask test` fetches them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use sublet_driver_api::CUDA_UNDECLARED;
use sublet_e2e::interposer::{CUDA, Expect, Headers, Library, NVML, Programs, built, exports};
use sublet_e2e::one_machine::{Machine, Running, number};

/// Calls arrive as they were made wherever the interposer has no business with them: when it was
/// told of no arbiter, and when it was told of one that is not there.
///
/// `refused` are those that a strict tenant without an arbiter does not get through; where that
/// is nearly all, there is nothing to see.
fn arrives_unchanged(library: &'static Library, refused: Option<&[&str]>) -> Result<()> {
    let nobody = tempfile::tempdir()?;
    let told = ("SUBLET_DIR", nobody.path().as_os_str());
    let compat = [told, ("SUBLET_MODE", OsStr::new("compat"))];
    let strict = [told, ("SUBLET_MODE", OsStr::new("strict"))];
    for headers in Headers::of(library) {
        let programs = Programs::build(&headers, library)?;
        let call = |through: &Path, what, environment, expect| {
            let done = programs.call_all(through, environment, expect);
            done.with_context(|| format!("{what}, by {headers}"))
        };
        // That the two programs understand each other.
        let recorder = programs.recorder();
        call(&recorder, "without the interposer", &[], Expect::Blind)?;
        let interposer = built(library.interposer)?;
        call(&interposer, "told of no arbiter", &[], Expect::Blind)?;
        let all = Expect::Readable { except: &[] };
        call(&interposer, "arbiter missing, compat", &compat, all)?;
        if let Some(except) = refused {
            let all = Expect::Readable { except };
            call(&interposer, "arbiter missing, strict", &strict, all)?;
        }
        println!("{}: {} functions", library.soname, programs.names().len());
    }
    Ok(())
}

#[test]
fn every_function_of_libcuda_arrives_unchanged() -> Result<()> {
    arrives_unchanged(&CUDA, Some(&["cuInit"]))
}

#[test]
fn every_function_of_libnvidia_ml_arrives_unchanged() -> Result<()> {
    arrives_unchanged(&NVML, None)
}

/// A card on which all that the calls together ask for has room.
const LARGE_CARD: &str = "1x2048GiB";

/// The same for a tenant, with an arbiter that lives: each function that has a hook is called
/// through the hook, with a driver that says no and with one that says yes.
///
/// `answered`: functions that the interposer answers for the driver, or asks in its own words;
/// `denied`: functions that it does not let through. All other calls arrive as they were made.
fn arrives_for_a_tenant(
    library: &'static Library,
    answered: &[&str],
    denied: &[&str],
) -> Result<()> {
    let mut declared = BTreeSet::new();
    let mut n_packages = 0;
    for headers in Headers::of(library) {
        let Some(machine) = Machine::new(LARGE_CARD)? else {
            return Ok(());
        };
        let programs = Programs::build(&headers, library)?;
        let expect = Expect::Tenant { answered, denied };
        let (words, content) = programs.calls(&built(library.interposer)?, expect);
        let mut job = machine.run("--memory 100% --name caller");
        // The job's own libraries are those of the fake machine; the recorder takes their place.
        job.args(["env", "--unset=LD_PRELOAD"]);
        let recorder = programs.recorder();
        job.arg(format!("{}={}", library.variable, recorder.display()));
        let mut caller = Running::start(job.args(words))?;
        let mut said = caller.line()?;
        while !said.ends_with(" in all") && !said.ends_with(" functions") {
            said.push('\n');
            said.push_str(&caller.line()?);
        }
        ensure!(said == content, "by {headers}:\n{said}");
        let tenant = machine.tenant("caller")?;
        let pids = tenant["pids"].as_array().context("no processes")?;
        ensure!(pids.len() == 1, "it was nobody's tenant: {tenant}");
        if library.soname == CUDA.soname {
            // What the driver granted is charged: the hooks did their work.
            ensure!(number(&tenant["usedMiB"])? > 0, "{tenant}");
        }
        let ended = caller.end()?;
        ensure!(ended.code == Some(0), "{ended:?}");
        declared.extend(programs.names().iter().cloned());
        n_packages += 1;
    }
    let unknown = answered.iter().chain(denied);
    let unknown: Vec<_> = unknown.filter(|name| !declared.contains(**name)).collect();
    ensure!(
        n_packages == 0 || unknown.is_empty(),
        "no such functions: {unknown:?}"
    );
    Ok(())
}

/// Asked with variables of its own, so that a program may leave out either answer.
const CUDA_ANSWERED: [&str; 2] = ["cuMemGetInfo", "cuMemGetInfo_v2"];

#[test]
fn every_function_of_libcuda_arrives_for_a_tenant() -> Result<()> {
    arrives_for_a_tenant(&CUDA, &CUDA_ANSWERED, &[])
}

/// Functions that a tenant gets answered from its own account: its cards, its processes, and the
/// measurements of those. The last one has no types that could be looked through.
const NVML_ANSWERED: [&str; 29] = [
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByPciBusId",
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetHandleBySerial",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetHandleByUUIDV",
    "nvmlDeviceGetTopologyNearestGpus",
    "nvmlSystemGetTopologyGpuSet",
    "nvmlUnitGetDevices",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetRunningProcessDetailList",
    "nvmlDeviceGetProcessUtilization",
    "nvmlDeviceGetProcessesUtilizationInfo",
    "nvmlDeviceGetEncoderSessions",
    "nvmlDeviceGetFBCSessions",
    "nvmlDeviceGetAccountingPids",
    "nvmlDeviceGetAccountingStats",
    "nvmlDeviceGetAccountingStats_v2",
    "nvmlSystemGetProcessName",
    "nvmlInternalGetExportTable",
];

/// Functions that change a card for others too, and the limits that the kernel keeps of others.
pub(crate) const NVML_DENIED: [&str; 82] = [
    "nvmlComputeInstanceDestroy",
    "nvmlDeviceClearAccountingPids",
    "nvmlDeviceClearEccErrorCounts",
    "nvmlDeviceClearFieldValues",
    "nvmlDeviceCreateGpuInstance",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlDeviceDiscoverGpus",
    "nvmlDeviceFreezeNvLinkUtilizationCounter",
    "nvmlDeviceGetMemoryLimits_v1",
    "nvmlDeviceLockNvlinkRemapTable_v1",
    "nvmlDeviceModifyDrainState",
    "nvmlDevicePowerSmoothingActivatePresetProfile",
    "nvmlDevicePowerSmoothingSetState",
    "nvmlDevicePowerSmoothingUpdatePresetProfileParam",
    "nvmlDeviceReadWritePRM_v1",
    "nvmlDeviceRemoveGpu",
    "nvmlDeviceRemoveGpu_v2",
    "nvmlDeviceResetApplicationsClocks",
    "nvmlDeviceResetGpuLockedClocks",
    "nvmlDeviceResetMemoryLockedClocks",
    "nvmlDeviceResetNvLinkErrorCounters",
    "nvmlDeviceResetNvLinkUtilizationCounter",
    "nvmlDeviceSetAPIRestriction",
    "nvmlDeviceSetAccountingMode",
    "nvmlDeviceSetAdaptiveTgpMode_v1",
    "nvmlDeviceSetApplicationsClocks",
    "nvmlDeviceSetAutoBoostedClocksEnabled",
    "nvmlDeviceSetClockOffsets",
    "nvmlDeviceSetComputeMode",
    "nvmlDeviceSetConfComputeUnprotectedMemSize",
    "nvmlDeviceSetDefaultAutoBoostedClocksEnabled",
    "nvmlDeviceSetDefaultFanSpeed_v2",
    "nvmlDeviceSetDramEncryptionMode",
    "nvmlDeviceSetDriverModel",
    "nvmlDeviceSetEccMode",
    "nvmlDeviceSetFanControlPolicy",
    "nvmlDeviceSetFanSpeed_v2",
    "nvmlDeviceSetGpcClkVfOffset",
    "nvmlDeviceSetGpuLockedClocks",
    "nvmlDeviceSetGpuOperationMode",
    "nvmlDeviceSetHostname_v1",
    "nvmlDeviceSetMemClkVfOffset",
    "nvmlDeviceSetMemoryLimits_v1",
    "nvmlDeviceSetMemoryLockedClocks",
    "nvmlDeviceSetMigMode",
    "nvmlDeviceSetNvLinkDeviceLowPowerThreshold",
    "nvmlDeviceSetNvLinkUtilizationControl",
    "nvmlDeviceSetNvlinkBwMode",
    "nvmlDeviceSetNvlinkBwModeAsync_v1",
    "nvmlDeviceSetNvlinkNvleReady_v1",
    "nvmlDeviceSetPersistenceMode",
    "nvmlDeviceSetPowerManagementLimit",
    "nvmlDeviceSetPowerManagementLimit_v2",
    "nvmlDeviceSetPowerMizerMode_v1",
    "nvmlDeviceSetPowerMode",
    "nvmlDeviceSetRusdSettings_v1",
    "nvmlDeviceSetTemperatureThreshold",
    "nvmlDeviceSetVgpuCapabilities",
    "nvmlDeviceSetVgpuHeterogeneousMode",
    "nvmlDeviceSetVgpuSchedulerState",
    "nvmlDeviceSetVgpuSchedulerState_v2",
    "nvmlDeviceSetVirtualizationMode",
    "nvmlDeviceSetupNvlinkNvleEncryptionKey_v1",
    "nvmlDeviceValidateInforom",
    "nvmlDeviceVgpuForceGspUnload",
    "nvmlDeviceWorkloadPowerProfileClearRequestedProfiles",
    "nvmlDeviceWorkloadPowerProfileSetRequestedProfiles",
    "nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1",
    "nvmlGpmSetStreamingEnabled",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlGpuInstanceDestroy",
    "nvmlGpuInstanceSetVgpuHeterogeneousMode",
    "nvmlGpuInstanceSetVgpuSchedulerState",
    "nvmlGpuInstanceSetVgpuSchedulerState_v2",
    "nvmlSetVgpuVersion",
    "nvmlSystemSetConfComputeGpusReadyState",
    "nvmlSystemSetConfComputeKeyRotationThresholdInfo",
    "nvmlSystemSetNvlinkBwMode",
    "nvmlUnitSetLedState",
    "nvmlVgpuInstanceClearAccountingPids",
    "nvmlVgpuInstanceSetEncoderCapacity",
];

#[test]
fn every_function_of_libnvidia_ml_arrives_for_a_tenant() -> Result<()> {
    arrives_for_a_tenant(&NVML, &NVML_ANSWERED, &NVML_DENIED)
}

/// Every function that the headers of all pinned packages declare is there; the interposer, which
/// claims to be the driver, exports nothing else under its prefix.
#[test]
fn interposer_and_fake_machine_export_what_the_headers_declare() -> Result<()> {
    for library in [&CUDA, &NVML] {
        let mut declared = BTreeSet::new();
        for headers in Headers::of(library) {
            let found = headers.prototypes(library)?;
            declared.extend(found.into_iter().map(|one| one.name));
        }
        if declared.is_empty() {
            continue;
        }
        for name in [library.interposer, library.fake] {
            let exported = exports(&built(name)?, library)?;
            let missing: Vec<_> = declared.difference(&exported).collect();
            ensure!(missing.is_empty(), "{name} does not export {missing:?}");
            let is_undeclared = |name: &str| CUDA_UNDECLARED.contains(&name);
            let invented = exported.difference(&declared);
            let invented: Vec<_> = invented.filter(|name| !is_undeclared(name)).collect();
            ensure!(
                invented.is_empty(),
                "no header declares what {name} exports: {invented:?}"
            );
        }
    }
    Ok(())
}
