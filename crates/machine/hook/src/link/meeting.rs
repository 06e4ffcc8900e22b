//! Meeting the arbiter: hello, and the answer.
//!
//! Both of our libraries meet the arbiter like this. Afterwards one keeps the connection and has
//! an account; the other only reads. Each failure has a reason that a person can read. The
//! caller decides what to do about it.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use sublet_abi::message::{RefusedCode, SlotClaim, WELCOME_DESCRIPTORS};
use sublet_abi::{ArbiterMessage, ControlPage, Hello, OLDEST, ProcessMessage, VERSION, Welcome};

use super::pages;
use super::socket::Socket;

/// The arbiter's answer to the process.
#[derive(Debug)]
pub struct Met {
    /// The connection.
    pub socket: Socket,
    /// The arbiter's answer.
    pub welcome: Welcome,
    /// The page with the tenant's limits; mapped for ever.
    pub control: &'static ControlPage,
    /// The ledger of the tenant's usage; not mapped yet.
    pub ledger: OwnedFd,
}

/// Reason why the arbiter gave no slot.
#[derive(Debug)]
pub enum Why {
    /// A system call failed: there is no such socket, nobody listens, or no answer came in time.
    System {
        /// The failed action.
        doing: &'static str,
        /// The system's error.
        cause: io::Error,
    },
    /// The arbiter refused.
    Refused {
        /// The reason as a code.
        code: RefusedCode,
        /// The reason in words.
        text: String,
    },
    /// The answer is not one that an arbiter sends.
    Nonsense(String),
}

impl fmt::Display for Why {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::System { doing, cause } => write!(out, "cannot {doing}: {cause}"),
            Why::Refused { text, .. } => write!(out, "it refused: {text}"),
            Why::Nonsense(what) => write!(out, "its answer is malformed: {what}"),
        }
    }
}

impl std::error::Error for Why {}

/// A hello that the arbiter has not answered yet.
#[derive(Debug)]
pub struct Greeting {
    socket: Socket,
}

/// Says hello and takes the answer; no step takes longer than `patience`. A process that comes back
/// to a new arbiter reports its memory, and shows its ledger.
///
/// # Errors
/// [`Why`].
pub fn meet(
    path: &Path,
    patience: Duration,
    held: Option<(SlotClaim, BorrowedFd<'_>)>,
) -> Result<Met, Why> {
    greet(path, patience, held)?.answer()
}

/// Says hello.
///
/// # Errors
/// [`Why`].
pub fn greet(
    path: &Path,
    patience: Duration,
    held: Option<(SlotClaim, BorrowedFd<'_>)>,
) -> Result<Greeting, Why> {
    let socket = system("connect", connect(path, patience))?;
    let (held, fd) = held.unzip();
    let hello = Hello {
        min_version: OLDEST,
        max_version: VERSION,
        held,
    };
    let hello = ProcessMessage::Hello(hello).encode();
    let fd = fd.map(|fd| fd.as_raw_fd());
    system("say hello", socket.send(&hello, fd))?;
    Ok(Greeting { socket })
}

impl Greeting {
    /// Takes the answer.
    ///
    /// # Errors
    /// [`Why`].
    pub fn answer(self) -> Result<Met, Why> {
        let received = system("wait for the answer", self.socket.receive())?;
        if received.bytes.is_empty() {
            return Err(Why::Nonsense("it closed the connection".into()));
        }
        let reply =
            ArbiterMessage::parse(&received.bytes).map_err(|why| Why::Nonsense(why.to_string()))?;
        let welcome = match reply {
            ArbiterMessage::Welcome(welcome) => welcome,
            ArbiterMessage::Refused(refused) => {
                return Err(Why::Refused {
                    code: refused.code,
                    text: refused.text.as_str().into(),
                });
            }
        };
        let descriptors: Result<[OwnedFd; WELCOME_DESCRIPTORS], _> =
            received.descriptors.try_into();
        let Ok([control, ledger]) = descriptors else {
            return Err(Why::Nonsense("a welcome without its two pages".into()));
        };
        let control = system("map the control page", pages::control(control.as_fd()))?;
        Ok(Met {
            socket: self.socket,
            welcome,
            control,
            ledger,
        })
    }
}

/// The socket for processes of a job that have become another user's, beside the one of its user.
const OTHERS: &str = "others.sock";

/// Connects at that socket. It may be one user's alone, and this process another's.
fn connect(path: &Path, patience: Duration) -> io::Result<Socket> {
    match Socket::connect(path, patience) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Socket::connect(&path.with_file_name(OTHERS), patience).map_err(|_| error)
        }
        first => first,
    }
}

/// Adds the failed action to a system error.
///
/// # Errors
/// [`Why::System`].
pub fn system<T>(doing: &'static str, result: io::Result<T>) -> Result<T, Why> {
    result.map_err(|cause| Why::System { doing, cause })
}
