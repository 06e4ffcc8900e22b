//! Writes the EROFS image of a version: directories and inodes alone. Each file has one index into
//! a pack, and the packs are given to the kernel as further devices, so no byte of a file is
//! written twice. nydus and containerd's EROFS snapshotter lay their images out in the same way.
//!
//! The format: `fs/erofs/erofs_fs.h` of Linux; `dataset-cache.md` names the fields that suffice. The
//! kernel reads only images that this code wrote.

use std::io::{self, Write};

use crate::block::BLOCK;
use crate::manifest::Manifest;
use crate::tree::{EntryKind, name, parent};

const MAGIC: u32 = 0xe0f5_e1e2;
/// The superblock's offset, and that of the table of devices behind it.
const SUPERBLOCK: u64 = 1024;
const DEVICES: u64 = 1152;
/// Bytes of a device's record.
const DEVICE: u64 = 128;
/// Block size, as a power of two.
const BLOCK_BITS: u8 = 12;
/// Files are in chunks; there are further devices (`EROFS_FEATURE_INCOMPAT_…`).
const CHUNKED_FILES: u32 = 4;
const DEVICE_TABLE: u32 = 8;
/// Times are those of the content (`EROFS_FEATURE_COMPAT_MTIME`).
const TIMES_OF_CONTENT: u32 = 2;
/// An inode's number counts slots of so many bytes.
const SLOT: u64 = 32;
/// Bytes of an inode in its long form.
const INODE: u64 = 64;
/// Data layouts.
const PLAIN: u16 = 0;
const INLINE: u16 = 2;
const CHUNKS: u16 = 4;
/// The largest chunk, in blocks to a power of two.
const CHUNK_BITS_MAX: u32 = 31;
/// Chunks have indices of eight bytes; the rest of the format is the size of a chunk.
const INDICES: u32 = 0x20;

/// Places of things in an image, worked out before the first byte.
struct ImagePlan<'a> {
    manifest: &'a Manifest,
    /// Children of each directory, the root last, as entries.
    children: Vec<Vec<u32>>,
    /// Directory of each entry: its place in `children`.
    folders: Vec<u32>,
    /// Place of a directory in `children`, by entry; the root's for all else.
    folder_of: Vec<u32>,
    /// Entry of each directory but the root, by its place in `children`.
    entry_of: Vec<u32>,
    /// Inode numbers of entries, the root's first.
    nids: Vec<u64>,
    /// First block of inodes, and of what follows them.
    meta: u64,
    data: u64,
    /// First block of each directory, the root's last.
    blocks: Vec<u64>,
    /// First block of each long link, by entry.
    long_links: Vec<(u32, u64)>,
    end: u64,
}

/// Writes the image. `owner`: user and group of all that is in it.
///
/// # Errors
/// The writer's, or a tree that is too large for the format.
pub(crate) fn write_image(
    manifest: &Manifest,
    owner: (u32, u32),
    out: &mut impl Write,
) -> io::Result<()> {
    let plan = ImagePlan::new(manifest);
    let mut entries = manifest.tree.entries().iter();
    let is_too_much = u16::try_from(manifest.packs.len()).is_err()
        || u32::try_from(plan.end).is_err()
        || entries.any(|entry| chunk_bits(entry.size) > CHUNK_BITS_MAX);
    if is_too_much {
        let text = "an image has at most 65535 packs, 16 TiB of tables, and files of 8 TiB";
        return Err(io::Error::other(text));
    }
    let mut out = Counted { out, written: 0 };
    plan.write_head(&mut out)?;
    plan.write_inodes(owner, &mut out)?;
    for folder in 0..plan.children.len() {
        out.fill_to(plan.blocks[folder] * BLOCK)?;
        plan.write_folder(folder, &mut out)?;
    }
    for (entry, block) in &plan.long_links {
        out.fill_to(block * BLOCK)?;
        out.write_all(
            manifest
                .tree
                .target(&manifest.tree.entries()[*entry as usize]),
        )?;
    }
    out.fill_to(plan.end * BLOCK)
}

