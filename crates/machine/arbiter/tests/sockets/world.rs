//! An arbiter in a thread, in a folder of its own, with cards that a test can write to.

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use sublet_arbiter::admin::{Client, Mode, Placed, Reply, Request, Snapshot, Submit, TenantRow};
use sublet_arbiter::{
    Arbiter, ArbiterError, CardBusy, CardReading, Folder, GpuView, GpuViewError, Handle, Options,
};
use sublet_model::{Bytes, Class, Gpu, GpuIndex, GpuUuid, Inventory, MiB, Milli};
use sublet_share::Pid;

/// Longest wait of a test before it gives up. Far more than anything ever takes: the tests
/// must not fail on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The driver's answers: by card, processes and their MiB, and their use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cards(
    Arc<Mutex<Vec<Option<Processes>>>>,
    Arc<Mutex<Vec<Processes>>>,
);

type Processes = Vec<(u32, u64)>;

impl Cards {
    pub(crate) fn set(&self, card: usize, processes: &[(u32, u64)]) {
        self.0.lock().unwrap()[card] = Some(processes.to_vec());
    }

    /// Sets the processes' use of a card, in thousandths.
    pub(crate) fn set_busy(&self, card: usize, processes: &[(u32, u64)]) {
        let mut cards = self.1.lock().unwrap();
        cards.resize(card + 1, Vec::new());
        cards[card] = processes.to_vec();
    }

    /// The driver can read the card no more.
    pub(crate) fn fail(&self, card: usize) {
        self.0.lock().unwrap()[card] = None;
    }
}

pub(crate) struct View {
    sizes: Vec<u32>,
    cards: Cards,
}

impl View {
    pub(crate) fn new(sizes: &[u32]) -> (View, Cards) {
        let cards = Cards::default();
        cards
            .0
            .lock()
            .unwrap()
            .resize(sizes.len(), Some(Vec::new()));
        let view = View {
            sizes: sizes.to_vec(),
            cards: cards.clone(),
        };
        (view, cards)
    }
}

pub(crate) fn uuid(card: usize) -> String {
    format!("GPU-00000000-0000-0000-0000-{card:012x}")
}

impl GpuView for View {
    fn inventory(&mut self) -> Result<Inventory, GpuViewError> {
        let gpus = self.sizes.iter().enumerate().map(|(card, size)| Gpu {
            uuid: GpuUuid::new(&uuid(card)).ok(),
            ..Gpu::plain(GpuIndex(card as u16), MiB::from(*size))
        });
        Ok(Inventory::new(gpus.collect(), vec![], vec![], vec![])?)
    }

    fn driver(&self) -> String {
        "of these tests".to_owned()
    }

    fn busy(&mut self) -> Vec<Option<CardBusy>> {
        let cards = self.cards.1.lock().unwrap();
        let milli = |part: u64| Milli::new(part as u16).unwrap();
        let of = |card: &Processes| {
            let each = card.iter().map(|&(pid, part)| (Pid(pid), milli(part)));
            Some(each.collect())
        };
        cards.iter().map(of).collect()
    }

    fn read(&mut self) -> Vec<Option<CardReading>> {
        let cards = self.cards.0.lock().unwrap();
        let read = |processes: &Option<Processes>| {
            let processes = processes.as_ref()?;
            let processes = processes
                .iter()
                .map(|&(pid, mib)| (Pid(pid), Bytes::new(mib << 20)));
            let processes: Vec<_> = processes.collect();
            let used = processes.iter().map(|(_, bytes)| bytes.get()).sum();
            Some(CardReading {
                used: Bytes::new(used),
                processes,
            })
        };
        cards.iter().map(read).collect()
    }
}

pub(crate) struct World {
    _base: tempfile::TempDir,
    sizes: Vec<u32>,
    pub(crate) folder: Folder,
    pub(crate) handle: Handle,
    pub(crate) cards: Cards,
    thread: Option<Running>,
}

type Running = JoinHandle<Result<(), ArbiterError>>;

impl World {
    pub(crate) fn new(sizes: &[u32]) -> World {
        World::with(sizes, |_| {})
    }

