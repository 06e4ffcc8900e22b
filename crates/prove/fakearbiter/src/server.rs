//! The thread that answers: one hello a connection, and afterwards it only listens.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::thread::futex;
use sublet_abi::message::{MESSAGE_BYTES_MAX, RefusedCode, RefusedHello, Text};
use sublet_abi::{
    ArbiterMessage, DeviceIndex, Hello, LedgerPage, Mode, Packing, ProcessMessage, SlotIndex,
    Units, Uuid, VERSION, Welcome,
};

use crate::page::Page;

/// The tenant's number.
pub const TENANT: u64 = 7;

/// A card of the tenant.
#[derive(Debug, Clone, Copy)]
pub struct GrantedCard {
    /// The card's own name.
    pub uuid: Uuid,
    /// The whole card's memory, in bytes.
    pub capacity_bytes: u64,
    /// The tenant's part of it, in bytes.
    pub limit_bytes: u64,
}

/// Grant of the tenant.
#[derive(Debug, Clone)]
pub struct TenantGrant {
    /// Behaviour of its processes without an arbiter.
    pub mode: Mode,
    /// Its cards, in its order.
    pub cards: Vec<GrantedCard>,
    /// Expected memory of a context, in bytes.
    pub context_bytes: u64,
    /// Packing of memory by the driver on every card; `None` if it is not known.
    pub packing: Option<Packing>,
    /// Limit of pinned host memory, in bytes; `None` for no limit.
    pub host_limit_bytes: Option<u64>,
    /// Refuses every process, with this reason.
    pub refuse: Option<(RefusedCode, &'static str)>,
    /// Offset of the processes' numbers, as if they were in another namespace.
    pub shift: u32,
}

impl TenantGrant {
    /// Cards with limits, contexts that cost nothing, compat.
    #[must_use]
    pub fn of(cards: Vec<GrantedCard>) -> Self {
        Self {
            mode: Mode::Compat,
            cards,
            context_bytes: 0,
            packing: None,
            host_limit_bytes: None,
            refuse: None,
            shift: 0,
        }
    }
}

/// Three hundred programs that start at once must not be turned away.
const BACKLOG: i32 = 512;

#[derive(Debug)]
pub(crate) struct Server {
    control: Page,
    ledger_page: Arc<Page>,
    ledger: &'static LedgerPage,
    mode: Mode,
    refuse: Option<(RefusedCode, &'static str)>,
    shift: u32,
    hellos: Mutex<Vec<Hello>>,
    /// Connections that were closed after their hello.
    pub(crate) n_gone: AtomicUsize,
    pub(crate) n_knocks: AtomicUsize,
    /// Bytes of each card that the driver has taken and no account explains, as the test says.
    pub(crate) unexplained: Mutex<BTreeMap<DeviceIndex, u64>>,
    /// Number of readings of the driver that processes waited for.
    pub(crate) n_readings: AtomicUsize,
    /// Number of messages after the hello, which should not come.
    pub(crate) n_more: AtomicUsize,
    /// Readable when it is time to go.
    end: OwnedFd,
}

impl Server {
    pub(crate) fn new(
        grant: &TenantGrant,
        control: Page,
        ledger_page: Arc<Page>,
        ledger: &'static LedgerPage,
    ) -> Self {
        Self {
            control,
            ledger_page,
            ledger,
            mode: grant.mode,
            refuse: grant.refuse,
            shift: grant.shift,
            hellos: Mutex::default(),
            n_gone: AtomicUsize::new(0),
            n_knocks: AtomicUsize::new(0),
            unexplained: Mutex::default(),
            n_readings: AtomicUsize::new(0),
            n_more: AtomicUsize::new(0),
            end: rustix::event::eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"),
        }
    }

    pub(crate) fn hellos(&self) -> Vec<Hello> {
        self.hellos.lock().expect("the list").clone()
    }

    pub(crate) fn end(&self) {
        rustix::io::write(&self.end, &1_u64.to_ne_bytes()).expect("it is there");
    }

    /// Answers until the end; then all connections close.
    pub(crate) fn serve(&self, listener: &OwnedFd) {
        let mut clients: Vec<OwnedFd> = Vec::new();
        loop {
            let mut all = vec![
                PollFd::new(&self.end, PollFlags::IN),
                PollFd::new(listener, PollFlags::IN),
            ];
            all.extend(
                clients
                    .iter()
                    .map(|client| PollFd::new(client, PollFlags::IN)),
            );
            match rustix::event::poll(&mut all, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("cannot wait: {error}"),
            }
            let ready: Vec<bool> = all.iter().map(|one| !one.revents().is_empty()).collect();
            if ready[0] {
                return;
            }
            let mut of_clients = ready[2..].iter();
            clients.retain(|client| {
                let is_ready = of_clients.next() == Some(&true);
                !is_ready || self.listen_on(client)
            });
            if ready[1] {
                let client = rustix::net::accept_with(listener, SocketFlags::CLOEXEC);
                let client = client.expect("a connection");
                // Who connects says hello at once, or goes.
                if let Some(ProcessMessage::Hello(hello)) = receive(&client) {
                    self.greet(&client, hello);
                    clients.push(client);
                }
            }
        }
    }

