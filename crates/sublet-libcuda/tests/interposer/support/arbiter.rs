//! An arbiter that hands out slots, as far as a process can tell.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use sublet_abi::control::{DeviceTerms, Terms};
use sublet_abi::message::{MESSAGE_BYTES_MAX, Refused, RefusedCode, Text};
use sublet_abi::{
    ControlPage, ControlWriter, DeviceIndex, Hello, LedgerPage, Mode, Reply, Request, SlotIndex,
    VERSION, Welcome,
};
use tempfile::TempDir;

/// What a tenant is given.
pub(crate) struct Grant {
    pub(crate) mode: Mode,
    /// Bytes for each card that it has: the card's number and its limit.
    pub(crate) limits: Vec<(u8, u64)>,
    pub(crate) context_bytes: u64,
    /// Refuses everybody, with this.
    pub(crate) refuse: Option<(RefusedCode, &'static str)>,
}

impl Grant {
    /// Cards with limits, contexts that cost nothing, compat.
    pub(crate) fn of(limits: &[(u8, u64)]) -> Self {
        Self {
            mode: Mode::Compat,
            limits: limits.to_vec(),
            context_bytes: 0,
            refuse: None,
        }
    }
}

/// It runs until it is dropped; its pages stay.
pub(crate) struct Arbiter {
    folder: Arc<TempDir>,
    control: &'static ControlPage,
    writer: ControlWriter<'static>,
    ledger: &'static LedgerPage,
    ledger_file: Arc<OwnedFd>,
    hellos: Arc<Mutex<Vec<Hello>>>,
    epoch: u64,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

impl Arbiter {
    pub(crate) fn start(grant: &Grant) -> Self {
        let folder = Arc::new(tempfile::tempdir().expect("a folder"));
        let (file, address) = page(LedgerPage::BYTES);
        // SAFETY: fresh memory that stays mapped.
        let ledger = unsafe { LedgerPage::create(address, LedgerPage::BYTES, 7) };
        seal(&file, SEALS);
        let file = Arc::new(file);
        Self::serve(grant, folder, 1, ledger.expect("a ledger"), file)
    }

    /// Ends it, and starts its successor on the same ledger, with what `grant` says now.
    pub(crate) fn restart(mut self, grant: &Grant) -> Self {
        let epoch = self.epoch + 1;
        self.stop();
        let (folder, ledger) = (Arc::clone(&self.folder), self.ledger);
        Self::serve(grant, folder, epoch, ledger, Arc::clone(&self.ledger_file))
    }

    fn serve(
        grant: &Grant,
        folder: Arc<TempDir>,
        epoch: u64,
        ledger: &'static LedgerPage,
        ledger_file: Arc<OwnedFd>,
    ) -> Self {
        let devices: Vec<DeviceTerms> = grant
            .limits
            .iter()
            .map(|&(card, limit_bytes)| DeviceTerms {
                uuid: [0xa0 + card; 16],
                capacity_bytes: 64 << 30,
                limit_bytes,
                context_bytes: grant.context_bytes,
            })
            .collect();
        let terms = Terms {
            tenant: 7,
            epoch,
            mode: grant.mode,
            devices: &devices,
            now_ms: sublet_hook::link::now_ms(),
        };
        let (control_file, address) = page(ControlPage::BYTES);
        // SAFETY: fresh memory that stays mapped.
        let writer = unsafe { ControlWriter::create(address, ControlPage::BYTES, &terms) };
        let writer: ControlWriter<'static> = writer.expect("a control page");
        seal(&control_file, SEALS | libc::F_SEAL_FUTURE_WRITE);
        let end = Arc::new(AtomicBool::new(false));
        let hellos = Arc::new(Mutex::new(Vec::new()));
        let listener = listen(&folder.path().join("tenant.sock")).expect("a socket");
        let desk = Desk {
            listener,
            control: control_file,
            ledger: Arc::clone(&ledger_file),
            page: ledger,
            mode: grant.mode,
            refuse: grant.refuse,
            hellos: Arc::clone(&hellos),
            end: Arc::clone(&end),
        };
        let control = writer.page();
        Self {
            folder,
            control,
            writer,
            ledger,
            ledger_file,
            hellos,
            epoch,
            end,
            thread: Some(std::thread::spawn(move || desk.stay())),
        }
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.folder.path().to_path_buf()
    }

    /// Bytes that the tenant has taken of its n-th device.
    pub(crate) fn used(&self, place: u32) -> u64 {
        self.ledger.total(device(place)).bytes()
    }

    pub(crate) fn ledger(&self) -> &'static LedgerPage {
        self.ledger
    }

    pub(crate) fn control(&self) -> &'static ControlPage {
        self.control
    }

