//! The manifest of a version: every entry, the digest of every file, and its place in a pack.
//!
//! ```text
//! "SUBLETM1" | digest of the version 32 | entries 8 | packs 4
//! for each pack:   id 32 | bytes of its files 8 | bytes on the disk 8
//! for each entry:  bytes shared with the path before 2 | rest of the path 2+n | kind and flags 1
//!   a file:        size 8 | time 8 | same as entry 4, or digest 32, pack 4, offset 8
//!   a link:        target 2+n
//! BLAKE3 of all before 32
//! ```
//!
//! Numbers are little-endian. What is read has been checked as if a stranger had written it: a peer
//! may have.

use sublet_cache::{PackId, VersionDigest};

use crate::block::{BLOCK, StoredPack, padded};
use crate::bytes::{Reader, Short};
use crate::tree::{EntryKind, FoundEntry, PathError, SourceTree, TreeEntry, show};

const MAGIC: &[u8; 8] = b"SUBLETM1";
const FILE: u8 = 0;
const DIRECTORY: u8 = 1;
const SYMLINK: u8 = 2;
const EXECUTABLE: u8 = 4;
const SAME: u8 = 8;

/// Content of a file, and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FileContent {
    /// BLAKE3 of its bytes.
    pub(crate) digest: [u8; 32],
    /// Number of its pack; of an empty file, any.
    pub(crate) pack: u32,
    /// Offset there.
    pub(crate) offset: u64,
}

/// A manifest.
#[derive(Debug, Clone, Default)]
pub(crate) struct Manifest {
    pub(crate) packs: Vec<StoredPack>,
    pub(crate) tree: SourceTree,
    /// By entry; that of an entry which is the same file as another one is not used.
    pub(crate) contents: Vec<FileContent>,
}

/// Fault of a manifest.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("it is no manifest of version 1")]
    Magic,
    #[error(transparent)]
    Short(#[from] Short),
    #[error("its bytes are not those that were written")]
    Sum,
    #[error("its entries are not those of the version that it names")]
    Digest,
    #[error("the path {path} {error}")]
    Path { path: String, error: PathError },
    #[error("the entry {path} is of no known kind")]
    Kind { path: String },
    #[error("the file {path} lies outside of its pack")]
    Place { path: String },
    #[error("it says more than it holds: {0} bytes too many")]
    Rest(usize),
}

