//! One set on its way into the store: listed, waiting, fetched; again after a failure. All requests
//! for the set wait for the one flight.

use std::collections::BTreeSet;
use std::time::Duration;

use sublet_model::{Bytes, Pauses, Time};

use super::state::{DatasetCache, Flight, KnownVersion, Part, Step, VersionState};
use crate::event::{
    CacheAction, CacheAnswer, FaultKind, Made, SourceFault, SourceListing, Urgency,
};
use crate::key::{DatasetKey, RequestId, VersionDigest};

/// Pauses after a source or a disk that did not answer as it should.
const PAUSES: Pauses = Pauses::new(Duration::from_secs(1), Duration::from_secs(60));

impl DatasetCache {
    /// A request waits for a flight of its set: the one under way, else a new one.
    pub(super) fn join_flight(&mut self, key: &DatasetKey, out: &mut Vec<CacheAction>) {
        let Some(set) = self.sets.get_mut(key) else {
            return;
        };
        if set.flight.is_some() {
            return self.hasten(key, out);
        }
        set.failure = None;
        set.flight = Some(Flight {
            number: self.next,
            step: Step::Listing,
            failures: 0,
            trouble: None,
        });
        self.next += 1;
        out.push(CacheAction::List(key.clone()));
    }

    /// Says how soon a fetch under way is needed now, if that changed.
    fn hasten(&mut self, key: &DatasetKey, out: &mut Vec<CacheAction>) {
        let Some(wanted) = self.urgency_of(key) else {
            return;
        };
        if let Some(Step::Fetching { urgency, .. }) = self.step_mut(key)
            && *urgency != wanted
        {
            *urgency = wanted;
            out.push(CacheAction::Hasten {
                set: key.clone(),
                urgency: wanted,
            });
        }
    }

    /// A request of that set waits no longer.
    pub(super) fn fewer_wait(&mut self, key: &DatasetKey, out: &mut Vec<CacheAction>) {
        if self.urgency_of(key).is_some() {
            return self.hasten(key, out);
        }
        let Some(set) = self.sets.get_mut(key) else {
            return;
        };
        let Some(flight) = &mut set.flight else {
            return;
        };
        match flight.step {
            Step::Fetching {
                fingerprint,
                reserved,
                written,
                ..
            } => {
                flight.step = Step::Stopping {
                    fingerprint,
                    reserved,
                    written,
                };
                out.push(CacheAction::Stop(key.clone()));
            }
            Step::Waiting(_) | Step::Resting { .. } | Step::Repairing(_) => set.flight = None,
            // Its end finds that nobody waits.
            Step::Listing | Step::Stopping { .. } => {}
        }
    }

    /// Lists the source once more.
    pub(super) fn list(&mut self, key: &DatasetKey, out: &mut Vec<CacheAction>) {
        if let Some(step) = self.step_mut(key) {
            *step = Step::Listing;
            out.push(CacheAction::List(key.clone()));
        }
    }

    /// Ends the rests that are over.
    pub(super) fn list_again(&mut self, now: Time, out: &mut Vec<CacheAction>) {
        let is_over =
            |flight: &Flight| matches!(flight.step, Step::Resting { until } if until <= now);
        for key in self.keys_in(|set| set.flight.as_ref().is_some_and(is_over)) {
            self.list(&key, out);
        }
    }

    pub(super) fn listed(
        &mut self,
        now: Time,
        key: &DatasetKey,
        listing: Result<SourceListing, SourceFault>,
        out: &mut Vec<CacheAction>,
    ) {
        if self.step_mut(key).is_none_or(|step| *step != Step::Listing) {
            return;
        }
        if self.urgency_of(key).is_none() {
            self.land(key);
            return;
        }
        let listing = match listing {
            Ok(listing) => listing,
            Err(fault) => return self.failed(now, key, fault, out),
        };
        match self.shows(listing.fingerprint) {
            Some((version, VersionState::Ready)) => self.arrived(now, key, version, out),
            Some((version, VersionState::Damaged)) => self.go_on(key, Step::Repairing(version)),
            // One that is being deleted is waited for: `make_room`.
            Some((_, VersionState::Lost | VersionState::Evicting(_))) | None => {
                self.go_on(key, Step::Waiting(listing));
            }
        }
    }

    pub(super) fn written(&mut self, key: &DatasetKey, bytes: Bytes) {
        if let Some(Step::Fetching { written, .. } | Step::Stopping { written, .. }) =
            self.step_mut(key)
        {
            *written = bytes;
        }
    }

