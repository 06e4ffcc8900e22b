//! Row 1: a driver or toolkit that is newer, or older, than the one it was all tried with.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;
use sublet_driver_api::{CUDA, NVML, Table};
use sublet_e2e::one_machine::{Calls, Machine, Running, mib};

use crate::known_failures::{EXACT, START};

/// Functions that the stand-in of libcuda has itself, and so does not take from the fake.
const OWN: [&str; 2] = ["cuDriverGetVersion", "cuInit"];
const OWN_LOOK_UPS: [&str; 2] = ["cuGetProcAddress", "cuGetProcAddress_v2"];
pub(crate) const OWN_OF_NVML: [&str; 2] = ["nvmlInitWithFlags", "nvmlInit_v2"];

/// Builds a driver that has these functions of the fake one.
pub(crate) fn driver(
    machine: &Machine,
    name: &str,
    functions: &[&str],
    macros: &[&str],
) -> Result<PathBuf> {
    let mut list = String::new();
    for function in functions {
        writeln!(list, "FORWARD({function})")?;
    }
    let file = machine.path().join(format!("{name}.h"));
    std::fs::write(&file, list)?;
    let behind = if macros.contains(&"-DCUDA") {
        "libsublet_fakecuda.so"
    } else {
        "libsublet_fakenvml.so"
    };
    let quoted = |what: &str, path: &Path| format!("-D{what}=\"{}\"", path.display());
    let more = [
        quoted("FUNCTIONS", &file),
        quoted("BEHIND", &machine.built(behind)),
    ];
    let mut arguments = vec!["-shared", "-fPIC", "-O1"];
    arguments.extend(macros);
    arguments.extend(more.iter().map(String::as_str));
    arguments.push("-ldl");
    machine.compile_as(name, "other_driver.c", &arguments)
}

/// The names of a table but for these.
pub(crate) fn all_but(table: &'static Table, own: &[&[&str]]) -> Vec<&'static str> {
    let symbols = table.iter().map(|row| row.symbol);
    symbols
        .filter(|symbol| !own.iter().any(|list| list.contains(symbol)))
        .collect()
}

fn newer_driver(machine: &Machine, version: u32) -> Result<PathBuf> {
    let functions = all_but(&CUDA, &[&OWN, &OWN_LOOK_UPS]);
    let version_macro = format!("-DVERSION={version}");
    let macros = ["-DCUDA", "-DLOOK_UP", &version_macro];
    driver(machine, &format!("newer-{version}.so"), &functions, &macros)
}

/// A job whose programs find another driver.
fn job(machine: &Machine, flags: &str, driver: &Path) -> std::process::Command {
    machine.run_told(flags, &format!("SUBLET_DRIVER_CUDA={}", driver.display()))
}

/// R570 made initialisation hang, R590 with CUDA 13.1 made it crash: the hooks expected the
/// driver that they were written for (HAMi-core#52, HAMi-core#59, HAMi#1834, Olares#2687).
#[test]
fn row_01_a_driver_newer_than_our_tables_starts_and_the_limit_holds() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    for version in [13_090, 14_000, 99_990] {
        let driver = newer_driver(&machine, version)?;
        for reach in ["linked", "lookup", "lookup --per-thread"] {
            let mut run = job(&machine, "--memory 256MiB", &driver);
            run.arg(machine.built("sublet-workload"));
            run.args("alloc --until-oom --reach".split(' '));
            let report = Running::start(run.args(reach.split(' ')))?
                .end()?
                .report()?;
            assert_eq!(report["driverVersion"], version, "{reach}: {report}");
            assert_eq!(report["bytes"], mib(256), "{version} {reach}: {report}");
            assert_eq!(report["totalMem"], mib(256), "{version} {reach}: {report}");
        }
    }
    Ok(())
}

/// A new toolkit asks for functions that nobody knew, and for new versions of known ones. They are
/// counted. A function that could take memory or time is not given to a strict job, and every other
/// function works as if we were not there (HAMi#1834, Olares#2687).
#[test]
fn row_01_names_and_versions_that_nobody_knew_are_counted() -> Result<()> {
    for (mode, future) in [("strict", "500"), ("compat", "0")] {
        let Some(machine) = Machine::new(EXACT)? else {
            return Ok(());
        };
        let driver = newer_driver(&machine, 14_000)?;
        let flags = format!("--memory 256MiB --name job --{mode}");
        let mut calls = Calls::start(job(&machine, &flags, &driver).arg(machine.caller()?))?;
        // Before cuInit, as the CUDA runtime does it.
        for name in [
            "cuMemAllocTiered",
            "cuLaunchKernelSoon",
            "cuGraphLaunchTwice",
            "cuArrayFold",
            "cuMemAlloc",
        ] {
            let call = format!("cuGetProcAddress_v2 \"{name} &f 14000 0 &status");
            assert_eq!(calls.call(&call)?, "0", "{mode} {name}");
            let call = format!("cuGetProcAddress \"{name} &g 14000 0");
            assert_eq!(calls.call(&call)?, future, "{mode} {name}");
            let is_there = calls.number("print f")? != 0 && calls.number("print g")? != 0;
            assert_eq!(is_there, future == "0", "{mode} {name}");
        }
        calls.play(
            "
            cuGetProcAddress_v2 \"cuTensorDream &f 14000 0 &status
            @f
            # It is what it was, and so is the version that programs of today ask for.
            cuGetProcAddress_v2 \"cuMemFree &free 14000 0 &status
            cuGetProcAddress_v2 \"cuMemAlloc &alloc 13000 0 &status
            where cuMemAllocTiered -> nowhere
            ",
        )?;
        let ours = calls.call("where cuMemFree_v2")?;
        assert!(ours.ends_with("/libcuda.so.1"), "{ours}");
        assert_eq!(calls.call("where @free")?, ours);
        assert_eq!(calls.call("where @alloc")?, ours);
        calls.play(START)?;
        calls.play("@alloc &a 256M\n@alloc &b 2M -> 2\n@free a\n@alloc &b 2M")?;
        let row = machine.tenant("job")?;
        assert_eq!(row["unknownNames"], 10, "{mode}: {row}");
        assert_eq!(row["usedMiB"], 2, "{mode}: {row}");
        calls.end()?;
    }
    Ok(())
}

