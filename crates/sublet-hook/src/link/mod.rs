//! The process's line to the arbiter, and its account with it.
//!
//! The arbiter is met once, at the first call that needs it; from then on limits and accounts
//! are words in shared memory, and no call of the program waits for a socket. [`watch`] notices
//! when the arbiter goes and finds its successor, in a thread of its own; until then the last
//! limits hold. This module decides nothing: limits come from the arbiter, sums from the page.
//!
//! - [`socket`]: the connection, and the descriptors that come through it.
//! - [`pages`]: descriptors become memory, after their seals were looked at.
//! - [`meeting`]: hello, and what comes back; the other library meets the arbiter so too.
//! - [`watch`]: the thread. Beside it runs the [gate keeper](crate::keeper).
//! - [`marks`]: which process holds memory that another made.

pub mod marks;
pub mod meeting;
pub mod pages;
pub mod socket;
mod watch;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sublet_abi::{
    AnyControl, AnyLedger, ControlPage, DeviceIndex, HostLimit, MAX_DEVICES, Mode, NotReserved,
    ProcessMessage, SlotIndex, TurnReport, Units,
};

use crate::gate::futex;
use meeting::Why;
use socket::Socket;
pub(crate) use watch::without_signals;

/// The folder with the tenant's socket. Without it, nothing is hooked.
pub const DIRECTORY: &str = "SUBLET_DIR";

/// `strict` or `compat`, for a process that reaches no arbiter to ask.
pub const MODE: &str = "SUBLET_MODE";

/// The socket in that folder.
pub const SOCKET: &str = "tenant.sock";

/// How long one step of meeting the arbiter may take. With 300 processes at once the last
/// waits its turn for some hundred milliseconds; an arbiter that is stopped never answers.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Where nobody waits for a card, a process knocks no more often.
const BETWEEN_KNOCKS_MS: u64 = 5;

/// So long without a heartbeat, and the arbiter counts as gone.
const SILENCE_MS: u64 = 2000;

/// True while the arbiter of a page gives signs of life. In a time namespace its clock is
/// another one than ours, and the arbiter never looks alive.
#[must_use]
pub fn is_arbiter_alive(page: &ControlPage) -> bool {
    now_ms().saturating_sub(page.heartbeat_ms()) <= SILENCE_MS
}

/// How this process stands with an arbiter.
#[derive(Debug)]
pub enum LinkState {
    /// It has none, and was not told of one.
    Off,
    /// It has a slot.
    Managed(&'static Link),
    /// It was told of one that gave it no slot, and runs without.
    Unmanaged(NoSlot),
    /// The same, but it may not run without.
    Forbidden(NoSlot),
}

impl LinkState {
    /// The slot, if there is one.
    #[must_use]
    pub fn link(&self) -> Option<&'static Link> {
        match self {
            LinkState::Managed(link) => Some(link),
            LinkState::Off | LinkState::Unmanaged(_) | LinkState::Forbidden(_) => None,
        }
    }
}

/// Why there is no slot.
#[derive(Debug)]
pub struct NoSlot {
    socket: PathBuf,
    why: Why,
}

impl fmt::Display for NoSlot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (socket, why) = (self.socket.display(), &self.why);
        write!(out, "no slot from the arbiter at {socket}: {why}")
    }
}

impl std::error::Error for NoSlot {}

/// What memory is taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// The tenant's part of a device.
    Device(DeviceIndex),
    /// What the tenant may pin of the host's memory.
    Host,
}

impl From<DeviceIndex> for Budget {
    fn from(device: DeviceIndex) -> Self {
        Budget::Device(device)
    }
}

