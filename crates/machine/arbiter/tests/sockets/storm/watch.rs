//! Checks whether the arbiter's thread stands still. It writes a heartbeat at each of its ticks, on
//! every job's page. Between two of them the thread may have waited for a processor of a busy
//! machine; the kernel counts that time, and it is not the arbiter's fault. The rest is its own.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::time::ClockId;
use sublet_abi::{ArbiterMessage, ControlPage, Hello, OLDEST, ProcessMessage, VERSION};

use super::STILL_MAX;
use super::arbiter::{Struck, socket_of};
use super::door;

/// State of the arbiter's thread at one moment.
#[derive(Debug, Clone, Copy)]
struct ThreadState {
    /// When it last wrote a heartbeat.
    beat: Duration,
    /// Processor time that it has had, in all its life.
    ran: Duration,
    /// Time that it has waited for a processor.
    waited: Duration,
}

/// Looks at one arbiter.
pub(super) struct Watch {
    control: &'static ControlPage,
    /// The kernel's folder of the thread.
    task: PathBuf,
    /// Before the heartbeat that was seen last was seen.
    before: Cell<ThreadState>,
    last: Cell<ThreadState>,
    longest: Cell<Duration>,
}

impl Watch {
    /// Joins the honest container, and has its page from then on.
    pub(super) fn begin(struck: &Struck) -> Watch {
        let socket = SocketAddrUnix::new(socket_of(struck.base(), "honest")).unwrap();
        let socket = door::connect(SocketType::SEQPACKET, &socket, SocketFlags::empty()).unwrap();
        let hello = Hello {
            min_version: OLDEST,
            max_version: VERSION,
            held: None,
        };
        assert!(door::send(
            &socket,
            &ProcessMessage::Hello(hello).encode(),
            &[]
        ));
        let (bytes, pages) = door::receive(&socket, RecvFlags::empty());
        let welcome = ArbiterMessage::parse(&bytes);
        assert!(
            matches!(welcome, Ok(ArbiterMessage::Welcome(_))),
            "{welcome:?}"
        );
        let len = ControlPage::BYTES;
        let (place, flags) = (std::ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: a new mapping where the kernel likes, which is never unmapped.
        let page = unsafe { rustix::mm::mmap(place, len, ProtFlags::READ, flags, &pages[0], 0) };
        // SAFETY: mapped for good, of that size, and sealed by the arbiter.
        let control = unsafe { ControlPage::from_ptr(page.unwrap().cast(), len) }.unwrap();
        let task = PathBuf::from(format!("/proc/{}/task/{}", struck.pid(), struck.thread));
        let now = thread_state(control, &task);
        Watch {
            control,
            task,
            before: Cell::new(now),
            last: Cell::new(now),
            longest: Cell::new(Duration::ZERO),
        }
    }

    /// One look; the error is for how long it stood still, if that was too long.
    pub(super) fn look(&self) -> Result<(), String> {
        let (before, last) = (self.before.get(), self.last.get());
        let now = thread_state(self.control, &self.task);
        let is_new = now.beat != last.beat;
        // The kernel adds a wait for a processor when it is over. While one lasts nothing is known.
        let until = match is_new {
            true => now.beat,
            false if self.waits_for_a_processor() => return Ok(()),
            false => clock(),
        };
        let gap = until.saturating_sub(last.beat);
        let still = gap.saturating_sub(now.waited.saturating_sub(before.waited));
        self.longest.set(self.longest.get().max(still));
        if is_new {
            self.before.set(last);
        }
        self.last.set(now);
        if still < STILL_MAX {
            return Ok(());
        }
        let ran = now.ran.saturating_sub(before.ran);
        let place = fs::read_to_string(self.task.join("wchan")).unwrap_or_default();
        Err(format!(
            "the arbiter's thread stood still for {still:?}: it computed for {ran:?}, and is in \
             `{place}` of the kernel now"
        ))
    }

    pub(super) fn longest_still(&self) -> Duration {
        self.longest.get()
    }

    /// Field 3 of proc_pid_stat(5), after the name.
    fn waits_for_a_processor(&self) -> bool {
        let text = fs::read_to_string(self.task.join("stat")).unwrap_or_default();
        let state = text.rsplit(')').next().unwrap_or_default().trim_start();
        state.starts_with('R')
    }
}

/// The first two numbers of `/proc/PID/task/TID/schedstat` are nanoseconds: with a processor, and in
/// line for one.
fn thread_state(control: &ControlPage, task: &Path) -> ThreadState {
    let text = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    let mut numbers = text.split_whitespace().map_while(|text| text.parse().ok());
    let mut time = || Duration::from_nanos(numbers.next().unwrap_or(0));
    ThreadState {
        ran: time(),
        waited: time(),
        beat: Duration::from_millis(control.heartbeat_ms()),
    }
}

fn clock() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap())
}