    /// False if the client is gone.
    fn listen_on(&self, client: &OwnedFd) -> bool {
        let more = receive(client);
        let count = match more {
            None => &self.n_gone,
            Some(ProcessMessage::Knock) => {
                // Whose it is does not matter: it is heard, and the pages say the rest.
                let slots = SlotIndex::processes().map(|index| self.ledger.slot(index));
                slots.for_each(|slot| slot.turns().hear());
                self.answer_questions();
                &self.n_knocks
            }
            Some(_) => &self.n_more,
        };
        count.fetch_add(1, Ordering::AcqRel);
        more.is_some()
    }

    /// Reads the driver for the processes that wait for it: charges what the test says.
    fn answer_questions(&self) {
        let slots = SlotIndex::processes().map(|index| self.ledger.slot(index));
        for slot in slots.filter(|slot| slot.is_live()) {
            for device in DeviceIndex::all() {
                if let Some(number) = slot.awaited_reading(device) {
                    self.n_readings.fetch_add(1, Ordering::AcqRel);
                    self.charge_unexplained(device);
                    slot.finish_reading(device, number);
                    let word = slot.finished_reading(device);
                    let woken = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
                    woken.expect("a word in shared memory");
                }
            }
        }
    }

    fn charge_unexplained(&self, device: DeviceIndex) {
        let unexplained = self.unexplained.lock().expect("the amounts");
        let Some(bytes) = unexplained.get(&device) else {
            return;
        };
        let want = Units::taken_by(*bytes).expect("not too much");
        let (own, have) = (
            SlotIndex::ARBITER,
            self.ledger.held(SlotIndex::ARBITER, device),
        );
        let more = self.ledger.charge(own, device, want.saturating_sub(have));
        more.expect("room for it");
        let less = self.ledger.release(own, device, have.saturating_sub(want));
        less.expect("it has that");
    }

    fn greet(&self, client: &OwnedFd, hello: Hello) {
        let held = hello.held.as_ref().map(|held| held.slot);
        self.hellos.lock().expect("the list").push(hello);
        if let Some((code, text)) = self.refuse {
            let text = Text::new(text);
            return send(
                client,
                &ArbiterMessage::Refused(RefusedHello { code, text }),
                &[],
            );
        }
        let credentials = rustix::net::sockopt::socket_peercred(client).expect("a peer");
        let pid = credentials.pid.as_raw_nonzero().get().unsigned_abs() + self.shift;
        let welcome = ArbiterMessage::Welcome(Welcome {
            version: VERSION,
            mode: self.mode,
            slot: held.unwrap_or_else(|| self.slot_of(pid)),
            generation: 1,
            tenant: TENANT,
        });
        let pages = [self.control.as_fd(), self.ledger_page.as_fd()];
        send(client, &welcome, &pages);
    }

    /// The one it has, or a free one.
    fn slot_of(&self, pid: u32) -> SlotIndex {
        let slot = |index| self.ledger.slot(index);
        let mut own = SlotIndex::processes()
            .filter(|&index| slot(index).is_live() && slot(index).pid() == pid);
        own.next().unwrap_or_else(|| {
            let mut free = SlotIndex::processes().filter(|&index| !slot(index).is_live());
            let index = free.next().expect("a free slot");
            slot(index).hand_out(pid, 1);
            index
        })
    }
}

/// A new socket at that path, in place of a predecessor's.
pub(crate) fn listen(path: &Path) -> OwnedFd {
    let _ = std::fs::remove_file(path);
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None);
    let socket = socket.expect("a socket");
    let address = SocketAddrUnix::new(path).expect("a short folder");
    rustix::net::bind(&socket, &address).expect("a free name");
    rustix::net::listen(&socket, BACKLOG).expect("a queue");
    socket
}

/// The next valid message, if there is one. Descriptors beside it are closed: this arbiter knows
/// the contents of a ledger.
fn receive(client: &OwnedFd) -> Option<ProcessMessage> {
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let received = rustix::net::recvmsg(
        client,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut RecvAncillaryBuffer::new(&mut space),
        RecvFlags::CMSG_CLOEXEC,
    );
    let n = received.map_or(0, |message| message.bytes);
    ProcessMessage::parse(&bytes[..n]).ok()
}

fn send(client: &OwnedFd, reply: &ArbiterMessage, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    assert!(descriptors.is_empty() || beside.push(SendAncillaryMessage::ScmRights(descriptors)));
    let bytes = reply.encode();
    // A program that was killed meanwhile is no matter of the arbiter's.
    let _ = rustix::net::sendmsg(
        client,
        &[IoSlice::new(&bytes)],
        &mut beside,
        SendFlags::NOSIGNAL,
    );
}
