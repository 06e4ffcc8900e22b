//! An arbiter under a test's control, which a tenant's process cannot tell from the real one.
//!
//! The interposer's libraries are tested without the real arbiter. A test sets the tenant's
//! grant, checks messages and charges, and lets the arbiter go, come back, lower a limit or stop
//! its heart at any time. It serves one tenant, decides nothing, and takes nothing back when a
//! process dies.
//!
//! Only tests use it. A failure in here is a panic, which fails them.
//!
//! # Modules
//! An arbiter that follows a test's script: it grants, lowers a limit, ends, comes back, or stops
//! its heartbeat. The libraries' own tests run against it.
#![expect(
    unsafe_code,
    reason = "makes the pages that are shared with the programs of a test"
)]

mod page;
mod server;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sublet_abi::control::{DeviceTerms, Terms};
use sublet_abi::{
    ControlPage, ControlWriter, DeviceIndex, GateState, GateWord, Hello, LedgerPage, SlotIndex,
    TurnReport, Units,
};
use tempfile::TempDir;

use page::Page;
use server::Server;
pub use server::{GrantedCard, TENANT, TenantGrant};

/// A real one beats about so often.
const BETWEEN_BEATS: Duration = Duration::from_millis(100);

/// Longest wait before a test fails. Far more than anything ever takes.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// It runs until it is stopped or dropped. Its pages stay for as long as the test does.
#[derive(Debug)]
pub struct FakeArbiter {
    folder: Arc<TempDir>,
    writer: Arc<ControlWriter<'static>>,
    ledger: &'static LedgerPage,
    ledger_page: Arc<Page>,
    epoch: u64,
    /// The number of the last closing.
    turn: AtomicU32,
    server: Arc<Server>,
    threads: Vec<JoinHandle<()>>,
    /// Its heart beats by itself.
    is_beating: Arc<AtomicBool>,
}

