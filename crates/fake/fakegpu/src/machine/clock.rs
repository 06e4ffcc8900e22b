//! The time of a card. Kernels of two processes never run at the same time: a process with work
//! takes the next slice by moving `busy_until`, in one compare-and-swap, and sleeps until its slice
//! is over. A process asks for its next slice only then, so processes that all have work alternate.
//! A switch from one to another costs time, and counts as busy time of the one that gets the slice:
//! the card's engine works for it.
//!
//! Time is the wall clock. A slice may begin in the past: work that was ready while
//! the card stood idle began then, however late its thread woke up, so the durations of a
//! process that is alone are exact.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::layout::{BUCKETS, Bucket, Clock, RECORDS, SLOTS};
use crate::spec::TimeRule;

const EIGHTH: u64 = 125_000_000;

/// A stretch of a card's time that belongs to one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// When it begins, nanoseconds of CLOCK_MONOTONIC.
    pub start: u64,
    /// When it ends.
    pub end: u64,
}

/// The next slice: at most as long as the rule says, at most `wanted`, not before `ready`; and the
/// time before it that was lost with the switch to this process.
pub(super) fn take(
    clock: &Clock,
    rule: TimeRule,
    slot: u64,
    ready: u64,
    wanted: u64,
) -> (Slice, u64) {
    let mut busy = clock.busy_until.load(Acquire);
    let (slice, lost) = loop {
        // The first process of a machine finds no other one there.
        let is_there = busy == 0 || clock.owner.load(Acquire) == owner(slot, busy);
        let lost = if is_there { 0 } else { rule.switch };
        let start = busy.max(ready) + lost;
        let end = start + wanted.min(rule.slice);
        match clock
            .busy_until
            .compare_exchange_weak(busy, end, AcqRel, Acquire)
        {
            Ok(_) => break (Slice { start, end }, lost),
            Err(moved) => busy = moved,
        }
    };
    clock.owner.store(owner(slot, slice.end), Release);
    let number = clock.n_slices.fetch_add(1, AcqRel);
    let record = &clock.records[number as usize % RECORDS];
    record.end.store(0, Release);
    record.start.store(slice.start, Relaxed);
    record.slot.store(slot, Relaxed);
    record.end.store(slice.end, Release);
    (slice, lost)
}

/// Returns the word that says who has a card until a time. Somebody who comes between the stores of
/// the two finds a word for another time, and takes the last process for another one.
fn owner(slot: u64, until: u64) -> u64 {
    until.wrapping_mul(SLOTS as u64) | slot
}

/// Gives back the rest of a slice after `used`. Too late if somebody already has the time behind
/// it.
pub(super) fn give_back(clock: &Clock, slot: u64, slice: Slice, used: u64) {
    let from = used.clamp(slice.start, slice.end);
    let given = clock
        .busy_until
        .compare_exchange(slice.end, from, AcqRel, Acquire);
    if given.is_ok() {
        clock.owner.store(owner(slot, from), Release);
    }
}

/// The last slices, in no order, those that are just being written left out.
pub(super) fn slices(clock: &Clock) -> Vec<(u64, Slice)> {
    clock
        .records
        .iter()
        .filter_map(|record| {
            let end = record.end.load(Acquire);
            let start = record.start.load(Relaxed);
            let slot = record.slot.load(Relaxed);
            let whole = end != 0 && record.end.load(Acquire) == end;
            whole.then_some((slot, Slice { start, end }))
        })
        .collect()
}

/// Counts the time from `start` to `end` as busy.
pub(super) fn count(buckets: &[Bucket; BUCKETS], start: u64, end: u64) {
    let mut from = start;
    while from < end {
        let eighth = from / EIGHTH;
        let to = end.min((eighth + 1) * EIGHTH);
        let bucket = &buckets[eighth as usize % BUCKETS];
        let seen = bucket.eighth.load(Acquire);
        // Whoever changes the number of the bucket also empties it. A reader or writer
        // that comes in between is wrong by one slice, in a figure for people.
        if seen != eighth
            && bucket
                .eighth
                .compare_exchange(seen, eighth, AcqRel, Acquire)
                .is_ok()
        {
            bucket.busy.store(0, Release);
        }
        bucket.busy.fetch_add(to - from, AcqRel);
        from = to;
    }
}

/// Busy nanoseconds in the second before `now`.
pub(super) fn busy(buckets: &[Bucket; BUCKETS], now: u64) -> u64 {
    let current = now / EIGHTH;
    let first = current.saturating_sub(8);
    let mut sum = 0;
    for eighth in first..=current {
        let bucket = &buckets[eighth as usize % BUCKETS];
        if bucket.eighth.load(Acquire) == eighth {
            let busy = bucket.busy.load(Acquire).min(EIGHTH);
            // Of the oldest bucket only the part that is within the second.
            let part = if eighth == first {
                EIGHTH - now % EIGHTH
            } else {
                EIGHTH
            };
            sum += busy * part / EIGHTH;
        }
    }
    sum.min(8 * EIGHTH)
}
