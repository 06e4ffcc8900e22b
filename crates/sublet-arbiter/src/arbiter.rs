//! The loop: one thread that waits for sockets, processes, the driver's answers and a clock,
//! tells `sublet-share` what happened, and does what it says. What each kind of news means is
//! in the files beside this one.

mod admin_side;
mod asked;
mod connections;
mod containers;
mod guests;
mod perform;
mod readings;
mod returning;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::SocketType;
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::time::ClockId;
use sublet_model::{Inventory, MiB, Time};
use sublet_plan::Policy;
use sublet_share::{Action, Event, JobId, Machine, Pid};
use tracing::{info, warn};

use self::connections::AdminConnection;
use self::containers::Commands;
use self::guests::Guest;
use self::readings::CardNow;
use crate::admin::Counters;
use crate::error::{ArbiterError, at};
use crate::gauge::{self, Figures, Gauge};
use crate::gpu::{GpuView, Sampler, uuid_bytes};
use crate::lock::{Lock, Record, take_name};
use crate::peer;
use crate::poller::{Key, Poller};
use crate::runtime::Folder;
use crate::socket::{Spare, accept, listen};
use crate::tenant::{SlotCard, Tenant};

pub use self::containers::{Container, ContainerCard, Handle, HandleError};

/// How often the driver is read, heartbeats are written and clocks are looked at. A process
/// without a slot must be known within a second, and a reading costs a millisecond or two.
const TICK_MS: u64 = 200;

/// How an arbiter is set up.
#[derive(Debug)]
pub struct Options {
    /// Where its sockets are.
    pub folder: Folder,
    /// A name that only one arbiter of the host can have: users have folders of their own,
    /// and the cards are one. Nothing for fake machines.
    pub host_name: Option<String>,
    /// How to choose among cards that have room.
    pub policy: Policy,
    /// Memory of each card that no job gets.
    pub reserved: MiB,
    /// End processes that use a card without being a job?
    pub evict: bool,
    /// End jobs that have more memory than they may have, by the driver's count?
    pub evict_over: bool,
    /// How the cards are measured before the first job; nothing where that cannot be done.
    pub gauge: Option<Gauge>,
    /// May people submit jobs? Not where a cluster promises these cards' memory.
    pub local_jobs: bool,
    /// End when there has been no job for so long.
    pub idle_exit: Option<Duration>,
    /// After a crash: how long the jobs of before may take to come back.
    pub settle: Duration,
    /// The arbiter ends in order when this becomes readable.
    pub stop: Option<OwnedFd>,
}

impl Options {
    /// The usual settings, in that folder.
    #[must_use]
    pub fn new(folder: Folder) -> Options {
        Options {
            folder,
            host_name: None,
            policy: Policy::binpack(),
            reserved: MiB::ZERO,
            evict: false,
            evict_over: false,
            gauge: None,
            local_jobs: true,
            idle_exit: None,
            // Interposers look for the arbiter again four times a second, and commands more often.
            settle: Duration::from_secs(2),
            stop: None,
        }
    }
}

/// What a descriptor is.
#[derive(Debug, Clone, Copy)]
enum Source {
    AdminListener,
    /// A listener for processes; of one container, or of everybody below a `sublet run`.
    TenantListener(Option<JobId>),
    Admin,
    Guest,
    Process(Pid),
    Root(JobId),
    Driver,
    Commands,
    HostName,
    Stop,
}

/// Where a job comes from, and so who its processes are.
#[derive(Debug)]
enum Root {
    /// Everybody below this process; its connection is the job's life line.
    Run {
        pid: Pid,
        pidfd: OwnedFd,
        key: Key,
        line: Option<Key>,
    },
    /// Everybody who comes by the socket in this folder.
    Container {
        listener: OwnedFd,
        key: Key,
        socket: PathBuf,
    },
}

/// A process with a slot.
#[derive(Debug)]
struct Process {
    pidfd: OwnedFd,
    /// The program that it was when it got its slot.
    image: Option<peer::Image>,
    key: Key,
    guests: BTreeSet<Key>,
}

/// One machine's arbiter.
pub struct Arbiter {
    options: Options,
    lock: Lock,
    host_name: Option<OwnedFd>,
    poller: Poller,
    sources: BTreeMap<Key, Source>,
    admin_listener: OwnedFd,
    tenant_listener: OwnedFd,
    commands: Commands,
    machine: Machine,
    /// The cards as they were found, before any of them broke.
    inventory: Arc<Inventory>,
    sampler: Sampler,
    spare: Spare,
    admins: BTreeMap<Key, AdminConnection>,
    guests: BTreeMap<Key, Guest>,
    tenants: BTreeMap<JobId, Tenant>,
    roots: BTreeMap<JobId, Root>,
    processes: BTreeMap<Pid, Process>,
    /// Connections with more to read than one turn may take.
    busy: BTreeSet<Key>,
    /// What performing an action led to.
    events: VecDeque<Event>,
    /// Who asked for what is being performed.
    asker: Option<Key>,
    counters: Counters,
    cards_now: Vec<CardNow>,
    /// What contexts and allocations take on each card.
    figures: Vec<Figures>,
    /// The slots when the driver was asked.
    before: BTreeMap<(Pid, usize), (JobId, SlotCard)>,
    epoch: u64,
    last_job: u64,
    settled: bool,
    next_tick_ms: u64,
    idle_since_ms: u64,
    asked_driver_ms: u64,
    stopping: bool,
}

