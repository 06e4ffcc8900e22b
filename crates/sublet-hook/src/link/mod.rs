//! The process's line to the arbiter, and its account with it.
//!
//! The arbiter is met once, at the first call that needs it; from then on limits and accounts
//! are words in shared memory, and no call of the program waits for a socket. [`watch`] notices
//! when the arbiter goes and finds its successor, in a thread of its own; until then the last
//! limits hold. This module decides nothing: limits come from the arbiter, sums from the page.
//!
//! - [`socket`]: the connection, and the descriptors that come through it.
//! - [`pages`]: descriptors become memory, after their seals were looked at.
//! - [`watch`]: the thread.

pub mod pages;
pub mod socket;
mod watch;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sublet_abi::message::RefusedCode;
use sublet_abi::{
    ControlPage, DeviceIndex, LedgerPage, MAX_DEVICES, Mode, NotReserved, SlotIndex, Units,
};

use crate::gate;

/// The folder with the tenant's socket. Without it, nothing is hooked.
pub const DIRECTORY: &str = "SUBLET_DIR";

/// `strict` or `compat`, for a process that reaches no arbiter to ask.
pub const MODE: &str = "SUBLET_MODE";

/// The socket in that folder.
pub const SOCKET: &str = "tenant.sock";

/// How long one step of meeting the arbiter may take. With 300 processes at once the last
/// waits its turn for some hundred milliseconds; an arbiter that is stopped never answers.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// How this process stands with an arbiter.
#[derive(Debug)]
pub enum State {
    /// It has none, and was not told of one.
    Off,
    /// It has a slot.
    Managed(&'static Link),
    /// It was told of one that gave it no slot, and runs without.
    Unmanaged(NoSlot),
    /// The same, but it may not run without.
    Forbidden(NoSlot),
}

impl State {
    /// The slot, if there is one.
    #[must_use]
    pub fn link(&self) -> Option<&'static Link> {
        match self {
            State::Managed(link) => Some(link),
            State::Off | State::Unmanaged(_) | State::Forbidden(_) => None,
        }
    }
}

/// Why there is no slot.
#[derive(Debug)]
pub struct NoSlot {
    socket: PathBuf,
    why: Why,
}

/// The part of [`NoSlot`] that differs.
#[derive(Debug)]
pub enum Why {
    /// The system would not: no such socket, nobody listens, no answer in time.
    System {
        /// What was tried.
        doing: &'static str,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// The arbiter would not.
    Refused {
        /// Its reason.
        code: RefusedCode,
        /// In words.
        text: String,
    },
    /// What came was not what the arbiter sends.
    Nonsense(String),
}

impl fmt::Display for NoSlot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "no slot from the arbiter at {}: ",
            self.socket.display()
        )?;
        match &self.why {
            Why::System { doing, cause } => write!(out, "cannot {doing}: {cause}"),
            Why::Refused { text, .. } => write!(out, "it refused: {text}"),
            Why::Nonsense(what) => write!(out, "its answer is malformed: {what}"),
        }
    }
}

impl std::error::Error for NoSlot {}

/// A slot with an arbiter. It lives as long as the process.
#[derive(Debug)]
pub struct Link {
    ledger: &'static LedgerPage,
    slot: SlotIndex,
    generation: AtomicU32,
    /// The newest control page. Older ones stay mapped: a thread may be reading one.
    control: AtomicPtr<ControlPage>,
    /// The page's protocol wants one operation at a time of a process on a device.
    turns: [Mutex<()>; MAX_DEVICES],
}

