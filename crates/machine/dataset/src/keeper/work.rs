//! Work on the disk and at sources, each in a thread of its own, and what follows from its end.

use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use sublet_cache::{
    CacheEvent, DatasetKey, FaultKind, Made, PackId, SourceFault, Urgency, VersionDigest,
    share_readers,
};
use sublet_model::Bytes;

use super::{Flight, Input, Keeper, PROGRESS, broken, now};
use crate::crew::StopFlag;
use crate::record::{SetRecord, VersionRecord};
use crate::source::open::open_source;
use crate::store::making::{FetchOrder, Listed, MadeVersion};

impl Keeper {
    pub(super) fn begin_listing(&mut self, set: DatasetKey) {
        let source = self.record.set_mut(&set).map(|set| set.source.clone());
        let present = self.cache.set(&set).and_then(|view| view.version);
        let store = self.store.clone();
        let failed = Input::Listed(set.clone(), Box::new(Err(broken("a listing"))));
        self.spawn("list a source", failed, move || {
            let source = open_source(&source.unwrap_or_default());
            let listed =
                source.and_then(|source| store.list(source, present, &StopFlag::default()));
            Input::Listed(set, Box::new(listed))
        });
    }

    pub(super) fn heard_listed(&mut self, set: &DatasetKey, listed: Result<Listed, SourceFault>) {
        let listing = match listed {
            Ok(listed) => {
                let listing = listed.listing;
                self.listed.insert(set.clone(), Arc::new(listed));
                Ok(listing)
            }
            Err(fault) => Err(fault),
        };
        self.event(CacheEvent::Listed {
            set: set.clone(),
            listing,
        });
        if !self.flights.contains_key(set)
            && self
                .cache
                .set(set)
                .is_none_or(|view| view.need == Bytes::ZERO)
        {
            // It was a hit, or failed: nobody fetches what was listed.
            self.listed.remove(set);
        }
    }

    pub(super) fn begin_fetch(&mut self, set: DatasetKey, room: Bytes, urgency: Urgency) {
        let Some(listed) = self.listed.get(&set).cloned() else {
            let fault = SourceFault {
                kind: FaultKind::Changed,
                text: "its listing is gone".to_owned(),
            };
            let _it_ends = self.inputs.send(Input::Fetched(set, Box::new(Err(fault))));
            return;
        };
        let plans = self.store.plans(&listed);
        let order = FetchOrder {
            room,
            readers: Arc::new(AtomicUsize::new(1)),
            stop: StopFlag::default(),
        };
        self.note_parts(&set, &plans);
        let flight = Flight {
            order: order.clone(),
            plans,
            urgency,
        };
        self.flights.insert(set.clone(), flight);
        self.share_readers();
        let (store, inputs) = (self.store.clone(), self.inputs.clone());
        let failed = Input::Fetched(set.clone(), Box::new(Err(broken("a fetch"))));
        self.spawn("fetch a data set", failed, move || {
            let mut last = Instant::now();
            let came = |bytes| {
                if last.elapsed() >= PROGRESS {
                    last = Instant::now();
                    let _it_ends = inputs.send(Input::Written(set.clone(), Bytes::new(bytes)));
                }
            };
            let made = store.make(&listed, &order, came);
            Input::Fetched(set.clone(), Box::new(made))
        });
    }

    /// Says to each fetch how many readers it may have now.
    pub(super) fn share_readers(&self) {
        let urgencies: Vec<Urgency> = self.flights.values().map(|one| one.urgency).collect();
        for (flight, readers) in self.flights.values().zip(share_readers(&urgencies)) {
            flight.order.readers.store(readers, Ordering::Relaxed);
        }
    }

    /// Notes what a fetch begins, beside what was begun before and is not deleted yet.
    fn note_parts(&mut self, key: &DatasetKey, plans: &[[u8; 32]]) {
        let at = now().ms();
        if let Some(set) = self.record.set_mut(key) {
            let texts = plans.iter().map(|plan| PackId(*plan).to_string());
            let mut parts: BTreeSet<String> = set.parts.drain(..).collect();
            parts.extend(texts);
            set.parts = parts.into_iter().collect();
            set.parts_used_ms = at;
        }
        self.save();
    }

    pub(super) fn heard_fetched(
        &mut self,
        set: DatasetKey,
        made: Result<MadeVersion, SourceFault>,
    ) {
        let plans = self
            .flights
            .remove(&set)
            .map(|flight| flight.plans)
            .unwrap_or_default();
        self.share_readers();
        self.listed.remove(&set);
        let made = made.and_then(|made| self.enter(&set, made, &plans));
        let parts = self
            .record
            .set_mut(&set)
            .map(|set| set.plans())
            .unwrap_or_default();
        let event = CacheEvent::Fetched {
            set,
            made,
            left: Bytes::new(self.store.part_bytes(&parts)),
            disk: self.store.disk(),
        };
        self.event(event);
    }

