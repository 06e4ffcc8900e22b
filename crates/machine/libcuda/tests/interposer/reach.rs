//! Every way in which a program reaches the driver's functions, and that it finds all of them.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::support::arbiter::{FakeArbiter, TenantGrant, grant};
use crate::support::{Program, command, eventually, file, library, tenant};
use sublet_driver_api::{CUDA, CUDA_UNDECLARED};
use sublet_script::cc_text;

fn output_of(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// A program that is linked against the driver is not started if one name is missing; one name
/// too many (`dlsym`, as others override) and we stand in everybody's way.
#[test]
fn the_library_exports_every_function_and_nothing_else() {
    let symbols = output_of(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library()),
    );
    let exported: BTreeSet<&str> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    let mut expected: BTreeSet<&str> = CUDA.iter().map(|row| row.symbol).collect();
    expected.extend(CUDA_UNDECLARED);
    expected.extend(["sublet_interposer", "sublet_progress"]);
    let missing: Vec<_> = expected.difference(&exported).collect();
    let more: Vec<_> = exported.difference(&expected).collect();
    assert!(
        missing.is_empty() && more.is_empty(),
        "missing {missing:?}, more {more:?}"
    );

    let headers = output_of(Command::new("objdump").arg("-p").arg(library()));
    let has = |name: &str, value: &str| {
        headers
            .lines()
            .any(|line| line.trim_start().starts_with(name) && line.ends_with(value))
    };
    assert!(has("SONAME", "libcuda.so.1"), "{headers}");
    // 8: stays loaded when the program closes it.
    let flags = headers
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("FLAGS_1"))
        .and_then(|value| u64::from_str_radix(value.trim().trim_start_matches("0x"), 16).ok());
    assert!(flags.is_some_and(|flags| flags & 8 != 0), "{headers}");
}

pub(crate) const CALLS: &str = r#"
#include <stdint.h>
#include <stdio.h>
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(uint64_t *, int);
int cuCtxSetCurrent(uint64_t);
int cuCtxCreate_v4(uint64_t *, void *, unsigned, int);
int cuMemAlloc_v2(uint64_t *, uint64_t);
int cuMemAllocAsync(uint64_t *, uint64_t, uint64_t);
int cuMemFreeAsync(uint64_t, uint64_t);
int cuMemGetInfo_v2(uint64_t *, uint64_t *);
int main(void) {
    uint64_t context, own, a, b, free, total;
    int results[8] = { cuInit(0), cuDevicePrimaryCtxRetain(&context, 0), cuCtxSetCurrent(context),
        cuMemAlloc_v2(&a, 40 << 20), cuMemAlloc_v2(&b, 40 << 20), cuMemAllocAsync(&b, 4 << 20, 0),
        cuMemGetInfo_v2(&free, &total), cuCtxCreate_v4(&own, 0, 0, 0) };
    for (int i = 0; i < 8; i++) printf("%d ", results[i]);
    printf("%d %d of %d\n", cuMemFreeAsync(b, 0), (int)(free >> 20), (int)(total >> 20));
    return 0;
}
"#;

/// Contexts of 8 MiB, pools in blocks of 4: with 40 asked, 52 of 64 are taken.
pub(crate) const ANSWER: &str = "0 0 0 0 2 0 0 0 0 12 of 64\n";

pub(crate) fn with_contexts() -> TenantGrant {
    let mut grant = grant(&[(0, 64 << 20)]);
    grant.context_bytes = 8 << 20;
    grant
}

/// A program that names the driver when it is linked. Here our library is in the global scope,
/// so the driver's calls of its own functions lead to us: they must not count twice.
#[test]
fn linked_directly() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("p");
    let link = |library: PathBuf| {
        let library = library.to_str().expect("text");
        cc_text(CALLS, &program, &[library]).expect("a C compiler");
    };
    link(file("ours").join("libcuda.so.1"));
    let arbiter = FakeArbiter::start(&with_contexts());
    let mut run = Command::new(&program);
    for (name, value) in tenant(&arbiter).get_envs() {
        match value {
            Some(value) => run.env(name, value),
            None => run.env_remove(name),
        };
    }
    assert_eq!(output_of(&mut run), ANSWER);
    // Linked against the real one, and ours preloaded under its name.
    link(file("driver.so"));
    let arbiter = FakeArbiter::start(&with_contexts());
    run.env("SUBLET_DIR", arbiter.folder())
        .env("LD_PRELOAD", library())
        .env_remove("LD_LIBRARY_PATH");
    assert_eq!(output_of(&mut run), ANSWER);
}

