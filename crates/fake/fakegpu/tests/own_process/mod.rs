//! Tests of a driver need a process of their own, because a process has one driver. Each
//! test starts its own executable again, with a machine in a folder of its own, and runs
//! its body there.

use std::ffi::c_void;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use sublet_driver_api::CUDA;

const INSIDE: &str = "SUBLET_TEST_INSIDE";

/// Output of a body that ran to its end, so that a name without a test is noticed.
const DONE: &str = "the body of the test was run";

/// The longest that a process of a test may take. Then the kernel ends it, whatever it does, so
/// that a process that waits for it goes on and fails.
const LIMIT_S: u32 = 120;

/// Runs `body` in a process with the machine `spec`.
#[allow(dead_code, reason = "not every test has one process")]
pub(crate) fn with_machine(test: &str, spec: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        body();
        println!("{DONE}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = again(test, spec, folder.path(), "");
    let child = limited(&mut command).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains(DONE),
        "{test}: {}\n{said}",
        output.status
    );
}

/// This executable again, to run one test inside as `role`.
pub(crate) fn again(test: &str, spec: &str, root: &Path, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, role)
        .env("SUBLET_FAKE_GPU", spec)
        .env("SUBLET_FAKE_ROOT", root)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("CUDA_DEVICE_ORDER")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    command
}

/// The same command, with an end.
fn limited(command: &mut Command) -> &mut Command {
    let limit = || {
        // SAFETY: takes a number, and sets an alarm that outlives exec.
        unsafe { libc::alarm(LIMIT_S) };
        Ok(())
    };
    // SAFETY: between fork and exec there is that one system call.
    unsafe { command.pre_exec(limit) }
}

/// Another process of a test, which talks to us; it is gone when this is.
#[allow(dead_code, reason = "not every test has several processes")]
pub(crate) struct Other {
    child: Child,
    voice: BufReader<ChildStdout>,
}

#[allow(dead_code, reason = "not every test has several processes")]
impl Other {
    /// Starts this executable again to run one test inside, as `role`.
    pub(crate) fn start(test: &str, spec: &str, root: &Path, role: &str) -> Other {
        Other::spawn(again(test, spec, root, role))
    }

    /// Starts a command that ends up as this executable.
    pub(crate) fn spawn(mut command: Command) -> Other {
        let mut child = limited(&mut command).spawn().unwrap();
        let voice = BufReader::new(child.stdout.take().unwrap());
        Other { child, voice }
    }

    /// Waits for the next message of the process.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        while self.voice.read_line(&mut line).unwrap() > 0 {
            if let Some((_, rest)) = line.split_once(SAID) {
                return rest.trim().to_owned();
            }
            line.clear();
        }
        panic!("the other process ended without saying anything");
    }

    /// Answers it.
    pub(crate) fn tell(&mut self, answer: &str) {
        let ears = self.child.stdin.as_mut().unwrap();
        ears.write_all(format!("{answer}\n").as_bytes()).unwrap();
    }

    /// Lets it go on to its end, which must be a good one.
    pub(crate) fn end(mut self) {
        self.tell("end");
        assert!(self.child.wait().unwrap().success());
    }

    /// SIGKILL, and gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SAID: &str = "said ";

/// Tells the process that started us something, and waits for its answer.
#[allow(dead_code, reason = "not every test has several processes")]
pub(crate) fn say(word: &str) -> String {
    println!("{SAID}{word}");
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Returns the role of this process in a test: `None` in the one that the test runner started.
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
        let function = $crate::own_process::function(stringify!($name));
        let function = $crate::own_process::cast::<extern "C" fn($($type),*) -> u32>(function);
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
// fake part: us=arg0 percent=arg1
// fake paint: us=100 fill ptr=arg0 count=arg1 value=arg2
// fake add: us=0 add ptr=arg0 count=arg1 value=arg2
// fake all_reduce: us=0 meet
// fake count_down: us=10 add ptr=arg1 count=1 value=4294967295 condition handle=arg0 ptr=arg1
// fake decide: us=10 condition handle=arg0 value=arg1
.version 8.0
.target sm_80
.address_size 64
.global .align 8 .b8 table[64];
.visible .entry spin(.param .u64 a) { ret; }
.visible .entry part(.param .u64 a, .param .u64 p) { ret; }
.visible .entry paint(.param .u64 p, .param .u64 n, .param .u32 v) { ret; }
.visible .entry add(.param .u64 p, .param .u64 n, .param .u32 v) { ret; }
.visible .entry all_reduce() { ret; }
.visible .entry count_down(.param .u64 c, .param .u64 p) { ret; }
.visible .entry decide(.param .u64 c, .param .u32 v) { ret; }
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

/// Launches the kernel that takes so many microseconds of a part of the card.
#[allow(dead_code, reason = "not every test launches")]
pub(crate) fn part(function: u64, stream: u64, mut micros: u64, mut percent: u64) {
    let mut arguments = [&raw mut micros, &raw mut percent].map(<*mut u64>::cast::<c_void>);
    assert_eq!(launch(function, stream, &mut arguments), 0);
}

/// A word in memory for which streams wait, so that a test decides when work goes on.
#[allow(dead_code, reason = "not every test holds anything up")]
pub(crate) struct Latch(u64);

#[allow(dead_code, reason = "not every test holds anything up")]
impl Latch {
    pub(crate) fn new() -> Latch {
        let mut word = 0_u64;
        ok!(cuMemAlloc_v2, &raw mut word => *mut u64, 4 => usize);
        let latch = Latch(word);
        latch.set(0);
        latch
    }

    /// Makes later requests to the stream wait.
    pub(crate) fn hold(&self, stream: u64) {
        ok!(cuStreamWaitValue32_v2, stream => u64, self.0 => u64, 1 => u32, 1 => u32);
    }

    /// Lets everything go on that waits.
    pub(crate) fn open(&self) {
        self.set(1);
    }

    /// Makes requests that are held from now on wait again.
    pub(crate) fn close(&self) {
        self.set(0);
    }

    fn set(&self, value: u32) {
        ok!(cuMemsetD32_v2, self.0 => u64, value => u32, 1 => usize);
    }
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

/// Begins to capture a stream.
#[allow(dead_code, reason = "not every test has graphs")]
pub(crate) fn begin(stream: u64, mode: u32) {
    ok!(cuStreamBeginCapture_v2, stream => u64, mode => u32);
}

/// Ends a capture: the code, and the graph.
#[allow(dead_code, reason = "not every test has graphs")]
pub(crate) fn end(stream: u64) -> (u32, u64) {
    let mut graph = 9_u64;
    let code = cu!(cuStreamEndCapture, stream => u64, &raw mut graph => *mut u64);
    (code, graph)
}

/// Makes something of a graph that can be launched.
#[allow(dead_code, reason = "not every test has graphs")]
pub(crate) fn instantiate(graph: u64) -> u64 {
    let mut exec = 0_u64;
    ok!(cuGraphInstantiateWithFlags, &raw mut exec => *mut u64, graph => u64, 0 => u64);
    exec
}