impl Arbiter {
    /// Takes the folder's lock, looks at the cards and opens the sockets.
    ///
    /// # Errors
    /// [`ArbiterError::Held`] where another arbiter is at work; or why it cannot start.
    pub fn start(options: Options, mut view: Box<dyn GpuView>) -> Result<Arbiter, ArbiterError> {
        options.folder.create()?;
        let lock = Lock::take(&options.folder)?;
        let (host_name, inventory) = match prepare(&options, &mut *view) {
            Ok(prepared) => prepared,
            Err(error) => {
                lock.give_up();
                return Err(error);
            }
        };
        let now = now_ms();
        // A file that was not removed: jobs of before may come back.
        let settle = match lock.before {
            Some(_) => u64::try_from(options.settle.as_millis()).unwrap_or(u64::MAX),
            None => 0,
        };
        let before = lock.before.clone().unwrap_or_default();
        let mut machine = Machine::new(sublet_share::Options {
            inventory: Arc::clone(&inventory),
            policy: options.policy.clone(),
            reserved: options.reserved,
            settled_at: Time::from_ms(now.saturating_add(settle)),
            local_jobs: options.local_jobs,
            evict: options.evict,
            evict_over: options.evict_over,
        });
        let (gauge, driver) = (options.gauge.as_ref(), view.driver());
        let figures = gauge::figures(gauge, &options.folder, &inventory, &driver);
        for (card, figures) in figures.iter().enumerate() {
            machine.set_context(card, figures.context);
        }
        let n_cards = machine.inventory().gpus().len();
        let (folder, poller) = (&options.folder, Poller::new()?);
        let mut arbiter = Arbiter {
            admin_listener: listen(&folder.admin_socket(), SocketType::STREAM, 0o600)?,
            tenant_listener: listen(&folder.tenant_socket(), SocketType::SEQPACKET, 0o600)?,
            commands: Commands::new().map_err(at("making", "an eventfd"))?,
            sampler: Sampler::start(view).map_err(at("starting", "the driver's thread"))?,
            options,
            lock,
            host_name,
            poller,
            sources: BTreeMap::new(),
            machine,
            inventory,
            spare: Spare::new(),
            admins: BTreeMap::new(),
            guests: BTreeMap::new(),
            tenants: BTreeMap::new(),
            roots: BTreeMap::new(),
            processes: BTreeMap::new(),
            busy: BTreeSet::new(),
            events: VecDeque::new(),
            asker: None,
            counters: Counters::default(),
            cards_now: vec![CardNow::default(); n_cards],
            figures,
            before: BTreeMap::new(),
            epoch: before.epoch + 1,
            last_job: before.last_job,
            settled: false,
            next_tick_ms: now,
            idle_since_ms: now,
            asked_driver_ms: now,
            stopping: false,
        };
        arbiter.open_sources()?;
        arbiter.write_record();
        info!(folder = %arbiter.options.folder.path().display(), epoch = arbiter.epoch,
              gpus = n_cards, "arbiter started");
        Ok(arbiter)
    }

    /// Waits for everything that is there from the beginning.
    fn open_sources(&mut self) -> Result<(), ArbiterError> {
        let poller = &mut self.poller;
        let mut add = |key, source| self.sources.insert(key, source);
        add(
            poller.add(&self.admin_listener, "admin.sock")?,
            Source::AdminListener,
        );
        add(
            poller.add(&self.tenant_listener, "tenant.sock")?,
            Source::TenantListener(None),
        );
        add(poller.add(&self.sampler, "the driver")?, Source::Driver);
        add(poller.add(&self.commands, "commands")?, Source::Commands);
        if let Some(name) = &self.host_name {
            add(poller.add(name, "the host's name")?, Source::HostName);
        }
        if let Some(stop) = &self.options.stop {
            add(poller.add(stop, "the end")?, Source::Stop);
        }
        Ok(())
    }

