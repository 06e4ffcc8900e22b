//! The connection to the arbiter: one datagram to it, one back, and descriptors with them.
//!
//! Programs close descriptors that are not theirs (daemons close all of them), and then the number
//! may belong to another file. So the socket remembers its file, and checks it before it reads,
//! waits or closes. To lose a connection is better than to read from another file.

use std::ffi::CString;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use sublet_abi::message::MESSAGE_BYTES_MAX;

/// No message carries more descriptors than this. The buffer has room for a few more, so that a
/// message with too many is noticed.
const DESCRIPTORS_MAX: usize = 4;

/// A descriptor that is checked before it is used.
#[derive(Debug)]
pub struct Watched {
    fd: RawFd,
    file: (u64, u64),
}

impl Watched {
    /// Takes over a descriptor.
    ///
    /// # Errors
    /// If the system does not say which file the descriptor refers to.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let file = file_of(fd.as_raw_fd())?;
        Ok(Self {
            fd: fd.into_raw_fd(),
            file,
        })
    }

    /// The descriptor, if it still refers to the same file.
    #[must_use]
    pub fn get(&self) -> Option<RawFd> {
        (file_of(self.fd).ok() == Some(self.file)).then_some(self.fd)
    }

    /// True if `fd`, a descriptor of the program, refers to the same file.
    #[must_use]
    pub fn is_of(&self, fd: RawFd) -> bool {
        file_of(fd).ok() == Some(self.file)
    }

    /// True if both refer to the same file.
    #[must_use]
    pub fn is_same(&self, other: &Watched) -> bool {
        self.file == other.file
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(fd) = self.get() {
            // SAFETY: it is ours, and nobody uses it after this.
            unsafe { libc::close(fd) };
        }
    }
}

fn file_of(fd: RawFd) -> io::Result<(u64, u64)> {
    // SAFETY: an all-zero stat is valid, and is overwritten.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    // SAFETY: any number may be asked about; the struct is ours.
    check(unsafe { libc::fstat(fd, &raw mut stat) })?;
    Ok((stat.st_dev, stat.st_ino))
}

/// A datagram, and the descriptors that came with it.
#[derive(Debug)]
pub struct Received {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The descriptors, with close-on-exec set.
    pub descriptors: Vec<OwnedFd>,
}

/// The connection.
#[derive(Debug)]
pub struct Socket {
    fd: Watched,
}

