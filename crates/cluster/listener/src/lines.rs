//! The connections of a listener: the stage of each, its start, and the bytes held; and the choice
//! of the connection that makes room.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sublet_telemetry::metrics::{Refused, RefusedLabels};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::limits::Limits;

/// Interval of checks while a connection waits for room: another may have become ripe to go.
const LOOK: Duration = Duration::from_millis(50);
/// The least time between two lines of the log for one reason.
const LOG_PAUSE: Duration = Duration::from_secs(10);

/// Stage of a connection, by the thing that it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// TLS begins.
    Handshake,
    /// The head of a call comes.
    Head,
    /// Its body comes.
    Body,
    /// We look for the answer.
    Work,
    /// The caller reads it.
    Answer,
    /// The next call.
    Idle,
}

const STAGES: [Stage; 6] = [
    Stage::Handshake,
    Stage::Head,
    Stage::Body,
    Stage::Work,
    Stage::Answer,
    Stage::Idle,
];

impl Stage {
    /// Longest duration; `None` for no limit.
    fn limit(self, limits: &Limits) -> Option<Duration> {
        match self {
            Stage::Handshake => Some(limits.handshake),
            Stage::Head => Some(limits.head),
            Stage::Body => Some(limits.body),
            Stage::Work => None,
            Stage::Answer => Some(limits.answer),
            Stage::Idle => Some(limits.idle),
        }
    }

    /// Reason for cutting a connection that stays in it; `None` if that is normal.
    fn complaint(self) -> Option<&'static str> {
        match self {
            Stage::Handshake => Some("handshake_time"),
            Stage::Head => Some("head_time"),
            Stage::Body => Some("body_time"),
            Stage::Answer => Some("answer_time"),
            Stage::Work | Stage::Idle => None,
        }
    }
}

/// One connection, as it is judged.
#[derive(Debug)]
struct Entry {
    address: IpAddr,
    stage: Stage,
    since: Instant,
    /// Bytes of its call's body or answer.
    held: usize,
    /// It has asked something before.
    served: bool,
    cut: Arc<Notify>,
}

impl Entry {
    /// Returns true if it has kept us waiting so long that another may take its place.
    fn is_ripe(&self, limits: &Limits, now: Instant) -> bool {
        let grace = match self.stage {
            Stage::Work => limits.work,
            _ => limits.grace,
        };
        now.duration_since(self.since) >= grace
    }
}

/// All connections of a listener.
#[derive(Debug)]
pub(crate) struct Lines {
    pub(crate) limits: Limits,
    state: Mutex<State>,
    /// Room has come.
    freed: Notify,
    refused: Refused,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<u64, Entry>,
    next: u64,
    held: usize,
    n_answers: u64,
    /// When each reason was last in the log, and how often it was not since.
    logged: BTreeMap<&'static str, (Instant, u64)>,
}

/// The order in which connections of one address go: first one without any call yet, then the one
/// that waits longest.
type Rank = (bool, Instant, u64);

impl State {
    /// The connection to cut: of the address with the largest sum of `weight`, the one that has
    /// asked nothing yet, then the one that waits longest. An address with less than half of the
    /// largest sum loses none: the others will be ripe in a moment.
    fn victim(
        &self,
        weight: impl Fn(u64, &Entry) -> usize,
        may_go: impl Fn(u64, &Entry) -> bool,
    ) -> Option<u64> {
        let mut sums: BTreeMap<IpAddr, (usize, Option<Rank>)> = BTreeMap::new();
        for (&id, entry) in &self.entries {
            let (sum, first) = sums.entry(entry.address).or_default();
            *sum += weight(id, entry);
            if may_go(id, entry) {
                let rank = (entry.served, entry.since, id);
                *first = Some(first.map_or(rank, |first| first.min(rank)));
            }
        }
        let largest = sums.values().map(|(sum, _)| *sum).max()?;
        let ripe = sums.into_values().filter(|(_, first)| first.is_some());
        let (sum, first) = ripe.max_by_key(|(sum, _)| *sum)?;
        first.filter(|_| sum >= largest / 2).map(|(_, _, id)| id)
    }

    /// Takes a connection out; its task hears of it.
    fn cut(&mut self, id: u64) -> Option<IpAddr> {
        let entry = self.entries.remove(&id)?;
        self.held -= entry.held;
        entry.cut.notify_one();
        Some(entry.address)
    }
}

