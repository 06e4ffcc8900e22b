//! Events of several processes. The process that made such an event puts a page into a file of the
//! machine's folder; everybody who opens the event maps it. Each record of the event, in any
//! process, takes the next number from the page. When the work before the record is finished, its
//! number and the time are written there.
//!
//! Other processes are not told of it: they poll the page. A record of a process that has
//! ended counts as reached.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::driver::memory::address_space::{self, PAGE};
use crate::driver::result::{Answer, Code};
use crate::driver::stream::event::{DISABLE_TIMING, Event, INTERPROCESS};
use crate::driver::stream::queue::Id;
use crate::driver::{Driver, sharing};
use crate::machine::{FakeMachine, now};

/// The first bytes of a handle and of the page.
const MAGIC: u64 = u64::from_le_bytes(*b"subletev");
/// Records that can be on their way at the same time; more wait for each other's place.
const RECORDS: usize = 64;
/// Interval at which a waiting process checks that the recording process is alive, in nanoseconds.
const LOOK: u64 = 10_000_000;

/// Part of an event that all processes see.
#[repr(C)]
struct Page {
    magic: AtomicU64,
    /// Number of times that it was recorded.
    n_records: AtomicU64,
    records: [Record; RECORDS],
}

/// One record; its number tells its place.
#[repr(C)]
struct Record {
    /// The number of the last record here that was reached, and when that was.
    reached: AtomicU64,
    time: AtomicU64,
    /// The number of the last record that was made here, and its maker: the maker's place in the
    /// machine and generation. Written in the other order.
    made: AtomicU64,
    slot: AtomicU32,
    generation: AtomicU32,
}

const _: () = assert!(size_of::<Page>() as u64 <= PAGE);

/// An event's page, mapped.
#[derive(Debug)]
pub(crate) struct SharedEvent {
    address: u64,
    machine: FakeMachine,
    own: (u32, u32),
    /// When to check next that the recording process is alive.
    look_at: AtomicU64,
    /// The file, for the process that made it.
    file: Option<PathBuf>,
}

/// One record of such an event.
#[derive(Debug, Clone)]
pub(crate) struct Ticket {
    event: Arc<SharedEvent>,
    number: u64,
}

/// Content of a `CUipcEventHandle`: the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EventHandle {
    slot: u32,
    generation: u32,
    number: u64,
}

impl EventHandle {
    /// As the program carries it.
    #[must_use]
    pub(crate) fn to_bytes(self) -> [u8; 64] {
        let owner = u64::from(self.slot) | u64::from(self.generation) << 32;
        sharing::to_bytes([MAGIC, owner, self.number])
    }

    /// Reads a handle that a program carried; `None` if it is not ours.
    #[must_use]
    pub(crate) fn from_bytes(bytes: &[u8; 64]) -> Option<EventHandle> {
        let [magic, owner, number, ..] = sharing::from_bytes::<8, 64>(bytes);
        (magic == MAGIC).then_some(EventHandle {
            slot: owner as u32,
            generation: (owner >> 32) as u32,
            number,
        })
    }

    fn path(self, machine: &FakeMachine) -> PathBuf {
        let EventHandle {
            slot,
            generation,
            number,
        } = self;
        let name = format!("ipc-{slot}-{generation}-event-{number}");
        machine.folder().join(name)
    }
}

impl SharedEvent {
    fn map(file: &File, driver: &Driver, path: Option<PathBuf>) -> std::io::Result<SharedEvent> {
        let address = address_space::attach(PAGE, file, 0)?;
        Ok(SharedEvent {
            address,
            machine: driver.registration.machine().clone(),
            own: own(driver),
            look_at: AtomicU64::new(0),
            file: path,
        })
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped until `self` is dropped, at least as long as `Page`, page-aligned;
        // every bit pattern is valid for a struct of integers in atomics.
        unsafe { &*(self.address as *const Page) }
    }

    fn record_of(&self, number: u64) -> &Record {
        &self.page().records[number as usize % RECORDS]
    }

