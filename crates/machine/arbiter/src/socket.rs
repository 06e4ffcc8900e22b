//! The two kinds of socket: puts them into a folder, and sends and receives messages with
//! descriptors. No function here blocks, not even at the end of a connection.
//!
//! A tenant can send any file, and the thread that closes it last may have to wait for it
//! ([`Closers`]). So a message is looked at before it is taken: one descriptor of a sealed memory
//! file may come with it, and any other is left in place. Another thread closes it with the
//! connection. If the kernel can refuse descriptors (Linux 6.16), it does so at sockets that need
//! none, which then need no look and no thread.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType,
};
use sublet_abi::message::MESSAGE_BYTES_MAX;
use sublet_share::UserId;

use crate::closers::{Closers, Owner};
use crate::error::{ArbiterError, at};
use crate::pages::is_ledger;
use crate::peer::{self, Moment, Peer};

/// Maximum number of descriptors of one message looked at: one is good, and two are too many.
const DESCRIPTORS_MAX: usize = 2;

/// Maximum number of connections that may wait to be accepted: three hundred programs that
/// start at once must not be turned away (the kernel cuts it to `net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// `SO_PASSRIGHTS` (Linux 6.16, include/uapi/asm-generic/socket.h), which the `libc` crate does not
/// have.
const SO_PASSRIGHTS: i32 = 83;

/// The right to connect at a socket. Root always has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The arbiter's own user.
    Own,
    /// One user, who owns the socket's file; the file is in a folder that the user cannot
    /// change.
    User(UserId),
    /// Every user who can see the socket.
    Everybody,
}

/// A socket at which tenants connect.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Guarded,
    /// Owner of all connections; nothing if the user of each connection owns it.
    owner: Option<Owner>,
}

/// A connection to a tenant, and when it had come at the latest.
#[derive(Debug)]
pub(crate) struct Connection(Guarded, Moment);

/// A socket in which files of others may lie.
#[derive(Debug)]
struct Guarded {
    /// Nothing only while it is dropped.
    socket: Option<OwnedFd>,
    owner: Owner,
    /// The kernel lets no descriptor in, and none came before.
    holds_none: bool,
    closers: Closers,
}

impl AsFd for Guarded {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Some(socket) => socket.as_fd(),
            None => unreachable!("a socket is taken out only while it is dropped"),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take()
            && !self.holds_none
        {
            // Whoever is at the other end learns it now, whenever it is closed.
            let _ = rustix::net::shutdown(&socket, Shutdown::Both);
            self.closers.close(self.owner, [socket]);
        }
    }
}

impl Listener {
    /// Listens at `path`, in place of any earlier file there. All connections are `owner`'s, or
    /// else their user's.
    pub(crate) fn open(
        path: &Path,
        kind: SocketType,
        access: Access,
        owner: Option<Owner>,
        closers: &Closers,
    ) -> Result<Listener, ArbiterError> {
        let place = || path.display();
        if let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(at("removing the old socket", place())(error));
        }
        let address = SocketAddrUnix::new(path).map_err(at(
            "a socket's path has at most 107 characters; naming",
            place(),
        ))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
            .map_err(at("making a socket for", place()))?;
        bind(&socket, path, &address, access).map_err(at("binding", place()))?;
        // Connections have it from the listener. Those of processes may bring a ledger.
        let holds_none = kind == SocketType::STREAM && refuse_descriptors(&socket);
        rustix::net::listen(&socket, BACKLOG).map_err(at("listening on", place()))?;
        Ok(Listener {
            socket: Guarded {
                socket: Some(socket),
                owner: owner.unwrap_or(Owner::Anyone),
                holds_none,
                closers: closers.clone(),
            },
            owner,
        })
    }

    /// The next connection; `None` if there is none.
    pub(crate) fn accept(&self) -> rustix::io::Result<Option<Connection>> {
        let Guarded {
            holds_none,
            closers,
            ..
        } = &self.socket;
        accept(self, self.owner, *holds_none, closers)
    }

    /// Returns true if no client should be accepted here, because too many files wait to be closed:
    /// of the one owner of this socket, or of all owners if several come by it. If the kernel lets
    /// no descriptor in, no client's files ever wait.
    pub(crate) fn is_stuck(&self) -> bool {
        let closers = &self.socket.closers;
        match self.owner {
            Some(owner) => closers.are_stuck(owner) || closers.are_full(),
            None => !self.socket.holds_none && closers.are_crowded(),
        }
    }
}

