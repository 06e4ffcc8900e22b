//! Knowledge of a cache: its versions, sets, flights and requests. No logic.

use std::collections::{BTreeMap, BTreeSet};

use sublet_model::{Bytes, Milli, Time};

use crate::event::{DiskSpace, SourceListing, Urgency};
use crate::key::{DatasetKey, PackId, RequestId, SourceFingerprint, VersionDigest};

/// Limits of a cache.
#[derive(Debug, Clone, Copy)]
pub struct CacheLimits {
    /// The most that the store may take; nothing for no limit but the disk's.
    pub store: Option<Bytes>,
    /// Use of the disk, by anybody, above which nothing is fetched. Kubelet evicts pods where less
    /// than a tenth to a seventh is free.
    pub disk: Milli,
    /// So many fetches at a time.
    pub fetches: usize,
    /// So many failures in a row, then the requests are told.
    pub tries: u32,
}

/// State of a store, as it was found at the start.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// Versions that are whole.
    pub versions: Vec<KnownVersion>,
    /// Sets.
    pub sets: Vec<KnownDataset>,
    /// Requests that have a version and may still be there.
    pub leases: Vec<(RequestId, DatasetKey, VersionDigest)>,
    /// Room on the disk.
    pub disk: DiskSpace,
}

/// A version in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownVersion {
    /// Its content.
    pub version: VersionDigest,
    /// States of sources that it shows.
    pub fingerprints: BTreeSet<SourceFingerprint>,
    /// Its packs, also those that it shares, with the room of each.
    pub packs: BTreeMap<PackId, Bytes>,
    /// Room of its own tables.
    pub own: Bytes,
    /// Bytes of its files.
    pub size: Bytes,
    /// Time of its last use.
    pub used: Time,
}

/// A set in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownDataset {
    /// Its key.
    pub key: DatasetKey,
    /// Its version, if it has one.
    pub version: Option<VersionDigest>,
    /// True if it stays whatever room others need.
    pub is_pinned: bool,
    /// Bytes of an unfinished fetch.
    pub part: Bytes,
    /// When they were last added to.
    pub part_used: Time,
}

/// A node's data set cache.
#[derive(Debug, Clone)]
pub struct DatasetCache {
    pub(super) limits: CacheLimits,
    pub(super) disk: DiskSpace,
    pub(super) versions: BTreeMap<VersionDigest, Version>,
    pub(super) sets: BTreeMap<DatasetKey, Dataset>,
    pub(super) requests: BTreeMap<RequestId, Request>,
    /// Number of the next flight.
    pub(super) next: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Version {
    pub(super) packs: BTreeMap<PackId, Bytes>,
    pub(super) own: Bytes,
    pub(super) size: Bytes,
    /// States of sources that it shows.
    pub(super) fingerprints: BTreeSet<SourceFingerprint>,
    pub(super) state: VersionState,
    /// Its bytes were wrong: no state of a source leads to it.
    pub(super) was_lost: bool,
    pub(super) leases: BTreeSet<RequestId>,
    pub(super) used: Time,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Dataset {
    pub(super) current: Option<VersionDigest>,
    pub(super) is_pinned: bool,
    /// Deleted by its owner, and not asked for since.
    pub(super) is_unwanted: bool,
    pub(super) flight: Option<Flight>,
    pub(super) part: Part,
    /// Failure of the last flight, and its time.
    pub(super) failure: Option<(String, Time)>,
}

/// Rest of a fetch that did not end.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    pub(super) bytes: Bytes,
    pub(super) used: Time,
    pub(super) is_dropping: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) set: DatasetKey,
    pub(super) urgency: Urgency,
    pub(super) waits: bool,
    /// The version that it has; nothing while it waits.
    pub(super) lease: Option<VersionDigest>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VersionState {
    Ready,
    /// Some of its bytes are wrong, and a repair is under way.
    Damaged,
    /// Some of its bytes are wrong, and the source has others.
    Lost,
    /// It is being deleted, which frees so much.
    Evicting(Bytes),
}

impl Default for CacheLimits {
    fn default() -> CacheLimits {
        CacheLimits {
            store: None,
            disk: Milli::new(850).unwrap_or(Milli::WHOLE),
            fetches: 4,
            tries: 3,
        }
    }
}

/// A flight.
#[derive(Debug, Clone)]
pub(super) struct Flight {
    /// Its number, by which flights wait in order.
    pub(super) number: u64,
    pub(super) step: Step,
    /// Failures in a row.
    pub(super) failures: u32,
    /// Why it went back, for people.
    pub(super) trouble: Option<String>,
}

/// Its next event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The listing of the source ends.
    Listing,
    /// There is room.
    Waiting(SourceListing),
    /// The fetch ends.
    Fetching {
        /// State of the source that it brings.
        fingerprint: SourceFingerprint,
        /// Room kept for it.
        reserved: Bytes,
        /// Room taken by now.
        written: Bytes,
        /// The urgency that was said last.
        urgency: Urgency,
    },
    /// The fetch, which nobody waits for, has stopped.
    Stopping {
        /// State of the source that it brought.
        fingerprint: SourceFingerprint,
        /// Room kept for it.
        reserved: Bytes,
        /// Room taken by now.
        written: Bytes,
    },
    /// The repair of a version that shows this state ends.
    Repairing(VersionDigest),
    /// It is time for another try.
    Resting {
        /// Time of the try.
        until: Time,
    },
}
