//! The process's connection to the arbiter, and its account with the arbiter.
//!
//! A process meets the arbiter once, at the first call that needs it. From then on limits and
//! accounts are words in shared memory, and no call of the program waits for a socket. In a thread
//! of its own, [`watch`] notices when the arbiter goes, and finds its successor; until then the
//! last limits hold. This module decides nothing: limits come from the arbiter, sums from the page.
//!
//! - [`socket`]: the connection, and the descriptors that come through it.
//! - [`pages`]: maps the descriptors as memory, after it has checked their seals.
//! - [`meeting`]: hello and the answer to it; both libraries use it.
//! - [`reading`]: asks the arbiter to read the driver, and waits.
//! - [`watch`]: the thread. Beside it runs the [gate keeper](crate::keeper).
//! - [`marks`]: which process holds memory that another made.

pub mod marks;
pub mod meeting;
pub mod pages;
mod reading;
pub mod socket;
mod watch;

use std::fmt;
use std::mem;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sublet_abi::{
    ControlPage, DeviceIndex, LedgerPage, MAX_DEVICES, Mode, NotReserved, ProcessMessage,
    SlotIndex, TurnReport, Units,
};

use crate::gate::futex;
use crate::settings::{self, SettingsSource, Unclear};
use meeting::{Greeting, Why, greet};
use socket::Socket;
pub(crate) use watch::without_signals;

/// Name of the socket in the folder that the process is [told](settings).
pub const SOCKET: &str = "tenant.sock";

/// Time limit of one step of meeting the arbiter. With 300 processes at once the last one waits
/// some hundred milliseconds for its turn. An arbiter that is stopped never answers.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The least time between two knocks of a process while nobody waits for a card.
const BETWEEN_KNOCKS_MS: u64 = 5;

/// After so long without a heartbeat, the arbiter counts as gone.
const SILENCE_MS: u64 = 2000;

/// True while the heartbeat of the page's arbiter is recent. A process in a time namespace has
/// another clock than the arbiter, so there the arbiter never looks alive.
#[must_use]
pub fn is_arbiter_alive(page: &ControlPage) -> bool {
    now_ms().saturating_sub(page.heartbeat_ms()) <= SILENCE_MS
}

/// Relation of this process to an arbiter.
#[derive(Debug)]
pub enum LinkState {
    /// The process is told of no arbiter.
    Off,
    /// The process has a slot.
    Managed(&'static Link),
    /// There is an arbiter, but it gave no slot. The program runs without one.
    Unmanaged(NoSlot),
    /// The same, but the program may not run without a slot.
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

/// Reason why there is no slot.
#[derive(Debug)]
pub enum NoSlot {
    /// The arbiter behind this socket gave none.
    From(PathBuf, Why),
    /// It is not clear which arbiter to ask.
    Unclear(&'static Unclear),
}

impl fmt::Display for NoSlot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoSlot::From(socket, why) => {
                let socket = socket.display();
                write!(out, "no slot from the arbiter at {socket}: {why}")
            }
            NoSlot::Unclear(why) => write!(out, "no slot: {why}"),
        }
    }
}

impl std::error::Error for NoSlot {}

/// The account that memory is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// The tenant's part of a device.
    Device(DeviceIndex),
    /// The host memory that the tenant may pin.
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
    ledger: &'static LedgerPage,
    slot: SlotIndex,
    generation: AtomicU32,
    /// The newest control page. Older pages stay mapped, because a thread may still read one.
    control: AtomicPtr<ControlPage>,
    /// One lock for each budget; the host's is the last. The page's protocol allows a process only
    /// one operation at a time on a budget.
    turns: [Mutex<()>; MAX_DEVICES + 1],
    /// `None` where the system does not let a process open the ledger's file again.
    marks: Option<marks::Marks>,
    /// The current connection.
    socket: Mutex<Arc<Socket>>,
    last_knock_ms: AtomicU64,
    /// Parts that the thread needs. The thread takes them when it starts.
    watch: Mutex<Option<watch::Watch>>,
}

