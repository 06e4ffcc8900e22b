//! Why the arbiter cannot do something: what, where, and what the kernel said.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use crate::gpu::GpuViewError;

/// Why the arbiter cannot start, or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ArbiterError {
    /// The kernel refused something.
    #[error("{what} {place} failed: {cause}")]
    System {
        /// What was being done.
        what: &'static str,
        /// With what.
        place: String,
        /// What the kernel said.
        cause: io::Error,
    },
    /// Somebody else looks after these cards.
    #[error("an arbiter looks after these GPUs already: {}, in {}", holder(*pid, *uid), folder.display())]
    Held {
        /// Its process; 0 where that is not known.
        pid: u32,
        /// Its user, where that is known.
        uid: Option<u32>,
        /// The folder, or the name, that it holds.
        folder: PathBuf,
    },
    /// A folder that another user could write to, or own.
    #[error("{} cannot hold the arbiter's sockets: {why}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The cards cannot be seen.
    #[error(transparent)]
    Gpu(#[from] GpuViewError),
    /// The daemon of MPS does not come to serve.
    #[error("MPS cannot be used: `{program}` does not serve: {why}")]
    Mps {
        /// Its program.
        program: String,
        /// What became of it.
        why: String,
    },
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(String),
}

impl ArbiterError {
    /// True where no later start on this machine can do better: its kernel or driver lacks what the
    /// arbiter is made of.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            ArbiterError::System { cause, .. } => cause.kind() == io::ErrorKind::Unsupported,
            ArbiterError::Gpu(error) => error.is_permanent(),
            ArbiterError::Held { .. }
            | ArbiterError::Folder { .. }
            | ArbiterError::Mps { .. }
            | ArbiterError::Setting(_) => false,
        }
    }
}

fn holder(pid: u32, uid: Option<u32>) -> String {
    let of = uid.map_or_else(String::new, |uid| format!(" of user {uid}"));
    match pid {
        0 => format!("a process{of} that cannot be seen from here"),
        pid => format!("process {pid}{of}"),
    }
}

/// For `map_err`: what was being done, and with what.
pub(crate) fn at<E: Into<io::Error>>(
    what: &'static str,
    place: impl Display,
) -> impl FnOnce(E) -> ArbiterError {
    move |cause| ArbiterError::System {
        what,
        place: place.to_string(),
        cause: cause.into(),
    }
}