impl Lines {
    pub(crate) fn new(limits: Limits, refused: Refused) -> Arc<Lines> {
        Arc::new(Lines {
            limits,
            state: Mutex::default(),
            freed: Notify::new(),
            refused,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of connections, and of answers.
    pub(crate) fn count(&self) -> (usize, u64) {
        let state = self.state();
        (state.entries.len(), state.n_answers)
    }

    /// Bytes that all hold.
    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.state().held
    }

    /// Sum of the bytes that each holds.
    #[cfg(test)]
    pub(crate) fn sum(&self) -> usize {
        self.state().entries.values().map(|entry| entry.held).sum()
    }

    /// Waits until there is room for one more.
    pub(crate) async fn room(&self) {
        while !self.make_room() {
            let _looked = tokio::time::timeout(LOOK, self.freed.notified()).await;
        }
    }

    fn make_room(&self) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        if state.entries.len() < self.limits.connections {
            return true;
        }
        let ripe = |_, entry: &Entry| entry.is_ripe(&self.limits, now);
        let gone = state.victim(|_, _| 1, ripe).and_then(|id| state.cut(id));
        drop(state);
        if let Some(address) = gone {
            self.refuse("crowd", address);
        }
        gone.is_some()
    }

    /// Takes one more in.
    pub(crate) fn open(self: &Arc<Lines>, address: IpAddr, stage: Stage) -> Arc<Line> {
        let cut = Arc::new(Notify::new());
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        let entry = Entry {
            address,
            stage,
            since: Instant::now(),
            held: 0,
            served: false,
            cut: cut.clone(),
        };
        state.entries.insert(id, entry);
        Arc::new(Line {
            lines: self.clone(),
            id,
            address,
            stage: AtomicU8::new(stage as u8),
            cut,
        })
    }

    /// Counts a refusal, and logs the first of some.
    pub(crate) fn refuse(&self, reason: &'static str, address: IpAddr) {
        let listener = self.limits.name;
        let labels = RefusedLabels { listener, reason };
        self.refused.get_or_create(&labels).inc();
        let now = Instant::now();
        let mut state = self.state();
        let untold = match state.logged.get_mut(reason) {
            Some((at, untold)) if now.duration_since(*at) < LOG_PAUSE => {
                *untold += 1;
                return;
            }
            Some((_, untold)) => *untold,
            None => 0,
        };
        state.logged.insert(reason, (now, 0));
        drop(state);
        tracing::warn!(listener, reason, %address, untold, "refused");
    }
}

/// One connection, in its own task's hands.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) lines: Arc<Lines>,
    id: u64,
    pub(crate) address: IpAddr,
    /// The entry's, to be read without the lock.
    stage: AtomicU8,
    cut: Arc<Notify>,
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut state = self.lines.state();
        state.cut(self.id);
        drop(state);
        self.lines.freed.notify_waiters();
    }
}

impl Line {
    pub(crate) fn stage(&self) -> Stage {
        STAGES[usize::from(self.stage.load(Ordering::Relaxed))]
    }

    /// From here on it waits for something else. Between calls it holds nothing.
    pub(crate) fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Ordering::Relaxed);
        let mut state = self.lines.state();
        let state = &mut *state;
        if stage == Stage::Answer {
            state.n_answers += 1;
        }
        let Some(entry) = state.entries.get_mut(&self.id) else {
            return;
        };
        entry.stage = stage;
        entry.since = Instant::now();
        entry.served |= stage == Stage::Answer;
        if stage == Stage::Idle && entry.held > 0 {
            state.held -= std::mem::take(&mut entry.held);
            self.lines.freed.notify_waiters();
        }
    }

    /// Waits until its call may hold this number of bytes. If that is more than there are, the
    /// wait never ends, but its stage does.
    pub(crate) async fn hold(&self, bytes: usize) {
        while !self.try_hold(bytes) {
            let freed = self.lines.freed.notified();
            let _looked = tokio::time::timeout(LOOK, freed).await;
        }
    }

    fn try_hold(&self, bytes: usize) -> bool {
        let now = Instant::now();
        let limits = &self.lines.limits;
        let mut cut = Vec::new();
        let mut state = self.lines.state();
        let held = loop {
            let Some(entry) = state.entries.get(&self.id) else {
                break false;
            };
            let others = state.held - entry.held;
            if others.saturating_add(bytes) <= limits.held {
                state.held = others + bytes;
                if let Some(entry) = state.entries.get_mut(&self.id) {
                    entry.held = bytes;
                }
                break true;
            }
            let may_go =
                |id, entry: &Entry| id != self.id && entry.held > 0 && entry.is_ripe(limits, now);
            let weight = |id, entry: &Entry| if id == self.id { 0 } else { entry.held };
            let gone = state.victim(weight, may_go);
            match gone.and_then(|id| state.cut(id)) {
                Some(address) => cut.push(address),
                None => break false,
            }
        };
        drop(state);
        for address in cut {
            self.lines.refuse("memory", address);
        }
        held
    }

    /// Does a connection's work, until it keeps us waiting for too long or has to make room.
    pub(crate) async fn watch(&self, work: impl Future<Output = ()>) {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                () = &mut work => return,
                () = self.cut.notified() => return,
                () = tokio::time::sleep(self.pause()) => {
                    if self.is_late() {
                        if let Some(reason) = self.stage().complaint() {
                            self.lines.refuse(reason, self.address);
                        }
                        return;
                    }
                }
            }
        }
    }

    /// Time until the next look: stages change meanwhile, and no limit is shorter than those of
    /// a call.
    fn pause(&self) -> Duration {
        let limits = &self.lines.limits;
        let shortest = limits.handshake.min(limits.head).min(limits.body);
        (shortest / 8).min(limits.answer / 8).min(limits.idle / 8)
    }

    fn is_late(&self) -> bool {
        let state = self.lines.state();
        state.entries.get(&self.id).is_none_or(|entry| {
            let limit = entry.stage.limit(&self.lines.limits);
            limit.is_some_and(|limit| entry.since.elapsed() >= limit)
        })
    }
}
