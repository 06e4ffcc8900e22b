//! Our libraries under the names that programs load: found where they were built or installed,
//! copied to a folder named after their contents. A file that some process has mapped is never
//! replaced: other contents are another folder, and a folder appears complete or not at all.
//! Both doors use it, `sublet run` and the node agent; which folders these are is theirs to say.

use std::hash::Hasher;
use std::io;
use std::path::{Path, PathBuf};

/// The file name of our wrapper of `dlopen`, by which an outer job's preloads are known.
pub const PRELOAD: &str = "libsublet_preload.so";

/// A library as it is built, and the name under which programs load it.
struct Part {
    built: &'static str,
    loaded: &'static str,
}

const INTERPOSER: [Part; 3] = [
    Part {
        built: "libsublet_cuda.so",
        loaded: "libcuda.so.1",
    },
    Part {
        built: "libsublet_nvml.so",
        loaded: "libnvidia-ml.so.1",
    },
    Part {
        built: "libsublet_preload.so",
        loaded: PRELOAD,
    },
];

const FAKE_DRIVER: [Part; 2] = [
    Part {
        built: "libsublet_fakecuda.so",
        loaded: "libcuda.so.1",
    },
    Part {
        built: "libsublet_fakenvml.so",
        loaded: "libnvidia-ml.so.1",
    },
];

/// Why the libraries cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// One was not built, or not installed.
    #[error("{file} is in none of {}", listed(folders))]
    Missing {
        /// The file.
        file: &'static str,
        /// Where it was looked for.
        folders: Vec<PathBuf>,
    },
    /// One is there and cannot be read.
    #[error("cannot read {}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// They cannot be copied.
    #[error("cannot write our libraries to {}", folder.display())]
    Unwritable {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        #[source]
        cause: io::Error,
    },
    /// No folder can hold the copies.
    #[error("there is no folder for our libraries: {}", refused.join("; "))]
    NoFolder {
        /// Each folder that was tried, and what is wrong with it.
        refused: Vec<String>,
    },
}

fn listed(folders: &[PathBuf]) -> String {
    let folders = folders.iter().map(|folder| folder.display().to_string());
    folders.collect::<Vec<_>>().join(", ")
}

/// Our libraries, ready to be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interposer {
    /// Stands before the driver.
    pub cuda: PathBuf,
    /// Stands before the management library.
    pub nvml: PathBuf,
    /// Turns other names of the two into these.
    pub preload: PathBuf,
}

/// Where libraries come from and where they go.
#[derive(Debug, Clone)]
pub struct Store {
    /// Folders to look into, in this order.
    pub sources: Vec<PathBuf>,
    /// Folders that can hold the copies; the first one from which code can be loaded is used.
    pub targets: Vec<PathBuf>,
}

impl Store {
    /// Where an installed or freshly built executable has its libraries.
    #[must_use]
    pub fn sources_of(executable: &Path) -> Vec<PathBuf> {
        let beside = executable.parent().unwrap_or(Path::new("/"));
        let mut sources = vec![beside.to_owned()];
        if let Some(above) = beside.parent() {
            // Tests are built into a folder below the libraries' own.
            if beside.ends_with("deps") {
                sources.push(above.to_owned());
            }
            sources.push(above.join("lib/sublet"));
        }
        sources
    }

    /// The interposer's files.
    ///
    /// # Errors
    /// They are not there, or there is no place for the copies.
    pub fn interposer(&self) -> Result<Interposer, LibraryError> {
        self.interposer_with(&[])
    }

