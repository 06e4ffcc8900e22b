//! Lists the devices of this node and their health: read from the driver or from a file that stands
//! in for one, and read again whenever that may have changed. Both ways give the same
//! [`Inventory`]. This module reports. The readers of the report decide what a sick card means for
//! pods.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use sublet_model::{Inventory, InventoryError};
use tokio::sync::watch;
use tracing::{error, info};

pub mod nvml;
pub mod simulated;
mod sysfs;

/// Reason why the devices cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum DiscoverError {
    /// The driver's library is not on this machine, or cannot be loaded.
    #[error("{library} not found; install the NVIDIA driver, or use --inventory FILE to simulate")]
    NoLibrary {
        /// The name or path that was tried.
        library: PathBuf,
        /// Error of the dynamic loader.
        #[source]
        cause: nvml_wrapper::error::NvmlError,
    },
    /// The library is there but does not work.
    #[error("{library} is there, but {what} failed; does `nvidia-smi` work here?")]
    Nvml {
        /// The library.
        library: PathBuf,
        /// The step that failed.
        what: &'static str,
        /// Error of the library.
        #[source]
        cause: nvml_wrapper::error::NvmlError,
    },
    /// The inventory file cannot be read.
    #[error("inventory file {path} cannot be read")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        cause: std::io::Error,
    },
    /// The inventory file is not one.
    #[error("inventory file {path}: {problem}")]
    File {
        /// The file.
        path: PathBuf,
        /// Line, column, field and problem.
        problem: String,
    },
    /// The devices contradict each other.
    #[error("devices of {origin}: {cause}")]
    Contradiction {
        /// The file or library they came from.
        origin: PathBuf,
        /// The part that does not fit.
        cause: InventoryError,
    },
    /// No thread could be started.
    #[error("cannot start a thread to watch the devices")]
    Thread(#[source] std::io::Error),
}

/// A way to learn the node's devices. Both calls may block, so they run on a thread of
/// their own: a broken card can hold NVML for seconds, and kubelet must not wait for it.
pub trait DeviceSource: Send + 'static {
    /// The devices as they are now.
    ///
    /// # Errors
    /// The devices cannot be listed; an earlier answer then still stands.
    fn read(&mut self) -> Result<Inventory, DiscoverError>;

    /// Waits a few seconds at most, and tells whether [`DeviceSource::read`] may now answer
    /// otherwise than before.
    fn changed(&mut self) -> bool;
}

/// Reads the devices once and follows them from then on, until every receiver is
/// dropped. A reading that fails later is logged and leaves the last good one in place.
///
/// # Errors
/// If the first reading fails.
pub fn follow(
    mut source: impl DeviceSource,
) -> Result<watch::Receiver<Arc<Inventory>>, DiscoverError> {
    let (sender, receiver) = watch::channel(Arc::new(source.read()?));
    let follow = move || {
        while !sender.is_closed() {
            if !source.changed() {
                continue;
            }
            match source.read() {
                Ok(new) => publish(&sender, new),
                Err(problem) => {
                    let cause = std::error::Error::source(&problem).map(ToString::to_string);
                    error!(%problem, cause, "devices not read, the last good reading stands");
                }
            }
        }
    };
    thread::Builder::new()
        .name("discover".to_owned())
        .spawn(follow)
        .map_err(DiscoverError::Thread)?;
    Ok(receiver)
}

fn publish(sender: &watch::Sender<Arc<Inventory>>, new: Inventory) {
    let is_new = sender.send_if_modified(|old| {
        let is_new = **old != new;
        if is_new {
            *old = Arc::new(new);
        }
        is_new
    });
    if is_new {
        let inventory = sender.borrow();
        let healthy = inventory
            .gpus()
            .iter()
            .filter(|gpu| gpu.health.is_healthy());
        info!(
            gpus = inventory.gpus().len(),
            healthy = healthy.count(),
            "devices changed"
        );
    }
}
