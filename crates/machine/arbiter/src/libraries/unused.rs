//! Decides when a folder of libraries may go. Every version of Sublet leaves one. A program
//! whose environment names a missing library starts all the same, without it, and so without a
//! limit: when in doubt, a folder stays. It goes when all of these conditions hold.
//!
//! 1. No process has named it for a day. Naming makes it young again (`folder::HeldFolder`). So
//!    does finding it in use, so processes are looked at once a day at most.
//! 2. No process of ours holds it: `sublet run`, an arbiter and an agent hold a lock on the
//!    folders that they have named for as long as they live. A job may wait in line for days
//!    before anything is loaded.
//! 3. The caller knows of no use. The agent names the folders of every container of its node
//!    that kubelet may start again: kubelet mounts the folders that it was told when the
//!    container was new.
//! 4. No process has one of the files mapped, or the folder in its environment, which it would
//!    pass on to the programs that it starts. That covers programs that `sublet run` has started
//!    and left behind. In a container the path is another one, so mapped files are recognised by
//!    their inode number; two of different file systems that are equal keep a folder longer.
//! 5. All processes could be looked at: in a PID name space of our own we see too few. A process
//!    of our user that cannot be looked at counts as one that needs everything, unless its name
//!    is one of ours (rule 2 covers those), or it is the machine's first process, which no
//!    program has started.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

use super::folder::{draft_of, is_still, own};

/// Shortest time since the last naming of a folder. Much longer than from the naming of a library
/// to its loading, and much shorter than from one version to the next.
const REST: Duration = Duration::from_secs(24 * 60 * 60);

/// The PID name space of the machine itself, in the kernel's fixed numbers of name spaces
/// (`PROC_PID_INIT_INO`).
const MACHINES_OWN: &str = "pid:[4026531836]";

/// Removes the unused folders from a folder of such folders, and returns them.
pub(super) fn remove(target: &Path, needed: &[PathBuf]) -> Vec<PathBuf> {
    if !target.is_dir() || own(target).is_err() {
        return Vec::new();
    }
    let mut old = Vec::new();
    for entry in fs::read_dir(target).into_iter().flatten().flatten() {
        let path = entry.path();
        if is_draft(&path) {
            // Its writer was killed: nobody was ever told its name.
            if File::open(&path).is_ok_and(|open| is_old(&open)) {
                let _as_before = fs::remove_dir_all(&path);
            }
        } else if !needed.contains(&path) {
            old.extend(Old::take(path));
        }
    }
    if old.is_empty() || !sees_all_processes() {
        return Vec::new();
    }
    let mut removed = Vec::new();
    for (old, is_used) in old.iter().zip(used(&old)) {
        if is_used {
            let _as_before = old.lock.set_modified(SystemTime::now());
        } else if old.remove().is_ok() {
            removed.push(old.folder.clone());
        }
    }
    removed
}

/// A folder not named for long, which no process can name while this lives.
struct Old {
    folder: PathBuf,
    lock: File,
    /// The numbers of its files' inodes.
    inodes: BTreeSet<u64>,
}

impl Old {
    fn take(folder: PathBuf) -> Option<Old> {
        let lock = File::open(&folder).ok()?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
        // Looked at only now: whoever had the lock before may have used it.
        if !is_still(&folder, &lock) || !is_old(&lock) {
            return None;
        }
        let files = fs::read_dir(&folder).ok()?;
        let inodes = files.map(|file| Ok(file?.metadata()?.ino()));
        let inodes = inodes.collect::<io::Result<_>>().ok()?;
        Some(Old {
            folder,
            lock,
            inodes,
        })
    }

    /// True if a process with this memory map and environment needs it.
    fn is_used(&self, maps: &[u8], environment: &[u8]) -> bool {
        let path = self.folder.as_os_str().as_encoded_bytes();
        let names = |text: &[u8]| text.windows(path.len()).any(|part| part == path);
        // addresses, rights, offset, device, inode, path
        let inode = |line: &[u8]| {
            let words = line.split(|byte| *byte == b' ');
            let inode = words.filter(|word| !word.is_empty()).nth(4)?;
            std::str::from_utf8(inode).ok()?.parse::<u64>().ok()
        };
        let mut lines = maps.split(|byte| *byte == b'\n');
        let has_mapped = |line| inode(line).is_some_and(|inode| self.inodes.contains(&inode));
        names(environment) || names(maps) || lines.any(has_mapped)
    }

