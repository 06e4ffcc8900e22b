//! The user whose process calls on loopback, as the kernel says.
//!
//! A port of the loopback has no file mode, but both ends of a connection are sockets of this
//! network namespace, and the kernel knows the user who made each (`sock_diag`, one look by the
//! four numbers of the connection). SELinux refuses that query to containers, and lets them read
//! /proc/net/tcp, which says the same of all sockets. The file is read if the query is refused.
//!
//! The answer is believed under these conditions:
//! - The caller's socket must be established and belong to a process. A closed socket has no owner
//!   any more, and old kernels then say that it is root's.
//! - Ours must be established *afterwards*, and be ours by its inode. While it is, no other process
//!   can have the caller's end: the same four numbers would be the same connection. Without that
//!   look a caller could leave, and its port go to a process of root's that connects here too.
//! - The user is the one who made the socket. A user who hands a connection to others, or writes
//!   others' data into it, answers for it.
//! - A user without a number in our user namespace belongs to none of ours, and is refused.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};
use tokio::net::TcpStream;

/// `SOCK_DIAG_BY_FAMILY`, `NLM_F_REQUEST` and `IPPROTO_TCP` of Linux.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const TCP: u8 = 6;
/// `AF_INET` and `AF_INET6`.
const V4: u8 = 2;
const V6: u8 = 10;
/// `TCP_ESTABLISHED`.
const ESTABLISHED: u8 = 1;
/// The sizes of `nlmsghdr`, `inet_diag_req_v2` and `inet_diag_msg`.
const HEADER: usize = 16;
const QUESTION: usize = HEADER + 56;
const ANSWER: usize = HEADER + 72;

/// The users whose processes may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Callers(BTreeSet<u32>);

impl Callers {
    /// Root, who can do everything in any case, the user of this process, and `more`.
    #[must_use]
    pub fn root_and_own(more: &[u32]) -> Callers {
        let own = rustix::process::geteuid().as_raw();
        Callers([0, own].into_iter().chain(more.iter().copied()).collect())
    }

    /// Checks whether the kernel can be asked here.
    ///
    /// # Errors
    /// It cannot: every caller would be refused.
    pub async fn check_kernel(&self) -> io::Result<()> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let _caller = TcpStream::connect(listener.local_addr()?).await?;
        let (stream, _) = listener.accept().await?;
        self.judge(&stream)
            .map_err(|why| io::Error::other(why.to_string()))
    }

    /// May the caller at the other end ask anything?
    pub(crate) fn judge(&self, stream: &TcpStream) -> Result<(), Stranger> {
        match user_of_peer(stream) {
            Ok(Some(user)) if self.0.contains(&user) => Ok(()),
            Ok(Some(user)) => Err(Stranger::User(user)),
            Ok(None) => Err(Stranger::Gone),
            Err(error) => Err(Stranger::Unknown(error)),
        }
    }
}

/// A caller that may not ask anything.
#[derive(Debug)]
pub(crate) enum Stranger {
    User(u32),
    Gone,
    Unknown(io::Error),
}

impl std::fmt::Display for Stranger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stranger::User(user) => write!(f, "user {user} may not call"),
            Stranger::Gone => f.write_str("the caller has gone"),
            Stranger::Unknown(error) => write!(f, "the kernel does not say who calls: {error}"),
        }
    }
}

/// A socket, as the kernel describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Described {
    state: u8,
    user: u32,
    inode: u32,
}

/// The user who made the other end of a connection within this network namespace.
fn user_of_peer(stream: &TcpStream) -> io::Result<Option<u32>> {
    let (ours, theirs) = match (stream.local_addr(), stream.peer_addr()) {
        (Ok(ours), Ok(theirs)) => (plain(ours), plain(theirs)),
        // It is connected no more.
        _ => return Ok(None),
    };
    let inode = rustix::fs::fstat(stream)?.st_ino;
    let (caller, own) = match Diag::open() {
        Ok(diag) => (diag.ask(theirs, ours)?, diag.ask(ours, theirs)?),
        Err(refused) => (
            listed(theirs, ours).map_err(|_| refused)?,
            listed(ours, theirs).map_err(|_| refused)?,
        ),
    };
    Ok(trusted(caller, own, inode))
}

/// The caller's user, if both ends meet the conditions.
fn trusted(caller: Option<Described>, own: Option<Described>, inode: u64) -> Option<u32> {
    let (caller, own) = (caller?, own?);
    let is_owned = caller.state == ESTABLISHED && caller.inode != 0;
    let is_ours = own.state == ESTABLISHED && u64::from(own.inode) == inode;
    (is_owned && is_ours).then_some(caller.user)
}

