//! The arbiter's doors, from outside: connects, and sends and takes messages with descriptors.
//! Nothing waits here, and nothing fails: an attacker ignores errors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::arbiter::{host_name, socket_of};

/// As many descriptors as the kernel takes beside a message.
pub(super) const DESCRIPTORS_MAX: usize = 253;

/// A socket to connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// `admin.sock`.
    Admin,
    /// `tenant.sock`, which all users share.
    Tenant,
    /// The same of the attackers' own user, which is there while they have a job.
    Own,
    /// A container's socket.
    Container,
    /// The name on the host, which has no file.
    Name,
}

impl Door {
    pub(super) const ALL: [Door; 5] = [
        Door::Admin,
        Door::Tenant,
        Door::Own,
        Door::Container,
        Door::Name,
    ];

    fn socket(self, base: &Path) -> PathBuf {
        match self {
            Door::Admin => base.join("gpu/admin.sock"),
            Door::Tenant => base.join("gpu/tenant.sock"),
            Door::Own => {
                let user = rustix::process::geteuid().as_raw();
                base.join(format!("gpu/users/{user}/tenant.sock"))
            }
            Door::Container | Door::Name => socket_of(base, "hostile"),
        }
    }

    /// A connection that never waits; none if the arbiter's backlog is full.
    pub(super) fn connect(self, base: &Path) -> Option<OwnedFd> {
        let (kind, address) = match self {
            Door::Admin => (SocketType::STREAM, SocketAddrUnix::new(self.socket(base))),
            Door::Tenant | Door::Own | Door::Container => (
                SocketType::SEQPACKET,
                SocketAddrUnix::new(self.socket(base)),
            ),
            Door::Name => {
                let name = host_name(base);
                let address = SocketAddrUnix::new_abstract_name(name.as_bytes());
                (SocketType::SEQPACKET, address)
            }
        };
        connect(kind, &address.ok()?, SocketFlags::NONBLOCK)
    }
}

/// A connection to that address.
pub(crate) fn connect(
    kind: SocketType,
    address: &SocketAddrUnix,
    flags: SocketFlags,
) -> Option<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).ok()?;
    rustix::net::connect(&socket, address).ok()?;
    Some(socket)
}

/// Sends some bytes and descriptors, if the other side takes them now.
pub(super) fn send(socket: &OwnedFd, bytes: &[u8], beside: &[BorrowedFd<'_>]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !beside.is_empty() {
        assert!(rights.push(SendAncillaryMessage::ScmRights(beside)));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut rights, flags).is_ok()
}

/// Takes the available bytes, with their descriptors.
pub(super) fn receive(socket: &OwnedFd, flags: RecvFlags) -> (Vec<u8>, Vec<OwnedFd>) {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut beside,
        flags,
    );
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    let len = received.map_or(0, |message| message.bytes);
    (bytes[..len].to_vec(), descriptors)
}
