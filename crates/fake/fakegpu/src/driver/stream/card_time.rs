//! One card's time as one process has it: its slice, and the kernels that share it. A kernel that
//! does not fill the card leaves room for others of the same process, which then run at the same
//! time at full speed. So the process has the card once, however many of its kernels run.
//!
//! There is no clock and no thread here. Whoever drives it asks until when nothing changes, waits
//! for that time, and says that it has come. Starts and ends are counted in the time of the card,
//! so late wake-ups do not add up.

use crate::driver::stream::queue::Id;
use crate::machine::Slice;
use crate::machine::registration::Registration;

/// All of a card.
pub(crate) const WHOLE: u64 = 100;

/// One card's time as one process has it.
pub(super) struct CardTime<K> {
    card: usize,
    slice: Slice,
    /// Time up to which the running work has come.
    cursor: u64,
    running: Vec<Running<K>>,
}

/// A kernel that has begun.
pub(super) struct Running<K> {
    /// Its stream.
    pub(super) stream: Id,
    /// Time for which it still needs the card, in nanoseconds.
    pub(super) left: u64,
    /// Part of the card that it fills, in percent.
    pub(super) percent: u64,
    /// The kernel.
    pub(super) kernel: K,
}

impl<K> CardTime<K> {
    /// Nothing of a card.
    pub(super) fn new(card: usize) -> CardTime<K> {
        CardTime {
            card,
            slice: Slice { start: 0, end: 0 },
            cursor: 0,
            running: Vec::new(),
        }
    }

    /// Returns the part of the card that its kernels leave free, in percent.
    pub(super) fn free(&self) -> u64 {
        let used = self.running.iter().map(|running| running.percent);
        WHOLE.saturating_sub(used.sum())
    }

    /// Can a kernel that was ready at `ready` begin before time goes on?
    pub(super) fn has_come_to(&self, ready: u64) -> bool {
        self.running.is_empty() || ready <= self.cursor
    }

    /// Begins a kernel that was ready at `ready`.
    pub(super) fn begin(&mut self, registration: &Registration, kernel: Running<K>, ready: u64) {
        if self.running.is_empty() && ready > self.cursor {
            if ready >= self.slice.end {
                self.rest(registration);
            }
            self.cursor = ready;
        }
        self.running.push(kernel);
    }

    /// Takes out a kernel that needs no more time, with the time of its end.
    pub(super) fn take_ended(&mut self) -> Option<(Running<K>, u64)> {
        let place = self.running.iter().position(|running| running.left == 0)?;
        Some((self.running.remove(place), self.cursor))
    }

    /// The time until when nothing changes: the first kernel ends, the slice ends, or a kernel is
    /// ready for which there is room (`next`). `None` if none runs. A slice is asked for all
    /// that is waiting (`pending`), so short kernels of one process share one.
    pub(super) fn until(
        &mut self,
        registration: &Registration,
        pending: impl FnOnce() -> u64,
        next: Option<u64>,
    ) -> Option<u64> {
        let left = self.running.iter().map(|running| running.left);
        let (shortest, longest) = (left.clone().min()?, left.max()?);
        if self.cursor >= self.slice.end {
            let wanted = pending().saturating_add(longest);
            self.slice = registration.slice(self.card, self.cursor, wanted);
            self.cursor = self.slice.start;
        }
        let end = self.slice.end.min(self.cursor + shortest);
        Some(next.map_or(end, |next| end.min(next.max(self.cursor))))
    }

    /// Time has come to `to`, as [`CardTime::until`] said: all kernels had the card until then.
    pub(super) fn go_on(&mut self, registration: &Registration, to: u64) {
        registration.worked(self.card, self.cursor, to);
        for running in &mut self.running {
            running.left -= to - self.cursor;
        }
        self.cursor = to;
    }

    /// Gives back the rest of the slice.
    pub(super) fn rest(&mut self, registration: &Registration) {
        if self.cursor < self.slice.end {
            registration.give_back(self.card, self.slice, self.cursor);
            self.slice.end = self.cursor;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::FakeMachine;
    use crate::spec::Spec;

    /// Runs kernels `(name, ready, nanos, percent)`, each in a stream of its own and all known from
    /// the start; when each ended, from the first one's start, and the busy time.
    fn run(kernels: &[(&'static str, u64, u64, u64)]) -> (Vec<(&'static str, u64)>, u64) {
        let base = tempfile::tempdir().unwrap();
        let spec = Spec::parse("1x16MiB").unwrap();
        let machine = FakeMachine::open_or_create_in(base.path(), &spec).unwrap();
        let registration = machine.take_slot().unwrap();
        // All of it is over, and within the last second.
        let origin = crate::machine::now() - 50 * MS;
        let mut time = CardTime::new(0);
        let (mut waiting, mut ended) = (kernels.iter().copied().peekable(), Vec::new());
        loop {
            if let Some((running, end)) = time.take_ended() {
                ended.push((running.kernel, end - origin));
                continue;
            }
            let next = waiting.peek().filter(|next| next.3 <= time.free());
            let ready = next.map(|next| origin + next.1);
            if let (Some(&(kernel, _, left, percent)), Some(ready)) = (next, ready)
                && time.has_come_to(ready)
            {
                waiting.next();
                let running = Running {
                    stream: 0,
                    left,
                    percent,
                    kernel,
                };
                time.begin(&registration, running, ready);
                continue;
            }
            let Some(to) = time.until(&registration, || 0, ready) else {
                break;
            };
            time.go_on(&registration, to);
        }
        time.rest(&registration);
        (ended, machine.busy(0))
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn kernels_that_fill_the_card_run_one_after_the_other() {
        let kernels = [("a", 0, 5 * MS, 100), ("b", 0, 20, 100), ("c", 0, 0, 100)];
        let ended = vec![("a", 5 * MS), ("b", 5 * MS + 20), ("c", 5 * MS + 20)];
        assert_eq!(run(&kernels), (ended, 5 * MS + 20));
    }

    #[test]
    fn kernels_overlap_up_to_a_full_card_and_the_card_is_busy_once() {
        let kernels = [
            ("a", 0, 5 * MS, 50),
            ("b", MS, 2 * MS, 25),
            // No room before `b` ends, and `d` does not overtake it.
            ("c", MS, 9 * MS, 50),
            ("d", MS, MS, 25),
        ];
        let ended = vec![("b", 3 * MS), ("a", 5 * MS), ("d", 6 * MS), ("c", 12 * MS)];
        assert_eq!(run(&kernels), (ended, 12 * MS));
    }

    #[test]
    fn time_without_kernels_is_not_busy() {
        let kernels = [("a", 0, MS, 50), ("b", 7 * MS, MS, 50)];
        assert_eq!(run(&kernels), (vec![("a", MS), ("b", 8 * MS)], 2 * MS));
    }
}