/// `dlopen` by name finds what is preloaded under that SONAME; nothing else is needed.
#[test]
fn opened_by_name_when_preloaded() {
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let mut program = Program::start(
        tenant(&arbiter)
            .env_remove("LD_LIBRARY_PATH")
            .env("LD_PRELOAD", library()),
    );
    program.play(
        Some(&arbiter),
        "
        cuInit 0
        cuDevicePrimaryCtxRetain &ctx 0
        cuCtxSetCurrent ctx
        cuMemAllocAsync &a 1M 0
        used 0 4M
        cuCtxCreate_v4 &own null 0 0
        cuMemFreeAsync a 0
        ",
    );
}

/// Our file in the driver's own place, as a mount puts it: the driver is then found by its
/// versioned name beside it, with no variable that names it.
#[test]
fn mounted_over_the_driver() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::copy(library(), at("libcuda.so.1")).expect("a copy");
    fs::copy(file("driver.so"), at("libcuda.so.580.65.06")).expect("a copy");
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let mut program = Program::start(
        tenant(&arbiter)
            .env("LD_LIBRARY_PATH", folder.path())
            .env_remove("SUBLET_DRIVER_CUDA")
            .env("FAKE_DRIVER", at("libcuda.so.580.65.06")),
    );
    program.play(
        Some(&arbiter),
        "
        cuInit 0
        cuDevicePrimaryCtxRetain &ctx 0
        cuCtxSetCurrent ctx
        cuMemAlloc_v2 &a 40M
        cuMemAlloc_v2 &b 40M -> 2
        fake_used 0 -> 146800640
        ",
    );
}

/// Another copy of our library, met where the driver is looked for, is not taken for it.
#[test]
fn a_copy_of_ours_is_not_the_driver() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("libcuda.so.1");
    fs::copy(library(), &copy).expect("a copy");
    let mut program = Program::start(command().env("SUBLET_DRIVER_CUDA", &copy));
    assert_eq!(program.call("cuInit 0"), "34");
    program.call("cuGetErrorString 34 &why");
    let why = program.call("text why");
    assert!(why.contains("(is Sublet's own)"), "{why}");
}

/// The guest's manners: nothing on the terminal, no signal handled, one quiet thread.
#[test]
fn the_program_notices_nothing() {
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let mut program = Program::start(&mut tenant(&arbiter));
    program.play(
        Some(&arbiter),
        "
        cuInit 0
        cuDevicePrimaryCtxRetain &ctx 0
        cuCtxSetCurrent ctx
        cuMemAlloc_v2 &a 65M -> 2
        cuMemAlloc_v2 null 1M -> 1
        ",
    );
    let status = |task: &str| {
        let path = format!("/proc/{}/task/{task}/status", program.pid());
        fs::read_to_string(path).expect("a thread")
    };
    let field = |text: &str, name: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .expect("a field");
        u64::from_str_radix(line.trim_start_matches(':').trim(), 16).expect("a mask")
    };
    let comm = |task: &str| fs::read_to_string(format!("/proc/{}/task/{task}/comm", program.pid()));
    let tasks = || -> Vec<String> {
        let threads = fs::read_dir(format!("/proc/{}/task", program.pid())).expect("threads");
        threads
            .map(|task| {
                task.expect("a thread")
                    .file_name()
                    .into_string()
                    .expect("a number")
            })
            .collect()
    };
    let ours = ["sublet\n", "sublet-gate\n"];
    eventually("the threads have their names", || {
        let names: Vec<_> = tasks().iter().flat_map(|task| comm(task)).collect();
        ours.iter().all(|own| names.iter().any(|name| name == own))
    });
    let tasks = tasks();
    assert_eq!(tasks.len(), 3, "the program's thread and ours");
    for task in &tasks {
        let text = status(task);
        // libc has a handler of its own (33) in every program with threads.
        assert_eq!(field(&text, "SigCgt") & !(1 << 32), 0, "no handlers");
        let is_ours = text.starts_with("Name:\tsublet");
        // All but the two that cannot be blocked, and the two that threads themselves need.
        let blocked = field(&text, "SigBlk");
        assert_eq!(is_ours, blocked.count_ones() > 50, "{blocked:x}");
    }
    assert_eq!(program.end(), "", "what it said on standard error");
}
