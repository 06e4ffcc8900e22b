//! The record of a store: its sets, versions and leases, in one file that is written whole or not
//! at all. What it does not name is swept away at the start.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sublet_arbiter::ProcessStamp;
use sublet_cache::{DatasetKey, DatasetOwner, VersionDigest};

use crate::disk::write_whole;
use crate::view::ViewMode;

/// Version of the record. A process refuses a newer one: it could damage what it does not know.
const VERSION: u32 = 1;
/// The most that is read.
const RECORD_MAX: u64 = 64 << 20;

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct StoreRecord {
    pub(crate) record_version: u32,
    pub(crate) sets: Vec<SetRecord>,
    pub(crate) versions: Vec<VersionRecord>,
    pub(crate) leases: Vec<LeaseRecord>,
}

/// A set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct SetRecord {
    #[serde(flatten)]
    pub(crate) key: KeyRecord,
    /// Its source.
    pub(crate) source: String,
    /// Its version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<String>,
    #[serde(default)]
    pub(crate) pinned: bool,
    /// Plans of packs that were begun for it and belong to no version yet.
    #[serde(default)]
    pub(crate) parts: Vec<String>,
    #[serde(default)]
    pub(crate) parts_used_ms: u64,
}

/// Name of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyRecord {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

/// A version that is whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct VersionRecord {
    pub(crate) digest: String,
    /// States of sources that it shows.
    pub(crate) fingerprints: Vec<String>,
    pub(crate) files: u64,
    pub(crate) size_bytes: u64,
    /// Room of its own tables.
    pub(crate) own_bytes: u64,
    pub(crate) used_ms: u64,
    /// The way in which it was stored.
    pub(crate) view: ViewMode,
}

/// A request that has a version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct LeaseRecord {
    pub(crate) request: String,
    pub(crate) set: KeyRecord,
    pub(crate) version: String,
    /// The process that has it.
    pub(crate) process: ProcessStamp,
}

/// Fault of a record.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    #[error("it is no record of a store: {0}")]
    Text(#[from] serde_json::Error),
    #[error(
        "it was written by a newer version of Sublet (record version {0}, this one knows {VERSION})"
    )]
    Newer(u32),
    #[error("it names a set without an owner, or a digest that is none")]
    Name,
    #[error("its data sets are stored as {stored}, and can be shown as {now} only: {reason}")]
    View {
        stored: &'static str,
        now: &'static str,
        reason: String,
    },
}

impl Default for StoreRecord {
    fn default() -> StoreRecord {
        StoreRecord {
            record_version: VERSION,
            sets: Vec::new(),
            versions: Vec::new(),
            leases: Vec::new(),
        }
    }
}

impl StoreRecord {
    /// Reads the record of a store; that of a new one is empty.
    ///
    /// # Errors
    /// It cannot be read. Nothing is guessed, because what it does not name is deleted.
    pub(crate) fn load(path: &Path) -> Result<StoreRecord, RecordError> {
        let text = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(StoreRecord::default());
            }
            Ok(about) if about.len() > RECORD_MAX => {
                return Err(io::Error::other("it is longer than any record").into());
            }
            _ => fs::read(path)?,
        };
        StoreRecord::parse(&text)
    }

    /// Reads the text of a record.
    ///
    /// # Errors
    /// As for [`StoreRecord::load`].
    pub(crate) fn parse(text: &[u8]) -> Result<StoreRecord, RecordError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head {
            record_version: u32,
        }
        let head: Head = serde_json::from_slice(text)?;
        if head.record_version > VERSION {
            return Err(RecordError::Newer(head.record_version));
        }
        let record: StoreRecord = serde_json::from_slice(text)?;
        let digests = record.versions.iter().map(|version| &version.digest);
        let digests = digests.chain(record.leases.iter().map(|lease| &lease.version));
        let are_digests = digests
            .clone()
            .all(|text| VersionDigest::read(text).is_some());
        let mut keys = record.sets.iter().map(|set| &set.key);
        match are_digests && keys.all(|key| key.read().is_some()) {
            true => Ok(record),
            false => Err(RecordError::Name),
        }
    }

    /// Writes it.
    ///
    /// # Errors
    /// The disk's; the old record is still there then.
    pub(crate) fn save(&self, path: &Path) -> io::Result<()> {
        write_whole(path, &serde_json::to_vec(self)?)
    }

    pub(crate) fn set_mut(&mut self, key: &DatasetKey) -> Option<&mut SetRecord> {
        let key = KeyRecord::of(key);
        self.sets.iter_mut().find(|set| set.key == key)
    }

    pub(crate) fn version_mut(&mut self, version: VersionDigest) -> Option<&mut VersionRecord> {
        let digest = version.to_string();
        self.versions
            .iter_mut()
            .find(|known| known.digest == digest)
    }
}

impl KeyRecord {
    pub(crate) fn of(key: &DatasetKey) -> KeyRecord {
        let (uid, namespace) = match &key.owner {
            DatasetOwner::User(uid) => (Some(*uid), None),
            DatasetOwner::Namespace(name) => (None, Some(name.clone())),
        };
        KeyRecord {
            uid,
            namespace,
            name: key.name.clone(),
        }
    }

    /// The key; `None` if it has no owner, or two.
    pub(crate) fn read(&self) -> Option<DatasetKey> {
        let owner = match (self.uid, &self.namespace) {
            (Some(uid), None) => DatasetOwner::User(uid),
            (None, Some(name)) => DatasetOwner::Namespace(name.clone()),
            _ => return None,
        };
        Some(DatasetKey {
            owner,
            name: self.name.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_a_strange_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        assert_eq!(StoreRecord::load(&path).unwrap(), StoreRecord::default());
        let key = DatasetKey {
            owner: DatasetOwner::User(7),
            name: "a".to_owned(),
        };
        let record = StoreRecord {
            sets: vec![SetRecord {
                key: KeyRecord::of(&key),
                source: "/data".to_owned(),
                version: None,
                pinned: true,
                parts: vec!["ab".to_owned()],
                parts_used_ms: 5,
            }],
            ..StoreRecord::default()
        };
        record.save(&path).unwrap();
        assert_eq!(StoreRecord::load(&path).unwrap(), record);
        assert_eq!(record.sets[0].key.read(), Some(key));
        let text = String::from_utf8(fs::read(&path).unwrap()).unwrap();
        let rows = [
            (
                text.replace("\"recordVersion\":1", "\"recordVersion\":2"),
                "newer",
            ),
            (text.replace("\"uid\":7,", ""), "without an owner"),
            (text.replace("\"pinned\"", "\"painted\""), "no record"),
            (text[..text.len() - 1].to_owned(), "no record"),
            (String::new(), "no record"),
        ];
        for (text, fault) in rows {
            let error = StoreRecord::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(fault), "{error}: {text}");
        }
    }
}
