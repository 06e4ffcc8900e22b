//! Decisions of a node's data set cache: requests join flights, flights wait for room, sets that
//! nobody uses make room, and a request that was answered keeps its version until it leaves.
//!
//! *Decide* ring: no clock, thread, socket or file. `sublet-dataset` is the loop around
//! [`DatasetCache::apply`]: events in, actions out.
//!
//! # Modules
//! Suggested reading order: `key` (names and numbers), `event` (the messages), `cache` (the state
//! machine), with `cache/flight` (one set on its way into the store), `cache/room` (space on the
//! disk, and victims) and `cache/view` (what others see); `readers` (how fetches
//! at once share the threads that read).

mod cache;
mod event;
mod key;
mod readers;

pub use cache::{
    CacheLimits, DatasetCache, DatasetState, DatasetView, KnownDataset, KnownVersion, Recovered,
};
pub use event::{
    CacheAction, CacheAnswer, CacheEvent, DiskSpace, FaultKind, Freshness, Made, SourceFault,
    SourceListing, Urgency,
};
pub use key::{DatasetKey, DatasetOwner, PackId, RequestId, SourceFingerprint, VersionDigest};
pub use readers::share_readers;
