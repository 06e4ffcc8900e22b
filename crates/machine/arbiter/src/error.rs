//! The arbiter's errors: the action, its object, and the kernel's error.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use crate::gpu::GpuViewError;

/// Ways in which the arbiter can fail to start or to go on.
#[derive(Debug, thiserror::Error)]
pub enum ArbiterError {
    /// The kernel refused something.
    #[error("{what} {place} failed: {cause}")]
    System {
        /// The action that failed.
        what: &'static str,
        /// The object of the action.
        place: String,
        /// The kernel's error.
        cause: io::Error,
    },
    /// Another arbiter manages these cards.
    #[error("an arbiter looks after these GPUs already: {}, in {}", holder(*pid, *uid), folder.display())]
    Held {
        /// Its process; 0 if it is not known.
        pid: u32,
        /// Its user, if it is known.
        uid: Option<u32>,
        /// The folder, or the name, that it holds.
        folder: PathBuf,
    },
    /// A folder that another user could write to, or own.
    #[error("{} cannot hold the arbiter's sockets: {why}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The fault of the folder.
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
        /// The reason.
        why: String,
    },
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(String),
}

impl ArbiterError {
    /// Returns true if no later start on this machine can succeed: its kernel or driver lacks a
    /// feature that the arbiter needs.
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

/// For `map_err`: names the action, and its object.
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
