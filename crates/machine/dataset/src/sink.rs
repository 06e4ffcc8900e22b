//! Takers of a fetch's bytes: packs, or the files of a tree where nothing can be mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rustix::fs::Timestamps;
use rustix::time::Timespec;
use serde::{Deserialize, Serialize};
use sublet_cache::PackId;

use crate::block::StoredPack;
use crate::disk::{sync_folder, write_whole};
use crate::fetch::{FileGroup, FileSink};
use crate::hash::PIECE;
use crate::layout::{Layout, PackPlan, Place};
use crate::pack::{PackTable, PackWriter, pack_file, part_files};
use crate::tree::{EntryKind, SourceTree};

/// After so many bytes of files the unfinished tree is safe on the disk, and known to be.
const CHECKPOINT: u64 = 64 << 20;

/// Folders that packs are made in.
#[derive(Debug, Clone)]
pub(crate) struct PackFolders {
    /// Whole ones.
    pub(crate) packs: PathBuf,
    /// Unfinished ones, and notes about whole ones that no version has yet.
    pub(crate) parts: PathBuf,
    /// Packs of versions: [`Store::claims`](crate::store::Store::claims).
    pub(crate) claims: Arc<Mutex<BTreeSet<PackId>>>,
}

impl PackFolders {
    fn note(&self, plan: &[u8; 32]) -> PathBuf {
        self.parts.join(format!("{}.made", PackId(*plan)))
    }

    /// The pack that was made by a plan, if it is still whole.
    fn made(&self, plan: &[u8; 32]) -> Option<(StoredPack, PackTable)> {
        let text = fs::read_to_string(self.note(plan)).ok()?;
        let id = PackId::read(text.trim())?;
        let mut file = File::open(pack_file(&self.packs, id)).ok()?;
        let room = file.metadata().ok()?.len();
        let table = PackTable::read(&mut file, id).ok()?;
        let data = table.data;
        (table.plan == *plan).then_some((StoredPack { id, data, room }, table))
    }

    /// Forgets that a plan was carried out: a version has its pack now, or nobody wants it.
    pub(crate) fn forget(&self, plan: &[u8; 32]) {
        let [part, checkpoint] = part_files(&self.parts, plan);
        for path in [part, checkpoint, self.note(plan)] {
            let _there_may_be_none = fs::remove_file(path);
        }
    }

    /// The pack that a note names.
    pub(crate) fn noted(&self, plan: &[u8; 32]) -> Option<PackId> {
        PackId::read(fs::read_to_string(self.note(plan)).ok()?.trim())
    }

    /// Every pack that a note names.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn all_noted(&self) -> io::Result<BTreeSet<PackId>> {
        let mut noted = BTreeSet::new();
        for entry in fs::read_dir(&self.parts)? {
            let path = entry?.path();
            if path.extension() == Some("made".as_ref()) {
                // A note that went meanwhile names nothing.
                let text = fs::read_to_string(path).unwrap_or_default();
                noted.extend(PackId::read(text.trim()));
            }
        }
        Ok(noted)
    }

    /// Bytes that a plan has on the disk.
    pub(crate) fn bytes(&self, plan: &[u8; 32]) -> u64 {
        let [part, _] = part_files(&self.parts, plan);
        let pack = self.noted(plan).map(|id| pack_file(&self.packs, id));
        let sizes = [Some(part), pack].into_iter().flatten();
        sizes
            .filter_map(|path| Some(fs::metadata(path).ok()?.len()))
            .sum()
    }
}

/// Packs.
#[derive(Debug)]
pub(crate) struct PackSink {
    folders: PackFolders,
    plans: Vec<PackPlan>,
    /// Packs that were begun before.
    resumed: BTreeMap<usize, PackWriter>,
    current: Option<(usize, PackWriter)>,
    /// Packs that are whole.
    pub(crate) sealed: BTreeMap<usize, (StoredPack, PackTable)>,
}

impl PackSink {
    /// Looks at what is there already, and says what is left to be fetched, by pack.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn begin(
        folders: PackFolders,
        plans: Vec<PackPlan>,
        tree: &SourceTree,
    ) -> io::Result<(PackSink, Vec<FileGroup>)> {
        let mut sink = PackSink {
            folders,
            resumed: BTreeMap::new(),
            current: None,
            sealed: BTreeMap::new(),
            plans,
        };
        let mut groups = Vec::new();
        for (number, plan) in sink.plans.iter().enumerate() {
            let mut group = FileGroup {
                files: plan.files.clone(),
                files_done: 0,
                pieces_done: Vec::new(),
            };
            let [_, checkpoint] = part_files(&sink.folders.parts, &plan.hash);
            if let Some(made) = sink.folders.made(&plan.hash) {
                group.files_done = plan.files.len();
                sink.sealed.insert(number, made);
            } else if checkpoint.exists() {
                let writer = PackWriter::begin(&sink.folders.parts, plan)?;
                group.files_done = writer.files_done();
                if let (0, [only]) = (group.files_done, plan.files.as_slice()) {
                    let size = tree.entries()[*only as usize].size;
                    group.pieces_done = writer.pieces_done();
                    // One that has all pieces and was not ended begins anew.
                    if group.pieces_done.len() as u64 * PIECE >= size {
                        fs::remove_file(checkpoint)?;
                        group.pieces_done.clear();
                        groups.push(group);
                        continue;
                    }
                }
                sink.resumed.insert(number, writer);
            }
            groups.push(group);
        }
        Ok((sink, groups))
    }

    /// Bytes that were there before.
    pub(crate) fn bytes_before(&self) -> u64 {
        let sealed = self.sealed.values().map(|(pack, _)| pack.data);
        let parts = self.resumed.values().map(PackWriter::length);
        sealed.chain(parts).sum()
    }
}

