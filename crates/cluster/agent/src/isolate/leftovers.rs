//! Folders of containers that are gone and that could not be removed. They stay with the cards that
//! the container had until they are.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tracing::{info, warn};

use super::record::Record;

/// Records of the containers that left folders behind.
#[derive(Debug, Default)]
pub(super) struct Leftovers(Mutex<Vec<Record>>);

impl Leftovers {
    /// Removes the folder of a container that is gone, or keeps it in mind.
    pub(super) fn remove(&self, record: &Record, containers: &Path) {
        let container = record.name();
        match record.remove(containers) {
            Ok(()) => info!(container, "its pod is gone; forgotten"),
            Err(error) => {
                warn!(container, %error, "its folder stays");
                let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                all.push(record.clone());
            }
        }
    }

    /// Tries again to remove the folders of containers that had that card.
    ///
    /// # Errors
    /// Something cannot be removed; the text names it and the reason.
    pub(super) fn clear(&self, card: &str, containers: &Path) -> Result<(), String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut outcome = Ok(());
        all.retain(|record| {
            let had_card = record.held().iter().any(|(name, _)| name == card);
            if !had_card {
                return true;
            }
            let removed = record.remove(containers);
            if let Err(error) = &removed {
                let (name, folder) = (record.name(), record.folder(containers));
                let folder = folder.display();
                outcome = Err(format!("{folder} of {name} cannot be removed: {error}"));
            }
            removed.is_err()
        });
        outcome
    }
}