    /// The same, with more files in the same folder.
    ///
    /// # Errors
    /// As [`Store::interposer`].
    pub fn interposer_with(
        &self,
        more: &[(&'static str, &str)],
    ) -> Result<Interposer, LibraryError> {
        let folder = self.publish("sublet", &INTERPOSER, more)?;
        let [cuda, nvml, preload] = INTERPOSER.map(|part| folder.join(part.loaded));
        Ok(Interposer {
            cuda,
            nvml,
            preload,
        })
    }

    /// The fake driver's files: CUDA and NVML.
    ///
    /// # Errors
    /// As [`Store::interposer`].
    pub fn fake_driver(&self) -> Result<(PathBuf, PathBuf), LibraryError> {
        let folder = self.publish("fake", &FAKE_DRIVER, &[])?;
        let [cuda, nvml] = FAKE_DRIVER.map(|part| folder.join(part.loaded));
        Ok((cuda, nvml))
    }

    /// The folder that has all these parts under the names that programs load.
    fn publish(
        &self,
        name: &str,
        parts: &[Part],
        more: &[(&'static str, &str)],
    ) -> Result<PathBuf, LibraryError> {
        let mut contents = Vec::new();
        for part in parts {
            contents.push((part.loaded, self.read(part)?));
        }
        let more = more
            .iter()
            .map(|(name, text)| (*name, text.as_bytes().to_vec()));
        contents.extend(more);
        let target = self.target()?;
        let folder = target.join(format!("{name}-{:016x}", digest(&contents)));
        if !folder.is_dir() {
            write(&folder, &contents).map_err(|cause| LibraryError::Unwritable {
                folder: folder.clone(),
                cause,
            })?;
        }
        Ok(folder)
    }

    fn read(&self, part: &Part) -> Result<Vec<u8>, LibraryError> {
        for folder in &self.sources {
            let file = folder.join(part.built);
            match std::fs::read(&file) {
                Ok(contents) => return Ok(contents),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(LibraryError::Unreadable { file, cause }),
            }
        }
        Err(LibraryError::Missing {
            file: part.built,
            folders: self.sources.clone(),
        })
    }

    /// The first target from which the kernel lets programs load code. `/run` is mounted
    /// `noexec` on Debian and Ubuntu.
    fn target(&self) -> Result<&Path, LibraryError> {
        let mut refused = Vec::new();
        for target in &self.targets {
            match own_folder(target) {
                Err(error) => refused.push(error),
                Ok(()) if is_noexec(target) => {
                    refused.push(format!("{}: it is mounted noexec", target.display()));
                }
                Ok(()) => return Ok(target),
            }
        }
        Err(LibraryError::NoFolder { refused })
    }
}

/// Makes a folder that only this user can change, or finds that it is one.
///
/// # Errors
/// It cannot be made, or is somebody else's, who could put another library in place of ours.
fn own_folder(folder: &Path) -> Result<(), String> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let wrong = |what: &dyn std::fmt::Display| Err(format!("{}: {what}", folder.display()));
    let made = std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder);
    let about = match made.and_then(|()| folder.symlink_metadata()) {
        Ok(about) => about,
        Err(error) => return wrong(&error),
    };
    if !about.is_dir() {
        return wrong(&"it is no folder");
    }
    if about.uid() != rustix::process::geteuid().as_raw() {
        return wrong(&"it belongs to another user");
    }
    if about.mode() & 0o022 != 0 {
        return wrong(&"other users can write there");
    }
    Ok(())
}

fn is_noexec(folder: &Path) -> bool {
    use rustix::fs::{StatVfsMountFlags, statvfs};
    statvfs(folder).is_ok_and(|about| about.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// A number made of the contents. It names a folder on this machine only, so that it may
/// change with the toolchain; the standard hasher is quick in unoptimised builds too.
fn digest(contents: &[(&str, Vec<u8>)]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    for (name, bytes) in contents {
        hasher.write(name.as_bytes());
        hasher.write_u64(bytes.len() as u64);
        hasher.write(bytes);
    }
    hasher.finish()
}

/// Writes a folder under another name and gives it its own when it is complete.
fn write(folder: &Path, contents: &[(&str, Vec<u8>)]) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let draft = folder.with_file_name(format!(".{name}.{}", std::process::id()));
    // Left by a process of the same number that was killed meanwhile.
    let _absent = std::fs::remove_dir_all(&draft);
    std::fs::create_dir(&draft)?;
    let written = (|| {
        for (name, bytes) in contents {
            let file = draft.join(name);
            std::fs::write(&file, bytes)?;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o555))?;
        }
        // Whatever the mask of new files is: a container's processes have any user.
        std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755))?;
        std::fs::rename(&draft, folder)
    })();
    if written.is_err() {
        let _absent = std::fs::remove_dir_all(&draft);
    }
    match written {
        // Somebody else was quicker, with the same contents.
        Err(_) if folder.is_dir() => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(executable: &Path, runtime: &Path, cache: Option<&Path>) -> Store {
        let mut targets = vec![runtime.join("libraries")];
        targets.extend(cache.map(Path::to_owned));
        Store {
            sources: Store::sources_of(executable),
            targets,
        }
    }

    fn built(folder: &Path, contents: &str) {
        std::fs::create_dir_all(folder).unwrap();
        for part in INTERPOSER.iter().chain(&FAKE_DRIVER) {
            let text = format!("{contents} {}", part.built);
            std::fs::write(folder.join(part.built), text).unwrap();
        }
    }

    #[test]
    fn libraries_get_the_names_that_programs_load() {
        let base = tempfile::tempdir().unwrap();
        let (release, run) = (base.path().join("release"), base.path().join("run"));
        built(&release, "one");
        let store = store(&release.join("sublet"), &run, None);
        let first = store.interposer().unwrap();
        assert!(first.cuda.ends_with("libcuda.so.1"));
        assert_eq!(
            std::fs::read_to_string(&first.nvml).unwrap(),
            "one libsublet_nvml.so"
        );
        assert!(first.preload.ends_with("libsublet_preload.so"));
        let (cuda, nvml) = store.fake_driver().unwrap();
        assert_eq!(
            std::fs::read_to_string(&cuda).unwrap(),
            "one libsublet_fakecuda.so"
        );
        assert!(nvml.is_file() && cuda.parent() != first.cuda.parent());

        // The same again, though the folder is not written a second time.
        let before = first.cuda.metadata().unwrap().modified().unwrap();
        assert_eq!(store.interposer().unwrap(), first);
        assert_eq!(first.cuda.metadata().unwrap().modified().unwrap(), before);

        // A new build goes beside the old one, which programs have mapped.
        built(&release, "two");
        let second = store.interposer().unwrap();
        assert_ne!(second.cuda, first.cuda);
        assert_eq!(
            std::fs::read_to_string(&first.cuda).unwrap(),
            "one libsublet_cuda.so"
        );
        let left: Vec<_> = std::fs::read_dir(run.join("libraries")).unwrap().collect();
        assert_eq!(left.len(), 3, "{left:?}");
    }

    #[test]
    fn whoever_is_quicker_has_written_the_same() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("sublet-1");
        let contents = [("a", b"x".to_vec())];
        write(&folder, &contents).unwrap();
        write(&folder, &contents).unwrap();
        assert_eq!(std::fs::read(folder.join("a")).unwrap(), b"x");
        assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_missing_library_is_told_with_all_places() {
        let base = tempfile::tempdir().unwrap();
        let deps = base.path().join("debug/deps");
        let store = store(&deps.join("sublet-1"), &base.path().join("run"), None);
        let text = store.interposer().unwrap_err().to_string();
        let places = format!(
            "libsublet_cuda.so is in none of {}, {}, {}",
            deps.display(),
            base.path().join("debug").display(),
            base.path().join("debug/lib/sublet").display()
        );
        assert_eq!(text, places);
        built(&base.path().join("debug"), "found");
        assert!(store.interposer().is_ok());
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("a/b");
        own_folder(&folder).unwrap();
        own_folder(&folder).unwrap();
        let mode = folder.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&folder, open).unwrap();
        let error = own_folder(&folder).unwrap_err();
        assert!(error.ends_with("other users can write there"), "{error}");
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        let error = own_folder(&link).unwrap_err();
        assert!(error.ends_with("it is no folder"), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_passed_over() {
        let base = tempfile::tempdir().unwrap();
        let bin = base.path().join("bin");
        built(&bin, "x");
        let blocked = base.path().join("file");
        std::fs::write(&blocked, "").unwrap();
        let cache = base.path().join("cache");
        let found = store(&bin.join("sublet"), &blocked, Some(&cache)).interposer();
        assert!(found.unwrap().cuda.starts_with(&cache));
        let error = store(&bin.join("sublet"), &blocked, None).interposer();
        let error = error.unwrap_err().to_string();
        assert!(
            error.starts_with("there is no folder for our libraries: "),
            "{error}"
        );
    }

    /// Wherever this machine has a file system of that kind.
    #[test]
    fn a_file_system_without_programs_is_noticed() {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        for mount in mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>())
        {
            let (place, options) = (Path::new(mount[1]), mount[3]);
            // The last one mounted on a place is the one that is seen.
            let n_there = mounts
                .lines()
                .filter(|line| line.split(' ').nth(1) == Some(mount[1]))
                .count();
            if n_there == 1 && place.is_dir() {
                let expected = options.split(',').any(|option| option == "noexec");
                assert_eq!(is_noexec(place), expected, "{place:?}");
            }
        }
    }
}
