//! Our libraries under the names that programs load, and the demonstration's programs. They come
//! from inside the executable, or from files where they were built or installed, and are copied to
//! a folder named after their contents. A file that a process has mapped is never written to: other contents are another
//! folder, and a file appears complete or not at all. `sublet run` and the node agent use the
//! module and choose these folders.
//!
//! [`folder`] makes one and repairs it, [`unused`] decides when one may go, [`content`] is what a file
//! has in it.

mod content;
mod folder;
mod unused;

use std::hash::Hasher;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use content::Content;
use folder::{Contents, HeldFolder};

/// The file name of our wrapper of `dlopen`, by which an outer job's preloads are known.
pub const PRELOAD: &str = "libsublet_preload.so";

/// The libraries inside an executable, each packed by gzip.
#[derive(Debug)]
pub struct Carried {
    /// `libsublet_cuda.so`.
    pub cuda: &'static [u8],
    /// `libsublet_nvml.so`.
    pub nvml: &'static [u8],
    /// `libsublet_preload.so`.
    pub preload: &'static [u8],
    /// `libsublet_fakecuda.so`.
    pub fake_cuda: &'static [u8],
    /// `libsublet_fakenvml.so`.
    pub fake_nvml: &'static [u8],
    /// `sublet-workload`, the programs of the demonstration.
    pub workload: &'static [u8],
}

/// A library: its name as built, its place in the executable, and the name that programs load.
struct Part {
    built: &'static str,
    carried: fn(&Carried) -> &'static [u8],
    loaded: &'static str,
}

const INTERPOSER: [Part; 3] = [
    Part {
        built: "libsublet_cuda.so",
        carried: |all| all.cuda,
        loaded: "libcuda.so.1",
    },
    Part {
        built: "libsublet_nvml.so",
        carried: |all| all.nvml,
        loaded: "libnvidia-ml.so.1",
    },
    Part {
        built: "libsublet_preload.so",
        carried: |all| all.preload,
        loaded: PRELOAD,
    },
];

const FAKE_DRIVER: [Part; 2] = [
    Part {
        built: "libsublet_fakecuda.so",
        carried: |all| all.fake_cuda,
        loaded: "libcuda.so.1",
    },
    Part {
        built: "libsublet_fakenvml.so",
        carried: |all| all.fake_nvml,
        loaded: "libnvidia-ml.so.1",
    },
];

const WORKLOAD: [Part; 1] = [Part {
    built: "sublet-workload",
    carried: |all| all.workload,
    loaded: "sublet-workload",
}];

/// Ways in which libraries can be missing.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// One was not built, or not installed.
    #[error("{file} is in none of {}", listed(folders))]
    Missing {
        /// The file.
        file: &'static str,
        /// The folders that were searched.
        folders: Vec<PathBuf>,
    },
    /// One is there and cannot be read.
    #[error("cannot read {}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's error.
        #[source]
        cause: io::Error,
    },
    /// No folder can hold the copies.
    #[error("there is no folder for our libraries: {}", refused.join("; "))]
    NoFolder {
        /// Each folder that was tried, and its fault.
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

/// Source of the libraries.
#[derive(Debug, Clone)]
pub enum LibrarySource {
    /// The executable itself.
    Carried(&'static Carried),
    /// Folders to look into, in this order.
    Folders(Vec<PathBuf>),
}

impl LibrarySource {
    /// An executable's own libraries: those inside it, else the ones beside it. The inner ones
    /// come first, because they are of the same build; any other release may have left the
    /// files beside a released executable.
    #[must_use]
    pub fn of(executable: &Path, carried: Option<&'static Carried>) -> LibrarySource {
        if let Some(carried) = carried {
            return LibrarySource::Carried(carried);
        }
        let beside = executable.parent().unwrap_or(Path::new("/"));
        let mut folders = vec![beside.to_owned()];
        if let Some(above) = beside.parent() {
            // Tests are built into a folder below the libraries' own.
            if beside.ends_with("deps") {
                folders.push(above.to_owned());
            }
            folders.push(above.join("lib/sublet"));
        }
        LibrarySource::Folders(folders)
    }

    fn read(&self, part: &Part) -> Result<Content<'static>, LibraryError> {
        let folders = match self {
            LibrarySource::Carried(all) => return Ok(Content::Packed((part.carried)(all))),
            LibrarySource::Folders(folders) => folders,
        };
        for folder in folders {
            let file = folder.join(part.built);
            match std::fs::read(&file) {
                Ok(contents) => return Ok(Content::Plain(contents.into())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(LibraryError::Unreadable { file, cause }),
            }
        }
        Err(LibraryError::Missing {
            file: part.built,
            folders: folders.clone(),
        })
    }
}

/// Source and target of libraries. While it lives, no process removes the folders that it has
/// named.
#[derive(Debug)]
pub struct Store {
    source: LibrarySource,
    targets: Vec<PathBuf>,
    held: Mutex<Vec<HeldFolder>>,
}

impl Store {
    /// A store of these libraries. `targets` are the folders that can hold the copies; the
    /// first one that can be written and that code can be loaded from is used.
    #[must_use]
    pub fn new(source: LibrarySource, targets: Vec<PathBuf>) -> Store {
        Store {
            source,
            targets,
            held: Mutex::default(),
        }
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
        more: &[(&'static str, Vec<u8>)],
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

    /// The programs of the demonstration, in one file.
    ///
    /// # Errors
    /// As [`Store::interposer`].
    pub fn workload(&self) -> Result<PathBuf, LibraryError> {
        let folder = self.publish("workload", &WORKLOAD, &[])?;
        let [program] = WORKLOAD.map(|part| folder.join(part.loaded));
        Ok(program)
    }

    /// Removes folders of other versions that nothing can need any more, by the rule of
    /// [`unused`], and returns them. `needed` are folders that the caller knows a use of.
    pub fn remove_unused(&self, needed: &[PathBuf]) -> Vec<PathBuf> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let held = held.iter().map(|held| held.folder().to_owned());
        let needed: Vec<PathBuf> = held.chain(needed.iter().cloned()).collect();
        let mut removed = Vec::new();
        for target in &self.targets {
            removed.extend(unused::remove(target, &needed));
        }
        removed
    }

    /// The folder that has all these parts under the names that programs load.
    fn publish(
        &self,
        name: &str,
        parts: &[Part],
        more: &[(&'static str, Vec<u8>)],
    ) -> Result<PathBuf, LibraryError> {
        let mut contents = Vec::new();
        for part in parts {
            contents.push((part.loaded, self.source.read(part)?));
        }
        for (file, bytes) in more {
            contents.push((*file, Content::plain(bytes)));
        }
        let name = format!("{name}-{:016x}", digest(&contents));
        let mut refused = Vec::new();
        for target in &self.targets {
            match folder::publish(target, &name, &contents) {
                Ok(held) => {
                    let folder = held.folder().to_owned();
                    let mut all = self.held.lock().unwrap_or_else(PoisonError::into_inner);
                    all.push(held);
                    return Ok(folder);
                }
                Err(why) => refused.push(format!("{}: {why}", target.display())),
            }
        }
        Err(LibraryError::NoFolder { refused })
    }
}

/// A number made of the contents. It names a folder on this machine only, so that it may
/// change with the toolchain.
fn digest(contents: &Contents<'_>) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    for (name, content) in contents {
        let bytes = content.mark();
        hasher.write(name.as_bytes());
        hasher.write_u64(bytes.len() as u64);
        hasher.write(bytes);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