impl FileSink for PackSink {
    fn begin(&mut self, group: usize) -> io::Result<()> {
        if self.sealed.contains_key(&group) {
            return Ok(());
        }
        let writer = match self.resumed.remove(&group) {
            Some(writer) => writer,
            None => PackWriter::begin(&self.folders.parts, &self.plans[group])?,
        };
        self.current = Some((group, writer));
        Ok(())
    }

    fn write(&mut self, _entry: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let Some((group, writer)) = &mut self.current else {
            return Ok(());
        };
        // Within a file that has a pack of its own, whole pieces are kept too.
        if offset > 0 && self.plans[*group].files.len() == 1 {
            writer.between_pieces()?;
        }
        writer.write(bytes)
    }

    fn end_file(&mut self, _entry: u32, digest: [u8; 32]) -> io::Result<()> {
        match &mut self.current {
            Some((_, writer)) => writer.end_file(digest),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        let Some((group, writer)) = self.current.take() else {
            return Ok(());
        };
        // Nobody deletes it between its name and its note.
        let held = self.folders.claims.lock();
        let made = writer.seal(&self.folders.packs)?;
        let note = self.folders.note(&self.plans[group].hash);
        write_whole(&note, made.0.id.to_string().as_bytes())?;
        drop(held);
        self.sealed.insert(group, made);
        Ok(())
    }

    fn pause(&mut self) -> io::Result<()> {
        match self.current.take() {
            Some((_, mut writer)) => writer.checkpoint(),
            None => Ok(()),
        }
    }
}

/// Note of an unfinished tree.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TreeCheckpoint {
    /// State of the source that it is of.
    fingerprint: String,
    /// Digests of the files that are whole, in order.
    files: Vec<[u8; 32]>,
}

/// Files of a tree, as readers see them.
#[derive(Debug)]
pub(crate) struct TreeSink {
    root: PathBuf,
    tree: Arc<SourceTree>,
    /// Files to come, in order.
    pub(crate) files: Vec<u32>,
    checkpoint: TreeCheckpoint,
    note: PathBuf,
    open: Option<File>,
    unsafe_bytes: u64,
}

