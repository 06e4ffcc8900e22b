//! Limits the work that a process has in the queues of a card, of all its threads and streams
//! together.
//!
//! The driver takes launches without end. When the gate closes, all of them must run before the
//! next job has the card, so a program that launches ahead would make everybody wait. Each thread
//! therefore counts down a chunk of launches, in a record of its own: while the gate is free, that
//! is all that a launch pays. The last one of a chunk is marked: an event behind it goes into the
//! book of the card. Before that launch the thread waits until the book has room for it. The time
//! between two marks that are reached says how long launches take ([`pace`]). All chunks together
//! are half of what the arbiter allows
//! ([`GateRules::queue_us`](sublet_abi::GateRules::queue_us)), and marks the other half. A thread's
//! first launch is marked too, so a program with a thread for each launch is held as well.
//!
//! Nobody waits inside the driver, where a context that another thread destroys could not be left:
//! one thread for each card asks for the marks from time to time, and wakes the others. A card is
//! not waited for on behalf of another one, since kernels of two cards may wait for each other. For
//! the same reason (a kernel may wait for one that is launched later) one launch goes on after a
//! while in which no mark was reached ([`waiting`]).
//!
//! Streams that record are left alone. A context's marks go with it.

pub mod pace;
pub mod waiting;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{mem, thread};

use sublet_abi::GateState;

use self::pace::{Bound, Launches, MOST, Pace, Span, spread};
use self::waiting::{CountedWaiter, Patience, Threads};
use super::c::*;
use super::real;
use super::stream::{InContext, Relaxed, may_be_touched};
use super::tenant::{current_context, current_device};
use crate::gate::threads::Launcher;
use crate::gate::{self, Outside};
use crate::guard::catch_panic;
use crate::link::{Link, LinkState, now_ns};
use crate::process;

/// Launches until the next try, where no mark can be made.
const TRY_AGAIN: u32 = 16;

/// A launch that takes longer from its room in the queue to its mark has waited for something.
const WAITED_NS: u64 = 500_000;

/// A waiting thread looks again so often, in case a wake-up was lost.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Graphs are marked alone. So it is until their time is known, where there is a bound.
static ARE_GRAPHS_LONG: AtomicBool = AtomicBool::new(true);

/// True if each launch of a graph is to be marked.
#[inline(always)]
#[must_use]
pub fn are_graphs_long() -> bool {
    ARE_GRAPHS_LONG.load(Ordering::Relaxed)
}

/// The queues of one process, by card.
#[derive(Debug, Default)]
pub struct Queues {
    cards: Mutex<Vec<(CUdevice, Arc<Card>)>>,
    threads: Mutex<Threads>,
    /// The time of a launch, for each thread that launches: a thread is to mark its launches once
    /// they come to half of the bound.
    weight_ns: AtomicU64,
    /// Threads that wait for room.
    n_waiting: AtomicU32,
    /// Calls that may end a context.
    n_ending: AtomicU32,
}

/// The queue of one card.
#[derive(Debug, Default)]
struct Card {
    book: Mutex<Book>,
    has_moved: Condvar,
}

/// The marks on a card.
#[derive(Debug, Default)]
struct Book {
    pace: Pace,
    /// Those that are not known to be reached; of one stream in their order.
    marks: VecDeque<Mark>,
    /// Launches that were let in, and whose mark is about to be made.
    begun: Launches,
    /// The mark from which the next span is measured, and what was reached since.
    base: Option<Mark>,
    since_base: Launches,
    has_rested: bool,
    /// Events for the next marks.
    spare: Vec<(CUcontext, CUevent)>,
    /// A waiting thread asks for the marks.
    is_watched: bool,
    patience: Patience,
    n_marks: u32,
}

/// An event behind some launches.
#[derive(Debug, Clone, Copy)]
struct Mark {
    event: CUevent,
    place: Place,
    launches: Launches,
    recorded_ns: u64,
    /// The card had nothing to do, as far as is known, when the last of them was launched.
    is_first: bool,
}

/// A stream. The number is that of the thread, where the stream is its own; zero for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    context: CUcontext,
    stream: CUstream,
    thread: usize,
}