impl Manifest {
    /// The digest of the version: path, type, mode, size, content and target of each entry.
    pub(crate) fn digest(&self) -> VersionDigest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"sublet version 1\0");
        for (index, entry) in self.tree.entries().iter().enumerate() {
            let kind = kind_byte(entry);
            for text in [self.tree.path(entry), self.tree.target(entry)] {
                hasher.update(&(text.len() as u32).to_le_bytes());
                hasher.update(text);
            }
            hasher.update(&[kind]);
            if entry.kind == EntryKind::File {
                hasher.update(&entry.size.to_le_bytes());
                hasher.update(&self.content(index).digest);
            }
        }
        VersionDigest(hasher.finalize().into())
    }

    /// Content of an entry that is a file.
    pub(crate) fn content(&self, index: usize) -> FileContent {
        let entry = self.tree.entries().get(index);
        let at = entry
            .and_then(|entry| entry.same_as)
            .map_or(index, |first| first as usize);
        self.contents.get(at).copied().unwrap_or_default()
    }

    /// The bytes of the manifest.
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(self.digest().0);
        out.extend((self.tree.entries().len() as u64).to_le_bytes());
        out.extend((self.packs.len() as u32).to_le_bytes());
        for pack in &self.packs {
            out.extend(pack.id.0);
            out.extend(pack.data.to_le_bytes());
            out.extend(pack.room.to_le_bytes());
        }
        let mut last: &[u8] = &[];
        for (entry, content) in self.tree.entries().iter().zip(&self.contents) {
            let path = self.tree.path(entry);
            let shared = path.iter().zip(last).take_while(|(a, b)| a == b).count();
            put_text(&mut out, &path[..shared], true);
            put_text(&mut out, &path[shared..], false);
            last = path;
            let same = if entry.same_as.is_some() { SAME } else { 0 };
            out.push(kind_byte(entry) | same);
            match entry.kind {
                EntryKind::Directory => {}
                EntryKind::Symlink => put_text(&mut out, self.tree.target(entry), false),
                EntryKind::File => {
                    out.extend(entry.size.to_le_bytes());
                    out.extend(entry.modified_ns.to_le_bytes());
                    match entry.same_as {
                        Some(first) => out.extend(first.to_le_bytes()),
                        None => {
                            out.extend(content.digest);
                            out.extend(content.pack.to_le_bytes());
                            out.extend(content.offset.to_le_bytes());
                        }
                    }
                }
            }
        }
        let sum = blake3::hash(&out);
        out.extend(sum.as_bytes());
        out
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub(crate) fn read(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        if !bytes.starts_with(MAGIC) {
            return Err(ManifestError::Magic);
        }
        let (rest, sum) = bytes.split_last_chunk::<32>().ok_or(Short)?;
        if blake3::hash(rest).as_bytes() != sum {
            return Err(ManifestError::Sum);
        }
        let mut reader = Reader(&rest[MAGIC.len()..]);
        let digest = VersionDigest(reader.array()?);
        let entries = reader.u64()?;
        let packs = reader.u32()?;
        let mut manifest = Manifest::default();
        for _ in 0..packs {
            manifest.packs.push(StoredPack {
                id: PackId(reader.array()?),
                data: reader.u64()?,
                room: reader.u64()?,
            });
        }
        let mut path = Vec::new();
        let mut same = Vec::new();
        for index in 0..entries {
            manifest.read_entry(&mut reader, &mut path, &mut same, index)?;
        }
        if !reader.0.is_empty() {
            return Err(ManifestError::Rest(reader.0.len()));
        }
        let wrong = |(path, error): (Vec<u8>, _)| ManifestError::Path {
            path: show(&path),
            error,
        };
        manifest.tree.check_order().map_err(wrong)?;
        for (index, first) in same {
            manifest.link(index, first)?;
        }
        match manifest.digest() == digest {
            true => Ok(manifest),
            false => Err(ManifestError::Digest),
        }
    }

    fn read_entry(
        &mut self,
        reader: &mut Reader<'_>,
        path: &mut Vec<u8>,
        same: &mut Vec<(u64, u32)>,
        index: u64,
    ) -> Result<(), ManifestError> {
        path.truncate(reader.u16()?.into());
        path.extend_from_slice(reader.text()?);
        let flags = reader.u8()?;
        let mut target: &[u8] = &[];
        let mut content = FileContent::default();
        let (mut size, mut modified_ns) = (0, 0);
        let kind = match flags & !(EXECUTABLE | SAME) {
            DIRECTORY if flags == DIRECTORY => EntryKind::Directory,
            SYMLINK if flags == SYMLINK => {
                target = reader.text()?;
                EntryKind::Symlink
            }
            FILE => {
                size = reader.u64()?;
                modified_ns = reader.u64()?.cast_signed();
                if flags & SAME != 0 {
                    same.push((index, reader.u32()?));
                } else {
                    content = FileContent {
                        digest: reader.array()?,
                        pack: reader.u32()?,
                        offset: reader.u64()?,
                    };
                    self.check_place(path, size, content)?;
                }
                EntryKind::File
            }
            _ => return Err(ManifestError::Kind { path: show(path) }),
        };
        let found = FoundEntry {
            path,
            target,
            kind,
            is_executable: flags & EXECUTABLE != 0,
            size,
            modified_ns,
        };
        let pushed = self.tree.push(found);
        pushed.map_err(|error| ManifestError::Path {
            path: show(path),
            error,
        })?;
        self.contents.push(content);
        Ok(())
    }

    /// Checks that a file lies within its pack, at a block.
    fn check_place(&self, path: &[u8], size: u64, place: FileContent) -> Result<(), ManifestError> {
        let outside = || ManifestError::Place { path: show(path) };
        if size == 0 {
            return Ok(());
        }
        let pack = self.packs.get(place.pack as usize).ok_or_else(outside)?;
        let length = size.checked_next_multiple_of(BLOCK).ok_or_else(outside)?;
        let end = place.offset.checked_add(length).ok_or_else(outside)?;
        match place.offset.is_multiple_of(BLOCK) && end <= pack.data {
            true => Ok(()),
            false => Err(outside()),
        }
    }

    /// An entry is the same file as one before it, which must be a file of that size.
    fn link(&mut self, index: u64, first: u32) -> Result<(), ManifestError> {
        let entries = self.tree.entries();
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        let (entry, other) = (entries.get(at), entries.get(first as usize));
        let is_right = match (entry, other) {
            (Some(entry), Some(other)) => {
                u64::from(first) < index
                    && other.kind == EntryKind::File
                    && other.same_as.is_none()
                    && padded(other.size) == padded(entry.size)
                    && other.size == entry.size
            }
            _ => false,
        };
        if !is_right {
            let path = entry.map(|entry| show(self.tree.path(entry)));
            return Err(ManifestError::Place {
                path: path.unwrap_or_default(),
            });
        }
        self.tree
            .set_same(u32::try_from(index).unwrap_or(u32::MAX), first);
        Ok(())
    }
}

