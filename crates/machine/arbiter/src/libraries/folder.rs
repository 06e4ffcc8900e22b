//! One folder of libraries: checks its place, publishes it complete or not at all, and repairs
//! it if a machine that lost power, or a cleaner of old files, has removed some of it. A
//! process that names it to others holds a lock on it meanwhile; removing is the business of
//! `unused`, which takes the same lock.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::time::SystemTime;

use rustix::fs::{FlockOperation, StatVfsMountFlags, flock, statvfs};

use super::content::Content;

/// Names of files, and their contents.
pub(super) type Contents<'a> = [(&'a str, Content<'a>)];

/// A folder that is not removed while this lives.
#[derive(Debug)]
pub(super) struct HeldFolder {
    folder: PathBuf,
    _lock: File,
}

impl HeldFolder {
    /// The folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Locks a folder; nothing if it is not there, or was removed just before.
    fn take(folder: &Path) -> io::Result<Option<HeldFolder>> {
        let lock = match File::open(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        // Where a file system has no locks, nobody can take the one that removing needs.
        let _no_locks = rustix::io::retry_on_intr(|| flock(&lock, FlockOperation::LockShared));
        if !is_still(folder, &lock) {
            return Ok(None);
        }
        // What is used is young; where it cannot be changed, it cannot be removed either.
        let _read_only = lock.set_modified(SystemTime::now());
        let folder = folder.to_owned();
        Ok(Some(HeldFolder {
            folder,
            _lock: lock,
        }))
    }
}

/// True while the path is that of the open folder.
pub(super) fn is_still(path: &Path, open: &File) -> bool {
    let identity = |about: fs::Metadata| (about.dev(), about.ino());
    let now = path.symlink_metadata().map(identity).ok();
    now.is_some() && now == open.metadata().map(identity).ok()
}

/// Returns the folder of that name with exactly these contents, made or repaired if need be.
///
/// # Errors
/// Reason why it cannot be in `target`, in words for people.
pub(super) fn publish(
    target: &Path,
    name: &str,
    contents: &Contents<'_>,
) -> Result<HeldFolder, String> {
    own(target)?;
    // `/run` is mounted so on Debian and Ubuntu: the kernel loads no code from there.
    if is_noexec(target) {
        return Err("it is mounted noexec".to_owned());
    }
    let unwritable = |error: io::Error| format!("cannot write there: {error}");
    let folder = target.join(name);
    loop {
        if !folder.is_dir() {
            write(&folder, contents).map_err(unwritable)?;
        }
        // Nothing if somebody has removed it in between; a new one is too young for that.
        if let Some(held) = HeldFolder::take(&folder).map_err(unwritable)? {
            repair(&folder, contents).map_err(unwritable)?;
            return Ok(held);
        }
    }
}

/// Makes a folder that only this user can change, or finds that it is one. All users may look into
/// root's: what root starts may become another user's before it loads a library. What others start
/// can only become root's or another user's as a setuid program, which obeys no variable.
///
/// # Errors
/// It cannot be made, or belongs to another user, who could put another library in place of
/// ours.
pub(super) fn own(folder: &Path) -> Result<(), String> {
    let is_root = rustix::process::geteuid().is_root();
    let above = folder.parent().filter(|above| is_root && !above.exists());
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder);
    let about = made.and_then(|()| folder.symlink_metadata());
    let about = about.map_err(|error| error.to_string())?;
    let wrong = if !about.is_dir() {
        "it is no folder"
    } else if about.uid() != rustix::process::geteuid().as_raw() {
        "it belongs to another user"
    } else if about.mode() & 0o022 != 0 {
        "other users can write there"
    } else {
        if is_root {
            let mode = |mode| fs::Permissions::from_mode(mode);
            // Where it cannot be changed, it is as it is. Nobody else could put another in its place.
            let _read_only = fs::set_permissions(folder, mode((about.mode() & 0o7777) | 0o055));
            let _as_it_is = above.map(|above| fs::set_permissions(above, mode(0o711)));
        }
        return Ok(());
    };
    Err(wrong.to_owned())
}

