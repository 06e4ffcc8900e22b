//! Cases of `dataset-cache.md`, by number where it has one, and a world of requests, sources and a
//! disk that is honest.

use std::collections::BTreeMap;

use sublet_model::Milli;

use super::*;
use crate::event::{DiskSpace, FaultKind, Made, SourceFault, SourceListing};
use crate::key::{DatasetOwner, PackId};

mod flights;
mod room_cases;
mod world;

const NOW: Time = Time::from_ms(0);

/// A key of one letter.
fn key(name: &str) -> DatasetKey {
    DatasetKey {
        owner: DatasetOwner::User(0),
        name: name.to_owned(),
    }
}

fn digest(number: u8) -> VersionDigest {
    VersionDigest([number; 32])
}

fn units(number: u64) -> Bytes {
    Bytes::new(number)
}

/// A version with one pack of its own.
fn made(number: u8, size: u64) -> Made {
    Made {
        version: digest(number),
        fingerprint: SourceFingerprint([number; 32]),
        packs: BTreeMap::from([(PackId([number; 32]), units(size))]),
        own: Bytes::ZERO,
        size: units(size),
    }
}

fn listing(number: u8, need: u64) -> SourceListing {
    SourceListing {
        fingerprint: SourceFingerprint([number; 32]),
        need: units(need),
        whole: units(need),
    }
}

/// A script of a cache on a disk of so many units, all of which may be used.
struct Script {
    cache: DatasetCache,
    now: u64,
    free: u64,
    capacity: u64,
}

impl Script {
    fn new(capacity: u64) -> Script {
        let limits = CacheLimits {
            disk: Milli::WHOLE,
            ..CacheLimits::default()
        };
        let disk = DiskSpace {
            capacity: units(capacity),
            free: units(capacity),
        };
        let found = Recovered {
            disk,
            ..Recovered::default()
        };
        Script {
            cache: DatasetCache::new(limits, found),
            now: 0,
            free: capacity,
            capacity,
        }
    }

    fn disk(&self) -> DiskSpace {
        DiskSpace {
            capacity: units(self.capacity),
            free: units(self.free),
        }
    }

    fn apply(&mut self, event: CacheEvent) -> Vec<CacheAction> {
        self.now += 1000;
        self.cache.apply(Time::from_ms(self.now), event)
    }

    fn ask_as(&mut self, request: &str, set: &str, waits: bool) -> Vec<CacheAction> {
        self.apply(CacheEvent::Asked {
            request: RequestId(request.to_owned()),
            set: key(set),
            urgency: Urgency::Now,
            freshness: Freshness::Compared,
            waits,
        })
    }

    /// A request of a job that does not wait for room.
    fn ask(&mut self, request: &str, set: &str) -> Vec<CacheAction> {
        self.ask_as(request, set, false)
    }

    fn leave(&mut self, request: &str) -> Vec<CacheAction> {
        self.apply(CacheEvent::Left(RequestId(request.to_owned())))
    }

    fn listed(&mut self, set: &str, listing: SourceListing) -> Vec<CacheAction> {
        self.apply(CacheEvent::Listed {
            set: key(set),
            listing: Ok(listing),
        })
    }

    fn fetched(&mut self, set: &str, made: Made) -> Vec<CacheAction> {
        let bytes = made.packs.values().copied().fold(Bytes::ZERO, Bytes::plus);
        self.free -= bytes.get();
        let event = CacheEvent::Fetched {
            set: key(set),
            made: Ok(made),
            left: Bytes::ZERO,
            disk: self.disk(),
        };
        self.apply(event)
    }

    fn failed(&mut self, set: &str, kind: FaultKind, left: u64) -> Vec<CacheAction> {
        let fault = SourceFault {
            kind,
            text: "no".to_owned(),
        };
        let event = CacheEvent::Fetched {
            set: key(set),
            made: Err(fault),
            left: units(left),
            disk: self.disk(),
        };
        self.apply(event)
    }

    fn evicted(&mut self, number: u8, frees: u64) -> Vec<CacheAction> {
        self.free += frees;
        let event = CacheEvent::Evicted {
            version: digest(number),
            disk: self.disk(),
        };
        self.apply(event)
    }

    /// A set of that size that nobody uses any more.
    fn unused(&mut self, set: &str, number: u8, size: u64) {
        self.ask(set, set);
        self.listed(set, listing(number, size));
        self.fetched(set, made(number, size));
        self.leave(set);
    }

    fn state(&self, set: &str) -> DatasetState {
        let view = self.cache.set(&key(set));
        view.map_or(DatasetState::Absent, |view| view.state)
    }
}

fn fetch(set: &str, room: u64) -> CacheAction {
    CacheAction::Fetch {
        set: key(set),
        room: units(room),
        urgency: Urgency::Now,
    }
}

fn answer(request: &str, answer: CacheAnswer) -> CacheAction {
    CacheAction::Answer(RequestId(request.to_owned()), answer)
}

fn ready(request: &str, number: u8) -> CacheAction {
    answer(request, CacheAnswer::Ready(digest(number)))
}

fn does_not_fit(request: &str, need: u64, could: u64) -> CacheAction {
    let refusal = CacheAnswer::DoesNotFit {
        need: units(need),
        could: units(could),
    };
    answer(request, refusal)
}
