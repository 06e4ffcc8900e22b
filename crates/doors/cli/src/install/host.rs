//! The files of a control plane's node: the static pod's manifest, its earlier text, and the
//! configuration that its scheduler reads. Each is written in one step or not at all.
//!
//! Nothing but the manifest is ever put into the folder of static pods, because kubelet runs
//! whatever it finds there. Names that begin with a dot are the exception: kubelet passes them over.

#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::static_pod::{self, Patched, Refusal, Wish};

/// Readable by root alone, as kubeadm writes manifests.
const MODE: u32 = 0o600;

/// Reason why the scheduler's manifest cannot be changed here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("there is no {0}")]
    Missing(PathBuf),
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, #[source] io::Error),
    #[error("cannot write {0}: {1}")]
    Write(PathBuf, #[source] io::Error),
    #[error("{0}: {1}")]
    Refused(PathBuf, #[source] Refusal),
}

impl Trouble {
    /// Advice against the trouble.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            Trouble::Missing(_) => {
                "run this on the control plane's node, or say --manifests-dir FOLDER: kubelet's \
                 staticPodPath"
            }
            Trouble::Read(..) | Trouble::Write(..) => {
                "run this as root on the control plane's node"
            }
            Trouble::Refused(..) => {
                "change what it names, or leave the cluster's own scheduler alone: pods with \
                 `schedulerName: sublet-scheduler` need no patch"
            }
        }
    }
}

/// Folder of the manifests.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    manifests: PathBuf,
}

/// A change of the manifest that was worked out and not yet made.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    before: String,
    /// The configuration that was there, if any.
    configuration_before: Option<String>,
    after: String,
    configuration_after: Option<String>,
    /// The mark of the pod that must come up; `None` for one that is not patched.
    pub(crate) mark: Option<String>,
}

impl Change {
    /// Whether there is nothing to do.
    pub(crate) fn is_none(&self) -> bool {
        self.before == self.after && self.configuration_before == self.configuration_after
    }

    /// The way back.
    pub(crate) fn undone(&self) -> Change {
        Change {
            before: self.after.clone(),
            configuration_before: self.configuration_after.clone(),
            after: self.before.clone(),
            configuration_after: self.configuration_before.clone(),
            mark: static_pod::mark_of(&self.before),
        }
    }
}

impl Place {
    /// With the manifests in this folder.
    pub(crate) fn new(manifests: &Path) -> Place {
        // A path in a manifest must be absolute.
        let manifests = std::path::absolute(manifests).unwrap_or_else(|_| manifests.to_owned());
        Place { manifests }
    }

    /// The manifest of the kube-scheduler.
    pub(crate) fn manifest(&self) -> PathBuf {
        self.manifests.join("kube-scheduler.yaml")
    }

    /// Our own folder beside that of the manifests.
    fn folder(&self) -> PathBuf {
        let beside = self.manifests.parent().unwrap_or(&self.manifests);
        beside.join("sublet")
    }

    fn configuration(&self) -> PathBuf {
        self.folder().join("kube-scheduler-configuration.yaml")
    }

    /// The manifest as it was before it was patched.
    pub(crate) fn backup(&self) -> PathBuf {
        self.folder().join("kube-scheduler.yaml.before")
    }

    /// Change that makes the scheduler ask the extender at this port.
    ///
    /// # Errors
    /// A file that cannot be read, or a manifest that is refused.
    pub(crate) fn patched(&self, port: u16) -> Result<Change, Trouble> {
        let path = self.manifest();
        let before = read(&path)?.ok_or_else(|| Trouble::Missing(path.clone()))?;
        let refused = |refusal| Trouble::Refused(path.clone(), refusal);
        let own = match static_pod::own_configuration(&before).map_err(refused)? {
            Some(file) => Some(read(&file)?.ok_or(Trouble::Missing(file))?),
            None => None,
        };
        let wish = Wish {
            configuration: self.configuration(),
            port,
        };
        let Patched {
            manifest,
            configuration,
            mark,
        } = static_pod::patch(&before, own.as_deref(), &wish).map_err(refused)?;
        Ok(Change {
            // What says the same stays as it is written.
            after: match static_pod::is_same(&before, &manifest) {
                true => before.clone(),
                false => manifest,
            },
            before,
            configuration_before: read(&self.configuration())?,
            configuration_after: Some(configuration),
            mark: Some(mark),
        })
    }

    /// Change that restores the scheduler as it was; `None` if the manifest is not patched.
    /// Restores the very bytes that were saved, if they mean the same as the manifest without the
    /// patch.
    ///
    /// # Errors
    /// A file that cannot be read, or a manifest that is none.
    pub(crate) fn restored(&self) -> Result<Option<Change>, Trouble> {
        let path = self.manifest();
        let before = read(&path)?.ok_or_else(|| Trouble::Missing(path.clone()))?;
        let bare = static_pod::unpatch(&before);
        let Some(bare) = bare.map_err(|refusal| Trouble::Refused(path, refusal))? else {
            return Ok(None);
        };
        let saved = read(&self.backup())?;
        let saved = saved.filter(|saved| static_pod::is_same(saved, &bare));
        Ok(Some(Change {
            before,
            configuration_before: read(&self.configuration())?,
            after: saved.unwrap_or(bare),
            configuration_after: None,
            mark: None,
        }))
    }

    /// Makes a change: first the files that the new manifest needs, then the manifest. A manifest
    /// that is not patched is saved first. A configuration that nothing needs stays until
    /// [`Place::tidy`].
    ///
    /// # Errors
    /// A file that cannot be written; the manifest is then the old one.
    pub(crate) fn make(&self, change: &Change) -> Result<(), Trouble> {
        let folder = self.folder();
        fs::create_dir_all(&folder).map_err(|error| Trouble::Write(folder, error))?;
        if static_pod::mark_of(&change.before).is_none() {
            write(&self.backup(), &change.before)?;
        }
        if let Some(configuration) = &change.configuration_after {
            write(&self.configuration(), configuration)?;
        }
        write(&self.manifest(), &change.after)
    }

    /// Removes the files that an unpatched scheduler does not need.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub(crate) fn tidy(&self) -> Result<(), Trouble> {
        for file in [self.backup(), self.configuration()] {
            unless_missing(fs::remove_file(&file)).map_err(|error| Trouble::Write(file, error))?;
        }
        // Somebody may keep a file of their own there.
        let _not_empty = fs::remove_dir(self.folder());
        Ok(())
    }
}

fn read(path: &Path) -> Result<Option<String>, Trouble> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Trouble::Read(path.to_owned(), error)),
    }
}

/// Writes a file beside its place and renames it. Kubelet passes over names with a dot in front.
fn write(path: &Path, text: &str) -> Result<(), Trouble> {
    let in_one_step = || -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        let mut file = tempfile::Builder::new()
            .prefix(".sublet-")
            .tempfile_in(folder)?;
        file.write_all(text.as_bytes())?;
        let mode = fs::metadata(path).map_or(MODE, |found| found.permissions().mode());
        file.as_file()
            .set_permissions(fs::Permissions::from_mode(mode))?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    in_one_step().map_err(|error| Trouble::Write(path.to_owned(), error))
}

fn unless_missing(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