impl Socket {
    /// Connects. Each later step takes no longer than `patience` either.
    ///
    /// # Errors
    /// As the system says.
    pub fn connect(path: &Path, patience: Duration) -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = check(unsafe {
            libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0)
        })?;
        // SAFETY: just made, and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            set_patience(&fd, option, patience)?;
        }
        // A name must fit into 108 bytes. A longer one is reached through a descriptor of its
        // folder.
        let folder;
        let by_folder;
        let name = path.as_os_str().as_bytes();
        let name = if name.len() < NAME_BYTES_MAX {
            name
        } else {
            folder = std::fs::File::open(path.parent().unwrap_or(Path::new("/")))?;
            let file = path.file_name().unwrap_or_default();
            by_folder = Path::new("/proc/self/fd")
                .join(folder.as_raw_fd().to_string())
                .join(file);
            by_folder.as_os_str().as_bytes()
        };
        connect_to_name(&fd, name)?;
        Ok(Self {
            fd: Watched::new(fd)?,
        })
    }

    /// Sends one datagram, with at most one descriptor.
    ///
    /// # Errors
    /// As the system says.
    pub fn send(&self, bytes: &[u8], descriptor: Option<RawFd>) -> io::Result<()> {
        let fd = self.fd()?;
        let mut part = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let mut control = Control([0; 64]);
        // SAFETY: an all-zero msghdr is valid: nothing to send.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if let Some(descriptor) = descriptor {
            message.msg_control = control.0.as_mut_ptr().cast();
            let size = size_of::<RawFd>() as u32;
            // SAFETY: computes a size.
            message.msg_controllen = unsafe { libc::CMSG_SPACE(size) } as usize;
            // SAFETY: the buffer has room for a header and one descriptor, and is aligned.
            unsafe {
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_RIGHTS;
                (*header).cmsg_len = libc::CMSG_LEN(size) as usize;
                libc::CMSG_DATA(header)
                    .cast::<RawFd>()
                    .write_unaligned(descriptor);
            }
        }
        // SAFETY: all pointers in the message point to live buffers of the stated sizes.
        let sent = unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Sends one datagram if there is room for it.
    ///
    /// # Errors
    /// As the system says.
    pub fn send_at_once(&self, bytes: &[u8]) -> io::Result<()> {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the buffer is live and as long as stated.
        let sent = unsafe { libc::send(self.fd()?, bytes.as_ptr().cast(), bytes.len(), flags) };
        match sent {
            ..0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Waits for one datagram. Empty bytes mean that the other side has closed.
    ///
    /// # Errors
    /// As the system says; also if the datagram was longer than any message.
    pub fn receive(&self) -> io::Result<Received> {
        let fd = self.fd()?;
        let mut bytes = vec![0_u8; MESSAGE_BYTES_MAX];
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let mut control = Control([0; 64]);
        // SAFETY: an all-zero msghdr is valid.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control.0);
        let len = loop {
            // SAFETY: as in `send`.
            let len = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_CMSG_CLOEXEC) };
            if len >= 0 {
                break len.unsigned_abs();
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        };
        let descriptors = descriptors_of(&message);
        if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return Err(io::Error::other("a datagram longer than any message"));
        }
        bytes.truncate(len);
        Ok(Received { bytes, descriptors })
    }

    /// Waits until the other side closes, and drops all datagrams until then. Also returns if the
    /// program closed the descriptor.
    pub fn wait_for_end(&self) {
        while let Some(fd) = self.fd.get() {
            let mut poll = libc::pollfd {
                fd,
                events: libc::POLLIN | libc::POLLRDHUP,
                revents: 0,
            };
            // The poll does not wake if the program closes the descriptor, so look again now and
            // then.
            // SAFETY: one struct, as stated.
            let ready = unsafe { libc::poll(&raw mut poll, 1, LOOK_AGAIN_MS) };
            if ready < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return;
            }
            if ready <= 0 {
                continue;
            }
            if poll.revents & libc::POLLIN == 0 {
                return;
            }
            match self.receive() {
                Ok(received) if received.bytes.is_empty() => return,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    fn fd(&self) -> io::Result<RawFd> {
        self.fd
            .get()
            .ok_or_else(|| io::Error::other("the program closed the connection"))
    }
}

const LOOK_AGAIN_MS: libc::c_int = 5000;

/// The size of `sun_path`, with the terminator.
const NAME_BYTES_MAX: usize = 108;

/// Room for the descriptors, aligned as their headers require.
#[repr(C, align(8))]
struct Control([u8; 64]);

const _: () = assert!(16 + DESCRIPTORS_MAX * 4 <= 64);

fn connect_to_name(fd: &OwnedFd, name: &[u8]) -> io::Result<()> {
    let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let name = name.as_bytes_with_nul();
    // SAFETY: an all-zero address is valid.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    if name.len() > address.sun_path.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // SAFETY: both are live, apart, and the name fits.
    unsafe {
        ptr::copy_nonoverlapping(
            name.as_ptr().cast(),
            address.sun_path.as_mut_ptr(),
            name.len(),
        );
    }
    let len = mem::offset_of!(libc::sockaddr_un, sun_path) + name.len();
    // SAFETY: the address is live and as long as stated.
    check(unsafe {
        libc::connect(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            len as libc::socklen_t,
        )
    })?;
    Ok(())
}

fn set_patience(fd: &OwnedFd, option: libc::c_int, patience: Duration) -> io::Result<()> {
    let time = libc::timeval {
        tv_sec: patience.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_usec: libc::suseconds_t::from(patience.subsec_micros() as i32),
    };
    // SAFETY: the value is live and as long as stated.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw const time).cast(),
            size_of_val(&time) as libc::socklen_t,
        )
    })?;
    Ok(())
}

fn descriptors_of(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the kernel wrote the headers, and the macros stay within `msg_controllen`.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                let first = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    // The kernel made these descriptors for us; nobody else knows them.
                    let fd = first.add(index).read_unaligned();
                    descriptors.push(OwnedFd::from_raw_fd(fd));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    descriptors
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_descriptor_that_became_somebody_elses_is_not_used() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |name: &str| File::create(folder.path().join(name)).expect("a file");
        let watched = Watched::new(open("ours").into()).expect("a file");
        let fd = watched.get().expect("still ours");
        let theirs = open("theirs");
        // SAFETY: a program that reuses a number does the same: it replaces the file behind ours.
        assert_eq!(unsafe { libc::dup2(theirs.as_raw_fd(), fd) }, fd);
        assert_eq!(watched.get(), None);
        drop(watched);
        assert!(file_of(fd).is_ok(), "the other file was closed");
        // SAFETY: the test's own copy.
        unsafe { libc::close(fd) };
    }
}