    /// Takes its name away first, so that no process finds half of it.
    fn remove(&self) -> io::Result<()> {
        let draft = draft_of(&self.folder);
        fs::rename(&self.folder, &draft)?;
        fs::remove_dir_all(&draft)
    }
}

fn is_draft(path: &Path) -> bool {
    let name = path.file_name();
    name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn is_old(open: &File) -> bool {
    let changed = open.metadata().and_then(|about| about.modified());
    // A time in the future has no age.
    let age = changed.ok().and_then(|changed| changed.elapsed().ok());
    age.is_some_and(|age| age >= REST)
}

/// True if no process of this machine is hidden from us by a name space.
pub(super) fn sees_all_processes() -> bool {
    fs::read_link("/proc/self/ns/pid").is_ok_and(|own| own == Path::new(MACHINES_OWN))
}

/// For each folder, whether a process needs it.
fn used(old: &[Old]) -> Vec<bool> {
    let mut used = vec![false; old.len()];
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let process = entry.path();
        match entry.file_name().to_string_lossy().parse::<u32>() {
            Err(_) | Ok(1) => continue,
            Ok(_) => {}
        }
        let maps = fs::read(process.join("maps"));
        let environment = fs::read(process.join("environ"));
        if [&maps, &environment].into_iter().any(is_denied) && may_be_a_job_s(&process) {
            return vec![true; old.len()];
        }
        let (maps, environment) = (maps.unwrap_or_default(), environment.unwrap_or_default());
        for (used, old) in used.iter_mut().zip(old) {
            *used = *used || old.is_used(&maps, &environment);
        }
    }
    used
}

/// True if a process is there and may not be read by this one.
fn is_denied(read: &io::Result<Vec<u8>>) -> bool {
    matches!(read, Err(error) if error.kind() == io::ErrorKind::PermissionDenied)
}