    /// Enters a version that was made into the record.
    ///
    /// # Errors
    /// It, or a pack of it, was deleted at the same time: another try makes it anew.
    fn enter(
        &mut self,
        key: &DatasetKey,
        made: MadeVersion,
        plans: &[[u8; 32]],
    ) -> Result<Made, SourceFault> {
        let MadeVersion { made, files } = made;
        if self.cache.is_evicting(made.version) || self.store.claim(&made).is_err() {
            return Err(SourceFault {
                kind: FaultKind::Changed,
                text: "the same content was deleted at the same time".to_owned(),
            });
        }
        let fingerprint = made.fingerprint.to_string();
        match self.record.version_mut(made.version) {
            Some(known) if known.fingerprints.contains(&fingerprint) => {}
            Some(known) => known.fingerprints.push(fingerprint),
            None => self.record.versions.push(VersionRecord {
                digest: made.version.to_string(),
                fingerprints: vec![fingerprint],
                files,
                size_bytes: made.size.get(),
                own_bytes: made.own.get(),
                used_ms: now().ms(),
                view: self.store.mode,
            }),
        }
        let mut stale = Vec::new();
        if let Some(set) = self.record.set_mut(key) {
            set.version = Some(made.version.to_string());
            // Parts of a source that changed meanwhile belong to nobody.
            stale = set.plans();
            stale.retain(|plan| !plans.contains(plan));
            set.parts.clear();
        }
        self.save();
        self.store.forget_parts(plans);
        if let Err(error) = self.store.drop_parts(&stale) {
            tracing::warn!(%error, "unfinished parts are not deleted");
        }
        Ok(made)
    }

    /// Takes a version with wrong bytes from its sets in the record: a later process gives it to nobody.
    pub(super) fn disown(&mut self, version: VersionDigest) {
        if let Some(known) = self.record.version_mut(version) {
            known.fingerprints.clear();
        }
        self.unlink(version);
        self.save();
    }

    /// No set of the record has that version.
    fn unlink(&mut self, version: VersionDigest) {
        let digest = version.to_string();
        for set in &mut self.record.sets {
            set.version = set.version.take().filter(|known| *known != digest);
        }
    }

    pub(super) fn begin_eviction(&mut self, version: VersionDigest) {
        // First the record: what it does not name is swept away after a crash.
        let digest = version.to_string();
        self.record.versions.retain(|known| known.digest != digest);
        self.unlink(version);
        self.save();
        *self.store.claims() = self.cache.packs().collect();
        let store = self.store.clone();
        self.spawn("delete a version", Input::Evicted(version), move || {
            if let Err(error) = store.evict(version) {
                tracing::warn!(%version, %error, "a version is not deleted whole");
            }
            Input::Evicted(version)
        });
    }

    pub(super) fn begin_drop(&mut self, set: DatasetKey) {
        let plans = self
            .record
            .set_mut(&set)
            .map(|set| set.plans())
            .unwrap_or_default();
        let store = self.store.clone();
        if let Some(record) = self.record.set_mut(&set) {
            record.parts.clear();
        }
        self.save();
        self.spawn("delete a part", Input::Dropped(set.clone()), move || {
            if let Err(error) = store.drop_parts(&plans) {
                tracing::warn!(%set, %error, "an unfinished part is not deleted whole");
            }
            Input::Dropped(set)
        });
    }

    pub(super) fn begin_repair(&mut self, version: VersionDigest) {
        let digest = version.to_string();
        let of_version = |set: &&SetRecord| set.version.as_ref() == Some(&digest);
        let source = self
            .record
            .sets
            .iter()
            .find(of_version)
            .map(|set| set.source.clone());
        let store = self.store.clone();
        self.spawn(
            "repair a version",
            Input::Repaired(version, false),
            move || {
                let source = open_source(&source.unwrap_or_default());
                let repaired = match source {
                    Ok(source) => store.repair(version, &*source),
                    Err(fault) => Err(io::Error::other(fault.text)),
                };
                let is_whole = repaired.unwrap_or_else(|error| {
                    tracing::warn!(%version, %error, "wrong bytes are not replaced");
                    false
                });
                Input::Repaired(version, is_whole)
            },
        );
    }

    /// Starts a thread for one thing; its end is an input. `broken`: the input if it panics or
    /// cannot be started.
    pub(super) fn spawn(
        &self,
        what: &'static str,
        broken: Input,
        work: impl FnOnce() -> Input + Send + 'static,
    ) {
        let inputs = self.inputs.clone();
        let broken = Arc::new(Mutex::new(Some(broken)));
        let (spare, spare_inputs) = (broken.clone(), inputs.clone());
        let started = std::thread::Builder::new()
            .name(what.to_owned())
            .spawn(move || {
                let ended = catch_unwind(AssertUnwindSafe(work));
                let taken = || broken.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(input) = ended.ok().or_else(taken) {
                    let _it_ends = inputs.send(input);
                }
            });
        if let Err(error) = started {
            tracing::error!(%error, what, "no thread can be started");
            let input = spare.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(input) = input {
                let _it_ends = spare_inputs.send(input);
            }
        }
    }
}
