//! Streams as queues: the work that may start next, and its start in the time of the card. Pure:
//! there is no clock and no thread here, and the kind of work does not matter.
//!
//! Two kinds of time meet here. A worker does the work when it gets to it; but the time at
//! which work *begins* is counted: after the work before it ended, not before it was
//! asked for. So late wake-ups of a worker do not add up.

use std::collections::{BTreeMap, VecDeque};

/// Names a stream, a context or anything else that programs hold a handle of.
pub(crate) type Id = u64;

/// Worker that does a piece of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Takes no time; the thread that holds the lock does it.
    Instant,
    /// The card's kernels.
    Compute,
    /// The card's copies.
    Copy,
    /// The thread that calls the program back.
    Host,
}

/// A piece of work in a queue.
#[derive(Debug)]
pub(crate) struct Op<W> {
    /// Its number among all work of the process.
    pub(crate) seq: u64,
    /// When it was asked for.
    pub(crate) asked: u64,
    /// The worker that does it.
    pub(crate) lane: Lane,
    /// Time for which it has the card, as far as known.
    pub(crate) nanos: u64,
    /// The work.
    pub(crate) work: W,
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Stream<W> {
    /// Its context.
    pub(crate) context: Id,
    /// Its card.
    pub(crate) card: usize,
    /// Is it the context's legacy default stream?
    pub(crate) legacy: bool,
    /// Does it wait for the legacy default stream, and that one for it?
    pub(crate) ordered: bool,
    /// Smaller is sooner.
    pub(crate) priority: i32,
    queue: VecDeque<Op<W>>,
    running: Option<u64>,
    cursor: u64,
}

/// All streams of a process.
#[derive(Debug)]
pub(crate) struct Queues<W> {
    streams: BTreeMap<Id, Stream<W>>,
    n_ops: u64,
}

impl<W> Default for Queues<W> {
    fn default() -> Queues<W> {
        Queues {
            streams: BTreeMap::new(),
            n_ops: 0,
        }
    }
}

impl<W> Stream<W> {
    /// An empty stream.
    #[must_use]
    pub(crate) fn new(
        context: Id,
        card: usize,
        legacy: bool,
        ordered: bool,
        priority: i32,
    ) -> Self {
        Stream {
            context,
            card,
            legacy,
            ordered,
            priority,
            queue: VecDeque::new(),
            running: None,
            cursor: 0,
        }
    }

    /// Is there nothing to do and nothing being done?
    #[must_use]
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_none() && self.queue.is_empty()
    }

    /// The number of the oldest work that is not finished.
    fn oldest(&self) -> Option<u64> {
        self.running.or_else(|| Some(self.queue.front()?.seq))
    }
}

impl<W> Queues<W> {
    /// Adds a stream.
    pub(crate) fn insert(&mut self, id: Id, stream: Stream<W>) {
        self.streams.insert(id, stream);
    }

    /// Removes a stream with all work that has not begun.
    pub(crate) fn remove(&mut self, id: Id) -> Option<Stream<W>> {
        self.streams.remove(&id)
    }

    /// A stream.
    #[must_use]
    pub(crate) fn get(&self, id: Id) -> Option<&Stream<W>> {
        self.streams.get(&id)
    }

