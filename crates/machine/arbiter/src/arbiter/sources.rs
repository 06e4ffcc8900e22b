//! The sources that the arbiter waits for: descriptors, the kind of each, and the descriptors
//! with more to read than one turn may take.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::time::Duration;

use sublet_share::{JobId, Pid};

use super::listeners::Door;
use crate::error::ArbiterError;
use crate::poller::{Key, Poller};

/// Kind of a descriptor.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    AdminListener,
    /// A listener for processes.
    ProcessListener(Door),
    AdminConnection,
    ProcessConnection,
    Process(Pid),
    Root(JobId),
    Driver,
    /// The end of MPS's daemon.
    Mps,
    /// A slice or a wait is over.
    Turns,
    Commands,
    HostName,
    Stop,
}

/// All descriptors that the arbiter waits for.
pub(super) struct Sources {
    poller: Poller,
    by_key: BTreeMap<Key, Source>,
    /// To serve again in the next turn, in this order; passed-over ones first.
    passed_over: Vec<Key>,
    unfinished: Vec<Key>,
    /// All of both.
    again: BTreeSet<Key>,
}

impl Sources {
    pub(super) fn new() -> Result<Sources, ArbiterError> {
        Ok(Sources {
            poller: Poller::new()?,
            by_key: BTreeMap::new(),
            passed_over: Vec::new(),
            unfinished: Vec::new(),
            again: BTreeSet::new(),
        })
    }

    /// Waits for a descriptor until [`Sources::remove`]. `what` names it in an error.
    pub(super) fn add(
        &mut self,
        descriptor: impl AsFd,
        what: &str,
        source: Source,
    ) -> Result<Key, ArbiterError> {
        let key = self.poller.add(descriptor, what)?;
        self.by_key.insert(key, source);
        Ok(key)
    }

    /// The source of a key; `None` if earlier news of the same turn removed it.
    pub(super) fn get(&self, key: Key) -> Option<Source> {
        self.by_key.get(&key).copied()
    }

    /// Waits no more for a descriptor, which is still open.
    pub(super) fn remove(&mut self, key: Key, descriptor: impl AsFd) {
        self.again.remove(&key);
        if self.by_key.remove(&key).is_some() {
            self.poller.remove(descriptor);
        }
    }

    /// Forgets a closed descriptor of this thread; no process can have put anything in it.
    pub(super) fn forget(&mut self, key: Key) {
        self.by_key.remove(&key);
        self.again.remove(&key);
    }

    /// Waits until a descriptor can be read, written, or both.
    pub(super) fn set_interest(&self, descriptor: impl AsFd, key: Key, read: bool, write: bool) {
        self.poller.set_interest(descriptor, key, read, write);
    }

    /// Serves it again in the next turn, with or without news of it.
    pub(super) fn serve_again(&mut self, key: Key) {
        if self.again.insert(key) {
            self.unfinished.push(key);
        }
    }

    /// The same for one that was not served in this turn: before all that were.
    pub(super) fn pass_over(&mut self, key: Key) {
        if self.again.insert(key) {
            self.passed_over.push(key);
        }
    }

    /// Returns true if a descriptor is to be served again at once.
    pub(super) fn has_unfinished(&self) -> bool {
        !self.again.is_empty()
    }

    /// The descriptors to serve again at once.
    pub(super) fn take_unfinished(&mut self) -> Vec<Key> {
        self.again.clear();
        let mut all = std::mem::take(&mut self.passed_over);
        all.append(&mut self.unfinished);
        all
    }

    /// Waits for news, at most for `limit`.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<Vec<Key>, ArbiterError> {
        self.poller.wait(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_passed_over_comes_before_those_who_were_served() {
        let mut sources = Sources::new().unwrap();
        for (key, is_served) in [(1, true), (2, false), (3, true), (4, false), (4, true)] {
            match is_served {
                true => sources.serve_again(key),
                false => sources.pass_over(key),
            }
        }
        assert!(sources.has_unfinished());
        assert_eq!(sources.take_unfinished(), [2, 4, 1, 3]);
        assert!(!sources.has_unfinished());
        sources.serve_again(5);
        sources.forget(5);
        assert!(!sources.has_unfinished());
    }
}
