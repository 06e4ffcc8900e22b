//! The containers that are looked after, each in the hands of at most one thread. The lock is held
//! to look and to take note, never during a wait for the arbiter or the disk: a thread that does
//! such work takes the container in hand first. Others pass it by, or wait for it alone and not for
//! ever.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::record::Record;

/// A container, and whether the arbiter looks after it now.
#[derive(Clone, Debug)]
pub(super) struct Tracked {
    pub(super) record: Record,
    pub(super) has_job: bool,
    /// Last problem that was logged.
    pub(super) complaint: Option<String>,
    /// When somebody came for it last. A list of pods from before may lack its pod.
    pub(super) since: Instant,
}

impl Tracked {
    /// One that has come now.
    pub(super) fn new(record: Record) -> Tracked {
        Tracked {
            record,
            has_job: false,
            complaint: None,
            since: Instant::now(),
        }
    }
}

/// All of them, by folder.
#[derive(Debug, Default)]
pub(super) struct Containers {
    all: Mutex<BTreeMap<PathBuf, Slot>>,
    put_down: Condvar,
}

#[derive(Debug)]
struct Slot {
    tracked: Tracked,
    in_hand: bool,
}

impl Containers {
    /// Looks at all of them.
    pub(super) fn read<T>(&self, look: impl FnOnce(std::vec::IntoIter<&Tracked>) -> T) -> T {
        let all = self.lock();
        let each: Vec<&Tracked> = all.values().map(|slot| &slot.tracked).collect();
        look(each.into_iter())
    }

    /// True if there is one with its folder in that place.
    pub(super) fn has_any_below(&self, place: &Path) -> bool {
        self.lock().keys().any(|folder| folder.starts_with(place))
    }

    /// Takes the container of that folder in hand, which is a new one from now on; returns it with what
    /// was there before. Nothing if another thread still has it in hand after `patience`.
    pub(super) fn enter(
        &self,
        folder: &Path,
        new: Tracked,
        patience: Duration,
    ) -> Option<(InHand<'_>, Option<Tracked>)> {
        let all = self.lock();
        let is_busy =
            |all: &mut BTreeMap<PathBuf, Slot>| all.get(folder).is_some_and(|slot| slot.in_hand);
        let waited = self.put_down.wait_timeout_while(all, patience, is_busy);
        let (mut all, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return None;
        }
        let slot = Slot {
            tracked: new.clone(),
            in_hand: true,
        };
        let before = all.insert(folder.to_owned(), slot);
        Some((self.hand(folder, new), before.map(|slot| slot.tracked)))
    }

    /// Takes all containers in hand that fulfil `wants`, and passes those by that other threads
    /// have in hand.
    pub(super) fn take(&self, wants: impl Fn(&Tracked) -> bool) -> Vec<InHand<'_>> {
        let mut all = self.lock();
        let free = all
            .iter_mut()
            .filter(|(_, slot)| !slot.in_hand && wants(&slot.tracked));
        let taken = free.map(|(folder, slot)| {
            slot.in_hand = true;
            self.hand(folder, slot.tracked.clone())
        });
        taken.collect()
    }

    fn hand(&self, folder: &Path, tracked: Tracked) -> InHand<'_> {
        InHand {
            containers: self,
            folder: folder.to_owned(),
            tracked,
            is_gone: false,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Slot>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A container that this thread has in hand, until it is dropped.
#[derive(Debug)]
pub(super) struct InHand<'a> {
    containers: &'a Containers,
    folder: PathBuf,
    /// The container as it will be for others.
    pub(super) tracked: Tracked,
    is_gone: bool,
}

impl InHand<'_> {
    /// Nobody is to look after it any more.
    pub(super) fn forget(mut self) {
        self.is_gone = true;
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        let mut all = self.containers.lock();
        if self.is_gone {
            all.remove(&self.folder);
        } else if let Some(slot) = all.get_mut(&self.folder) {
            slot.tracked = self.tracked.clone();
            slot.in_hand = false;
        }
        drop(all);
        self.containers.put_down.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolate::record::tests::record;

    /// The pods whose containers are taken.
    fn taken(hands: &[InHand<'_>]) -> Vec<String> {
        let pods = hands.iter().map(|hand| hand.tracked.record.pod.clone());
        pods.collect()
    }

    #[test]
    fn who_has_a_container_in_hand_keeps_nobody_from_the_others() {
        let all = Containers::default();
        let enter = |pod: &str, patience| {
            let new = Tracked::new(record(pod, None));
            all.enter(Path::new(pod), new, patience)
        };
        let now = Duration::ZERO;
        let (mut a, before) = enter("a", now).unwrap();
        assert!(before.is_none());
        // Others look, and come by with what is theirs.
        assert_eq!(all.read(|each| each.count()), 1);
        drop(enter("b", now).unwrap());
        assert!(enter("a", now).is_none());
        assert_eq!(taken(&all.take(|_| true)), ["b"]);
        a.tracked.has_job = true;
        drop(a);
        assert!(all.read(|mut each| each.any(|one| one.has_job)));
        let hands = all.take(|_| true);
        assert_eq!(taken(&hands), ["a", "b"]);
        assert_eq!(taken(&all.take(|_| true)), [""; 0]);
        hands.into_iter().for_each(InHand::forget);
        assert_eq!(all.read(|each| each.count()), 0);
    }

    #[test]
    fn who_comes_for_the_same_container_finds_it_as_it_was_left() {
        let all = Containers::default();
        let new = || Tracked::new(record("a", None));
        let long = Duration::from_secs(60);
        let (mut first, _) = all.enter(Path::new("a"), new(), long).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| all.enter(Path::new("a"), new(), long).unwrap().1);
            first.tracked.record.id = Some(7);
            drop(first);
            let before = second.join().unwrap().unwrap();
            assert_eq!(before.record.id, Some(7));
        });
    }
}