    /// A way to talk to it from other threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.commands.handle()
    }

    /// Works until it is told to stop, or has been idle for long enough.
    ///
    /// # Errors
    /// The kernel refuses to let it wait; everything else is somebody else's trouble.
    pub fn run(mut self) -> Result<(), ArbiterError> {
        while !self.stopping {
            let now = now_ms();
            let wait_ms = if self.busy.is_empty() {
                self.wake_at_ms().saturating_sub(now).min(TICK_MS)
            } else {
                0
            };
            for key in std::mem::take(&mut self.busy) {
                self.serve(key);
            }
            for key in self.poller.wait(Duration::from_millis(wait_ms))? {
                self.serve(key);
            }
            let now = now_ms();
            if self.next_tick_ms <= now {
                self.next_tick_ms = now + TICK_MS;
                self.tick(now);
            } else if self.early_reading_ms().is_some_and(|at| at <= now) {
                self.ask_driver(now);
            }
        }
        self.shut_down();
        Ok(())
    }

    fn wake_at_ms(&self) -> u64 {
        let early = self.early_reading_ms().unwrap_or(u64::MAX);
        self.next_tick_ms.min(early)
    }

    /// When the driver is to be read though no tick is due; not before it has answered the
    /// question before.
    fn early_reading_ms(&self) -> Option<u64> {
        let at = self.machine.read_at().filter(|_| !self.sampler.waits());
        at.map(Time::ms)
    }

    fn serve(&mut self, key: Key) {
        // A descriptor can go while earlier news of the same turn is looked at.
        let Some(&source) = self.sources.get(&key) else {
            return;
        };
        match source {
            Source::AdminListener => self.accept_admins(),
            Source::TenantListener(job) => self.accept_guests(job),
            Source::Admin => self.serve_admin(key),
            Source::Guest => self.serve_guest(key),
            Source::Process(pid) => self.process_is_gone(pid),
            Source::Root(job) => self.root_is_gone(job),
            Source::Driver => self.take_reading(),
            Source::Commands => self.take_commands(),
            Source::HostName => {
                // Somebody only wants to know who we are, which the kernel has told him.
                let _ = self.host_name.as_ref().map(accept);
            }
            Source::Stop => self.stopping = true,
        }
    }

    fn tick(&mut self, now: u64) {
        // From this thread and no other: a heartbeat says that the arbiter works, not that it
        // exists. Nothing here waits for the driver.
        for tenant in self.tenants.values() {
            tenant.beat(now);
        }
        self.take_use();
        if !self.settled && self.machine.wake_at().is_none() {
            self.settled = true;
            self.settle_down();
        }
        self.ask_driver(now);
        self.drop_silent_guests(now);
        self.drop_silent_admins(now);
        self.send_watches(now);
        if self.machine.is_idle() && self.admins.is_empty() {
            let idle_ms = u128::from(now.saturating_sub(self.idle_since_ms));
            if self
                .options
                .idle_exit
                .is_some_and(|limit| idle_ms >= limit.as_millis())
            {
                info!("no job for a while; the arbiter ends");
                self.stopping = true;
            }
        } else {
            self.idle_since_ms = now;
        }
    }

    /// Tells the machine what happened and does what follows.
    fn apply(&mut self, event: Event) {
        self.events.push_back(event);
        while let Some(event) = self.events.pop_front() {
            let mut actions: Vec<Action> = Vec::new();
            let now = Time::from_ms(now_ms());
            self.machine.apply(now, event, &mut actions);
            for action in actions {
                self.perform(action);
            }
        }
    }

    /// A number that no job had before.
    fn next_job(&mut self) -> JobId {
        self.last_job += 1;
        self.write_record();
        JobId(self.last_job)
    }

    /// Writes what a successor must know.
    fn write_record(&mut self) {
        let record = Record {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            epoch: self.epoch,
            last_job: self.last_job,
        };
        if let Err(error) = self.lock.write(&record) {
            warn!(%error, "a successor will not know of the newest jobs");
        }
    }

    /// Ends in order. Without a job nothing stays; with some, the lock file stays, so that a
    /// successor knows that they may come back.
    fn shut_down(mut self) {
        self.options.folder.remove_sockets();
        for root in self.roots.values() {
            if let Root::Container { socket, .. } = root {
                let _ = std::fs::remove_file(socket);
            }
        }
        let leaves_jobs = !self.machine.is_idle();
        info!(leaves_jobs, "arbiter ends");
        if leaves_jobs {
            self.write_record();
        } else {
            self.lock.remove();
            // Only if nothing else, such as a log, is in it.
            let _ = std::fs::remove_dir(self.options.folder.path());
        }
    }

    /// The driver's name of a card, as the pages have it.
    fn uuid_of(&self, card: usize) -> Option<[u8; 16]> {
        let gpu = self.machine.inventory().gpus().get(card)?;
        uuid_bytes(gpu.uuid.as_ref()?.as_str())
    }
}

/// What can fail though the folder's lock was had.
fn prepare(
    options: &Options,
    view: &mut dyn GpuView,
) -> Result<(Option<OwnedFd>, Arc<Inventory>), ArbiterError> {
    let host_name = options.host_name.as_deref().map(take_name).transpose()?;
    prepare_process()?;
    Ok((host_name, Arc::new(view.inventory()?)))
}

/// Nobody may look into the arbiter's memory, and a thousand processes take two thousand
/// descriptors.
fn prepare_process() -> Result<(), ArbiterError> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(at("hiding the memory of", "this process"))?;
    let limits = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limits.maximum,
        maximum: limits.maximum,
    };
    rustix::process::setrlimit(Resource::Nofile, raised)
        .map_err(at("raising the number of open files of", "this process"))
}

/// Milliseconds of the clock that the pages are written with.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds * 1000 + nanoseconds / 1_000_000
}
