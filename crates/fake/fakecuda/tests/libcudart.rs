//! NVIDIA's own CUDA runtime (libcudart) on the fake driver. It is proprietary and not part of
//! this repository: `SUBLET_TEST_LIBCUDART` names a `libcudart.so` of the package
//! `nvidia-cuda-runtime`; without it there is nothing to run.
//!
//! Before it does anything, libcudart makes sure that the driver is NVIDIA's own
//! (`cuGetExportTable`, see `sublet_fakegpu`'s `export_table`). The fake does not answer that. So
//! the test covers everything up to there: the driver is found under its name, all look-ups are
//! answered, and the devices are described. Should a version not ask, or the fake answer one day,
//! the rest of the test runs by itself.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use sublet_driver_api::CUDA;
use sublet_fakegpu::notice;
use sublet_script::{Calls, compile};

const LIBCUDART: &str = "SUBLET_TEST_LIBCUDART";
/// `cudaErrorNotSupported`.
const NOT_SUPPORTED: &str = "801";

/// The library of this package, beside this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folders = own.ancestors().skip(1).take(2);
    let mut files = folders.map(|folder| folder.join("libsublet_fakecuda.so"));
    let found = files.find(|file| file.exists());
    found.expect("cargo builds the library before its tests")
}

/// A program that calls the functions of this file, on no machine.
fn program(file: &Path, folder: &Path) -> Command {
    let program = folder.join("calls");
    compile(&program).unwrap();
    let mut command = Command::new(program);
    command.arg(file).env_remove("SUBLET_FAKE_GPU");
    command
}

#[test]
fn every_declared_function_is_exported_and_callable() {
    let folder = tempfile::tempdir().unwrap();
    let mut calls = Calls::start(&mut program(&library(), folder.path())).unwrap();
    for function in CUDA.iter() {
        let found = calls.call(&format!("where {}", function.symbol)).unwrap();
        assert_ne!(found, "nowhere", "{}", function.symbol);
    }
    let script = "
        cuDriverGetVersion &version
        print version -> 13000
        # No machine, no device.
        cuInit 0 -> 100
        cuCtxSynchronize -> 3
        # Declared, and not made.
        cuGLInit -> 801
        # The plain function, the per-thread twin, and none.
        cuGetProcAddress_v2 \"cuMemAllocAsync &plain 11020 1 &status
        print status -> 0
        cuGetProcAddress_v2 \"cuMemAllocAsync &twin 11020 2 &status
        set none 1
        cuGetProcAddress_v2 \"cuMemAllocAsync &none 11010 0 &status
        print none -> 0
        print status -> 2
        set none 1
        cuGetProcAddress_v2 \"cuNobody &none 13000 0 &status
        print none -> 0
        print status -> 1
        cuGetProcAddress_v2 \"cuMemAlloc &none 13000 8 &status -> 1
        # As NVIDIA's drivers: no twin before CUDA 7, versions without a sign, and no error of the
        # newer form. libcudart's first question is for nothing.
        cuGetProcAddress_v2 \"cuLaunchKernel &none 6050 2 &status
        print none -> 0
        print status -> 2
        cuGetProcAddress_v2 \" &none 0 0 null
        print none -> 0
        cuGetProcAddress_v2 \"cuEventCreateFromEGLSync &none 13000 0 &status
        print none -> 0
        print status -> 1
        set none 1
        cuGetProcAddress \"cuNobody &none 13000 0 -> 500
        print none -> 1
        cuGetProcAddress_v2 \"cuMemAlloc &newest 13000 0 null
        cuGetProcAddress_v2 \"cuMemAlloc &unsigned -1 0 null
        cuGetProcAddress_v2 \"cuMemAllocAsync &both 13000 3 null
        cuGetProcAddress_v2 \"cuMemPrefetchAsync &old 8000 0 &status
        cuGetProcAddress_v2 \"cuMemPrefetchAsync &new 12020 0 &status
    ";
    calls.play(script).unwrap();
    let mut address = |name: &str| {
        let address = calls.number(&format!("print {name}")).unwrap();
        assert_ne!(address, 0, "{name}");
        address
    };
    assert_ne!(address("plain"), address("twin"));
    assert_ne!(address("old"), address("new"));
    assert_eq!(address("newest"), address("unsigned"));
    assert_eq!(address("twin"), address("both"));
}

