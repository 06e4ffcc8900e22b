//! Socket files in kubelet's folder: making ours, and telling one file from another
//! that took its place. Kubelet empties the folder when it starts, so every file here
//! can vanish at any time. Nothing here waits or retries.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use tokio::net::UnixListener;

/// Identity of the file at a path. The modification time is in it because file systems give a fresh
/// file the inode number of one just removed; nothing else touches the modification time of a
/// socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileMark {
    device: u64,
    inode: u64,
    modified: (i64, i64),
}

impl FileMark {
    /// The file at `path`, or `None` where there is none to be seen.
    pub(super) fn of(path: &Path) -> Option<FileMark> {
        let file = fs::symlink_metadata(path).ok()?;
        Some(FileMark {
            device: file.dev(),
            inode: file.ino(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }
}

/// Listens at `path`, taking the place of any file there: a killed agent leaves its
/// socket behind, and binding to an existing name fails.
pub(super) fn bind(path: &Path) -> io::Result<(UnixListener, FileMark)> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    let mark = FileMark::of(path)
        .ok_or_else(|| io::Error::other("the socket vanished as soon as it was made"))?;
    Ok((listener, mark))
}

/// Whether some process listens at `path`.
pub(super) fn is_served(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_ok()
}
