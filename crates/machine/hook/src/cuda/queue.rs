//! Limits the work of a process in the queues of a card while others want the card.
//!
//! The driver takes launches without end. When the gate closes, all of them must run before the
//! next job has the card, so a program that launches ahead would make everybody wait. While others
//! want the card, each thread therefore marks its stream by an event now and then, and waits until
//! the mark before the last is reached. The thread learns the number of launches between two marks
//! from the time between them, as the card measured it: two such pieces are the amount that the
//! arbiter allows ([`GateRules::queue_us`](sublet_abi::GateRules::queue_us)).
//!
//! Each thread counts for itself, in all streams in which it launches. Streams that record are left
//! alone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::c::*;
use super::real;
use super::stream::{InContext, Relaxed, may_be_touched};
use super::tenant::current_context;
use crate::gate::threads::Launcher;
use crate::link::{Link, now_ns};

/// Launches between two marks, until their time is known.
const FIRST: u32 = 16;

/// The time between two marks is asked at least so often; a mark costs some microseconds.
const MOST: u32 = 4096;

/// After such a pause of the thread, the time between two marks says nothing of launches.
const PAUSE_NS: u64 = 100_000_000;

/// The threads' marks, by the number of their record. A thread that ends leaves its marks to the
/// next one with that record.
#[derive(Debug, Default)]
pub struct Queues(Mutex<HashMap<usize, Queue>>);

/// An event behind some launches.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    /// Null before it is used for the first time.
    event: CUevent,
    /// Number of launches since the mark before it.
    n_launches: u32,
    /// The thread did other things in between.
    was_paused: bool,
}

/// The marks of one thread.
#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    context: CUcontext,
    /// The last three, the newest first.
    marks: [Mark; 3],
    /// Number of recorded marks.
    n_recorded: usize,
    /// Time when the last mark was done with.
    left_ns: u64,
    /// Launches until the next mark.
    n_launches: u32,
}

/// A launch of this thread counts; the driver has it. Marks and waits if it is time to.
pub fn count(queues: &Queues, link: &Link, launcher: &Launcher, stream: CUstream) {
    if !launcher.counts_down() {
        return;
    }
    let n_launches = match link.control().gate().queue_us() {
        Some(queue_us) if may_be_touched(stream) => queues.mark(launcher, stream, queue_us),
        _ => FIRST,
    };
    launcher.count_from(n_launches);
}

impl Queues {
    /// Returns the number of launches until the next mark.
    fn mark(&self, launcher: &Launcher, stream: CUstream, queue_us: u32) -> u32 {
        let (context, number) = (current_context(), launcher.number());
        let known = self.all().remove(&number);
        let _relaxed = Relaxed::enter();
        let mut queue = known.unwrap_or_default();
        if queue.context != context {
            queue.end();
            queue = Queue {
                context,
                n_launches: FIRST,
                ..Queue::default()
            };
        }
        if queue.record(stream) {
            queue.wait_and_learn(queue_us);
        }
        queue.left_ns = now_ns();
        let n_launches = queue.n_launches;
        self.all().insert(number, queue);
        n_launches
    }

    /// The driver has destroyed the events of a context with it.
    pub fn context_ended(&self, context: CUcontext) {
        self.all().retain(|_, queue| queue.context != context);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<usize, Queue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    /// Puts a mark behind the stream's present work. False if the driver does not.
    fn record(&mut self, stream: CUstream) -> bool {
        self.marks.rotate_right(1);
        let [mark, ..] = &mut self.marks;
        mark.n_launches = self.n_launches;
        mark.was_paused = now_ns().saturating_sub(self.left_ns) > PAUSE_NS;
        if mark.event.is_null() {
            // SAFETY: writes the handle it is given.
            let made =
                unsafe { real::cuEventCreate(&raw mut mark.event, CU_EVENT_BLOCKING_SYNC.0) };
            if made != CUDA_SUCCESS {
                mark.event = CUevent::default();
                return false;
            }
        }
        // SAFETY: an event of the current context, and the stream of a launch in it.
        let is_recorded = unsafe { real::cuEventRecord(mark.event, stream) } == CUDA_SUCCESS;
        self.n_recorded = if is_recorded { self.n_recorded + 1 } else { 0 };
        is_recorded
    }

    /// Waits until the mark before the last is reached.
    fn wait_and_learn(&mut self, queue_us: u32) {
        let [_, reached, before] = self.marks;
        if self.n_recorded < 2 {
            return;
        }
        // SAFETY: an event of the current context that was recorded.
        let waited = unsafe { real::cuEventSynchronize(reached.event) };
        if waited != CUDA_SUCCESS || self.n_recorded < 3 || reached.was_paused {
            return;
        }
        let mut ms = 0.0;
        // SAFETY: as above; both are reached, and the number is ours.
        let measured =
            unsafe { real::cuEventElapsedTime(&raw mut ms, before.event, reached.event) };
        if measured == CUDA_SUCCESS {
            let each_us = ms * 1000.0 / reached.n_launches as f32;
            self.n_launches = next(self.n_launches, each_us, queue_us);
        }
    }

    fn end(self) {
        let _in_context = InContext::enter(self.context);
        let made = self.marks.iter().filter(|mark| !mark.event.is_null());
        for mark in made {
            // SAFETY: an event of a context that lives, which nobody else knows.
            unsafe { real::cuEventDestroy_v2(mark.event) };
        }
    }
}

/// Returns the number of launches that fill half of the queue, if each takes so long. At most twice
/// the number until now: the next launches may take longer.
fn next(n_launches: u32, each_us: f32, queue_us: u32) -> u32 {
    let wanted = queue_us as f32 / 2.0 / each_us.max(0.01);
    (wanted as u32).clamp(1, MOST.min(n_launches.saturating_mul(2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_pieces_between_marks_are_what_may_be_queued() {
        for (each_us, queue_us, expected) in [
            (1.0, 10_000, 4096),
            (10.0, 10_000, 500),
            (1000.0, 10_000, 5),
            (20_000.0, 10_000, 1),
            (0.0, 10_000, 4096),
        ] {
            let mut n_launches = FIRST;
            for _ in 0..12 {
                let after = next(n_launches, each_us, queue_us);
                assert!(after <= n_launches * 2);
                n_launches = after;
            }
            assert_eq!(n_launches, expected, "{each_us} us each");
        }
    }
}
