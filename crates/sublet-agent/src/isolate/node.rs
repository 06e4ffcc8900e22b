//! The node's arbiter, run in a thread of this process, and the containers that it looks after. A
//! call here blocks for a turn of the arbiter and for the disk, about a millisecond.
//!
//! No container has to ask the arbiter for room: the cluster has given it. Where something else is
//! wrong (a card that is gone), a container that is about to start is refused. One that runs already
//! gets its limits at a later look. Until then its socket is not there, and its programs are refused or
//! run without a limit, as the mode says.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use sublet_abi::settings::word_of;
use sublet_abi::{MAX_DEVICES, Mode};
use sublet_api::Handed;
use sublet_api::object::Pod;
use sublet_arbiter::admin::{GpuRow, Reply, Request, Snapshot};
use sublet_arbiter::libraries::{LibrarySource, Store};
use sublet_arbiter::{
    Arbiter, ContainerCard, ContainerJob, Folder, Gauge, GpuView, Handle, HandleError, HostPlace,
    NvmlView, Options, REAL_MACHINE,
};
use sublet_fakegpu::{FakeMachine, Spec};
use sublet_model::{Inventory, MiB, PodUid, Unit};
use tracing::{debug, info, warn};

use super::fake::FakeView;
use super::inject::{FakeKit, Injection, Kit, beside_libraries, inject};
use super::leftovers::Leftovers;
use super::loadable::{check_version, warn_of_needs};
use super::reconcile::{is_wanted, lost};
use super::record::{Record, RecordCard, read_all};
use super::thread::{Ended, run};
use super::{IsolationError, Wanted, make_private, open_to_all};
use crate::allocate::HandOver;
use crate::books::Books;
use crate::care::DeviceName;

/// Where the cards are.
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
    tracked: Mutex<BTreeMap<PathBuf, Tracked>>,
    leftovers: Leftovers,
    ended: Ended,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A container, and whether the arbiter looks after it now.
