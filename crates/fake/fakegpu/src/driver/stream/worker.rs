//! The threads that do the work of streams: for each card one for kernels and one for
//! copies, and one that calls the program back. They start when they are needed and stay
//! until the process ends.

use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Lane;
use crate::driver::stream::work::{Effect, Kernel, Work};
use crate::driver::{Driver, SHARED, lock};
use crate::machine::registration::Registration;
use crate::machine::rendezvous::Rendezvous;
use crate::machine::{Slice, now, sleep_until};

/// Time for which a kernel that waits for another card keeps its own before it looks again.
const LOOK: u64 = 100_000;

/// The threads that were started.
#[derive(Debug, Default)]
pub(crate) struct Started {
    threads: BTreeSet<(usize, u8)>,
    n_idle: usize,
}

impl Driver {
    /// Wakes the thread of a lane, or starts it.
    pub(crate) fn call_worker(&mut self, card: usize, lane: Lane, polls: bool) -> Answer {
        let (card, lane) = match lane {
            Lane::Compute | Lane::Copy => (card, lane),
            // Instant work that has to wait is looked after by whoever is idle.
            Lane::Host => (0, Lane::Host),
            Lane::Instant if polls => (0, Lane::Host),
            Lane::Instant => return Ok(()),
        };
        if self.workers.threads.insert((card, lane as u8)) {
            let name = format!("sublet-fake-{card}-{lane:?}");
            let thread = std::thread::Builder::new().name(name);
            let started = thread.spawn(move || work(card, lane));
            started.map_err(|_| Code::OPERATING_SYSTEM)?;
        } else if self.workers.n_idle > 0 {
            SHARED.work.notify_all();
        }
        Ok(())
    }

    /// Tells everybody that some work ended.
    pub(crate) fn ended(&mut self) {
        SHARED.done.notify_all();
        if self.workers.n_idle > 0 {
            SHARED.work.notify_all();
        }
    }

    /// Ends a kernel: its effects happen. Memory that is not there is the program's fault,
    /// and its context's end.
    fn end_kernel(&mut self, kernel: &Kernel) {
        let sound = kernel.effects.iter().all(|effect| self.effect(effect));
        if sound {
            return;
        }
        let home = self.home(kernel.context);
        for context in self.contexts.values_mut() {
            if context.home == home {
                context.broken = Some(Code::ILLEGAL_ADDRESS);
            }
        }
    }

    /// Lets an effect happen. False if it is on something that is not there.
    fn effect(&mut self, effect: &Effect) -> bool {
        match *effect {
            Effect::Fill { to, count, value } => {
                let words = self.words(to, count);
                words.map(|words| words.fill(value)).is_some()
            }
            Effect::Add { to, count, value } => {
                let words = self.words(to, count).map(|words| words.iter_mut());
                let add = |word: &mut u32| *word = word.wrapping_add(value);
                words.map(|words| words.for_each(add)).is_some()
            }
        }
    }

    /// Words of memory that a kernel may use.
    fn words(&mut self, start: u64, count: u64) -> Option<&mut [u32]> {
        let sound = self.memory.is_accessible(start, count.checked_mul(4)?);
        if !sound || !start.is_multiple_of(4) {
            return None;
        }
        // SAFETY: just checked; whoever holds the driver keeps the memory where it is.
        Some(unsafe { std::slice::from_raw_parts_mut(start as *mut u32, count as usize) })
    }
}

