//! A library of release 0.1.0, written down by hand: the bytes of its messages, the places on its
//! pages, its way of taking memory, and its answers to its gate.
//!
//! Nothing here is from `sublet-abi`, so a change there that breaks released libraries breaks these
//! tests. **No number in this file may ever be changed.** When its version of the pages, 2, is
//! served no longer, the file goes.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::child::{Process, say, socket};

// Messages. All begin with `Subl`, their kind and their size in bytes.
const HELLO: (u16, usize) = (1, 416);
const WELCOME: (u16, usize) = (2, 32);
const REFUSED: (u16, usize) = (3, 268);
const BYE: (u16, usize) = (4, 8);
const KNOCK: (u16, usize) = (5, 8);
/// The version of the pages and of the messages.
const VERSION: u16 = 2;
/// The flag of a hello that claims earlier memory, and the place of the claims.
const COMES_BACK: u32 = 1;
const CLAIMS_AT: usize = 24;
const CLAIM_BYTES: usize = 24;
const PINNED_CLAIM_AT: usize = 408;

// The control page.
const CONTROL_BYTES: usize = 1216;
const N_DEVICES_AT: usize = 36;
const GATE_AT: usize = 40;
const HEARTBEAT_AT: usize = 64;
const DEVICES_AT: usize = 128;
const DEVICE_BYTES: usize = 64;
const CAPACITY_AT: usize = 16;
const LIMIT_AT: usize = 24;
const PINNED_LIMIT_AT: usize = 1152;

// The ledger page.
const LEDGER_BYTES: usize = 657_472;
const HEADS_AT: usize = 64;
const HEAD_BYTES: usize = 64;
const REFUSALS_AT: usize = 1088;
const SLOTS_AT: usize = 1344;
const SLOT_BYTES: usize = 576;
const ACCOUNTS_AT: usize = 64;
const ACCOUNT_BYTES: usize = 32;
const USED_AT: usize = 8;
const ANSWER_AT: usize = 24;
const KNOCKED_AT: usize = 56;
const PINNED_AT: usize = 591_744;
const PINNED_ACCOUNTS_AT: usize = 128;
const PINNED_ACCOUNT_BYTES: usize = 64;

// The gate: two bits of state, then the number of the turn. A process's answer: the number of the
// turn, then flags.
const STATES: [&str; 4] = ["free", "open", "contended", "closed"];
const FOLLOWS: u64 = 1;
const AT_WORK: u64 = 2;
const AT_GATE: u64 = 4;

// Words: 34 bits of units of 512 bytes, then what else there is.
const UNIT_BYTES: u64 = 512;
const UNITS: u64 = (1 << 34) - 1;
const LESS: u64 = 1 << 34;
const SLOT_SHIFT: u32 = 34;
const SLOT_MASK: u64 = (1 << 11) - 1;
const NUMBER_SHIFT: u32 = 34;
const NUMBER_MASK: u64 = (1 << 30) - 1;
const HEAD_NUMBER_SHIFT: u32 = 45;
const HEAD_NUMBER_MASK: u64 = (1 << 19) - 1;

/// The order that starts this process.
pub(super) const TEST: &str = "first_release::frozen::a_library_of_release_0_1_0";

#[test]
fn a_library_of_release_0_1_0() {
    match socket() {
        Some(socket) => Library::default().serve(Path::new(&socket)),
        None => {
            let mut child = Process::start_as(Path::new("/nowhere/tenant.sock"), TEST);
            assert_eq!(child.tell("hello"), "no connection");
        }
    }
}

/// The library's knowledge.
#[derive(Default)]
struct Library {
    socket: Option<OwnedFd>,
    ledger_file: Option<OwnedFd>,
    pages: Option<Pages>,
    slot: u64,
    generation: u32,
}

/// Two mappings that are never undone.
#[derive(Clone, Copy)]
struct Pages {
    control: *const u8,
    ledger: *const u8,
}

/// A thing of which there is a limit: a device's memory, or pinned memory.
#[derive(Clone, Copy)]
enum Kind {
    Device(usize),
    Pinned,
}

impl Pages {
    fn of_control(self, at: usize) -> u64 {
        assert!(at + 8 <= CONTROL_BYTES);
        // SAFETY: within the mapping and aligned; the arbiter writes it too, atomically.
        unsafe { &*self.control.add(at).cast::<AtomicU64>() }.load(Ordering::Acquire)
    }

