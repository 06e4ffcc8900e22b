//! Descriptors of every sort that an attacker hands over.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastrand::Rng;
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sublet_abi::LedgerPage;

use super::attacker::unlinger;
use super::door::{self, Door};
use super::plan::Thing;

/// Time that a closed socket waits for its other side.
const LINGER: Duration = Duration::from_secs(60);

/// Number of other sides that stay open, and read nothing. Each that goes lets a `close` end: with
/// 64 they went after half a second, and an arbiter that closed all by itself passed.
const PEERS: usize = 400;

/// Makes descriptors.
pub(super) struct Maker {
    base: PathBuf,
    fuse: Option<OwnedFd>,
    listener: TcpListener,
    peers: VecDeque<TcpStream>,
}

impl Maker {
    /// `fuse`: the folder of files that never close, if there is one.
    pub(super) fn new(base: &Path, fuse: Option<OwnedFd>) -> Maker {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        sockopt::set_socket_recv_buffer_size(&listener, 4096).unwrap();
        Maker {
            base: base.to_owned(),
            fuse,
            listener,
            peers: VecDeque::new(),
        }
    }

    /// Makes such a descriptor; none if this machine has none.
    pub(super) fn make(&mut self, thing: Thing) -> Option<OwnedFd> {
        match thing {
            Thing::Lingering => self.lingering(),
            Thing::Fuse => {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                rustix::fs::openat(self.fuse.as_ref()?, "file", flags, Mode::empty()).ok()
            }
            Thing::Pipe => {
                let (reading, mut writing) = std::io::pipe().ok()?;
                rustix::io::ioctl_fionbio(&writing, true).ok()?;
                let _full = writing.write(&[0; 1 << 16]);
                Some(reading.into())
            }
            Thing::Eventfd => {
                let flags = rustix::event::EventfdFlags::CLOEXEC;
                rustix::event::eventfd(0, flags).ok()
            }
            Thing::Folder => open("/tmp", OFlags::DIRECTORY),
            Thing::Null => open("/dev/null", OFlags::RDWR),
            Thing::Memory {
                size,
                is_sealed,
                seed,
            } => memory(size, is_sealed, seed),
            Thing::Own => Door::Container.connect(&self.base),
            Thing::Nested => {
                let flags = SocketFlags::CLOEXEC;
                let (one, other) =
                    rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
                        .ok()?;
                let inner = self.lingering()?;
                // One user has only so many descriptors on the way.
                if !door::send(&one, b"x", &[inner.as_fd()]) {
                    unlinger(&[inner]);
                    return None;
                }
                Some(other)
            }
        }
    }

    /// A TCP socket with more in its queue than the other side takes.
    fn lingering(&mut self) -> Option<OwnedFd> {
        let SocketAddr::V4(address) = self.listener.local_addr().ok()? else {
            return None;
        };
        let mut socket = TcpStream::connect(address).ok()?;
        let (peer, _) = self.listener.accept().ok()?;
        sockopt::set_socket_send_buffer_size(&socket, 4096).ok()?;
        sockopt::set_socket_linger(&socket, Some(LINGER)).ok()?;
        socket.set_nonblocking(true).ok()?;
        while matches!(socket.write(&[0; 1 << 16]), Ok(n) if n > 0) {}
        socket.set_nonblocking(false).ok()?;
        self.peers.push_back(peer);
        if self.peers.len() > PEERS {
            self.peers.pop_front();
        }
        Some(socket.into())
    }
}

fn open(path: &str, flags: OFlags) -> Option<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Memory that says it is a ledger page, or does not, and is full of nonsense.
fn memory(size: usize, is_sealed: bool, seed: u64) -> Option<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("sublet-ledger", flags).ok()?;
    rustix::fs::ftruncate(&memory, size as u64).ok()?;
    let mut random = Rng::with_seed(seed);
    if size == LedgerPage::BYTES {
        forge(&memory, size, &mut random);
    }
    for _ in 0..random.u8(..32) {
        let word = random.u64(..).to_ne_bytes();
        let at = random.usize(..size.max(1)) as u64;
        let within = size as u64 >= at + 8;
        if within {
            let _ = rustix::io::pwrite(&memory, &word, at);
        }
    }
    if is_sealed {
        let fixed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&memory, fixed).ok()?;
    }
    Some(memory)
}

/// Makes it begin as a ledger does.
fn forge(memory: &OwnedFd, size: usize, random: &mut Rng) {
    use rustix::mm::{MapFlags, ProtFlags};
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping where the kernel likes, of a file that has that size.
    let page = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, prot, flags, memory, 0) };
    if let Ok(page) = page {
        // SAFETY: zeroed, as new memory is; mapped shared and writable until it is unmapped below.
        let _ledger = unsafe { LedgerPage::create(page.cast(), size, random.u64(..4)) };
        // SAFETY: mapped above; nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(page, size) };
    }
}
