//! Writes that are safe on the disk when they are said to be, and do not disturb others.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::block::BLOCK;

/// Writes a file whole or not at all.
///
/// # Errors
/// The disk's.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    sync_folder(folder)
}

/// Makes sure of the names in a folder.
///
/// # Errors
/// The disk's.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Opens a part for writing, past the page cache where the disk can do that.
pub(crate) fn open_direct(path: &Path) -> io::Result<File> {
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        options.custom_flags(flags.bits().cast_signed()).open(path)
    };
    match open(OFlags::DIRECT) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            tracing::warn!(path = %path.display(), "the disk has no direct writes: they pass the page cache");
            open(OFlags::empty())
        }
        other => other,
    }
}

/// A buffer whose first byte is at a multiple of a block, as direct writes want it.
#[derive(Debug)]
pub(crate) struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    filled: usize,
    size: usize,
}

impl AlignedBuffer {
    pub(crate) fn new(size: usize) -> AlignedBuffer {
        let block = usize::try_from(BLOCK).unwrap_or(4096);
        let bytes = vec![0; size + block];
        let start = bytes.as_ptr().align_offset(block).min(block);
        AlignedBuffer {
            bytes,
            start,
            filled: 0,
            size,
        }
    }

    pub(crate) fn take_from(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.size - self.filled);
        let at = self.start + self.filled;
        self.bytes[at..at + taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        taken
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.filled]
    }

    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    pub(crate) fn is_full(&self) -> bool {
        self.filled == self.size
    }

    pub(crate) fn clear(&mut self) {
        self.filled = 0;
    }
}
