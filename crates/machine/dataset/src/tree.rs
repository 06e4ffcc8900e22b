//! The tree of a source, as a listing found it: directories, files and links, in the order of their
//! paths. Paths are bytes: a name may hold anything but `/` and NUL.
//!
//! The order is that of a walk, each directory before its contents, names by bytes. An EROFS
//! directory has the same order.

use std::cmp::Ordering;

use sublet_cache::SourceFingerprint;

/// Longest name of a directory entry on Linux, in bytes.
const NAME_MAX: usize = 255;
/// Longest path that is taken, in bytes: that of Linux.
const PATH_MAX: usize = 4095;

/// Kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Directory,
    File,
    /// Its target is kept, and never followed.
    Symlink,
}

/// An entry of a tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TreeEntry {
    path: (u64, u16),
    target: (u64, u16),
    pub(crate) kind: EntryKind,
    /// May it be executed?
    pub(crate) is_executable: bool,
    /// Bytes of a file; else none.
    pub(crate) size: u64,
    /// Time of the last change of its content, in nanoseconds since 1970.
    pub(crate) modified_ns: i64,
    /// The entry before it that is the same file, by its index.
    pub(crate) same_as: Option<u32>,
}

/// A tree.
#[derive(Debug, Clone, Default)]
pub(crate) struct SourceTree {
    text: Vec<u8>,
    entries: Vec<TreeEntry>,
    /// Devices, pipes and sockets, which were passed over.
    pub(crate) skipped: u64,
}

/// An entry, as a source or a manifest tells it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundEntry<'a> {
    pub(crate) path: &'a [u8],
    /// Empty but for a link.
    pub(crate) target: &'a [u8],
    pub(crate) kind: EntryKind,
    pub(crate) is_executable: bool,
    pub(crate) size: u64,
    pub(crate) modified_ns: i64,
}

/// Reason against an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathError {
    #[error("is empty")]
    Empty,
    #[error("is absolute")]
    Absolute,
    #[error("has an empty part, `.` or `..`")]
    Part,
    #[error("has a NUL")]
    Nul,
    #[error("has more than 4095 bytes, or a name of more than 255")]
    Long,
    #[error("is there twice")]
    Twice,
    #[error("lies in no directory")]
    Orphan,
}

impl SourceTree {
    /// Adds an entry; [`SourceTree::sort`] puts it into its place.
    pub(crate) fn push(&mut self, found: FoundEntry<'_>) -> Result<(), PathError> {
        check_path(found.path)?;
        if found.target.contains(&0) {
            return Err(PathError::Nul);
        }
        if found.target.len() > PATH_MAX {
            return Err(PathError::Long);
        }
        let path = self.keep(found.path);
        let target = self.keep(found.target);
        self.entries.push(TreeEntry {
            path,
            target,
            kind: found.kind,
            is_executable: found.is_executable,
            size: found.size,
            modified_ns: found.modified_ns,
            same_as: None,
        });
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) -> (u64, u16) {
        let start = self.text.len() as u64;
        self.text.extend_from_slice(bytes);
        (start, u16::try_from(bytes.len()).unwrap_or(u16::MAX))
    }

    /// Appends all of another tree, such as what another thread found.
    pub(crate) fn append(&mut self, other: SourceTree) {
        let base = self.text.len() as u64;
        self.text.extend_from_slice(&other.text);
        self.skipped += other.skipped;
        let moved = other.entries.into_iter().map(|mut entry| {
            entry.path.0 += base;
            entry.target.0 += base;
            entry
        });
        self.entries.extend(moved);
    }

    /// Puts the entries in order. `same_file` tells entries that are one file; it is given and
    /// gives indices as they are before, and the result is in indices as they are after.
    ///
    /// # Errors
    /// An entry that is there twice, or outside of any directory, with its path.
    pub(crate) fn sort(&mut self) -> Result<Vec<u32>, (Vec<u8>, PathError)> {
        let mut order: Vec<u32> =
            (0..u32::try_from(self.entries.len()).unwrap_or(u32::MAX)).collect();
        order.sort_unstable_by(|a, b| compare_paths(self.path_of(*a), self.path_of(*b)));
        self.entries = order.iter().map(|at| self.entries[*at as usize]).collect();
        self.check_order()?;
        Ok(order)
    }