/// A launch that has room in the queue of a card, and is to be marked.
#[derive(Debug)]
pub struct Room {
    card: Arc<Card>,
    mark: Mark,
    chunk: u32,
}

/// Meanwhile nobody asks for marks of contexts other than the thread's own.
#[derive(Debug)]
pub struct QueuesOnHold<'a>(&'a Queues);

impl Drop for QueuesOnHold<'_> {
    fn drop(&mut self) {
        self.0.n_ending.fetch_sub(1, Ordering::Release);
    }
}

/// A launch of this thread, which is inside, counts. If it is to be marked, waits until the queue
/// has room for it; [`launched`] marks it.
#[must_use]
pub fn enter(launcher: &Launcher, streams: &[CUstream], is_graph: bool) -> Option<Room> {
    // It belongs to a launch that was counted.
    if launcher.is_nested() {
        return None;
    }
    let is_long_graph = is_graph && are_graphs_long();
    let is_counted = !is_long_graph && launcher.counts_down();
    let process = process::current();
    let link = process.known_state().and_then(LinkState::link);
    let queue_us = link.and_then(|link| link.control().gate().queue_us());
    let queues = &process.accounts.queues;
    if let (Some(link), Some(queue_us), Some(&stream)) = (link, queue_us, streams.first()) {
        if is_counted && !queues.must_mark(launcher.n_counted(), queue_us) {
            return None;
        }
        let launches = Launches {
            n_single: launcher.n_counted() + u32::from(!is_counted && !is_long_graph),
            n_graphs: u32::from(is_long_graph),
        };
        launcher.count_from(TRY_AGAIN);
        return catch_panic(|| queues.room(link, launcher, stream, launches)).flatten();
    }
    // There is no bound.
    if !is_counted {
        launcher.count_from(MOST);
        ARE_GRAPHS_LONG.store(false, Ordering::Relaxed);
    }
    None
}

/// The driver has the launch: marks it. The thread is inside no more.
pub fn launched(launcher: &Launcher, mut room: Room) {
    let _ = catch_panic(|| {
        let _relaxed = Relaxed::enter();
        let event = room.card.event(room.mark.place.context).filter(|&event| {
            // SAFETY: an event of the current context, and the stream of a launch in it.
            let recorded = unsafe { real::cuEventRecord(event, room.mark.place.stream) };
            if recorded != CUDA_SUCCESS {
                room.card
                    .book()
                    .spare
                    .push((room.mark.place.context, event));
            }
            recorded == CUDA_SUCCESS
        });
        let mut book = room.card.book();
        if let Some(event) = event {
            let now = now_ns();
            // It waited at the gate, and the card rested meanwhile.
            room.mark.is_first |= now.saturating_sub(room.mark.recorded_ns) > WAITED_NS;
            room.mark.event = event;
            room.mark.recorded_ns = now;
            book.marks.push_back(room.mark);
            launcher.count_from(room.chunk - 1);
        }
    });
}

impl Drop for Room {
    /// The mark is made, or cannot be made.
    fn drop(&mut self) {
        self.card.book().begun -= self.mark.launches;
    }
}

impl Queues {
    /// True if a thread has so many launches behind its last mark that the bound, or their time,
    /// has changed since then.
    fn must_mark(&self, n_counted: u32, queue_us: u32) -> bool {
        let weight_ns = self.weight_ns.load(Ordering::Relaxed);
        let ns = weight_ns.saturating_mul(2 * u64::from(n_counted));
        ns > in_ns(queue_us)
    }

