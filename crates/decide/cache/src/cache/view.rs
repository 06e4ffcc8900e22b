//! The cache as others see it: each set and version, for people, for the cluster and for tests.

use sublet_model::{Bytes, Time};

use super::state::{Dataset, DatasetCache, Step, Version, VersionState};
use crate::key::{DatasetKey, PackId, VersionDigest};

/// State of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatasetState {
    /// Not there, or only a part of it, and nobody waits for it.
    Absent,
    /// Its source is listed.
    Listing,
    /// It waits for room, or until fewer are fetched.
    Waiting,
    /// It comes.
    Fetching,
    /// Another try comes after a pause.
    Resting,
    /// Wrong bytes are replaced.
    Repairing,
    /// It is there.
    Ready,
    /// The last try failed, and nothing is there.
    Failed,
}

impl DatasetState {
    /// Its name in JSON and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DatasetState::Absent => "absent",
            DatasetState::Listing => "listing",
            DatasetState::Waiting => "waiting",
            DatasetState::Fetching => "fetching",
            DatasetState::Resting => "resting",
            DatasetState::Repairing => "repairing",
            DatasetState::Ready => "ready",
            DatasetState::Failed => "failed",
        }
    }
}

/// A set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetView {
    /// Its key.
    pub key: DatasetKey,
    /// Its state.
    pub state: DatasetState,
    /// Its version.
    pub version: Option<VersionDigest>,
    /// Bytes of the version's files.
    pub size: Bytes,
    /// Bytes of a fetch under way or left unfinished.
    pub written: Bytes,
    /// Room of the fetch under way; else nothing.
    pub need: Bytes,
    /// Requests that wait.
    pub waiting: usize,
    /// Requests that have the version.
    pub leases: usize,
    /// True if it stays whatever room others need.
    pub is_pinned: bool,
    /// Time of the last use.
    pub used: Option<Time>,
    /// Last trouble, for people.
    pub trouble: Option<String>,
}

impl DatasetCache {
    /// Every set, by key.
    pub fn sets(&self) -> impl Iterator<Item = DatasetView> + '_ {
        self.sets.iter().map(|(key, set)| self.view(key, set))
    }

    /// One set.
    #[must_use]
    pub fn set(&self, key: &DatasetKey) -> Option<DatasetView> {
        Some(self.view(key, self.sets.get(key)?))
    }

    /// Is that version being deleted?
    #[must_use]
    pub fn is_evicting(&self, version: VersionDigest) -> bool {
        let known = self.versions.get(&version);
        known.is_some_and(|known| matches!(known.state, VersionState::Evicting(_)))
    }

    /// Is something being deleted?
    #[must_use]
    pub fn is_deleting(&self) -> bool {
        self.being_deleted() > Bytes::ZERO || self.evicting() > 0
    }

    /// Versions that are being deleted; one may free nothing.
    fn evicting(&self) -> usize {
        let versions = self.versions.values();
        let going = versions.filter(|known| matches!(known.state, VersionState::Evicting(_)));
        going.count()
    }

    /// Packs of all versions, except those that are being deleted.
    pub fn packs(&self) -> impl Iterator<Item = PackId> + '_ {
        let there = self.versions.values();
        let there = there.filter(|known| !matches!(known.state, VersionState::Evicting(_)));
        there.flat_map(|known| known.packs.keys().copied())
    }

    fn view(&self, key: &DatasetKey, set: &Dataset) -> DatasetView {
        let version = set.current.and_then(|version| self.versions.get(&version));
        let step = set.flight.as_ref().map(|flight| flight.step);
        let (written, need) = match step {
            Some(
                Step::Fetching {
                    reserved, written, ..
                }
                | Step::Stopping {
                    reserved, written, ..
                },
            ) => (written, reserved),
            Some(Step::Waiting(listing)) => (set.part.bytes, listing.need),
            _ => (set.part.bytes, Bytes::ZERO),
        };
        let trouble = set
            .flight
            .as_ref()
            .and_then(|flight| flight.trouble.clone());
        DatasetView {
            key: key.clone(),
            state: state(step, version, set),
            version: set.current,
            size: version.map_or(Bytes::ZERO, |known| known.size),
            written,
            need,
            waiting: self.waiting(key).len(),
            leases: self.leases_of(key),
            is_pinned: set.is_pinned,
            used: version.map(|known| known.used),
            trouble: trouble.or_else(|| set.failure.as_ref().map(|(text, _)| text.clone())),
        }
    }

    fn leases_of(&self, key: &DatasetKey) -> usize {
        let of_set = self.requests.values().filter(|one| one.set == *key);
        of_set.filter(|one| one.lease.is_some()).count()
    }
}

fn state(step: Option<Step>, version: Option<&Version>, set: &Dataset) -> DatasetState {
    match step {
        Some(Step::Listing) => DatasetState::Listing,
        Some(Step::Waiting(_)) => DatasetState::Waiting,
        Some(Step::Fetching { .. } | Step::Stopping { .. }) => DatasetState::Fetching,
        Some(Step::Repairing(_)) => DatasetState::Repairing,
        Some(Step::Resting { .. }) => DatasetState::Resting,
        None => match version.map(|known| known.state) {
            Some(VersionState::Damaged) => DatasetState::Repairing,
            Some(_) => DatasetState::Ready,
            None if set.failure.is_some() => DatasetState::Failed,
            None => DatasetState::Absent,
        },
    }
}