impl Link {
    /// Returns the page of the tenant's current limits.
    #[must_use]
    pub fn control(&self) -> &'static ControlPage {
        // SAFETY: only ever set from a page that stays mapped for ever.
        unsafe { &*self.control.load(Ordering::Acquire) }
    }

    /// Returns the page of the tenant's usage.
    #[must_use]
    pub fn ledger(&self) -> &'static LedgerPage {
        self.ledger
    }

    /// This process's slot.
    #[must_use]
    pub fn slot(&self) -> SlotIndex {
        self.slot
    }

    /// The words in which this process reports its turns.
    #[must_use]
    pub fn turns(&self) -> &TurnReport {
        self.ledger.slot(self.slot).turns()
    }

    /// Asks the arbiter to look at the slot. If the message is lost, it looks anyway, but later.
    pub fn knock(&self) {
        if self.turns().must_knock() {
            self.last_knock_ms.store(now_ms(), Ordering::Relaxed);
            let _ = self.socket().send_at_once(&ProcessMessage::Knock.encode());
        }
    }

    /// The same, unless the process knocked just before.
    pub fn knock_seldom(&self) {
        let last = self.last_knock_ms.load(Ordering::Relaxed);
        if now_ms().saturating_sub(last) > BETWEEN_KNOCKS_MS {
            self.knock();
        }
    }

    /// Wakes the gate keeper. The keepers of the job's other processes wait on the same word; they
    /// wake too, and sleep again.
    pub fn wake_keeper(&self) {
        futex::wake_shared(self.control().gate().address());
    }

    fn socket(&self) -> Arc<Socket> {
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&socket)
    }

    /// Returns the marks that tell the holders of each memory; `None` if marks cannot be had here.
    #[must_use]
    pub fn marks(&self) -> Option<&marks::Marks> {
        self.marks.as_ref()
    }

    /// Charges memory before it is allocated.
    ///
    /// # Errors
    /// If the charge would pass the limit.
    pub fn reserve(&self, budget: impl Into<Budget>, amount: Units) -> Result<(), NotReserved> {
        let budget = budget.into();
        let _turn = self.turn(budget);
        match budget {
            Budget::Device(device) => {
                let limit = || self.control().device(device).limit();
                self.ledger.reserve(self.slot, device, amount, limit)
            }
            Budget::Host => {
                let limit = || self.control().host().limit();
                self.ledger.host().reserve(self.slot, amount, limit)
            }
        }
    }

    /// Records a refusal for `sublet top`.
    pub fn note_refusal(&self, budget: impl Into<Budget>, bytes: u64) {
        match budget.into() {
            Budget::Device(device) => self.ledger.note_refusal(device, bytes, now_ms()),
            Budget::Host => self.ledger.host().note_refusal(bytes, now_ms()),
        }
    }

    /// Charges memory that exists already, whatever the limit.
    pub fn charge(&self, budget: impl Into<Budget>, amount: Units) {
        let budget = budget.into();
        let _turn = self.turn(budget);
        // The total has room for 8 TiB. A tenant that wrote nonsense there has spoilt its own
        // account, and NVML shows what it really uses.
        let _ = match budget {
            Budget::Device(device) => self.ledger.charge(self.slot, device, amount),
            Budget::Host => self.ledger.host().charge(self.slot, amount),
        };
    }

    /// Gives memory back after it was freed.
    pub fn release(&self, budget: impl Into<Budget>, amount: Units) {
        let budget = budget.into();
        let _turn = self.turn(budget);
        // As in `charge`: it fails only if somebody wrote into the page.
        let _ = match budget {
            Budget::Device(device) => self.ledger.release(self.slot, device, amount),
            Budget::Host => self.ledger.host().release(self.slot, amount),
        };
    }

    /// The limit of a budget in bytes; the largest number if it has no limit.
    #[must_use]
    pub fn limit_bytes(&self, budget: Budget) -> u64 {
        let control = self.control();
        match budget {
            Budget::Device(device) => control.device(device).limit_bytes(),
            Budget::Host => control.host().bytes().unwrap_or(u64::MAX),
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

    fn switch_to(&self, control: &'static ControlPage, socket: Socket) {
        let before = self.control();
        let control = ptr::from_ref(control).cast_mut();
        self.control.store(control, Ordering::Release);
        let mut current = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(socket);
        // The predecessor may not have heard the last knock.
        self.turns().hear();
        // The keeper still waits on the word of the old page.
        futex::wake_shared(before.gate().address());
    }
}

/// True if the process was told of an arbiter at the first call of this function, or could have been.
/// Only then is anything hooked. It takes no lock, because a fork could leave a lock taken for ever.
#[must_use]
pub fn is_hooking() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static HOOKING: AtomicU8 = AtomicU8::new(UNKNOWN);
    if HOOKING.load(Ordering::Relaxed) == UNKNOWN {
        let told = settings::told();
        let is_told = told.directory().is_some() || matches!(told, SettingsSource::Unclear(_));
        let found = if is_told { YES } else { NO };
        HOOKING.store(found, Ordering::Relaxed);
    }
    HOOKING.load(Ordering::Relaxed) == YES
}