impl FakeArbiter {
    /// The first one of its tenant.
    #[must_use]
    pub fn start(grant: &TenantGrant) -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let page = Page::new(LedgerPage::BYTES);
        // SAFETY: fresh memory of that length, sealed, and mapped for good.
        let ledger = unsafe { LedgerPage::create(page.address(), LedgerPage::BYTES, TENANT) };
        Self::serve(grant, folder, 1, ledger.expect("a ledger"), Arc::new(page))
    }

    /// Ends it, and starts its successor on the same ledger, with the present `grant`.
    #[must_use]
    pub fn restart(mut self, grant: &TenantGrant) -> Self {
        self.stop();
        let (folder, page) = (Arc::clone(&self.folder), Arc::clone(&self.ledger_page));
        let successor = Self::serve(grant, folder, self.epoch + 1, self.ledger, page);
        // What processes answered before is still in the ledger.
        let turn = self.turn.load(Ordering::Acquire);
        successor.turn.store(turn, Ordering::Release);
        successor
    }

    fn serve(
        grant: &TenantGrant,
        folder: Arc<TempDir>,
        epoch: u64,
        ledger: &'static LedgerPage,
        ledger_page: Arc<Page>,
    ) -> Self {
        let devices: Vec<DeviceTerms> = grant
            .cards
            .iter()
            .map(|card| DeviceTerms {
                uuid: card.uuid,
                capacity_bytes: card.capacity_bytes,
                limit_bytes: card.limit_bytes,
                context_bytes: grant.context_bytes,
                packing: grant.packing,
            })
            .collect();
        let terms = Terms {
            tenant: TENANT,
            epoch,
            mode: grant.mode,
            devices: &devices,
            host_limit_bytes: grant.host_limit_bytes,
            now_ms: now_ms(),
        };
        let control = Page::new(ControlPage::BYTES);
        // SAFETY: fresh memory of that length, sealed, and mapped for good.
        let writer =
            unsafe { ControlWriter::create(control.address(), ControlPage::BYTES, &terms) };
        control.forbid_writing();
        let server = Server::new(grant, control, Arc::clone(&ledger_page), ledger);
        let server = Arc::new(server);
        let listener = server::listen(&folder.path().join("tenant.sock"));
        let thread = {
            let server = Arc::clone(&server);
            std::thread::spawn(move || server.serve(&listener))
        };
        Self {
            folder,
            writer: Arc::new(writer.expect("a control page")),
            ledger,
            ledger_page,
            epoch,
            turn: AtomicU32::new(0),
            server,
            threads: vec![thread],
            is_beating: Arc::default(),
        }
    }

    /// Lets all processes go. Its pages stay as they are, and so do the limits.
    pub fn stop(&mut self) {
        self.is_beating.store(false, Ordering::Release);
        self.server.end();
        for thread in self.threads.drain(..) {
            thread.join().expect("the arbiter ends");
        }
    }

    /// The folder with its socket.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The tenant's control page.
    #[must_use]
    pub fn control(&self) -> &'static ControlPage {
        self.writer.page()
    }

    /// The tenant's ledger page.
    #[must_use]
    pub fn ledger(&self) -> &'static LedgerPage {
        self.ledger
    }

    /// Bytes that the tenant has taken of its n-th card.
    #[must_use]
    pub fn used(&self, place: u32) -> u64 {
        self.ledger.total(device(place)).bytes()
    }

    /// Bytes of the host's memory that the tenant has pinned.
    #[must_use]
    pub fn pinned(&self) -> u64 {
        self.ledger.host().total().bytes()
    }

    /// Changes the tenant's limit of pinned memory, in bytes; as
    /// [`set_limit`](Self::set_limit).
    pub fn set_host_limit(&self, bytes: Option<u64>) {
        self.writer.set_host_limit_bytes(bytes);
        self.ledger.host().settle().expect("nobody scribbles");
    }

    /// Changes the limit on the tenant's n-th card, in bytes. When this returns, nothing that was
    /// begun under the old one will be taken.
    pub fn set_limit(&self, place: u32, bytes: u64) {
        self.writer.set_limit_bytes(device(place), bytes);
        self.ledger.settle(device(place)).expect("nobody scribbles");
    }

    /// Has MPS keep a limit of the tenant's compute time, in percent.
    pub fn set_mps_percent(&self, percent: Option<u32>) {
        self.writer.set_mps_percent(percent);
    }

    /// Gives a sign of life.
    pub fn beat(&self) {
        self.writer.beat(now_ms());
    }

    /// Gives signs of life by itself from now on.
    pub fn keep_beating(&mut self) {
        self.is_beating.store(true, Ordering::Release);
        let (writer, is_beating) = (Arc::clone(&self.writer), Arc::clone(&self.is_beating));
        self.threads.push(std::thread::spawn(move || {
            while is_beating.load(Ordering::Acquire) {
                writer.beat(now_ms());
                std::thread::sleep(BETWEEN_BEATS);
            }
        }));
    }

    /// Is gone, as a process sees it: no heartbeat for long.
    pub fn stop_beating(&mut self) {
        self.is_beating.store(false, Ordering::Release);
        for thread in self.threads.drain(1..) {
            thread.join().expect("its heart stops");
        }
        self.writer.beat(0);
    }

    /// Says how the tenant's gate is, and wakes its processes. A closing has the next number.
    pub fn set_gate(&self, state: GateState) -> GateWord {
        let is_closing = u32::from(state == GateState::Closed);
        let turn = self.turn.fetch_add(is_closing, Ordering::AcqRel) + is_closing;
        let word = GateWord::new(state, turn);
        self.writer.set_gate(word);
        let gate = self.writer.gate().address().cast_mut();
        // SAFETY: the arbiter's own mapping of the page, which stays for good.
        let gate = unsafe { AtomicU32::from_ptr(gate) };
        rustix::thread::futex::wake(gate, rustix::thread::futex::Flags::empty(), i32::MAX as u32)
            .expect("a word in shared memory");
        word
    }

    /// Sets the behaviour of processes without an arbiter, in thousandths of the time, and the
    /// work that they keep queued, in microseconds.
    pub fn set_gate_rules(&self, without_arbiter: u32, queue_us: u32) {
        self.writer.set_gate_rules(without_arbiter, queue_us);
    }

    /// The report of the process in the n-th slot on its turns.
    #[must_use]
    pub fn report(&self, slot: u32) -> &TurnReport {
        self.ledger.slot(process(slot)).turns()
    }

    /// Number of knocks so far. Each knock is heard at once.
    #[must_use]
    pub fn n_knocks(&self) -> usize {
        self.server.n_knocks.load(Ordering::Acquire)
    }

    /// Says how much of the tenant's n-th card the driver has taken that no account explains. It is
    /// charged when a process next asks for a reading of the driver.
    pub fn finds(&self, place: u32, bytes: u64) {
        let mut unexplained = self.server.unexplained.lock().expect("the amounts");
        unexplained.insert(device(place), bytes);
    }

    /// Number of readings that processes waited for.
    #[must_use]
    pub fn n_readings(&self) -> usize {
        self.server.n_readings.load(Ordering::Acquire)
    }

    /// Says that a process has a slot, and this number of bytes of the tenant's n-th card.
    pub fn holds(&self, slot: u32, pid: u32, place: u32, bytes: u64) {
        let slot = process(slot);
        self.ledger.slot(slot).hand_out(pid, 1);
        let amount = Units::taken_by(bytes).expect("not too much");
        let charged = self.ledger.charge(slot, device(place), amount);
        charged.expect("room for it");
    }

    /// Notes the number that the process in that slot has for itself.
    pub fn says(&self, slot: u32, own: u32) {
        self.ledger.slot(process(slot)).tell_own_pid(own);
    }

    /// The processes' hellos.
    #[must_use]
    pub fn hellos(&self) -> Vec<Hello> {
        self.server.hellos()
    }

    /// Waits until this number of processes have come and hung up, without another message.
    ///
    /// # Panics
    /// They do not, or one sent more than a hello.
    pub fn expect_visits(&self, n: usize) {
        let start = Instant::now();
        loop {
            let found = (
                self.hellos().len(),
                self.server.n_gone.load(Ordering::Acquire),
            );
            if found == (n, n) {
                break;
            }
            assert!(
                start.elapsed() < DEADLINE,
                "{found:?} came and went, not {n}"
            );
            std::thread::yield_now();
        }
        assert_eq!(self.server.n_more.load(Ordering::Acquire), 0);
    }
}

impl Drop for FakeArbiter {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The tenant's n-th card.
///
/// # Panics
/// A tenant cannot have that many cards.
#[must_use]
pub fn device(place: u32) -> DeviceIndex {
    DeviceIndex::new(place).expect("a place")
}

/// The n-th slot of a process; they begin with 1.
///
/// # Panics
/// There is no such slot.
#[must_use]
pub fn process(number: u32) -> SlotIndex {
    SlotIndex::of_process(number).expect("a slot")
}

/// Milliseconds of `CLOCK_MONOTONIC`, as the heartbeat counts.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}