impl TreeSink {
    /// Makes the folders of a tree below `root`, and links what the present version has; goes on
    /// with one that was left unfinished.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn begin(
        root: PathBuf,
        tree: Arc<SourceTree>,
        layout: &Layout,
        fingerprint: &str,
        present: Option<&Path>,
        present_path: impl Fn(u32) -> PathBuf,
    ) -> io::Result<(TreeSink, FileGroup)> {
        let note = root.with_extension("ckpt");
        let known: Option<TreeCheckpoint> = fs::read(&note)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        let checkpoint = match known {
            Some(known) if known.fingerprint == fingerprint && root.exists() => known,
            _ => {
                remove_tree(&root)?;
                TreeCheckpoint {
                    fingerprint: fingerprint.to_owned(),
                    files: Vec::new(),
                }
            }
        };
        make_folders(&root, &tree)?;
        let mut files = Vec::new();
        for (index, place) in (0_u32..).zip(&layout.places) {
            match place {
                Place::Nowhere => {}
                Place::New { .. } => files.push(index),
                Place::Kept { file } => {
                    let Some(present) = present else { continue };
                    let here = at(&root, tree.path(&tree.entries()[index as usize]));
                    let _from_before = fs::remove_file(&here);
                    fs::hard_link(present.join(present_path(*file)), here)?;
                }
            }
        }
        let group = FileGroup {
            files_done: checkpoint.files.len().min(files.len()),
            files: files.clone(),
            pieces_done: Vec::new(),
        };
        let sink = TreeSink {
            root,
            tree,
            files,
            checkpoint,
            note,
            open: None,
            unsafe_bytes: 0,
        };
        Ok((sink, group))
    }

    /// Digests of the files that were there before, by their entries.
    pub(crate) fn digests_before(&self) -> impl Iterator<Item = (u32, [u8; 32])> + '_ {
        let files = self.files.iter().copied();
        files.zip(self.checkpoint.files.iter().copied())
    }

    fn path(&self, entry: u32) -> PathBuf {
        at(
            &self.root,
            self.tree.path(&self.tree.entries()[entry as usize]),
        )
    }

    /// Adds links, empty files and further names, and takes the right to write from all.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn finish(&self) -> io::Result<()> {
        let entries = self.tree.entries();
        for entry in entries {
            let here = at(&self.root, self.tree.path(entry));
            let target = self.tree.target(entry);
            match (entry.kind, entry.same_as) {
                (EntryKind::Symlink, _) => {
                    let _from_before = fs::remove_file(&here);
                    symlink(std::ffi::OsStr::from_bytes(target), here)?;
                }
                (EntryKind::File, Some(first)) => {
                    let _from_before = fs::remove_file(&here);
                    fs::hard_link(self.path(first), here)?;
                }
                (EntryKind::File, None) if entry.size == 0 => {
                    let file = create(&here)?;
                    finish_file(&file, entry.is_executable, entry.modified_ns)?;
                }
                _ => {}
            }
        }
        for entry in entries.iter().rev() {
            if entry.kind == EntryKind::Directory {
                let here = at(&self.root, self.tree.path(entry));
                fs::set_permissions(here, Permissions::from_mode(0o555))?;
            }
        }
        fs::set_permissions(&self.root, Permissions::from_mode(0o555))?;
        rustix::fs::syncfs(File::open(&self.root)?)?;
        let _there_may_be_none = fs::remove_file(&self.note);
        Ok(())
    }

    fn save(&mut self) -> io::Result<()> {
        rustix::fs::syncfs(File::open(&self.root)?)?;
        let text = serde_json::to_string(&self.checkpoint).unwrap_or_default();
        write_whole(&self.note, text.as_bytes())?;
        self.unsafe_bytes = 0;
        Ok(())
    }
}

impl FileSink for TreeSink {
    fn begin(&mut self, _group: usize) -> io::Result<()> {
        Ok(())
    }

    fn write(&mut self, entry: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset == 0 {
            self.open = Some(create(&self.path(entry))?);
        }
        let Some(file) = &self.open else {
            return Err(io::Error::other("bytes of a file that was not begun"));
        };
        file.write_all_at(bytes, offset)
    }

    fn end_file(&mut self, entry: u32, digest: [u8; 32]) -> io::Result<()> {
        let about = &self.tree.entries()[entry as usize];
        if let Some(file) = self.open.take() {
            finish_file(&file, about.is_executable, about.modified_ns)?;
        }
        self.unsafe_bytes += about.size;
        self.checkpoint.files.push(digest);
        match self.unsafe_bytes >= CHECKPOINT {
            true => self.save(),
            false => Ok(()),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn pause(&mut self) -> io::Result<()> {
        self.open = None;
        self.save()
    }
}

/// Deletes a tree whose folders nobody may write to.
///
/// # Errors
/// The disk's; a tree that is not there is none.
pub(crate) fn remove_tree(root: &Path) -> io::Result<()> {
    let listed = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        _ => fs::set_permissions(root, Permissions::from_mode(0o700))
            .and_then(|()| fs::read_dir(root)),
    };
    for entry in listed? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => remove_tree(&entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_dir(root)?;
    root.parent().map_or(Ok(()), sync_folder)
}

fn make_folders(root: &Path, tree: &SourceTree) -> io::Result<()> {
    fs::create_dir_all(root)?;
    fs::set_permissions(root, Permissions::from_mode(0o700))?;
    for entry in tree.entries() {
        if entry.kind == EntryKind::Directory {
            let folder = at(root, tree.path(entry));
            match fs::create_dir(&folder) {
                // It may have been closed to writers when this was stopped.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    fs::set_permissions(folder, Permissions::from_mode(0o700))?;
                }
                made => made?,
            }
        }
    }
    Ok(())
}

fn at(root: &Path, path: &[u8]) -> PathBuf {
    root.join(std::ffi::OsStr::from_bytes(path))
}

fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Never written through: it may have a second name in the present version.
            fs::remove_file(path)?;
            options.open(path)
        }
        other => other,
    }
}

fn finish_file(file: &File, is_executable: bool, modified_ns: i64) -> io::Result<()> {
    set_time(file, modified_ns)?;
    let mode = if is_executable { 0o555 } else { 0o444 };
    file.set_permissions(Permissions::from_mode(mode))
}

/// Gives a file the time of its content.
///
/// # Errors
/// The disk's.
pub(crate) fn set_time(file: &File, modified_ns: i64) -> io::Result<()> {
    let time = Timespec {
        tv_sec: modified_ns.div_euclid(1_000_000_000),
        tv_nsec: modified_ns.rem_euclid(1_000_000_000),
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(rustix::fs::futimens(file, &times)?)
}
