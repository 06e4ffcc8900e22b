//! The store on the disk: what is made, shown, checked and deleted. All of it blocks, and is called
//! by threads of its own.
//!
//! ```text
//! state.json            sets, versions, leases
//! packs/ID.pack         bytes of files
//! sets/DIGEST/manifest, image
//! views/DIGEST          where programs read a version
//! parts/                unfinished packs and trees
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sublet_cache::{DiskSpace, KnownVersion, Made, PackId, VersionDigest};
use sublet_model::{Bytes, Time};

use crate::block::padded;
use crate::manifest::Manifest;
use crate::pack::pack_file;
use crate::sink::{PackFolders, remove_tree};
use crate::view::{ViewMode, is_mount, mount_image, room, unmount_view, view_folder};

pub(crate) mod making;

/// A store.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    root: PathBuf,
    pub(crate) mode: ViewMode,
    /// Why the mode is not a better one.
    pub(crate) mode_reason: Option<String>,
    /// Packs of versions. Under its lock packs get their names, and are deleted.
    claims: Arc<Mutex<BTreeSet<PackId>>>,
}

impl Store {
    /// Opens or makes a store.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn open(root: &Path, mode: Option<ViewMode>) -> io::Result<Store> {
        let mut folder = fs::DirBuilder::new();
        folder.recursive(true).mode(0o700);
        for name in ["packs", "sets", "views", "parts"] {
            folder.create(root.join(name))?;
        }
        fs::set_permissions(root, fs::Permissions::from_mode(0o700))?;
        let root = root.canonicalize()?;
        let (mode, mode_reason) = match mode {
            Some(ViewMode::Files) => (ViewMode::Files, Some("it was asked for".to_owned())),
            _ => ViewMode::probe(&root.join("parts")),
        };
        Ok(Store {
            root,
            mode,
            mode_reason,
            claims: Arc::default(),
        })
    }

    /// Packs of versions: no other work gives a pack its name or deletes one meanwhile.
    pub(crate) fn claims(&self) -> MutexGuard<'_, BTreeSet<PackId>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn record_file(&self) -> PathBuf {
        self.root.join("state.json")
    }

    pub(crate) fn packs(&self) -> PathBuf {
        self.folder("packs")
    }

    pub(super) fn folder(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(super) fn set_folder(&self, version: VersionDigest) -> PathBuf {
        self.folder("sets").join(version.to_string())
    }

    pub(super) fn pack_folders(&self) -> PackFolders {
        PackFolders {
            packs: self.folder("packs"),
            parts: self.folder("parts"),
            claims: self.claims.clone(),
        }
    }

    /// Folder in which programs read a version.
    pub(crate) fn view(&self, version: VersionDigest) -> PathBuf {
        view_folder(&self.folder("views"), version)
    }

    /// Room on the store's disk.
    pub(crate) fn disk(&self) -> DiskSpace {
        match rustix::fs::statvfs(&self.root) {
            Ok(about) => {
                // As `df` counts: what only root may use is no part of it.
                let used = about.f_blocks.saturating_sub(about.f_bfree);
                let bytes = |blocks: u64| Bytes::new(blocks.saturating_mul(about.f_frsize));
                DiskSpace {
                    capacity: bytes(used.saturating_add(about.f_bavail)),
                    free: bytes(about.f_bavail),
                }
            }
            Err(_) => DiskSpace::default(),
        }
    }

    /// Packs of a version with their room. A version of plain files is one that only it has.
    pub(super) fn packs_of(
        &self,
        version: VersionDigest,
        manifest: &Manifest,
    ) -> BTreeMap<PackId, Bytes> {
        match self.mode {
            ViewMode::Files => BTreeMap::from([(
                PackId(version.0),
                Bytes::new(manifest.packs.iter().map(|pack| pack.room).sum()),
            )]),
            _ => {
                let packs = manifest.packs.iter();
                packs
                    .map(|pack| (pack.id, Bytes::new(room(pack.room))))
                    .collect()
            }
        }
    }

    /// Mounts a version, unless it is.
    pub(crate) fn show(&self, version: VersionDigest, manifest: &Manifest) -> io::Result<()> {
        if self.mode == ViewMode::Files {
            return Ok(());
        }
        let view = self.view(version);
        fs::create_dir_all(&view)?;
        if is_mount(&view) {
            return Ok(());
        }
        let folder = self.folder("packs");
        let packs: Vec<PathBuf> = manifest
            .packs
            .iter()
            .map(|pack| pack_file(&folder, pack.id))
            .collect();
        mount_image(
            &self.set_folder(version).join("image"),
            &packs,
            &view,
            self.mode,
        )
    }

    /// The manifest of a version.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub(crate) fn manifest(&self, version: VersionDigest) -> io::Result<Manifest> {
        let bytes = fs::read(self.set_folder(version).join("manifest"))?;
        let manifest = Manifest::read(&bytes);
        manifest.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// A version as it was found at the start: shown, if all of it is there.
    ///
    /// # Errors
    /// A part of it is missing or damaged.
    pub(crate) fn recover(&self, version: VersionDigest, own: Bytes) -> io::Result<KnownVersion> {
        let manifest = self.manifest(version)?;
        if self.mode == ViewMode::Files {
            fs::metadata(self.view(version))?;
        } else {
            for pack in &manifest.packs {
                let length = fs::metadata(pack_file(&self.folder("packs"), pack.id))?.len();
                if length != pack.room {
                    let text = format!("the pack {} is cut off", pack.id);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                }
            }
            self.show(version, &manifest)?;
        }
        Ok(KnownVersion {
            version,
            fingerprints: BTreeSet::new(),
            packs: self.packs_of(version, &manifest),
            own,
            size: Bytes::new(manifest.tree.size()),
            used: Time::from_ms(0),
        })
    }

    /// Deletes a version, and those of its packs that nobody else claims.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn evict(&self, version: VersionDigest) -> io::Result<()> {
        let manifest = self.manifest(version);
        let view = self.view(version);
        if self.mode == ViewMode::Files {
            remove_tree(&view)?;
        } else {
            unmount_view(&view)?;
            match fs::remove_dir(&view) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let packs = manifest.iter().flat_map(|manifest| &manifest.packs);
            self.delete_packs(packs.map(|pack| pack.id))?;
        }
        match fs::remove_dir_all(self.set_folder(version)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Deletes packs that no version has and no note of an unfinished set names.
    fn delete_packs(&self, packs: impl Iterator<Item = PackId>) -> io::Result<()> {
        let claims = self.claims();
        let noted = self.pack_folders().all_noted()?;
        for id in packs.filter(|id| !claims.contains(id) && !noted.contains(id)) {
            remove_file(&pack_file(&self.packs(), id))?;
        }
        Ok(())
    }

    /// Claims the packs of a version that was just made.
    ///
    /// # Errors
    /// One of them is gone: it was deleted with another version at the same time.
    pub(crate) fn claim(&self, made: &Made) -> io::Result<()> {
        let mut claims = self.claims();
        if self.mode.is_packed() {
            for id in made.packs.keys() {
                fs::metadata(pack_file(&self.packs(), *id))?;
            }
        }
        claims.extend(made.packs.keys());
        Ok(())
    }

    /// Bytes of unfinished parts.
    pub(crate) fn part_bytes(&self, plans: &[[u8; 32]]) -> u64 {
        let folders = self.pack_folders();
        let packs = plans.iter().map(|plan| folders.bytes(plan));
        let trees = plans.iter().map(|plan| tree_bytes(&self.part_tree(plan)));
        packs.chain(trees).sum()
    }

    fn part_tree(&self, plan: &[u8; 32]) -> PathBuf {
        self.folder("parts").join(format!("{}.tree", PackId(*plan)))
    }

    /// Deletes unfinished parts, and the packs of theirs that nobody else claims.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn drop_parts(&self, plans: &[[u8; 32]]) -> io::Result<()> {
        let folders = self.pack_folders();
        for plan in plans {
            let pack = folders.noted(plan);
            folders.forget(plan);
            self.delete_packs(pack.into_iter())?;
            let tree = self.part_tree(plan);
            remove_tree(&tree)?;
            remove_file(&tree.with_extension("ckpt"))?;
        }
        Ok(())
    }

    /// Forgets the notes of parts that belong to a version now.
    pub(crate) fn forget_parts(&self, plans: &[[u8; 32]]) {
        let folders = self.pack_folders();
        plans.iter().for_each(|plan| folders.forget(plan));
    }

    /// Packs that notes of unfinished sets name.
    pub(crate) fn noted_packs(&self, plans: &[[u8; 32]]) -> BTreeSet<PackId> {
        let folders = self.pack_folders();
        plans
            .iter()
            .filter_map(|plan| folders.noted(plan))
            .collect()
    }

    /// Deletes what nobody names: rests of a process that was killed.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn sweep(
        &self,
        versions: &BTreeSet<VersionDigest>,
        packs: &BTreeSet<PackId>,
        plans: &BTreeSet<[u8; 32]>,
    ) -> io::Result<()> {
        let strangers =
            |folder: &str, is_known: &dyn Fn(&str) -> bool| -> io::Result<Vec<PathBuf>> {
                let mut found = Vec::new();
                for entry in fs::read_dir(self.folder(folder))? {
                    let entry = entry?;
                    if !is_known(&entry.file_name().to_string_lossy()) {
                        found.push(entry.path());
                    }
                }
                Ok(found)
            };
        let is_version =
            |name: &str| VersionDigest::read(name).is_some_and(|v| versions.contains(&v));
        for view in strangers("views", &is_version)? {
            unmount_view(&view)?;
            remove_tree(&view)?;
        }
        for set in strangers("sets", &is_version)? {
            fs::remove_dir_all(set)?;
        }
        let stem = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let is_pack = |name: &str| PackId::read(&stem(name)).is_some_and(|id| packs.contains(&id));
        for pack in strangers("packs", &is_pack)? {
            fs::remove_file(pack)?;
        }
        let is_plan =
            |name: &str| PackId::read(&stem(name)).is_some_and(|id| plans.contains(&id.0));
        for part in strangers("parts", &is_plan)? {
            match part.is_dir() {
                true => {
                    unmount_view(&part.join("view"))?;
                    remove_tree(&part)?;
                }
                false => fs::remove_file(part)?,
            }
        }
        Ok(())
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn tree_bytes(root: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(root) else {
        return 0;
    };
    let each = entries.flatten().map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => tree_bytes(&entry.path()),
        _ => entry.metadata().map_or(0, |about| padded(about.len())),
    });
    each.sum()
}
