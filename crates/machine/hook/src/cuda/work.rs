//! The process's work that may still run on a card, while somebody wants to know.
//!
//! As long as the gate is free, nothing is noted here, and launches report nothing. From then on
//! each launch notes its stream ([`note`](WorkBook::note)), once. Streams that were used before are
//! found too, because all streams that the program made are known. So a closing after a free gate
//! costs a question about each stream, and launches at a free gate cost nothing.
//!
//! The driver reports whether a stream has ended (`cuStreamQuery`), so nothing is put into the
//! program's streams. Only streams that cannot be asked are marked by an event ([`Mark`]):
//! - The default streams of threads can be named by their threads alone. The context's legacy
//!   stream comes after all of them, so an event there ends when they have.
//! - A stream that is destroyed, or begins to record, with work in it.
//!
//! The answer is not exact. Work in a stream that was destroyed while the gate was free, and in one
//! that came to record by waiting for another stream's event, counts as ended. While a stream that
//! the legacy one would wait for records, neither the legacy stream nor those of threads can be
//! asked or marked. Then work of the legacy stream counts as ended. Streams that threads have noted
//! as their own count as running, and unnoted ones, used while the gate was free, as ended.
//!
//! "Nothing runs" is said when no thread is inside a gated call and no stream has anything. A
//! launch that has noted its stream before must note it again after that: [`epoch`](WorkBook) is
//! part of what a thread remembers. Changing it, passing a fence and finding nobody inside
//! ([`gate`]) leaves no launch that could go unnoticed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use sublet_abi::GateState;

use super::c::*;
use super::real;
use super::stream::{InContext, Relaxed, is_capturing, may_be_touched};
use super::tenant::current_context;
use crate::gate::threads::{self, Launcher};
use crate::gate::{self, barrier};
use crate::link::{Link, now_ns};

/// Context of a stream that the program made. One of the two is null.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Home {
    /// The context.
    pub context: CUcontext,
    /// The green context.
    pub green: CUgreenCtx,
}

/// A stream that may have work. The default ones are of a context, and some of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    stream: CUstream,
    context: CUcontext,
    /// The thread's number ([`Launcher::number`]), where the stream is its own; zero for all.
    thread: usize,
}

impl Place {
    /// True if the driver can be asked about it by that thread.
    fn can_be_asked(self, thread: usize) -> bool {
        self.stream != CU_STREAM_PER_THREAD || thread != 0 && self.thread == thread
    }

    /// Checks whether it has work. A stream that records has none: its earlier work is marked.
    fn has_work(self) -> bool {
        let _in_context = InContext::enter(self.context);
        // SAFETY: a live stream, or a name of a default one of the current context.
        may_be_touched(self.stream)
            && unsafe { real::cuStreamQuery(self.stream) } == CUDA_ERROR_NOT_READY
    }
}

/// An event behind the work of a stream.
#[derive(Debug)]
struct Mark {
    context: CUcontext,
    event: CUevent,
}

impl Mark {
    /// Behind all that a stream has now.
    fn behind(stream: CUstream, context: CUcontext) -> Result<Mark, CUresult> {
        let _in_context = InContext::enter(context);
        let mut event = CUevent::default();
        // SAFETY: writes the handle it is given.
        let made = unsafe { real::cuEventCreate(&raw mut event, CU_EVENT_DISABLE_TIMING.0) };
        if made != CUDA_SUCCESS {
            return Err(made);
        }
        // SAFETY: the event made above, and a stream of the current context.
        let recorded = unsafe { real::cuEventRecord(event, stream) };
        if recorded == CUDA_SUCCESS {
            return Ok(Mark { context, event });
        }
        // SAFETY: made above.
        unsafe { real::cuEventDestroy_v2(event) };
        Err(recorded)
    }

    /// False once the work before it has ended.
    fn has_work(&self) -> bool {
        let _in_context = InContext::enter(self.context);
        // SAFETY: an event of a context that lives.
        if unsafe { real::cuEventQuery(self.event) } == CUDA_ERROR_NOT_READY {
            return true;
        }
        // SAFETY: as above; nobody else knows it.
        unsafe { real::cuEventDestroy_v2(self.event) };
        false
    }
}

/// The caller that checks whether anything runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looker {
    /// The gate keeper.
    Keeper {
        /// The gate is closed: an event in a context's legacy stream holds nobody up.
        may_mark: bool,
    },
    /// A thread of the program that has just waited for its work.
    Program,
}

