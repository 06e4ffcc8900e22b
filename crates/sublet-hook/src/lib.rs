//! Code inside a tenant's process: accounting, reports, the way to the real driver.
//!
//! Two libraries carry this code under the driver's names, `libcuda.so.1` and
//! `libnvidia-ml.so.1`; all logic and its tests are here. A program that nobody changed calls
//! them, and so this code has the manners of a guest: it never ends the program, prints nothing,
//! installs no signal handler, and where it fails the call goes to the driver as if it was not
//! there. It takes memory from the tenant's account before the driver is asked, and never
//! decides what the account may have: that is the arbiter's.
//!
//! Read in this order:
//! - [`settings`]: the arbiter and the driver that a process is to use.
//! - [`driver`]: finds the real library behind ours; [`real`] its functions.
//! - [`trampoline`]: the way from an exported name to code.
//! - [`process`], [`guard`]: the state of one process; forks, nested calls, panics.
//! - [`link`]: the arbiter, and the two shared pages.
//! - [`gate`], [`keeper`]: the permission to launch work, and the thread that keeps it.
//! - [`progress`]: the speed of the program; [`rhythm`]: the steps that make a mini-batch.
//! - [`report`], [`visible`]: answers that both libraries give alike.
//! - [`bytelock`]: signs by which a process sees that another is there.
//! - [`cuda`]: the hooks of the CUDA driver; [`pointers`] is its map of addresses.
//! - [`nvml`]: the hooks of the management library, which takes no part and only looks.
#![expect(
    unsafe_code,
    reason = "stands between a C program and a C library, and reads shared memory"
)]

pub mod bytelock;
pub mod cuda;
pub mod driver;
pub mod gate;
pub mod guard;
pub mod keeper;
pub mod link;
pub mod nvml;
pub mod pointers;
pub mod process;
pub mod progress;
pub mod real;
pub mod report;
pub mod rhythm;
pub mod settings;
pub mod trampoline;
pub mod visible;
