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
//! - [`report`], [`visible`]: answers that both libraries give alike; [`mps`] what the driver is
//!   told of MPS.
//! - [`bytelock`]: signs by which a process sees that another is there.
//! - [`cuda`]: the hooks of the CUDA driver; [`pointers`] is its map of addresses.
//! - [`nvml`]: the hooks of the management library, which takes no part and only looks.
//!
//! # Modules
//! All logic is in `sublet-hook`. The others only export names, because one library has one
//! SONAME. Each exported function is one jump through a table. Its entry is a hook, or the
//! driver's own function, found at the first call. `cuda/heap` knows the pieces of a card that
//! small allocations share. `cuda/module` has loads of code measured, by the arbiter
//! (`link/reading`). `cuda/deferred_free` keeps freed memory that other processes still
//! hold; `link/marks` has their marks.
//!
//! `gate` is the word of the process that launches read, and the count of launches inside.
//! `keeper` is the thread that sets it from the arbiter's page and heartbeat. `settings` finds
//! the arbiter of a process: by root's file, else by the environment. `cuda/gated` is the rule
//! for calls that make the card work, `cuda/launch` their hooks. While the gate is not free,
//! `cuda/work` knows the streams that may have work. `cuda/queue` bounds the queued work always.
//! `progress` counts units of the program's work.
//!
//! A hook's type is its row's: the build script takes it from NVIDIA's headers (`R:
//! Like<row::cuMemAlloc_v2>`), and a hook of another type does not compile.
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
pub mod mps;
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
