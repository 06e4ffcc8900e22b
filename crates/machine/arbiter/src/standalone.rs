//! The arbiter as a program of its own: `sublet agent --standalone`, started by hand or by the
//! first `sublet run`. It ends on SIGTERM or SIGINT. If it was started on demand, it also ends
//! by itself when it has no client any more.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use sublet_model::MiB;
use sublet_plan::Policy;

use crate::arbiter::{Arbiter, Options, TimeSharing};
use crate::error::{ArbiterError, at};
use crate::gauge::Gauge;
use crate::gpu::{NVML_LIBRARY, NvmlView};
use crate::host_lock::HostPlace;
use crate::machine_folder::{Folder, REAL_MACHINE};

/// Settings of an arbiter of its own.
#[derive(Debug, Clone)]
pub struct Standalone {
    /// The folder of its sockets; [`Folder::of`] has the usual place.
    pub folder: Folder,
    /// The driver's library, by name or path.
    pub nvml: PathBuf,
    /// The meeting place of all arbiters of these cards, which can have one only.
    pub host: HostPlace,
    /// `binpack` or `spread`.
    pub policy: Policy,
    /// Memory of each card that no job gets.
    pub reserved: MiB,
    /// End processes that use a card without being a job?
    pub evict: bool,
    /// End jobs that have more memory than they may have, by the driver's count?
    pub evict_over: bool,
    /// End jobs that work without a turn, by the driver's count?
    pub evict_overuse: bool,
    /// Measurement of the cards before the first job; nothing if it is not possible.
    pub gauge: Option<Gauge>,
    /// Serve every user of the machine, and not only this one?
    pub shared: bool,
    /// Time sharing among jobs on one card.
    pub time: TimeSharing,
    /// End when there has been no job for this time: for an arbiter that was started on
    /// demand.
    pub idle_exit: Option<Duration>,
}

impl Standalone {
    /// The arbiter of this host's cards, with the usual settings.
    #[must_use]
    pub fn real() -> Standalone {
        Standalone {
            folder: Folder::of(REAL_MACHINE),
            nvml: PathBuf::from(NVML_LIBRARY),
            host: HostPlace::real(),
            policy: Policy::binpack(),
            reserved: MiB::ZERO,
            evict: false,
            evict_over: false,
            evict_overuse: false,
            gauge: None,
            shared: false,
            time: TimeSharing::default(),
            idle_exit: None,
        }
    }

    /// The arbiter of a fake machine: `nvml` is the fake driver's library, which finds its machine
    /// by the environment of this process, and `host` the machine's place.
    #[must_use]
    pub fn fake(host: HostPlace, nvml: PathBuf) -> Standalone {
        Standalone {
            nvml,
            host,
            ..Standalone::real()
        }
    }
}

/// Runs an arbiter until it is told to end. Call it before other threads are started: it takes
/// the signals that end it for itself.
///
/// # Errors
/// [`ArbiterError::Held`] if one is at work; no driver; or the kernel's refusal.
pub fn run(settings: &Standalone) -> Result<(), ArbiterError> {
    let stop = end_signals().map_err(at("taking", "SIGTERM and SIGINT"))?;
    let view = NvmlView::open(&settings.nvml)?;
    let options = Options {
        policy: settings.policy.clone(),
        host: Some(settings.host.clone()),
        reserved: settings.reserved,
        evict: settings.evict,
        evict_over: settings.evict_over,
        evict_overuse: settings.evict_overuse,
        gauge: settings.gauge.clone(),
        shared: settings.shared,
        time: settings.time.clone(),
        idle_exit: settings.idle_exit,
        stop: Some(stop),
        ..Options::new(settings.folder.clone())
    };
    Arbiter::start(options, Box::new(view))?.run()
}

/// A descriptor that is readable when the process shall end.
fn end_signals() -> io::Result<OwnedFd> {
    // SAFETY: an all-zero set is a value of this plain struct, and is emptied before use.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set lives through the calls, which only write to it and read it; the
    // signals are known ones.
    let fd = unsafe {
        libc::sigemptyset(&raw mut set);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&raw mut set, signal);
        }
        if libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so this is a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_start_says_why_and_leaves_nothing() {
        let base = tempfile::tempdir().unwrap();
        let settings = Standalone {
            folder: Folder::within(base.path(), "fake-1"),
            nvml: PathBuf::from("/nowhere/libnvidia-ml.so.1"),
            ..Standalone::real()
        };
        // In a thread of its own, which the signals that it blocks end with.
        let fail = |settings: Standalone| {
            let ended = std::thread::spawn(move || run(&settings)).join();
            ended.unwrap().unwrap_err().to_string()
        };
        let error = fail(settings);
        assert!(
            error.contains("no GPU driver: `/nowhere/libnvidia-ml.so.1`"),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0);
    }
}
