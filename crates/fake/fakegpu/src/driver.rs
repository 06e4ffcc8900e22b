//! The driver's state inside one process: contexts, memory, streams, events, modules, graphs. One
//! lock holds all of it; threads for kernels, copies and callbacks take their work from it and do
//! the work without the lock.
//!
//! Its folders are the features of the guide's table, like those of [`cuda`](crate::cuda). Read
//! [`result`] (codes), [`stream::queue`] (the order of work) and [`stream::work`] (the kinds of
//! work) first, then [`memory`], [`context`], [`module`], [`graph`], [`sharing`].

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::fault::Faults;
use crate::machine::registration::Registration;
use crate::machine::{FakeMachine, VARIABLE};
use crate::product::Product;

pub(crate) mod context;
mod device;
pub(crate) mod graph;
pub(crate) mod injection;
pub(crate) mod memory;
pub(crate) mod module;
mod mps;
pub(crate) mod result;
pub(crate) mod sharing;
pub(crate) mod stream;

use result::{Answer, Code};
use stream::queue::{Id, Queues};
use stream::{event, work, worker};

/// Everything this process has of the machine.
pub(crate) struct Driver {
    /// Its place.
    pub(crate) registration: Arc<Registration>,
    /// The cards it may see, as numbers of the machine; a `CUdevice` is a place in here.
    pub(crate) visible: Vec<usize>,
    /// Its terms as a client of MPS.
    mps: mps::Client,
    /// Contexts by handle.
    pub(crate) contexts: BTreeMap<Id, context::Context>,
    /// The primary context of each visible device, and the flags it will have.
    pub(crate) primaries: Vec<context::Primary>,
    /// Streams and their work.
    pub(crate) queues: Queues<work::Work>,
    /// Streams that programs have a handle of.
    pub(crate) streams: HashSet<Id>,
    /// Events by handle.
    pub(crate) events: HashMap<Id, event::Event>,
    /// Memory.
    pub(crate) memory: memory::Memory,
    /// Pools by handle, and each device's default and current one.
    pub(crate) pools: memory::pool::Pools,
    /// Arrays by handle.
    pub(crate) arrays: HashMap<Id, memory::array::Array>,
    /// Modules, libraries, functions and kernels by handle.
    pub(crate) modules: module::Modules,
    /// Code that is in no context by itself.
    pub(crate) libraries: module::library::Libraries,
    /// Graphs and their executable forms.
    pub(crate) graphs: graph::Graphs,
    /// Green contexts.
    pub(crate) greens: context::green::Greens,
    /// Streams that are being captured.
    pub(crate) captures: graph::capture::Captures,
    workers: worker::Started,
    n_ids: u64,
}

struct Shared {
    state: Mutex<Option<Box<Driver>>>,
    /// Rung when work ends.
    done: Condvar,
    /// Rung when there is work.
    work: Condvar,
}

static SHARED: Shared = Shared {
    state: Mutex::new(None),
    done: Condvar::new(),
    work: Condvar::new(),
};

/// True in a child of a process that had called `cuInit`: nothing works there, as with a
/// real driver, and nothing is touched, because another thread may have held the lock.
static FORKED: AtomicBool = AtomicBool::new(false);

static FAULTS: OnceLock<Faults> = OnceLock::new();

thread_local! {
    /// The contexts that this thread has pushed; the last one is current.
    static CURRENT: RefCell<Vec<Id>> = const { RefCell::new(Vec::new()) };
}

/// The lock, held.
pub(crate) struct Session {
    state: Option<MutexGuard<'static, Option<Box<Driver>>>>,
}

impl std::ops::Deref for Session {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        match self.state.as_ref().and_then(|state| state.as_ref()) {
            Some(driver) => driver,
            // A session is only made when there is a driver, and gets its lock back
            // before anybody else sees it.
            None => unreachable!("a session without a driver"),
        }
    }
}

impl std::ops::DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Driver {
        match self.state.as_mut().and_then(|state| state.as_mut()) {
            Some(driver) => driver,
            None => unreachable!("a session without a driver"),
        }
    }
}

impl Session {
    /// The driver's state, if `cuInit` was called.
    ///
    /// # Errors
    /// It was not, or not in this process.
    pub(crate) fn open() -> Answer<Session> {
        if FORKED.load(Ordering::Acquire) {
            return Err(Code::NOT_INITIALIZED);
        }
        let state = lock();
        if state.is_none() {
            return Err(Code::NOT_INITIALIZED);
        }
        let mut session = Session { state: Some(state) };
        session.begin();
        Ok(session)
    }

