//! The client end of `admin.sock`, for `sublet run`, `ps`, `top` and `limit`. It blocks, uses
//! one connection and no thread, and never writes to a terminal.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{LINE_MAX, Reply, Request};

/// Limit of one write. A healthy arbiter reads at once; one that does not is stopped, and a
/// command that hangs with it would help nobody.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Ways in which talking to the arbiter can fail.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No arbiter listens there.
    #[error("no arbiter listens on {socket}")]
    Absent {
        /// The socket.
        socket: PathBuf,
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
    /// The kernel refused something.
    #[error("{what} {socket} failed")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The socket.
        socket: PathBuf,
        /// The kernel's error.
        #[source]
        cause: io::Error,
    },
    /// No answer in time.
    #[error("the arbiter on {socket} did not answer in time")]
    Timeout {
        /// The socket.
        socket: PathBuf,
    },
    /// The arbiter closed the connection.
    #[error("the arbiter on {socket} closed the connection")]
    Closed {
        /// The socket.
        socket: PathBuf,
    },
    /// It said something that is not a reply.
    #[error("the arbiter on {socket} said something that is not a reply: {line:?}")]
    Garbage {
        /// The socket.
        socket: PathBuf,
        /// The beginning of the arbiter's line.
        line: String,
        /// The fault of the line.
        #[source]
        cause: Option<serde_json::Error>,
    },
}

impl ClientError {
    /// Returns true if no arbiter listens; one can be started.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, ClientError::Absent { .. })
    }

    /// True if there was an arbiter, and it ended before it answered.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        match self {
            ClientError::Closed { .. } => true,
            ClientError::Io { cause, .. } => matches!(
                cause.kind(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
            ),
            _ => false,
        }
    }
}

/// A connection to an arbiter.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    socket: PathBuf,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects to `admin.sock`.
    ///
    /// # Errors
    /// [`ClientError::Absent`] if no arbiter listens.
    pub fn connect(socket: &Path) -> Result<Client, ClientError> {
        let socket = socket.to_owned();
        let stream = UnixStream::connect(&socket).map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ClientError::Absent {
                socket: socket.clone(),
                cause,
            },
            _ => ClientError::Io {
                what: "connecting to",
                socket: socket.clone(),
                cause,
            },
        })?;
        let client = Client {
            stream,
            socket,
            buffer: Vec::new(),
        };
        client
            .stream
            .set_write_timeout(Some(WRITE_TIMEOUT))
            .map_err(|cause| client.failed("setting a time limit on", cause))?;
        Ok(client)
    }

    /// Says something.
    ///
    /// # Errors
    /// The arbiter is gone or does not read.
    pub fn send(&mut self, request: &Request) -> Result<(), ClientError> {
        let mut line = serde_json::to_vec(request).map_err(|cause| ClientError::Garbage {
            socket: self.socket.clone(),
            line: format!("{request:?}"),
            cause: Some(cause),
        })?;
        line.push(b'\n');
        self.stream
            .write_all(&line)
            .map_err(|cause| match cause.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => self.closed(),
                _ => self.failed("writing to", cause),
            })
    }

    /// The next reply; waits for it as long as it takes, or for `timeout`.
    ///
    /// # Errors
    /// [`ClientError::Timeout`], [`ClientError::Closed`], or nonsense.
    pub fn receive(&mut self, timeout: Option<Duration>) -> Result<Reply, ClientError> {
        // The standard library takes a timeout of zero for an error.
        let timeout = timeout.map(|limit| limit.max(Duration::from_millis(1)));
        self.stream
            .set_read_timeout(timeout)
            .map_err(|cause| self.failed("setting a time limit on", cause))?;
        loop {
            if let Some(reply) = self.take_line()? {
                return Ok(reply);
            }
            self.fill()?;
        }
    }

    /// A reply that has arrived, or `None` if none has. For a caller that polls the
    /// descriptor ([`AsFd`]) along with others.
    ///
    /// # Errors
    /// [`ClientError::Closed`], or nonsense.
    pub fn try_receive(&mut self) -> Result<Option<Reply>, ClientError> {
        if let Some(reply) = self.take_line()? {
            return Ok(Some(reply));
        }
        self.stream
            .set_nonblocking(true)
            .map_err(|cause| self.failed("setting up", cause))?;
        let filled = self.fill();
        self.stream
            .set_nonblocking(false)
            .map_err(|cause| self.failed("setting up", cause))?;
        match filled {
            Ok(()) => self.take_line(),
            Err(ClientError::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a request and takes one reply to it.
    ///
    /// # Errors
    /// As [`Client::send`] and [`Client::receive`].
    pub fn call(&mut self, request: &Request, timeout: Duration) -> Result<Reply, ClientError> {
        match self.send(request) {
            // Who is turned away is told so before he has said anything.
            Err(error) if error.is_closed() => self.receive(Some(timeout)).map_err(|_| error),
            Err(error) => Err(error),
            Ok(()) => self.receive(Some(timeout)),
        }
    }

    fn take_line(&mut self) -> Result<Option<Reply>, ClientError> {
        let Some(end) = self.buffer.iter().position(|&byte| byte == b'\n') else {
            return Ok(None);
        };
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        let parsed = serde_json::from_slice(&line);
        parsed.map(Some).map_err(|cause| ClientError::Garbage {
            socket: self.socket.clone(),
            line: beginning(&line),
            cause: Some(cause),
        })
    }

    fn fill(&mut self) -> Result<(), ClientError> {
        if self.buffer.len() > LINE_MAX {
            return Err(ClientError::Garbage {
                socket: self.socket.clone(),
                line: beginning(&self.buffer),
                cause: None,
            });
        }
        let mut part = [0; 16 * 1024];
        match self.stream.read(&mut part) {
            Ok(0) => Err(self.closed()),
            Ok(n) => {
                self.buffer.extend_from_slice(&part[..n]);
                Ok(())
            }
            Err(cause) => match cause.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Err(ClientError::Timeout {
                    socket: self.socket.clone(),
                }),
                io::ErrorKind::Interrupted => Ok(()),
                io::ErrorKind::ConnectionReset => Err(self.closed()),
                _ => Err(self.failed("reading from", cause)),
            },
        }
    }

    fn closed(&self) -> ClientError {
        ClientError::Closed {
            socket: self.socket.clone(),
        }
    }

    fn failed(&self, what: &'static str, cause: io::Error) -> ClientError {
        ClientError::Io {
            what,
            socket: self.socket.clone(),
            cause,
        }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn beginning(line: &[u8]) -> String {
    let end = line.len().min(80);
    String::from_utf8_lossy(&line[..end]).into_owned()
}
