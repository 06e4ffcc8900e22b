//! A world around the cache: sources that change, jobs that come and go, fetches that fail, and a
//! disk whose every byte is counted. Whatever happens, a version in use stays, the disk never runs
//! full, and each request is answered once.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const CAPACITY: u64 = 1_000;
const SETS: [&str; 5] = ["a", "b", "c", "d", "e"];

struct World {
    cache: DatasetCache,
    random: fastrand::Rng,
    now: u64,
    /// Content of each source: its number, and the number before it.
    sources: BTreeMap<DatasetKey, (u16, u16)>,
    /// Number of the last content.
    contents: u16,
    /// Versions in the store, with their packs.
    store: BTreeMap<VersionDigest, BTreeMap<PackId, u64>>,
    listing: Vec<DatasetKey>,
    fetching: BTreeMap<DatasetKey, Fetch>,
    evicting: Vec<VersionDigest>,
    dropping: Vec<DatasetKey>,
    repairing: Vec<VersionDigest>,
    parts: BTreeMap<DatasetKey, u64>,
    waiting: BTreeMap<RequestId, DatasetKey>,
    leases: BTreeMap<RequestId, VersionDigest>,
    pinned: BTreeSet<DatasetKey>,
    requests: u32,
    done: Done,
}

/// Counts that show that the world tries what it should.
#[derive(Debug, Default)]
struct Done {
    ready: u32,
    refused: u32,
    failed: u32,
    evicted: u32,
    stopped: u32,
    dropped: u32,
    repaired: u32,
}

struct Fetch {
    room: u64,
    written: u64,
    is_stopped: bool,
}

fn number(content: u16) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..2].copy_from_slice(&content.to_be_bytes());
    bytes
}

