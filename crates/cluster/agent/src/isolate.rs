//! Holds containers to their parts: the node's arbiter in a thread of this process, and the mounts
//! and variables by which a container finds it. Whether a container may have its cards is decided
//! elsewhere (`allocate`); this only carries it out, and takes it back when the pod is gone.
//!
//! `inject` and `reconcile` decide and touch nothing; `record` stays on disk, so that an agent that
//! was killed finds its containers again before it has asked any server; `found` reads the records
//! at the start; `node` does it all with the parts that `means` brings; `containers` knows which
//! thread has which container in hand; `node/seats` finds the owner of one that is not known at
//! first; `thread` runs the arbiter, and `supervisor` starts it whenever it is not there;
//! `loadable` says which images cannot load the libraries.

mod containers;
pub(crate) mod figures;
pub mod found;
pub mod inject;
mod leftovers;
mod loadable;
mod means;
pub(crate) mod node;
pub mod reconcile;
pub mod record;
pub(crate) mod supervisor;
pub(crate) mod tally;
mod thread;

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use sublet_abi::settings::SettingsError;
use sublet_abi::{MAX_DEVICES, Mode};
use sublet_arbiter::holder::{Reader, advice_on};
use sublet_arbiter::libraries::{Carried, LibraryError};
use sublet_arbiter::{ArbiterError, HandleError, TimeSharing};
use sublet_fakegpu::MachineError;
use sublet_model::PodKey;

/// Shall containers be held to their parts?
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IsolationWord {
    /// If this node can do it; parts of GPUs wait while something is in the way
    Auto,
    /// Yes; the agent does not start if this node can never do it
    On,
    /// No
    Off,
}

/// Treatment of a container's processes that cannot reach the arbiter, or ask the driver for a
/// function that the interposer does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StrictnessWord {
    /// Refuse them
    Strict,
    /// Let them run without a limit, and report them
    Compat,
}

impl StrictnessWord {
    fn mode(self) -> Mode {
        match self {
            StrictnessWord::Strict => Mode::Strict,
            StrictnessWord::Compat => Mode::Compat,
        }
    }
}

/// Settings by which containers are held to their parts.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// The program that measures the cards, in a process of its own; `None`: they are not measured.
    pub(crate) program: Option<PathBuf>,
    /// Treatment of their programs while there is no arbiter.
    pub(crate) mode: StrictnessWord,
    /// Folder of the libraries for containers; if it is not set, in or beside this program.
    pub(crate) library_dir: Option<PathBuf>,
    /// Libraries inside this program.
    pub(crate) carried: Option<&'static Carried>,
    /// The host's folder for what containers mount.
    pub(crate) state_dir: PathBuf,
    /// The host's folder for the arbiter's own sockets.
    pub(crate) run_folder: PathBuf,
    /// May people submit jobs of this machine, unknown to the cluster?
    pub(crate) local_jobs: bool,
    /// Rule by which containers on one card share its time.
    pub(crate) time: TimeSharing,
}

