//! Looks at the bytes of a version again, and writes right ones in place of wrong ones.
//!
//! A repair is in place: the same bytes at the same offset. So programs that have the version open
//! read right bytes from then on, once the kernel forgets the page that it had.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::Advice;
use sublet_cache::VersionDigest;

use crate::block::{StoredPack, padded};
use crate::hash::PIECE;
use crate::manifest::Manifest;
use crate::pack::{PackTable, pack_file, verify};
use crate::sink::set_time;
use crate::source::DataSource;
use crate::store::Store;
use crate::tree::{EntryKind, TreeEntry, show};

impl Store {
    /// Reads every byte of a version: their number, and the packs or files that have wrong ones.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn verify(&self, version: VersionDigest) -> io::Result<(u64, Vec<String>)> {
        let manifest = self.manifest(version)?;
        let mut bytes = 0;
        let mut damaged = Vec::new();
        if self.mode.is_packed() {
            for pack in &manifest.packs {
                let wrong = verify(&self.packs(), pack.id, |n| bytes += n as u64);
                if wrong.is_ok_and(|wrong| wrong.is_empty()) {
                    continue;
                }
                damaged.push(format!("pack {}", pack.id));
            }
            return Ok((bytes, damaged));
        }
        for (index, entry) in own_files(&manifest) {
            let path = self.file(version, &manifest, entry);
            let digest = hash_file(&path, &mut bytes);
            if digest.ok() != Some(manifest.content(index).digest) {
                damaged.push(show(manifest.tree.path(entry)));
            }
        }
        Ok((bytes, damaged))
    }

    /// Replaces wrong bytes of a version by those of its source. `false`: the source has others.
    ///
    /// # Errors
    /// The disk's or the source's.
    pub(crate) fn repair(
        &self,
        version: VersionDigest,
        source: &dyn DataSource,
    ) -> io::Result<bool> {
        let manifest = self.manifest(version)?;
        if !self.mode.is_packed() {
            return self.repair_files(version, &manifest, source);
        }
        for (number, pack) in (0..).zip(&manifest.packs) {
            let path = pack_file(&self.packs(), pack.id);
            for piece in verify(&self.packs(), pack.id, |_| {})? {
                let Some(bytes) = right_piece(&manifest, number, *pack, piece, source) else {
                    return Ok(false);
                };
                let table = PackTable::read(&mut File::open(&path)?, pack.id)?;
                let is_right = match usize::try_from(piece)
                    .ok()
                    .and_then(|at| table.pieces.get(at))
                {
                    Some(hash) => crate::hash::piece_hash(piece * PIECE, &bytes) == *hash,
                    None => *blake3::hash(&bytes).as_bytes() == pack.id.0,
                };
                if !is_right {
                    return Ok(false);
                }
                let file = OpenOptions::new().write(true).open(&path)?;
                file.write_all_at(&bytes, piece * PIECE)?;
                file.sync_all()?;
                forget_pages(&file)?;
                self.forget_view(version, &manifest, number, piece)?;
            }
        }
        Ok(true)
    }

    /// The kernel forgets what it has read through the mount.
    fn forget_view(
        &self,
        version: VersionDigest,
        manifest: &Manifest,
        pack: u32,
        piece: u64,
    ) -> io::Result<()> {
        for (index, entry) in own_files(manifest) {
            if overlap(manifest, index, entry, pack, piece) {
                forget_pages(&File::open(self.file(version, manifest, entry))?)?;
            }
        }
        Ok(())
    }

    fn repair_files(
        &self,
        version: VersionDigest,
        manifest: &Manifest,
        source: &dyn DataSource,
    ) -> io::Result<bool> {
        for (index, entry) in own_files(manifest) {
            let path = self.file(version, manifest, entry);
            let digest = manifest.content(index).digest;
            if hash_file(&path, &mut 0).ok() == Some(digest) {
                continue;
            }
            let Some(bytes) = read_all(source, manifest, entry) else {
                return Ok(false);
            };
            if *blake3::hash(&bytes).as_bytes() != digest {
                return Ok(false);
            }
            // In place: programs that have it open read on.
            let mode = fs::metadata(&path)?.permissions();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            let file = OpenOptions::new().write(true).open(&path)?;
            file.write_all_at(&bytes, 0)?;
            file.set_len(entry.size)?;
            set_time(&file, entry.modified_ns)?;
            file.sync_all()?;
            fs::set_permissions(&path, mode)?;
        }
        Ok(true)
    }

    fn file(&self, version: VersionDigest, manifest: &Manifest, entry: &TreeEntry) -> PathBuf {
        let path = manifest.tree.path(entry);
        self.view(version).join(std::ffi::OsStr::from_bytes(path))
    }
}

/// Files that have bytes of their own, with their places.
fn own_files(manifest: &Manifest) -> impl Iterator<Item = (usize, &TreeEntry)> {
    let entries = manifest.tree.entries().iter().enumerate();
    entries.filter(|(_, entry)| {
        entry.kind == EntryKind::File && entry.size > 0 && entry.same_as.is_none()
    })
}

/// Has a file bytes in a piece of a pack?
fn overlap(manifest: &Manifest, index: usize, entry: &TreeEntry, pack: u32, piece: u64) -> bool {
    let content = manifest.content(index);
    let end = content.offset + padded(entry.size);
    content.pack == pack && content.offset < (piece + 1) * PIECE && end > piece * PIECE
}

/// The bytes of a piece of a pack, as the source has them now; `None` if it cannot have them.
fn right_piece(
    manifest: &Manifest,
    number: u32,
    pack: StoredPack,
    piece: u64,
    source: &dyn DataSource,
) -> Option<Vec<u8>> {
    let start = piece * PIECE;
    let length = PIECE.min(pack.data.checked_sub(start)?);
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    for (index, entry) in own_files(manifest) {
        if !overlap(manifest, index, entry, number, piece) {
            continue;
        }
        let offset = manifest.content(index).offset;
        // The part of the file that lies in the piece, without its padding.
        let (from, to) = (start.max(offset), (start + length).min(offset + entry.size));
        if from >= to {
            continue;
        }
        let n = usize::try_from(to - from).ok()?;
        let mut part = Vec::with_capacity(n);
        let path = manifest.tree.path(entry);
        source.read(path, entry, from - offset, n, &mut part).ok()?;
        let at = usize::try_from(from - start).ok()?;
        bytes.get_mut(at..at + n)?.copy_from_slice(&part);
    }
    Some(bytes)
}

fn read_all(source: &dyn DataSource, manifest: &Manifest, entry: &TreeEntry) -> Option<Vec<u8>> {
    let length = usize::try_from(entry.size).ok()?;
    let mut bytes = Vec::new();
    source
        .read(manifest.tree.path(entry), entry, 0, length, &mut bytes)
        .ok()?;
    Some(bytes)
}

fn hash_file(path: &Path, bytes: &mut u64) -> io::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    *bytes += io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize().into())
}

fn forget_pages(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?)
}