    /// Waits until a card's queue has room for these launches, all but the last of which are with
    /// the driver.
    fn room(
        &self,
        link: &Link,
        launcher: &Launcher,
        stream: CUstream,
        launches: Launches,
    ) -> Option<Room> {
        if !may_be_touched(stream) {
            return None;
        }
        let _relaxed = Relaxed::enter();
        let is_threads = stream == CU_STREAM_PER_THREAD;
        let place = Place {
            context: current_context(),
            stream,
            thread: if is_threads { launcher.number() } else { 0 },
        };
        let card = self.card(current_device()?);
        let now = now_ns();
        let n_threads = self.n_threads(launcher, now);
        // Read again each time: it may change while the thread waits.
        let bound = || Bound {
            queue_ns: link.control().gate().queue_us().map_or(u64::MAX, in_ns),
            n_threads,
        };
        let mut book = card.book();
        book.pace
            .set_shared(gate::word().state() != GateState::Free);
        book.look(self, place.context, now);
        let is_first = book.marks.is_empty();
        if book.pause_ns(launches, bound(), now).is_some() {
            drop(book);
            let pause_ns = |book: &Book, now| book.pause_ns(launches, bound(), now);
            book = self.wait(&card, launcher, place.context, pause_ns);
        }
        if book.queued() == Launches::default() {
            book.patience.moved(now_ns());
        }
        book.begun += launches;
        book.n_marks = book.n_marks.wrapping_add(1);
        let seed = book.n_marks.wrapping_mul(0x9e37_79b9) >> 8;
        let chunk = spread(book.pace.chunk(bound()), seed);
        let each_ns = book.pace.each_ns();
        self.weight_ns
            .store(each_ns.saturating_mul(n_threads.into()), Ordering::Relaxed);
        drop(book);
        Some(Room {
            card,
            mark: Mark {
                event: CUevent::default(),
                place,
                launches,
                recorded_ns: now_ns(),
                is_first,
            },
            chunk,
        })
    }

    /// Waits while there is a pause until the next question. The calling thread is not inside
    /// meanwhile.
    fn wait<'a>(
        &self,
        card: &'a Card,
        launcher: &Launcher,
        context: CUcontext,
        pause_ns: impl Fn(&Book, u64) -> Option<u64>,
    ) -> MutexGuard<'a, Book> {
        let _waiting = CountedWaiter::begin(&self.n_waiting);
        let _outside = Outside::step(launcher);
        let mut book = card.book();
        loop {
            let now = now_ns();
            // At a closed gate it waits there, where the arbiter sees it.
            let is_closed = gate::word().state() == GateState::Closed;
            let Some(pause_ns) = pause_ns(&book, now).filter(|_| !is_closed) else {
                break;
            };
            if book.patience.is_over(now) {
                break;
            }
            if book.is_watched {
                let waited = card.has_moved.wait_timeout(book, LOOK_AGAIN);
                book = waited.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            book.is_watched = true;
            drop(book);
            thread::sleep(Duration::from_nanos(pause_ns));
            book = card.book();
            book.is_watched = false;
            book.look(self, context, now_ns());
        }
        // There may be room for one more, and somebody must ask for the marks.
        card.has_moved.notify_one();
        book
    }

    /// True if a thread waits for room: there is more work to come as soon as some has ended.
    #[must_use]
    pub fn are_awaited(&self) -> bool {
        self.n_waiting.load(Ordering::Acquire) > 0
    }

    /// Begins a call that may end a context.
    pub fn ending(&self) -> QueuesOnHold<'_> {
        self.n_ending.fetch_add(1, Ordering::SeqCst);
        // Nobody who has not seen it is asking any more.
        for card in self.cards() {
            drop(card.book());
        }
        QueuesOnHold(self)
    }

    /// The driver has destroyed the events of a context with it.
    pub fn context_ended(&self, context: CUcontext) {
        for card in self.cards() {
            card.book().forget(context);
            card.has_moved.notify_one();
        }
    }

    fn cards(&self) -> Vec<Arc<Card>> {
        let cards = self.cards.lock().unwrap_or_else(PoisonError::into_inner);
        cards.iter().map(|(_, card)| Arc::clone(card)).collect()
    }

    fn card(&self, device: CUdevice) -> Arc<Card> {
        let mut cards = self.cards.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, card)) = cards.iter().find(|(of, _)| *of == device) {
            return Arc::clone(card);
        }
        let card = Arc::<Card>::default();
        cards.push((device, Arc::clone(&card)));
        card
    }

    /// Number of threads that launch, with this one.
    fn n_threads(&self, launcher: &Launcher, now: u64) -> u32 {
        let piece = Threads::piece(now);
        let is_new = launcher.is_first_mark_in(piece);
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.saw(piece, is_new)
    }
}