impl ImagePlan<'_> {
    fn new(manifest: &Manifest) -> ImagePlan<'_> {
        let entries = manifest.tree.entries();
        let n_folders = entries
            .iter()
            .filter(|entry| entry.kind == EntryKind::Directory)
            .count();
        let root = u32::try_from(n_folders).unwrap_or(u32::MAX);
        let mut plan = ImagePlan {
            manifest,
            children: vec![Vec::new(); n_folders + 1],
            folders: Vec::with_capacity(entries.len()),
            folder_of: vec![root; entries.len()],
            entry_of: Vec::with_capacity(n_folders),
            nids: Vec::with_capacity(entries.len() + 1),
            meta: (DEVICES + DEVICE * manifest.packs.len() as u64).div_ceil(BLOCK),
            data: 0,
            blocks: Vec::new(),
            long_links: Vec::new(),
            end: 0,
        };
        plan.find_children(root);
        plan.number();
        plan.place();
        plan
    }

    /// Entries are in the order of a walk, so the open directories are a stack.
    fn find_children(&mut self, root: u32) {
        let tree = &self.manifest.tree;
        let mut open: Vec<(&[u8], u32)> = Vec::new();
        for (index, entry) in (0_u32..).zip(tree.entries()) {
            let path = tree.path(entry);
            while open
                .last()
                .is_some_and(|(folder, _)| *folder != parent(path))
            {
                open.pop();
            }
            let folder = open.last().map_or(root, |(_, number)| *number);
            self.folders.push(folder);
            self.children[folder as usize].push(index);
            if entry.kind == EntryKind::Directory {
                let number = u32::try_from(self.entry_of.len()).unwrap_or(u32::MAX);
                self.folder_of[index as usize] = number;
                self.entry_of.push(index);
                open.push((path, number));
            }
        }
    }

    /// Gives each entry its inode, none of which crosses a block.
    fn number(&mut self) {
        let mut at = 0;
        let mut place = |length: u64| {
            if at % BLOCK + length > BLOCK {
                at = at.next_multiple_of(BLOCK);
            }
            let nid = at / SLOT;
            at = (at + length).next_multiple_of(SLOT);
            nid
        };
        self.nids.push(place(INODE));
        let tree = &self.manifest.tree;
        for entry in tree.entries() {
            let nid = match entry.same_as {
                Some(first) => self.nids[first as usize + 1],
                None => place(inode_length(
                    entry.kind,
                    entry.size,
                    tree.target(entry).len(),
                )),
            };
            self.nids.push(nid);
        }
        self.data = self.meta + at.div_ceil(BLOCK);
    }

    /// Gives directories and long links their blocks.
    fn place(&mut self) {
        let mut block = self.data;
        for folder in 0..self.children.len() {
            self.blocks.push(block);
            block += self.folder_size(folder).div_ceil(BLOCK);
        }
        let tree = &self.manifest.tree;
        for (index, entry) in (0_u32..).zip(tree.entries()) {
            let length = tree.target(entry).len();
            if entry.kind == EntryKind::Symlink && is_long(length) {
                self.long_links.push((index, block));
                block += 1;
            }
        }
        self.end = block;
    }

    /// The names of a directory with their inodes and types, in order; `.` and `..` are among them.
    fn names(&self, folder: usize) -> Vec<(&[u8], u64, u8)> {
        let tree = &self.manifest.tree;
        let entries = tree.entries();
        let here = self.nid_of_folder(folder);
        let above = match self.entry_of.get(folder) {
            Some(entry) => self.nid_of_folder(self.folders[*entry as usize] as usize),
            None => here,
        };
        let mut names: Vec<(&[u8], u64, u8)> = vec![(b".", here, 2), (b"..", above, 2)];
        names.extend(self.children[folder].iter().map(|child| {
            let entry = &entries[*child as usize];
            let file_type = match entry.kind {
                EntryKind::File => 1,
                EntryKind::Directory => 2,
                EntryKind::Symlink => 7,
            };
            (
                name(tree.path(entry)),
                self.nids[*child as usize + 1],
                file_type,
            )
        }));
        names.sort_unstable();
        names
    }

    fn nid_of_folder(&self, folder: usize) -> u64 {
        let entry = self.entry_of.get(folder);
        entry.map_or(self.nids[0], |entry| self.nids[*entry as usize + 1])
    }

    fn folder_size(&self, folder: usize) -> u64 {
        let names = self.names(folder);
        let blocks = split(&names);
        let last = blocks.last().map_or(0, |names| length_of(names));
        (blocks.len() as u64).saturating_sub(1) * BLOCK + last
    }

    fn write_head(&self, out: &mut Counted<'_, impl Write>) -> io::Result<()> {
        out.fill_to(SUPERBLOCK)?;
        let mut head = [0; 128];
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC.to_le_bytes());
        put(8, &TIMES_OF_CONTENT.to_le_bytes());
        put(12, &[BLOCK_BITS]);
        put(14, &(self.nids[0] as u16).to_le_bytes());
        put(16, &(self.nids.len() as u64).to_le_bytes());
        put(36, &(self.end as u32).to_le_bytes());
        put(40, &(self.meta as u32).to_le_bytes());
        put(48, &self.manifest.digest().0[..16]);
        put(80, &(CHUNKED_FILES | DEVICE_TABLE).to_le_bytes());
        put(86, &(self.manifest.packs.len() as u16).to_le_bytes());
        put(88, &((DEVICES / DEVICE) as u16).to_le_bytes());
        out.write_all(&head)?;
        for pack in &self.manifest.packs {
            let mut device = [0; DEVICE as usize];
            device[..64].copy_from_slice(&pack.id.to_string().as_bytes()[..64]);
            device[64..68].copy_from_slice(&((pack.data / BLOCK) as u32).to_le_bytes());
            out.write_all(&device)?;
        }
        Ok(())
    }

    fn write_inodes(&self, owner: (u32, u32), out: &mut Counted<'_, impl Write>) -> io::Result<()> {
        let tree = &self.manifest.tree;
        let links = self.links();
        let root = self.children.len() - 1;
        out.fill_to(self.meta * BLOCK + self.nids[0] * SLOT)?;
        self.write_folder_inode(root, 0, 0, owner, out)?;
        for (index, entry) in tree.entries().iter().enumerate() {
            if entry.same_as.is_some() {
                continue;
            }
            out.fill_to(self.meta * BLOCK + self.nids[index + 1] * SLOT)?;
            let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
            if entry.kind == EntryKind::Directory {
                let folder = self.folder_of[index] as usize;
                self.write_folder_inode(folder, number, entry.modified_ns, owner, out)?;
                continue;
            }
            let content = self.manifest.content(index);
            let target = tree.target(entry);
            let (layout, mode, size, union) = match entry.kind {
                EntryKind::Symlink if is_long(target.len()) => {
                    let found = self
                        .long_links
                        .binary_search_by_key(&index, |(at, _)| *at as usize);
                    let block = found.map_or(0, |at| self.long_links[at].1 as u32);
                    (PLAIN, 0o120_777, target.len() as u64, block)
                }
                EntryKind::Symlink => (INLINE, 0o120_777, target.len() as u64, 0),
                _ if entry.size == 0 => (PLAIN, file_mode(entry.is_executable), 0, 0),
                _ => {
                    let chunk = INDICES | chunk_bits(entry.size);
                    (CHUNKS, file_mode(entry.is_executable), entry.size, chunk)
                }
            };
            let inode = Inode {
                layout,
                mode,
                size,
                union,
                number,
                modified_ns: entry.modified_ns,
                links: links[index],
            };
            out.write_all(&inode.bytes(owner))?;
            match layout {
                INLINE => out.write_all(target)?,
                CHUNKS => {
                    let device = u16::try_from(content.pack + 1).unwrap_or(u16::MAX);
                    let block = (content.offset / BLOCK) as u32;
                    out.write_all(&[0, 0])?;
                    out.write_all(&device.to_le_bytes())?;
                    out.write_all(&block.to_le_bytes())?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn write_folder_inode(
        &self,
        folder: usize,
        number: u32,
        modified_ns: i64,
        owner: (u32, u32),
        out: &mut Counted<'_, impl Write>,
    ) -> io::Result<()> {
        let entries = self.manifest.tree.entries();
        let within = self.children[folder].iter();
        let folders = within.filter(|at| entries[**at as usize].kind == EntryKind::Directory);
        let inode = Inode {
            layout: PLAIN,
            mode: 0o040_555,
            size: self.folder_size(folder),
            union: self.blocks[folder] as u32,
            number,
            modified_ns,
            links: 2 + u32::try_from(folders.count()).unwrap_or(u32::MAX),
        };
        out.write_all(&inode.bytes(owner))
    }

    /// Names of each entry's inode.
    fn links(&self) -> Vec<u32> {
        let entries = self.manifest.tree.entries();
        let mut links = vec![1; entries.len()];
        for first in entries.iter().filter_map(|entry| entry.same_as) {
            links[first as usize] += 1;
        }
        links
    }

    fn write_folder(&self, folder: usize, out: &mut Counted<'_, impl Write>) -> io::Result<()> {
        let names = self.names(folder);
        for (number, block) in split(&names).into_iter().enumerate() {
            out.fill_to((self.blocks[folder] + number as u64) * BLOCK)?;
            let mut offset = DIRENT * block.len() as u64;
            for (name, nid, file_type) in block {
                out.write_all(&nid.to_le_bytes())?;
                out.write_all(&(offset as u16).to_le_bytes())?;
                out.write_all(&[*file_type, 0])?;
                offset += name.len() as u64;
            }
            for (name, ..) in block {
                out.write_all(name)?;
            }
        }
        Ok(())
    }
}

/// Bytes of a directory entry without its name.
const DIRENT: u64 = 12;

type DirectoryName<'a> = (&'a [u8], u64, u8);

fn length_of(names: &[DirectoryName<'_>]) -> u64 {
    names
        .iter()
        .map(|(name, ..)| DIRENT + name.len() as u64)
        .sum()
}

/// The names of each block of a directory.
fn split<'a, 'b>(names: &'b [DirectoryName<'a>]) -> Vec<&'b [DirectoryName<'a>]> {
    let mut blocks = Vec::new();
    let (mut start, mut length) = (0, 0);
    for (at, (name, ..)) in names.iter().enumerate() {
        let more = DIRENT + name.len() as u64;
        if length + more > BLOCK {
            blocks.push(&names[start..at]);
            (start, length) = (at, 0);
        }
        length += more;
    }
    blocks.push(&names[start..]);
    blocks
}

fn file_mode(is_executable: bool) -> u16 {
    match is_executable {
        true => 0o100_555,
        false => 0o100_444,
    }
}

/// Does a link's target need a block of its own?
fn is_long(length: usize) -> bool {
    INODE + length as u64 > BLOCK
}

fn inode_length(kind: EntryKind, size: u64, target: usize) -> u64 {
    match kind {
        EntryKind::File if size > 0 => INODE + 8,
        EntryKind::Symlink if !is_long(target) => INODE + target as u64,
        _ => INODE,
    }
}

/// Size of a chunk that holds a whole file, as blocks to a power of two.
fn chunk_bits(size: u64) -> u32 {
    let blocks = size.div_ceil(BLOCK);
    blocks.next_power_of_two().trailing_zeros()
}

struct Inode {
    layout: u16,
    mode: u16,
    size: u64,
    union: u32,
    number: u32,
    modified_ns: i64,
    links: u32,
}

impl Inode {
    fn bytes(&self, (uid, gid): (u32, u32)) -> [u8; INODE as usize] {
        let mut bytes = [0; INODE as usize];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &(self.layout << 1 | 1).to_le_bytes());
        put(4, &self.mode.to_le_bytes());
        put(8, &self.size.to_le_bytes());
        put(16, &self.union.to_le_bytes());
        put(20, &self.number.to_le_bytes());
        put(24, &uid.to_le_bytes());
        put(28, &gid.to_le_bytes());
        let seconds = self.modified_ns.div_euclid(1_000_000_000);
        let rest = self.modified_ns.rem_euclid(1_000_000_000);
        put(32, &seconds.to_le_bytes());
        put(40, &(rest as u32).to_le_bytes());
        put(44, &self.links.to_le_bytes());
        bytes
    }
}

/// A writer that knows its offset.
struct Counted<'a, W> {
    out: &'a mut W,
    written: u64,
}

impl<W: Write> Counted<'_, W> {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn fill_to(&mut self, offset: u64) -> io::Result<()> {
        let zeros = [0; BLOCK as usize];
        while self.written < offset {
            let n = usize::try_from(offset - self.written).unwrap_or(usize::MAX);
            self.write_all(&zeros[..n.min(zeros.len())])?;
        }
        Ok(())
    }
}
