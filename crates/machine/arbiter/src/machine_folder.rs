//! The place of an arbiter's sockets: one folder per user, and in it one per machine (the real
//! one, or a fake one). By it a command and the arbiter find each other without being told,
//! and no other user can put a socket there first. Others may pass through root's folders, and
//! neither list nor change them: a process of root's job that has become another user's finds our
//! libraries, the driver and its socket below.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sublet_abi::settings::MPS_PIPES;
use sublet_share::UserId;

use crate::error::{ArbiterError, at};

/// The name of the real cards' folder; a fake machine's is `fake-<hash>`.
pub const REAL_MACHINE: &str = "gpu";

/// The users that an arbiter serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// The user of the arbiter.
    Owner,
    /// Every user of the machine.
    Everybody,
}

/// Folder of the machine's own arbiter, if it has one for all users.
pub(crate) const SHARED: &str = "/run/sublet";

/// The socket for processes of a job that have become another user's, beside the one of its user.
/// The interposer knows this name, too.
pub(crate) const OTHERS: &str = "others.sock";

/// One machine's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The folder of the machine with that name: under `$SUBLET_RUNTIME_DIR`, else
    /// `/run/sublet` for root or if an arbiter there serves all users, else
    /// `$XDG_RUNTIME_DIR/sublet`, else `/tmp/sublet-<uid>`.
    #[must_use]
    pub fn of(machine: &str) -> Folder {
        let var = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let base = match (var("SUBLET_RUNTIME_DIR"), var("XDG_RUNTIME_DIR")) {
            (Some(base), _) => PathBuf::from(base),
            _ if rustix::process::geteuid().is_root() => PathBuf::from(SHARED),
            _ if Folder::within(Path::new(SHARED), machine).is_for_everybody() => {
                PathBuf::from(SHARED)
            }
            (None, Some(base)) => Path::new(&base).join("sublet"),
            (None, None) => {
                let uid = rustix::process::geteuid().as_raw();
                PathBuf::from(format!("/tmp/sublet-{uid}"))
            }
        };
        Folder::within(&base, machine)
    }

    /// The folder of the machine with that name under a given one.
    #[must_use]
    pub fn within(base: &Path, machine: &str) -> Folder {
        Folder {
            path: base.join(machine),
        }
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Socket for people's commands.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        self.path.join("admin.sock")
    }

    /// Socket for processes of `sublet run`.
    #[must_use]
    pub fn tenant_socket(&self) -> PathBuf {
        self.path.join("tenant.sock")
    }

    /// Socket for processes of root's jobs that have become another user's.
    pub(crate) fn others_socket(&self) -> PathBuf {
        self.path.join(OTHERS)
    }

    /// The one file that one arbiter has locked.
    #[must_use]
    pub fn lock_file(&self) -> PathBuf {
        self.path.join("arbiter.lock")
    }

    /// The folders of users who have jobs, if all users are served.
    pub(crate) fn users(&self) -> PathBuf {
        self.path.join("users")
    }

    /// The folder with the socket of one user's processes, if all users are served.
    pub(crate) fn user(&self, user: UserId) -> PathBuf {
        self.users().join(user.0.to_string())
    }

    /// A file for each job of `sublet run` that has its cards.
    pub(crate) fn jobs(&self) -> PathBuf {
        self.path.join("jobs")
    }

    /// File with the measured figures of the machine's cards: beside the folder, because it
    /// stays when the arbiter ends.
    #[must_use]
    pub fn figures_file(&self) -> PathBuf {
        let machine = self.path.file_name().unwrap_or_default();
        let name = format!("figures-{}.json", machine.to_string_lossy());
        self.path.with_file_name(name)
    }

    /// The daemon of MPS has its folders in here.
    pub(crate) fn mps(&self) -> PathBuf {
        self.path.join("mps")
    }

    /// Folder of the daemon's sockets; made when it is first started.
    #[must_use]
    pub fn mps_pipe(&self) -> PathBuf {
        self.path.join(MPS_PIPES[0])
    }

    /// Log of an arbiter that was started on demand.
    #[must_use]
    pub fn log_file(&self) -> PathBuf {
        self.path.join("arbiter.log")
    }

    /// Checks whether root's arbiter listens there for all users.
    #[must_use]
    pub fn is_for_everybody(&self) -> bool {
        let is_open = |path: &Path, wanted: u32| {
            let about = fs::symlink_metadata(path);
            about.is_ok_and(|about| about.uid() == 0 && about.mode() & wanted == wanted)
        };
        is_open(&self.path, 0o005) && is_open(&self.admin_socket(), 0o006)
    }

    /// Makes the folder, for this user alone or for all to look into. If root's arbiter serves
    /// all users, it is there already.
    ///
    /// # Errors
    /// The folder exists and belongs to another user, or another user can write to it.
    pub fn create(&self, audience: Audience) -> Result<(), ArbiterError> {
        if audience == Audience::Owner && self.is_for_everybody() {
            return self.check();
        }
        if let Some(base) = self.path.parent() {
            let is_new = fs::symlink_metadata(base).is_err();
            make(base)?;
            check_owner(base)?;
            if is_new {
                open_to_pass(base)?;
            }
        }
        make(&self.path)?;
        match audience {
            Audience::Owner => {
                self.check()?;
                open_to_pass(&self.path)
            }
            Audience::Everybody => {
                check_owner(&self.path)?;
                let both = [self.path.parent(), Some(&*self.path)];
                both.into_iter().flatten().try_for_each(open_to_look)?;
                check_unwritable(&self.path)
            }
        }
    }

    /// Checks that a listener in the folder may be trusted: the folder is this user's alone, or
    /// root's for all users, and no other user can have put it, or a socket, there. A missing
    /// folder is no error.
    ///
    /// # Errors
    /// It belongs to another user, or another user can write to it.
    pub fn check(&self) -> Result<(), ArbiterError> {
        let is_there = |folder: &&Path| fs::symlink_metadata(folder).is_ok();
        if let Some(base) = self.path.parent().filter(is_there) {
            check_owner(base)?;
        }
        match is_there(&&*self.path) {
            true if self.is_for_everybody() => check_unwritable(&self.path),
            true => check_private(&self.path),
            false => Ok(()),
        }
    }

    /// Removes the sockets; a file that is not there is no error. Nobody but its owner can look
    /// into the folder any more.
    pub(crate) fn remove_sockets(&self) {
        let _ = fs::set_permissions(&self.path, fs::Permissions::from_mode(own_mode()));
        for socket in [
            self.admin_socket(),
            self.tenant_socket(),
            self.others_socket(),
        ] {
            let _ = fs::remove_file(socket);
        }
        let _ = fs::remove_dir_all(self.users());
    }
}