#[derive(Debug)]
struct Tracked {
    record: Record,
    has_job: bool,
    /// What was last logged as wrong.
    complaint: Option<String>,
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
        let mut gauge = gauge()?;
        let (folder, view, fake) = match cards {
            Cards::Real(nvml) => {
                let view: Box<dyn GpuView> =
                    Box::new(NvmlView::open(nvml).map_err(sublet_arbiter::ArbiterError::from)?);
                let folder = Folder::within(&wanted.runtime_dir, REAL_MACHINE);
                (folder, view, None)
            }
            Cards::Simulated(inventory) => simulated(wanted, &store, inventory)?,
        };
        if let Some(fake) = &fake {
            let machine = [OsString::from("--fake-gpu"), fake.machine.clone().into()];
            gauge.arguments.splice(2..2, machine);
        }
        let mps = wanted.time.mps.as_ref().map(|_| folder.mps_pipe());
        let options = Options {
            host: fake.is_none().then(HostPlace::real),
            local_jobs: wanted.local_jobs,
            gauge: Some(gauge),
            time: wanted.time.clone(),
            ..Options::new(folder)
        };
        let arbiter = Arbiter::start(options, view)?;
        // Nobody else writes there now. An arbiter that does not run yet can be given up again, and
        // leaves what the next one must know.
        let records = read_all(&containers).map_err(IsolationError::io("reading", &containers))?;
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
            tracked: Mutex::default(),
            leftovers: Leftovers::default(),
            ended,
            thread: Mutex::new(Some(thread)),
            containers,
        };
        isolation.gpus = isolation.handle.first_snapshot().unwrap_or_default().gpus;
        isolation.restore(records);
        isolation.clear_libraries();
        let (gpus, containers) = (isolation.gpus.len(), isolation.lock().len());
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
    pub(crate) fn admit(&self, handed: &HandOver) -> Result<Injection, IsolationError> {
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
        let mut all = self.lock();
        // What a container of before has is nobody's to hold it to now.
        if self.ended.borrow().is_some() {
            return Err(HandleError::Ended.into());
        }
        let mut record = Record {
            mps: self.kit.mps.is_some(),
            libraries: self.kit.folders(),
            ..Record::of(handed)
        };
        if !handed.twins.is_empty() {
            record = record.in_doubt(handed, self.free_seat(&all));
        }
        let folder = record.folder(&self.containers);
        record
            .make_folders(&self.containers)
            .map_err(IsolationError::io("making", &folder))?;
        let (tenant, limits) = (record.tenant(&self.containers), record.limits());
        if let Some(old) = all.remove(&folder) {
            if old.has_job && old.record.is_same(&record) {
                // The container starts again, and has what it had.
                all.insert(folder, old);
                return Ok(inject(&self.kit, &tenant, &limits));
            }
            // An earlier answer did not reach kubelet, or something else is to be had now.
            self.end_job(&old);
        }
        let mut tracked = Tracked {
            record,
            has_job: false,
            complaint: None,
        };
        self.begin_job(&mut tracked);
        let written = tracked.record.write(&self.containers);
        let refused = tracked.complaint.clone();
        all.insert(folder.clone(), tracked);
        written.map_err(IsolationError::io("writing to", &folder))?;
        match refused {
            // It is tried again at each look, and whoever asks next finds it done.
            Some(why) => Err(HandleError::Refused(why).into()),
            None => Ok(inject(&self.kit, &tenant, &limits)),
        }
    }

    /// A name for a folder that is nobody's.
    fn free_seat(&self, all: &BTreeMap<PathBuf, Tracked>) -> String {
        let place = |number: &u64| self.containers.join(format!("seat-{number}"));
        let taken = |place: &Path| all.keys().any(|folder| folder.starts_with(place));
        let number = (1..).find(|number| !taken(&place(number)) && !place(number).exists());
        format!("seat-{}", number.unwrap_or_default())
    }

    /// Is there a container of which it is not known whose it is?
    pub(crate) fn is_in_doubt(&self) -> bool {
        let all = self.lock();
        all.values().any(|one| !one.record.twins().is_empty())
    }

    /// Learns from kubelet's books who got what one of several pods was to get. Returns how many
    /// seats are still in doubt.
    pub(crate) fn recognise(&self, books: &Books) -> usize {
        let mut doubts = 0;
        for tracked in self.lock().values_mut() {
            let Some(seat) = &tracked.record.seat else {
                continue;
            };
            let twins = seat.twins.iter().map(|[uid, ..]| uid.as_str());
            let owner = books.owner(&seat.device, twins).map(str::to_owned);
            let container = tracked.record.container.clone();
            if let Some(uid) = owner {
                tracked.record.is_of(&uid);
                let (name, seat) = (tracked.record.name(), tracked.record.folder(Path::new("")));
                info!(container = name, seat = %seat.display(), "kubelet's books say whose it is");
                if let Err(error) = tracked.record.write(&self.containers) {
                    warn!(container = name, %error, "after a restart it is looked for again");
                }
            } else if tracked
                .record
                .rule_out(|uid| books.has_served(uid, &container))
            {
                // It is worked out again after a restart.
                debug!(
                    seat = tracked.record.name(),
                    "some of those that it may be have another"
                );
            }
            doubts += usize::from(!tracked.record.twins().is_empty());
        }
        doubts
    }

    /// Compares the containers with the node's pods, and removes what none of them needs any more.
    /// True if one still waits for the arbiter. `pods` is asked once nobody can be admitted meanwhile.
    pub(crate) fn settle(&self, pods: impl FnOnce() -> Arc<Vec<Pod>>) -> bool {
        let mut all = self.lock();
        let pods = pods();
        all.retain(|_, tracked| {
            let is_wanted = is_wanted(&tracked.record, &pods);
            if !is_wanted {
                self.end_job(tracked);
                self.leftovers.remove(&tracked.record, &self.containers);
            }
            is_wanted
        });
        let mut waits = false;
        for tracked in all.values_mut() {
            if !tracked.has_job {
                self.begin_job(tracked);
                if tracked.has_job
                    && let Err(error) = tracked.record.write(&self.containers)
                {
                    warn!(%error, "after a restart this container will be a new one");
                }
                waits |= !tracked.has_job;
            }
        }
        waits
    }

    /// Who may have which cards: names of cards, each with a pod.
    pub(crate) fn holders(&self) -> Vec<(DeviceName, PodUid)> {
        let all = self.lock();
        all.values().flat_map(|one| one.record.held()).collect()
    }

    /// Removes what could not be removed before of containers that had that card.
    ///
    /// # Errors
    /// It still cannot be; the text says what and why.
    pub(crate) fn clear_leftovers(&self, card: &str) -> Result<(), String> {
        self.leftovers.clear(card, &self.containers)
    }

    /// The cards of pods that do not say themselves which they have.
    pub(crate) fn lost(&self, pods: &[Pod], unit: Unit) -> Handed {
        let all = self.lock();
        lost(all.values().map(|tracked| &tracked.record), pods, unit)
    }

    /// What the arbiter says, with the record of each container by its number.
    pub(crate) fn look(&self) -> (Snapshot, BTreeMap<u64, Record>) {
        let all = self.lock();
        let with_jobs = all.values().filter(|tracked| tracked.has_job);
        let numbered = with_jobs.filter_map(|one| Some((one.record.id?, one.record.clone())));
        let numbered = numbered.collect();
        drop(all);
        (self.snapshot(), numbered)
    }

    /// What `admin.sock` would answer to a question.
    pub(crate) fn read(&self, request: Request) -> Result<Reply, HandleError> {
        self.handle.read(request)
    }

    /// How long the arbiter has not said that it works.
    pub(crate) fn silent_for(&self) -> std::time::Duration {
        self.handle.silent_for()
    }

    fn snapshot(&self) -> Snapshot {
        // It has ended, and another one is about to start; or it stands still, and a probe ends the
        // process.
        self.handle.snapshot().unwrap_or_default()
    }

    /// Takes back the containers of an earlier agent, before their processes stop waiting.
    fn restore(&self, records: Vec<Record>) {
        let mut all = self.lock();
        for record in records {
            let folder = record.folder(&self.containers);
            let mut tracked = Tracked {
                record,
                has_job: false,
                complaint: None,
            };
            // A container that never had a number had no processes that wait.
            if tracked.record.id.is_some() {
                self.begin_job(&mut tracked);
            }
            all.insert(folder, tracked);
        }
    }

    /// Removes libraries of earlier versions that no container can come back to. New containers get
    /// those of this version, so they may come meanwhile.
    pub(crate) fn clear_libraries(&self) {
        let of = |one: &Tracked| one.record.libraries.clone();
        let records: Vec<_> = self.lock().values().map(of).collect();
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

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Tracked>> {
        self.tracked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the libraries for containers come from and go to.
fn store(wanted: &Wanted) -> Result<Store, IsolationError> {
    let source = match &wanted.library_dir {
        Some(folder) => LibrarySource::Folders(vec![folder.clone()]),
        None => {
            let own = std::env::current_exe()
                .map_err(IsolationError::io("finding", Path::new("this program")))?;
            LibrarySource::of(&own, wanted.carried)
        }
    };
    Ok(Store::new(source, vec![wanted.state_dir.join("libraries")]))
}

/// How the cards are measured: by this program.
fn gauge() -> Result<Gauge, IsolationError> {
    let program = std::env::current_exe();
    Ok(Gauge {
        program: program.map_err(IsolationError::io("finding", Path::new("this program")))?,
        arguments: ["agent", "--standalone", "--measure"]
            .map(OsString::from)
            .into(),
    })
}

type Simulated = (Folder, Box<dyn GpuView>, Option<FakeKit>);

/// A machine with the cards of an inventory file. It is in the runtime folder, which is memory,
/// and which containers can mount; `/dev/shm` of a pod is the pod's own.
fn simulated(
    wanted: &Wanted,
    store: &Store,
    inventory: &Inventory,
) -> Result<Simulated, IsolationError> {
    if inventory.gpus().is_empty() {
        return Err(IsolationError::NoCards);
    }
    let (driver, _nvml) = store.fake_driver()?;
    let spec = Spec::from_inventory(inventory)?;
    let machines = wanted.runtime_dir.join("machines");
    make_private(&machines)?;
    let machine = FakeMachine::open_or_create_in(&machines, &spec)?;
    // Containers' processes have any user, and are to it what they are to a card's device
    // file. Nobody else comes here: the folder above is ours alone.
    let folder = machine.folder().to_owned();
    open_to_all(&folder, 0o777)?;
    open_to_all(&folder.join("machine"), 0o666)?;
    let kit = FakeKit {
        driver: driver.parent().unwrap_or(Path::new("/")).to_owned(),
        machine: folder,
    };
    let place = Folder::within(&wanted.runtime_dir, &format!("fake-{}", spec.digest()));
    Ok((place, Box::new(FakeView(machine)), Some(kit)))
}

#[cfg(test)]
mod tests;
