//! Packs: files with the bytes of many files, each at a block, and a table behind them.
//!
//! ```text
//! bytes of files, each padded to 4 KiB
//! table: "SUBLETP1" | plan 32 | files 4 | pieces 4 | bytes of files 8
//!        for each file: digest 32; for each piece of 4 MiB: its hash 32
//!        BLAKE3 of the table 32
//! bytes of the table 8 | "SUBLETPF"
//! ```
//!
//! The number of a pack is the BLAKE3 of its bytes without the table, so the hashes of its pieces
//! are checked by the number alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use blake3::hazmat::ChainingValue;
use rustix::fs::{FallocateFlags, FlockOperation};
use serde::{Deserialize, Serialize};
use sublet_cache::PackId;

use crate::block::{BLOCK, StoredPack};
use crate::bytes::{Reader, Short};
use crate::disk::{AlignedBuffer, open_direct, sync_folder, write_whole};
use crate::hash::{PIECE, PieceHasher, file_hash, pieces};
use crate::layout::PackPlan;

const MAGIC: &[u8; 8] = b"SUBLETP1";
const END: &[u8; 8] = b"SUBLETPF";
/// Bytes that are written at once.
const WRITE: usize = 8 << 20;
/// After so many bytes the part is safe on the disk, and known to be.
const CHECKPOINT: u64 = 64 << 20;

/// Fault of a pack's table.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PackError {
    #[error("it is no pack of version 1")]
    Magic,
    #[error(transparent)]
    Short(#[from] Short),
    #[error("its table is not the one that was written")]
    Sum,
    #[error("its table says other bytes than it holds")]
    Size,
    #[error("the hashes of its pieces are not those of its number")]
    Id,
}

/// Table of a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackTable {
    /// Hash of what it was made of.
    pub(crate) plan: [u8; 32],
    /// Digest of each file, in order.
    pub(crate) files: Vec<[u8; 32]>,
    /// Hashes of the pieces; none of a pack of one piece, whose number is its hash.
    pub(crate) pieces: Vec<[u8; 32]>,
    /// Bytes of its files, padded.
    pub(crate) data: u64,
}

impl PackTable {
    /// Bytes behind a table, by which it is found.
    pub(crate) const END_BYTES: usize = 16;

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(self.plan);
        out.extend((self.files.len() as u32).to_le_bytes());
        out.extend((self.pieces.len() as u32).to_le_bytes());
        out.extend(self.data.to_le_bytes());
        for hash in self.files.iter().chain(&self.pieces) {
            out.extend(hash);
        }
        let sum = blake3::hash(&out);
        out.extend(sum.as_bytes());
        let length = out.len() as u64;
        out.extend(length.to_le_bytes());
        out.extend(END);
        out
    }

    /// Reads a table, the bytes between those of the files and the last sixteen.
    pub(crate) fn parse(bytes: &[u8]) -> Result<PackTable, PackError> {
        if !bytes.starts_with(MAGIC) {
            return Err(PackError::Magic);
        }
        let (rest, sum) = bytes.split_last_chunk::<32>().ok_or(Short)?;
        if blake3::hash(rest).as_bytes() != sum {
            return Err(PackError::Sum);
        }
        let mut reader = Reader(rest.get(MAGIC.len()..).ok_or(Short)?);
        let plan = reader.array()?;
        let (n_files, n_pieces) = (reader.u32()?, reader.u32()?);
        let data = reader.u64()?;
        let hashes = |reader: &mut Reader<'_>, n: u32| {
            (0..n)
                .map(|_| reader.array())
                .collect::<Result<Vec<[u8; 32]>, Short>>()
        };
        let files = hashes(&mut reader, n_files)?;
        let pieces = hashes(&mut reader, n_pieces)?;
        match reader.0.is_empty() {
            true => Ok(PackTable {
                plan,
                files,
                pieces,
                data,
            }),
            false => Err(PackError::Size),
        }
    }

    /// Reads the table of the pack with that number, and checks that it is its.
    ///
    /// # Errors
    /// The file cannot be read, or its table is not the one that was written.
    pub(crate) fn read(file: &mut File, id: PackId) -> io::Result<PackTable> {
        let wrong = |error: PackError| io::Error::new(io::ErrorKind::InvalidData, error);
        let length = file.metadata()?.len();
        let tail = length.checked_sub(16).ok_or(wrong(PackError::Magic))?;
        let mut end = [0; 16];
        file.read_exact_at(&mut end, tail)?;
        let (size, magic) = end.split_at(8);
        if magic != END {
            return Err(wrong(PackError::Magic));
        }
        let size = u64::from_le_bytes(size.try_into().unwrap_or_default());
        let start = tail.checked_sub(size).ok_or(wrong(PackError::Size))?;
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(start))?;
        (&mut *file).take(size).read_to_end(&mut bytes)?;
        let table = PackTable::parse(&bytes).map_err(wrong)?;
        if table.data != start {
            return Err(wrong(PackError::Size));
        }
        match table.is_of(id) {
            true => Ok(table),
            false => Err(wrong(PackError::Id)),
        }
    }

    /// Do the hashes of the pieces make that number?
    fn is_of(&self, id: PackId) -> bool {
        let values: Vec<ChainingValue> = self.pieces.clone();
        match self.data > PIECE {
            true => file_hash(&values, self.data) == Some(id.0),
            false => values.is_empty(),
        }
    }
}