/// Gives a socket its place in the file system, and its mode. A change of the mode by path would
/// hit any file put there meanwhile, or its target. So the change goes by a descriptor of the
/// file, which has to be a socket of ours.
fn bind(socket: &OwnedFd, path: &Path, address: &SocketAddrUnix, access: Access) -> io::Result<()> {
    let mode = Mode::from_raw_mode(match access {
        Access::Own | Access::User(_) => 0o600,
        Access::Everybody => 0o666,
    });
    // Never more open than it is to be; the mask of this process may take some of it away.
    rustix::fs::fchmod(socket, mode)?;
    rustix::net::bind(socket, address)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let there = rustix::fs::open(path, flags, Mode::empty())?;
    let about = rustix::fs::fstat(&there)?;
    let is_socket = FileType::from_raw_mode(about.st_mode) == FileType::Socket;
    if !is_socket || about.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("somebody has put something else there"));
    }
    // The kernel changes no mode by such a descriptor itself, but by this name of it.
    let by_descriptor = format!("/proc/self/fd/{}", there.as_raw_fd());
    rustix::fs::chmod(by_descriptor, mode)?;
    match access {
        Access::User(user) => {
            let user = rustix::fs::Uid::from_raw(user.0);
            let flags = AtFlags::EMPTY_PATH;
            Ok(rustix::fs::chownat(there, c"", Some(user), None, flags)?)
        }
        Access::Own | Access::Everybody => Ok(()),
    }
}

/// Has the kernel refuse messages that carry descriptors. False if it cannot.
pub(crate) fn refuse_descriptors(socket: &impl AsFd) -> bool {
    let off: i32 = 0;
    // SAFETY: the descriptor is open, and the kernel reads one `int`.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    done == 0
}

/// The next connection to a socket that is no [`Listener`]; `None` if there is none.
pub(crate) fn accept_at(
    listener: &OwnedFd,
    closers: &Closers,
) -> rustix::io::Result<Option<Connection>> {
    accept(listener, Some(Owner::Anyone), false, closers)
}

fn accept(
    listener: &impl AsFd,
    owner: Option<Owner>,
    holds_none: bool,
    closers: &Closers,
) -> rustix::io::Result<Option<Connection>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::accept_with(listener, flags) {
        Ok(socket) => {
            let guarded = Guarded {
                owner: owner.unwrap_or_else(|| Owner::User(peer::user(&socket))),
                socket: Some(socket),
                holds_none,
                closers: closers.clone(),
            };
            Ok(Some(Connection(guarded, Moment::now())))
        }
        // Gone again, or none at all.
        Err(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        // The kernel looks for a descriptor before it looks for a connection.
        Err(_) if !has(listener, PollFlags::IN) => Ok(None),
        Err(error) => Err(error),
    }
}

/// One descriptor in reserve. When there is no other, it makes room to accept a connection and
/// close it: a connection that is not accepted would wake the arbiter again and again.
#[derive(Debug, Default)]
pub(crate) struct Spare(Option<OwnedFd>);

impl Spare {
    pub(crate) fn new() -> Spare {
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        Spare(rustix::event::eventfd(0, flags).ok())
    }

    /// Turns the next connection away, with some last words for it.
    pub(crate) fn shed(&mut self, listener: &Listener, farewell: impl FnOnce(&Connection)) {
        self.0 = None;
        if let Ok(Some(connection)) = listener.accept() {
            farewell(&connection);
        }
        *self = Spare::new();
    }
}

/// Result of one attempt to receive.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message, cut off if it was longer than any of ours, and the memory that came with it.
    Message(Vec<u8>, Vec<OwnedFd>),
    /// A message with descriptors that a correct client does not send. It stays in place, and no
    /// message behind it can be received.
    Foreign,
    /// Nothing yet.
    Nothing,
    /// The other side is gone.
    Closed,
}