/// Noted work of one process.
#[derive(Debug, Default)]
pub struct WorkBook {
    running: Mutex<NotedWork>,
    /// Current epoch: only its notes count.
    epoch: AtomicU64,
}

/// Streams, and the work that may run in them.
#[derive(Debug, Default)]
pub struct NotedWork {
    live: HashMap<CUstream, Home>,
    noted: Vec<Place>,
    marks: Vec<Mark>,
    /// Up to when the time at work was counted; `None` if nothing runs.
    counted_ns: Option<u64>,
}

impl WorkBook {
    /// Locks the notes, for a call that makes or ends a stream or a context. While they are locked,
    /// the keeper asks the driver nothing.
    pub fn hold(&self) -> MutexGuard<'_, NotedWork> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A launch will work on a stream. False if the stream records: that is no work of the card.
    pub fn note(&self, link: &Link, launcher: &Launcher, stream: CUstream) -> bool {
        let is_default = stream <= CU_STREAM_PER_THREAD;
        let place = Place {
            stream: if stream.is_null() {
                CU_STREAM_LEGACY
            } else {
                stream
            },
            context: if is_default {
                current_context()
            } else {
                CUcontext::default()
            },
            thread: if stream == CU_STREAM_PER_THREAD {
                launcher.number()
            } else {
                0
            },
        };
        let epoch = self.epoch.load(Ordering::Acquire);
        let said = [place.stream.0 as u64, place.context.0 as u64, epoch + 1];
        if !launcher.is_news(said) {
            return true;
        }
        if is_capturing(stream) {
            launcher.is_news([0; 3]);
            return false;
        }
        let mut running = self.hold();
        let home = running.live.get(&stream);
        let context = home.map_or(place.context, |home| home.context);
        let place = Place { context, ..place };
        if !running.noted.contains(&place) {
            running.noted.push(place);
        }
        running.begin(link);
        true
    }

    /// The gate was free, and nobody knows the launched work: notes every stream that there is, and
    /// the default streams of these contexts.
    pub fn note_all(&self, link: &Link, contexts: &[CUcontext]) {
        let mut running = self.hold();
        let place = |stream, context| Place {
            stream,
            context,
            thread: 0,
        };
        let made = running.live.iter();
        let made = made.map(|(&stream, home)| place(stream, home.context));
        let contexts = contexts.iter().filter(|context| !context.is_null());
        let defaults = contexts.flat_map(|&context| {
            [CU_STREAM_LEGACY, CU_STREAM_PER_THREAD].map(|stream| place(stream, context))
        });
        let all: Vec<Place> = made.chain(defaults).collect();
        // Some may have been noted since the gate changed.
        for place in all {
            if !running.noted.contains(&place) {
                running.noted.push(place);
            }
        }
        if !running.noted.is_empty() {
            running.begin(link);
        }
    }

    /// Looks whether all has ended that was launched, and says so in the slot. True if nothing
    /// runs; false also where that cannot be found out now.
    pub fn look(&self, link: &Link, looker: Looker) -> bool {
        let mut running = match self.running.try_lock() {
            Ok(running) => running,
            Err(TryLockError::Poisoned(running)) => running.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        if running.counted_ns.is_none() {
            // A launch that is inside may be about to note its stream.
            return !threads::is_anybody_inside();
        }
        running.count_time(link);
        let _relaxed = Relaxed::enter();
        if running.have_work() {
            return false;
        }
        self.epoch.fetch_add(1, Ordering::AcqRel);
        barrier::pass_all();
        if threads::is_anybody_inside() || running.have_work() || !running.mark_rest(looker) {
            return false;
        }
        running.noted.clear();
        running.end(link);
        true
    }

    /// Counts the time at work, and does not look: more is to come.
    pub fn count_time(&self, link: &Link) {
        if let Ok(mut running) = self.running.try_lock() {
            running.count_time(link);
        }
    }

    /// Nobody wants to know any more.
    pub fn forget_notes(&self, link: &Link) {
        let mut running = self.hold();
        self.epoch.fetch_add(1, Ordering::AcqRel);
        running.noted.clear();
        running.end(link);
    }

    /// Begins a call after which a stream cannot be asked any more: its present work is marked.
    pub fn leave_stream(&self, launcher: usize, stream: CUstream) -> MutexGuard<'_, NotedWork> {
        let mut running = self.hold();
        let is_it = |place: &Place| place.stream == stream && place.can_be_asked(launcher);
        let Some(at) = running.noted.iter().position(is_it) else {
            return running;
        };
        let place = running.noted.swap_remove(at);
        self.epoch.fetch_add(1, Ordering::AcqRel);
        let _relaxed = Relaxed::enter();
        if place.has_work()
            && let Ok(mark) = Mark::behind(stream, place.context)
        {
            running.marks.push(mark);
        }
        running
    }
}

