//! The cache as a state machine. A set that is asked for is *listed*: its source is compared with
//! the versions that are there (R4.2: a copy is never changed, so a source that changed makes a new
//! version beside it). If none shows that state, the set waits for room and is *fetched*. All
//! requests for a set share one flight; a request that was answered holds its version until it
//! leaves.
//!
//! ```text
//! absent -> listing -> waiting for room -> fetching -> ready -> evicting -> absent
//!              ^  \____________________________________/  ^
//!            resting after a failure                    damaged <-> repairing, else lost
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sublet_model::{Bytes, Time};

use self::state::{Dataset, Part, Request, Step, Version, VersionState};
use crate::event::{CacheAction, CacheAnswer, CacheEvent, Freshness, Urgency};
use crate::key::{DatasetKey, RequestId, SourceFingerprint, VersionDigest};

mod flight;
mod room;
mod state;
#[cfg(test)]
mod tests;
mod view;

pub use state::{CacheLimits, DatasetCache, KnownDataset, KnownVersion, Recovered};
pub use view::{DatasetState, DatasetView};

/// A failure is shown for so long after the last try.
const FAILURE_SHOWN: Duration = Duration::from_secs(3600);

impl DatasetCache {
    /// The cache of a store as it was found. Leases of versions that are not there are forgotten.
    #[must_use]
    pub fn new(limits: CacheLimits, found: Recovered) -> DatasetCache {
        let mut cache = DatasetCache {
            limits,
            disk: found.disk,
            versions: BTreeMap::new(),
            sets: BTreeMap::new(),
            requests: BTreeMap::new(),
            next: 0,
        };
        for known in found.versions {
            cache.enter(known);
        }
        for known in found.sets {
            let current = known.version.filter(|v| cache.versions.contains_key(v));
            let part = Part {
                bytes: known.part,
                used: known.part_used,
                is_dropping: false,
            };
            let set = Dataset {
                current,
                is_pinned: known.is_pinned,
                part,
                ..Dataset::default()
            };
            cache.sets.insert(known.key, set);
        }
        for (request, set, version) in found.leases {
            if let Some(known) = cache.versions.get_mut(&version) {
                known.leases.insert(request.clone());
                let lease = Request {
                    set,
                    urgency: Urgency::Now,
                    waits: true,
                    lease: Some(version),
                };
                cache.requests.insert(request, lease);
            }
        }
        cache
    }

    /// Carries an event out and says what is to be done.
    pub fn apply(&mut self, now: Time, event: CacheEvent) -> Vec<CacheAction> {
        let mut actions = Vec::new();
        let out = &mut actions;
        match event {
            CacheEvent::Asked {
                request,
                set,
                urgency,
                freshness,
                waits,
            } => {
                let asked = Request {
                    set,
                    urgency,
                    waits,
                    lease: None,
                };
                self.asked(now, request, asked, freshness, out);
            }
            CacheEvent::Left(request) => self.left(now, &request, out),
            CacheEvent::Listed { set, listing } => self.listed(now, &set, listing, out),
            CacheEvent::Written { set, bytes, disk } => {
                self.disk = disk;
                self.written(&set, bytes);
            }
            CacheEvent::Fetched {
                set,
                made,
                left,
                disk,
            } => {
                self.disk = disk;
                self.fetched(now, &set, made, left, out);
            }
            CacheEvent::Evicted { version, disk } => {
                self.disk = disk;
                self.versions.remove(&version);
            }
            CacheEvent::Dropped { set, disk } => {
                self.disk = disk;
                if let Some(set) = self.sets.get_mut(&set) {
                    set.part = Part::default();
                }
            }
            CacheEvent::Damaged(version) => self.damaged(version, out),
            CacheEvent::Repaired(version, is_whole) => self.repaired(now, version, is_whole, out),
            CacheEvent::Pinned(set, pinned) => {
                // Also one that is not here: it stays from when it comes.
                self.sets.entry(set).or_default().is_pinned = pinned;
            }
            CacheEvent::Unwanted(set) => self.unwanted(&set, out),
            CacheEvent::Space(disk) => self.disk = disk,
            CacheEvent::Tick => {}
        }
        self.list_again(now, out);
        self.evict_useless(out);
        self.make_room(now, out);
        self.forget_empty(now);
        actions
    }

    fn asked(
        &mut self,
        now: Time,
        request: RequestId,
        asked: Request,
        freshness: Freshness,
        out: &mut Vec<CacheAction>,
    ) {
        match self.requests.get(&request) {
            Some(known) if known.set == asked.set => {
                if let Some(version) = known.lease {
                    out.push(CacheAction::Answer(request, CacheAnswer::Ready(version)));
                }
                return;
            }
            Some(_) => self.left(now, &request, out),
            None => {}
        }
        let set = asked.set.clone();
        self.requests.insert(request.clone(), asked);
        let dataset = self.sets.entry(set.clone()).or_default();
        dataset.is_unwanted = false;
        let current = dataset.current;
        let current = current.filter(|version| self.is_ready(version));
        match (freshness, current) {
            (Freshness::AsCached, Some(version)) => self.grant(now, &request, version, out),
            _ => self.join_flight(&set, out),
        }
    }

    /// Gives a waiting request a version.
    fn grant(
        &mut self,
        now: Time,
        request: &RequestId,
        version: VersionDigest,
        out: &mut Vec<CacheAction>,
    ) {
        let (Some(waiting), Some(known)) = (
            self.requests.get_mut(request),
            self.versions.get_mut(&version),
        ) else {
            return;
        };
        waiting.lease = Some(version);
        known.leases.insert(request.clone());
        known.used = now;
        out.push(CacheAction::Answer(
            request.clone(),
            CacheAnswer::Ready(version),
        ));
    }

