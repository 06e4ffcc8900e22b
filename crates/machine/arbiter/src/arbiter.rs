//! The arbiter's loop: one thread waits for sockets, processes, the driver's answers and a clock.
//! It tells `sublet-share` what happened, and carries out the decisions.
//!
//! Each file beside this one has one struct, for the data that change together: `sources` (the
//! descriptors that the loop waits for), `listeners`, `admin_connections` (with `lobby`),
//! `process_connections`, `crowd` (the choice of the connection to drop), `jobs`, `processes`,
//! `readings` (of the driver), `turns`, `measured`, `mps`, `identity`, `lifetime`. These files
//! handle events: `admin_requests`, `job_request` and `recorded` (people), `hello` and `resume`
//! (processes), `containers` (the node agent) and `readings`. `actions` carries out the
//! consequences; `status` makes the output for people.

mod actions;
mod admin_connections;
mod admin_requests;
mod containers;
mod crowd;
mod hello;
mod identity;
mod job_request;
mod jobs;
mod lifetime;
mod listeners;
mod lobby;
mod measured;
mod mps;
mod options;
mod process_connections;
mod processes;
mod readings;
mod recorded;
mod resume;
mod returning;
mod sources;
mod status;
mod turns;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::time::ClockId;
use sublet_model::{Inventory, Milli, Time};
use sublet_share::{Action, Event, Machine, MachineOptions};
use tracing::info;

use self::admin_connections::AdminConnections;
use self::containers::Commands;
use self::identity::Identity;
use self::jobs::Jobs;
use self::lifetime::{Lifetime, TICK_MS};
use self::listeners::Listeners;
use self::measured::Measures;
use self::mps::Mps;
use self::process_connections::ProcessConnections;
use self::processes::Processes;
use self::readings::DriverReadings;
use self::sources::{Source, Sources};
use self::turns::CardTurns;
use crate::admin::Counters;
use crate::closers::Closers;
use crate::error::{ArbiterError, at};
use crate::gauge;
use crate::gpu::{GpuView, Sampler, uuid_bytes};
use crate::host_lock::{HostLock, is_root};
use crate::job_record::JobRecords;
use crate::lock::Lock;
use crate::machine_folder::{Audience, Folder};
use crate::poller::Key;
use crate::socket;

pub use self::containers::{ContainerCard, ContainerJob, Handle, HandleError};
pub use self::options::{ExclusiveSlices, OPPORTUNISTIC_DUTY, Options, TimeSharing};

/// One machine's arbiter.
pub struct Arbiter {
    folder: Folder,
    identity: Identity,
    lifetime: Lifetime,
    sources: Sources,
    listeners: Listeners,
    commands: Commands,
    /// Ends the arbiter in order when it becomes readable.
    stop: Option<OwnedFd>,
    admins: AdminConnections,
    connections: ProcessConnections,
    /// Decides who gets which memory and time.
    machine: Machine,
    jobs: Jobs,
    records: JobRecords,
    processes: Processes,
    readings: DriverReadings,
    turns: CardTurns,
    measures: Measures,
    /// MPS, if jobs run under it.
    mps: Option<Mps>,
    opportunistic_duty: Milli,
    counters: Counters,
    /// Closes files of tenants, which can be slow to close.
    closers: Closers,
}

