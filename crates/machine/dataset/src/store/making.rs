//! A version from its source to its view: listed, laid out, fetched, sealed, shown.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use sublet_cache::{FaultKind, Made, PackId, SourceFault, SourceListing, VersionDigest};
use sublet_model::Bytes;

use super::Store;
use crate::block::{StoredPack, padded};
use crate::crew::StopFlag;
use crate::disk::{sync_folder, write_whole};
use crate::fetch::{Fetch, FileGroup, disk_fault, fetch};
use crate::layout::{Layout, Place, lay_out};
use crate::manifest::{FileContent, Manifest};
use crate::sink::{PackSink, TreeSink, remove_tree};
use crate::source::DataSource;
use crate::tree::SourceTree;
use crate::view::{ViewMode, make_image, room, unmount_view};

/// A source that was listed, and what a fetch of it does.
#[derive(Debug)]
pub(crate) struct Listed {
    source: Arc<dyn DataSource>,
    tree: Arc<SourceTree>,
    layout: Layout,
    present: Option<Arc<Manifest>>,
    present_version: Option<VersionDigest>,
    pub(crate) listing: SourceListing,
}

/// Terms of a fetch.
#[derive(Debug, Clone)]
pub(crate) struct FetchOrder {
    /// Room that is kept for it.
    pub(crate) room: Bytes,
    pub(crate) readers: Arc<AtomicUsize>,
    pub(crate) stop: StopFlag,
}

/// A version that was made.
#[derive(Debug)]
pub(crate) struct MadeVersion {
    pub(crate) made: Made,
    pub(crate) files: u64,
}

impl Store {
    /// Lists a source, and works out what a fetch needs.
    ///
    /// # Errors
    /// The source's.
    pub(crate) fn list(
        &self,
        source: Arc<dyn DataSource>,
        present: Option<VersionDigest>,
        stop: &StopFlag,
    ) -> Result<Listed, SourceFault> {
        let tree = source.list(stop)?;
        let name = source.name();
        let present = present.and_then(|version| Some((version, self.manifest(version).ok()?)));
        let (version, manifest) = present.unzip();
        let layout = lay_out(&tree, &name, manifest.as_ref());
        let need = self.need(&tree, &layout);
        let whole = match &manifest {
            Some(_) => self.need(&tree, &lay_out(&tree, &name, None)),
            None => need,
        };
        let listing = SourceListing {
            fingerprint: tree.fingerprint(&name),
            need: Bytes::new(need),
            whole: Bytes::new(whole),
        };
        Ok(Listed {
            source,
            tree: Arc::new(tree),
            layout,
            present: manifest.map(Arc::new),
            present_version: version,
            listing,
        })
    }

    fn need(&self, tree: &SourceTree, layout: &Layout) -> u64 {
        match self.mode {
            ViewMode::Direct | ViewMode::Buffered => layout.room(tree),
            ViewMode::Files => {
                let places = tree.entries().iter().zip(&layout.places);
                let new = places.filter(|(_, place)| matches!(place, Place::New { .. }));
                let bytes: u64 = new.map(|(entry, _)| padded(entry.size)).sum();
                // An entry takes an inode or a block of names, and a record in the manifest.
                bytes + 1024 * tree.entries().len() as u64 + (1 << 20)
            }
        }
    }

    /// Plans of the packs that a fetch makes, by which its unfinished parts are found.
    pub(crate) fn plans(&self, listed: &Listed) -> Vec<[u8; 32]> {
        match self.mode {
            ViewMode::Files => vec![listed.listing.fingerprint.0],
            _ => listed.layout.packs.iter().map(|pack| pack.hash).collect(),
        }
    }

