//! Content of streams, and how it gets there. An [`Action`] is a program's request. It becomes work
//! in a queue, or a node of a graph if the stream is being captured. A graph that is launched
//! becomes work again in the same way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::memory::address_space;
use crate::driver::result::{Answer, Code};
use crate::driver::sharing::event::Ticket;
use crate::driver::stream::queue::{Id, Lane};
use crate::driver::{Driver, Session};
use crate::machine::now;

/// A point in a stream, of this process or of another one.
#[derive(Debug)]
pub(crate) struct Mark {
    /// 0 until everything before it is finished, then the time of that.
    time: AtomicU64,
    /// Place where other processes see it.
    ticket: Option<Ticket>,
}

impl Mark {
    pub(crate) fn new(ticket: Option<Ticket>) -> Mark {
        let time = AtomicU64::new(0);
        Mark { time, ticket }
    }

    /// When it was reached.
    #[must_use]
    pub(crate) fn time(&self) -> Option<u64> {
        match &self.ticket {
            Some(ticket) => ticket.time(),
            None => Some(self.time.load(Ordering::Acquire)).filter(|time| *time != 0),
        }
    }

    /// Are waiting threads told when it is reached?
    #[must_use]
    pub(crate) fn is_announced(&self) -> bool {
        self.ticket.is_none()
    }

    pub(crate) fn reach(&self, time: u64) {
        match &self.ticket {
            Some(ticket) => ticket.reach(time),
            None => self.time.store(time.max(1), Ordering::Release),
        }
    }
}

/// Work in a queue.
pub(crate) enum Work {
    /// Has the card for a time, then has an effect.
    Kernel(Kernel),
    /// Moves bytes.
    Move(Move),
    /// Calls the program.
    Call(Box<dyn FnOnce() + Send>),
    /// Reaches a mark.
    Mark(Arc<Mark>),
    /// Waits for a mark.
    After(Arc<Mark>),
    /// Changes the driver's state.
    Change(Box<dyn FnOnce(&mut Driver) + Send>),
    /// Waits for a word in memory.
    Poll(Word),
}

/// A kernel as the fake knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// Context of its launch.
    pub(crate) context: Id,
    /// Time for which it has the card.
    pub(crate) nanos: u64,
    /// Part of the card that it fills, in percent.
    pub(crate) percent: u64,
    /// A hash of its name if it ends only when its peer on another card has started.
    pub(crate) rendezvous: u64,
    /// Its effects on memory at its end.
    pub(crate) effects: Vec<Effect>,
}

/// Effect of a kernel on memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Writes `value` to each of `count` words.
    Fill {
        /// The first word.
        to: u64,
        /// Number of words.
        count: u64,
        /// The value.
        value: u32,
    },
    /// Adds `value` to each of `count` words.
    Add {
        /// The first word.
        to: u64,
        /// Number of words.
        count: u64,
        /// The value.
        value: u32,
    },
}

/// Bytes that move from one place to another, or a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Move {
    /// Address of the first byte that is written.
    pub(crate) to: u64,
    /// Source.
    pub(crate) from: Source,
    /// Number of bytes.
    pub(crate) size: u64,
}

/// Source of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// Memory from this address on.
    Memory(u64),
    /// A pattern of 1 or 4 bytes.
    Pattern {
        /// Its bytes.
        width: u64,
        /// Its value.
        value: u32,
    },
    /// Copy of the program's memory at the time of the request: pageable memory may be changed as
    /// soon as an asynchronous call returns.
    Bytes(Arc<[u8]>),
}

/// A condition on a word of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word {
    /// Its address.
    pub(crate) address: u64,
    /// Value that it is compared with.
    pub(crate) value: u32,
    /// Kind of comparison: `CUstreamWaitValue_flags`.
    pub(crate) flags: u32,
}

/// A program's request to a stream.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Run a kernel.
    Kernel(Kernel),
    /// Move bytes.
    Move(Move),
    /// Record an event.
    Record(Id),
    /// Wait for an event.
    Wait(Id),
    /// Wait for a word of memory.
    Poll(Word),
    /// Memory of a graph becomes usable.
    Alloc(u64),
    /// Stream-ordered memory goes back.
    Free(u64),
    /// Nothing, but in order.
    Empty,
}

impl Driver {
    /// Puts an action into a stream that is not being captured; the number it got.
    pub(crate) fn enqueue(&mut self, stream: Id, action: Action) -> Answer<u64> {
        match self.work_of(action)? {
            Some((lane, nanos, work)) => self.submit(stream, lane, nanos, work),
            None => Ok(0),
        }
    }

    /// Returns the present work of an action, its worker, and the time for which it has the card;
    /// `None` if there is nothing to do.
    pub(crate) fn work_of(&mut self, action: Action) -> Answer<Option<(Lane, u64, Work)>> {
        Ok(Some(match action {
            Action::Kernel(kernel) => {
                let free = kernel.nanos == 0 && kernel.rendezvous == 0 && kernel.effects.is_empty();
                let lane = if free { Lane::Instant } else { Lane::Compute };
                (lane, kernel.nanos, Work::Kernel(kernel))
            }
            Action::Move(bytes) => (Lane::Copy, 0, Work::Move(bytes)),
            Action::Record(event) => {
                let event = self.events.get_mut(&event).ok_or(Code::INVALID_HANDLE)?;
                (Lane::Instant, 0, Work::Mark(event.renew()))
            }
            Action::Wait(event) => {
                let event = self.events.get(&event).ok_or(Code::INVALID_HANDLE)?;
                // An event that was never recorded is no reason to wait.
                let Some(mark) = event.latest() else {
                    return Ok(None);
                };
                (Lane::Instant, 0, Work::After(mark))
            }
            Action::Poll(word) => (Lane::Instant, 0, Work::Poll(word)),
            Action::Alloc(address) => {
                let change = move |driver: &mut Driver| driver.graph_memory_begins(address);
                (Lane::Instant, 0, Work::Change(Box::new(change)))
            }
            Action::Free(address) => {
                let change = move |driver: &mut Driver| driver.ordered_free(address);
                (Lane::Instant, 0, Work::Change(Box::new(change)))
            }
            Action::Empty => (Lane::Instant, 0, Work::Change(Box::new(|_| {}))),
        }))
    }

