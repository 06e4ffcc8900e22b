//! The loop around [`DatasetCache`]: events in, actions out. Listings, fetches and deletions are
//! threads of their own, which tell the loop when they have ended. The record of the store is
//! written before anybody hears of what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sublet_arbiter::ProcessStamp;
use sublet_cache::{
    CacheAction, CacheAnswer, CacheEvent, CacheLimits, DatasetCache, DatasetKey, FaultKind,
    KnownDataset, KnownVersion, PackId, Recovered, RequestId, SourceFault, SourceFingerprint,
    Urgency, VersionDigest,
};
use sublet_model::{Bytes, Time};

use crate::record::{KeyRecord, LeaseRecord, RecordError, SetRecord, StoreRecord, VersionRecord};
use crate::store::Store;
use crate::store::making::{FetchOrder, Listed, MadeVersion};
use crate::wire::{DatasetReply, DatasetRequest};

mod requests;
mod work;

/// Interval of the looks at holders of leases, and at the disk.
const SWEEP: Duration = Duration::from_secs(10);
/// Interval of the progress that waiting clients hear of.
const PROGRESS: Duration = Duration::from_millis(200);

/// Something that the loop hears of.
pub(crate) enum Input {
    /// A request of a client.
    Request {
        caller: Caller,
        request: DatasetRequest,
        reply: Sender<DatasetReply>,
    },
    /// A client's connection is closed.
    Closed(u64),
    Listed(DatasetKey, Box<Result<Listed, SourceFault>>),
    Written(DatasetKey, Bytes),
    Fetched(DatasetKey, Box<Result<MadeVersion, SourceFault>>),
    Evicted(VersionDigest),
    Dropped(DatasetKey),
    Repaired(VersionDigest, bool),
    Verified {
        version: VersionDigest,
        reply: Sender<DatasetReply>,
        outcome: Box<io::Result<(u64, Vec<String>)>>,
    },
    /// The process shall end.
    End,
}

/// A client.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Number of its connection.
    pub(crate) connection: u64,
    pub(crate) uid: u32,
    pub(crate) process: Option<ProcessStamp>,
}

/// A fetch under way.
#[derive(Debug)]
struct Flight {
    order: FetchOrder,
    /// Urgency: how soon it is needed.
    urgency: Urgency,
    plans: Vec<[u8; 32]>,
}

/// A client that waits for a set or has it.
#[derive(Debug)]
struct Waiter {
    reply: Sender<DatasetReply>,
    set: DatasetKey,
    process: Option<ProcessStamp>,
    is_ready: bool,
}

/// The loop's state.
pub(crate) struct Keeper {
    store: Store,
    cache: DatasetCache,
    record: StoreRecord,
    inputs: Sender<Input>,
    listed: BTreeMap<DatasetKey, Arc<Listed>>,
    flights: BTreeMap<DatasetKey, Flight>,
    waiters: BTreeMap<RequestId, Waiter>,
    /// Sets that were deleted and are not gone yet, and those who wait for that.
    removals: BTreeMap<DatasetKey, Vec<Sender<DatasetReply>>>,
    idle_exit: Option<Duration>,
    idle_since: Instant,
    swept: Instant,
    told: Instant,
}

/// Settings of a cache.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeeperSettings {
    pub(crate) limits: CacheLimits,
    /// End when nobody has needed it for so long.
    pub(crate) idle_exit: Option<Duration>,
}

impl Keeper {
    /// Reads the store's record, shows what is whole, and sweeps the rest away.
    ///
    /// # Errors
    /// The record cannot be read, or the disk's.
    pub(crate) fn begin(
        store: Store,
        settings: &KeeperSettings,
    ) -> Result<(Keeper, Receiver<Input>), RecordError> {
        let mut record = StoreRecord::load(&store.record_file())?;
        refuse_another_view(&store, &record)?;
        let mut found = Recovered {
            disk: store.disk(),
            ..Recovered::default()
        };
        find_versions(&store, &mut record, &mut found)?;
        let versions: BTreeSet<_> = found.versions.iter().map(|known| known.version).collect();
        let is_there =
            |text: &String| VersionDigest::read(text).is_some_and(|v| versions.contains(&v));
        for set in &mut record.sets {
            set.version = set.version.take().filter(is_there);
        }
        record
            .leases
            .retain(|lease| is_there(&lease.version) && lease.process.lives());
        let mut plans = BTreeSet::new();
        let claimed: BTreeSet<PackId> = found
            .versions
            .iter()
            .flat_map(|known| known.packs.keys().copied())
            .collect();
        let mut packs = claimed.clone();
        for set in &record.sets {
            let of_set = set.plans();
            packs.extend(store.noted_packs(&of_set));
            found.sets.extend(set.key.read().map(|key| KnownDataset {
                key,
                version: set.version.as_deref().and_then(VersionDigest::read),
                is_pinned: set.pinned,
                part: Bytes::new(store.part_bytes(&of_set)),
                part_used: Time::from_ms(set.parts_used_ms),
            }));
            plans.extend(of_set);
        }
        let leases = record.leases.iter().filter_map(|lease| {
            let version = VersionDigest::read(&lease.version)?;
            Some((RequestId(lease.request.clone()), lease.set.read()?, version))
        });
        found.leases = leases.collect();
        store.sweep(&versions, &packs, &plans)?;
        *store.claims() = claimed;
        record.save(&store.record_file())?;
        let (inputs, heard) = channel();
        let keeper = Keeper {
            cache: DatasetCache::new(settings.limits, found),
            store,
            record,
            inputs,
            listed: BTreeMap::new(),
            flights: BTreeMap::new(),
            waiters: BTreeMap::new(),
            removals: BTreeMap::new(),
            idle_exit: settings.idle_exit,
            idle_since: Instant::now(),
            swept: Instant::now(),
            told: Instant::now(),
        };
        Ok((keeper, heard))
    }

