//! The two kinds of socket: how they are put into a folder, and how a message with
//! descriptors is sent and received. Nothing here blocks.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use sublet_abi::message::MESSAGE_BYTES_MAX;

use crate::error::{ArbiterError, at};

/// How many descriptors of one message are taken; the kernel closes the others.
const DESCRIPTORS_MAX: usize = 4;

/// How many connections may wait to be accepted: three hundred programs that start at once
/// must not be turned away (the kernel cuts it to `net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// Listens at `path`, in place of whatever was left there.
pub(crate) fn listen(path: &Path, kind: SocketType, mode: u32) -> Result<OwnedFd, ArbiterError> {
    let place = path.display();
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(at("removing the old socket", place)(error));
    }
    let address = SocketAddrUnix::new(path).map_err(at(
        "a socket's path has at most 107 characters; naming",
        place,
    ))?;
    let place = path.display();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
        .map_err(at("making a socket for", place))?;
    let place = path.display();
    rustix::net::bind(&socket, &address).map_err(at("binding", place))?;
    let place = path.display();
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(at("setting the mode of", place))?;
    let place = path.display();
    rustix::net::listen(&socket, BACKLOG).map_err(at("listening on", place))?;
    Ok(socket)
}

/// The next connection; `None` if there is none.
pub(crate) fn accept(listener: &OwnedFd) -> rustix::io::Result<Option<OwnedFd>> {
    use rustix::io::Errno;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(connection) => Ok(Some(connection)),
        // Gone again, or none at all.
        Err(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        // The kernel looks for a descriptor before it looks for a connection.
        Err(_) if !has(listener, PollFlags::IN) => Ok(None),
        Err(error) => Err(error),
    }
}

/// One descriptor in reserve. When there are no others, it makes room to accept a connection
/// and close it: one that nobody accepts would wake the arbiter again and again.
#[derive(Debug)]
pub(crate) struct Spare(Option<OwnedFd>);

impl Spare {
    pub(crate) fn new() -> Spare {
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        Spare(rustix::event::eventfd(0, flags).ok())
    }

    /// Turns the next connection away, with some last words for it.
    pub(crate) fn shed(&mut self, listener: &OwnedFd, farewell: impl FnOnce(&OwnedFd)) {
        self.0 = None;
        if let Ok(Some(connection)) = accept(listener) {
            farewell(&connection);
        }
        *self = Spare::new();
    }
}

/// What one attempt to receive gave.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message, cut off if it was longer than any of ours.
    Message(Vec<u8>, Vec<OwnedFd>),
    /// Nothing yet.
    Nothing,
    /// The other side is gone.
    Closed,
}

/// Receives one message.
pub(crate) fn receive(socket: &impl AsFd) -> Received {
    // One byte more than any message has, so that a longer one is seen to be longer.
    let mut bytes = [0; MESSAGE_BYTES_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut beside,
        RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC,
    );
    let mut descriptors = Vec::new();
    for message in beside.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    use rustix::io::Errno;
    match received {
        // An empty datagram looks like the end, and nobody of ours sends one.
        Ok(message) if message.bytes == 0 => Received::Closed,
        Ok(message) => {
            let len = message.bytes.min(bytes.len());
            Received::Message(bytes[..len].to_vec(), descriptors)
        }
        Err(Errno::WOULDBLOCK | Errno::INTR) => Received::Nothing,
        Err(_) => Received::Closed,
    }
}

/// Sends one message, with descriptors beside it, or fails at once.
pub(crate) fn send(
    socket: &impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut beside, flags)?;
    Ok(())
}

/// True if the other side has closed the connection.
pub(crate) fn is_closed(socket: &impl AsFd) -> bool {
    has(socket, PollFlags::RDHUP)
}

/// True if there is such news of it now.
fn has(socket: &impl AsFd, news: PollFlags) -> bool {
    let mut one = [PollFd::new(socket, news)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let polled = poll(&mut one, Some(&now));
    matches!(polled, Ok(n) if n > 0)
}
