//! Tests of a driver need a process of their own, because a process has one driver. Each
//! test starts its own executable again, with a machine in a folder of its own, and runs
//! its body there.

use std::ffi::c_void;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use sublet_driver_api::CUDA;

const INSIDE: &str = "SUBLET_TEST_INSIDE";

/// What a body that ran to its end prints, so that a name that no test has is noticed.
const DONE: &str = "the body of the test was run";

/// Runs `body` in a process with the machine `spec`.
pub(crate) fn with_machine(test: &str, spec: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        body();
        println!("{DONE}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = start(test, spec, folder.path(), "")
        .wait_with_output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains(DONE),
        "{test}: {}\n{said}",
        output.status
    );
}

/// Starts this executable again to run one test inside, as `role`.
pub(crate) fn start(test: &str, spec: &str, root: &Path, role: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, role)
        .env("SUBLET_FAKE_GPU", spec)
        .env("SUBLET_FAKE_ROOT", root)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Which process of a test this is: `None` in the one that the test runner started.
#[allow(dead_code, reason = "not every test has several processes")]
pub(crate) fn role() -> Option<String> {
    std::env::var(INSIDE).ok()
}

/// A function of the driver by its exported name.
pub(crate) fn function(symbol: &str) -> *const c_void {
    let index = CUDA
        .index_of(symbol)
        .unwrap_or_else(|| panic!("no {symbol}"));
    sublet_fakegpu::cuda::target(index).0.cast()
}

/// An address of code as a function of a type.
pub(crate) fn cast<F: Copy>(address: *const c_void) -> F {
    assert_eq!(size_of::<F>(), size_of_val(&address));
    // SAFETY: the tests name the types that the header declares.
    unsafe { std::mem::transmute_copy(&address) }
}

/// Calls a function of the driver: its name, then arguments with their C types.
#[macro_export]
macro_rules! cu {
    ($name:ident $(, $argument:expr => $type:ty)* $(,)?) => {{
        let function = $crate::inside::function(stringify!($name));
        let function = $crate::inside::cast::<extern "C" fn($($type),*) -> u32>(function);
        function($($argument),*)
    }};
}

/// Calls and expects success.
#[macro_export]
macro_rules! ok {
    ($name:ident $($rest:tt)*) => {
        assert_eq!($crate::cu!($name $($rest)*), 0, stringify!($name))
    };
}

/// A context on device 0, current to this thread.
pub(crate) fn context() -> u64 {
    let mut context = 0_u64;
    ok!(cuInit, 0 => u32);
    ok!(cuDevicePrimaryCtxRetain, &raw mut context => *mut u64, 0 => i32);
    ok!(cuCtxSetCurrent, context => u64);
    context
}

#[allow(dead_code, reason = "not every test counts")]
/// Free and total bytes of the current context's card.
pub(crate) fn memory() -> (usize, usize) {
    let (mut free, mut total) = (0_usize, 0_usize);
    ok!(cuMemGetInfo_v2, &raw mut free => *mut usize, &raw mut total => *mut usize);
    (free, total)
}

/// A module with kernels, and one of its functions.
#[allow(dead_code, reason = "not every test launches")]
pub(crate) fn kernel(name: &str) -> u64 {
    const TEXT: &std::ffi::CStr = c"
// fake spin: us=arg0
// fake paint: us=100 fill ptr=arg0 count=arg1 value=arg2
// fake add: us=0 add ptr=arg0 count=arg1 value=arg2
// fake all_reduce: us=0 meet
.version 8.0
.target sm_80
.address_size 64
.global .align 8 .b8 table[64];
.visible .entry spin(.param .u64 a) { ret; }
.visible .entry paint(.param .u64 p, .param .u64 n, .param .u32 v) { ret; }
.visible .entry add(.param .u64 p, .param .u64 n, .param .u32 v) { ret; }
.visible .entry all_reduce() { ret; }
";
    let (mut module, mut function) = (0_u64, 0_u64);
    ok!(cuModuleLoadData, &raw mut module => *mut u64, TEXT.as_ptr() => *const i8);
    let name = std::ffi::CString::new(name).unwrap();
    ok!(cuModuleGetFunction, &raw mut function => *mut u64, module => u64, name.as_ptr() => *const i8);
    function
}

/// Launches a kernel with arguments by their addresses.
#[allow(dead_code, reason = "not every test launches")]
pub(crate) fn launch(function: u64, stream: u64, arguments: &mut [*mut c_void]) -> u32 {
    cu!(cuLaunchKernel, function => u64, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32,
        1 => u32, 0 => u32, stream => u64, arguments.as_mut_ptr() => *mut *mut c_void,
        std::ptr::null_mut() => *mut *mut c_void)
}

/// Launches the kernel that takes so many microseconds.
#[allow(dead_code, reason = "not every test launches")]
pub(crate) fn spin(function: u64, stream: u64, mut micros: u64) {
    let argument = (&raw mut micros).cast::<c_void>();
    assert_eq!(launch(function, stream, &mut [argument]), 0);
}

/// An event and a stream.
#[allow(dead_code, reason = "not every test has one")]
pub(crate) fn event() -> u64 {
    let mut event = 0_u64;
    ok!(cuEventCreate, &raw mut event => *mut u64, 0 => u32);
    event
}

#[allow(dead_code, reason = "not every test has one")]
pub(crate) fn stream() -> u64 {
    let mut stream = 0_u64;
    ok!(cuStreamCreate, &raw mut stream => *mut u64, 1 => u32);
    stream
}

/// Milliseconds between two events.
#[allow(dead_code, reason = "not every test measures")]
pub(crate) fn elapsed(from: u64, to: u64) -> f32 {
    let mut milliseconds = 0.0_f32;
    ok!(cuEventElapsedTime, &raw mut milliseconds => *mut f32, from => u64, to => u64);
    milliseconds
}

/// Reads lines until one begins with `word`; the rest of that line.
#[allow(dead_code, reason = "not every test has several processes")]
pub(crate) fn hear(from: &mut BufReader<ChildStdout>, word: &str) -> String {
    let mut line = String::new();
    while from.read_line(&mut line).unwrap() > 0 {
        if let Some((_, rest)) = line.split_once(word) {
            return rest.trim().to_owned();
        }
        line.clear();
    }
    panic!("the other process ended without saying {word}");
}