    /// Sender for inputs of others.
    pub(crate) fn inputs(&self) -> Sender<Input> {
        self.inputs.clone()
    }

    /// Serves until it shall end. Fetches under way stop, and keep their parts.
    pub(crate) fn run(&mut self, heard: &Receiver<Input>) {
        loop {
            match heard.recv_timeout(PROGRESS) {
                Ok(Input::End) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(input) => self.hear(input),
                Err(RecvTimeoutError::Timeout) => self.event(CacheEvent::Tick),
            }
            self.end_removals();
            self.tell_progress();
            self.sweep_leases();
            if self.is_over() {
                break;
            }
        }
        for flight in self.flights.values() {
            flight.order.stop.stop();
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while !self.flights.is_empty() && Instant::now() < deadline {
            if let Ok(Input::Fetched(key, _)) = heard.recv_timeout(PROGRESS) {
                self.flights.remove(&key);
            }
        }
    }

    fn is_over(&mut self) -> bool {
        let is_idle =
            self.waiters.is_empty() && self.flights.is_empty() && self.record.leases.is_empty();
        if !is_idle {
            self.idle_since = Instant::now();
        }
        self.idle_exit
            .is_some_and(|time| self.idle_since.elapsed() >= time)
    }

    fn hear(&mut self, input: Input) {
        match input {
            Input::Request {
                caller,
                request,
                reply,
            } => {
                self.idle_since = Instant::now();
                self.request(&caller, request, reply);
            }
            Input::Closed(connection) => self.left(&request_of(connection)),
            Input::Listed(set, listed) => self.heard_listed(&set, *listed),
            Input::Written(set, bytes) => {
                let disk = self.store.disk();
                self.event(CacheEvent::Written { set, bytes, disk });
            }
            Input::Fetched(set, made) => self.heard_fetched(set, *made),
            Input::Evicted(version) => {
                let disk = self.store.disk();
                self.event(CacheEvent::Evicted { version, disk });
            }
            Input::Dropped(set) => {
                let disk = self.store.disk();
                self.event(CacheEvent::Dropped { set, disk });
            }
            Input::Repaired(version, is_whole) => {
                if !is_whole {
                    self.disown(version);
                }
                self.event(CacheEvent::Repaired(version, is_whole));
            }
            Input::Verified {
                version,
                reply,
                outcome,
            } => self.verified(version, &reply, *outcome),
            Input::End => {}
        }
    }

    /// A client, or the process that had a lease, is gone.
    fn left(&mut self, request: &RequestId) {
        self.waiters.remove(request);
        self.event(CacheEvent::Left(request.clone()));
    }

    fn event(&mut self, event: CacheEvent) {
        for action in self.cache.apply(now(), event) {
            self.perform(action);
        }
    }

    fn perform(&mut self, action: CacheAction) {
        match action {
            CacheAction::List(set) => self.begin_listing(set),
            CacheAction::Fetch { set, room, urgency } => self.begin_fetch(set, room, urgency),
            CacheAction::Hasten { set, urgency } => {
                if let Some(flight) = self.flights.get_mut(&set) {
                    flight.urgency = urgency;
                }
                self.share_readers();
            }
            CacheAction::Stop(set) => {
                if let Some(flight) = self.flights.get(&set) {
                    flight.order.stop.stop();
                }
            }
            CacheAction::Evict(version) => self.begin_eviction(version),
            CacheAction::Drop(set) => self.begin_drop(set),
            CacheAction::Repair(version) => self.begin_repair(version),
            CacheAction::Answer(request, answer) => self.answer(&request, answer),
            CacheAction::Released {
                request,
                version,
                at,
            } => {
                self.record
                    .leases
                    .retain(|lease| lease.request != request.0);
                if let Some(version) = self.record.version_mut(version) {
                    version.used_ms = at.ms();
                }
                self.save();
            }
        }
    }

    fn answer(&mut self, request: &RequestId, answer: CacheAnswer) {
        let Some(waiter) = self.waiters.get_mut(request) else {
            return;
        };
        let name = waiter.set.name.clone();
        let reply = match answer {
            CacheAnswer::Ready(version) => {
                waiter.is_ready = true;
                let lease = waiter.process.clone().map(|process| LeaseRecord {
                    request: request.0.clone(),
                    set: KeyRecord::of(&waiter.set),
                    version: version.to_string(),
                    process,
                });
                let set = waiter.set.clone();
                self.record
                    .leases
                    .retain(|known| known.request != request.0);
                self.record.leases.extend(lease);
                self.save();
                let row = self.row(&set);
                DatasetReply::Ready {
                    path: self.store.view(version).display().to_string(),
                    set: Box::new(row.unwrap_or_default()),
                }
            }
            CacheAnswer::DoesNotFit { need, could } => refused(
                format!(
                    "{name} does not fit: it needs {} of free room, and {} could be made by deleting all that nobody uses",
                    mib(need),
                    mib(could)
                ),
                Some(
                    "`sublet dataset ls` shows who uses what; `--wait` waits until room comes free"
                        .to_owned(),
                ),
            ),
            CacheAnswer::Failed(text) => refused(text, None),
            CacheAnswer::Deleted => refused(format!("{name} was deleted meanwhile"), None),
        };
        if let Some(waiter) = self.waiters.get(request) {
            let _gone = waiter.reply.send(reply);
        }
    }

    /// Ends leases of processes that are gone and had no connection any more.
    fn sweep_leases(&mut self) {
        if self.swept.elapsed() < SWEEP {
            return;
        }
        self.swept = Instant::now();
        let gone = self.record.leases.iter().filter(|lease| {
            !self.waiters.contains_key(&RequestId(lease.request.clone())) && !lease.process.lives()
        });
        let gone: Vec<RequestId> = gone.map(|lease| RequestId(lease.request.clone())).collect();
        for request in gone {
            self.left(&request);
        }
        let disk = self.store.disk();
        self.event(CacheEvent::Space(disk));
    }

    fn save(&self) {
        if let Err(error) = self.record.save(&self.store.record_file()) {
            tracing::error!(%error, "the record of the store cannot be written");
        }
    }
}

impl SetRecord {
    /// Hashes of its plans; a text that is none is passed over, and what it named is swept away.
    fn plans(&self) -> Vec<[u8; 32]> {
        let parts = self.parts.iter();
        parts
            .filter_map(|text| Some(PackId::read(text)?.0))
            .collect()
    }
}

/// Shows the versions of the record that are whole, and forgets the others.
///
/// # Errors
/// One may be whole and cannot be shown: nothing is deleted then.
fn find_versions(
    store: &Store,
    record: &mut StoreRecord,
    found: &mut Recovered,
) -> Result<(), RecordError> {
    let mut whole = Vec::new();
    for version in std::mem::take(&mut record.versions) {
        match recover(store, &version) {
            Ok(known) => {
                found.versions.push(known);
                whole.push(version);
            }
            Err(error) if is_loss(&error) => {
                tracing::warn!(version = version.digest, %error, "a version is not whole, and goes");
            }
            // It may be whole all the same: nothing is deleted.
            Err(error) => return Err(error.into()),
        }
    }
    record.versions = whole;
    Ok(())
}

/// Refuses a store whose sets cannot be shown in the way in which they are stored.
fn refuse_another_view(store: &Store, record: &StoreRecord) -> Result<(), RecordError> {
    let is_packed = store.mode.is_packed();
    let mut stored = record.versions.iter().map(|version| version.view);
    match stored.find(|view| view.is_packed() != is_packed) {
        None => Ok(()),
        Some(stored) => Err(RecordError::View {
            stored: stored.name(),
            now: store.mode.name(),
            reason: match &store.mode_reason {
                Some(reason) => reason.clone(),
                None => "another store, or no `--view`, is for them".to_owned(),
            },
        }),
    }
}

/// A version of the record, if all of it is there.
fn recover(store: &Store, record: &VersionRecord) -> io::Result<KnownVersion> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "its record is damaged");
    let version = VersionDigest::read(&record.digest).ok_or_else(wrong)?;
    let fingerprints = record
        .fingerprints
        .iter()
        .map(|text| SourceFingerprint::read(text));
    let fingerprints: Option<BTreeSet<_>> = fingerprints.collect();
    Ok(KnownVersion {
        fingerprints: fingerprints.ok_or_else(wrong)?,
        used: Time::from_ms(record.used_ms),
        ..store.recover(version, Bytes::new(record.own_bytes))?
    })
}

/// Does an error say that a part of a version is gone, or not what was written?
fn is_loss(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    )
}

fn request_of(connection: u64) -> RequestId {
    RequestId(format!("connection {connection}"))
}

fn refused(reason: String, hint: Option<String>) -> DatasetReply {
    DatasetReply::Refused { reason, hint }
}

/// An amount for people.
fn mib(amount: Bytes) -> String {
    format!("{} MiB", amount.get().div_ceil(1 << 20))
}

fn now() -> Time {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Time::from_ms(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A thread that panicked, or could not be started.
fn broken(what: &str) -> SourceFault {
    SourceFault {
        kind: FaultKind::Passing,
        text: format!("{what} broke off; the log has more"),
    }
}