    fn left(&mut self, now: Time, request: &RequestId, out: &mut Vec<CacheAction>) {
        let Some(gone) = self.requests.remove(request) else {
            return;
        };
        let Some(version) = gone.lease else {
            return self.fewer_wait(&gone.set, out);
        };
        let Some(known) = self.versions.get_mut(&version) else {
            return;
        };
        known.leases.remove(request);
        known.used = now;
        out.push(CacheAction::Released {
            request: request.clone(),
            version,
            at: now,
        });
    }

    /// Enters a version that is whole.
    fn enter(&mut self, made: KnownVersion) {
        let known = self.versions.entry(made.version);
        let known = known.or_insert_with(|| Version {
            packs: BTreeMap::new(),
            own: made.own,
            size: made.size,
            fingerprints: BTreeSet::new(),
            state: VersionState::Ready,
            was_lost: false,
            leases: BTreeSet::new(),
            used: made.used,
        });
        known.packs = made.packs;
        known.fingerprints.extend(made.fingerprints);
        known.state = VersionState::Ready;
        known.was_lost = false;
        known.used = made.used;
    }

    fn damaged(&mut self, version: VersionDigest, out: &mut Vec<CacheAction>) {
        if let Some(known) = self.versions.get_mut(&version)
            && known.state == VersionState::Ready
        {
            known.state = VersionState::Damaged;
            out.push(CacheAction::Repair(version));
        }
    }

    fn repaired(
        &mut self,
        now: Time,
        version: VersionDigest,
        is_whole: bool,
        out: &mut Vec<CacheAction>,
    ) {
        let Some(known) = self.versions.get_mut(&version) else {
            return;
        };
        if known.state != VersionState::Damaged {
            return;
        }
        if is_whole {
            known.state = VersionState::Ready;
        } else {
            known.state = VersionState::Lost;
            known.was_lost = true;
            known.fingerprints.clear();
        }
        for key in self.keys_in(
            |set| matches!(&set.flight, Some(flight) if flight.step == Step::Repairing(version)),
        ) {
            match is_whole {
                true => self.arrived(now, &key, version, out),
                // The source has other bytes under the same times: only a fetch can tell.
                false => self.list(&key, out),
            }
        }
        if !is_whole {
            self.forget_version(version);
        }
    }

    /// The owner wants no copy any more. A version in use goes when it is left.
    fn unwanted(&mut self, key: &DatasetKey, out: &mut Vec<CacheAction>) {
        let Some(set) = self.sets.get_mut(key) else {
            return;
        };
        set.is_pinned = false;
        set.is_unwanted = true;
        set.failure = None;
        set.current = None;
        self.answer_waiting(key, &CacheAnswer::Deleted, out);
        self.fewer_wait(key, out);
        self.drop_part(key, out);
    }

    /// Deletes the versions that no set shows and no request has.
    fn evict_useless(&mut self, out: &mut Vec<CacheAction>) {
        let shown: BTreeSet<_> = self.sets.values().filter_map(|set| set.current).collect();
        let is_writing = self.writing() > 0;
        let useless = self.versions.iter().filter(|(version, known)| {
            let may_go = match known.state {
                VersionState::Ready => true,
                // A fetch may be about to make it anew.
                VersionState::Lost => !is_writing,
                VersionState::Damaged | VersionState::Evicting(_) => false,
            };
            may_go && known.leases.is_empty() && !shown.contains(version)
        });
        let useless: Vec<VersionDigest> = useless.map(|(version, _)| *version).collect();
        for version in useless {
            self.evict(version, out);
        }
    }

    fn is_ready(&self, version: &VersionDigest) -> bool {
        let known = self.versions.get(version);
        known.is_some_and(|known| known.state == VersionState::Ready)
    }

    /// The version that shows a state of a source, and its own state.
    fn shows(&self, fingerprint: SourceFingerprint) -> Option<(VersionDigest, VersionState)> {
        let mut all = self.versions.iter();
        let (version, known) = all.find(|(_, known)| known.fingerprints.contains(&fingerprint))?;
        Some((*version, known.state))
    }

    /// No set shows that version any more, and no fetch can take from it.
    fn forget_version(&mut self, version: VersionDigest) {
        for set in self.sets.values_mut() {
            if set.current == Some(version) {
                set.current = None;
                if let Some(Step::Waiting(listing)) = set.flight.as_mut().map(|one| &mut one.step) {
                    listing.need = listing.whole;
                }
            }
        }
    }

    /// Sets of which nothing is left.
    fn forget_empty(&mut self, now: Time) {
        let is_asked: BTreeSet<_> = self.requests.values().map(|one| one.set.clone()).collect();
        self.sets.retain(|key, set| {
            set.failure.take_if(|(_, at)| at.plus(FAILURE_SHOWN) <= now);
            let is_empty = set.current.is_none()
                && set.flight.is_none()
                && set.part.bytes == Bytes::ZERO
                && set.failure.is_none()
                && !set.is_pinned;
            !is_empty || is_asked.contains(key)
        });
    }

    fn keys_in(&self, is_meant: impl Fn(&Dataset) -> bool) -> Vec<DatasetKey> {
        let meant = self.sets.iter().filter(|(_, set)| is_meant(set));
        meant.map(|(key, _)| key.clone()).collect()
    }
}
