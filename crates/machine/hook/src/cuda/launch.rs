//! Launches, copies and fills, on their way through the gate.
//!
//! Each has a hook with its own type, made from its prototype. While the gate is free that is two
//! writes and two reads of memory that no other thread writes, and no lock, no system call and no
//! allocation. Otherwise the way leads through [`admit`], out of line.

use super::c::*;
use super::real::REAL;
use super::stream::{is_capturing, meant};
use super::tenant::Tenant;
use super::{queue, row};
use crate::gate;
use crate::gate::threads::Launcher;
use crate::guard::catch_panic;
use crate::link::{Link, LinkState};
use crate::process;
use crate::real::Row;
use sublet_abi::GateState;

/// Result of a launch's admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admitted {
    /// Nobody wants to know, or it is no work of the card.
    Unnoted,
    /// Its streams are noted.
    Noted,
    /// Others want the card: it counts for how much is queued.
    Counted,
}

impl Admitted {
    /// True if somebody wants to know that the card has work.
    #[must_use]
    pub fn is_noted(self) -> bool {
        self != Admitted::Unnoted
    }
}

/// Lets a launch in when the gate is open, and notes on which streams it works. The thread is
/// inside.
#[cold]
#[inline(never)]
pub fn admit(launcher: &Launcher, streams: &[CUstream]) -> Admitted {
    // It belongs to a launch that was let in.
    if launcher.is_nested() {
        return Admitted::Unnoted;
    }
    // A child of a fork begins anew here.
    let process = process::current();
    let Some(link) = process.known_state().and_then(LinkState::link) else {
        return Admitted::Unnoted;
    };
    loop {
        match gate::word().state() {
            GateState::Free => return Admitted::Unnoted,
            // What is recorded does not run, and who would end the recording must not wait.
            GateState::Closed if are_capturing(streams) => return Admitted::Unnoted,
            GateState::Closed => process.accounts.waiting.wait(link, launcher),
            state => {
                // The keeper may close the gate before it is noted; then this launch is seen to
                // be inside, and goes.
                return match (note(link, launcher, streams), state) {
                    (false, _) => Admitted::Unnoted,
                    (true, GateState::Contended) => Admitted::Counted,
                    (true, _) => Admitted::Noted,
                };
            }
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

/// The way of a launch while the gate is not free.
///
/// # Safety
/// As the driver documents for the row.
#[cold]
#[inline(never)]
unsafe fn held<R: Row<Result = CUresult>>(
    launcher: &Launcher,
    streams: &[CUstream],
    arguments: R::Arguments,
) -> CUresult {
    let admitted = admit(launcher, streams);
    // SAFETY: the program's own arguments.
    let result = unsafe { R::call(arguments) };
    launched(launcher, streams, admitted);
    result
}

/// The driver has it. The thread is inside no more.
pub fn launched(launcher: &Launcher, streams: &[CUstream], admitted: Admitted) {
    launcher.leave();
    if admitted == Admitted::Counted
        && let Some(&stream) = streams.first()
    {
        let _ = catch_panic(|| {
            if let Some(tenant) = Tenant::current() {
                queue::count(&tenant.accounts.queues, tenant.link, launcher, stream);
            }
        });
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
    if list.is_null() {
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
                    let launcher = gate::enter();
                    if gate::is_free() {
                        // SAFETY: the program's own arguments.
                        let result = unsafe { <row::$symbol as Row>::call(($($name,)*)) };
                        launcher.leave();
                        return result;
                    }
                    let streams = streams_of!(row::$symbol, $($streams)*);
                    // SAFETY: the program's own arguments.
                    unsafe { held::<row::$symbol>(launcher, &streams, ($($name,)*)) }
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
