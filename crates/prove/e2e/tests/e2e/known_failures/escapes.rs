//! Row 11: a new PyTorch found the driver's functions in a new way, and no limit held for it any
//! more, without a word. And libraries that an older image cannot load.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sublet_driver_api::{CUDA, Thread};
use sublet_e2e::one_machine::Machine;

use crate::known_failures::EXACT;

/// Functions that take memory, give it, tell of it, or make a card work, by base name. The list
/// comes from reading the headers, not from the list of the hooks. A star stands for all names with
/// that beginning.
const WATCHED: [&str; 48] = [
    "cuInit",
    "cuGetProcAddress",
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemAllocManaged",
    "cuMemFree",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolTrimTo",
    "cuMemPoolSetAttribute",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemRetainAllocationHandle",
    "cuMemMapArrayAsync",
    "cuMemImportFromShareableHandle",
    "cuArrayCreate",
    "cuArray3DCreate",
    "cuArrayDestroy",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    "cuGraphAddMemAllocNode",
    "cuGraphAddNode",
    "cuGraphInstantiate*",
    "cuGraphExecDestroy",
    "cuGraphLaunch",
    "cuDeviceGraphMemTrim",
    "cuImportExternalMemory",
    "cuDestroyExternalMemory",
    "cuCtxCreate",
    "cuCtxDestroy",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease",
    "cuDevicePrimaryCtxReset",
    "cuGreenCtxCreate",
    "cuMemGetInfo",
    "cuDeviceTotalMem",
    "cuLaunchKernel*",
    "cuLaunchCooperativeKernel*",
    "cuLaunchGrid*",
    "cuMemcpy*",
    "cuMemset*",
    "cuMemPrefetchAsync",
    "cuMemBatchDecompressAsync",
];

fn is_watched(base: &str) -> bool {
    WATCHED
        .iter()
        .any(|watched| match watched.strip_suffix('*') {
            Some(begin) => base.starts_with(begin),
            None => base == *watched,
        })
}

/// PyTorch 2.1 and later look functions up by `cuGetProcAddress_v2` and launch by
/// `cuLaunchKernelEx`; a hook of `dlsym` saw neither (nvshare#11, nvshare#14, nvshare#26). Every
/// version and twin of a function that matters leads to us, whichever look-up finds it, before
/// `cuInit` and after; a function that does not matter is the driver's own, at no cost.
#[test]
fn row_11_nothing_that_matters_escapes_a_look_up() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut calls = machine.calls("--memory 256MiB")?;
    let ours = calls.call("where cuMemAlloc_v2")?;
    assert!(ours.ends_with("/libcuda.so.1"), "{ours}");
    let (mut n_ours, mut n_theirs, mut escaped) = (0, 0, BTreeSet::new());
    for round in ["before", "after"] {
        for row in CUDA.iter() {
            let is_twin = row.thread != Thread::Legacy;
            // The version that has it first, those after it, the newest, and -1.
            for version in [row.version, row.version + 10, 13_000, 13_050, u32::MAX] {
                for flags in if is_twin { [2, 2] } else { [0, 1] } {
                    let v2 = format!("cuGetProcAddress_v2 \"{} &f {version} {flags} &s", row.base);
                    let v1 = format!("cuGetProcAddress \"{} &f {version} {flags}", row.base);
                    for look_up in [v2, v1] {
                        if calls.call(&look_up)? != "0" || calls.call("print f")? == "0" {
                            continue; // newer than this driver
                        }
                        let found = calls.call("where @f")?;
                        match (found == ours, is_watched(row.base)) {
                            (true, _) => n_ours += 1,
                            (false, false) => n_theirs += 1,
                            (false, true) => {
                                escaped.insert(format!("{round}: {look_up}"));
                            }
                        }
                    }
                }
            }
        }
        calls.play("cuInit 0")?;
    }
    assert!(escaped.is_empty(), "{escaped:#?}");
    println!("{n_ours} look-ups gave our function, {n_theirs} the driver's own");
    assert!(n_ours > 1000 && n_theirs > 1000, "{n_ours}, {n_theirs}");
    calls.end()
}

fn said(tool: &str, option: &str, file: &Path) -> Result<String> {
    let output = Command::new(tool).arg(option).arg(file).output()?;
    ensure!(output.status.success(), "{tool} {}", file.display());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A symbol that a library wants, or has: its name and the version of glibc.
fn versions(file: &Path, is_wanted: bool) -> Result<Vec<(String, (u32, u32))>> {
    let table = said("objdump", "-T", file)?;
    let mut found = Vec::new();
    for line in table
        .lines()
        .filter(|line| line.contains("*UND*") == is_wanted)
    {
        // What is only used where it is there: after the address, `w` for weak.
        let is_weak = line.split_whitespace().nth(1) == Some("w");
        let Some((_, rest)) = line
            .split_once("GLIBC_")
            .filter(|_| !(is_wanted && is_weak))
        else {
            continue;
        };
        let (version, name) = rest
            .split_once([')', ' '])
            .context("a name after a version")?;
        let numbers: Vec<u32> = version.split('.').filter_map(|n| n.parse().ok()).collect();
        if let [major, minor, ..] = numbers[..] {
            found.push((name.trim_matches([')', ' ']).to_owned(), (major, minor)));
        }
    }
    ensure!(!found.is_empty(), "{}: no symbol of glibc", file.display());
    Ok(found)
}

/// The oldest glibc that must load us.
const FLOOR: (u32, u32) = (2, 28);

/// Newer than that, and brought by the linker of the portable build: before 2.33 they were
/// macros around others.
const BROUGHT: [&str; 6] = ["stat", "stat64", "fstat", "fstat64", "lstat", "lstat64"];

/// A library that was built on a new system could not be loaded in the image of PyTorch 1.9: it
/// wanted GLIBC_2.32 (nvshare#26). The libraries of a release are checked by `cargo xtask
/// libraries`, where they are built; here it is seen that the code asks for nothing that an old
/// glibc lacks under any version, so that those of every build could be.
#[test]
fn row_11_the_libraries_ask_for_nothing_that_an_old_glibc_lacks() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let folders = ["/lib/x86_64-linux-gnu", "/lib64", "/usr/lib"].map(PathBuf::from);
    let Some(folder) = folders
        .iter()
        .find(|folder| folder.join("libc.so.6").is_file())
    else {
        println!("skipped: there is no libc.so.6 where it is usually");
        return Ok(());
    };
    let parts = ["libc.so.6", "ld-linux-x86-64.so.2", "libm.so.6"];
    let mut old = BTreeSet::new();
    for part in parts.map(|part| folder.join(part)) {
        if part.is_file() {
            let all = versions(&part, false)?;
            old.extend(
                all.into_iter()
                    .filter(|(_, since)| *since <= FLOOR)
                    .map(|(name, _)| name),
            );
        }
    }
    assert!(
        old.contains("dlopen") || old.contains("malloc"),
        "{} names",
        old.len()
    );
    for library in [
        "libsublet_cuda.so",
        "libsublet_nvml.so",
        "libsublet_preload.so",
    ] {
        let wanted = versions(&machine.built(library), true)?;
        let newer: Vec<&String> = wanted
            .iter()
            .map(|(name, _)| name)
            .filter(|name| !old.contains(*name) && !BROUGHT.contains(&name.as_str()))
            .collect();
        assert!(newer.is_empty(), "{library} wants {newer:?}");
    }
    Ok(())
}
