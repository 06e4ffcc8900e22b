//! The threads that do the work of streams: for each card one for kernels and one for
//! copies, and one that calls the program back. They start when they are needed and stay
//! until the process ends.

use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::driver::result::{Answer, Code};
use crate::driver::stream::card_time::{CardTime, Running};
use crate::driver::stream::queue::{Id, Lane};
use crate::driver::stream::work::{Effect, Kernel, Work};
use crate::driver::{Driver, SHARED, lock};
use crate::machine::rendezvous::Rendezvous;
use crate::machine::{now, sleep_until};

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
            let started = thread.spawn(move || match lane {
                Lane::Compute => run_kernels(card),
                _ => work(card, lane),
            });
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

/// Main loop of a thread for copies or calls until the process ends.
fn work(card: usize, lane: Lane) {
    prepare_thread();
    let mut state = lock();
    loop {
        let Some(driver) = state.as_mut() else { return };
        driver.settle();
        let Some(id) = driver.queues.pick(card, lane, |_| true) else {
            state = idle(state, None);
            continue;
        };
        let Some((op, ready)) = driver.queues.begin(id) else {
            continue;
        };
        drop(state);
        let before = now();
        op.work.run();
        let end = ready + (now() - before);
        state = lock();
        let Some(driver) = state.as_mut() else { return };
        driver.queues.finish(id, end);
        driver.settle();
        driver.ended();
    }
}

/// Main loop of the thread for a card's kernels until the process ends.
fn run_kernels(card: usize) {
    prepare_thread();
    let mut time = CardTime::new(card);
    let mut rendezvous = None;
    let mut state = lock();
    loop {
        let Some(driver) = state.as_mut() else { return };
        let registration = driver.registration.clone();
        driver.settle();
        if let Some((kernel, end)) = time.take_ended() {
            if let Some(kernel) = driver.end_or_look(kernel, end, rendezvous.as_mut()) {
                time.begin(&registration, kernel, end);
            }
            // Others get in between two kernels, however short they are.
            drop(state);
            state = lock();
            continue;
        }
        let next = driver.next_kernel(card, time.free());
        if let Some((id, ready)) = next
            && time.has_come_to(ready)
        {
            if let Some(kernel) = driver.begin_kernel(id, card, &mut rendezvous) {
                time.begin(&registration, kernel, ready);
            }
            continue;
        }
        let pending = || driver.queues.pending(card, Work::percent);
        let ready = next.map(|(_, ready)| ready);
        let Some(to) = time.until(&registration, pending, ready) else {
            time.rest(&registration);
            state = idle(state, None);
            continue;
        };
        if now() >= to {
            time.go_on(&registration, to);
        } else if time.free() == 0 {
            drop(state);
            sleep_until(to);
            state = lock();
        } else {
            // A kernel may come for which there is room.
            state = idle(state, Some(to));
        }
    }
}

impl Driver {
    /// The stream whose kernel is next, and when that was ready, if it fits beside what runs. One that
    /// does not fit is not overtaken.
    fn next_kernel(&self, card: usize, free: u64) -> Option<(Id, u64)> {
        if free == 0 {
            return None;
        }
        let id = self.queues.pick(card, Lane::Compute, |_| true)?;
        let fits = self.queues.front(id)?.work.percent() <= free;
        Some((id, self.queues.ready(id)?)).filter(|_| fits)
    }

    /// Begins the kernel at the front of a stream.
    fn begin_kernel(
        &mut self,
        stream: Id,
        card: usize,
        rendezvous: &mut Option<Rendezvous>,
    ) -> Option<Running<Kernel>> {
        let (op, ready) = self.queues.begin(stream)?;
        let Work::Kernel(kernel) = op.work else {
            self.queues.finish(stream, ready);
            return None;
        };
        let registration = &self.registration;
        let rendezvous = rendezvous.get_or_insert_with(|| Rendezvous::new(registration, card));
        if kernel.rendezvous != 0 {
            rendezvous.start(registration, kernel.rendezvous);
        }
        Some(Running {
            stream,
            left: kernel.nanos,
            percent: kernel.percent,
            kernel,
        })
    }

    /// Ends a kernel that had its time, unless it waits for a peer: then it keeps the card, to look
    /// again.
    fn end_or_look(
        &mut self,
        running: Running<Kernel>,
        end: u64,
        rendezvous: Option<&mut Rendezvous>,
    ) -> Option<Running<Kernel>> {
        let peer = running.kernel.rendezvous;
        let waits = peer != 0
            && rendezvous.is_some_and(|rendezvous| !rendezvous.has_met(&self.registration, peer));
        if waits {
            return Some(Running {
                left: LOOK,
                ..running
            });
        }
        self.end_kernel(&running.kernel);
        self.queues.finish(running.stream, end);
        self.settle();
        self.ended();
        None
    }
}

type State = std::sync::MutexGuard<'static, Option<Box<Driver>>>;

/// Waits until there may be work, or for a time of the card. A word in memory changes without notice,
/// so while a stream waits for one, this returns after a short time.
fn idle(mut state: State, until: Option<u64>) -> State {
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
    let pause = until.map_or(pause, |until| {
        pause.min(Duration::from_nanos(until.saturating_sub(now())))
    });
    let waited = SHARED.work.wait_timeout(state, pause);
    let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = state.as_mut() {
        driver.workers.n_idle -= 1;
    }
    state
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
