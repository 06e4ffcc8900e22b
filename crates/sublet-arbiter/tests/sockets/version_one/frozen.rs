//! A library of version 1, written down by hand: the bytes of its messages, the places on its
//! pages, and its way of taking memory.
//!
//! Nothing here is from `sublet-abi`, so a change there that breaks released libraries breaks
//! these tests. **No number in this file may ever be changed.** When version 1 is served no
//! longer, the file goes.

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

use crate::child::{Process, say, socket_of};

// Messages. All begin with `Subl`, their kind and their size in bytes.
const HELLO: (u16, usize) = (1, 408);
const WELCOME: (u16, usize) = (2, 32);
const REFUSED: (u16, usize) = (3, 268);
const BYE: (u16, usize) = (4, 8);
/// The flag of a hello that claims earlier memory, and the place of the claims.
const COMES_BACK: u32 = 1;
const CLAIMS_AT: usize = 24;
const CLAIM_BYTES: usize = 24;

// The control page.
const CONTROL_BYTES: usize = 1152;
const N_DEVICES_AT: usize = 36;
const HEARTBEAT_AT: usize = 64;
const DEVICES_AT: usize = 128;
const DEVICE_BYTES: usize = 64;
const CAPACITY_AT: usize = 16;
const LIMIT_AT: usize = 24;

// The ledger page.
const LEDGER_BYTES: usize = 591_744;
const HEADS_AT: usize = 64;
const HEAD_BYTES: usize = 64;
const REFUSALS_AT: usize = 1088;
const SLOTS_AT: usize = 1344;
const SLOT_BYTES: usize = 576;
const ACCOUNTS_AT: usize = 64;
const ACCOUNT_BYTES: usize = 32;
const USED_AT: usize = 8;

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

#[test]
fn a_library_of_version_1() {
    const TEST: &str = "version_one::frozen::a_library_of_version_1";
    match socket_of(TEST) {
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

    fn limit(self, device: usize) -> u64 {
        self.of_control(DEVICES_AT + device * DEVICE_BYTES + LIMIT_AT) / UNIT_BYTES
    }

    fn head(self, device: usize) -> &'static AtomicU64 {
        self.of_ledger(HEADS_AT + device * HEAD_BYTES)
    }

    /// *op* and *used*.
    fn account(self, slot: u64, device: usize) -> (&'static AtomicU64, &'static AtomicU64) {
        let slot = SLOTS_AT + slot as usize * SLOT_BYTES;
        let at = slot + ACCOUNTS_AT + device * ACCOUNT_BYTES;
        (self.of_ledger(at), self.of_ledger(at + USED_AT))
    }

    /// Does the last step of the operation that a head names, if no process did.
    fn help(self, device: usize, head_word: u64) {
        let slot = head_word >> SLOT_SHIFT & SLOT_MASK;
        let (op, used) = self.account(slot, device);
        let before = used.load(Ordering::Acquire);
        let number = ((before >> NUMBER_SHIFT) + 1) & NUMBER_MASK;
        if number & HEAD_NUMBER_MASK != head_word >> HEAD_NUMBER_SHIFT
            || self.head(device).load(Ordering::Acquire) != head_word
        {
            return;
        }
        let after = changed(before, op.load(Ordering::Acquire));
        let after = after | number << NUMBER_SHIFT;
        let _ = used.compare_exchange(before, after, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Takes or gives; the new total, or `None` if the limit does not allow it.
    fn change(self, slot: u64, device: usize, op_word: u64) -> Option<u64> {
        let head = self.head(device);
        let mut head_word = head.load(Ordering::Acquire);
        self.help(device, head_word);
        let (op, used) = self.account(slot, device);
        let before = used.load(Ordering::Acquire);
        let number = ((before >> NUMBER_SHIFT) + 1) & NUMBER_MASK;
        op.store(op_word, Ordering::Relaxed);
        loop {
            let total = changed(head_word, op_word);
            if op_word & LESS == 0 && total > self.limit(device) {
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
                    self.help(device, head_word);
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
                "take" => self.take(number(1), number(2) as u64),
                "give" => self.give(number(1), number(2) as u64),
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
        hello[8..10].copy_from_slice(&1_u16.to_ne_bytes());
        hello[10..12].copy_from_slice(&1_u16.to_ne_bytes());
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
            let (_, used) = pages.account(self.slot, device);
            let bytes = (used.load(Ordering::Acquire) & UNITS) * UNIT_BYTES;
            for (offset, word) in [
                (0, pages.of_control(place)),
                (8, pages.of_control(place + 8)),
                (16, bytes),
            ] {
                hello[at + offset..at + offset + 8].copy_from_slice(&word.to_ne_bytes());
            }
        }
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

    /// Maps the length of version 1, whatever was received; then looks at the headers.
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
        assert_eq!(header(pages.control), (*b"SubletC\n", CONTROL_BYTES, 1));
        assert_eq!(header(pages.ledger), (*b"SubletL\n", LEDGER_BYTES, 1));
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

    fn take(&self, device: usize, units: u64) {
        let pages = self.pages.unwrap();
        match pages.change(self.slot, device, units) {
            Some(total) => say(&format!("taken, {total} in all")),
            None => {
                let at = REFUSALS_AT + device * 16;
                pages
                    .of_ledger(at)
                    .store(units * UNIT_BYTES, Ordering::Relaxed);
                let now = pages.of_control(HEARTBEAT_AT);
                pages.of_ledger(at + 8).store(now, Ordering::Relaxed);
                say("refused");
            }
        }
    }

    fn give(&self, device: usize, units: u64) {
        let total = self.pages.unwrap().change(self.slot, device, units | LESS);
        say(&format!("given, {} in all", total.unwrap()));
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