/// Result of one attempt to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// So many bytes.
    Bytes(usize),
    /// Descriptors, which a correct client does not send here.
    Foreign,
    /// Nothing yet.
    Nothing,
    /// The other side writes no more.
    Ended,
}

impl Connection {
    /// Owner of the connection.
    pub(crate) fn owner(&self) -> Owner {
        self.0.owner
    }

    /// The process at its other end.
    pub(crate) fn peer(&self) -> io::Result<Peer> {
        Peer::of(self, self.1)
    }

    /// True if so many of its owner's files wait to be closed that no more may be read.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.0.holds_none && self.0.closers.are_stuck(self.0.owner)
    }

    /// Lets no more descriptors in, if the kernel can do that and none came already.
    pub(crate) fn refuse_descriptors(&mut self) {
        // What came before is looked at as it always was.
        self.0.holds_none = refuse_descriptors(self) && !has(self, PollFlags::IN);
    }

    /// Receives one message.
    pub(crate) fn receive(&self) -> Received {
        // One byte more than any message has, so that a longer one is seen to be longer.
        let mut bytes = [0; MESSAGE_BYTES_MAX + 1];
        let memory = match self.0.holds_none {
            true => Vec::new(),
            false => match self.peek(&mut bytes) {
                Ok((0, _)) => return Received::Closed,
                Ok((_, descriptors)) => descriptors,
                Err(Errno::WOULDBLOCK | Errno::INTR) => return Received::Nothing,
                Err(Errno::PERM) => return Received::Foreign,
                Err(_) => return Received::Closed,
            },
        };
        // What else the message carries is memory that is held here already, or nothing.
        match rustix::net::recv(self, &mut bytes, RecvFlags::DONTWAIT) {
            // An empty datagram looks like the end, and nobody of ours sends one.
            Ok((_, 0)) => Received::Closed,
            Ok((_, len)) => Received::Message(bytes[..len.min(bytes.len())].to_vec(), memory),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Received::Nothing,
            Err(_) => Received::Closed,
        }
    }

    /// Reads the available bytes of a stream.
    pub(crate) fn read(&self, part: &mut [u8]) -> Read {
        let read = match self.0.holds_none {
            true => Ok(part.len()),
            false => self.look(part),
        };
        let read = read.and_then(|len| match len {
            0 => Ok(0),
            len => Ok(rustix::net::recv(self, &mut part[..len], RecvFlags::DONTWAIT)?.1),
        });
        match read {
            Ok(0) => Read::Ended,
            Ok(len) => Read::Bytes(len.min(part.len())),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Read::Nothing,
            Err(Errno::PERM) => Read::Foreign,
            Err(_) => Read::Ended,
        }
    }

    /// Number of bytes of a stream before the first descriptor; `PERM` for none.
    fn look(&self, part: &mut [u8]) -> rustix::io::Result<usize> {
        // A byte out of band would be dropped on the way, and what it carries with it.
        rustix::net::sockopt::set_socket_oobinline(self, true)?;
        let (len, descriptors) = self.peek(part)?;
        match descriptors.is_empty() {
            true => Ok(len),
            false => Err(Errno::PERM),
        }
    }

    /// The next message, which stays in place, and the memory that it carries; `PERM` if it carries
    /// anything else. A file that is looked at is never closed last here, but `close` of some files
    /// waits every time.
    fn peek(&self, bytes: &mut [u8]) -> rustix::io::Result<(usize, Vec<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message =
            rustix::net::recvmsg(self, &mut [IoSliceMut::new(bytes)], &mut beside, flags)?;
        let mut descriptors = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors.extend(fds);
            }
        }
        let is_whole = !message.flags.contains(ReturnFlags::CTRUNC);
        let is_ours = descriptors.len() < DESCRIPTORS_MAX && descriptors.iter().all(is_ledger);
        if is_whole && is_ours {
            return Ok((message.bytes, descriptors));
        }
        self.0.closers.close(self.0.owner, descriptors);
        Err(Errno::PERM)
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

#[cfg(test)]
mod tests;