    /// Puts work into a stream and lets it begin if it can.
    pub(crate) fn submit(&mut self, stream: Id, lane: Lane, nanos: u64, work: Work) -> Answer<u64> {
        let polls = work.is_unannounced();
        let seq = self.queues.push(stream, now(), lane, nanos, work);
        let seq = seq.ok_or(Code::INVALID_HANDLE)?;
        self.settle();
        if !self.queues.is_done(stream, seq) {
            let card = self.queues.get(stream).map_or(0, |stream| stream.card);
            self.call_worker(card, lane, polls)?;
        }
        Ok(seq)
    }

    /// Ends everything that takes no time and has nothing before it.
    pub(crate) fn settle(&mut self) {
        let open = |work: &Work| match work {
            Work::After(mark) => mark.time().is_some(),
            Work::Poll(word) => word.holds(),
            _ => true,
        };
        while let Some(id) = self.queues.pick_instant(open) {
            let Some((op, ready)) = self.queues.begin(id) else {
                return;
            };
            let mut end = ready;
            match op.work {
                Work::Mark(mark) => mark.reach(end),
                Work::After(mark) => end = end.max(mark.time().unwrap_or(0)),
                Work::Change(change) => change(self),
                Work::Poll(_) => end = end.max(now()),
                _ => {}
            }
            self.queues.finish(id, end);
            self.ended();
        }
        self.drop_finished_streams();
    }
}

impl Session {
    /// Puts an action into a stream, or into its graph if it is being captured.
    pub(crate) fn issue(&mut self, stream: Id, action: Action) -> Answer<u64> {
        if self.captures.of(stream).is_some() {
            return self.capture(stream, action).map(|()| 0);
        }
        self.enqueue(stream, action)
    }

    /// Moves bytes in a stream and waits for it. A stream with nothing before it needs
    /// no other thread.
    pub(crate) fn move_now(&mut self, stream: Id, bytes: Move) -> Answer {
        self.settle();
        let seq = self
            .queues
            .push(stream, now(), Lane::Copy, 0, Work::Move(bytes));
        let seq = seq.ok_or(Code::INVALID_HANDLE)?;
        if self.queues.front(stream).is_some_and(|op| op.seq == seq)
            && let Some((op, ready)) = self.queues.begin(stream)
        {
            let before = now();
            self.outside(|| op.work.run());
            self.queues.finish(stream, ready + (now() - before));
            self.settle();
            self.ended();
            return Ok(());
        }
        let card = self.queues.get(stream).map_or(0, |stream| stream.card);
        self.call_worker(card, Lane::Copy, false)?;
        self.finish(stream, seq);
        Ok(())
    }

    /// Waits until everything in a stream up to number `seq` is finished.
    pub(crate) fn finish(&mut self, stream: Id, seq: u64) {
        self.wait_until(|driver| driver.queues.is_done(stream, seq));
    }

    /// Waits until everything that was asked of a context and its green parts so far is
    /// finished.
    pub(crate) fn finish_context(&mut self, context: Id) {
        let seq = self.queues.last();
        self.wait_until(|driver| {
            let mut streams = driver.queues.iter();
            streams.all(|(id, stream)| {
                !driver.is_part(stream.context, context) || driver.queues.is_done(id, seq)
            })
        });
    }
}

impl Work {
    /// Does it wait for something that nobody tells us of?
    pub(crate) fn is_unannounced(&self) -> bool {
        match self {
            Work::Poll(_) => true,
            Work::After(mark) => !mark.is_announced(),
            _ => false,
        }
    }

    /// Returns the part of a card that it fills, in percent.
    pub(crate) fn percent(&self) -> u64 {
        match self {
            Work::Kernel(kernel) => kernel.percent,
            _ => 0,
        }
    }

    /// Does work that needs no state of the driver.
    pub(crate) fn run(self) {
        match self {
            Work::Move(bytes) => bytes.run(),
            Work::Call(call) => call(),
            _ => {}
        }
    }
}

impl Move {
    fn run(&self) {
        // SAFETY: whoever made this checked the memory of the card against what is
        // allocated, which is not taken away before the work is finished; memory of the
        // program is what the program said.
        unsafe {
            match &self.from {
                Source::Memory(from) => address_space::copy(self.to, *from, self.size),
                Source::Pattern { width, value } => {
                    address_space::fill(self.to, *width, *value, self.size / width);
                }
                Source::Bytes(bytes) => {
                    address_space::copy(self.to, bytes.as_ptr() as u64, self.size);
                }
            }
        }
    }
}

impl Word {
    fn holds(&self) -> bool {
        // SAFETY: the address was checked when the work was made, and memory is not taken
        // away before the work is finished. Others write the word, so it is volatile.
        let word = unsafe { std::ptr::read_volatile(self.address as *const u32) };
        match self.flags & 3 {
            0 => word.wrapping_sub(self.value).cast_signed() >= 0,
            1 => word == self.value,
            2 => word & self.value != 0,
            _ => word | self.value != u32::MAX,
        }
    }
}