/// Returns true unless the process is another user's, which cannot load from our folders, or one
/// of our own programs. From root's folders others can load, and root may look at all of them.
fn may_be_a_job_s(process: &Path) -> bool {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let user = value("Uid:").and_then(|uids| uids.split_whitespace().next()?.parse().ok());
    let is_own = user == Some(rustix::process::getuid().as_raw());
    is_own && value("Name:").map(str::trim) != Some("sublet")
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use super::super::content::Content;
    use super::super::folder::publish;
    use super::*;

    /// A folder with a library, of that age.
    fn aged(target: &Path, name: &str, age: Duration) -> PathBuf {
        let contents = [("libcuda.so.1", Content::plain(name.as_bytes()))];
        let held = publish(target, name, &contents).unwrap();
        let folder = held.folder().to_owned();
        age_of(&folder, age);
        folder
    }

    fn age_of(folder: &Path, age: Duration) {
        let then = SystemTime::now() - age;
        File::open(folder).unwrap().set_modified(then).unwrap();
    }

    struct Ended(Child);

    impl Drop for Ended {
        fn drop(&mut self) {
            let _gone = self.0.kill();
            let _gone = self.0.wait();
        }
    }

    /// A process that waits until it is dropped. A program that was just written may be open
    /// for writing in a process that a test beside this one is starting: until that runs, the
    /// system calls the program busy.
    fn sleeper(command: &mut Command) -> Ended {
        let command = command.arg("600").stdin(Stdio::null());
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match command.spawn() {
                Err(error)
                    if error.kind() == io::ErrorKind::ExecutableFileBusy
                        && Instant::now() < deadline =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                child => {
                    let child = Ended(child.unwrap());
                    // The kernel lets us go on before it has put the environment there.
                    let environment = format!("/proc/{}/environ", child.0.id());
                    while fs::read(&environment).unwrap().is_empty() && Instant::now() < deadline {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    return child;
                }
            }
        }
    }

    /// Returns the removed folders. A test beside this one may be starting a program, which
    /// has our locks until it runs: so more than one look may be needed.
    fn removed(target: &Path, needed: &[PathBuf]) -> Vec<PathBuf> {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let removed = remove(target, needed);
            if !removed.is_empty() || Instant::now() >= deadline {
                return removed;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether processes can be looked at here.
    fn is_skipped() -> bool {
        let skipped = !sees_all_processes();
        if skipped {
            println!("skipped: this is a PID name space of its own, where nothing is removed");
        }
        skipped
    }

    #[test]
    fn only_what_is_old_and_not_needed_goes() {
        if is_skipped() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let target = base.path();
        let old = aged(target, "sublet-old", 2 * REST);
        let young = aged(target, "sublet-young", REST / 2);
        let needed = aged(target, "fake-needed", 2 * REST);
        let draft = target.join(".sublet-x.1");
        fs::create_dir(&draft).unwrap();
        let needed = [needed];
        assert_eq!(removed(target, &needed), [&*old]);
        assert!(!old.exists() && young.exists() && needed[0].exists());
        assert!(draft.exists(), "its writer may be at work");
        age_of(&draft, 2 * REST);
        assert!(remove(target, &needed).is_empty());
        assert!(!draft.exists());
        assert_eq!(fs::read_dir(target).unwrap().count(), 2);
    }

    #[test]
    fn what_a_process_of_ours_has_named_stays() {
        if is_skipped() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let contents = [("libcuda.so.1", Content::plain(b"x"))];
        let held = publish(base.path(), "sublet-1", &contents).unwrap();
        let folder = held.folder().to_owned();
        age_of(&folder, 2 * REST);
        assert!(remove(base.path(), &[]).is_empty());
        // Naming it once more makes it young.
        drop(held);
        drop(publish(base.path(), "sublet-1", &contents).unwrap());
        assert!(remove(base.path(), &[]).is_empty());
        age_of(&folder, 2 * REST);
        assert_eq!(removed(base.path(), &[]), [folder]);
    }

    #[test]
    fn what_a_process_has_in_its_environment_stays() {
        if is_skipped() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let folder = aged(base.path(), "sublet-1", 2 * REST);
        let list = format!("a.so:{}/libcuda.so.1", folder.display());
        let job = sleeper(Command::new("sleep").env("SOME_LIST", list));
        assert!(remove(base.path(), &[]).is_empty());
        drop(job);
        // It was found in use, so that nobody looks again for a day.
        assert!(remove(base.path(), &[]).is_empty());
        age_of(&folder, 2 * REST);
        assert_eq!(removed(base.path(), &[]), [folder]);
    }

    /// By another path than ours, as in a container.
    #[test]
    fn what_a_process_has_mapped_stays() {
        if is_skipped() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let target = base.path().join("libraries");
        let program = fs::read("/bin/sleep").unwrap();
        let contents = [("libcuda.so.1", Content::plain(&program))];
        let held = publish(&target, "sublet-1", &contents).unwrap();
        let folder = held.folder().to_owned();
        drop(held);
        let elsewhere = base.path().join("elsewhere");
        fs::hard_link(folder.join("libcuda.so.1"), &elsewhere).unwrap();
        let job = sleeper(&mut Command::new(&elsewhere));
        age_of(&folder, 2 * REST);
        assert!(remove(&target, &[]).is_empty());
        drop(job);
        age_of(&folder, 2 * REST);
        assert_eq!(removed(&target, &[]), [folder]);
    }

    #[test]
    fn a_line_of_a_memory_map_is_told_by_inode_or_path() {
        let base = tempfile::tempdir().unwrap();
        let folder = aged(base.path(), "sublet-1", 2 * REST);
        let old = Old {
            folder: "/l/sublet-1".into(),
            lock: File::open(folder).unwrap(),
            inodes: BTreeSet::from([777]),
        };
        let check = |maps: &str, environment: &str| {
            let maps = format!("7f00-7f01 r--p 00000000 08:01 5     /bin/sh\n{maps}\n");
            old.is_used(maps.as_bytes(), environment.as_bytes())
        };
        assert!(check(
            "7f02-7f03 r-xp 00000000 00:2a 777   /usr/local/x",
            ""
        ));
        assert!(check(
            "7f02-7f03 r-xp 00000000 00:2a 9     /l/sublet-1/libcuda.so.1 (deleted)",
            ""
        ));
        assert!(check("", "A=1\0LD_PRELOAD=/l/sublet-1/libcuda.so.1\0"));
        assert!(!check(
            "7f02-7f03 rw-p 00000777 00:00 0     [heap]",
            "A=/l/sublet-2\0"
        ));
        assert!(!old.is_used(b"", b""));
    }
}