fn mode_of(folder: &Path) -> Result<u32, ArbiterError> {
    let about = fs::symlink_metadata(folder).map_err(at("looking at", folder.display()))?;
    Ok(about.permissions().mode() & 0o7777)
}

/// Mode of a folder that is this user's alone. Others may pass through root's.
fn own_mode() -> u32 {
    match rustix::process::geteuid().is_root() {
        true => 0o711,
        false => 0o700,
    }
}

/// Lets all users pass through a folder of root's, whatever the mask of new files is.
fn open_to_pass(folder: &Path) -> Result<(), ArbiterError> {
    let mode = mode_of(folder)?;
    if own_mode() & !mode == 0 {
        return Ok(());
    }
    let open = fs::Permissions::from_mode(mode | own_mode());
    fs::set_permissions(folder, open).map_err(at("setting the mode of", folder.display()))
}

/// Lets all users look into a folder. Their other rights stay: it may be /tmp.
fn open_to_look(folder: &Path) -> Result<(), ArbiterError> {
    let open = fs::Permissions::from_mode(mode_of(folder)? | 0o055);
    fs::set_permissions(folder, open).map_err(at("setting the mode of", folder.display()))
}

fn make(folder: &Path) -> Result<(), ArbiterError> {
    let made = fs::DirBuilder::new()
        .mode(own_mode())
        .recursive(true)
        .create(folder);
    match made {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(at("making", folder.display())(error))
        }
        _ => Ok(()),
    }
}

