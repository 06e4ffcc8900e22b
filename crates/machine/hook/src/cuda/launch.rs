//! Launches, copies and fills, on their way through the gate.
//!
//! Each has a hook with its own type, made from its prototype. While the gate is free that is three
//! writes and as many reads of memory that no other thread writes, and no lock, no system call and
//! no allocation. Otherwise, and for one of many launches ([`queue`]), the way leads through
//! [`admit`], out of line. What is left of the cost of `cuLaunchKernel` is mostly its eleven
//! arguments: five lie on the stack, and must lie there once more for the driver.

use super::c::*;
use super::queue::{self, Room};
use super::real::REAL;
use super::row;
use super::stream::{is_capturing, is_driver_started, meant};
use crate::gate;
use crate::gate::threads::Launcher;
use crate::link::{Link, LinkState};
use crate::process;
use crate::real::Row;
use sublet_abi::GateState;

/// Lets a launch in when the gate is open, and notes on which streams it works. True if somebody
/// wants to know that the card has work. The thread is inside.
#[cold]
#[inline(never)]
pub fn admit(launcher: &Launcher, streams: &[CUstream]) -> bool {
    // It belongs to a launch that was let in.
    if launcher.is_nested() {
        return false;
    }
    // A child of a fork begins anew here.
    let process = process::current();
    let Some(link) = process.known_state().and_then(LinkState::link) else {
        return false;
    };
    loop {
        match gate::word().state() {
            GateState::Free => return false,
            // What is recorded does not run, and who would end the recording must not wait.
            GateState::Closed if are_capturing(streams) => return false,
            GateState::Closed => process.accounts.waiting.wait(link, launcher),
            // The keeper may close the gate before it is noted; then this launch is seen to be
            // inside, and goes.
            GateState::Open | GateState::Contended => return note(link, launcher, streams),
        }
    }
}

fn note(link: &Link, launcher: &Launcher, streams: &[CUstream]) -> bool {
    let accounts = &process::current().accounts;
    let work = &accounts.work;
    accounts.steps.launched();
    streams.iter().fold(false, |is_counted, &stream| {
        work.note(link, launcher, stream) | is_counted
    })
}

fn are_capturing(streams: &[CUstream]) -> bool {
    !streams.is_empty() && streams.iter().all(|&stream| is_capturing(stream))
}

/// The way of a launch while the gate is not free, of one that is to be marked, and of a thread's
/// first one, which has not entered yet.
///
/// # Safety
/// As the driver documents for the row.
#[cold]
#[inline(never)]
unsafe fn held<R: Row<Result = CUresult>>(
    entered: Option<&'static Launcher>,
    streams: &[CUstream],
    arguments: R::Arguments,
) -> CUresult {
    let launcher = entered.unwrap_or_else(gate::enter_first);
    let room = queue::enter(launcher, streams, false);
    admit(launcher, streams);
    // SAFETY: the program's own arguments.
    let result = unsafe { R::call(arguments) };
    launched(launcher, room);
    result
}

/// The driver has it. The thread is inside no more.
pub fn launched(launcher: &Launcher, room: Option<Room>) {
    launcher.leave();
    if let Some(room) = room {
        queue::launched(launcher, room);
    }
}

/// The streams of a launch's configuration.
///
/// # Safety
/// Null, or as the driver documents.
unsafe fn of_config(config: *const CUlaunchConfig) -> CUstream {
    // SAFETY: as the caller says.
    unsafe { config.as_ref() }.map_or(CUstream::default(), |config| config.hStream)
}

/// The streams of launches on several cards.
///
/// # Safety
/// Null, or as many as stated.
unsafe fn of_list(list: *const CUDA_LAUNCH_PARAMS_v1, count: u32) -> Vec<CUstream> {
    if list.is_null() || !is_driver_started() {
        return Vec::new();
    }
    // SAFETY: as the caller says.
    let list = unsafe { std::slice::from_raw_parts(list, count as usize) };
    list.iter().map(|one| one.hStream).collect()
}

/// Streams of a row, as `gated::streams` writes them.
macro_rules! streams_of {
    ($row:ty, stream $stream:ident) => {
        [meant::<$row>($stream)]
    };
    ($row:ty, config $config:ident) => {
        // SAFETY: the program's own argument.
        [meant::<$row>(unsafe { of_config($config) })]
    };
    ($row:ty, list $list:ident $count:ident) => {
        // SAFETY: the program's own arguments.
        unsafe { of_list($list, $count) }
    };
    ($row:ty, legacy) => {
        [CU_STREAM_LEGACY]
    };
    ($row:ty, thread) => {
        [CU_STREAM_PER_THREAD]
    };
}

macro_rules! gated_hooks {
    ($([$($streams:tt)*] $symbol:ident($($name:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            crate::real::implement_row! { $symbol($($name: $type),*) -> $result }
        )*

        /// The hooks, by the names of their rows.
        #[allow(non_snake_case, reason = "NVIDIA's own names")]
        mod hooks {
            use super::*;

            $(
                /// # Safety
                /// As the driver documents.
                pub(super) unsafe extern "C" fn $symbol($($name: $type),*) -> $result {
                    let entered = gate::enter();
                    if let Some(launcher) = entered
                        && gate::is_free()
                        && let Some(function) = <row::$symbol as Row>::known()
                        && launcher.counts_down()
                    {
                        // SAFETY: the program's own arguments.
                        let result = unsafe { function($($name),*) };
                        launcher.leave();
                        return result;
                    }
                    let streams = streams_of!(row::$symbol, $($streams)*);
                    // SAFETY: the program's own arguments.
                    unsafe { held::<row::$symbol>(entered, &streams, ($($name,)*)) }
                }
            )*
        }

        /// The hook of a row that makes the card work.
        #[must_use]
        pub fn hook(index: usize) -> Option<*const std::ffi::c_void> {
            match index {
                $(row::$symbol => {
                    let hook: <row::$symbol as Row>::Function = hooks::$symbol;
                    Some(hook as *const std::ffi::c_void)
                })*
                _ => None,
            }
        }
    };
}

row::gated!(gated_hooks);