impl Arbiter {
    /// Takes the folder's lock, looks at the cards and opens the sockets.
    ///
    /// # Errors
    /// [`ArbiterError::Held`] if another arbiter is at work; or the reason why it cannot
    /// start.
    pub fn start(options: Options, mut view: Box<dyn GpuView>) -> Result<Arbiter, ArbiterError> {
        let audience = match options.shared {
            true => Audience::Everybody,
            false => Audience::Owner,
        };
        options.folder.create(audience)?;
        let lock = Lock::take(&options.folder)?;
        let Prepared {
            records,
            host,
            inventory,
            mps,
        } = match prepare(&options, &mut *view) {
            Ok(prepared) => prepared,
            Err(error) => {
                lock.give_up();
                return Err(error);
            }
        };
        let now = now_ms();
        let may_come_back = lock.before.is_some() || records.expect_somebody();
        let mut machine = machine(&options, &inventory, may_come_back, now);
        let (gauge, driver) = (options.gauge.as_ref(), view.driver());
        let figures = gauge::figures(gauge, &options.folder, &inventory, &driver);
        for (card, figures) in figures.iter().enumerate() {
            if let Some(context) = figures.context {
                machine.set_context(card, context);
            }
        }
        let (mut sources, closers) = (Sources::new()?, Closers::default());
        let has_jobs = options.local_jobs;
        let listeners =
            Listeners::open(&options.folder, audience, has_jobs, &mut sources, &closers)?;
        let commands = Commands::new().map_err(at("making", "an eventfd"))?;
        let identity = Identity::after(lock, host, records.last());
        let turns = CardTurns::new(identity.epoch(), figures.len(), &options.time)?;
        let sampler = Sampler::start(view).map_err(at("starting", "the driver's thread"))?;
        let mut arbiter = Arbiter {
            identity,
            lifetime: Lifetime::begin(now, options.idle_exit),
            folder: options.folder,
            sources,
            listeners,
            commands,
            stop: options.stop,
            admins: AdminConnections::default(),
            connections: ProcessConnections::default(),
            machine,
            jobs: Jobs::default(),
            records,
            processes: Processes::default(),
            readings: DriverReadings::new(sampler, inventory, figures, now),
            turns,
            measures: Measures::default(),
            mps,
            opportunistic_duty: options.time.opportunistic_duty,
            counters: Counters::default(),
            closers,
        };
        arbiter.open_sources()?;
        arbiter.open_doors_of_before();
        arbiter.tend_mps();
        arbiter.identity.write();
        info!(folder = %arbiter.folder.path().display(), epoch = arbiter.identity.epoch(),
              gpus = arbiter.machine.inventory().gpus().len(), "arbiter started");
        Ok(arbiter)
    }

