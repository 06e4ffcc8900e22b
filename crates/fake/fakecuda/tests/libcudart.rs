//! NVIDIA's own CUDA runtime on the fake driver. It is proprietary and not part of
//! this repository: `SUBLET_TEST_LIBCUDART` names a `libcudart.so` of the package
//! `nvidia-cuda-runtime`; without it there is nothing to run.
//!
//! Before it does anything, libcudart makes sure that the driver is NVIDIA's own
//! (`cuGetExportTable`, see `sublet_fakegpu`'s `export_table`). The fake does not answer that. So
//! the test covers everything up to there: the driver is found under its name, all look-ups are
//! answered, and the devices are described. Should a version not ask, or the fake answer one day,
//! the rest of the test runs by itself.
#![expect(unsafe_code, reason = "calls C libraries")]

use std::ffi::{CString, c_void};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBCUDART: &str = "SUBLET_TEST_LIBCUDART";
const INSIDE: &str = "SUBLET_TEST_INSIDE";
/// The longest that the process with libcudart may take.
const LIMIT_S: u32 = 120;
/// `cudaErrorNotSupported`.
const NOT_SUPPORTED: i32 = 801;

/// The library of this package, beside this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folders = own.ancestors().skip(1).take(2);
    let mut files = folders.map(|folder| folder.join("libsublet_fakecuda.so"));
    let found = files.find(|file| file.exists());
    found.expect("cargo builds the library before its tests")
}

/// A library, loaded for ever.
struct Loaded(*mut c_void);

impl Loaded {
    fn open(path: &Path) -> Loaded {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: loads a library, whose constructors are trusted as the test's own code.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!handle.is_null(), "cannot load {path:?}");
        Loaded(handle)
    }

    fn find(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the handle is open.
        unsafe { libc::dlsym(self.0, name.as_ptr()) }
    }
}

/// An address of code as a function of a type.
fn cast<F: Copy>(address: *mut c_void) -> F {
    assert_eq!(size_of::<F>(), size_of_val(&address));
    // SAFETY: the tests name the types that the headers declare.
    unsafe { std::mem::transmute_copy(&address) }
}

macro_rules! call {
    ($library:expr, $name:literal $(, $argument:expr => $type:ty)*) => {{
        let function = $library.find($name);
        assert!(!function.is_null(), $name);
        let function = cast::<extern "C" fn($($type),*) -> i32>(function);
        function($($argument),*)
    }};
}

#[test]
fn every_declared_function_is_exported_and_callable() {
    let driver = Loaded::open(&library());
    for function in sublet_driver_api::CUDA.iter() {
        assert!(
            !driver.find(function.symbol).is_null(),
            "{}",
            function.symbol
        );
    }
    // SAFETY: no other thread of this test reads the environment meanwhile.
    unsafe { std::env::remove_var("SUBLET_FAKE_GPU") };
    let mut version = 0;
    assert_eq!(
        call!(driver, "cuDriverGetVersion", &raw mut version => *mut i32),
        0
    );
    assert_eq!(version, 13_000);
    assert_eq!(
        call!(driver, "cuInit", 0 => u32),
        100,
        "no machine, no device"
    );
    assert_eq!(call!(driver, "cuCtxSynchronize"), 3);
    assert_eq!(call!(driver, "cuGLInit"), 801, "declared, and not made");
    // The per-thread twin, the plain function, and none.
    let look_up = |name: &str, version: i32, flags: u64| {
        let name = CString::new(name).unwrap();
        let (mut address, mut status) = (std::ptr::null_mut::<c_void>(), 9_u32);
        let code = call!(driver, "cuGetProcAddress_v2", name.as_ptr() => *const i8,
            &raw mut address => *mut *mut c_void, version => i32, flags => u64, &raw mut status => *mut u32);
        (code, address, status)
    };
    let (code, plain, status) = look_up("cuMemAllocAsync", 11_020, 1);
    assert_eq!((code, status, plain.is_null()), (0, 0, false));
    assert_ne!(look_up("cuMemAllocAsync", 11_020, 2).1, plain);
    assert_eq!(
        look_up("cuMemAllocAsync", 11_010, 0),
        (0, std::ptr::null_mut(), 2)
    );
    assert_eq!(look_up("cuNobody", 13_000, 0), (0, std::ptr::null_mut(), 1));
    assert_eq!(look_up("cuMemAlloc", 13_000, 8).0, 1);
    assert_ne!(
        look_up("cuMemPrefetchAsync", 8000, 0).1,
        look_up("cuMemPrefetchAsync", 12_020, 0).1
    );
}

