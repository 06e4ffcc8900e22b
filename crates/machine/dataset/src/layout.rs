//! Places of files in packs: a pure function of a listing, so every node builds the same packs from
//! the same source, whatever arrives first, and a pack that is unfinished is found again by what it
//! was to hold.
//!
//! A pack has at most 50,000 files (the seed paper's figure) or 1 GiB. It ends where a directory
//! begins, if it can: of those in its second half the one whose path has the smallest hash, so a
//! file more or less moves the ends of few packs. A large file is a pack of its own.

use crate::block::padded;
use crate::manifest::Manifest;
use crate::tree::{EntryKind, SourceTree, compare_paths, parent};

/// The most files of a pack.
const FILES: usize = 50_000;
/// The most bytes of a pack.
const BYTES: u64 = 1 << 30;
/// A file of so many bytes is alone in its pack.
const ALONE: u64 = 64 << 20;

/// Place of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// None: a directory, a link, an empty file, or a name of a file that is elsewhere.
    Nowhere,
    /// In a pack that is made: its number, and the offset there.
    New { pack: u32, offset: u64 },
    /// In the present version, which has the same bytes: the number of its file.
    Kept { file: u32 },
}

/// A pack that is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackPlan {
    /// Its files, as indices of entries, in order.
    pub(crate) files: Vec<u32>,
    /// Bytes of all, each padded.
    pub(crate) bytes: u64,
    /// Hash of all that it is made of: source, paths, sizes, times. An unfinished pack is found by
    /// it.
    pub(crate) hash: [u8; 32],
}

/// Places of all entries of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) packs: Vec<PackPlan>,
    /// By entry.
    pub(crate) places: Vec<Place>,
}

impl Layout {
    /// Room that it takes on the disk: packs with their tables, manifest and image.
    pub(crate) fn room(&self, tree: &SourceTree) -> u64 {
        let packs = self
            .packs
            .iter()
            .map(|pack| pack.bytes + 64 * pack.files.len() as u64 + 65_536);
        // An entry has a place in the manifest and an inode and a name in the image.
        let text = tree.entries().iter();
        let text = text.map(|entry| (tree.path(entry).len() + tree.target(entry).len()) as u64);
        let tables = text.map(|bytes| 256 + 2 * bytes);
        packs.chain(tables).sum::<u64>() + (1 << 20)
    }
}

/// Lays a tree out. `present`: the version that is there, whose bytes are used again for files that
/// have neither another size nor another time.
pub(crate) fn lay_out(tree: &SourceTree, source: &str, present: Option<&Manifest>) -> Layout {
    let mut places = vec![Place::Nowhere; tree.entries().len()];
    if let Some(present) = present {
        keep_unchanged(tree, present, &mut places);
    }
    let mut packs = Packs {
        tree,
        source,
        done: Vec::new(),
        places,
    };
    let mut current: Vec<u32> = Vec::new();
    let mut bytes = 0;
    for (index, entry) in (0_u32..).zip(tree.entries()) {
        let is_here = entry.kind == EntryKind::File && entry.size > 0 && entry.same_as.is_none();
        if !is_here || packs.places[index as usize] != Place::Nowhere {
            continue;
        }
        if entry.size >= ALONE {
            packs.end(&[index]);
            continue;
        }
        current.push(index);
        bytes += padded(entry.size);
        while current.len() > FILES || bytes > BYTES {
            let rest = current.split_off(packs.cut(&current));
            packs.end(&current);
            current = rest;
            bytes = packs.bytes(&current);
        }
    }
    if !current.is_empty() {
        packs.end(&current);
    }
    Layout {
        packs: packs.done,
        places: packs.places,
    }
}

struct Packs<'a> {
    tree: &'a SourceTree,
    source: &'a str,
    done: Vec<PackPlan>,
    places: Vec<Place>,
}

impl Packs<'_> {
    fn bytes(&self, files: &[u32]) -> u64 {
        let sizes = files
            .iter()
            .map(|at| padded(self.tree.entries()[*at as usize].size));
        sizes.sum()
    }

    /// The number of files of the pack that ends, of some that are too many by the last.
    fn cut(&self, files: &[u32]) -> usize {
        let last = files.len() - 1;
        let half = self.bytes(&files[..last]) / 2;
        let mut before = 0;
        let mut best: Option<(u64, usize)> = None;
        let path = |at: u32| self.tree.path(&self.tree.entries()[at as usize]);
        for at in 1..=last {
            before += padded(self.tree.entries()[files[at - 1] as usize].size);
            let folder = parent(path(files[at]));
            if folder == parent(path(files[at - 1])) || (before < half && at < last / 2) {
                continue;
            }
            let hash = u64::from_le_bytes(
                *blake3::hash(folder)
                    .as_bytes()
                    .first_chunk()
                    .unwrap_or(&[0; 8]),
            );
            if best.is_none_or(|(least, _)| hash < least) {
                best = Some((hash, at));
            }
        }
        best.map_or(last, |(_, at)| at)
    }

    fn end(&mut self, files: &[u32]) {
        let number = u32::try_from(self.done.len()).unwrap_or(u32::MAX);
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"sublet pack 1\0");
        hasher.update(&(self.source.len() as u64).to_le_bytes());
        hasher.update(self.source.as_bytes());
        let mut offset = 0;
        for at in files {
            let entry = &self.tree.entries()[*at as usize];
            self.places[*at as usize] = Place::New {
                pack: number,
                offset,
            };
            self.tree.feed(entry, &mut hasher);
            offset += padded(entry.size);
        }
        self.done.push(PackPlan {
            files: files.to_vec(),
            bytes: offset,
            hash: hasher.finalize().into(),
        });
    }
}