    pub(crate) fn set_limit(&self, place: u32, bytes: u64) {
        self.writer.set_limit_bytes(device(place), bytes);
        self.ledger.settle(device(place)).expect("nobody scribbles");
    }

    pub(crate) fn beat(&self) {
        self.writer.beat(sublet_hook::link::now_ms());
    }

    /// What processes have said so far.
    pub(crate) fn hellos(&self) -> Vec<Hello> {
        self.hellos.lock().expect("the list").clone()
    }

    pub(crate) fn stop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the arbiter ends");
        }
    }
}

impl Drop for Arbiter {
    fn drop(&mut self) {
        self.stop();
    }
}

pub(crate) fn device(place: u32) -> DeviceIndex {
    DeviceIndex::new(place).expect("a place")
}

/// The thread's part.
struct Desk {
    listener: OwnedFd,
    control: OwnedFd,
    ledger: Arc<OwnedFd>,
    page: &'static LedgerPage,
    mode: Mode,
    refuse: Option<(RefusedCode, &'static str)>,
    hellos: Arc<Mutex<Vec<Hello>>>,
    end: Arc<AtomicBool>,
}

impl Desk {
    /// Answers until the end; then all connections close.
    fn stay(self) {
        let mut clients = Vec::new();
        while !self.end.load(Ordering::Acquire) {
            let mut poll = libc::pollfd {
                fd: self.listener.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one live struct.
            if unsafe { libc::poll(&raw mut poll, 1, 5) } <= 0 {
                continue;
            }
            // SAFETY: no address is wanted.
            let fd = unsafe {
                libc::accept4(
                    poll.fd,
                    ptr::null_mut(),
                    ptr::null_mut(),
                    libc::SOCK_CLOEXEC,
                )
            };
            if fd >= 0 {
                // SAFETY: just made.
                let client = unsafe { OwnedFd::from_raw_fd(fd) };
                self.answer(&client);
                clients.push(client);
            }
        }
    }

    fn answer(&self, client: &OwnedFd) {
        let mut bytes = [0_u8; MESSAGE_BYTES_MAX];
        // SAFETY: the buffer is live. Descriptors that come beside are dropped by the kernel.
        let len = unsafe {
            libc::recv(
                client.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                0,
            )
        };
        let bytes = &bytes[..usize::try_from(len).unwrap_or(0)];
        let Ok(Request::Hello(hello)) = Request::parse(bytes) else {
            return;
        };
        self.hellos.lock().expect("the list").push(hello.clone());
        if let Some((code, text)) = self.refuse {
            let text = Text::new(text);
            let refused = Reply::Refused(Refused { code, text });
            return send(client, &refused.encode(), &[]);
        }
        let slot = hello.held.as_ref().map_or_else(
            || {
                let mut free =
                    SlotIndex::processes().filter(|&slot| !self.page.slot(slot).is_live());
                free.next().expect("a free slot")
            },
            |held| held.slot,
        );
        if hello.held.is_none() {
            self.page.slot(slot).hand_out(0, 1);
        }
        let welcome = Welcome {
            version: VERSION,
            mode: self.mode,
            slot,
            generation: 1,
            tenant: 7,
        };
        let pages = [self.control.as_raw_fd(), self.ledger.as_raw_fd()];
        send(client, &Reply::Welcome(welcome).encode(), &pages);
    }
}

fn page(bytes: usize) -> (OwnedFd, *mut u8) {
    // SAFETY: makes a file and maps it; both results are checked.
    unsafe {
        let fd = libc::memfd_create(
            c"page".as_ptr(),
            libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC,
        );
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        let file = File::from_raw_fd(fd);
        file.set_len(bytes as u64).expect("a size");
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let address = libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0);
        assert_ne!(address, libc::MAP_FAILED);
        (file.into(), address.cast())
    }
}

fn seal(file: &OwnedFd, seals: libc::c_int) {
    // SAFETY: a live descriptor.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

fn listen(path: &Path) -> io::Result<OwnedFd> {
    let _ = std::fs::remove_file(path);
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
        if libc::bind(fd, (&raw const address).cast(), len) < 0 || libc::listen(fd, 512) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(socket)
    }
}

fn send(client: &OwnedFd, bytes: &[u8], descriptors: &[RawFd]) {
    #[repr(C, align(8))]
    struct Room([u8; 64]);
    let mut room = Room([0; 64]);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: all pointers in the message point to live buffers of the stated sizes.
    let sent = unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !descriptors.is_empty() {
            let size = size_of_val(descriptors) as u32;
            message.msg_control = room.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size) as usize;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            ptr::copy_nonoverlapping(descriptors.as_ptr(), data, descriptors.len());
        }
        libc::sendmsg(client.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    assert!(sent >= 0, "{}", io::Error::last_os_error());
}
