//! Shows versions to programs: as a mount of their image, or as plain files.
//!
//! A mount lives in the kernel. It outlives this process, so jobs that read notice nothing of its
//! end; a process that starts anew finds the mounts that are there.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};
use serde::{Deserialize, Serialize};
use sublet_cache::VersionDigest;

use crate::block::BLOCK;
use crate::image::write_image;
use crate::manifest::Manifest;
use crate::words::system_text;

/// Way in which versions are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ViewMode {
    /// An EROFS image over packs that are read past the page cache of the store's disk (Linux 6.12
    /// and newer): as fast as plain files, and each byte is cached once.
    Direct,
    /// The same with both caches.
    Buffered,
    /// Plain files: no EROFS in the kernel, or no right to mount.
    Files,
}

impl ViewMode {
    /// Its name, as people see it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ViewMode::Direct => "direct",
            ViewMode::Buffered => "buffered",
            ViewMode::Files => "files",
        }
    }

    /// Are files in packs?
    pub(crate) fn is_packed(self) -> bool {
        self != ViewMode::Files
    }

    /// Finds the best way on this machine, by a tiny image of ours. The text says why it is not a
    /// better one.
    pub(crate) fn probe(folder: &Path) -> (ViewMode, Option<String>) {
        let mut reason = None;
        for mode in [ViewMode::Direct, ViewMode::Buffered] {
            match try_mount(folder, mode) {
                Ok(()) => return (mode, reason),
                Err(error) => reason = Some(format!("cannot mount EROFS: {}", system_text(&error))),
            }
        }
        (ViewMode::Files, reason)
    }
}

/// Mounts an empty image and takes it away again.
fn try_mount(folder: &Path, mode: ViewMode) -> io::Result<()> {
    let probe = tempfile::tempdir_in(folder)?;
    let image = probe.path().join("image");
    make_image(&image, &Manifest::default())?;
    let target = probe.path().join("view");
    fs::create_dir(&target)?;
    mount_image(&image, &[], &target, mode)?;
    let shown = fs::read_dir(&target).map(Iterator::count);
    unmount(&target, UnmountFlags::DETACH)?;
    match shown? {
        0 => Ok(()),
        n => Err(io::Error::other(format!("an empty image shows {n} files"))),
    }
}

/// Writes the image of a version, and makes sure of it.
///
/// # Errors
/// The disk's, or a version that no image can hold.
pub(crate) fn make_image(path: &Path, manifest: &Manifest) -> io::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    write_image(manifest, (0, 0), &mut out)?;
    out.flush()?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    // The first reads would otherwise wait for all of it.
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// Mounts an image over its packs.
///
/// # Errors
/// The kernel's: no right, no EROFS, or an image that it refuses.
pub(crate) fn mount_image(
    image: &Path,
    packs: &[PathBuf],
    target: &Path,
    mode: ViewMode,
) -> io::Result<()> {
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", image)?;
    for pack in packs {
        fsconfig_set_string(&context, "device", pack)?;
    }
    if mode == ViewMode::Direct {
        fsconfig_set_flag(&context, "directio")?;
    }
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&mount, "", rustix::fs::CWD, target, flags)?;
    Ok(())
}

/// Takes a mount away; those who read it go on until they close their files.
///
/// # Errors
/// The kernel's. A folder that is no mount is none.
pub(crate) fn unmount_view(target: &Path) -> io::Result<()> {
    if !is_mount(target) {
        // Who may not mount need not ask.
        return Ok(());
    }
    match unmount(target, UnmountFlags::DETACH) {
        Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Is something mounted there?
pub(crate) fn is_mount(target: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|about| about.dev());
    let parent = target.parent().unwrap_or(Path::new("/"));
    matches!((device(target), device(parent)), (Ok(here), Ok(above)) if here != above)
}

/// Folder of a version's view.
pub(crate) fn view_folder(views: &Path, version: VersionDigest) -> PathBuf {
    views.join(version.to_string())
}

/// Room of a file on the disk.
pub(crate) fn room(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK)
}
