//! Events of a cache, and the actions to take: the messages between the state machine and the loop
//! around it. No logic.

use std::collections::BTreeMap;

use sublet_model::{Bytes, Time};

use crate::key::{DatasetKey, PackId, RequestId, SourceFingerprint, VersionDigest};

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// A request for a data set. The same request again is answered as before.
    Asked {
        /// The request.
        request: RequestId,
        /// The set.
        set: DatasetKey,
        /// Urgency: how soon it is needed.
        urgency: Urgency,
        /// May a version be given without a look at the source?
        freshness: Freshness,
        /// Does it wait where others use all room? Else it is told that the set does not fit.
        waits: bool,
    },
    /// A request is over: its job ended, or it waits no longer.
    Left(RequestId),
    /// The listing of a source has ended.
    Listed {
        /// The set.
        set: DatasetKey,
        /// Contents of the source.
        listing: Result<SourceListing, SourceFault>,
    },
    /// A fetch has taken so much of its room by now.
    Written {
        /// The set.
        set: DatasetKey,
        /// Room taken, in all.
        bytes: Bytes,
        /// Room on the disk afterwards.
        disk: DiskSpace,
    },
    /// A fetch has ended.
    Fetched {
        /// The set.
        set: DatasetKey,
        /// The version, sealed and mounted.
        made: Result<Made, SourceFault>,
        /// Bytes that an unfinished fetch leaves in the store.
        left: Bytes,
        /// Room on the disk afterwards.
        disk: DiskSpace,
    },
    /// A version is deleted, and its bytes are free.
    Evicted {
        /// The version.
        version: VersionDigest,
        /// Room on the disk afterwards.
        disk: DiskSpace,
    },
    /// The unfinished part of a set is deleted.
    Dropped {
        /// The set.
        set: DatasetKey,
        /// Room on the disk afterwards.
        disk: DiskSpace,
    },
    /// Bytes of a version are not those that were stored.
    Damaged(VersionDigest),
    /// A repair has ended; `true`: every byte is right again.
    Repaired(VersionDigest, bool),
    /// A set is kept whatever room others need, or not any more.
    Pinned(DatasetKey, bool),
    /// The owner wants no cached copy any more.
    Unwanted(DatasetKey),
    /// The disk has so much room now.
    Space(DiskSpace),
    /// Only time has passed.
    Tick,
}

/// Urgency of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Nobody waits yet: a job is planned.
    Ahead,
    /// A job waits.
    Now,
}

/// Age of an acceptable version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// The version is compared with the source first.
    Compared,
    /// The version that is there, if there is one.
    AsCached,
}

/// Contents of a source, as a listing found them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceListing {
    /// The state of the source.
    pub fingerprint: SourceFingerprint,
    /// Room that its fetch takes: what the set's present version does not have, with padding and
    /// tables.
    pub need: Bytes,
    /// The same without a present version.
    pub whole: Bytes,
}

/// A version that was just made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Its content.
    pub version: VersionDigest,
    /// The source's state that it shows.
    pub fingerprint: SourceFingerprint,
    /// Its packs, also those that it shares, with the room of each.
    pub packs: BTreeMap<PackId, Bytes>,
    /// Room of its own tables.
    pub own: Bytes,
    /// Bytes of its files.
    pub size: Bytes,
}

/// Kind of a fault; it decides whether another try makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The fetch was stopped by [`CacheAction::Stop`].
    Stopped,
    /// The source changed meanwhile: a new listing may do.
    Changed,
    /// The source or the disk did not answer as it should: later may do.
    Passing,
    /// Another try finds the same: no such folder, no right, a name that no file can have.
    Lasting,
}

/// Failure of a listing or a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFault {
    /// Its kind.
    pub kind: FaultKind,
    /// For people: what failed, and where.
    pub text: String,
}

/// Room on the disk of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskSpace {
    /// Size of the file system.
    pub capacity: Bytes,
    /// Free bytes of it, as a user without privileges may use them.
    pub free: Bytes,
}

/// Something to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheAction {
    /// List the source of a set; answered by [`CacheEvent::Listed`].
    List(DatasetKey),
    /// Fetch what was listed, or go on with it; answered by [`CacheEvent::Fetched`].
    Fetch {
        /// The set.
        set: DatasetKey,
        /// Room that is kept for it. A fetch that needs more ends as [`FaultKind::Changed`].
        room: Bytes,
        /// Urgency: how soon it is needed: what nobody waits for yet disturbs nobody.
        urgency: Urgency,
    },
    /// A fetch under way is needed sooner or later than was said.
    Hasten {
        /// The set.
        set: DatasetKey,
        /// Urgency: how soon it is needed now.
        urgency: Urgency,
    },
    /// Stop a fetch and keep what it has; answered by [`CacheEvent::Fetched`].
    Stop(DatasetKey),
    /// Delete a version and the packs that no other one has; answered by [`CacheEvent::Evicted`].
    Evict(VersionDigest),
    /// Delete the unfinished part of a set; answered by [`CacheEvent::Dropped`].
    Drop(DatasetKey),
    /// Write the right bytes in place of wrong ones; answered by [`CacheEvent::Repaired`].
    Repair(VersionDigest),
    /// Answer a request.
    Answer(RequestId, CacheAnswer),
    /// A request has left its version; it was last used now.
    Released {
        /// The request.
        request: RequestId,
        /// The version.
        version: VersionDigest,
        /// Now.
        at: Time,
    },
}

/// Answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheAnswer {
    /// The set is there; the version stays until the request leaves.
    Ready(VersionDigest),
    /// There is no room for it.
    DoesNotFit {
        /// Room that the set needs, with the fifth that is kept free beside it.
        need: Bytes,
        /// Room that there would be if every set went that nobody uses.
        could: Bytes,
    },
    /// It failed, more than once if another try made sense.
    Failed(String),
    /// The owner deleted the set meanwhile.
    Deleted,
}