    fn path_of(&self, index: u32) -> &[u8] {
        self.path(&self.entries[index as usize])
    }

    /// Checks that the entries are in order, each within a directory that is there.
    ///
    /// # Errors
    /// The first entry that is not, with its path.
    pub(crate) fn check_order(&self) -> Result<(), (Vec<u8>, PathError)> {
        // The directories that the last entry lies in.
        let mut open: Vec<&[u8]> = Vec::new();
        let mut last: Option<&[u8]> = None;
        for entry in &self.entries {
            let path = self.path(entry);
            let wrong = |error| Err((path.to_vec(), error));
            if last.is_some_and(|last| compare_paths(last, path) != Ordering::Less) {
                return wrong(PathError::Twice);
            }
            last = Some(path);
            let parent = parent(path);
            while open.last().is_some_and(|dir| *dir != parent) {
                open.pop();
            }
            if open.is_empty() && !parent.is_empty() {
                return wrong(PathError::Orphan);
            }
            if entry.kind == EntryKind::Directory {
                open.push(path);
            }
        }
        Ok(())
    }

    /// Says that an entry is the same file as one before it.
    pub(crate) fn set_same(&mut self, index: u32, first: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize) {
            entry.same_as = (first < index).then_some(first);
        }
    }

    pub(crate) fn entries(&self) -> &[TreeEntry] {
        &self.entries
    }

    /// Path of an entry, relative to the tree's root.
    pub(crate) fn path(&self, entry: &TreeEntry) -> &[u8] {
        self.slice(entry.path)
    }

    /// Target of a link.
    pub(crate) fn target(&self, entry: &TreeEntry) -> &[u8] {
        self.slice(entry.target)
    }

    fn slice(&self, (start, length): (u64, u16)) -> &[u8] {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let end = start.saturating_add(length.into());
        self.text.get(start..end).unwrap_or_default()
    }

    /// Bytes of all files; those that are one file count once.
    pub(crate) fn size(&self) -> u64 {
        let once = self.entries.iter().filter(|entry| entry.same_as.is_none());
        once.map(|entry| entry.size).fold(0, u64::saturating_add)
    }

    pub(crate) fn files(&self) -> u64 {
        let files = self.entries.iter();
        files.filter(|entry| entry.kind == EntryKind::File).count() as u64
    }

    /// The state of the source: its name, and of each entry what tells that it changed. `name` is
    /// in it so that nobody gets another source's bytes by a listing that looks the same.
    pub(crate) fn fingerprint(&self, name: &str) -> SourceFingerprint {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"sublet source 1\0");
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        for entry in &self.entries {
            self.feed(entry, &mut hasher);
        }
        SourceFingerprint(hasher.finalize().into())
    }

    /// Feeds an entry to a hash: all that a listing knows of it.
    pub(crate) fn feed(&self, entry: &TreeEntry, hasher: &mut blake3::Hasher) {
        let kind = match entry.kind {
            EntryKind::Directory => b'd',
            EntryKind::File => b'f',
            EntryKind::Symlink => b'l',
        };
        hasher.update(&[kind, u8::from(entry.is_executable)]);
        for text in [self.path(entry), self.target(entry)] {
            hasher.update(&(text.len() as u32).to_le_bytes());
            hasher.update(text);
        }
        // The time of a directory changes with what is in it, which is listed anyway.
        let time = match entry.kind {
            EntryKind::File => entry.modified_ns,
            EntryKind::Directory | EntryKind::Symlink => 0,
        };
        hasher.update(&entry.size.to_le_bytes());
        hasher.update(&time.to_le_bytes());
    }
}

/// Order of a walk: as if `/` came before every other byte.
pub(crate) fn compare_paths(a: &[u8], b: &[u8]) -> Ordering {
    let place = |byte: &u8| match byte {
        b'/' => 0,
        other => *other,
    };
    a.iter().map(place).cmp(b.iter().map(place))
}

/// The path before the last `/`; empty for an entry of the root.
pub(crate) fn parent(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    slash.map_or(&[], |at| &path[..at])
}

/// The path after the last `/`.
pub(crate) fn name(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    slash.map_or(path, |at| &path[at + 1..])
}