/// Reason why containers cannot be held to their parts on this node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IsolationError {
    /// There is nothing to share.
    #[error("this node has no GPU")]
    NoCards,
    /// The libraries for containers are missing.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// The libraries for containers would not obey this agent.
    #[error(
        "{} is not of this version ({why}), and would hold no container to its part: give \
         --library-dir the libraries of this version, or leave it out",
        file.display()
    )]
    OtherVersion {
        /// The library.
        file: PathBuf,
        /// Evidence for that.
        why: String,
    },
    /// The settings that containers go by cannot be written.
    #[error("the settings of containers cannot be written: {0}")]
    Settings(#[from] SettingsError),
    /// The simulated cards are none that a program could use.
    #[error("the cards of the inventory file cannot be simulated: {0}")]
    Fake(#[from] MachineError),
    /// The same, before there was a machine.
    #[error("the cards of the inventory file cannot be simulated: {0}")]
    Spec(#[from] sublet_fakegpu::SpecError),
    /// The arbiter.
    #[error(transparent)]
    Arbiter(#[from] ArbiterError),
    /// It has ended, or does not look after the container.
    #[error("the arbiter does not look after it: {0}")]
    Untended(#[from] HandleError),
    /// It is to be started again.
    #[error("{0}; the agent tries again")]
    Pending(Arc<str>),
    /// Another thread does not get on with it.
    #[error("the agent is still busy with this container")]
    InHand,
    /// More cards than a job's pages have room for.
    #[error(
        "a container can have parts of at most {MAX_DEVICES} GPUs, and pod {pod} asks for {cards}"
    )]
    TooMany {
        /// The container's pod.
        pod: PodKey,
        /// Number of GPUs it asks for.
        cards: usize,
    },
    /// A folder of ours.
    #[error("{doing} {} failed", place.display())]
    Io {
        /// The operation that was tried.
        doing: &'static str,
        /// The file or folder.
        place: PathBuf,
        /// Error of the system.
        #[source]
        cause: io::Error,
    },
}

impl IsolationError {
    /// Makes the error for `map_err` from the operation and its file or folder.
    pub(crate) fn io(
        doing: &'static str,
        place: &Path,
    ) -> impl FnOnce(io::Error) -> IsolationError + use<> {
        let place = place.to_owned();
        move |cause| IsolationError::Io {
            doing,
            place,
            cause,
        }
    }

    /// The prospects of another start. Doing without is right only where there are none: an error of
    /// which that is not certain is [`FailureKind::Transient`].
    pub(crate) fn kind(&self) -> FailureKind {
        use ArbiterError::Setting;
        let is_permanent = match self {
            IsolationError::Arbiter(Setting(_)) | IsolationError::OtherVersion { .. } => {
                return FailureKind::Setting;
            }
            IsolationError::Arbiter(error) => error.is_permanent(),
            IsolationError::Library(LibraryError::Missing { .. })
            | IsolationError::Fake(MachineError::Spec(_))
            | IsolationError::Spec(_) => true,
            IsolationError::Io { cause, .. } => cause.kind() == io::ErrorKind::Unsupported,
            IsolationError::NoCards
            | IsolationError::Library(_)
            | IsolationError::Fake(_)
            | IsolationError::Settings(_)
            | IsolationError::Untended(_)
            | IsolationError::Pending(_)
            | IsolationError::InHand
            | IsolationError::TooMany { .. } => false,
        };
        match is_permanent {
            true => FailureKind::Permanent,
            false => FailureKind::Transient,
        }
    }

    /// The error and its cause, where only a line can be said. If another process's arbiter is in the
    /// way, also the command on the node that ends it.
    pub(crate) fn with_cause(&self) -> String {
        match (self, std::error::Error::source(self)) {
            (IsolationError::Arbiter(ArbiterError::Held { pid, uid, .. }), _)
                if *pid != std::process::id() =>
            {
                format!("{self}; {}", advice_on(*pid, *uid, Reader::Elsewhere))
            }
            (_, Some(cause)) => format!("{self}: {cause}"),
            (_, None) => self.to_string(),
        }
    }
}

/// The prospects of another start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// It may succeed: a disk has room again, a driver answers, another arbiter ends.
    Transient,
    /// It cannot: this machine lacks the libraries, or a function of the kernel or the driver.
    Permanent,
    /// It can once the operator has set a flag right.
    Setting,
}

/// Makes a folder that is ours alone.
fn make_private(folder: &Path) -> Result<(), IsolationError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .and_then(|()| fs::set_permissions(folder, fs::Permissions::from_mode(0o700)))
        .map_err(IsolationError::io("making", folder))
}

/// Opens a file or folder to everybody.
fn open_to_all(path: &Path, mode: u32) -> Result<(), IsolationError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(IsolationError::io("opening to containers", path))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// The reason is in the agent's log and on the node's object.
    #[test]
    fn an_agent_that_is_refused_names_the_command_that_ends_the_other_arbiter() {
        // By its command line an arbiter that somebody started by hand; it ends with its input.
        let mut other = Command::new("sh");
        other.args(["-c", "read word", "sublet", "agent", "--standalone"]);
        let mut other = other.stdin(Stdio::piped()).spawn().unwrap();
        let pid = other.id();
        // It has its command line a moment after it has begun.
        let line = || fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        while !line().ends_with(b"--standalone\0") {
            std::thread::yield_now();
        }
        let refused_by = |pid| {
            let error = IsolationError::Arbiter(ArbiterError::Held {
                pid,
                uid: Some(0),
                folder: "/run/sublet/gpu.lock".into(),
            });
            error.with_cause()
        };
        let why = refused_by(pid);
        let words = "an arbiter looks after these GPUs already: ";
        assert!(why.starts_with(words), "{why}");
        let command = format!("; it is `sublet agent --standalone`; `sudo kill {pid}` ends it");
        assert!(why.ends_with(&command), "{why}");
        // Its own last arbiter is about to end.
        let own = refused_by(std::process::id());
        assert!(!own.contains("kill"), "{own}");
        drop(other.stdin.take());
        other.wait().unwrap();
    }
}
