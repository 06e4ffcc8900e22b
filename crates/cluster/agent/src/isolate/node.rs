//! The node's arbiter, run in a thread of this process, and the containers that it looks after. A
//! call here blocks for a turn of the arbiter and for the disk, about a millisecond, with no more in
//! hand than the containers that it is about (`containers`).
//!
//! No container has to ask the arbiter for room: the cluster has given it. If something else is
//! wrong (a card that is gone), a container that is about to start is refused. One that runs already
//! gets its limits at a later look. Until then its socket is not there, and its programs are refused or
//! run without a limit, as the mode says.

mod seats;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sublet_abi::settings::word_of;
use sublet_abi::{MAX_DEVICES, Mode};
use sublet_api::Handed;
use sublet_api::object::Pod;
use sublet_arbiter::admin::{GpuRow, Reply, Request, Snapshot};
use sublet_arbiter::libraries::Store;
use sublet_arbiter::{
    Arbiter, ContainerCard, ContainerJob, Folder, GpuView, Handle, HandleError, HostPlace,
    NvmlView, Options, REAL_MACHINE,
};
use sublet_model::{Inventory, MiB, PodUid, Unit};
use tracing::{info, warn};

use super::containers::{Containers, InHand, Tracked};
use super::found::{Found, Unread, read_all};
use super::inject::{FakeKit, Injection, Kit, beside_libraries, inject};
use super::leftovers::Leftovers;
use super::loadable::{check_version, warn_of_needs};
use super::means::{gauge, simulated, store};
use super::reconcile::{is_there, is_wanted, lost};
use super::record::{Record, RecordCard};
use super::thread::{Ended, run};
use super::{IsolationError, Wanted, make_private};
use crate::allocate::AllocationResponse;
use crate::lifecycle::DeviceName;
use crate::pods::PodList;

/// Longest wait for a container that another thread has in hand: as long as that thread may wait
/// for the arbiter. The runtime cuts off a plugin that makes it wait for 2 s.
const IN_HAND_MAX: Duration = Duration::from_secs(1);