    /// Waits until `is_so`; others work meanwhile.
    pub(crate) fn wait_until(&mut self, is_so: impl Fn(&Driver) -> bool) {
        // The limit is for work that nobody announces, such as a word in memory.
        self.wait_and_look(Duration::from_millis(20), is_so);
    }

    /// As [`Session::wait_until`], looking at least as often as `pause` says.
    pub(super) fn wait_and_look(&mut self, pause: Duration, is_so: impl Fn(&Driver) -> bool) {
        while !is_so(self) {
            let Some(state) = self.state.take() else {
                return;
            };
            let waited = SHARED.done.wait_timeout(state, pause);
            let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            self.state = Some(state);
        }
    }

    /// Does something without the lock.
    pub(crate) fn outside<T>(&mut self, something: impl FnOnce() -> T) -> T {
        self.state = None;
        let result = something();
        self.state = Some(lock());
        result
    }
}

fn lock() -> MutexGuard<'static, Option<Box<Driver>>> {
    SHARED.state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects this process with its machine, once.
///
/// # Errors
/// `NO_DEVICE` if there is no machine or nothing of it is visible.
pub(crate) fn init() -> Answer {
    if FORKED.load(Ordering::Acquire) {
        return Err(Code::NOT_INITIALIZED);
    }
    let mut state = lock();
    if state.is_some() {
        return Ok(());
    }
    let text = std::env::var(VARIABLE).map_err(|_| Code::NO_DEVICE)?;
    let machine = FakeMachine::from_text(&text).map_err(|_| Code::NO_DEVICE)?;
    let [wanted, order] = [device::WANTED, device::ORDER].map(|name| std::env::var(name).ok());
    let visible = device::cards(wanted.as_deref(), order.as_deref(), machine.cards());
    if visible.is_empty() {
        return Err(Code::NO_DEVICE);
    }
    let mut registration = machine.take_slot().map_err(|_| Code::OPERATING_SYSTEM)?;
    registration.enlarge_contexts(context::more_queues());
    let mps = mps::Client::of_environment(visible.len());
    for (place, card) in visible.iter().enumerate() {
        if let Some(limit) = mps.limit(place) {
            registration.hold_to(*card, limit);
        }
    }
    *state = Some(Box::new(Driver::new(registration, visible, mps)));
    worker::notice_forks();
    Ok(())
}

/// The faults that this process was told to make.
pub(crate) fn faults() -> &'static Faults {
    FAULTS.get_or_init(Faults::of_environment)
}

impl Driver {
    fn new(registration: Registration, visible: Vec<usize>, mps: mps::Client) -> Driver {
        let mut driver = Driver {
            primaries: visible
                .iter()
                .map(|_| context::Primary::default())
                .collect(),
            registration: Arc::new(registration),
            visible,
            mps,
            contexts: BTreeMap::new(),
            queues: Queues::default(),
            streams: HashSet::new(),
            events: HashMap::new(),
            memory: memory::Memory::default(),
            pools: memory::pool::Pools::default(),
            arrays: HashMap::new(),
            modules: module::Modules::default(),
            libraries: module::library::Libraries::default(),
            graphs: graph::Graphs::default(),
            greens: context::green::Greens::default(),
            captures: graph::capture::Captures::default(),
            workers: worker::Started::default(),
            n_ids: 0,
        };
        driver.make_default_pools();
        driver
    }

    /// A handle that nothing else has: never 0 to 2, which mean default streams, and
    /// aligned as a pointer, because programs keep flags in the low bits.
    pub(crate) fn new_id(&mut self) -> Id {
        self.n_ids += 1;
        0x5ab1_0000_0000 + self.n_ids * 64
    }

    /// The card behind a `CUdevice`.
    ///
    /// # Errors
    /// There is no such device.
    pub(crate) fn card_of(&self, device: i32) -> Answer<usize> {
        let place = usize::try_from(device).map_err(|_| Code::INVALID_DEVICE)?;
        let card = self.visible.get(place).copied();
        card.ok_or(Code::INVALID_DEVICE)
    }

    /// Returns the properties of a card's product, as this process has a part of it.
    #[must_use]
    pub(crate) fn product(&self, card: usize) -> Product {
        let mut product = Product::of(&self.registration.machine().cards()[card].name);
        product.n_multiprocessors = self.mps.multiprocessors(product.n_multiprocessors);
        product
    }

    /// The `CUdevice` of a card.
    #[must_use]
    pub(crate) fn device_of(&self, card: usize) -> i32 {
        let place = self.visible.iter().position(|visible| *visible == card);
        place
            .and_then(|place| i32::try_from(place).ok())
            .unwrap_or(0)
    }
}