    /// All streams.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &Stream<W>)> {
        self.streams.iter().map(|(id, stream)| (*id, stream))
    }

    /// Returns the number of streams.
    #[must_use]
    pub(crate) fn n_streams(&self) -> usize {
        self.streams.len()
    }

    /// Puts work at the end of a stream; its number. `None` if there is no such stream.
    pub(crate) fn push(
        &mut self,
        id: Id,
        asked: u64,
        lane: Lane,
        nanos: u64,
        work: W,
    ) -> Option<u64> {
        let stream = self.streams.get_mut(&id)?;
        self.n_ops += 1;
        let seq = self.n_ops;
        stream.queue.push_back(Op {
            seq,
            asked,
            lane,
            nanos,
            work,
        });
        Some(seq)
    }

    /// The work at the front of a stream, if nothing that was asked for earlier is in
    /// its way.
    #[must_use]
    pub(crate) fn front(&self, id: Id) -> Option<&Op<W>> {
        let stream = self.streams.get(&id)?;
        if stream.running.is_some() {
            return None;
        }
        let op = stream.queue.front()?;
        let blocked = self
            .rivals(stream)
            .any(|other| other.oldest().is_some_and(|seq| seq < op.seq));
        (!blocked).then_some(op)
    }

    /// Returns the stream whose work this lane of a card does next, among those that `open` lets
    /// pass: priority first, then the order of requests.
    pub(crate) fn pick(&self, card: usize, lane: Lane, open: impl Fn(&W) -> bool) -> Option<Id> {
        self.streams
            .iter()
            .filter(|(_, stream)| stream.card == card || lane == Lane::Host)
            .filter_map(|(&id, stream)| {
                let op = self.front(id)?;
                let turn = (stream.priority, op.seq, id);
                (op.lane == lane && open(&op.work)).then_some(turn)
            })
            .min()
            .map(|(_, _, id)| id)
    }

    /// A stream whose front takes no time, among those that `open` lets pass.
    pub(crate) fn pick_instant(&self, open: impl Fn(&W) -> bool) -> Option<Id> {
        let mut ids = self.streams.keys().copied();
        ids.find(|&id| {
            let op = self.front(id);
            op.is_some_and(|op| op.lane == Lane::Instant && open(&op.work))
        })
    }

    /// Is there a front like this?
    #[must_use]
    pub(crate) fn has_front(&self, like: impl Fn(&W) -> bool) -> bool {
        let mut ids = self.streams.keys();
        ids.any(|id| self.front(*id).is_some_and(|op| like(&op.work)))
    }

    /// The earliest time at which the work at the front of a stream can begin.
    #[must_use]
    pub(crate) fn ready(&self, id: Id) -> Option<u64> {
        let asked = self.front(id)?.asked;
        let stream = self.streams.get(&id)?;
        let others = self.rivals(stream).map(|other| other.cursor).max();
        Some(asked.max(stream.cursor).max(others.unwrap_or(0)))
    }

    /// Begins the work at the front of a stream: the work, and when it can begin at the
    /// earliest.
    pub(crate) fn begin(&mut self, id: Id) -> Option<(Op<W>, u64)> {
        let ready = self.ready(id)?;
        let stream = self.streams.get_mut(&id)?;
        let op = stream.queue.pop_front()?;
        stream.running = Some(op.seq);
        Some((op, ready))
    }

    /// The work that was begun in a stream ended at `end`.
    pub(crate) fn finish(&mut self, id: Id, end: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.running = None;
            stream.cursor = stream.cursor.max(end);
        }
    }

    /// Is all work of a stream up to number `seq` finished?
    #[must_use]
    pub(crate) fn is_done(&self, id: Id, seq: u64) -> bool {
        let stream = self.streams.get(&id);
        stream.is_none_or(|stream| stream.oldest().is_none_or(|oldest| oldest > seq))
    }

    /// The number that the last work got.
    #[must_use]
    pub(crate) fn last(&self) -> u64 {
        self.n_ops
    }

    /// Returns the time that the pending work of a card needs at least, in nanoseconds, as far as
    /// known: as long as its longest stream, and as long as all of it if the card is always full.
    /// `percent` is the part of the card that work fills.
    #[must_use]
    pub(crate) fn pending(&self, card: usize, percent: impl Fn(&W) -> u64) -> u64 {
        let (mut longest, mut full) = (0_u64, 0_u64);
        for stream in self.streams.values().filter(|stream| stream.card == card) {
            let mut own = 0_u64;
            for op in stream.queue.iter().take(256) {
                own = own.saturating_add(op.nanos);
                full = full.saturating_add(op.nanos.saturating_mul(percent(&op.work)) / 100);
            }
            longest = longest.max(own);
        }
        longest.max(full)
    }

    /// The streams whose order with `stream` is kept: the ordered ones for the legacy
    /// stream, the legacy one for these.
    fn rivals<'a>(&'a self, stream: &'a Stream<W>) -> impl Iterator<Item = &'a Stream<W>> {
        self.streams.values().filter(move |other| {
            other.context == stream.context
                && ((stream.legacy && other.ordered && !other.legacy)
                    || (stream.ordered && !stream.legacy && other.legacy))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Streams of one context on card 0: 1 is the legacy one, 2 and 3 are ordered, 4 is not.
    fn streams() -> Queues<&'static str> {
        let mut queues = Queues::default();
        for (id, legacy, ordered) in [
            (1, true, true),
            (2, false, true),
            (3, false, true),
            (4, false, false),
        ] {
            queues.insert(id, Stream::new(9, 0, legacy, ordered, 0));
        }
        queues
    }

    /// Starts all work that may start, ends each piece at once, and returns the order.
    fn drain(queues: &mut Queues<&'static str>) -> Vec<&'static str> {
        let mut order = Vec::new();
        while let Some(id) = queues.pick(0, Lane::Compute, |_| true) {
            let (op, ready) = queues.begin(id).unwrap();
            order.push(op.work);
            queues.finish(id, ready + op.nanos);
        }
        order
    }

    #[test]
    fn the_legacy_stream_keeps_its_order_with_ordered_streams() {
        let mut queues = streams();
        for (id, work) in [(2, "a"), (1, "b"), (3, "c"), (4, "d")] {
            queues.push(id, 0, Lane::Compute, 10, work).unwrap();
        }
        let (op, _) = queues.begin(2).unwrap();
        assert_eq!(op.work, "a");
        // `b` waits for `a`, `c` for `b`; `d` waits for nobody.
        assert_eq!(queues.pick(0, Lane::Compute, |_| true), Some(4));
        queues.finish(2, 10);
        assert_eq!(drain(&mut queues), ["b", "c", "d"]);
        assert_eq!(queues.get(3).unwrap().cursor, 30);
    }

    #[test]
    fn work_begins_after_it_was_asked_for_and_after_what_is_before_it() {
        let mut queues = streams();
        queues.push(4, 100, Lane::Compute, 50, "a").unwrap();
        queues.push(4, 120, Lane::Compute, 50, "b").unwrap();
        queues.push(4, 500, Lane::Compute, 50, "c").unwrap();
        let mut begins = Vec::new();
        while let Some((op, ready)) = queues.begin(4) {
            begins.push(ready);
            queues.finish(4, ready + op.nanos);
        }
        assert_eq!(begins, [100, 150, 500]);
    }

    #[test]
    fn priority_goes_first_and_done_means_all_before() {
        let mut queues = streams();
        queues.insert(5, Stream::new(9, 0, false, false, -1));
        let first = queues.push(4, 0, Lane::Compute, 1, "a").unwrap();
        let second = queues.push(5, 0, Lane::Compute, 1, "b").unwrap();
        assert_eq!(queues.pending(0, |_| 100), 2);
        assert_eq!(queues.pending(0, |_| 50), 1, "both at the same time");
        assert!(!queues.is_done(4, first) && queues.is_done(4, 0));
        assert_eq!(drain(&mut queues), ["b", "a"]);
        assert!(queues.is_done(5, second) && queues.get(4).unwrap().is_idle());
    }
}