/// Place of the cards.
pub(crate) enum Cards<'a> {
    /// On this machine; NVIDIA's management library.
    Real(&'a Path),
    /// In an inventory file.
    Simulated(&'a Inventory),
}

/// The node's arbiter and its containers.
pub(crate) struct Isolation {
    handle: Handle,
    store: Store,
    kit: Kit,
    mode: Mode,
    /// The folder of all containers.
    containers: PathBuf,
    /// The cards as the arbiter names them.
    gpus: Vec<GpuRow>,
    tracked: Containers,
    /// The number of the last seat.
    seats: AtomicU64,
    /// Folders of an earlier agent's containers that are not understood yet.
    unread: Mutex<Vec<Unread>>,
    begun: Instant,
    leftovers: Leftovers,
    ended: Ended,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Isolation {
    /// Puts the libraries where containers can mount them, starts the arbiter, and takes the
    /// containers of before back.
    pub(crate) fn start(wanted: &Wanted, cards: &Cards<'_>) -> Result<Isolation, IsolationError> {
        let store = store(wanted)?;
        let mode = wanted.mode.mode();
        let beside = beside_libraries(mode, matches!(cards, Cards::Simulated(_)))?;
        let libraries = store.interposer_with(&beside)?;
        let interposer = [&*libraries.cuda, &*libraries.nvml];
        check_version(interposer, wanted.library_dir.as_deref())?;
        let containers = wanted.state_dir.join("containers");
        make_private(&containers)?;
        let (folder, view, fake) = match cards {
            Cards::Real(nvml) => {
                let view: Box<dyn GpuView> =
                    Box::new(NvmlView::open(nvml).map_err(sublet_arbiter::ArbiterError::from)?);
                let folder = Folder::within(&wanted.run_folder, REAL_MACHINE);
                (folder, view, None)
            }
            Cards::Simulated(inventory) => simulated(wanted, &store, inventory)?,
        };
        let mps = wanted.time.mps.as_ref().map(|_| folder.mps_pipe());
        let program = wanted.program.as_deref();
        let host = match &fake {
            None => HostPlace::real(),
            Some(FakeKit { machine, .. }) => {
                HostPlace::of_fake(machine).map_err(IsolationError::io("looking at", machine))?
            }
        };
        let options = Options {
            host: Some(host),
            local_jobs: wanted.local_jobs,
            gauge: program.map(|program| gauge(program, fake.as_ref())),
            time: wanted.time.clone(),
            ..Options::new(folder)
        };
        let arbiter = Arbiter::start(options, view)?;
        // Nobody else writes there now. An arbiter that does not run yet can be given up again, and
        // leaves what the next one must know.
        let found = read_all(&containers).map_err(IsolationError::io("reading", &containers))?;
        let handle = arbiter.handle();
        let (ended, thread) = run(arbiter)?;
        let mut files = vec![libraries.cuda.clone(), libraries.nvml, libraries.preload];
        files.extend(fake.iter().flat_map(FakeKit::files));
        warn_of_needs(&files);
        let mut isolation = Isolation {
            gpus: Vec::new(),
            store,
            kit: Kit {
                libraries: libraries.cuda.parent().unwrap_or(Path::new("/")).to_owned(),
                fake,
                mps,
            },
            mode,
            handle,
            tracked: Containers::default(),
            seats: AtomicU64::new(0),
            unread: Mutex::new(found.unread),
            begun: Instant::now(),
            leftovers: Leftovers::default(),
            ended,
            thread: Mutex::new(Some(thread)),
            containers,
        };
        isolation.gpus = isolation.handle.first_snapshot().unwrap_or_default().gpus;
        isolation.restore(found.records);
        isolation.clear_libraries();
        let gpus = isolation.gpus.len();
        let containers = isolation.tracked.read(|all| all.count());
        info!(gpus, containers, mode = word_of(mode), "isolation is on");
        Ok(isolation)
    }

    /// Returns when the arbiter has ended, and says of what.
    pub(crate) async fn until_ended(&self) -> String {
        let mut ended = self.ended.clone();
        let why = ended.wait_for(Option::is_some).await;
        why.ok().and_then(|why| why.clone()).unwrap_or_default()
    }

    /// Ends the arbiter in order. Containers go on with their limits, and wait for the next.
    pub(crate) fn stop(&self) {
        self.handle.stop();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.take().is_some_and(|thread| thread.join().is_err()) {
            warn!("the arbiter's thread did not end well");
        }
    }

    /// Has the arbiter look after a container that is about to start, and says what it gets;
    /// nothing where it is not to be held to its part.
    pub(crate) fn admit(&self, handed: &AllocationResponse) -> Result<Injection, IsolationError> {
        if !handed.isolated {
            return Ok(Injection::default());
        }
        if handed.cards.len() > MAX_DEVICES {
            let (pod, cards) = (handed.pod.clone(), handed.cards.len());
            // Nobody else is on whole cards: they need no limit, and have no figures either.
            return match handed.needs_limit() {
                true => Err(IsolationError::TooMany { pod, cards }),
                false => Ok(Injection::default()),
            };
        }
        // What a container of before has is nobody's to hold it to now.
        if self.ended.borrow().is_some() {
            return Err(HandleError::Ended.into());
        }
        let record = Record {
            mps: self.kit.mps.is_some(),
            libraries: self.kit.folders(),
            ..Record::of(handed)
        };
        let record = self.seated(record, handed);
        let (folder, tenant) = (
            record.folder(&self.containers),
            record.tenant(&self.containers),
        );
        let (limits, new) = (record.limits(), Tracked::new(record));
        let entered = self.tracked.enter(&folder, new, IN_HAND_MAX);
        let (hand, before) = entered.ok_or(IsolationError::InHand)?;
        self.begin(hand, before)?;
        Ok(inject(&self.kit, &tenant, &limits))
    }

    /// Begins what a container is to have now. `before`: what it had.
    fn begin(&self, mut hand: InHand<'_>, before: Option<Tracked>) -> Result<(), IsolationError> {
        let record = &hand.tracked.record;
        let is_same = |old: &&Tracked| old.has_job && old.record.is_same(record);
        if let Some(old) = before.as_ref().filter(is_same) {
            // The container starts again, and has what it had.
            let since = hand.tracked.since;
            hand.tracked = Tracked {
                since,
                ..old.clone()
            };
            return Ok(());
        }
        let folder = record.folder(&self.containers);
        if let Err(error) = record.make_folders(&self.containers) {
            match before {
                Some(old) => hand.tracked = old,
                None => hand.forget(),
            }
            return Err(IsolationError::io("making", &folder)(error));
        }
        if let Some(old) = before {
            // An earlier answer did not reach kubelet, or something else is to be had now.
            self.end_job(&old);
        }
        self.begin_job(&mut hand.tracked);
        let written = hand.tracked.record.write(&self.containers);
        written.map_err(IsolationError::io("writing to", &folder))?;
        match hand.tracked.complaint.clone() {
            // It is tried again at each look, and whoever asks next finds it done.
            Some(why) => Err(HandleError::Refused(why).into()),
            None => Ok(()),
        }
    }

    /// Compares the containers with the node's pods, and removes those that no pod needs any more.
    /// True if one still waits for the arbiter. A container that came after the pods were asked for
    /// stays.
    pub(crate) fn settle(&self, pods: &PodList) -> bool {
        self.read_again(pods);
        let is_gone = |one: &Tracked| one.since < pods.asked() && !is_wanted(&one.record, pods);
        for hand in self.tracked.take(is_gone) {
            self.end_job(&hand.tracked);
            self.leftovers
                .remove(&hand.tracked.record, &self.containers);
            hand.forget();
        }
        for mut hand in self.tracked.take(|one| !one.has_job) {
            self.begin_job(&mut hand.tracked);
            if hand.tracked.has_job
                && let Err(error) = hand.tracked.record.write(&self.containers)
            {
                warn!(%error, "after a restart this container will be a new one");
            }
        }
        self.tracked.read(|mut all| all.any(|one| !one.has_job))
    }

    /// Tries again to read the unreadable folders, and removes them if their pod is gone.
    fn read_again(&self, pods: &PodList) {
        // Another thread does it, which is as good.
        let Ok(mut unread) = self.unread.try_lock() else {
            return;
        };
        let mut found = Found::default();
        for one in unread.drain(..) {
            let is_gone = |uid: &String| pods.asked() > self.begun && !is_there(uid, pods);
            let is_gone = one.pod.as_ref().is_some_and(is_gone);
            match is_gone.then(|| fs::remove_dir_all(&one.folder)) {
                Some(Ok(())) => info!(folder = %one.folder.display(), "its pod is gone; forgotten"),
                Some(Err(error)) => {
                    let folder = &one.folder;
                    found
                        .unread
                        .push(Unread::of(folder, &self.containers, &error));
                }
                None => found.read_again(&one, &self.containers),
            }
        }
        for record in found.records {
            let folder = record.folder(&self.containers);
            // The container may have started again, and is known since.
            if !self.tracked.has_any_below(&folder) {
                info!(container = record.name(), "its record can be read now");
                self.tracked
                    .enter(&folder, Tracked::new(record), Duration::ZERO);
            }
        }
        *unread = found.unread;
    }

    /// Folders of containers that are not understood because their records cannot be read.
    pub(crate) fn unread(&self) -> Vec<Unread> {
        let unread = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        unread.clone()
    }

    /// The pods that may have each card: names of cards, each with a pod.
    pub(crate) fn holders(&self) -> Vec<(DeviceName, PodUid)> {
        self.tracked
            .read(|all| all.flat_map(|one| one.record.held()).collect())
    }

    /// Removes the folders that containers with that card left behind.
    ///
    /// # Errors
    /// One still cannot be removed; the text names it and the reason.
    pub(crate) fn clear_leftovers(&self, card: &str) -> Result<(), String> {
        self.leftovers.clear(card, &self.containers)
    }

    /// The cards of pods that do not say themselves which they have.
    pub(crate) fn lost(&self, pods: &[Pod], unit: Unit) -> Handed {
        self.tracked
            .read(|all| lost(all.map(|tracked| &tracked.record), pods, unit))
    }

    /// Returns the arbiter's snapshot, with the record of each container by its number.
    pub(crate) fn look(&self) -> (Snapshot, BTreeMap<u64, Record>) {
        let numbered = self.tracked.read(|all| {
            let with_jobs = all.filter(|tracked| tracked.has_job);
            let numbered = with_jobs.filter_map(|one| Some((one.record.id?, one.record.clone())));
            numbered.collect()
        });
        (self.snapshot(), numbered)
    }

    /// Answers a question as `admin.sock` would.
    pub(crate) fn read(&self, request: Request) -> Result<Reply, HandleError> {
        self.handle.read(request)
    }

    /// Time since the arbiter last said that it works.
    pub(crate) fn silent_for(&self) -> Duration {
        self.handle.silent_for()
    }

    fn snapshot(&self) -> Snapshot {
        // It has ended, and another one is about to start; or it stands still, and a probe ends the
        // process.
        self.handle.snapshot().unwrap_or_default()
    }

    /// Takes back the containers of an earlier agent, before their processes stop waiting.
    fn restore(&self, records: Vec<Record>) {
        for record in records {
            let folder = record.folder(&self.containers);
            // A container that never had a number had no processes that wait.
            let waits = record.id.is_some();
            let new = Tracked::new(record);
            if let Some((mut hand, _)) = self.tracked.enter(&folder, new, Duration::ZERO)
                && waits
            {
                self.begin_job(&mut hand.tracked);
            }
        }
    }

    /// Removes libraries of earlier versions that no container can come back to. New containers get
    /// those of this version, so they may come meanwhile.
    pub(crate) fn clear_libraries(&self) {
        let of = |one: &Tracked| one.record.libraries.clone();
        // What cannot be read may mount any folder. It is looked at before the others: it may become one.
        if !matches!(self.unread.try_lock(), Ok(unread) if unread.is_empty()) {
            return;
        }
        let records: Vec<_> = self.tracked.read(|all| all.map(of).collect());
        // An earlier agent did not record what its containers mount; it may be any folder.
        if records.iter().any(Vec::is_empty) {
            return;
        }
        let needed = records.concat();
        for folder in self.store.remove_unused(&needed) {
            info!(folder = %folder.display(), "libraries that nobody uses are removed");
        }
    }

    fn begin_job(&self, tracked: &mut Tracked) {
        let Tracked { record, .. } = &*tracked;
        let name = record.name();
        let tenant = record.tenant(&self.containers);
        let cards = record.cards.iter().map(|card| self.card(card)).collect();
        let (compute, class) = record.compute_time();
        let begun = self.handle.add_container(ContainerJob {
            id: record.id,
            name: name.clone(),
            dir: tenant,
            cards,
            pinned_limit: record.pinned_limit_mib.and_then(MiB::new),
            compute,
            class,
            slice: record.slice(),
            mode: self.mode,
            promise: record.promise(),
            mps: record.mps,
        });
        match begun {
            Ok(id) => {
                tracked.record.id = Some(id);
                tracked.has_job = true;
                tracked.complaint = None;
                info!(container = name, job = id, "the container has its limits");
            }
            Err(error) => {
                let why = error.to_string();
                if tracked.complaint.as_ref() != Some(&why) {
                    warn!(container = name, why, "no limits yet, will try again");
                    tracked.complaint = Some(why);
                }
            }
        }
    }

    fn end_job(&self, tracked: &Tracked) {
        let Some(id) = tracked.record.id.filter(|_| tracked.has_job) else {
            return;
        };
        match self.handle.remove_container(id) {
            // Its last process was gone before.
            Ok(()) | Err(HandleError::Refused(_)) => {}
            Err(error) => warn!(job = id, %error, "not taken away"),
        }
        let socket = tracked.record.tenant(&self.containers).join("tenant.sock");
        let _absent = fs::remove_file(socket);
    }

    /// A card of a record as the arbiter names it. Cards of a file may have UUIDs there that
    /// no driver prints; those are known by their number. The card may have less for programs
    /// than the node reports.
    fn card(&self, card: &RecordCard) -> ContainerCard {
        let by_uuid = |gpu: &&GpuRow| Some(&gpu.uuid) == card.uuid.as_ref();
        let by_index = |gpu: &&GpuRow| gpu.index == card.index;
        let all = || self.gpus.iter();
        let gpu = all().find(by_uuid).or_else(|| all().find(by_index));
        let most = gpu.map_or(u64::MAX, |gpu| gpu.memory_mib);
        ContainerCard {
            uuid: gpu.map_or_else(|| format!("number {}", card.index), |gpu| gpu.uuid.clone()),
            limit: MiB::new(card.limit_mib.min(most)).unwrap_or(MiB::MAX),
        }
    }
}

#[cfg(test)]
mod tests;