/// Finds the files of a tree that the present version has, by path, size and time.
fn keep_unchanged(tree: &SourceTree, present: &Manifest, places: &mut [Place]) {
    let mut old = (0_u32..).zip(present.tree.entries()).peekable();
    for (index, entry) in tree.entries().iter().enumerate() {
        let path = tree.path(entry);
        let is_before = |known: &(u32, &_)| compare_paths(present.tree.path(known.1), path).is_lt();
        while old.next_if(is_before).is_some() {}
        let Some((file, known)) = old.peek() else {
            return;
        };
        let is_same = present.tree.path(known) == path
            && (
                known.kind,
                known.size,
                known.modified_ns,
                known.is_executable,
            ) == (
                entry.kind,
                entry.size,
                entry.modified_ns,
                entry.is_executable,
            );
        let is_content = entry.kind == EntryKind::File && entry.size > 0 && entry.same_as.is_none();
        if is_same && is_content {
            places[index] = Place::Kept {
                file: known.same_as.unwrap_or(*file),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    fn many(files: usize, size: u64, in_folder: usize) -> SourceTree {
        let folders = (0..files.div_ceil(in_folder)).map(|n| format!("d{n:05}/"));
        let files = (0..files).map(|n| format!("d{:05}/f{n:06}:{size}", n / in_folder));
        let all: Vec<String> = folders.chain(files).collect();
        tree(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[test]
    fn packs_keep_to_their_bounds_and_end_where_a_folder_begins() {
        let rows = [
            (many(120_000, 100, 100), 3),
            (many(3_000, 1 << 20, 10), 3),
            // One folder has no boundary within.
            (many(60_000, 1, 60_000), 2),
        ];
        for (tree, least) in rows {
            let layout = lay_out(&tree, "s", None);
            assert!(layout.packs.len() >= least);
            let files: usize = layout.packs.iter().map(|pack| pack.files.len()).sum();
            assert_eq!(files as u64, tree.files());
            for (number, pack) in layout.packs.iter().enumerate() {
                assert!(pack.files.len() <= FILES && pack.bytes <= BYTES);
                let mut end = 0;
                for at in &pack.files {
                    let number = u32::try_from(number).unwrap();
                    let place = Place::New {
                        pack: number,
                        offset: end,
                    };
                    assert_eq!(layout.places[*at as usize], place);
                    end += padded(tree.entries()[*at as usize].size);
                }
                assert_eq!(end, pack.bytes);
            }
        }
        let layout = lay_out(&many(120_000, 100, 100), "s", None);
        assert!(layout.packs.iter().all(|pack| pack.files.len() % 100 == 0));
    }

    #[test]
    fn a_file_more_changes_few_packs() {
        let before = lay_out(&many(300_000, 10, 50), "s", None);
        let mut more = many(300_000, 10, 50);
        let found = crate::tree::FoundEntry {
            path: b"d00100/new",
            target: b"",
            kind: EntryKind::File,
            is_executable: false,
            size: 10,
            modified_ns: 5,
        };
        more.push(found).unwrap();
        more.sort().unwrap();
        let after = lay_out(&more, "s", None);
        let old: Vec<_> = before.packs.iter().map(|pack| pack.hash).collect();
        let new = after
            .packs
            .iter()
            .filter(|pack| !old.contains(&pack.hash))
            .count();
        assert!((1..=3).contains(&new), "{new} of {}", after.packs.len());
    }

    #[test]
    fn a_large_file_is_alone_and_an_empty_one_nowhere() {
        let tree = tree(&["a:5", "big:67108864", "empty:0", "z:4097"]);
        let layout = lay_out(&tree, "s", None);
        let new = |pack, offset| Place::New { pack, offset };
        assert_eq!(
            layout.places,
            [new(1, 0), new(0, 0), Place::Nowhere, new(1, 4096)]
        );
        assert_eq!(layout.packs[1].bytes, 3 * 4096);
        assert_ne!(
            layout.packs[1].hash,
            lay_out(&tree, "t", None).packs[1].hash
        );
    }
}
