//! An arbiter that gives each process one slot, as far as a process can tell.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sublet_abi::control::{DeviceTerms, Terms};
use sublet_abi::message::{MESSAGE_BYTES_MAX, WELCOME_DESCRIPTORS};
use sublet_abi::{
    ControlPage, ControlWriter, DeviceIndex, LedgerPage, Mode, Reply, Request, SlotIndex, Units,
    VERSION, Welcome,
};
use tempfile::TempDir;

const TENANT: u64 = 7;

/// The arbiter hears of a program's last word after the program may have ended.
const DEADLINE: Duration = Duration::from_secs(20);

/// A machine's card, as the library of the tests names it.
pub(crate) fn uuid(card: u8) -> [u8; 16] {
    let mut uuid = [0; 16];
    (uuid[3], uuid[15]) = (card, 0xc0 + card);
    uuid
}

/// One incarnation, for one tenant.
pub(crate) struct Arbiter {
    folder: TempDir,
    writer: ControlWriter<'static>,
    ledger: &'static LedgerPage,
    desk: Arc<Desk>,
}

/// The thread's part.
struct Desk {
    control: OwnedFd,
    ledger: OwnedFd,
    page: &'static LedgerPage,
    mode: Mode,
    /// What is added to the numbers of processes, as if they were in another namespace.
    shift: u32,
    n_hellos: AtomicU32,
    n_ended: AtomicU32,
    /// Whatever is said after hello, and should not be.
    n_more: AtomicU32,
}

impl Arbiter {
    /// With limits in MiB for some of the machine's cards.
    pub(crate) fn start(mode: Mode, limits: &[(u8, u64)], shift: u32) -> Self {
        let devices: Vec<DeviceTerms> = limits
            .iter()
            .map(|&(card, mib)| DeviceTerms {
                uuid: uuid(card),
                capacity_bytes: 16 << 30,
                limit_bytes: mib << 20,
                context_bytes: 0,
            })
            .collect();
        let terms = Terms {
            tenant: TENANT,
            epoch: 1,
            mode,
            devices: &devices,
            now_ms: sublet_hook::link::now_ms(),
        };
        let (ledger_file, address) = page(LedgerPage::BYTES);
        // SAFETY: fresh memory that stays mapped.
        let ledger = unsafe { LedgerPage::create(address, LedgerPage::BYTES, TENANT) };
        let ledger = ledger.expect("a ledger");
        let (control_file, address) = page(ControlPage::BYTES);
        // SAFETY: fresh memory that stays mapped.
        let writer = unsafe { ControlWriter::create(address, ControlPage::BYTES, &terms) };
        let folder = tempfile::tempdir().expect("a folder");
        let listener = listen(&folder.path().join("tenant.sock"));
        let desk = Arc::new(Desk {
            control: control_file,
            ledger: ledger_file,
            page: ledger,
            mode,
            shift,
            n_hellos: AtomicU32::new(0),
            n_ended: AtomicU32::new(0),
            n_more: AtomicU32::new(0),
        });
        let own = Arc::clone(&desk);
        std::thread::spawn(move || own.stay(&listener));
        Self {
            folder,
            writer: writer.expect("a control page"),
            ledger,
            desk,
        }
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.path().to_path_buf()
    }

    /// How many have come.
    pub(crate) fn n_visits(&self) -> u32 {
        self.desk.n_hellos.load(Ordering::Acquire)
    }

    /// Waits until so many have come and hung up, without another word.
    pub(crate) fn expect_visits(&self, n: u32) {
        let start = Instant::now();
        loop {
            let found = (self.n_visits(), self.desk.n_ended.load(Ordering::Acquire));
            if found == (n, n) {
                break;
            }
            assert!(
                start.elapsed() < DEADLINE,
                "{found:?} came and went, not {n}"
            );
            std::thread::yield_now();
        }
        assert_eq!(self.desk.n_more.load(Ordering::Acquire), 0);
    }

    /// A process has a slot, and so many MiB of the tenant's n-th card.
    pub(crate) fn holds(&self, slot: u32, told: u32, place: u32, mib: u64) {
        let slot = SlotIndex::of_process(slot).expect("a slot");
        self.ledger.slot(slot).hand_out(told, 1);
        let amount = Units::taken_by(mib << 20).expect("not too much");
        self.ledger
            .charge(slot, device(place), amount)
            .expect("room for it");
    }

    /// The process in that slot says what it calls itself.
    pub(crate) fn says(&self, slot: u32, own: u32) {
        let slot = SlotIndex::of_process(slot).expect("a slot");
        self.ledger.slot(slot).tell_own_pid(own);
    }

