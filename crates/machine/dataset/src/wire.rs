//! The messages between commands and the process that serves data sets, on `serve.sock`: JSON, one
//! message a line, one request a connection. After `get` the connection is the lease: the version
//! stays until it closes. The caller's user and process are what the kernel says, never a message.

use serde::{Deserialize, Serialize};

/// The longest line that either side takes, in bytes.
pub(crate) const DATASET_LINE_MAX: usize = 1 << 20;

/// The longest name of a set, in bytes.
const NAME_MAX: usize = 63;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum DatasetRequest {
    /// Bring a set to this machine and keep it as long as the connection is open. Replies:
    /// `progress` (again and again), then `ready` or `refused`.
    Get {
        /// Its name.
        name: String,
        /// Its source; a set that is known has one already.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<String>,
        /// Take the version that is there, without a look at the source.
        #[serde(default)]
        cached: bool,
        /// Wait where sets in use take all the room.
        #[serde(default)]
        wait: bool,
    },
    /// Every set. Reply: `sets`.
    List,
    /// Read every byte of a set's version again. Replies: `progress`, then `verified` or `refused`.
    Verify {
        /// Its name.
        name: String,
    },
    /// Keep a set whatever room others need, or not any more. Reply: `done` or `refused`.
    Pin {
        /// Its name.
        name: String,
        /// Keep it?
        pinned: bool,
    },
    /// Delete a set. Reply: `done`, or `refused` if a job uses it and `force` is not set: then it
    /// goes when the last job has ended.
    Remove {
        /// Its name.
        name: String,
        /// Also one that is in use.
        force: bool,
    },
    /// End the process, if nobody uses it. Reply: `done` or `refused`.
    Shutdown,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum DatasetReply {
    /// A set on its way.
    Progress(Box<DatasetRow>),
    /// The set is there.
    Ready {
        /// The folder of its files.
        path: String,
        /// The set.
        set: Box<DatasetRow>,
    },
    /// Every set.
    Sets(DatasetList),
    /// All bytes were read.
    Verified {
        /// Bytes that were read.
        #[serde(rename = "sizeBytes")]
        size_bytes: u64,
        /// Names of packs or files with wrong bytes.
        damaged: Vec<String>,
    },
    /// It is done.
    Done,
    /// It is not done.
    Refused {
        /// Why, for people.
        reason: String,
        /// Advice, if there is something.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    },
}

/// Every set of a user, and the store.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DatasetList {
    /// The store.
    pub store: DatasetStore,
    /// The sets, by name.
    pub sets: Vec<DatasetRow>,
}

/// The store.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DatasetStore {
    /// Its folder.
    pub path: String,
    /// View of the sets: `direct`, `buffered` or `files`.
    pub view: String,
    /// Why they are not shown in a better way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub view_reason: Option<String>,
    /// Size of its disk.
    pub disk_bytes: u64,
    /// Free bytes of it.
    pub free_bytes: u64,
}

/// A set.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DatasetRow {
    /// Its name.
    pub name: String,
    /// `absent`, `listing`, `waiting`, `fetching`, `resting`, `repairing`, `ready` or `failed`.
    pub state: String,
    /// Its source.
    pub source: String,
    /// Digest of its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Files of the version.
    pub files: u64,
    /// Bytes of the version's files.
    pub size_bytes: u64,
    /// Bytes that came by now, of a set on its way or left unfinished.
    pub fetched_bytes: u64,
    /// Bytes that the fetch needs in all.
    pub needed_bytes: u64,
    /// Jobs that have it.
    pub jobs: u64,
    /// Jobs that wait for it.
    pub waiting: u64,
    /// True if it stays whatever room others need.
    pub pinned: bool,
    /// Time of its last use, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_ms: Option<u64>,
    /// The last trouble.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Checks the name of a set: letters, digits, `.`, `_` and `-`, the first a letter or digit.
///
/// # Errors
/// Any other text; the error says what a name is.
pub fn check_dataset_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric();
    let is_right = !name.is_empty()
        && name.len() <= NAME_MAX
        && name.as_bytes().first().is_some_and(is_plain)
        && name
            .bytes()
            .all(|byte| is_plain(&byte) || b"._-".contains(&byte));
    match is_right {
        true => Ok(()),
        false => Err(format!(
            "`{}` is no name of a data set; a name has 1 to {NAME_MAX} letters, digits, `.`, `_` or `-`, and begins with a letter or digit",
            name.escape_debug()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        let long = "n".repeat(64);
        for name in ["imagenet", "a", "A-1_b.c", &long[..63]] {
            check_dataset_name(name).unwrap();
        }
        for name in ["", ".a", "-a", "a/b", "a b", "é", "a\n", &long] {
            assert!(check_dataset_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_request_has_these_words() {
        let get = DatasetRequest::Get {
            name: "a".to_owned(),
            source: None,
            cached: false,
            wait: true,
        };
        let text = serde_json::to_string(&get).unwrap();
        assert_eq!(
            text,
            r#"{"kind":"get","name":"a","cached":false,"wait":true}"#
        );
        // What an older command does not say has a meaning.
        let read: DatasetRequest = serde_json::from_str(r#"{"kind":"get","name":"a"}"#).unwrap();
        assert!(matches!(read, DatasetRequest::Get { wait: false, .. }));
    }
}
