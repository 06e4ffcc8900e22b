//! Row 12: memory that cannot be shared in an old way, and a management library that fails. The
//! program is told by the driver's own code, and goes on.

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sublet_e2e::one_machine::{Calls, Machine, Running, number, until};

use crate::known_failures::{EXACT, START};

/// PyTorch's expandable segments are memory by handle, which CUDA's old IPC cannot share. The
/// program is told so by the driver's code (vllm#42609); it is not our backing that makes it so:
/// memory of `cuMemAlloc` can be shared under us as without.
#[test]
fn row_12_memory_by_handle_cannot_be_shared_the_old_way_and_plain_memory_can() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let script = "
        cuMemCreate &h 4M struct:32:1,1,1,0 0
        cuMemAddressReserve &at 4M 0 0 0
        cuMemMap at 4M 0 h 0
        cuMemSetAccess at 4M struct:12:1,0,3 1
        set handle struct:64
        cuIpcGetMemHandle handle at -> 1
        set capable 7
        cuPointerGetAttribute &capable 10 at
        print capable -> 0
        cuMemAlloc_v2 &a 4M
        cuIpcGetMemHandle handle a
        cuPointerGetAttribute &capable 10 a
        print capable -> 1
        cuMemAllocAsync &p 4M 0
        cuIpcGetMemHandle handle p -> 1
        cuMemFreeAsync p 0
        cuCtxSynchronize
        # What can be: a descriptor.
        cuMemExportToShareableHandle &fd h 1 0
        cuMemExportToShareableHandle &fd h 8 0 -> 1
    ";
    let mut direct = machine.direct_calls()?;
    direct.play(START)?;
    direct.play(script).context("without us")?;
    direct.end()?;
    let mut calls = machine.calls("--memory 64MiB --name job")?;
    calls.play(START)?;
    calls.play(script).context("in a job")?;
    // Nothing was paid for what was refused: two pieces of 4 MiB are there.
    calls.play("cuDeviceGetDefaultMemPool &pool 0\ncuMemPoolTrimTo pool 0")?;
    assert_eq!(machine.tenant("job")?["usedMiB"], 8);
    calls.play("cuMemAlloc_v2 &b 56M\ncuMemAlloc_v2 &c 2M -> 2")?;
    calls.end()
}

/// PyTorch asks NVML for the users of the card when memory has ended, and aborts when NVML fails
/// (pytorch#197312). At the limit all of its questions are answered.
#[test]
fn row_12_at_the_end_of_memory_nvml_answers_all_that_pytorch_asks() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 64MiB --name job")?;
    calls.play(START)?;
    calls.play(
        "
        cuMemAlloc_v2 &a 64M
        cuMemAlloc_v2 &b 2M -> 2
        nvmlInit_v2
        set bus struct:64
        cuDeviceGetPCIBusId bus 64 0
        nvmlDeviceGetHandleByPciBusId_v2 bus &device
        set list struct:1024
        set count 32
        nvmlDeviceGetComputeRunningProcesses device &count list
        print count -> 1
        word list 8 -> 67108864
        set count 32
        nvmlDeviceGetComputeRunningProcesses_v3 device &count list
        print count -> 1
        set memory struct:24
        nvmlDeviceGetMemoryInfo device memory
        word memory 0 -> 67108864
        word memory 8 -> 0
        nvmlShutdown
        # And the program goes on.
        cuMemFree_v2 a
        cuMemAlloc_v2 &b 2M
        ",
    )?;
    calls.end()
}

/// No NVML, one that does not start, one that fails at every question: a program that computes
/// does not notice, its limit holds, and one that asks NVML gets NVML's code and is not ended.
#[test]
fn row_12_a_management_library_that_fails_ends_no_program() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    for (what, init) in [
        ("SUBLET_DRIVER_NVML=/nowhere/libnvidia-ml.so.1", "12"),
        ("SUBLET_FAKE_FAULT=nvmlInit_v2:999", "999"),
        ("SUBLET_FAKE_FAULT=nvmlInit_v2:9", "9"),
        (
            "SUBLET_FAKE_FAULT=nvmlDeviceGetHandleByUUID:999,nvmlDeviceGetUUID:999",
            "0",
        ),
        (
            "SUBLET_FAKE_FAULT=nvmlDeviceGetMemoryInfo_v2:15,\
             nvmlDeviceGetComputeRunningProcesses_v3:15,nvmlDeviceGetCount_v2:15",
            "0",
        ),
    ] {
        let mut run = machine.run_told("--memory 64MiB --name job", what);
        let mut calls = Calls::start(run.arg(machine.caller()?))?;
        assert_eq!(calls.call("nvmlInit_v2")?, init, "{what}");
        calls.play(START).context(what)?;
        calls.play("cuMemAlloc_v2 &a 64M\ncuMemAlloc_v2 &b 2M -> 2")?;
        for call in [
            "nvmlDeviceGetCount_v2 &count",
            "nvmlDeviceGetHandleByIndex_v2 0 &device",
            "nvmlDeviceGetMemoryInfo_v2 device struct:40:33554472",
            "nvmlDeviceGetComputeRunningProcesses_v3 device &count struct:1024",
            "nvmlDeviceGetUtilizationRates device struct:8",
            "nvmlSystemGetDriverVersion struct:96 96",
            "nvmlShutdown",
        ] {
            let code = calls.number(call).context(what)?;
            ensure!(code <= 999, "{what}: {call} gave {code}");
        }
        calls.play("cuMemFree_v2 a\ncuMemAlloc_v2 &b 64M\ncuMemAlloc_v2 &a 2M -> 2")?;
        calls.end()?;
    }
    Ok(())
}

/// The arbiter itself loses NVML, which tells it the real use. Limits are words in shared memory
/// and hold for jobs that are there; it is reported that nobody can look any more, and nothing new
/// is put on the card.
#[test]
fn row_12_an_arbiter_without_nvml_keeps_all_limits() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    // The arbiter begins with this job, and has its environment. From the third look on it
    // sees nothing.
    let fault = "nvmlDeviceGetComputeRunningProcesses_v3:999:3-,\
                 nvmlDeviceGetComputeRunningProcesses_v2:999:3-";
    let mut run = machine.run("--memory 1GiB --name job");
    let run = run.arg(machine.caller()?).env("SUBLET_FAKE_FAULT", fault);
    let mut calls = Calls::start(run)?;
    calls.play(START)?;
    calls.play("cuMemAlloc_v2 &a 600M")?;
    until("it to be said", || {
        let top = machine.top()?;
        ensure!(number(&top["counters"]["unreadable"])? > 5, "{top}");
        ensure!(top["gpus"][0]["problem"].is_string(), "{top}");
        Ok(())
    })?;
    calls.play(
        "
        cuMemAlloc_v2 &b 424M
        cuMemAlloc_v2 &c 2M -> 2
        cuMemFree_v2 a
        cuMemAlloc_v2 &a 601M -> 2
        cuMemAlloc_v2 &a 300M
        ",
    )?;
    assert_eq!(machine.tenant("job")?["usedMiB"], 724);
    let refused = Running::start(&mut machine.job("--memory 1GiB --no-wait", "info"))?.end()?;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.errors.contains("unhealthy"), "{refused:?}");
    calls.end()?;
    until("an empty machine", || {
        let top = machine.top()?;
        ensure!(top["jobs"] == json!([]), "{top}");
        Ok(())
    })
}
