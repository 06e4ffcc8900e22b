//! `cuInit`: a library that the driver loads there, and what the driver is told of MPS.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use sublet_script::cc_text;

use crate::support::arbiter::{FakeArbiter, grant};
use crate::support::{Program, command, eventually, file, tenant};

/// Takes all memory that it gets, while the driver waits for it.
const INJECTED: &str = "
typedef unsigned long long u64;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(u64 *, int), cuCtxSetCurrent(u64);
int cuMemAlloc_v2(u64 *, u64);
int InitializeInjection(void) {
  u64 context, address;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 0;
  for (int i = 0; i < 1024 && !cuMemAlloc_v2(&address, 1 << 20); i++);
  return 1;
}
";

fn injected(folder: &Path) -> std::path::PathBuf {
    let library = folder.join("inject.so");
    let driver = file("ours").join("libcuda.so.1");
    let driver = driver.to_str().expect("text");
    let arguments = ["-shared", "-fPIC", driver];
    cc_text(INJECTED, &library, &arguments).expect("a C compiler");
    library
}

/// Its calls come from inside of `cuInit`, as the driver's own would.
#[test]
fn a_library_that_the_driver_loads_is_charged_for_what_it_takes() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = injected(folder.path());
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let mut run = tenant(&arbiter);
    let mut program = Program::start(run.env("CUDA_INJECTION64_PATH", &library));
    program.play(
        Some(&arbiter),
        "
        cuInit 0
        used 0 64M
        cuDevicePrimaryCtxRetain &ctx 0
        cuCtxSetCurrent ctx
        cuMemAlloc_v2 &a 1M -> 2
        ",
    );
    // Without an arbiter it is as if we were not there.
    let mut run = command();
    let mut program = Program::start(run.env("CUDA_INJECTION64_PATH", &library));
    program.play(None, "cuInit 0\ncuDevicePrimaryCtxRetain &ctx 0");
    let used = program.call("fake_used 0");
    assert_eq!(used.parse::<u64>().ok(), Some((1024 + 100) << 20));
}

/// The arbiter finds its answer while the driver is loaded.
#[test]
fn the_arbiter_hears_of_a_process_before_its_driver_is_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    // A file that takes until somebody writes to it.
    let driver = folder.path().join("libcuda.so.580");
    let made = Command::new("mkfifo").arg(&driver).status();
    assert!(made.is_ok_and(|made| made.success()), "no mkfifo");
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let mut run = tenant(&arbiter);
    let mut program = Program::start(run.env("SUBLET_DRIVER_CUDA", &driver));
    program.send("cuInit 0");
    eventually("a hello", || arbiter.hellos().len() == 1);
    let writer = File::options().write(true).open(&driver);
    drop(writer.expect("the program reads it"));
    assert_ne!(program.read(), "0", "an empty file is no driver");
    assert_eq!(arbiter.hellos().len(), 1);
}

/// The terms of MPS that the driver found in `cuInit`, and the program after it.
fn told(arbiter: &FakeArbiter, own: &[(&str, &str)]) -> (String, String) {
    let names = [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    ];
    let mut run = tenant(arbiter);
    for name in names {
        run.env_remove(name);
    }
    let mut program = Program::start(run.envs(own.iter().copied()));
    program.play(None, "cuInit 0\nlet told fake_told_mps");
    let after = names.map(|name| {
        program.call(&format!("let after getenv \"{name}"));
        program.call("text after")
    });
    let told = program.call("text told").replace("(unset)", "null");
    (told, after.join("|"))
}

/// MPS has a limit from the program's environment: the driver is told ours, or a lower one of the
/// program's, in `cuInit` and later.
#[test]
fn the_driver_is_told_the_job_s_limit_of_mps() {
    let arbiter = FakeArbiter::start(&grant(&[(0, 64 << 20)]));
    let [percent, pipe, by_context] = [
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    ];
    let hostile = [(percent, "100"), (pipe, "/nowhere"), (by_context, "1")];
    let own = "100|/nowhere|1".to_owned();
    // Where MPS keeps no limit of ours, nothing is told.
    assert_eq!(told(&arbiter, &hostile), (own.clone(), own));
    arbiter.set_mps_percent(Some(30));
    let ours = arbiter.folder().join("mps/pipe");
    fs::create_dir_all(&ours).expect("a folder");
    let ours = ours.display();
    for (own, percent) in [(&[][..], 30), (&hostile, 30), (&[(percent, "10")], 10)] {
        let terms = format!("{percent}|{ours}|null");
        assert_eq!(told(&arbiter, own), (terms.clone(), terms), "{own:?}");
    }
}