#[test]
fn libcudart_finds_the_driver_and_its_devices() {
    const NAME: &str = "libcudart_finds_the_driver_and_its_devices";
    let Some(libcudart) = std::env::var_os(LIBCUDART) else {
        println!("skipped: {LIBCUDART} does not name a libcudart.so");
        return;
    };
    if std::env::var_os(INSIDE).is_some() {
        return use_libcudart(&Loaded::open(Path::new(&libcudart)));
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(library(), folder.path().join("libcuda.so.1")).unwrap();
    let trace = folder.path().join("calls");
    let mut command = Command::new(std::env::current_exe().unwrap());
    let limit = || {
        // SAFETY: takes a number, and sets an alarm that outlives exec: the kernel ends a
        // process that hangs.
        unsafe { libc::alarm(LIMIT_S) };
        Ok(())
    };
    // SAFETY: between fork and exec there is that one system call.
    unsafe { command.pre_exec(limit) };
    let output = command
        .args(["--exact", NAME, "--nocapture"])
        .env(INSIDE, "1")
        .env("LD_LIBRARY_PATH", folder.path())
        .env("SUBLET_FAKE_ROOT", folder.path())
        .env("SUBLET_FAKE_GPU", "2x16GiB")
        .env("SUBLET_FAKE_TRACE", &trace)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let calls = std::fs::read_to_string(&trace).unwrap();
    let count = |what: &str| calls.lines().filter(|line| line.contains(what)).count();
    assert!(
        count("cuGetProcAddress_v2 0") >= 400,
        "{}",
        count("cuGetProcAddress_v2")
    );
    assert_eq!((count("cuInit 0"), count("cuDeviceGetName 0")), (1, 2));
    let failed: Vec<&str> = calls
        .lines()
        .filter(|line| !line.ends_with(" 0") && !line.contains("cuGetExportTable"))
        .filter(|line| !line.starts_with("note: "))
        .collect();
    assert_eq!(failed, [""; 0]);
    println!("{said}");
}

fn use_libcudart(libcudart: &Loaded) {
    let mut count = -1;
    let code = call!(libcudart, "cudaGetDeviceCount", &raw mut count => *mut i32);
    if code == NOT_SUPPORTED {
        println!("stopped: libcudart makes sure that the driver is NVIDIA's own, and it is not");
        return;
    }
    assert_eq!((code, count), (0, 2));
    let mut memory = std::ptr::null_mut::<c_void>();
    assert_eq!(
        call!(libcudart, "cudaMalloc", &raw mut memory => *mut *mut c_void, 4096 => usize),
        0
    );
    let out: Vec<u8> = (0..4096_u32).map(|byte| byte as u8).collect();
    let mut back = vec![0_u8; 4096];
    assert_eq!(
        call!(libcudart, "cudaMemcpy", memory => *mut c_void, out.as_ptr() => *const u8, 4096 => usize, 1 => u32),
        0
    );
    assert_eq!(
        call!(libcudart, "cudaMemcpy", back.as_mut_ptr() => *mut u8, memory => *mut c_void, 4096 => usize, 2 => u32),
        0
    );
    assert_eq!(out, back);
    let (mut free, mut total) = (0_usize, 0_usize);
    assert_eq!(
        call!(libcudart, "cudaMemGetInfo", &raw mut free => *mut usize, &raw mut total => *mut usize),
        0
    );
    assert_eq!((total, total - free), (16 << 30, 482 << 20));
    let mut stream = std::ptr::null_mut::<c_void>();
    assert_eq!(
        call!(libcudart, "cudaStreamCreate", &raw mut stream => *mut *mut c_void),
        0
    );
    assert_eq!(
        call!(libcudart, "cudaStreamSynchronize", stream => *mut c_void),
        0
    );
    assert_eq!(call!(libcudart, "cudaFree", memory => *mut c_void), 0);
}
