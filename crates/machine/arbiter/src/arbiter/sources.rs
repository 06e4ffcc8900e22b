//! The sources that the arbiter waits for: descriptors, the kind of each, and the descriptors
//! with more to read than one turn may take.
//!
//! *Callers* are the sockets at which processes connect, and the connections of processes whose
//! hello has no answer: a program waits there to begin. The arbiter can wait for these alone. They
//! have a poller of their own, which the other poller waits for.

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

impl Source {
    /// Returns true if a program may wait there to begin.
    fn is_caller(self) -> bool {
        matches!(self, Source::ProcessListener(_) | Source::ProcessConnection)
    }
}

/// A descriptor, and the poller that has it.
#[derive(Debug)]
struct Place {
    source: Source,
    is_caller: bool,
}

/// All descriptors that the arbiter waits for.
pub(super) struct Sources {
    /// Waits for all: for callers by their poller.
    all: Poller,
    callers: Poller,
    by_key: BTreeMap<Key, Place>,
    /// Key of the newest descriptor. None is used twice.
    last: Key,
    /// To serve again in the next turn, in this order; passed-over ones first.
    passed_over: Vec<Key>,
    unfinished: Vec<Key>,
    /// All of both.
    again: BTreeSet<Key>,
}

/// Key of the callers' poller.
const CALLERS: Key = 0;

impl Sources {
    pub(super) fn new() -> Result<Sources, ArbiterError> {
        let (all, callers) = (Poller::new()?, Poller::new()?);
        all.add(&callers, CALLERS, "callers")?;
        Ok(Sources {
            all,
            callers,
            by_key: BTreeMap::new(),
            last: CALLERS,
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
        let (key, is_caller) = (self.last + 1, source.is_caller());
        let poller = if is_caller { &self.callers } else { &self.all };
        poller.add(descriptor, key, what)?;
        self.last = key;
        self.by_key.insert(key, Place { source, is_caller });
        Ok(key)
    }

    /// A caller has its answer: it is none from now on.
    pub(super) fn let_in(&mut self, key: Key, descriptor: impl AsFd) {
        if let Some(place) = self.by_key.get_mut(&key).filter(|place| place.is_caller)
            // If the kernel has no room for it there, it stays where it is.
            && self.all.add(&descriptor, key, "a process").is_ok()
        {
            self.callers.remove(&descriptor);
            place.is_caller = false;
        }
    }

    /// The source of a key; `None` if earlier news of the same turn removed it.
    pub(super) fn get(&self, key: Key) -> Option<Source> {
        self.by_key.get(&key).map(|place| place.source)
    }

    /// Waits no more for a descriptor, which is still open.
    pub(super) fn remove(&mut self, key: Key, descriptor: impl AsFd) {
        self.again.remove(&key);
        if let Some(place) = self.by_key.remove(&key) {
            self.poller_of(&place).remove(descriptor);
        }
    }

    /// Forgets a closed descriptor of this thread; no process can have put anything in it.
    pub(super) fn forget(&mut self, key: Key) {
        self.by_key.remove(&key);
        self.again.remove(&key);
    }

    /// Waits until a descriptor can be read, written, or both.
    pub(super) fn set_interest(&self, descriptor: impl AsFd, key: Key, read: bool, write: bool) {
        if let Some(place) = self.by_key.get(&key) {
            let poller = self.poller_of(place);
            poller.set_interest(descriptor, key, read, write);
        }
    }

    fn poller_of(&self, place: &Place) -> &Poller {
        match place.is_caller {
            true => &self.callers,
            false => &self.all,
        }
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
        let mut news = self.all.wait(limit)?;
        if let Some(at) = news.iter().position(|key| *key == CALLERS) {
            news.remove(at);
            news.append(&mut self.callers.wait(Duration::ZERO)?);
        }
        Ok(news)
    }

    /// Waits for news of callers, at most for `limit`. All other news stay.
    pub(super) fn wait_for_callers(&mut self, limit: Duration) -> Result<Vec<Key>, ArbiterError> {
        self.callers.wait(limit)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn callers_can_be_waited_for_alone_until_they_are_let_in() {
        let mut sources = Sources::new().unwrap();
        let pair = || UnixStream::pair().unwrap();
        let [(caller, mut one), (other, mut two)] = [pair(), pair()];
        let caller_key = sources.add(&caller, "one", Source::ProcessConnection);
        let other_key = sources.add(&other, "two", Source::Turns);
        let (caller_key, other_key) = (caller_key.unwrap(), other_key.unwrap());
        let now = Duration::ZERO;
        assert!(sources.wait(now).unwrap().is_empty());
        for end in [&mut one, &mut two] {
            end.write_all(b"!").unwrap();
        }
        assert_eq!(sources.wait_for_callers(now).unwrap(), [caller_key]);
        let both = |sources: &mut Sources| {
            let mut news = sources.wait(now).unwrap();
            news.sort_unstable();
            news
        };
        assert_eq!(both(&mut sources), [caller_key, other_key]);
        sources.set_interest(&caller, caller_key, false, false);
        assert_eq!(both(&mut sources), [other_key]);
        sources.set_interest(&caller, caller_key, true, false);
        for _ in 0..2 {
            sources.let_in(caller_key, &caller);
            assert!(sources.wait_for_callers(now).unwrap().is_empty());
            assert_eq!(both(&mut sources), [caller_key, other_key]);
        }
        sources.remove(caller_key, &caller);
        sources.remove(other_key, &other);
        assert!(both(&mut sources).is_empty());
    }

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
