//! Reads what a starting agent finds on disk of earlier containers: their records, and folders that
//! it does not understand. It frees a folder only if the record is not there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::record::{FILE, Record};

/// Start of the name of a seat's folder, which is no pod's UID.
pub(super) const SEAT: &str = "seat-";

/// The files on disk of all containers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The records, in the order of their numbers.
    pub records: Vec<Record>,
    /// Folders that it does not understand.
    pub unread: Vec<Unread>,
    /// The folders without a record: their containers never got their devices, because the record is
    /// written before kubelet has its answer.
    pub halves: Vec<PathBuf>,
}

/// A container's folder, or a pod's, whose record cannot be read: a disk fails, descriptors have run
/// out, a later agent wrote it. Its container may be running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The folder.
    pub folder: PathBuf,
    /// The UID of its pod, if that is what the folder is named after; else it is a seat.
    pub pod: Option<String>,
    /// Reason why it cannot be read.
    pub why: String,
}

impl Unread {
    /// A folder below that of all containers.
    pub(super) fn of(folder: &Path, containers: &Path, why: &impl ToString) -> Unread {
        let below = folder.strip_prefix(containers).ok();
        let name = below.and_then(|below| below.iter().next()?.to_str());
        let pod = name.filter(|name| !name.starts_with(SEAT));
        Unread {
            folder: folder.to_owned(),
            pod: pod.map(str::to_owned),
            why: why.to_string(),
        }
    }
}

/// Reads the folder of all containers, and removes folders that have no record. If the record is
/// not there, no container runs with its folder; any other failure keeps it.
///
/// # Errors
/// The folder of all containers cannot be read.
pub fn read_all(containers: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    for pod in fs::read_dir(containers)? {
        found.read_pod(&pod?.path(), containers);
    }
    for half in std::mem::take(&mut found.halves) {
        match fs::remove_dir_all(&half) {
            Err(error) if !is_absent(&error) => {
                found.unread.push(Unread::of(&half, containers, &error));
            }
            _ => {}
        }
        let _not_empty = half.parent().map(fs::remove_dir);
    }
    found.records.sort_by_key(|record| record.id);
    Ok(found)
}

impl Found {
    /// Reads an unreadable folder again.
    pub(super) fn read_again(&mut self, unread: &Unread, containers: &Path) {
        match unread.folder.parent() == Some(containers) {
            true => self.read_pod(&unread.folder, containers),
            false => self.read_folder(&unread.folder, containers),
        }
    }

    /// Reads a pod's folder, or a seat.
    fn read_pod(&mut self, pod: &Path, containers: &Path) {
        let folders = fs::read_dir(pod).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        match folders {
            Ok(folders) => {
                for folder in folders {
                    self.read_folder(&folder.path(), containers);
                }
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => self.unread.push(Unread::of(pod, containers, &error)),
        }
    }

    /// Reads a container's folder.
    fn read_folder(&mut self, folder: &Path, containers: &Path) {
        let text = match fs::read(folder.join(FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.halves.push(folder.to_owned());
            }
            // No folder at all.
            Err(error) if is_absent(&error) => return,
            Err(error) => return self.unread.push(Unread::of(folder, containers, &error)),
        };
        match serde_json::from_slice::<Record>(&text) {
            Ok(record) if record.folder(containers) == folder => self.records.push(record),
            Ok(_) => self
                .unread
                .push(Unread::of(folder, containers, &"it is another folder's")),
            Err(error) => self.unread.push(Unread::of(folder, containers, &error)),
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    let absent = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
    absent.contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolate::record::tests::record;

    #[test]
    fn only_a_record_that_is_not_there_frees_its_folder() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path();
        record("half", None).make_folders(base).unwrap();
        fs::write(base.join("stray"), "a file").unwrap();
        let moved = Record {
            uid: "../elsewhere".to_owned(),
            ..record("moved", Some(1))
        };
        let texts = [
            ("moved", serde_json::to_vec(&moved).unwrap()),
            ("broken", b"{\"id\": 3".to_vec()),
            // Of an agent to come, which this one follows.
            (
                "newer",
                br#"{"id": 4, "form": 2, "whose": {"uid": "uid-newer"}}"#.to_vec(),
            ),
        ];
        for (pod, text) in &texts {
            let of = record(pod, Some(1));
            of.make_folders(base).unwrap();
            fs::write(of.folder(base).join(FILE), text).unwrap();
        }
        // The disk says something else than that there is no file.
        let odd = record("odd", Some(5));
        odd.make_folders(base).unwrap();
        fs::create_dir(odd.folder(base).join(FILE)).unwrap();

        let mut found = read_all(base).unwrap();
        assert_eq!(found.records, []);
        found.unread.sort_by(|a, b| a.folder.cmp(&b.folder));
        let pods = found.unread.iter().map(|one| one.pod.as_deref().unwrap());
        let expected = ["uid-broken", "uid-moved", "uid-newer", "uid-odd"];
        assert_eq!(pods.collect::<Vec<_>>(), expected);
        for one in &found.unread {
            assert!(
                one.folder.join("tenant").is_dir() && !one.why.is_empty(),
                "{one:?}"
            );
        }
        assert!(!base.join("uid-half").exists());
        assert!(read_all(&base.join("absent")).is_err());
    }

    #[test]
    fn a_seat_is_no_pod() {
        let unread = |name: &str| Unread::of(Path::new(name), Path::new("/c"), &"?").pod;
        assert_eq!(unread("/c/uid-a/main-0").as_deref(), Some("uid-a"));
        assert_eq!(unread("/c/uid-a").as_deref(), Some("uid-a"));
        assert_eq!(unread("/c/seat-7/main-0"), None);
    }
}