impl Card {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event of the thread's context, which is this one.
    fn event(&self, context: CUcontext) -> Option<CUevent> {
        let spare = &mut self.book().spare;
        if let Some(at) = spare.iter().position(|(of, _)| *of == context) {
            return Some(spare.swap_remove(at).1);
        }
        let mut event = CUevent::default();
        // SAFETY: writes the handle it is given.
        let made = unsafe { real::cuEventCreate(&raw mut event, CU_EVENT_DEFAULT.0) };
        (made == CUDA_SUCCESS).then_some(event)
    }
}

impl Book {
    /// Launches that are not known to have ended, but for those that no thread has marked yet.
    fn queued(&self) -> Launches {
        let mut queued = self.begun;
        self.marks.iter().for_each(|mark| queued += mark.launches);
        queued
    }

    /// Time until the next question for the marks; `None` if there is room for these launches.
    fn pause_ns(&self, added: Launches, bound: Bound, now: u64) -> Option<u64> {
        let excess_ns = self.pace.excess_ns(self.queued(), added, bound);
        (excess_ns > 0).then(|| self.patience.pause_ns(excess_ns, now))
    }

    /// Asks for the marks. After one of a stream that is not reached, none of that stream is.
    fn look(&mut self, queues: &Queues, own: CUcontext, now: u64) {
        let is_any_ending = queues.n_ending.load(Ordering::SeqCst) > 0;
        let mut waits: Vec<Place> = Vec::new();
        for mark in mem::take(&mut self.marks) {
            let context = mark.place.context;
            let is_own = context == own;
            let _in_context = InContext::enter(if is_own {
                CUcontext::default()
            } else {
                context
            });
            let may_be_asked = is_own || !is_any_ending;
            if waits.contains(&mark.place) || !may_be_asked || !mark.is_reached() {
                waits.push(mark.place);
                self.marks.push_back(mark);
            } else {
                self.patience.moved(now);
                self.reached(mark);
            }
        }
    }

    /// Learns from the time since the base, unless that is too short. The first mark after a rest
    /// is the base of the next, for the rest says nothing of launches; but not where the card rests
    /// before each of them, or short launches with which it keeps up would never be known.
    fn reached(&mut self, mark: Mark) {
        self.since_base += mark.launches;
        self.has_rested |= mark.is_first;
        let base = self
            .base
            .filter(|base| base.place.context == mark.place.context);
        if let Some(base) = base
            && let Some(elapsed_ns) = mark.ns_after(&base)
        {
            let rested_ns = mark.recorded_ns.saturating_sub(base.recorded_ns);
            let idle_ns = if self.has_rested { rested_ns } else { 0 };
            let span = Span {
                elapsed_ns,
                idle_ns,
            };
            let is_after_work = mark.is_first && !base.is_first;
            if !(self.pace.learn(self.since_base, span) || is_after_work) {
                self.spare.push((mark.place.context, mark.event));
                return;
            }
            if self.since_base.n_graphs > 0 {
                let are_long = self.pace.are_graphs_long();
                ARE_GRAPHS_LONG.store(are_long, Ordering::Relaxed);
            }
        }
        if let Some(old) = self.base.replace(mark) {
            self.spare.push((old.place.context, old.event));
        }
        self.since_base = Launches::default();
        self.has_rested = false;
    }

    fn forget(&mut self, context: CUcontext) {
        self.marks.retain(|mark| mark.place.context != context);
        self.spare.retain(|(of, _)| *of != context);
        self.base = self.base.filter(|base| base.place.context != context);
    }
}

impl Mark {
    /// An event of a context that is broken counts as reached.
    fn is_reached(&self) -> bool {
        // SAFETY: an event that was recorded, of a context that lives.
        unsafe { real::cuEventQuery(self.event) != CUDA_ERROR_NOT_READY }
    }

    /// Time from another mark to this one, both reached. Zero if it is the later one.
    fn ns_after(&self, base: &Mark) -> Option<u64> {
        let mut ms = 0.0;
        // SAFETY: events of one context that lives; the number is ours.
        let measured = unsafe { real::cuEventElapsedTime(&raw mut ms, base.event, self.event) };
        // Negative numbers become zero.
        (measured == CUDA_SUCCESS).then_some((f64::from(ms) * 1e6) as u64)
    }
}

fn in_ns(us: u32) -> u64 {
    u64::from(us) * 1000
}