impl Link {
    /// What the tenant may have now.
    #[must_use]
    pub fn control(&self) -> &'static ControlPage {
        // SAFETY: only ever set from a reference that lives for ever.
        unsafe { &*self.control.load(Ordering::Acquire) }
    }

    /// What the tenant has.
    #[must_use]
    pub fn ledger(&self) -> &'static LedgerPage {
        self.ledger
    }

    /// This process's slot.
    #[must_use]
    pub fn slot(&self) -> SlotIndex {
        self.slot
    }

    /// Takes memory before it is allocated.
    ///
    /// # Errors
    /// If that would pass the limit.
    pub fn reserve(&self, device: DeviceIndex, amount: Units) -> Result<(), NotReserved> {
        let limit = || self.control().device(device).limit();
        let _turn = self.turn(device);
        self.ledger.reserve(self.slot, device, amount, limit)
    }

    /// Notes a refusal for `sublet top`.
    pub fn note_refusal(&self, device: DeviceIndex, bytes: u64) {
        self.ledger.note_refusal(device, bytes, now_ms());
    }

    /// Counts memory that exists already, whatever the limit.
    pub fn charge(&self, device: DeviceIndex, amount: Units) {
        let _turn = self.turn(device);
        // The total has room for 8 TiB. A tenant that wrote nonsense there has spoilt its own
        // account, and NVML shows what it really uses.
        let _ = self.ledger.charge(self.slot, device, amount);
    }

    /// Gives memory back after it was freed.
    pub fn release(&self, device: DeviceIndex, amount: Units) {
        let _turn = self.turn(device);
        // As above: it fails only if somebody wrote into the page.
        let _ = self.ledger.release(self.slot, device, amount);
    }

    fn turn(&self, device: DeviceIndex) -> MutexGuard<'_, ()> {
        let turn = &self.turns[device.place()];
        turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn switch_to(&self, control: &'static ControlPage) {
        self.control
            .store(ptr::from_ref(control).cast_mut(), Ordering::Release);
        gate::follow(control);
    }
}

/// True if the environment names an arbiter: only then is anything hooked.
#[must_use]
pub fn is_wanted() -> bool {
    directory().is_some()
}

fn directory() -> Option<OsString> {
    std::env::var_os(DIRECTORY).filter(|folder| !folder.is_empty())
}

/// Meets the arbiter that the environment names.
#[must_use]
pub fn connect() -> State {
    match directory() {
        None => State::Off,
        Some(folder) => {
            let mode = mode_of(std::env::var_os(MODE).as_deref());
            connect_to(&Path::new(&folder).join(SOCKET), mode)
        }
    }
}

/// What a process without an arbiter does. Only the one word means strict: whoever sets a
/// variable to nonsense finds its programs running, and reported.
fn mode_of(value: Option<&OsStr>) -> Mode {
    if value == Some(OsStr::new("strict")) {
        Mode::Strict
    } else {
        Mode::Compat
    }
}

/// Meets the arbiter behind a socket; `mode` says what is done without one.
#[must_use]
pub fn connect_to(socket: &Path, mode: Mode) -> State {
    let no_slot = |why| NoSlot {
        socket: socket.to_path_buf(),
        why,
    };
    match watch::first_contact(socket) {
        Ok(link) => State::Managed(link),
        Err(why) if mode == Mode::Strict => State::Forbidden(no_slot(why)),
        Err(why) => State::Unmanaged(no_slot(why)),
    }
}

/// Milliseconds of `CLOCK_MONOTONIC`, as the arbiter's heartbeat counts.
#[must_use]
pub fn now_ms() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the struct it is given; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let (seconds, nanoseconds) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds.saturating_mul(1000) + nanoseconds / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_strict_is_strict() {
        for (value, expected) in [
            (None, Mode::Compat),
            (Some("compat"), Mode::Compat),
            (Some(""), Mode::Compat),
            (Some("Strict"), Mode::Compat),
            (Some("strict"), Mode::Strict),
        ] {
            assert_eq!(mode_of(value.map(OsStr::new)), expected, "{value:?}");
        }
    }

    #[test]
    fn without_a_socket_the_mode_decides_and_the_reason_names_the_place() {
        let socket = Path::new("/nowhere/tenant.sock");
        let State::Unmanaged(why) = connect_to(socket, Mode::Compat) else {
            panic!("compat goes on without");
        };
        assert_eq!(
            why.to_string(),
            "no slot from the arbiter at /nowhere/tenant.sock: \
             cannot connect: No such file or directory (os error 2)"
        );
        let strict = connect_to(socket, Mode::Strict);
        assert!(matches!(strict, State::Forbidden(_)));
        assert!(strict.link().is_none());
    }
}