    /// Adds the sources that exist from the beginning, besides the listeners.
    fn open_sources(&mut self) -> Result<(), ArbiterError> {
        let sources = &mut self.sources;
        sources.add(&self.readings, "the driver", Source::Driver)?;
        sources.add(&self.commands, "commands", Source::Commands)?;
        sources.add(&self.turns, "the end of a turn", Source::Turns)?;
        if let Some(name) = self.identity.host_name() {
            // Who asks who has it has nothing to send.
            let _ = socket::refuse_descriptors(name);
            sources.add(name, "the host's name", Source::HostName)?;
        }
        if let Some(stop) = &self.stop {
            sources.add(stop, "the end", Source::Stop)?;
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
    /// The kernel refuses to let it wait. No other failure ends the arbiter.
    pub fn run(mut self) -> Result<(), ArbiterError> {
        while !self.lifetime.is_stopping() {
            self.step()?;
        }
        self.shut_down();
        Ok(())
    }

    /// Waits for news, and for the next round of turns if that is due soon.
    fn step(&mut self) -> Result<(), ArbiterError> {
        let limit = self.wait_limit(now_ms());
        self.admins.begin_turn();
        for key in self.sources.take_unfinished() {
            self.serve(key);
        }
        for key in self.sources.wait(limit)? {
            self.serve(key);
        }
        let now = now_ms();
        if self.lifetime.take_tick(now) {
            self.tick(now);
        } else if self.early_reading_ms().is_some_and(|at| at <= now) {
            self.ask_driver(now);
        }
        self.take_turns()
    }

    /// Longest wait for news.
    fn wait_limit(&self, now: u64) -> Duration {
        if self.sources.has_unfinished() || self.turns.is_due() {
            return Duration::ZERO;
        }
        let early = self.early_reading_ms().unwrap_or(u64::MAX);
        let wake_at = self.lifetime.next_tick_ms().min(early);
        Duration::from_millis(wake_at.saturating_sub(now).min(TICK_MS))
    }

    fn serve(&mut self, key: Key) {
        // A descriptor can go while earlier news of the same turn is looked at.
        let Some(source) = self.sources.get(key) else {
            return;
        };
        match source {
            Source::AdminListener => self.accept_admins(),
            Source::ProcessListener(door) => self.accept_processes(door),
            Source::AdminConnection => self.serve_admin(key),
            Source::ProcessConnection => self.serve_process_connection(key),
            Source::Process(pid) => self.process_is_gone(pid),
            Source::Root(job) => self.root_is_gone(job),
            Source::Driver => self.take_reading(),
            Source::Commands => self.take_commands(),
            Source::Turns => self.turns.ring(),
            Source::Mps => self.tend_mps(),
            Source::HostName => {
                // Whoever connects wants to know who has the name. The kernel has told him.
                let closers = &self.closers;
                let _ = self
                    .identity
                    .host_name()
                    .map(|name| socket::accept_at(name, closers));
            }
            Source::Stop => self.lifetime.stop(),
        }
    }

    fn tick(&mut self, now: u64) {
        // From this thread and no other: a heartbeat says that the arbiter works, not that it
        // exists. Nothing here waits for the driver.
        self.jobs.beat(now);
        self.commands.beat(now);
        self.tend_mps();
        self.measures.awake(Instant::now());
        self.turns.settle();
        self.coordinate_turns();
        self.keep_record(now);
        self.record_those_behind();
        self.yield_to_root();
        self.hear_knocks_again();
        self.listen_again();
        self.close_unused_doors();
        self.take_use();
        if !self.lifetime.is_settled() && self.machine.wake_at().is_none() {
            self.lifetime.settle();
            // Who waited for a ledger of before gets a new one.
            self.greet_again();
        }
        self.ask_driver(now);
        self.drop_silent_processes(now);
        self.drop_silent_admins(now);
        self.send_watches(now);
        let is_idle = self.machine.is_idle() && self.admins.is_empty();
        self.lifetime.note_use(now, is_idle);
    }

    /// Tells the machine what happened, and carries out the consequences.
    fn apply(&mut self, event: Event) {
        self.apply_for(None, event);
    }

    /// The same, for an event that a connection asked for.
    fn apply_for(&mut self, asker: Option<Key>, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut actions: Vec<Action> = Vec::new();
            let now = Time::from_ms(now_ms());
            self.machine.apply(now, event, &mut actions);
            for action in actions {
                self.perform(action, asker, &mut events);
            }
        }
    }

    /// Ends in order. Without a job nothing stays; with some, the lock file stays, so that a
    /// successor knows that they may come back.
    fn shut_down(mut self) {
        self.folder.remove_sockets();
        self.jobs.remove_sockets();
        let leaves_jobs = !self.machine.is_idle() || self.records.expect_somebody();
        self.end_mps(leaves_jobs);
        info!(leaves_jobs, "arbiter ends");
        if leaves_jobs {
            self.record_those_behind();
            self.identity.write();
        } else {
            self.records.remove_all();
            self.identity.remove();
            // Only if nothing else, such as a log, is in it.
            let _ = std::fs::remove_dir(self.folder.path());
        }
    }

    /// The driver's name of a card, as the pages have it.
    fn uuid_of(&self, card: usize) -> Option<[u8; 16]> {
        let gpu = self.machine.inventory().gpus().get(card)?;
        uuid_bytes(gpu.uuid.as_ref()?.as_str())
    }
}

/// The things an arbiter begins with, once it has the folder's lock.
struct Prepared {
    records: JobRecords,
    host: Option<HostLock>,
    inventory: Arc<Inventory>,
    /// Present if it was chosen.
    mps: Option<Mps>,
}

/// Does the steps that can fail after the arbiter has the folder's lock.
fn prepare(options: &Options, view: &mut dyn GpuView) -> Result<Prepared, ArbiterError> {
    let records = JobRecords::read(&options.folder)?;
    let host = options.host.as_ref();
    let host = host.map(|place| HostLock::take(place, is_root()));
    let host = host.transpose()?;
    prepare_process()?;
    let inventory = view.inventory()?;
    options
        .time
        .exclusive_slices
        .check(inventory.gpus().len())?;
    let program = options.time.mps.as_deref();
    let mps = program.map(|program| Mps::start(program, &options.folder));
    Ok(Prepared {
        records,
        host,
        inventory: Arc::new(inventory),
        mps: mps.transpose()?,
    })
}

/// Makes the machine without a job. Jobs from before may come back if a lock file was not
/// removed, or if the record of a job still exists.
fn machine(
    options: &Options,
    inventory: &Arc<Inventory>,
    may_come_back: bool,
    now: u64,
) -> Machine {
    let settle = match may_come_back {
        true => u64::try_from(options.settle.as_millis()).unwrap_or(u64::MAX),
        false => 0,
    };
    Machine::new(MachineOptions {
        inventory: Arc::clone(inventory),
        policy: options.policy.clone(),
        reserved: options.reserved,
        settled_at: Time::from_ms(now.saturating_add(settle)),
        local_jobs: options.local_jobs,
        evict: options.evict,
        evict_over: options.evict_over,
        evict_overuse: options.evict_overuse,
    })
}

/// Keeps other processes out of the arbiter's memory, and raises the limit of descriptors: a
/// thousand processes take two thousand.
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
