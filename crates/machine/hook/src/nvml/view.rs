//! A tenant's view, read from the shared pages without taking part.
//!
//! Programs that only look (`nvidia-smi`, monitors) have no account, and a program that also
//! computes has an account already, in the other library. So this half says hello, maps the two
//! pages, and hangs up. From then on it only reads shared memory, without a thread or an open
//! connection. When the heartbeat shows that the arbiter has gone, its successor is asked for new
//! pages, at most once a second. Nothing here waits for a lock, so a child made by fork finds
//! nothing held; the child makes a view of its own.
//!
//! The arbiter gives a process one slot, however often it says hello. So a program that only
//! looks keeps one, empty, until it ends; no message asks for the pages alone. `Bye` is not
//! said: it would take the slot away from the other library too, with all that it has charged.

use std::ffi::{CStr, CString, c_void};
use std::os::fd::AsFd;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use sublet_abi::{ControlPage, DeviceIndex, LedgerPage, Mode};

use super::pids::Numbering;
use crate::link::meeting::{Why, meet, system};
use crate::link::{self, PATIENCE, now_ms, pages};
use crate::report::{self, Memory};
use crate::settings::{self, SettingsSource};

/// Between two attempts, also to reach an arbiter that answers and has no heartbeat.
const PAUSE_MS: u64 = 1000;

/// Time limit of one step of a later attempt. A monitor that asks every second must not hang
/// because the arbiter hangs.
const LATER_PATIENCE: Duration = Duration::from_millis(100);

/// The pages of this process's tenant, and how its processes are numbered here.
#[derive(Debug)]
pub struct View {
    control: &'static ControlPage,
    ledger: &'static LedgerPage,
    numbering: Numbering,
    /// The process that made it: a child may be in another PID namespace.
    maker: u32,
}

/// Source of a call's answer.
#[derive(Debug, Clone, Copy)]
pub enum AnswerSource {
    /// The tenant's pages.
    Tenant(&'static View),
    /// There is no arbiter, and the program may run without: the driver's own answers.
    Everything,
    /// There is no arbiter, and the program may not run without.
    Forbidden,
}

impl View {
    /// Returns the tenant's limits.
    #[must_use]
    pub fn control(&self) -> &'static ControlPage {
        self.control
    }

    /// Returns the tenant's usage.
    #[must_use]
    pub fn ledger(&self) -> &'static LedgerPage {
        self.ledger
    }

    /// Returns the translation of the tenant's process numbers.
    #[must_use]
    pub fn numbering(&self) -> &Numbering {
        &self.numbering
    }

    /// A device's memory: the same numbers as `cuMemGetInfo`.
    #[must_use]
    pub fn memory(&self, device: DeviceIndex) -> Memory {
        report::on_pages(self.control, self.ledger, device)
    }

    /// Checks whether the arbiter keeps these pages. If pages never look fresh, the same pages are
    /// asked for again each second.
    fn is_fresh(&self) -> bool {
        link::is_arbiter_alive(self.control)
    }

    /// Both are of one tenant, and made by one incarnation of the arbiter.
    fn is_same(&self, other: &View) -> bool {
        let key = |view: &View| (view.control.epoch(), view.control.tenant());
        key(self) == key(other)
    }

    /// Unmaps the pages.
    fn undo(self) {
        for (page, bytes) in [
            (
                ptr::from_ref(self.control).cast::<c_void>(),
                ControlPage::BYTES,
            ),
            (ptr::from_ref(self.ledger).cast(), LedgerPage::BYTES),
        ] {
            // SAFETY: mapped by `look` with this length, and never shown to anybody.
            unsafe { libc::munmap(page.cast_mut(), bytes) };
        }
    }
}

static VIEW: AtomicPtr<View> = AtomicPtr::new(ptr::null_mut());

/// When the last attempt ended, in milliseconds of `CLOCK_MONOTONIC`. While the first one is
/// under way other threads try too: none may see everything because it came second.
static TRIED_MS: AtomicU64 = AtomicU64::new(0);

/// PID of the process that made that attempt; a child has made none.
static TRIED_BY: AtomicU32 = AtomicU32::new(0);

/// Reason why the first attempt failed, as `nvmlErrorString` returns it.
static REASON: AtomicPtr<CString> = AtomicPtr::new(ptr::null_mut());

/// Returns this process's current view. Connects if there are no pages, or if no arbiter keeps
/// them.
pub fn current() -> AnswerSource {
    let known = known();
    if let Some(view) = known
        && view.is_fresh()
    {
        return AnswerSource::Tenant(view);
    }
    let is_first = TRIED_BY.load(Ordering::Acquire) != std::process::id();
    let pause_ms = now_ms().saturating_sub(TRIED_MS.load(Ordering::Relaxed));
    if (is_first || pause_ms >= PAUSE_MS)
        && let Some(view) = look_again(is_first, known)
    {
        return AnswerSource::Tenant(view);
    }
    match known {
        // The last limits hold until a successor sets others.
        Some(view) => AnswerSource::Tenant(view),
        None if is_strict() => AnswerSource::Forbidden,
        None => AnswerSource::Everything,
    }
}

/// Returns the reason why there is no view, if the last attempt to get one failed.
#[must_use]
pub fn reason() -> Option<&'static CStr> {
    let reason = REASON.load(Ordering::Acquire);
    // SAFETY: null, or a box that is never freed.
    unsafe { reason.as_ref() }.map(CString::as_c_str)
}

fn known() -> Option<&'static View> {
    let view = VIEW.load(Ordering::Acquire);
    // SAFETY: null, or a box that is never freed.
    unsafe { view.as_ref() }.filter(|view| view.maker == std::process::id())
}

/// One attempt. Threads that try at the same time get a view each, and the last one stays.
fn look_again(is_first: bool, known: Option<&'static View>) -> Option<&'static View> {
    let told = settings::told();
    if let SettingsSource::Unclear(why) = told {
        remember(&format!("no view: {why}"));
    }
    let socket = told.directory()?.join(link::SOCKET);
    let patience = if is_first { PATIENCE } else { LATER_PATIENCE };
    let view = match look(&socket, patience) {
        Ok(view) if known.is_some_and(|known| known.is_same(&view)) => {
            view.undo();
            known
        }
        Ok(view) => {
            let view: &'static View = Box::leak(Box::new(view));
            VIEW.store(ptr::from_ref(view).cast_mut(), Ordering::Release);
            Some(view)
        }
        Err(why) => {
            let socket = socket.display();
            remember(&format!("no view from the arbiter at {socket}: {why}"));
            None
        }
    };
    TRIED_MS.store(now_ms(), Ordering::Relaxed);
    TRIED_BY.store(std::process::id(), Ordering::Release);
    view
}

/// Keeps the first reason: each one stays in memory for ever, and a person who starts a program
/// looks for the first one.
fn remember(text: &str) {
    if REASON.load(Ordering::Acquire).is_null() {
        let text = CString::new(text).unwrap_or_default();
        REASON.store(Box::into_raw(Box::new(text)), Ordering::Release);
    }
}

fn is_strict() -> bool {
    settings::told().mode() == Mode::Strict
}

/// Says hello, maps the pages, and hangs up.
fn look(path: &Path, patience: Duration) -> Result<View, Why> {
    let met = meet(path, patience, None)?;
    let ledger = system("map the ledger", pages::ledger(met.ledger.as_fd()))?;
    // What the arbiter calls this process stands in its slot.
    let numbering = Numbering::of_this_process(ledger.slot(met.welcome.slot).pid());
    Ok(View {
        control: met.control,
        ledger,
        numbering,
        maker: std::process::id(),
    })
}