    pub(crate) fn set_limit(&self, place: u32, mib: u64) {
        self.writer.set_limit_bytes(device(place), mib << 20);
    }

    /// The arbiter of before is gone, as a process sees it: no heartbeat for long.
    pub(crate) fn stop_beating(&self) {
        self.writer.beat(0);
    }
}

fn device(place: u32) -> DeviceIndex {
    DeviceIndex::new(place).expect("a place")
}

impl Desk {
    /// One client at a time; each is answered, and listened to until it says more or goes.
    fn stay(&self, listener: &OwnedFd) {
        loop {
            // SAFETY: no address is wanted.
            let fd =
                unsafe { libc::accept(listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut()) };
            if fd < 0 {
                return;
            }
            // SAFETY: just made.
            let client = unsafe { OwnedFd::from_raw_fd(fd) };
            let Some(Request::Hello(_)) = receive(&client) else {
                continue;
            };
            self.n_hellos.fetch_add(1, Ordering::AcqRel);
            self.welcome(&client, self.slot_of(peer(&client) + self.shift));
            if receive(&client).is_some() {
                self.n_more.fetch_add(1, Ordering::AcqRel);
            }
            self.n_ended.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The one it has, or a free one.
    fn slot_of(&self, told: u32) -> SlotIndex {
        let slot = |index| self.page.slot(index);
        let mut own = SlotIndex::processes()
            .filter(|&index| slot(index).is_live() && slot(index).pid() == told);
        own.next().unwrap_or_else(|| {
            let mut free = SlotIndex::processes().filter(|&index| !slot(index).is_live());
            let index = free.next().expect("a free slot");
            slot(index).hand_out(told, 1);
            index
        })
    }

    fn welcome(&self, client: &OwnedFd, slot: SlotIndex) {
        let welcome = Reply::Welcome(Welcome {
            version: VERSION,
            mode: self.mode,
            slot,
            generation: 1,
            tenant: TENANT,
        });
        let bytes = welcome.encode();
        let pages = [self.control.as_raw_fd(), self.ledger.as_raw_fd()];
        const { assert!(WELCOME_DESCRIPTORS == 2) };
        let mut room = [0_u64; 8];
        let mut part = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: all pointers in the message point to live buffers of the stated sizes.
        let sent = unsafe {
            let mut message: libc::msghdr = mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            let size = size_of_val(&pages) as u32;
            message.msg_control = room.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as usize;
            let data = libc::CMSG_DATA(header).cast();
            ptr::copy_nonoverlapping(pages.as_ptr(), data, pages.len());
            libc::sendmsg(client.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
        };
        assert!(sent >= 0, "{}", io::Error::last_os_error());
    }
}

fn receive(client: &OwnedFd) -> Option<Request> {
    let mut bytes = [0_u8; MESSAGE_BYTES_MAX];
    // SAFETY: the buffer is live.
    let len = unsafe {
        libc::recv(
            client.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            0,
        )
    };
    Request::parse(&bytes[..usize::try_from(len).ok()?]).ok()
}

fn peer(client: &OwnedFd) -> u32 {
    // SAFETY: all zero is valid.
    let mut found: libc::ucred = unsafe { mem::zeroed() };
    let mut len = size_of_val(&found) as libc::socklen_t;
    // SAFETY: writes into a struct of the stated size.
    let done = unsafe {
        libc::getsockopt(
            client.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    found.pid.cast_unsigned()
}

fn page(bytes: usize) -> (OwnedFd, *mut u8) {
    let flags = libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC;
    // SAFETY: makes a file and maps it; both results are checked.
    unsafe {
        let fd = libc::memfd_create(c"page".as_ptr(), flags);
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        let file = File::from_raw_fd(fd);
        file.set_len(bytes as u64).expect("a size");
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let address = libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0);
        assert_ne!(address, libc::MAP_FAILED);
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
        (file.into(), address.cast())
    }
}

fn listen(path: &Path) -> OwnedFd {
    // SAFETY: an all-zero address is valid.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = path.as_os_str().as_encoded_bytes();
    assert!(name.len() < address.sun_path.len(), "a short folder");
    for (place, byte) in address.sun_path.iter_mut().zip(name) {
        *place = byte.cast_signed();
    }
    // SAFETY: the address is live and as long as stated.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        let socket = OwnedFd::from_raw_fd(fd);
        let len = size_of_val(&address) as libc::socklen_t;
        assert_eq!(libc::bind(fd, (&raw const address).cast(), len), 0);
        assert_eq!(libc::listen(fd, 64), 0);
        socket
    }
}