/// State of an unfinished pack, as it is known to be on the disk.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Checkpoint {
    /// Bytes that are there.
    written: u64,
    /// Files that are whole.
    files: Vec<[u8; 32]>,
    /// Hashes of the whole pieces.
    pieces: Vec<[u8; 32]>,
}

/// A pack that is being written, in one order, whatever came first.
#[derive(Debug)]
pub(crate) struct PackWriter {
    file: File,
    path: PathBuf,
    plan: [u8; 32],
    /// Bytes of its files.
    total: u64,
    /// Has it one file only? Then it may be left between two pieces of it.
    is_of_one: bool,
    /// Is it within a file?
    is_within: bool,
    hasher: PieceHasher,
    files: Vec<[u8; 32]>,
    /// Bytes that wait to be written, from a block on.
    buffer: AlignedBuffer,
    written: u64,
    /// Bytes at the last checkpoint.
    safe: u64,
}

/// Names of an unfinished pack and of its checkpoint.
pub(crate) fn part_files(folder: &Path, plan: &[u8; 32]) -> [PathBuf; 2] {
    let name = PackId(*plan).to_string();
    [
        folder.join(format!("{name}.part")),
        folder.join(format!("{name}.ckpt")),
    ]
}

impl PackWriter {
    /// Begins a pack, or goes on with one that was left unfinished.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn begin(folder: &Path, plan: &PackPlan) -> io::Result<PackWriter> {
        let [path, _] = part_files(folder, &plan.hash);
        let file = open_direct(&path)?;
        // Another set of the same source may be making the same pack.
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let busy = "another fetch makes the same pack; it is used when it is there";
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, busy));
            }
            locked => locked?,
        }
        let mut writer = PackWriter {
            file,
            path,
            plan: plan.hash,
            total: plan.bytes,
            is_of_one: plan.files.len() == 1,
            is_within: false,
            hasher: PieceHasher::default(),
            files: Vec::new(),
            buffer: AlignedBuffer::new(WRITE),
            written: 0,
            safe: 0,
        };
        if let Some(checkpoint) = writer.checkpoint_of(folder, plan) {
            writer.resume(&checkpoint)?;
        }
        // Room is taken before the first byte: a disk that is full says so now.
        match rustix::fs::fallocate(&writer.file, FallocateFlags::empty(), 0, plan.bytes.max(1)) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(writer),
            Err(error) => Err(error.into()),
        }
    }

    /// Files that were there already.
    pub(crate) fn files_done(&self) -> usize {
        self.files.len()
    }

    /// Hashes of its whole pieces so far.
    pub(crate) fn pieces_done(&self) -> Vec<ChainingValue> {
        self.hasher.whole_pieces()
    }

    /// Bytes that were there already, or have come since.
    pub(crate) fn length(&self) -> u64 {
        self.written + self.buffer.filled() as u64
    }

    /// Reads the checkpoint, if it can be one of this plan.
    fn checkpoint_of(&self, folder: &Path, plan: &PackPlan) -> Option<Checkpoint> {
        let [_, path] = part_files(folder, &plan.hash);
        let text = fs::read(path).ok()?;
        let checkpoint: Checkpoint = serde_json::from_slice(&text).ok()?;
        let length = self.file.metadata().ok()?.len();
        // The hash of one piece alone is not made of its pieces' hashes.
        let is_right = plan.bytes > PIECE
            && checkpoint.written <= length
            && checkpoint.written <= plan.bytes
            && checkpoint.written.is_multiple_of(BLOCK)
            && checkpoint.files.len() <= plan.files.len()
            && checkpoint.pieces.len() as u64 == checkpoint.written / PIECE;
        is_right.then_some(checkpoint)
    }

    /// Goes on where a checkpoint is, if the last bytes before it are those that it knows.
    fn resume(&mut self, checkpoint: &Checkpoint) -> io::Result<()> {
        let whole = checkpoint.pieces.len() as u64 * PIECE;
        let mut hasher = PieceHasher::after(checkpoint.pieces.clone());
        let mut reader = File::open(&self.path)?;
        let from = whole.saturating_sub(CHECKPOINT);
        let mut piece = vec![0; usize::try_from(PIECE).unwrap_or(usize::MAX)];
        for number in from / PIECE..whole / PIECE {
            reader.read_exact_at(&mut piece, number * PIECE)?;
            let at = usize::try_from(number).unwrap_or(usize::MAX);
            if crate::hash::piece_hash(number * PIECE, &piece) != checkpoint.pieces[at] {
                return Ok(());
            }
        }
        reader.seek(SeekFrom::Start(whole))?;
        let mut rest = Vec::new();
        reader
            .take(checkpoint.written - whole)
            .read_to_end(&mut rest)?;
        hasher.update(&rest);
        self.hasher = hasher;
        self.files.clone_from(&checkpoint.files);
        self.written = checkpoint.written;
        self.safe = checkpoint.written;
        Ok(())
    }

    /// Adds bytes of a file.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.is_within = true;
        self.hasher.update(bytes);
        while !bytes.is_empty() {
            let taken = self.buffer.take_from(bytes);
            bytes = &bytes[taken..];
            if self.buffer.is_full() {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Ends a file with that digest; the next one begins at a block. A checkpoint may follow.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn end_file(&mut self, digest: [u8; 32]) -> io::Result<()> {
        let padding = self.length().next_multiple_of(BLOCK) - self.length();
        let padding = usize::try_from(padding).unwrap_or(0);
        self.write(&[0; BLOCK as usize][..padding])?;
        self.files.push(digest);
        self.is_within = false;
        self.checkpoint_if_due()
    }

    /// Within a file that is alone in its pack, between two pieces: a checkpoint may follow.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn between_pieces(&mut self) -> io::Result<()> {
        self.checkpoint_if_due()
    }

    fn checkpoint_if_due(&mut self) -> io::Result<()> {
        if self.length() - self.safe < CHECKPOINT {
            return Ok(());
        }
        self.checkpoint()
    }

    /// Makes sure of all bytes so far, and says so.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn checkpoint(&mut self) -> io::Result<()> {
        // It goes on at a file, or at a piece of its only one.
        let is_between = match self.is_of_one {
            true => self.length().is_multiple_of(PIECE) || !self.is_within,
            false => !self.is_within,
        };
        if !is_between || self.length() == self.safe {
            return Ok(());
        }
        self.flush()?;
        self.file.sync_data()?;
        let checkpoint = Checkpoint {
            written: self.written,
            files: self.files.clone(),
            pieces: self.hasher.whole_pieces(),
        };
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let [_, path] = part_files(folder, &self.plan);
        write_whole(
            &path,
            serde_json::to_string(&checkpoint)
                .unwrap_or_default()
                .as_bytes(),
        )?;
        self.safe = self.written;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let bytes = self.buffer.bytes();
        self.file.write_all_at(bytes, self.written)?;
        self.written += bytes.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Ends the pack: its table, its name, and all of it safe on the disk.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn seal(mut self, packs: &Path) -> io::Result<(StoredPack, PackTable)> {
        self.flush()?;
        if self.written != self.total {
            return Err(io::Error::other("a pack has other bytes than were planned"));
        }
        let data = self.written;
        let (id, pieces) = self.hasher.finish();
        let id = PackId(id);
        let table = PackTable {
            plan: self.plan,
            files: self.files,
            pieces,
            data,
        };
        let bytes = table.write();
        let mut plain = OpenOptions::new().write(true).open(&self.path)?;
        plain.set_len(data)?;
        plain.seek(SeekFrom::Start(data))?;
        plain.write_all(&bytes)?;
        plain.set_permissions(fs::Permissions::from_mode(0o400))?;
        plain.sync_all()?;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let [_, checkpoint] = part_files(folder, &self.plan);
        fs::rename(&self.path, pack_file(packs, id))?;
        sync_folder(packs)?;
        let _there_may_be_none = fs::remove_file(checkpoint);
        let room = data + bytes.len() as u64;
        Ok((StoredPack { id, data, room }, table))
    }
}

/// File of a pack.
pub(crate) fn pack_file(packs: &Path, id: PackId) -> PathBuf {
    packs.join(format!("{id}.pack"))
}

/// Reads every byte of a pack.
///
/// # Errors
/// It cannot be read. The value says the pieces whose bytes are wrong.
pub(crate) fn verify(
    packs: &Path,
    id: PackId,
    mut pace: impl FnMut(usize),
) -> io::Result<Vec<u64>> {
    let mut file = File::open(pack_file(packs, id))?;
    let table = PackTable::read(&mut file, id)?;
    let mut wrong = Vec::new();
    let mut piece = Vec::new();
    for number in 0..pieces(table.data) as u64 {
        let length = PIECE.min(table.data - number * PIECE);
        piece.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
        file.read_exact_at(&mut piece, number * PIECE)?;
        let is_right = match usize::try_from(number)
            .ok()
            .and_then(|at| table.pieces.get(at))
        {
            Some(hash) => crate::hash::piece_hash(number * PIECE, &piece) == *hash,
            None => *blake3::hash(&piece).as_bytes() == id.0,
        };
        if !is_right {
            wrong.push(number);
        }
        pace(piece.len());
    }
    Ok(wrong)
}