pub(super) fn is_noexec(folder: &Path) -> bool {
    statvfs(folder).is_ok_and(|about| about.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// Writes a folder under another name and gives it its own when it is complete.
fn write(folder: &Path, contents: &Contents<'_>) -> io::Result<()> {
    let draft = draft_of(folder);
    // Left by a process of the same number that was killed meanwhile.
    let _absent = fs::remove_dir_all(&draft);
    fs::create_dir(&draft)?;
    let written = (|| {
        for (name, content) in contents {
            write_file(&draft.join(name), content)?;
        }
        // Whatever the mask of new files is: a container's processes have any user.
        fs::set_permissions(&draft, fs::Permissions::from_mode(0o755))?;
        fs::rename(&draft, folder)
    })();
    if written.is_err() {
        let _absent = fs::remove_dir_all(&draft);
    }
    match written {
        // Somebody else was quicker, with the same contents.
        Err(_) if folder.is_dir() => Ok(()),
        written => written,
    }
}

/// Puts every file back that differs from the written one. A file that a process has mapped
/// keeps its contents: the new file is another one, of the same name.
fn repair(folder: &Path, contents: &Contents<'_>) -> io::Result<()> {
    for (name, content) in contents {
        let file = folder.join(name);
        if is_complete(&file, content) {
            continue;
        }
        let draft = draft_of(&file);
        let written = write_file(&draft, content).and_then(|()| fs::rename(&draft, &file));
        match written {
            // Somebody else was at it, too.
            Err(_) if is_complete(&file, content) => {}
            written => written?,
        }
    }
    Ok(())
}

/// True if every user can load it and it has exactly this content.
fn is_complete(file: &Path, content: &Content<'_>) -> bool {
    let about = file.symlink_metadata();
    about.is_ok_and(|about| about.is_file() && about.mode() & 0o555 == 0o555)
        && fs::read(file).is_ok_and(|found| content.is(&found))
}

fn write_file(file: &Path, content: &Content<'_>) -> io::Result<()> {
    fs::write(file, content.bytes()?)?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o555))
}

/// A hidden name beside a file or folder, which no other process uses now.
pub(super) fn draft_of(path: &Path) -> PathBuf {
    let name = path.file_name().map(|name| name.to_string_lossy());
    let name: Cow<'_, str> = name.unwrap_or_default();
    path.with_file_name(format!(".{name}.{}", process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENTS: [(&str, Content<'static>); 2] =
        [("a", Content::plain(b"one")), ("b", Content::plain(b"two"))];

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn whoever_is_quicker_has_written_the_same() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("sublet-1");
        write(&folder, &CONTENTS).unwrap();
        write(&folder, &CONTENTS).unwrap();
        assert_eq!(fs::read(folder.join("a")).unwrap(), b"one");
        assert_eq!(names(base.path()), ["sublet-1"]);
    }

    #[test]
    fn what_was_damaged_is_repaired_and_the_rest_left_alone() {
        type Damage = fn(&Path);
        let damages: [Damage; 5] = [
            |file| fs::write(file, "").unwrap(),
            |file| fs::write(file, "onf").unwrap(),
            |file| fs::remove_file(file).unwrap(),
            |file| fs::set_permissions(file, fs::Permissions::from_mode(0o700)).unwrap(),
            |file| {
                fs::remove_file(file).unwrap();
                std::os::unix::fs::symlink("b", file).unwrap();
            },
        ];
        for damage in damages {
            let base = tempfile::tempdir().unwrap();
            let held = publish(base.path(), "sublet-1", &CONTENTS).unwrap();
            let (a, b) = (held.folder().join("a"), held.folder().join("b"));
            // What has it open, as a mapping has, sees no change.
            let mut old = File::open(&a).unwrap();
            let untouched = b.metadata().unwrap().ino();
            fs::set_permissions(&a, fs::Permissions::from_mode(0o755)).unwrap();
            damage(&a);
            let was = io::read_to_string(&mut old).unwrap();
            publish(base.path(), "sublet-1", &CONTENTS).unwrap();
            assert!(
                is_complete(&a, &Content::plain(b"one"))
                    && is_complete(&b, &Content::plain(b"two"))
            );
            assert_eq!(b.metadata().unwrap().ino(), untouched);
            assert_ne!(old.metadata().unwrap().ino(), a.metadata().unwrap().ino());
            io::Seek::rewind(&mut old).unwrap();
            assert_eq!(io::read_to_string(&mut old).unwrap(), was);
            assert_eq!(names(held.folder()), ["a", "b"]);
        }
    }

    #[test]
    fn half_a_folder_never_has_its_name() {
        let base = tempfile::tempdir().unwrap();
        // A name that cannot be a file's is found out after the first file.
        let broken = [CONTENTS[0].clone(), ("no/file", Content::plain(b"x"))];
        let why = publish(base.path(), "sublet-1", &broken).unwrap_err();
        assert!(why.starts_with("cannot write there: "), "{why}");
        assert_eq!(names(base.path()), [""; 0]);
    }

    #[test]
    fn a_folder_that_others_can_write_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("a/b");
        own(&folder).unwrap();
        own(&folder).unwrap();
        let mode = |folder: &Path| folder.metadata().unwrap().permissions().mode() & 0o777;
        let is_root = rustix::process::geteuid().is_root();
        let modes = if is_root {
            [0o711, 0o755]
        } else {
            [0o700, 0o700]
        };
        assert_eq!([mode(&base.path().join("a")), mode(&folder)], modes);
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(&folder, open).unwrap();
        assert_eq!(own(&folder).unwrap_err(), "other users can write there");
        let link = base.path().join("link");
        std::os::unix::fs::symlink(base.path(), &link).unwrap();
        assert_eq!(own(&link).unwrap_err(), "it is no folder");
    }

    /// Wherever this machine has a file system of that kind.
    #[test]
    fn a_file_system_without_programs_is_noticed() {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
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