/// A driver of CUDA 11.2: no `cuGetProcAddress`, no new UUIDs, no requirements of arrays. What
/// is missing says so when it is called, and nobody crashes for it (HAMi#27).
#[test]
fn row_01_a_driver_that_lacks_functions_starts_and_the_limit_holds() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let old = |symbol: &&str| {
        CUDA.by_symbol(symbol)
            .is_some_and(|row| row.version <= 11_020)
    };
    let mut functions = all_but(&CUDA, &[&OWN, &OWN_LOOK_UPS]);
    functions.retain(old);
    let macros = ["-DCUDA", "-DVERSION=11020"];
    let driver = driver(&machine, "older.so", &functions, &macros)?;
    for path in ["plain", "vmm", "array", "async"] {
        let mut run = job(&machine, "--memory 256MiB", &driver);
        run.arg(machine.built("sublet-workload"));
        run.args(["alloc", "--until-oom", "--hold", "stdin", "--path", path]);
        run.args(["--reach", "libcuda.so.1"]);
        let mut job = Running::start(&mut run)?;
        let report = job.report()?;
        assert_eq!(machine.card(0)?.used, mib(256), "{path}: {report}");
        job.end()?;
    }
    let mut calls = job(&machine, "--memory 256MiB", &driver);
    let mut calls = Calls::start(calls.arg(machine.caller()?))?;
    calls.play(START)?;
    calls.play(
        "
        cuGetProcAddress_v2 \"cuMemAlloc &f 11020 0 null -> 801
        cuGetProcAddress \"cuMemAlloc &f 11020 0 -> 801
        cuGraphInstantiateWithFlags &x 0 0 -> 801
        cuLibraryLoadData &l null null null 0 null null 0 -> 801
        cuMemAlloc_v2 &a 256M
        cuMemAlloc_v2 &b 2M -> 2
        ",
    )?;
    calls.end()
}

/// NVML's functions call each other by their exported names. In R570 `nvmlInit_v2` began to call
/// `nvmlInitWithFlags`, whose hook called `nvmlInit_v2` (HAMi-core#59).
#[test]
fn row_01_a_management_library_whose_functions_call_each_other_starts() -> Result<()> {
    let Some(machine) = Machine::new("2x16GiB,context=0MiB")? else {
        return Ok(());
    };
    let newer = all_but(&NVML, &[&OWN_OF_NVML]);
    // What a library of the year 2018 has of it.
    let mut older = newer.clone();
    older.retain(|symbol| {
        let row = NVML.by_symbol(symbol);
        row.is_some_and(|row| row.version == 1) || symbol.ends_with("GetHandleByIndex_v2")
    });
    older.push("nvmlDeviceGetCount_v2");
    for (name, functions) in [("newer.so", &newer), ("older.so", &older)] {
        let nvml = driver(&machine, &format!("nvml-{name}"), functions, &[])?;
        let nvml = format!("SUBLET_DRIVER_NVML={}", nvml.display());
        let mut run = machine.run_told("--memory 256MiB --name job", &nvml);
        let mut calls = Calls::start(run.arg(machine.caller()?))?;
        calls.play(START)?;
        calls.play(
            "
            cuMemAlloc_v2 &a 64M
            nvmlInit_v2
            nvmlInitWithFlags 0
            nvmlDeviceGetCount_v2 &count
            print count -> 1
            nvmlDeviceGetHandleByIndex_v2 0 &device
            set memory struct:24
            nvmlDeviceGetMemoryInfo device memory
            word memory 0 -> 268435456
            word memory 16 -> 67108864
            ",
        )?;
        // What the older one has not, it says that it has not.
        let newest = calls.call("nvmlDeviceGetRunningProcessDetailList device null")?;
        assert!(["2", "13"].contains(&newest.as_str()), "{name}: {newest}");
        calls.play("nvmlShutdown\nnvmlShutdown\ncuMemAlloc_v2 &b 256M -> 2")?;
        assert_eq!(
            machine.tenant("job")?["pids"].as_array().map(Vec::len),
            Some(1)
        );
        calls.end()?;
    }
    assert_eq!(machine.top()?["counters"]["garbage"], json!(0));
    Ok(())
}