    /// Fetches what was listed, and shows it. `came` hears of the room taken by now.
    ///
    /// # Errors
    /// The source's or the disk's, or the stop.
    pub(crate) fn make(
        &self,
        listed: &Listed,
        order: &FetchOrder,
        came: impl FnMut(u64),
    ) -> Result<MadeVersion, SourceFault> {
        if listed.listing.need > order.room {
            return Err(SourceFault {
                kind: FaultKind::Changed,
                text: "more must be fetched than was thought".to_owned(),
            });
        }
        let manifest = match self.mode {
            ViewMode::Files => self.make_files(listed, order, came)?,
            _ => self.make_packs(listed, order, came)?,
        };
        let version = manifest.digest();
        let own = self.seal(version, &manifest, listed);
        let own = own.map_err(|error| disk_fault("the tables of the set", &error))?;
        Ok(MadeVersion {
            files: manifest.tree.files(),
            made: Made {
                version,
                fingerprint: listed.listing.fingerprint,
                packs: self.packs_of(version, &manifest),
                own: Bytes::new(own),
                size: Bytes::new(manifest.tree.size()),
            },
        })
    }

    fn make_packs(
        &self,
        listed: &Listed,
        order: &FetchOrder,
        mut came: impl FnMut(u64),
    ) -> Result<Manifest, SourceFault> {
        let begun = PackSink::begin(
            self.pack_folders(),
            listed.layout.packs.clone(),
            &listed.tree,
        );
        let (mut sink, groups) = begun.map_err(|error| disk_fault("its packs", &error))?;
        let mut written = sink.bytes_before();
        came(written);
        let job = job(listed, groups, order);
        let digests = fetch(&job, &mut sink, |bytes| {
            written += bytes;
            came(written);
        })?;
        let mut packs = Vec::new();
        let mut contents = vec![FileContent::default(); listed.tree.entries().len()];
        for (number, plan) in listed.layout.packs.iter().enumerate() {
            let Some((pack, table)) = sink.sealed.get(&number) else {
                return Err(lost("a pack that was made is not there"));
            };
            packs.push(*pack);
            // The table has those of files that were there before, too.
            for (entry, digest) in plan.files.iter().zip(&table.files) {
                let known = digests[*entry as usize];
                if known != [0; 32] && known != *digest {
                    return Err(lost("a pack has another file than was read"));
                }
                contents[*entry as usize].digest = *digest;
            }
        }
        self.keep_present(listed, &mut packs, &mut contents)?;
        for (content, place) in contents.iter_mut().zip(&listed.layout.places) {
            if let Place::New { pack, offset } = place {
                (content.pack, content.offset) = (*pack, *offset);
            }
        }
        Ok(manifest(listed, packs, contents))
    }

    /// Files whose bytes are in packs of the present version.
    fn keep_present(
        &self,
        listed: &Listed,
        packs: &mut Vec<StoredPack>,
        contents: &mut [FileContent],
    ) -> Result<(), SourceFault> {
        let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
        for (content, place) in contents.iter_mut().zip(&listed.layout.places) {
            let Place::Kept { file } = place else {
                continue;
            };
            let Some(present) = &listed.present else {
                return Err(lost("the version before is not there"));
            };
            *content = present.content(*file as usize);
            content.pack = *numbers.entry(content.pack).or_insert_with(|| {
                packs.extend(present.packs.get(content.pack as usize));
                u32::try_from(packs.len() - 1).unwrap_or(u32::MAX)
            });
        }
        Ok(())
    }

