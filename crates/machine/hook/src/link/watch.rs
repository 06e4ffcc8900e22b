//! The first contact with the arbiter, and the thread that finds it again.
//!
//! The thread waits for the socket to close and does nothing else while the arbiter lives. When
//! the arbiter goes, the process keeps its limits and its account, and the thread asks a successor
//! for the same slot. The successor sends a new control page, and one pointer is set to it. The
//! thread never takes another ledger than the one in use, which holds this process's account.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use sublet_abi::message::SlotClaim;
use sublet_abi::{ControlPage, DeviceClaim, MAX_DEVICES};
use sublet_model::Pauses;

use super::marks::Marks;
use super::meeting::{Greeting, Why, meet, system};
use super::socket::Watched;
use super::{Link, PATIENCE, pages};
use crate::keeper;

/// The pauses between two attempts to find a successor. An arbiter that is restarted at once is
/// there within milliseconds. Later attempts are rarer, since a missing file costs a system call
/// each time. Until the process is back, `sublet top` shows its job without this process's use.
const PAUSES: Pauses = Pauses::new(Duration::from_millis(20), Duration::from_millis(250));

/// Parts that the thread works with.
#[derive(Debug)]
pub(super) struct Watch {
    ledger: Watched,
    path: PathBuf,
}

/// Gets a slot, by the answer to this hello. [`Link::keep`] then starts the thread.
pub(super) fn first_contact(path: &Path, said: Greeting) -> Result<&'static Link, Why> {
    let met = said.answer()?;
    let ledger = system("map the ledger", pages::ledger(met.ledger.as_fd()))?;
    ledger
        .slot(met.welcome.slot)
        .tell_own_pid(std::process::id());
    let marks = Marks::on(met.ledger.as_fd()).ok();
    let watch = Watch {
        ledger: system("keep the ledger", Watched::new(met.ledger))?,
        path: path.to_path_buf(),
    };
    Ok(Box::leak(Box::new(Link {
        ledger,
        slot: met.welcome.slot,
        generation: AtomicU32::new(met.welcome.generation),
        control: AtomicPtr::new(ptr::from_ref(met.control).cast_mut()),
        turns: Default::default(),
        marks,
        socket: Mutex::new(Arc::new(met.socket)),
        last_knock_ms: AtomicU64::new(0),
        watch: Mutex::new(Some(watch)),
    })))
}

impl Link {
    /// Starts this thread, which starts the gate keeper's, unless they have been started.
    ///
    /// This must not happen during the first contact, for which other threads may wait. To start a
    /// thread, libc takes the loader's lock. One of the waiting threads may hold that lock, because
    /// it is loading a library that uses the driver (HAMi#2903). Without the thread the last limits
    /// hold, and no successor is found.
    pub fn keep(&'static self) {
        let watch = self.watch.lock();
        let Some(watch) = watch.unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        // If no thread starts, nobody drops this, and the ledger's descriptor stays open.
        let watch = ManuallyDrop::new(watch);
        let started = without_signals(|| {
            // By this name the arbiter recognises that the process still runs the program that it
            // welcomed.
            thread::Builder::new()
                .name("sublet".into())
                .stack_size(256 << 10)
                .spawn(move || {
                    // From here, since the program waits for the start of one thread then, not of
                    // two (35 µs each).
                    keeper::start(self);
                    stay(self, ManuallyDrop::into_inner(watch));
                })
        });
        if started.is_err() {
            keeper::start(self);
        }
    }
}

/// The thread's loop, which ends only with the process.
fn stay(link: &'static Link, watch: Watch) {
    let Watch { ledger, path } = watch;
    loop {
        link.socket().wait_for_end();
        let mut failures: u32 = 0;
        let is_back = || crate::guard::catch_panic(|| come_back(link, &ledger, &path));
        while !matches!(is_back(), Some(Ok(()))) {
            failures = failures.saturating_add(1);
            thread::sleep(PAUSES.after(failures));
        }
    }
}

/// Asks a successor for the slot that this process has.
fn come_back(link: &'static Link, ledger: &Watched, path: &Path) -> Result<(), Why> {
    let control = link.control();
    let mut claims = [DeviceClaim::default(); MAX_DEVICES];
    for ((index, device), claim) in control.devices().zip(&mut claims) {
        claim.uuid = device.uuid();
        claim.bytes = link.ledger.held(link.slot, index).bytes();
    }
    let fd = ledger
        .get()
        .ok_or_else(|| Why::Nonsense("the program closed our ledger's descriptor".into()))?;
    let held = SlotClaim {
        slot: link.slot,
        generation: link.generation.load(Ordering::Relaxed),
        claims,
        host_bytes: link.ledger.host().held(link.slot).bytes(),
    };
    // SAFETY: looked at just now; this thread is the only one that closes it.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let met = meet(path, PATIENCE, Some((held, fd)))?;
    if met.welcome.slot != link.slot {
        return Err(Why::Nonsense("another slot than before".into()));
    }
    let sent = system("look at the ledger", Watched::new(met.ledger))?;
    if !sent.is_same(ledger) {
        return Err(Why::Nonsense("another ledger than before".into()));
    }
    let order = |page: &'static ControlPage| page.devices().map(|(_, device)| device.uuid());
    if !order(control).eq(order(met.control).take(control.devices().count())) {
        return Err(Why::Nonsense("other devices than before".into()));
    }
    link.generation
        .store(met.welcome.generation, Ordering::Relaxed);
    link.switch_to(met.control, met.socket);
    Ok(())
}

/// Runs `start` with all signals blocked. A new thread inherits the signal mask of the one that
/// starts it, and the program's signals are for the program's own threads.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: an all-zero set is valid, and both are written before they are read.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: both sets are live.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    let result = start();
    // SAFETY: restores the mask that was read above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    result
}