/// A slot with an arbiter. It lives as long as the process.
#[derive(Debug)]
pub struct Link {
    ledger: AnyLedger<'static>,
    slot: SlotIndex,
    generation: AtomicU32,
    /// The newest control page, in a box that is never freed. Older ones stay mapped: a thread
    /// may be reading one.
    control: AtomicPtr<AnyControl<'static>>,
    /// The page's protocol wants one operation at a time of a process on a budget. The host's
    /// is the last.
    turns: [Mutex<()>; MAX_DEVICES + 1],
    /// `None` where the system does not let a process open the ledger's file for itself.
    marks: Option<marks::Marks>,
    /// The connection of now.
    socket: Mutex<Arc<Socket>>,
    last_knock_ms: AtomicU64,
    /// What the thread takes over.
    watch: Mutex<Option<watch::Watch>>,
}

impl Link {
    /// What the tenant may have now.
    #[must_use]
    pub fn control(&self) -> AnyControl<'static> {
        // SAFETY: only ever set from a box that lives for ever.
        unsafe { *self.control.load(Ordering::Acquire) }
    }

    /// What the tenant has.
    #[must_use]
    pub fn ledger(&self) -> AnyLedger<'static> {
        self.ledger
    }

    /// This process's slot.
    #[must_use]
    pub fn slot(&self) -> SlotIndex {
        self.slot
    }

    /// What this process says of its turns.
    #[must_use]
    pub fn turns(&self) -> &TurnReport {
        self.ledger.slot(self.slot).turns()
    }

    /// Tells the arbiter to look at the slot. Where that fails, it looks by itself, only later.
    pub fn knock(&self) {
        if self.turns().must_knock() {
            self.last_knock_ms.store(now_ms(), Ordering::Relaxed);
            let _ = self.socket().send_at_once(&ProcessMessage::Knock.encode());
        }
    }

    /// The same, unless the last time was just now.
    pub fn knock_seldom(&self) {
        let last = self.last_knock_ms.load(Ordering::Relaxed);
        if now_ms().saturating_sub(last) > BETWEEN_KNOCKS_MS {
            self.knock();
        }
    }

    /// Wakes the gate keeper. Those of the job's other processes wait for the same word, and
    /// sleep again.
    pub fn wake_keeper(&self) {
        futex::wake_shared(self.control().page().gate().address());
    }

    fn socket(&self) -> Arc<Socket> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&socket)
    }

    /// Who holds whose memory; `None` if that cannot be known here.
    #[must_use]
    pub fn marks(&self) -> Option<&marks::Marks> {
        self.marks.as_ref()
    }

    /// Takes memory before it is allocated. On pages that know of no host, what is pinned
    /// there is not counted.
    ///
    /// # Errors
    /// If that would pass the limit.
    pub fn reserve(&self, budget: impl Into<Budget>, amount: Units) -> Result<(), NotReserved> {
        let budget = budget.into();
        let _turn = self.turn(budget);
        match (budget, self.ledger.host()) {
            (Budget::Device(device), _) => {
                let limit = || self.control().device(device).limit();
                self.ledger.reserve(self.slot, device, amount, limit)
            }
            (Budget::Host, Some(host)) => {
                let limit = || self.control().host().map_or(Units::MAX, HostLimit::limit);
                host.reserve(self.slot, amount, limit)
            }
            (Budget::Host, None) => Ok(()),
        }
    }

    /// Notes a refusal for `sublet top`.
    pub fn note_refusal(&self, budget: impl Into<Budget>, bytes: u64) {
        match (budget.into(), self.ledger.host()) {
            (Budget::Device(device), _) => self.ledger.note_refusal(device, bytes, now_ms()),
            (Budget::Host, Some(host)) => host.note_refusal(bytes, now_ms()),
            (Budget::Host, None) => {}
        }
    }

    /// Counts memory that exists already, whatever the limit.
    pub fn charge(&self, budget: impl Into<Budget>, amount: Units) {
        let budget = budget.into();
        let _turn = self.turn(budget);
        // The total has room for 8 TiB. A tenant that wrote nonsense there has spoilt its own
        // account, and NVML shows what it really uses.
        let _ = match (budget, self.ledger.host()) {
            (Budget::Device(device), _) => self.ledger.charge(self.slot, device, amount),
            (Budget::Host, Some(host)) => host.charge(self.slot, amount),
            (Budget::Host, None) => Ok(()),
        };
    }

    /// Gives memory back after it was freed.
    pub fn release(&self, budget: impl Into<Budget>, amount: Units) {
        let budget = budget.into();
        let _turn = self.turn(budget);
        // As above: it fails only if somebody wrote into the page.
        let _ = match (budget, self.ledger.host()) {
            (Budget::Device(device), _) => self.ledger.release(self.slot, device, amount),
            (Budget::Host, Some(host)) => host.release(self.slot, amount),
            (Budget::Host, None) => Ok(()),
        };
    }

    /// The limit of a budget in bytes; the largest number where there is none.
    #[must_use]
    pub fn limit_bytes(&self, budget: Budget) -> u64 {
        let control = self.control();
        match budget {
            Budget::Device(device) => control.device(device).limit_bytes(),
            Budget::Host => control
                .host()
                .and_then(HostLimit::bytes)
                .unwrap_or(u64::MAX),
        }
    }

    fn turn(&self, budget: Budget) -> MutexGuard<'_, ()> {
        let place = match budget {
            Budget::Device(device) => device.place(),
            Budget::Host => MAX_DEVICES,
        };
        let turn = &self.turns[place];
        turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn switch_to(&self, control: AnyControl<'static>, socket: Socket) {
        let before = self.control();
        self.control.store(leaked(control), Ordering::Release);
        let mut current = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(socket);
        // A knock that went to the predecessor was perhaps not heard.
        self.turns().hear();
        // The keeper waits for the old page's word.
        futex::wake_shared(before.page().gate().address());
    }
}