/// Main loop of a thread until the process ends.
fn work(card: usize, lane: Lane) {
    prepare_thread();
    let mut time: Option<CardTime> = None;
    let mut state = lock();
    loop {
        let Some(driver) = state.as_mut() else { return };
        driver.settle();
        let Some(id) = driver.queues.pick(card, lane, |_| true) else {
            if let Some(time) = &mut time {
                time.rest(&driver.registration);
            }
            state = idle(state);
            continue;
        };
        let Some((op, ready)) = driver.queues.begin(id) else {
            continue;
        };
        let registration = driver.registration.clone();
        let wanted = driver.queues.pending(card).saturating_add(op.nanos);
        drop(state);
        // A kernel changes the driver's state at its end, so it is kept until we have that again.
        let (end, kernel) = match op.work {
            Work::Kernel(kernel) => {
                let time = time.get_or_insert_with(|| CardTime::new(&registration, card));
                let end = time.run(&registration, &kernel, ready, wanted);
                (end, Some(kernel))
            }
            work => {
                let before = now();
                work.run();
                (ready + (now() - before), None)
            }
        };
        state = lock();
        let Some(driver) = state.as_mut() else { return };
        if let Some(kernel) = kernel {
            driver.end_kernel(&kernel);
        }
        driver.queues.finish(id, end);
        driver.settle();
        driver.ended();
    }
}

type State = std::sync::MutexGuard<'static, Option<Box<Driver>>>;

/// Waits until there may be work. A word in memory changes without notice, so while a stream
/// waits for one, this returns after a short time.
fn idle(mut state: State) -> State {
    let Some(driver) = state.as_mut() else {
        return state;
    };
    driver.workers.n_idle += 1;
    let polls = driver.queues.has_front(Work::is_unannounced);
    let pause = if polls {
        Duration::from_micros(50)
    } else {
        Duration::from_secs(3600)
    };
    let waited = SHARED.work.wait_timeout(state, pause);
    let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = state.as_mut() {
        driver.workers.n_idle -= 1;
    }
    state
}

/// One card's time as one process has it.
struct CardTime {
    card: usize,
    rendezvous: Rendezvous,
    slice: Slice,
    cursor: u64,
}

impl CardTime {
    fn new(registration: &Registration, card: usize) -> CardTime {
        CardTime {
            card,
            rendezvous: Rendezvous::new(registration, card),
            slice: Slice { start: 0, end: 0 },
            cursor: 0,
        }
    }

    /// Runs a kernel that was ready at `ready`; when it ended. A slice is asked for all
    /// that is waiting (`wanted`), so short kernels of one process share one.
    fn run(
        &mut self,
        registration: &Registration,
        kernel: &Kernel,
        ready: u64,
        wanted: u64,
    ) -> u64 {
        if kernel.rendezvous != 0 {
            self.rendezvous.start(registration, kernel.rendezvous);
        }
        let mut at = ready;
        let mut left = kernel.nanos;
        loop {
            if left == 0 {
                if kernel.rendezvous == 0
                    || self.rendezvous.has_met(registration, kernel.rendezvous)
                {
                    return at;
                }
                left = LOOK;
            }
            let from = self.cursor.max(at);
            if from >= self.slice.end {
                self.rest(registration);
                self.slice = registration.slice(self.card, at, wanted.max(left));
                self.cursor = self.slice.start;
                continue;
            }
            let to = self.slice.end.min(from + left);
            registration.worked(self.card, from, to);
            if now() < to {
                sleep_until(to);
            }
            left -= to - from;
            (at, self.cursor) = (to, to);
        }
    }

    /// Gives back the rest of the slice.
    fn rest(&mut self, registration: &Registration) {
        if self.cursor < self.slice.end {
            registration.give_back(self.card, self.slice, self.cursor);
            self.slice.end = self.cursor;
        }
    }
}

/// The program's signals are not for us, and a sleep of 20 µs shall not become one of 70.
fn prepare_thread() {
    // SAFETY: the set is initialised before it is used; both calls change this thread only.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
    }
}

/// Every child that is forked from now on knows that it is one.
pub(crate) fn notice_forks() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    extern "C" fn child() {
        crate::driver::FORKED.store(true, Ordering::Release);
    }
    if !WATCHED.swap(true, Ordering::AcqRel) {
        // SAFETY: the handler only stores to an atomic, and this library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(child)) };
    }
}