/// IPv4 in IPv6 is IPv4.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A way to ask the kernel about single sockets.
struct Diag(rustix::fd::OwnedFd);

impl Diag {
    fn open() -> rustix::io::Result<Diag> {
        let kind = (SocketType::DGRAM, SocketFlags::CLOEXEC);
        let protocol = Some(netlink::SOCK_DIAG);
        socket_with(AddressFamily::NETLINK, kind.0, kind.1, protocol).map(Diag)
    }

    /// The socket with this own and this other end.
    fn ask(&self, own: SocketAddr, other: SocketAddr) -> io::Result<Option<Described>> {
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.0, &question(own, other), SendFlags::empty(), &kernel)?;
        let mut answer = [0; 512];
        // The kernel has answered before `sendto` returned.
        let (_, length) = recv(&self.0, &mut answer[..], RecvFlags::DONTWAIT)?;
        described(&answer[..length.min(512)], own, other)
    }
}

fn question(own: SocketAddr, other: SocketAddr) -> [u8; QUESTION] {
    let mut bytes = [0; QUESTION];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    let length = u32::try_from(QUESTION).unwrap_or(0);
    put(&length.to_ne_bytes());
    put(&BY_FAMILY.to_ne_bytes());
    put(&REQUEST.to_ne_bytes());
    put(&[0; 8]); // number and sender
    let family = if own.is_ipv4() { V4 } else { V6 };
    put(&[family, TCP, 0, 0]);
    put(&u32::MAX.to_ne_bytes()); // in whatever state
    put(&own.port().to_be_bytes());
    put(&other.port().to_be_bytes());
    put(&address_bytes(own.ip()));
    put(&address_bytes(other.ip()));
    put(&0_u32.to_ne_bytes()); // at whatever interface
    put(&[0xff; 8]); // no cookie
    bytes
}

fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
    }
}

/// Reads an answer about the socket of a query. A listener is none.
fn described(answer: &[u8], own: SocketAddr, other: SocketAddr) -> io::Result<Option<Described>> {
    let short = || io::Error::new(io::ErrorKind::InvalidData, "an answer that is too short");
    let word = |at: usize| -> io::Result<u32> {
        let bytes = answer.get(at..at + 4).ok_or_else(short)?;
        Ok(u32::from_ne_bytes(bytes.try_into().map_err(|_| short())?))
    };
    let half = |at: usize| -> io::Result<[u8; 2]> {
        let bytes = answer.get(at..at + 2).ok_or_else(short)?;
        bytes.try_into().map_err(|_| short())
    };
    let port = |at: usize| half(at).map(u16::from_be_bytes);
    if u16::from_ne_bytes(half(4)?) != BY_FAMILY {
        let code = word(HEADER)?.cast_signed();
        let error = io::Error::from_raw_os_error(code.saturating_neg());
        return match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            _ => Err(error),
        };
    }
    if answer.len() < ANSWER {
        return Err(short());
    }
    let is_it = port(HEADER + 4)? == own.port() && port(HEADER + 6)? == other.port();
    let found = Described {
        state: answer[HEADER + 1],
        user: word(HEADER + 64)?,
        inode: word(HEADER + 68)?,
    };
    Ok(is_it.then_some(found))
}

/// The same from the kernel's list of all sockets.
fn listed(own: SocketAddr, other: SocketAddr) -> io::Result<Option<Described>> {
    // A socket for IPv6 that speaks IPv4 stands in the list of the other.
    let lists = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    for list in lists {
        let text = match std::fs::read_to_string(list) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            read => read?,
        };
        if let Some(found) = text.lines().find_map(|line| row(line, own, other)) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// A row of that list, if it is of the socket with these ends.
fn row(line: &str, own: SocketAddr, other: SocketAddr) -> Option<Described> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, remote, state, _, _, _, user, _, inode, ..] = fields[..] else {
        return None;
    };
    let is_it = end(local)? == own && end(remote)? == other;
    is_it.then_some(Described {
        state: u8::from_str_radix(state, 16).ok()?,
        user: user.parse().ok()?,
        inode: inode.parse().ok()?,
    })
}

/// An end in that list: its address as words of the machine's order, its port as a number.
fn end(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let words: Option<Vec<[u8; 4]>> = (0..address.len() / 8)
        .map(|at| {
            let word = u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok()?;
            Some(word.to_ne_bytes())
        })
        .collect();
    let bytes = words?.concat();
    let address: IpAddr = match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok()?.into(),
        16 => <[u8; 16]>::try_from(bytes).ok()?.into(),
        _ => return None,
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(plain(SocketAddr::new(address, port)))
}

#[cfg(test)]
mod tests;