/// Checks that the folder is this user's or root's, and no other user may use it. Others may pass
/// through root's.
pub(crate) fn check_private(folder: &Path) -> Result<(), ArbiterError> {
    check_owner(folder)?;
    let about = fs::symlink_metadata(folder).map_err(at("looking at", folder.display()))?;
    let mode = about.mode() & 0o777;
    let others = if about.uid() == 0 { 0o066 } else { 0o077 };
    let why = format!("others may use it (mode {mode:o}); it needs 700");
    check(mode & others == 0, folder, why)
}

/// Checks that only its owner can put something into the folder.
pub(crate) fn check_unwritable(folder: &Path) -> Result<(), ArbiterError> {
    let mode = mode_of(folder)?;
    let why = format!(
        "others may write to it (mode {:o}); it needs 755",
        mode & 0o777
    );
    check(mode & 0o022 == 0, folder, why)
}

fn check(is_right: bool, folder: &Path, why: String) -> Result<(), ArbiterError> {
    let folder = folder.to_owned();
    is_right
        .then_some(())
        .ok_or(ArbiterError::Folder { folder, why })
}

/// The folder is one, no link, and root's or this user's. With neither, its owner could put
/// another one in its place.
fn check_owner(folder: &Path) -> Result<(), ArbiterError> {
    let about = fs::symlink_metadata(folder).map_err(at("looking at", folder.display()))?;
    let me = rustix::process::geteuid().as_raw();
    check(about.is_dir(), folder, "it is no folder".to_owned())?;
    let why = format!("it belongs to user {}, not {me}", about.uid());
    check(about.uid() == me || about.uid() == 0, folder, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_for_its_owner_alone() {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::within(&base.path().join("a/b"), "gpu");
        folder.create(Audience::Owner).unwrap();
        folder.create(Audience::Owner).unwrap();
        // A process that has become another user's passes through root's.
        for made in ["a/b", "a/b/gpu"] {
            assert_eq!(mode_of(&base.path().join(made)).unwrap(), own_mode());
        }
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        folder.create(Audience::Owner).unwrap();
        assert_eq!(mode_of(folder.path()).unwrap(), own_mode());
        assert!(folder.admin_socket().ends_with("a/b/gpu/admin.sock"));
    }

    #[test]
    fn a_folder_for_everybody_leaves_the_one_above_as_it_is() {
        let base = tempfile::tempdir().unwrap();
        let open = fs::Permissions::from_mode(0o1777);
        fs::set_permissions(base.path(), open).unwrap();
        let folder = Folder::within(base.path(), "gpu");
        folder.create(Audience::Everybody).unwrap();
        assert_eq!(mode_of(base.path()).unwrap(), 0o1777);
        assert_eq!(mode_of(folder.path()).unwrap(), 0o755);
        // What is kept there is believed after a restart.
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(folder.path(), open).unwrap();
        let error = folder.create(Audience::Everybody).unwrap_err().to_string();
        assert!(
            error.contains("others may write to it (mode 777)"),
            "{error}"
        );
    }

    #[test]
    fn a_folder_that_others_may_use_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let folder = Folder::within(base.path(), "gpu");
        folder.create(Audience::Owner).unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let error = folder.create(Audience::Owner).unwrap_err().to_string();
        assert!(error.contains("mode 755"), "{error}");
        fs::remove_dir(folder.path()).unwrap();
        std::os::unix::fs::symlink("/tmp", folder.path()).unwrap();
        let error = folder.create(Audience::Owner).unwrap_err().to_string();
        assert!(error.contains("is no folder"), "{error}");
    }
}