fn check_path(path: &[u8]) -> Result<(), PathError> {
    match path {
        [] => return Err(PathError::Empty),
        [b'/', ..] => return Err(PathError::Absolute),
        _ if path.contains(&0) => return Err(PathError::Nul),
        _ if path.len() > PATH_MAX => return Err(PathError::Long),
        _ => {}
    }
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." | b".." => return Err(PathError::Part),
            _ if part.len() > NAME_MAX => return Err(PathError::Long),
            _ => {}
        }
    }
    Ok(())
}

/// A path for people: bytes that are not text are shown as `\xNN`.
pub(crate) fn show(path: &[u8]) -> String {
    path.escape_ascii().to_string()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A tree of paths: `a/` is a directory, `a->b` a link, all else a file of the size after `:`.
    pub(crate) fn tree(paths: &[&str]) -> SourceTree {
        let mut tree = SourceTree::default();
        for text in paths {
            let (path, size) = text.split_once(':').unwrap_or((text, "0"));
            let (path, target) = path.split_once("->").unwrap_or((path, ""));
            let kind = match path.strip_suffix('/') {
                Some(_) => EntryKind::Directory,
                None if !target.is_empty() => EntryKind::Symlink,
                None => EntryKind::File,
            };
            let found = FoundEntry {
                path: path.trim_end_matches('/').as_bytes(),
                target: target.as_bytes(),
                kind,
                is_executable: false,
                size: size.parse().unwrap(),
                modified_ns: 5,
            };
            tree.push(found).unwrap();
        }
        tree.sort().unwrap();
        tree
    }

    #[test]
    fn entries_are_in_the_order_of_a_walk() {
        let tree = tree(&["b", "a-b", "a/", "a/z/", "a.b", "a/z/q", "a/y->../x"]);
        let paths = tree.entries().iter().map(|entry| show(tree.path(entry)));
        let paths: Vec<String> = paths.collect();
        assert_eq!(paths, ["a", "a/y", "a/z", "a/z/q", "a-b", "a.b", "b"]);
        assert_eq!(tree.target(&tree.entries()[1]), b"../x");
    }

    #[test]
    fn case_33_paths_that_lead_elsewhere_are_refused() {
        let mut tree = SourceTree::default();
        let long = "n".repeat(256);
        let deep = "d/".repeat(2_100);
        let rows: [(&[u8], PathError); 10] = [
            (b"", PathError::Empty),
            (b"/x", PathError::Absolute),
            (b"../x", PathError::Part),
            (b"a/../x", PathError::Part),
            (b"a//b", PathError::Part),
            (b"a/.", PathError::Part),
            (b"a/", PathError::Part),
            (b"a\0b", PathError::Nul),
            (long.as_bytes(), PathError::Long),
            (deep.as_bytes(), PathError::Long),
        ];
        let mut push = |path| {
            tree.push(FoundEntry {
                path,
                target: b"",
                kind: EntryKind::File,
                is_executable: false,
                size: 0,
                modified_ns: 0,
            })
        };
        for (path, error) in rows {
            assert_eq!(push(path), Err(error), "{}", show(path));
        }
        for path in [b"a".as_slice(), b"b/c", b"a"] {
            push(path).unwrap();
        }
        assert_eq!(tree.clone().sort(), Err((b"a".to_vec(), PathError::Twice)));
        tree.entries.pop();
        assert_eq!(tree.sort(), Err((b"b/c".to_vec(), PathError::Orphan)));
    }

    #[test]
    fn case_16_the_fingerprint_tells_what_changed() {
        let plain = tree(&["a/", "a/x:5", "y:7"]);
        let same = tree(&["y:7", "a/x:5", "a/"]);
        assert_eq!(plain.fingerprint("s"), same.fingerprint("s"));
        let mut touched = plain.clone();
        touched.entries[1].modified_ns = 6;
        let others = [
            touched.fingerprint("s"),
            plain.fingerprint("t"),
            tree(&["a/", "a/x:6", "y:7"]).fingerprint("s"),
            tree(&["a/", "y:7"]).fingerprint("s"),
            tree(&["a/", "a/x:5", "y->7"]).fingerprint("s"),
        ];
        for other in others {
            assert_ne!(plain.fingerprint("s"), other);
        }
        let mut listed = plain.clone();
        listed.entries[0].modified_ns = 99;
        assert_eq!(plain.fingerprint("s"), listed.fingerprint("s"));
    }
}