    fn of_ledger(self, at: usize) -> &'static AtomicU64 {
        assert!(at + 8 <= LEDGER_BYTES);
        // SAFETY: within the mapping, which is never undone, and aligned.
        unsafe { &*self.ledger.add(at).cast::<AtomicU64>() }
    }

    fn limit(self, kind: Kind) -> u64 {
        self.of_control(match kind {
            Kind::Device(device) => DEVICES_AT + device * DEVICE_BYTES + LIMIT_AT,
            Kind::Pinned => PINNED_LIMIT_AT,
        }) / UNIT_BYTES
    }

    fn head(self, kind: Kind) -> &'static AtomicU64 {
        self.of_ledger(match kind {
            Kind::Device(device) => HEADS_AT + device * HEAD_BYTES,
            Kind::Pinned => PINNED_AT,
        })
    }

    /// A word of a slot.
    fn of_slot(self, slot: u64, at: usize) -> &'static AtomicU64 {
        self.of_ledger(SLOTS_AT + slot as usize * SLOT_BYTES + at)
    }

    /// *op* and *used*.
    fn account(self, slot: u64, kind: Kind) -> (&'static AtomicU64, &'static AtomicU64) {
        let at = match kind {
            Kind::Device(device) => {
                SLOTS_AT + slot as usize * SLOT_BYTES + ACCOUNTS_AT + device * ACCOUNT_BYTES
            }
            Kind::Pinned => PINNED_AT + PINNED_ACCOUNTS_AT + slot as usize * PINNED_ACCOUNT_BYTES,
        };
        (self.of_ledger(at), self.of_ledger(at + USED_AT))
    }

    /// Does the last step of the operation that a head names, if no process did.
    fn help(self, kind: Kind, head_word: u64) {
        let slot = head_word >> SLOT_SHIFT & SLOT_MASK;
        let (op, used) = self.account(slot, kind);
        let before = used.load(Ordering::Acquire);
        let number = ((before >> NUMBER_SHIFT) + 1) & NUMBER_MASK;
        if number & HEAD_NUMBER_MASK != head_word >> HEAD_NUMBER_SHIFT
            || self.head(kind).load(Ordering::Acquire) != head_word
        {
            return;
        }
        let after = changed(before, op.load(Ordering::Acquire));
        let after = after | number << NUMBER_SHIFT;
        let _ = used.compare_exchange(before, after, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Takes or gives; the new total, or `None` if the limit does not allow it.
    fn change(self, slot: u64, kind: Kind, op_word: u64) -> Option<u64> {
        let head = self.head(kind);
        let mut head_word = head.load(Ordering::Acquire);
        self.help(kind, head_word);
        let (op, used) = self.account(slot, kind);
        let before = used.load(Ordering::Acquire);
        let number = ((before >> NUMBER_SHIFT) + 1) & NUMBER_MASK;
        op.store(op_word, Ordering::Relaxed);
        loop {
            let total = changed(head_word, op_word);
            if op_word & LESS == 0 && total > self.limit(kind) {
                return None;
            }
            let in_head = (number & HEAD_NUMBER_MASK) << HEAD_NUMBER_SHIFT;
            let next = total | slot << SLOT_SHIFT | in_head;
            match head.compare_exchange(head_word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let after = changed(before, op_word) | number << NUMBER_SHIFT;
                    let _ =
                        used.compare_exchange(before, after, Ordering::AcqRel, Ordering::Acquire);
                    return Some(total);
                }
                Err(now) => {
                    head_word = now;
                    self.help(kind, head_word);
                }
            }
        }
    }
}

/// The units of a word after an operation.
fn changed(word: u64, op_word: u64) -> u64 {
    let (units, amount) = (word & UNITS, op_word & UNITS);
    if op_word & LESS == 0 {
        units + amount
    } else {
        units - amount
    }
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().unwrap()
}

fn message((kind, size): (u16, usize)) -> Vec<u8> {
    let mut bytes = vec![0; size];
    bytes[..4].copy_from_slice(b"Subl");
    bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
    bytes[6..8].copy_from_slice(&(size as u16).to_ne_bytes());
    bytes
}

