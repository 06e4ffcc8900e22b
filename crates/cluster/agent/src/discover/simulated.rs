//! Simulated cards: the devices stand in an inventory file, which is read again when it changes,
//! so that a test or a person can make a card sick with an editor. Readers of the [`Inventory`]
//! cannot tell such a node from a real one. It never looks for a driver.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use sublet_api::inventory_file;
use sublet_model::{Inventory, NodeName};

use super::{DeviceSource, DiscoverError};

/// Interval between looks at the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The devices of an inventory file.
#[derive(Debug)]
pub struct SimulatedSource {
    path: PathBuf,
    node: NodeName,
    read: Option<Stamp>,
}

/// Marks that change when a file does: modification time, length, and the inode, since editors and
/// ConfigMap volumes put a new file in the place of the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: (i64, i64),
    length: u64,
    inode: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        let file = fs::metadata(path).ok()?;
        Some(Stamp {
            modified: (file.mtime(), file.mtime_nsec()),
            length: file.len(),
            inode: file.ino(),
        })
    }
}

impl SimulatedSource {
    /// The devices in the file at `path`. `node` goes into the UUIDs of cards that have
    /// none in the file.
    #[must_use]
    pub fn new(path: PathBuf, node: NodeName) -> SimulatedSource {
        SimulatedSource {
            path,
            node,
            read: None,
        }
    }
}

impl DeviceSource for SimulatedSource {
    fn read(&mut self) -> Result<Inventory, DiscoverError> {
        // Taken first: a change during the reading is then seen the next time.
        self.read = Stamp::of(&self.path);
        let text = fs::read_to_string(&self.path).map_err(|cause| DiscoverError::Unreadable {
            path: self.path.clone(),
            cause,
        })?;
        inventory_file::parse(&text, &self.node).map_err(|problem| DiscoverError::File {
            path: self.path.clone(),
            problem,
        })
    }

    fn changed(&mut self) -> bool {
        thread::sleep(LOOK_EVERY);
        Stamp::of(&self.path) != self.read
    }
}