/// Half of a content is that of the one before.
fn packs(content: u16, before: u16) -> BTreeMap<PackId, u64> {
    let half = |content: u16| (PackId(number(content)), 20 + u64::from(content) * 37 % 150);
    [half(content), half(before)].into()
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = fastrand::Rng::with_seed(seed);
        let limits = CacheLimits {
            store: random.bool().then(|| units(CAPACITY * 3 / 4)),
            disk: Milli::new(900).unwrap(),
            fetches: random.usize(1..4),
            tries: 2,
        };
        let sources = (1..).step_by(2).zip(SETS);
        let mut world = World {
            cache: DatasetCache::new(limits, Recovered::default()),
            random,
            now: 0,
            sources: sources.map(|(n, name)| (key(name), (n + 1, n))).collect(),
            contents: 100,
            store: BTreeMap::new(),
            listing: Vec::new(),
            fetching: BTreeMap::new(),
            evicting: Vec::new(),
            dropping: Vec::new(),
            repairing: Vec::new(),
            parts: BTreeMap::new(),
            waiting: BTreeMap::new(),
            leases: BTreeMap::new(),
            pinned: BTreeSet::new(),
            requests: 0,
            done: Done::default(),
        };
        let disk = world.disk();
        world.apply(CacheEvent::Space(disk));
        world
    }

    fn used(&self) -> u64 {
        let packs: BTreeMap<_, _> = self.store.values().flatten().collect();
        let parts = self.parts.values();
        let written = self.fetching.values().map(|fetch| &fetch.written);
        packs.into_values().chain(parts).chain(written).sum()
    }

    fn disk(&self) -> DiskSpace {
        let free = CAPACITY.checked_sub(self.used());
        DiskSpace {
            capacity: units(CAPACITY),
            free: units(free.expect("the disk is full")),
        }
    }

    fn apply(&mut self, event: CacheEvent) {
        let told = format!("{event:?}");
        let actions = self.cache.apply(Time::from_ms(self.now), event);
        for action in actions {
            self.perform(action, &told);
        }
    }

    fn perform(&mut self, action: CacheAction, told: &str) {
        match action {
            CacheAction::List(set) => self.listing.push(set),
            CacheAction::Fetch { set, room, .. } => {
                let kept = self.fetching.values().map(|one| one.room - one.written);
                let kept: u64 = kept.sum::<u64>() + room.get();
                assert!(
                    self.used() + kept <= CAPACITY * 9 / 10,
                    "{told}: no room for {set}"
                );
                let part = self.parts.remove(&set).unwrap_or(0).min(room.get());
                let fetch = Fetch {
                    room: room.get(),
                    written: part,
                    is_stopped: false,
                };
                let before = self.fetching.insert(set, fetch);
                assert!(before.is_none(), "{told}: two fetches of one set");
            }
            CacheAction::Hasten { set, .. } => assert!(self.fetching.contains_key(&set)),
            CacheAction::Stop(set) => {
                self.fetching
                    .get_mut(&set)
                    .expect("it is under way")
                    .is_stopped = true;
                self.done.stopped += 1;
            }
            CacheAction::Evict(version) => {
                let is_used = self.leases.values().any(|used| *used == version);
                assert!(!is_used, "{told}: {version} is in use");
                assert!(self.store.contains_key(&version), "{told}: not there");
                self.evicting.push(version);
                self.done.evicted += 1;
            }
            CacheAction::Drop(set) => {
                self.dropping.push(set);
                self.done.dropped += 1;
            }
            CacheAction::Repair(version) => self.repairing.push(version),
            CacheAction::Released { version, .. } => assert!(self.store.contains_key(&version)),
            CacheAction::Answer(request, answer) => self.answered(request, &answer, told),
        }
    }

    fn answered(&mut self, request: RequestId, answer: &CacheAnswer, told: &str) {
        let set = self.waiting.remove(&request);
        assert!(set.is_some(), "{told}: {request:?} was not waiting");
        match answer {
            CacheAnswer::Ready(version) => {
                assert!(self.store.contains_key(version), "{told}: not there");
                assert!(!self.evicting.contains(version), "{told}: it goes");
                self.leases.insert(request, *version);
                self.done.ready += 1;
            }
            CacheAnswer::DoesNotFit { need, could } => {
                assert!(need > could, "{told}: {need:?} would fit into {could:?}");
                self.done.refused += 1;
            }
            CacheAnswer::Failed(_) => self.done.failed += 1,
            CacheAnswer::Deleted => {}
        }
    }

    fn ask(&mut self) {
        let set = key(SETS[self.random.usize(..SETS.len())]);
        let request = RequestId(self.requests.to_string());
        self.requests += 1;
        self.waiting.insert(request.clone(), set.clone());
        let event = CacheEvent::Asked {
            request,
            set,
            urgency: self.random.choice([Urgency::Ahead, Urgency::Now]).unwrap(),
            freshness: self
                .random
                .choice([
                    Freshness::Compared,
                    Freshness::Compared,
                    Freshness::AsCached,
                ])
                .unwrap(),
            waits: self.random.bool(),
        };
        self.apply(event);
    }

    fn leave(&mut self) {
        let all: Vec<RequestId> = self
            .leases
            .keys()
            .chain(self.waiting.keys())
            .cloned()
            .collect();
        if let Some(request) = self.random.choice(all) {
            self.leases.remove(&request);
            self.waiting.remove(&request);
            self.apply(CacheEvent::Left(request));
        }
    }

    /// Room of a fetch: with the packs that the set's present version has, and without.
    fn needs(&self, set: &DatasetKey) -> (u64, u64) {
        let (content, before) = self.sources[set];
        let packs = packs(content, before);
        let current = self.cache.set(set).and_then(|view| view.version);
        let there = current.and_then(|version| self.store.get(&version));
        let lacks = |pack: &&PackId| there.is_none_or(|there| !there.contains_key(*pack));
        let whole: u64 = packs.values().sum();
        let need = packs.keys().filter(lacks).map(|pack| packs[pack]).sum();
        (need, whole)
    }

    fn end_listing(&mut self) {
        if self.listing.is_empty() {
            return;
        }
        let set = self
            .listing
            .swap_remove(self.random.usize(..self.listing.len()));
        let listing = match self.random.u8(..20) {
            0 => Err(fault(FaultKind::Lasting)),
            1 => Err(fault(FaultKind::Passing)),
            _ => {
                let (need, whole) = self.needs(&set);
                Ok(SourceListing {
                    fingerprint: SourceFingerprint(number(self.sources[&set].0)),
                    need: units(need),
                    whole: units(whole),
                })
            }
        };
        self.apply(CacheEvent::Listed { set, listing });
    }

    fn go_on_fetching(&mut self) {
        let all: Vec<DatasetKey> = self.fetching.keys().cloned().collect();
        let Some(set) = self.random.choice(all) else {
            return;
        };
        let (need, _) = self.needs(&set);
        let chance = self.random.u8(..20);
        let fetch = self.fetching.get_mut(&set).unwrap();
        let fault_kind = match chance {
            _ if fetch.is_stopped => Some(FaultKind::Stopped),
            _ if need > fetch.room => Some(FaultKind::Changed),
            0 => Some(FaultKind::Changed),
            1 => Some(FaultKind::Passing),
            2 => Some(FaultKind::Lasting),
            _ => None,
        };
        if let Some(kind) = fault_kind {
            let left = self.fetching.remove(&set).unwrap().written;
            self.parts.insert(set.clone(), left);
            return self.end_fetch(set, Err(fault(kind)), left);
        }
        if fetch.written < need {
            fetch.written += self.random.u64(1..=need - fetch.written);
            let (bytes, disk) = (units(fetch.written), self.disk());
            return self.apply(CacheEvent::Written { set, bytes, disk });
        }
        self.fetching.remove(&set);
        let (content, before) = self.sources[&set];
        let packs = packs(content, before);
        let version = VersionDigest(number(content));
        self.store.insert(version, packs.clone());
        let made = Made {
            version,
            fingerprint: SourceFingerprint(number(content)),
            size: units(packs.values().sum()),
            packs: packs
                .into_iter()
                .map(|(pack, bytes)| (pack, units(bytes)))
                .collect(),
            own: Bytes::ZERO,
        };
        self.end_fetch(set, Ok(made), 0);
    }

    fn end_fetch(&mut self, set: DatasetKey, made: Result<Made, SourceFault>, left: u64) {
        let event = CacheEvent::Fetched {
            set,
            made,
            left: units(left),
            disk: self.disk(),
        };
        self.apply(event);
    }

    fn end_eviction(&mut self) {
        if let Some(version) = self.evicting.pop() {
            self.store.remove(&version);
            let disk = self.disk();
            self.apply(CacheEvent::Evicted { version, disk });
        }
        if let Some(set) = self.dropping.pop() {
            self.parts.remove(&set);
            let disk = self.disk();
            self.apply(CacheEvent::Dropped { set, disk });
        }
    }

    fn end_repair(&mut self) {
        if let Some(version) = self.repairing.pop() {
            self.done.repaired += 1;
            let is_whole = self.random.bool();
            self.apply(CacheEvent::Repaired(version, is_whole));
        }
    }

    fn disturb(&mut self) {
        let set = key(SETS[self.random.usize(..SETS.len())]);
        match self.random.u8(..8) {
            0 => {
                self.contents += 1;
                let content = self.contents;
                let source = self.sources.get_mut(&set).unwrap();
                *source = (content, source.0);
            }
            1 => {
                let all: Vec<VersionDigest> = self.store.keys().copied().collect();
                if let Some(version) = self.random.choice(all) {
                    self.apply(CacheEvent::Damaged(version));
                }
            }
            2 => self.apply(CacheEvent::Unwanted(set)),
            3 => {
                let pin = self.pinned.insert(set.clone());
                if !pin {
                    self.pinned.remove(&set);
                }
                self.apply(CacheEvent::Pinned(set, pin));
            }
            _ => {
                self.now += 500;
                self.apply(CacheEvent::Tick);
            }
        }
    }

    fn step(&mut self) {
        self.now += self.random.u64(..50);
        match self.random.u8(..24) {
            0..4 => self.ask(),
            4..7 => self.leave(),
            7..11 => self.end_listing(),
            11..18 => self.go_on_fetching(),
            18..20 => self.end_eviction(),
            20..22 => self.end_repair(),
            _ => self.disturb(),
        }
    }

    /// All that is under way ends, and jobs end too: then nobody waits.
    fn becomes_quiet(&mut self) {
        for _ in 0..2_000 {
            self.now += 10_000;
            self.end_listing();
            self.go_on_fetching();
            self.end_eviction();
            self.end_repair();
            self.apply(CacheEvent::Tick);
            if self.random.u8(..8) == 0 {
                let lease = self.leases.keys().next().cloned();
                if let Some(request) = lease {
                    self.leases.remove(&request);
                    self.apply(CacheEvent::Left(request));
                }
            }
        }
        // A set that is pinned may keep others out for ever.
        if self.pinned.is_empty() {
            assert_eq!(self.waiting, BTreeMap::new());
        }
        assert_eq!(
            self.cache.requests.len(),
            self.leases.len() + self.waiting.len()
        );
        assert!(self.fetching.is_empty() || !self.waiting.is_empty());
    }
}

fn fault(kind: FaultKind) -> SourceFault {
    SourceFault {
        kind,
        text: format!("{kind:?}"),
    }
}

#[test]
fn whatever_comes_a_set_in_use_stays_and_the_disk_is_never_full() {
    let mut sum = Done::default();
    for seed in 0..200 {
        let mut world = World::new(seed);
        for _ in 0..600 {
            world.step();
        }
        world.becomes_quiet();
        sum.ready += world.done.ready;
        sum.refused += world.done.refused;
        sum.failed += world.done.failed;
        sum.evicted += world.done.evicted;
        sum.stopped += world.done.stopped;
        sum.dropped += world.done.dropped;
        sum.repaired += world.done.repaired;
    }
    let all = [
        sum.ready,
        sum.refused,
        sum.failed,
        sum.evicted,
        sum.stopped,
        sum.dropped,
        sum.repaired,
    ];
    assert!(all.iter().all(|count| *count > 200), "{sum:?}");
}