    pub(super) fn fetched(
        &mut self,
        now: Time,
        key: &DatasetKey,
        made: Result<Made, SourceFault>,
        left: Bytes,
        out: &mut Vec<CacheAction>,
    ) {
        let step = self.step_mut(key).copied();
        if !matches!(step, Some(Step::Fetching { .. } | Step::Stopping { .. })) {
            return;
        }
        if let Some(set) = self.sets.get_mut(key) {
            set.part = Part {
                bytes: left,
                used: now,
                is_dropping: false,
            };
        }
        match made {
            Ok(made) => {
                let version = made.version;
                self.enter(KnownVersion {
                    version,
                    fingerprints: BTreeSet::from([made.fingerprint]),
                    packs: made.packs,
                    own: made.own,
                    size: made.size,
                    used: now,
                });
                self.arrived(now, key, version, out);
            }
            Err(fault) => self.failed(now, key, fault, out),
        }
        if self.sets.get(key).is_some_and(|set| set.is_unwanted) {
            self.unwanted(key, out);
        }
    }

    /// A set has a version that shows its source: all that wait get it.
    pub(super) fn arrived(
        &mut self,
        now: Time,
        key: &DatasetKey,
        version: VersionDigest,
        out: &mut Vec<CacheAction>,
    ) {
        let Some(set) = self.sets.get_mut(key) else {
            return;
        };
        set.current = Some(version);
        set.flight = None;
        set.failure = None;
        for request in self.waiting(key) {
            self.grant(now, &request, version, out);
        }
        if let Some(known) = self.versions.get_mut(&version) {
            known.used = now;
        }
    }

    fn failed(
        &mut self,
        now: Time,
        key: &DatasetKey,
        fault: SourceFault,
        out: &mut Vec<CacheAction>,
    ) {
        let tries = self.limits.tries;
        let is_awaited = self.urgency_of(key).is_some();
        let Some(flight) = self.sets.get_mut(key).and_then(|set| set.flight.as_mut()) else {
            return;
        };
        if !is_awaited {
            self.land(key);
            return;
        }
        if fault.kind == FaultKind::Stopped {
            // Somebody came while it stopped.
            return self.list(key, out);
        }
        flight.failures += 1;
        flight.trouble = Some(fault.text.clone());
        if fault.kind == FaultKind::Lasting || flight.failures >= tries {
            self.land(key);
            self.answer_waiting(key, &CacheAnswer::Failed(fault.text.clone()), out);
            if let Some(set) = self.sets.get_mut(key) {
                set.failure = Some((fault.text, now));
            }
            return;
        }
        match fault.kind {
            FaultKind::Changed => self.list(key, out),
            _ => {
                let until = now.plus(PAUSES.after(flight.failures));
                flight.step = Step::Resting { until };
            }
        }
    }

    /// Answers all that wait for a set, none of whom gets it.
    pub(super) fn answer_waiting(
        &mut self,
        key: &DatasetKey,
        answer: &CacheAnswer,
        out: &mut Vec<CacheAction>,
    ) {
        for request in self.waiting(key) {
            self.requests.remove(&request);
            out.push(CacheAction::Answer(request, answer.clone()));
        }
    }

    pub(super) fn waiting(&self, key: &DatasetKey) -> Vec<RequestId> {
        let of_set = self.requests.iter().filter(|(_, one)| one.set == *key);
        let waiting = of_set.filter(|(_, one)| one.lease.is_none());
        waiting.map(|(request, _)| request.clone()).collect()
    }

    /// The most urgent of those that wait for a set; `None` if nobody does.
    pub(super) fn urgency_of(&self, key: &DatasetKey) -> Option<Urgency> {
        let of_set = self.requests.values().filter(|one| one.set == *key);
        let waiting = of_set.filter(|one| one.lease.is_none());
        waiting.map(|one| one.urgency).max()
    }

    pub(super) fn step_mut(&mut self, key: &DatasetKey) -> Option<&mut Step> {
        let flight = self.sets.get_mut(key)?.flight.as_mut()?;
        Some(&mut flight.step)
    }

    fn go_on(&mut self, key: &DatasetKey, step: Step) {
        if let Some(now) = self.step_mut(key) {
            *now = step;
        }
    }

    /// Ends the flight of a set.
    pub(super) fn land(&mut self, key: &DatasetKey) {
        if let Some(set) = self.sets.get_mut(key) {
            set.flight = None;
        }
    }
}