impl NotedWork {
    /// The program made a stream.
    pub fn made(&mut self, stream: CUstream, home: Home) {
        self.live.insert(stream, home);
    }

    /// The program destroyed it.
    pub fn destroyed(&mut self, stream: CUstream) {
        self.live.remove(&stream);
    }

    /// The context is gone, with its streams and events and all that they did.
    pub fn context_ended(&mut self, context: CUcontext) {
        let is_of = |of: CUcontext| !context.is_null() && of == context;
        self.live.retain(|_, home| !is_of(home.context));
        self.noted.retain(|place| !is_of(place.context));
        self.marks.retain(|mark| !is_of(mark.context));
    }

    /// The green context is gone, with its streams.
    pub fn green_ended(&mut self, green: CUgreenCtx) {
        let is_of = |home: &Home| !green.is_null() && home.green == green;
        let live = &self.live;
        let is_gone = |place: &Place| live.get(&place.stream).is_some_and(is_of);
        self.noted.retain(|place| !is_gone(place));
        self.live.retain(|_, home| !is_of(home));
    }

    fn begin(&mut self, link: &Link) {
        if self.counted_ns.is_none() {
            self.counted_ns = Some(now_ns());
            if link.turns().set_at_work(true) {
                tell(link);
            }
            link.wake_keeper();
        }
    }

    fn end(&mut self, link: &Link) {
        self.count_time(link);
        self.counted_ns = None;
        if link.turns().set_at_work(false) {
            tell(link);
        }
    }

    /// Counts the time since something was launched, or since it was last counted. It ends when
    /// somebody looked, which is later than the work ended: a program that waits for its work
    /// looks at once.
    fn count_time(&mut self, link: &Link) {
        if let Some(counted) = &mut self.counted_ns {
            let now = now_ns();
            link.turns().add_gpu_ns(now.saturating_sub(*counted));
            *counted = now;
        }
    }

    /// True if work runs in a stream that can be asked.
    fn have_work(&mut self) -> bool {
        self.marks.retain(Mark::has_work);
        let own = threads::own_number();
        let mut noted = self.noted.iter();
        !self.marks.is_empty() || noted.any(|place| place.can_be_asked(own) && place.has_work())
    }

    /// True if a thread has noted its own default stream there.
    fn is_known(&self, context: CUcontext) -> bool {
        let mut noted = self.noted.iter();
        noted.any(|place| place.context == context && place.thread != 0)
    }

    /// Marks the streams that cannot be asked. True if their work has ended. With nobody inside.
    fn mark_rest(&mut self, looker: Looker) -> bool {
        let own = threads::own_number();
        self.noted.retain(|place| !place.can_be_asked(own));
        let may_mark = looker == Looker::Keeper { may_mark: true };
        if self
            .noted
            .iter()
            .any(|place| place.thread != 0 && !may_mark)
        {
            return false;
        }
        while let Some(place) = self.noted.last() {
            let context = place.context;
            match Mark::behind_all(context) {
                Ok(mark) => self.marks.push(mark),
                // Something records there: they can be neither asked nor marked.
                Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) if self.is_known(context) => return false,
                // Its context is broken, or has no driver behind it any more; or nobody knows
                // that a thread's own stream is used there at all.
                Err(_) => {}
            }
            self.noted.retain(|place| place.context != context);
        }
        self.marks.retain(Mark::has_work);
        self.marks.is_empty()
    }
}

impl Mark {
    /// Behind all that a context's default streams have now. While something records there, the
    /// legacy stream must not be touched.
    fn behind_all(context: CUcontext) -> Result<Mark, CUresult> {
        let _in_context = InContext::enter(context);
        match may_be_touched(CU_STREAM_LEGACY) {
            true => Mark::behind(CU_STREAM_LEGACY, context),
            false => Err(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
        }
    }
}

/// Reports a change of the slot's work state: at once if others wait for the card. At a closed gate
/// they wait for the keeper's answer.
fn tell(link: &Link) {
    match gate::word().state() {
        GateState::Contended => link.knock(),
        GateState::Free | GateState::Open => link.knock_seldom(),
        GateState::Closed => {}
    }
}