    pub(crate) fn with(sizes: &[u32], change: impl FnOnce(&mut Options)) -> World {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::within(base.path(), "gpu");
        let (view, cards) = View::new(sizes);
        let (handle, thread) = begin(&folder, view, change);
        World {
            _base: base,
            sizes: sizes.to_vec(),
            folder,
            handle,
            cards,
            thread: Some(thread),
        }
    }

    /// Ends the arbiter and starts another one in its place.
    pub(crate) fn restart(&mut self, change: impl FnOnce(&mut Options)) {
        self.end();
        let view = View {
            sizes: self.sizes.clone(),
            cards: self.cards.clone(),
        };
        let (handle, thread) = begin(&self.folder, view, change);
        (self.handle, self.thread) = (handle, Some(thread));
    }

    pub(crate) fn admin(&self) -> Client {
        Client::connect(&self.folder.admin_socket()).unwrap()
    }

    /// Submits a job with this process as the root.
    pub(crate) fn submit(&self, memory: &str, gpus: u32, wait: bool) -> (Client, Reply) {
        submit(self.admin(), memory, gpus, wait)
    }

    pub(crate) fn placed(&self, memory: &str, gpus: u32) -> (Client, Placed) {
        match self.submit(memory, gpus, false) {
            (line, Reply::Placed(placed)) => (line, placed),
            (_, other) => panic!("{other:?}"),
        }
    }

    pub(crate) fn limit(&self, id: u64, memory: &str) -> Reply {
        let memory = memory.to_owned();
        self.call(&Request::Limit { id, memory })
    }

    pub(crate) fn limit_pinned(&self, id: u64, memory: &str) -> Reply {
        let memory = memory.to_owned();
        self.call(&Request::LimitPinned { id, memory })
    }

    pub(crate) fn call(&self, request: &Request) -> Reply {
        self.admin().call(request, PATIENCE).unwrap()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        match self.call(&Request::List) {
            Reply::Snapshot(snapshot) => *snapshot,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn job(&self, id: u64) -> Option<TenantRow> {
        let mut rows = self.snapshot().tenants.into_iter();
        rows.find(|row| row.id == Some(id))
    }

    /// Ends it in order and waits until it has.
    pub(crate) fn end(&mut self) {
        self.handle.stop();
        self.wait_for_end();
    }

    pub(crate) fn wait_for_end(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap().unwrap();
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.tenant_socket()
    }
}

fn begin(folder: &Folder, view: View, change: impl FnOnce(&mut Options)) -> (Handle, Running) {
    let mut options = Options::new(folder.clone());
    change(&mut options);
    let arbiter = Arbiter::start(options, Box::new(view)).unwrap();
    let handle = arbiter.handle();
    (handle, thread::spawn(move || arbiter.run()))
}

impl Drop for World {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn submit(mut line: Client, memory: &str, gpus: u32, wait: bool) -> (Client, Reply) {
    let submit = ask(memory, gpus, wait);
    let reply = line.call(&Request::Submit(submit), PATIENCE).unwrap();
    (line, reply)
}

pub(crate) fn ask(memory: &str, gpus: u32, wait: bool) -> Submit {
    Submit {
        name: "test".to_owned(),
        memory: Some(memory.to_owned()),
        pinned_memory: None,
        compute: None,
        class: Class::Guaranteed,
        slice: None,
        gpus,
        cards: None,
        wait,
        priority: 0,
        mode: Mode::Strict,
    }
}

/// Looks again until it is so; the last look is in the failure.
pub(crate) fn until<T: Debug>(mut look: impl FnMut() -> T, is_so: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let seen = look();
        if is_so(&seen) {
            return seen;
        }
        assert!(Instant::now() < deadline, "never so: {seen:?}");
        thread::yield_now();
    }
}

/// The reason of a refusal.
pub(crate) fn reason(reply: &Reply) -> &str {
    match reply {
        Reply::Refused { reason, .. } | Reply::Error { reason } | Reply::Waiting { reason, .. } => {
            reason
        }
        other => panic!("not refused: {other:?}"),
    }
}