impl Library {
    fn serve(&mut self, socket: &Path) {
        say("up");
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| {
                words
                    .get(at)
                    .and_then(|word| word.parse().ok())
                    .unwrap_or(0)
            };
            match words[0] {
                "hello" => self.meet(socket, false),
                "again" => self.meet(socket, true),
                "take" => self.take(Kind::Device(number(1)), number(2) as u64),
                "give" => self.give(Kind::Device(number(1)), number(2) as u64),
                "pin" => self.take(Kind::Pinned, number(1) as u64),
                "unpin" => self.give(Kind::Pinned, number(1) as u64),
                "gate" => say(STATES[self.gate() as usize & 0b11]),
                "work" => self.report(FOLLOWS | AT_WORK),
                "rest" => self.report(FOLLOWS | AT_GATE),
                "cards" => self.cards(),
                "heartbeat" => say(&self.pages.unwrap().of_control(HEARTBEAT_AT).to_string()),
                "lost" => self.wait_for_end("lost"),
                "bye" => {
                    self.send(&message(BYE), None);
                    self.wait_for_end("closed");
                }
                _ => say("what?"),
            }
        }
    }

    fn meet(&mut self, path: &Path, comes_back: bool) {
        let kind = SocketType::SEQPACKET;
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        if rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).is_err() {
            return say("no connection");
        }
        self.socket = Some(socket);
        let mut hello = message(HELLO);
        hello[8..10].copy_from_slice(&VERSION.to_ne_bytes());
        hello[10..12].copy_from_slice(&VERSION.to_ne_bytes());
        let ledger = self.ledger_file.as_ref().filter(|_| comes_back);
        if comes_back {
            self.claim(&mut hello);
        }
        self.send(&hello, ledger.map(AsFd::as_fd));
        self.take_answer();
    }

    /// Writes its claims into a hello.
    fn claim(&self, hello: &mut [u8]) {
        let pages = self.pages.unwrap();
        hello[12..16].copy_from_slice(&COMES_BACK.to_ne_bytes());
        hello[16..20].copy_from_slice(&(self.slot as u32).to_ne_bytes());
        hello[20..24].copy_from_slice(&self.generation.to_ne_bytes());
        for device in 0..self.n_devices() {
            let at = CLAIMS_AT + device * CLAIM_BYTES;
            let place = DEVICES_AT + device * DEVICE_BYTES;
            let bytes = self.held(Kind::Device(device));
            for (offset, word) in [
                (0, pages.of_control(place)),
                (8, pages.of_control(place + 8)),
                (16, bytes),
            ] {
                hello[at + offset..at + offset + 8].copy_from_slice(&word.to_ne_bytes());
            }
        }
        let pinned = self.held(Kind::Pinned).to_ne_bytes();
        hello[PINNED_CLAIM_AT..PINNED_CLAIM_AT + 8].copy_from_slice(&pinned);
    }

    /// Bytes that it holds.
    fn held(&self, kind: Kind) -> u64 {
        let (_, used) = self.pages.unwrap().account(self.slot, kind);
        (used.load(Ordering::Acquire) & UNITS) * UNIT_BYTES
    }

    fn send(&self, bytes: &[u8], beside: Option<BorrowedFd<'_>>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut descriptors = SendAncillaryBuffer::new(&mut space);
        let beside: Vec<_> = beside.into_iter().collect();
        if !beside.is_empty() {
            assert!(descriptors.push(SendAncillaryMessage::ScmRights(&beside)));
        }
        let (socket, flags) = (self.socket.as_ref().unwrap(), SendFlags::NOSIGNAL);
        let _ = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut descriptors, flags);
    }

    fn take_answer(&mut self) {
        let mut bytes = [0; 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let (socket, flags) = (self.socket.as_ref().unwrap(), RecvFlags::CMSG_CLOEXEC);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let received = rustix::net::recvmsg(socket, &mut parts, &mut beside, flags);
        let len = received.map_or(0, |message| message.bytes);
        let mut files = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = message {
                files.extend(some);
            }
        }
        let is =
            |(kind, size): (u16, usize)| bytes[..8] == message((kind, size))[..8] && len == size;
        if is(REFUSED) {
            let code = u16::from_ne_bytes(word(&bytes, 8));
            let end = 12 + usize::from(u16::from_ne_bytes(word(&bytes, 10)));
            let text = std::str::from_utf8(&bytes[12..end]).unwrap();
            return say(&format!("refused {code}: {text}"));
        }
        if !is(WELCOME) {
            return say("nothing");
        }
        self.slot = u32::from_ne_bytes(word(&bytes, 16)).into();
        self.generation = u32::from_ne_bytes(word(&bytes, 20));
        let ledger = files.pop().unwrap();
        let control = files.pop().unwrap();
        let size = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_size;
        let sizes = format!("control {} ledger {}", size(&control), size(&ledger));
        self.map(&control, &ledger);
        self.ledger_file = Some(ledger);
        let version = u16::from_ne_bytes(word(&bytes, 8));
        let reserved = u16::from_ne_bytes(word(&bytes, 10));
        let mode = match u32::from_ne_bytes(word(&bytes, 12)) {
            0 => "compat",
            1 => "strict",
            _ => "what mode?",
        };
        assert_eq!(reserved, 0);
        let tenant = u64::from_ne_bytes(word(&bytes, 24));
        let (slot, generation) = (self.slot, self.generation);
        say(&format!(
            "version {version} slot {slot} generation {generation} tenant {tenant} {mode}, {sizes}"
        ));
    }

    /// Maps the length of its own version, whatever was received; then looks at the headers.
    fn map(&mut self, control: &OwnedFd, ledger: &OwnedFd) {
        let map = |file: &OwnedFd, len, prot| {
            let (place, flags) = (std::ptr::null_mut(), MapFlags::SHARED);
            // SAFETY: a new mapping where the kernel likes, which is never undone.
            let page = unsafe { rustix::mm::mmap(place, len, prot, flags, file, 0) };
            page.unwrap().cast::<u8>().cast_const()
        };
        let pages = Pages {
            control: map(control, CONTROL_BYTES, ProtFlags::READ),
            ledger: map(ledger, LEDGER_BYTES, ProtFlags::READ | ProtFlags::WRITE),
        };
        let header = |page: *const u8| {
            let mut bytes = [0; 16];
            // SAFETY: both pages are longer, and nobody writes their headers now.
            unsafe { page.copy_to_nonoverlapping(bytes.as_mut_ptr(), 16) };
            let size = u32::from_ne_bytes(word(&bytes, 8)) as usize;
            (
                word::<8>(&bytes, 0),
                size,
                u16::from_ne_bytes(word(&bytes, 12)),
            )
        };
        assert_eq!(
            header(pages.control),
            (*b"SubletC\n", CONTROL_BYTES, VERSION)
        );
        assert_eq!(header(pages.ledger), (*b"SubletL\n", LEDGER_BYTES, VERSION));
        self.pages = Some(pages);
    }

    fn n_devices(&self) -> usize {
        // With the mode in the other half of the word.
        let word = self.pages.unwrap().of_control(N_DEVICES_AT - 4);
        u32::from_ne_bytes(self::word(&word.to_ne_bytes(), 4)) as usize
    }

    fn cards(&self) {
        let pages = self.pages.unwrap();
        let cards = (0..self.n_devices()).map(|device| {
            let place = DEVICES_AT + device * DEVICE_BYTES;
            let mib = |at| pages.of_control(place + at) >> 20;
            // The last byte of the UUID.
            let number = pages.of_control(place + 8).to_ne_bytes()[7];
            format!("{} of {} as {number}", mib(CAPACITY_AT), mib(LIMIT_AT))
        });
        say(&cards.collect::<Vec<_>>().join(", "));
    }

    fn take(&self, kind: Kind, units: u64) {
        let pages = self.pages.unwrap();
        match pages.change(self.slot, kind, units) {
            Some(total) => say(&format!("taken, {total} in all")),
            None => {
                let at = match kind {
                    Kind::Device(device) => REFUSALS_AT + device * 16,
                    Kind::Pinned => PINNED_AT + 64,
                };
                let bytes = units * UNIT_BYTES;
                pages.of_ledger(at).store(bytes, Ordering::Relaxed);
                let now = pages.of_control(HEARTBEAT_AT);
                pages.of_ledger(at + 8).store(now, Ordering::Relaxed);
                say("refused");
            }
        }
    }

    fn give(&self, kind: Kind, units: u64) {
        let total = self.pages.unwrap().change(self.slot, kind, units | LESS);
        say(&format!("given, {} in all", total.unwrap()));
    }

    /// The gate's word: the first half of its place.
    fn gate(&self) -> u64 {
        self.pages.unwrap().of_control(GATE_AT) & u64::from(u32::MAX)
    }

    /// Says what it does, having read its gate: nothing of an earlier turn runs any more. The two
    /// halves of the place are the answer and the flags.
    fn report(&self, flags: u64) {
        let pages = self.pages.unwrap();
        let word = flags << 32 | self.gate() >> 2;
        pages
            .of_slot(self.slot, ANSWER_AT)
            .store(word, Ordering::Release);
        pages
            .of_slot(self.slot, KNOCKED_AT)
            .fetch_or(1, Ordering::AcqRel);
        self.send(&message(KNOCK), None);
        say("told");
    }

    fn wait_for_end(&self, word: &str) {
        let mut bytes = [0; 16];
        let socket = self.socket.as_ref().unwrap();
        let ended = rustix::net::recv(socket, &mut bytes, RecvFlags::empty());
        say(if matches!(ended, Ok((_, 0)) | Err(_)) {
            word
        } else {
            "it spoke"
        });
    }
}