/// A page in a box for ever: a few bytes for each arbiter that the process lives to see.
fn leaked(control: AnyControl<'static>) -> *mut AnyControl<'static> {
    ptr::from_mut(Box::leak(Box::new(control)))
}

/// True if the environment named an arbiter when this was first asked: only then is anything
/// hooked. Without a lock, which a fork could leave taken for ever.
#[must_use]
pub fn is_hooking() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static HOOKING: AtomicU8 = AtomicU8::new(UNKNOWN);
    if HOOKING.load(Ordering::Relaxed) == UNKNOWN {
        let found = if directory().is_some() { YES } else { NO };
        HOOKING.store(found, Ordering::Relaxed);
    }
    HOOKING.load(Ordering::Relaxed) == YES
}

fn directory() -> Option<OsString> {
    std::env::var_os(DIRECTORY).filter(|folder| !folder.is_empty())
}

/// Meets the arbiter that the environment names.
#[must_use]
pub fn connect() -> LinkState {
    match directory() {
        None => LinkState::Off,
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
pub fn connect_to(socket: &Path, mode: Mode) -> LinkState {
    let no_slot = |why| NoSlot {
        socket: socket.to_path_buf(),
        why,
    };
    match watch::first_contact(socket) {
        Ok(link) => LinkState::Managed(link),
        Err(why) if mode == Mode::Strict => LinkState::Forbidden(no_slot(why)),
        Err(why) => LinkState::Unmanaged(no_slot(why)),
    }
}

/// Milliseconds of `CLOCK_MONOTONIC`, as the arbiter's heartbeat counts.
#[must_use]
pub fn now_ms() -> u64 {
    now_ns() / 1_000_000
}

/// Nanoseconds of the same clock.
#[must_use]
pub fn now_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the struct it is given; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let (seconds, nanoseconds) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds.saturating_mul(1_000_000_000) + nanoseconds
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
        let LinkState::Unmanaged(why) = connect_to(socket, Mode::Compat) else {
            panic!("compat goes on without");
        };
        assert_eq!(
            why.to_string(),
            "no slot from the arbiter at /nowhere/tenant.sock: \
             cannot connect: No such file or directory (os error 2)"
        );
        let strict = connect_to(socket, Mode::Strict);
        assert!(matches!(strict, LinkState::Forbidden(_)));
        assert!(strict.link().is_none());
    }
}
