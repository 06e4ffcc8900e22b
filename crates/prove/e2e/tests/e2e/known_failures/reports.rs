//! Row 9: what programs ask. An argument that is missing is no reason to crash, and two
//! libraries that are asked the same must say the same.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::json;
use sublet_driver_api::{CUDA, NVML};
use sublet_e2e::one_machine::{Calls, Machine, Running, mib, number};

use crate::known_failures::{EXACT, START, TWO};

/// OptiX wants one of the two numbers, llama.cpp the other; the hook wrote both, one of them to
/// address zero (HAMi-core#234, HAMi-core#321, HAMi-core#333).
#[test]
fn row_09_a_number_that_nobody_wants_is_not_written() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let script = "
        cuMemGetInfo_v2 null null -> 3
        cuInit 0
        cuMemGetInfo_v2 null &total -> 201
        cuDevicePrimaryCtxRetain &ctx 0
        cuCtxSetCurrent ctx
        cuMemGetInfo_v2 null &total
        cuMemGetInfo_v2 &free null
        cuDeviceTotalMem_v2 null 0 -> 1
        cuDeviceTotalMem_v2 &other 9 -> 101
        cuMemAlloc_v2 null 1M -> 1
        cuMemFree_v2 0
        cuMemFree_v2 4711 -> 1
    ";
    let mut direct = machine.direct_calls()?;
    direct.play(script).context("without us")?;
    let both_null = direct.call("cuMemGetInfo_v2 null null")?;
    direct.end()?;
    let mut calls = machine.calls("--memory 256MiB")?;
    calls.play(script).context("in a job")?;
    assert_eq!(calls.call("cuMemGetInfo_v2 null null")?, both_null);
    calls.play("print total -> 268435456\nprint free -> 268435456")?;
    calls.end()
}

/// Functions that, called with zeros, end or forbid something for the calls after them. They are
/// tried last, each in a program of its own.
const LAST: [&str; 8] = [
    "cuCtxDestroy",
    "cuCtxDestroy_v2",
    "cuCtxPopCurrent",
    "cuCtxPopCurrent_v2",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxReset_v2",
];

/// Answer of each function to nothing but zeros.
fn answers_to_zeros(
    calls: &mut Calls,
    names: &[&'static str],
) -> Result<BTreeMap<&'static str, String>> {
    let mut answers = BTreeMap::new();
    for name in names {
        let answer = calls
            .call(name)
            .with_context(|| format!("{name} ended the program"))?;
        answers.insert(*name, answer);
    }
    Ok(answers)
}

/// The driver's answer, or an equal one. If NVML does not support a function (3), we may say before
/// it that an argument is missing (2), or that the call is forbidden here (4).
fn is_same(ours: &str, drivers: &str) -> bool {
    ours == drivers || drivers == "3" && matches!(ours, "2" | "4")
}

/// Every function of both libraries with nothing but null and zero, in a program with a context:
/// no crash, and the driver's own answer. (A table of what may be null would be the hooks'
/// own; the driver knows.)
#[test]
fn row_09_nothing_but_zeros_is_answered_as_the_driver_does() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut names: Vec<&str> = CUDA.iter().map(|row| row.symbol).collect();
    names.retain(|name| !LAST.contains(name));
    names.extend(LAST);
    // It returns a text, and no code.
    let nvml = NVML.iter().map(|row| row.symbol);
    let mut nvml: Vec<&str> = nvml.filter(|name| *name != "nvmlErrorString").collect();
    nvml.retain(|name| *name != "nvmlShutdown");
    for (names, start) in [(names, START), (nvml, "nvmlInit_v2")] {
        let mut direct = machine.direct_calls()?;
        direct.play(start)?;
        let expected = answers_to_zeros(&mut direct, &names).context("without us")?;
        direct.end()?;
        let mut calls = machine.calls("--memory 256MiB")?;
        calls.play(start)?;
        let answers = answers_to_zeros(&mut calls, &names).context("in a job")?;
        calls.end()?;
        let differ = |name: &&&str| !is_same(&answers[**name], &expected[**name]);
        let wrong: Vec<String> = names
            .iter()
            .filter(differ)
            .map(|name| format!("{name}: {}, not {}", answers[name], expected[name]))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        println!("{} functions", names.len());
    }
    Ok(())
}