    fn make_files(
        &self,
        listed: &Listed,
        order: &FetchOrder,
        mut came: impl FnMut(u64),
    ) -> Result<Manifest, SourceFault> {
        let failed = |error: io::Error| disk_fault("its files", &error);
        let fingerprint = listed.listing.fingerprint;
        let root = self.folder("parts").join(format!("{fingerprint}.tree"));
        let present = listed.present_version.map(|version| self.view(version));
        let path_of = |file: u32| {
            let manifest = listed.present.as_deref();
            let entry =
                manifest.and_then(|known| Some((known, known.tree.entries().get(file as usize)?)));
            let path = entry.map_or(&[][..], |(known, entry)| known.tree.path(entry));
            PathBuf::from(std::ffi::OsStr::from_bytes(path))
        };
        let begun = TreeSink::begin(
            root.clone(),
            listed.tree.clone(),
            &listed.layout,
            &fingerprint.to_string(),
            present.as_deref(),
            path_of,
        );
        let (mut sink, group) = begun.map_err(failed)?;
        let before: Vec<(u32, [u8; 32])> = sink.digests_before().collect();
        let sizes = before
            .iter()
            .map(|(at, _)| padded(listed.tree.entries()[*at as usize].size));
        let mut written: u64 = sizes.sum();
        came(written);
        let job = job(listed, vec![group], order);
        let digests = fetch(&job, &mut sink, |bytes| {
            written += bytes;
            came(written);
        })?;
        sink.finish().map_err(failed)?;
        let mut contents = vec![FileContent::default(); listed.tree.entries().len()];
        for (content, digest) in contents.iter_mut().zip(&digests) {
            content.digest = *digest;
        }
        for (entry, digest) in before {
            contents[entry as usize].digest = digest;
        }
        for (content, place) in contents.iter_mut().zip(&listed.layout.places) {
            if let (Place::Kept { file }, Some(present)) = (place, &listed.present) {
                content.digest = present.content(*file as usize).digest;
            }
        }
        // One pack that is no file stands for the whole tree, so that its places can be checked.
        let mut end = 0;
        for (content, entry) in contents.iter_mut().zip(listed.tree.entries()) {
            content.offset = end;
            end += padded(entry.size);
        }
        let tree_pack = StoredPack {
            id: PackId(fingerprint.0),
            data: end,
            room: end,
        };
        let manifest = manifest(listed, vec![tree_pack], contents);
        let view = self.view(manifest.digest());
        if !view.exists() {
            rename_tree(&root, &view).map_err(failed)?;
        } else {
            remove_tree(&root).map_err(failed)?;
        }
        Ok(manifest)
    }

    /// Writes the tables of a version and shows it. The room of the tables.
    fn seal(
        &self,
        version: VersionDigest,
        manifest: &Manifest,
        listed: &Listed,
    ) -> io::Result<u64> {
        let folder = self.set_folder(version);
        fs::create_dir_all(&folder)?;
        let bytes = manifest.write();
        write_whole(&folder.join("manifest"), &bytes)?;
        let mut own = room(bytes.len() as u64);
        if self.mode != ViewMode::Files {
            own += room(make_image(&folder.join("image"), manifest)?);
        }
        sync_folder(&self.folder("sets"))?;
        // One that is shown already may be of packs whose bytes were wrong.
        unmount_view(&self.view(version))?;
        self.show(version, manifest)?;
        tracing::info!(%version, files = manifest.tree.files(), skipped = listed.tree.skipped, "made");
        Ok(own)
    }
}

fn job(listed: &Listed, groups: Vec<FileGroup>, order: &FetchOrder) -> Fetch {
    Fetch {
        source: listed.source.clone(),
        tree: listed.tree.clone(),
        groups: Arc::new(groups),
        readers: order.readers.clone(),
        stop: order.stop.clone(),
    }
}

fn manifest(listed: &Listed, packs: Vec<StoredPack>, contents: Vec<FileContent>) -> Manifest {
    let mut contents = contents;
    for (content, entry) in contents.iter_mut().zip(listed.tree.entries()) {
        if entry.size == 0 {
            content.digest = *blake3::hash(&[]).as_bytes();
        }
    }
    Manifest {
        packs,
        tree: (*listed.tree).clone(),
        contents,
    }
}

fn lost(text: &str) -> SourceFault {
    SourceFault {
        kind: FaultKind::Passing,
        text: text.to_owned(),
    }
}

/// Moves a tree that nobody may write to: its own folder must be writable for that.
fn rename_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::set_permissions(from, fs::Permissions::from_mode(0o755))?;
    fs::rename(from, to)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o555))?;
    to.parent().map_or(Ok(()), sync_folder)
}