#[test]
fn a_program_s_starter_hears_that_the_cuda_runtime_is_not_answered() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("notices");
    let listener = UnixDatagram::bind(&place).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut heard = [0; 64];
    let mut command = program(&library(), folder.path());
    let mut calls = Calls::start(command.env(notice::VARIABLE, &place)).unwrap();
    // A table that is there, then twice the test of the driver's integrity.
    let table = |id: &str| format!("cuGetExportTable &table bytes:{id}");
    let given = table("c693336e1121df11a8c368f355d89593");
    assert_eq!(calls.call(&given).unwrap(), "0");
    assert!(listener.recv(&mut heard).is_err());
    let refused = table("d4082055bde6704b8d34ba123c66e1f2");
    for _ in 0..2 {
        assert_eq!(calls.call(&refused).unwrap(), NOT_SUPPORTED);
    }
    calls.end().unwrap();
    let length = listener.recv(&mut heard).unwrap();
    assert_eq!(&heard[..length], notice::CUDA_RUNTIME);
    assert!(listener.recv(&mut heard).is_err(), "it was said twice");
}

#[test]
fn libcudart_finds_the_driver_and_its_devices() {
    let Some(libcudart) = std::env::var_os(LIBCUDART) else {
        println!("skipped: {LIBCUDART} does not name a libcudart.so");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(library(), folder.path().join("libcuda.so.1")).unwrap();
    let trace = folder.path().join("trace");
    let mut command = program(Path::new(&libcudart), folder.path());
    command
        .env("LD_LIBRARY_PATH", folder.path())
        .env("SUBLET_FAKE_ROOT", folder.path())
        .env("SUBLET_FAKE_GPU", "2x16GiB")
        .env("SUBLET_FAKE_TRACE", &trace);
    let mut calls = Calls::start(&mut command).unwrap();
    match calls.call("cudaGetDeviceCount &count").unwrap().as_str() {
        NOT_SUPPORTED => {
            println!("stopped: libcudart wants proof that the driver is NVIDIA's own");
        }
        code => {
            assert_eq!(code, "0");
            use_libcudart(&mut calls);
        }
    }
    calls.end().unwrap();
    let traced = std::fs::read_to_string(&trace).unwrap();
    let count = |what: &str| traced.lines().filter(|line| line.contains(what)).count();
    assert!(
        count("cuGetProcAddress_v2 0") >= 400,
        "{}",
        count("cuGetProcAddress_v2")
    );
    assert_eq!((count("cuInit 0"), count("cuDeviceGetName 0")), (1, 2));
    let failed: Vec<&str> = traced
        .lines()
        .filter(|line| !line.ends_with(" 0") && !line.contains("cuGetExportTable"))
        .filter(|line| !line.starts_with("note: "))
        .collect();
    assert_eq!(failed, [""; 0]);
}

fn use_libcudart(calls: &mut Calls) {
    let free: u64 = (16 << 30) - (482 << 20);
    let script = format!(
        "
        print count -> 2
        cudaMalloc &memory 4096
        set out bytes:0123456789abcdef
        cudaMemcpy memory out 8 1
        set back struct:8
        cudaMemcpy back memory 8 2
        hex back 8 -> 0123456789abcdef
        cudaMemGetInfo &free &total
        print total -> 17179869184
        print free -> {free}
        cudaStreamCreate &stream
        cudaStreamSynchronize stream
        cudaFree memory
        "
    );
    calls.play(&script).unwrap();
}