    /// Takes the number of the next record.
    pub(crate) fn record(self: &Arc<SharedEvent>) -> Ticket {
        let number = self.page().n_records.fetch_add(1, AcqRel) + 1;
        let record = self.record_of(number);
        record.slot.store(self.own.0, Relaxed);
        record.generation.store(self.own.1, Relaxed);
        record.made.store(number, Release);
        Ticket {
            event: self.clone(),
            number,
        }
    }

    /// The last record that anybody made.
    pub(crate) fn latest(self: &Arc<SharedEvent>) -> Option<Ticket> {
        let number = self.page().n_records.load(Acquire);
        (number > 0).then(|| Ticket {
            event: self.clone(),
            number,
        })
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        address_space::release(self.address, PAGE);
        if let Some(file) = &self.file {
            // Another process may have swept the folder already.
            let _ = std::fs::remove_file(file);
        }
    }
}

impl Ticket {
    /// When everything before the record was finished, if it is.
    pub(crate) fn time(&self) -> Option<u64> {
        let record = self.event.record_of(self.number);
        if record.reached.load(Acquire) >= self.number {
            return Some(record.time.load(Relaxed));
        }
        if !self.is_lost(record) {
            return None;
        }
        self.reach(now());
        Some(record.time.load(Relaxed))
    }

    /// Has the process ended that made the record?
    fn is_lost(&self, record: &Record) -> bool {
        let time = now();
        if record.made.load(Acquire) != self.number || self.event.look_at.load(Relaxed) > time {
            return false;
        }
        self.event.look_at.store(time + LOOK, Relaxed);
        let (slot, generation) = (record.slot.load(Relaxed), record.generation.load(Relaxed));
        let is_ours = (slot, generation) == self.event.own;
        !is_ours && !self.event.machine.has(slot as usize, generation)
    }

    /// Everything before the record is finished.
    pub(crate) fn reach(&self, time: u64) {
        let record = self.event.record_of(self.number);
        record.time.store(time, Relaxed);
        record.reached.fetch_max(self.number, AcqRel);
    }
}

impl Driver {
    /// The page of a new event that other processes may open.
    pub(crate) fn share_event(&mut self) -> Answer<(u64, Arc<SharedEvent>)> {
        let number = self.new_id();
        let path = handle(self, number).path(self.registration.machine());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let system = |_| Code::OPERATING_SYSTEM;
        let file = file.map_err(system)?;
        file.set_len(PAGE).map_err(system)?;
        let event = SharedEvent::map(&file, self, Some(path)).map_err(system)?;
        event.page().magic.store(MAGIC, Release);
        Ok((number, Arc::new(event)))
    }

    /// A handle by which another process can open an event.
    pub(crate) fn export_event(&self, id: Id) -> Answer<EventHandle> {
        let event = self.event(id)?;
        if event.flags & INTERPROCESS == 0 {
            return Err(Code::INVALID_VALUE);
        }
        Ok(handle(self, event.number))
    }

    /// Opens an event of another process.
    pub(crate) fn import_event(&mut self, wanted: EventHandle) -> Answer<Id> {
        let context = self.owner()?;
        if (wanted.slot, wanted.generation) == own(self) {
            return Err(Code::INVALID_CONTEXT);
        }
        let path = wanted.path(self.registration.machine());
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|_| Code::INVALID_VALUE)?;
        let long = file.metadata().is_ok_and(|about| about.len() >= PAGE);
        if !long {
            return Err(Code::INVALID_VALUE);
        }
        let shared = SharedEvent::map(&file, self, None).map_err(|_| Code::MAP_FAILED)?;
        if shared.page().magic.load(Acquire) != MAGIC {
            return Err(Code::INVALID_VALUE);
        }
        let id = self.new_id();
        let event = Event {
            context,
            flags: DISABLE_TIMING,
            mark: None,
            captured: None,
            number: 0,
            shared: Some(Arc::new(shared)),
        };
        self.events.insert(id, event);
        Ok(id)
    }
}

fn handle(driver: &Driver, number: u64) -> EventHandle {
    let (slot, generation) = own(driver);
    EventHandle {
        slot,
        generation,
        number,
    }
}

/// Returns this process's identity for other processes.
fn own(driver: &Driver) -> (u32, u32) {
    let slot = u32::try_from(driver.registration.index()).unwrap_or(u32::MAX);
    (slot, driver.registration.generation())
}
