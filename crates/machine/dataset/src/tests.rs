//! Whole ways of data sets through a store on the real disk, as mounts (where root may mount) and as
//! plain files. Cases have the numbers of `dataset-cache.md`.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime};

use sublet_cache::{FaultKind, PackId, SourceFault, VersionDigest};
use sublet_model::Bytes;

use crate::crew::StopFlag;
use crate::source::DataSource;
use crate::source::open::open_source;
use crate::store::Store;
use crate::store::making::{FetchOrder, Listed, MadeVersion};
use crate::tree::{SourceTree, TreeEntry};
use crate::view::{ViewMode, unmount_view};

mod faults;
mod whole;

/// A source folder and a store, both gone at the end.
struct Place {
    base: tempfile::TempDir,
    store: Store,
}

impl Drop for Place {
    fn drop(&mut self) {
        let views = self.base.path().join("store/views");
        for view in fs::read_dir(views).into_iter().flatten().flatten() {
            let _best_effort = unmount_view(&view.path());
        }
    }
}

impl Place {
    /// `None`, with a note, where nothing can be mounted.
    fn new(mode: Option<ViewMode>) -> Option<Place> {
        let base = tempfile::tempdir().unwrap();
        fs::create_dir(base.path().join("source")).unwrap();
        let store = Store::open(&base.path().join("store"), mode).unwrap();
        if mode.is_none() && !store.mode.is_packed() {
            eprintln!(
                "skipped: {}",
                store.mode_reason.as_deref().unwrap_or("no mounts")
            );
            return None;
        }
        Some(Place { base, store })
    }

    /// One of each mode that is possible here.
    fn all() -> Vec<Place> {
        [None, Some(ViewMode::Files)]
            .into_iter()
            .filter_map(Place::new)
            .collect()
    }

    fn source(&self) -> PathBuf {
        self.base.path().join("source")
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.source().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn open(&self) -> Arc<dyn DataSource> {
        open_source(self.source().to_str().unwrap()).unwrap()
    }

    fn list(&self, present: Option<VersionDigest>) -> Listed {
        self.store
            .list(self.open(), present, &StopFlag::default())
            .unwrap()
    }

    fn make(&self, listed: &Listed) -> Result<MadeVersion, SourceFault> {
        let made = self.store.make(listed, &order(), |_| {})?;
        self.store.forget_parts(&self.store.plans(listed));
        Ok(made)
    }

    fn get(&self, present: Option<VersionDigest>) -> VersionDigest {
        self.make(&self.list(present)).unwrap().made.version
    }

    fn view(&self, version: VersionDigest) -> PathBuf {
        self.store.view(version)
    }

    fn parts(&self) -> usize {
        fs::read_dir(self.base.path().join("store/parts"))
            .unwrap()
            .count()
    }
}

fn order() -> FetchOrder {
    FetchOrder {
        room: Bytes::new(u64::MAX),
        readers: Arc::new(AtomicUsize::new(32)),
        stop: StopFlag::default(),
    }
}

/// Everything below two folders that is not the same, and every write that is possible in the
/// second one.
fn differences(one: &Path, other: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut names: BTreeSet<_> = BTreeSet::new();
    for folder in [one, other] {
        names.extend(
            fs::read_dir(folder)
                .unwrap()
                .map(|entry| entry.unwrap().file_name()),
        );
    }
    for name in names {
        let (a, b) = (one.join(&name), other.join(&name));
        let (Ok(about_a), Ok(about_b)) = (fs::symlink_metadata(&a), fs::symlink_metadata(&b))
        else {
            found.push(format!("{} is only in one", a.display()));
            continue;
        };
        if about_a.file_type() != about_b.file_type() {
            found.push(format!("{} is of another kind", b.display()));
        } else if about_a.is_dir() {
            found.extend(differences(&a, &b));
        } else if about_a.is_symlink() {
            if fs::read_link(&a).unwrap() != fs::read_link(&b).unwrap() {
                found.push(format!("{} leads elsewhere", b.display()));
            }
        } else {
            if fs::read(&a).unwrap() != fs::read(&b).unwrap() {
                found.push(format!("{} has other bytes", b.display()));
            }
            if about_a.modified().unwrap() != about_b.modified().unwrap() {
                found.push(format!("{} has another time", b.display()));
            }
            let executable = |about: &fs::Metadata| about.mode() & 0o111 != 0;
            if executable(&about_a) != executable(&about_b) || about_b.mode() & 0o222 != 0 {
                found.push(format!("{} has the mode {:o}", b.display(), about_b.mode()));
            }
        }
    }
    found
}

fn bytes(random: &mut fastrand::Rng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill(&mut bytes);
    bytes
}

/// A tree with names and sizes at their bounds.
fn grow(folder: &Path, random: &mut fastrand::Rng, depth: u32) {
    let sizes = [
        0,
        1,
        17,
        4095,
        4096,
        4097,
        70_000,
        (4 << 20) - 1,
        4 << 20,
        (4 << 20) + 1,
        9 << 20,
    ];
    let names: [&[u8]; 10] = [
        b"a",
        b"a-b",
        b"a.b",
        b"!",
        b"two words",
        b"new\nline",
        b"\xff\xfe",
        b"...",
        &[b'n'; 255],
        "é".as_bytes(),
    ];
    for name in names {
        let path = folder.join(std::ffi::OsString::from_vec(name.to_vec()));
        match random.u8(..8) {
            0 if depth > 0 => {
                fs::create_dir(&path).unwrap();
                grow(&path, random, depth - 1);
            }
            1 => symlink("../../etc/passwd", &path).unwrap(),
            2 => symlink("t".repeat(random.usize(1..4_080)), &path).unwrap(),
            3 => {
                let others = fs::read_dir(folder)
                    .unwrap()
                    .map(|entry| entry.unwrap().path());
                let files: Vec<PathBuf> = others
                    .filter(|path| path.symlink_metadata().unwrap().is_file())
                    .collect();
                if let Some(file) = files.first() {
                    fs::hard_link(file, &path).unwrap();
                }
            }
            _ => {
                let size = random.choice(sizes).unwrap();
                fs::write(&path, bytes(random, size)).unwrap();
                let mode = if random.bool() { 0o755 } else { 0o600 };
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            }
        }
    }
}