fn kind_byte(entry: &TreeEntry) -> u8 {
    let executable = if entry.is_executable { EXECUTABLE } else { 0 };
    match entry.kind {
        EntryKind::File => FILE | executable,
        EntryKind::Directory => DIRECTORY,
        EntryKind::Symlink => SYMLINK,
    }
}

/// A text with its length, or the length alone.
fn put_text(out: &mut Vec<u8>, text: &[u8], length_alone: bool) {
    out.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
    if !length_alone {
        out.extend_from_slice(text);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::layout::{Place, lay_out};
    use crate::tree::tests::tree;

    /// A manifest of a tree, with made-up digests.
    pub(crate) fn manifest(paths: &[&str]) -> Manifest {
        let tree = tree(paths);
        let layout = lay_out(&tree, "s", None);
        let contents = layout.places.iter().enumerate().map(|(n, place)| {
            let (pack, offset) = match place {
                Place::New { pack, offset } => (*pack, *offset),
                _ => (0, 0),
            };
            FileContent {
                digest: [u8::try_from(n % 256).unwrap(); 32],
                pack,
                offset,
            }
        });
        let packs = layout.packs.iter().map(|pack| StoredPack {
            id: PackId(pack.hash),
            data: pack.bytes,
            room: pack.bytes + 1,
        });
        Manifest {
            packs: packs.collect(),
            contents: contents.collect(),
            tree,
        }
    }

    fn example() -> Manifest {
        let mut manifest = manifest(&["a/", "a/x:5", "a/xy:9000", "b->a/x", "c/", "c/d/", "z:5"]);
        manifest.tree.set_same(6, 1);
        manifest
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let written = example();
        let bytes = written.write();
        let read = Manifest::read(&bytes).unwrap();
        assert_eq!(read.digest(), written.digest());
        assert_eq!(read.packs, written.packs);
        assert_eq!(read.write(), bytes);
        assert_eq!(read.tree.entries()[6].same_as, Some(1));
        assert_eq!(read.content(6), written.content(1));
        let empty = Manifest::default();
        assert_eq!(
            Manifest::read(&empty.write()).unwrap().tree.entries().len(),
            0
        );
    }

    /// The manifest with other bytes at some place, and a sum that fits.
    fn changed(at: usize, byte: u8) -> Vec<u8> {
        let mut bytes = example().write();
        bytes.truncate(bytes.len() - 32);
        bytes[at] = byte;
        let sum = blake3::hash(&bytes);
        bytes.extend(sum.as_bytes());
        bytes
    }

    #[test]
    fn whatever_byte_is_wrong_it_is_refused_or_another_version() {
        let bytes = example().write();
        for at in 0..bytes.len() - 32 {
            for byte in [0, 1, b'/', b'.', 0xff, bytes[at] ^ 1] {
                let Ok(read) = Manifest::read(&changed(at, byte)) else {
                    continue;
                };
                // The time of a file and the place of its bytes are not in the digest.
                assert_eq!(read.digest(), example().digest(), "{at}");
            }
            assert!(Manifest::read(&bytes[..at]).is_err(), "{at}");
        }
        let mut flipped = bytes;
        flipped[50] ^= 1;
        assert_eq!(Manifest::read(&flipped).unwrap_err(), ManifestError::Sum);
    }

    #[test]
    fn the_digest_is_of_content_not_of_places_and_times() {
        let plain = example();
        let mut moved = plain.clone();
        moved.contents[2].offset += BLOCK;
        assert_eq!(moved.digest(), plain.digest());
        let mut other = plain.clone();
        other.contents[2].digest[0] ^= 1;
        assert_ne!(other.digest(), plain.digest());
        assert_ne!(manifest(&["a:1"]).digest(), manifest(&["a:2"]).digest());
    }
}