/// The first contact with the arbiter: the hello, and later the answer.
///
/// `cuInit` loads the driver in between, which takes about as long as the answer. It holds no lock
/// meanwhile: to load a library takes the loader's lock, and a thread that has this one may wait
/// here, because the library that it loads uses the driver. That thread then takes the answer.
#[derive(Debug, Default)]
pub struct FirstContact(Mutex<Contact>);

#[derive(Debug, Default)]
enum Contact {
    /// Nothing was said yet.
    #[default]
    Ahead,
    /// The socket, and the hello that was said there, or the reason why it could not be said.
    Said(PathBuf, Result<Greeting, Why>),
    /// The answer was taken, or there is no arbiter.
    Past,
}

impl FirstContact {
    /// Says hello to the arbiter that the process is told of, if nobody has.
    pub fn begin(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, Contact::Ahead) {
            return;
        }
        let folder = settings::told().directory();
        *state = folder.map_or(Contact::Past, |folder| Contact::at(&folder.join(SOCKET)));
    }

    /// Takes the answer, after a hello if none was said. To be called once.
    #[must_use]
    pub fn end(&self) -> LinkState {
        self.begin();
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let said = mem::replace(&mut *state, Contact::Past);
        drop(state);
        let told = settings::told();
        match told {
            SettingsSource::Unclear(why) => LinkState::Forbidden(NoSlot::Unclear(why)),
            _ => said.answer(told.mode()),
        }
    }
}

impl Contact {
    fn at(socket: &Path) -> Self {
        Contact::Said(socket.into(), greet(socket, PATIENCE, None))
    }

    /// Relation to the arbiter by its answer; `mode` decides what happens if there is no slot.
    fn answer(self, mode: Mode) -> LinkState {
        let Contact::Said(socket, said) = self else {
            return LinkState::Off;
        };
        match said.and_then(|said| watch::first_contact(&socket, said)) {
            Ok(link) => LinkState::Managed(link),
            Err(why) if mode == Mode::Strict => LinkState::Forbidden(NoSlot::From(socket, why)),
            Err(why) => LinkState::Unmanaged(NoSlot::From(socket, why)),
        }
    }
}

/// Milliseconds of `CLOCK_MONOTONIC`, the clock of the arbiter's heartbeat.
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
    fn without_a_socket_the_mode_decides_and_the_reason_names_the_place() {
        let met = |mode| Contact::at(Path::new("/nowhere/tenant.sock")).answer(mode);
        let LinkState::Unmanaged(why) = met(Mode::Compat) else {
            panic!("in compat mode the program runs without a slot");
        };
        assert_eq!(
            why.to_string(),
            "no slot from the arbiter at /nowhere/tenant.sock: \
             cannot connect: No such file or directory (os error 2)"
        );
        let strict = met(Mode::Strict);
        assert!(matches!(strict, LinkState::Forbidden(_)));
        assert!(strict.link().is_none());
    }
}