/// A server that plans with NVML's total and allocates by CUDA's took more than it had: it read
/// the card's from one and its own from the other (HAMi-core#181).
#[test]
fn row_09_both_libraries_say_the_same_of_memory() -> Result<()> {
    let Some(machine) = Machine::new(TWO)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 1GiB --gpus 2 --name job")?;
    calls.play("cuInit 0\nnvmlInit_v2\nset memory struct:40:33554472")?;
    for card in 0..2 {
        calls.play(&format!(
            "
            cuDevicePrimaryCtxRetain &ctx {card}
            cuCtxSetCurrent ctx
            set uuid struct:64
            cuDeviceGetPCIBusId uuid 64 {card}
            nvmlDeviceGetHandleByPciBusId_v2 uuid &device
            "
        ))?;
        let mut sum = 0;
        for taken in [0, 300, 100, 600] {
            sum += taken;
            takes_and_both_agree(&mut calls, card, taken, sum)?;
        }
    }
    let row = machine.tenant("job")?;
    for card in 0..2 {
        assert_eq!(number(&row["perGpu"][card]["usedMiB"])?, 1000, "{row}");
    }
    calls.end()?;
    let report = machine.report("--memory 50%", "info --nvml --memory")?;
    let device = &report["devices"][0];
    let nvml = &report["nvml"]["devices"][0]["memory"];
    assert_eq!(device["totalMem"], mib(8192), "{report}");
    assert_eq!(
        device["memory"],
        json!({"free": mib(8192), "total": mib(8192)}),
        "{report}"
    );
    assert_eq!(
        (&nvml["total"], &nvml["free"]),
        (&json!(mib(8192)), &json!(mib(8192))),
        "{report}"
    );
    Ok(())
}

/// Takes so many MiB, if any, and has taken `sum` of 1024 MiB with them.
fn takes_and_both_agree(calls: &mut Calls, card: u64, taken: u64, sum: u64) -> Result<()> {
    let take = if taken == 0 {
        String::new()
    } else {
        format!("cuMemAlloc_v2 &a{taken} {taken}M")
    };
    calls.play(&format!(
        "
        {take}
        cuMemGetInfo_v2 &free &total
        cuDeviceTotalMem_v2 &whole {card}
        nvmlDeviceGetMemoryInfo_v2 device memory
        print total -> 1073741824
        print whole -> 1073741824
        word memory 8 -> 1073741824
        word memory 12 -> 0
        "
    ))?;
    let free = calls.number("print free")?;
    // nvmlMemory_v2_t: version, total, reserved, free, used.
    let reserved = calls.number("word memory 16")?;
    let nvml_free = calls.number("word memory 24")?;
    let nvml_used = calls.number("word memory 32")?;
    assert_eq!(
        (free, nvml_used),
        (nvml_free, mib(1024) - free),
        "{card} {taken}"
    );
    assert_eq!(reserved, 0, "{card} {taken}");
    assert_eq!(free, mib(1024 - sum), "{card} {taken}");
    Ok(())
}

/// Numbers below zero were told as 17 TiB (HAMi#1181): a job above its limit has nothing free.
#[test]
fn row_09_a_job_above_its_limit_has_nothing_free_and_not_less() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 1GiB --name job")?;
    calls.play(START)?;
    calls.play(
        "
        cuMemAlloc_v2 &a 700M
        nvmlInit_v2
        nvmlDeviceGetHandleByIndex_v2 0 &device
        ",
    )?;
    let lowered = Running::start(&mut machine.sublet("limit job --memory 512MiB"))?.end()?;
    assert_eq!(lowered.code, Some(0), "{lowered:?}");
    calls.play(
        "
        cuMemGetInfo_v2 &free &total
        print free -> 0
        print total -> 536870912
        set memory struct:24
        nvmlDeviceGetMemoryInfo device memory
        word memory 0 -> 536870912
        word memory 8 -> 0
        word memory 12 -> 0
        word memory 20 -> 0
        ",
    )?;
    calls.end()
}
