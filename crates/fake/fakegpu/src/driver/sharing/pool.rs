//! Pools of several processes. The memory of a pool with a shareable handle is a file without a
//! name. A process that imports the pool gets its descriptor, and a process that imports a pointer
//! of it maps the pages that hold the allocation. The process that made the pool allocates and
//! pays; an importer only looks.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::driver::Driver;
use crate::driver::memory::address_space::{self, BLOCK, PAGE};
use crate::driver::memory::pool::Pool;
use crate::driver::memory::ranges::Kind;
use crate::driver::result::{Answer, Code};
use crate::driver::sharing::{file_of, from_bytes, to_bytes, word_of_card};
use crate::driver::stream::queue::Id;

/// The first bytes of our handles.
const MAGIC: u64 = u64::from_le_bytes(*b"subletpo");

/// Part of a pool that other processes share.
#[derive(Debug)]
pub(crate) struct SharedPool {
    file: Arc<File>,
    /// Name of the pool, with its process.
    name: Name,
    /// Bytes of the file that were ever used. The file's first block describes it.
    end: u64,
    /// Place of each chunk of the pool in the file.
    chunks: BTreeMap<u64, u64>,
    is_imported: bool,
}

/// A pool as every process knows it: place and generation of its maker, and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Name {
    owner: u64,
    number: u64,
}

/// Content of a `CUmemPoolPtrExportData`: a pool, and a place in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PointerData {
    pool: Name,
    offset: u64,
    size: u64,
}

impl PointerData {
    /// As the program carries it.
    #[must_use]
    pub(crate) fn to_bytes(self) -> [u8; 64] {
        let Name { owner, number } = self.pool;
        to_bytes([MAGIC, owner, number, self.offset, self.size])
    }

    /// Reads a handle that a program carried; `None` if it is not ours.
    #[must_use]
    pub(crate) fn from_bytes(bytes: &[u8; 64]) -> Option<PointerData> {
        let [magic, owner, number, offset, size] = from_bytes(bytes);
        let sound = magic == MAGIC && size > 0 && offset.checked_add(size)? < 1 << 62;
        sound.then_some(PointerData {
            pool: Name { owner, number },
            offset,
            size,
        })
    }
}

impl Pool {
    /// Is it another process's?
    #[must_use]
    pub(crate) fn is_imported(&self) -> bool {
        self.shared
            .as_ref()
            .is_some_and(|shared| shared.is_imported)
    }

    /// A chunk is taken away; nobody will see its bytes again.
    pub(crate) fn forget_shared(&mut self, start: u64, size: u64) {
        if let Some(shared) = &mut self.shared
            && let Some(offset) = shared.chunks.remove(&start)
        {
            address_space::punch(&shared.file, offset, size);
        }
    }
}

impl Driver {
    /// As [`Driver::take_blocks`], for a pool that others may see.
    pub(crate) fn take_shared_blocks(&mut self, id: Id, size: u64) -> Answer<u64> {
        let card = self.pool(id)?.card;
        if let Some(card) = card {
            let charged = self.registration.charge(card, size);
            charged.map_err(|_| Code::OUT_OF_MEMORY)?;
        }
        let placed = self.place_shared_blocks(id, size);
        if placed.is_err()
            && let Some(card) = card
        {
            self.registration.refund(card, size);
        }
        placed
    }

    fn place_shared_blocks(&mut self, id: Id, size: u64) -> Answer<u64> {
        let full = |_| Code::OUT_OF_MEMORY;
        let shared = self.shared_pool(id)?;
        let offset = shared.end;
        shared.file.set_len(offset + size).map_err(full)?;
        let start = address_space::reserve(size, BLOCK, 0).map_err(full)?;
        if let Err(error) = address_space::place(start, size, &shared.file, offset) {
            address_space::release(start, size);
            return Err(full(error));
        }
        shared.end += size;
        shared.chunks.insert(start, offset);
        Ok(start)
    }

    fn shared_pool(&mut self, id: Id) -> Answer<&mut SharedPool> {
        let slot = self.registration.index() as u64;
        let owner = slot | u64::from(self.registration.generation()) << 32;
        let pool = self.pool(id)?;
        if pool.handle_types == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let file = match pool.shared.take() {
            Some(shared) => return Ok(pool.shared.insert(shared)),
            None => address_space::unnamed_file().map_err(|_| Code::OPERATING_SYSTEM)?,
        };
        let header: [u8; 32] = to_bytes([MAGIC, owner, id, word_of_card(pool.card)]);
        let written = file.write_all_at(&header, 0);
        written.map_err(|_| Code::OPERATING_SYSTEM)?;
        Ok(pool.shared.insert(SharedPool {
            file: Arc::new(file),
            name: Name { owner, number: id },
            end: BLOCK,
            chunks: BTreeMap::new(),
            is_imported: false,
        }))
    }

    /// A descriptor by which another process can import a pool.
    pub(crate) fn export_pool(&mut self, id: Id) -> Answer<i32> {
        if self.pool(id)?.is_imported() {
            return Err(Code::INVALID_VALUE);
        }
        let file = self.shared_pool(id)?.file.try_clone();
        let file = file.map_err(|_| Code::OPERATING_SYSTEM)?;
        Ok(file.into_raw_fd())
    }

    /// A pool from a descriptor that [`Driver::export_pool`] made. The descriptor stays the
    /// caller's. Nothing can be allocated from it.
    pub(crate) fn import_pool(&mut self, descriptor: i32) -> Answer<Id> {
        let file = file_of(descriptor)?;
        let mut header = [0; 32];
        let read = file.read_exact_at(&mut header, 0);
        read.map_err(|_| Code::INVALID_VALUE)?;
        let [magic, owner, number, card] = from_bytes(&header);
        if magic != MAGIC {
            return Err(Code::INVALID_VALUE);
        }
        let card = self.card_of_word(card)?;
        let id = self.make_pool(card, 0, 0);
        self.pool(id)?.shared = Some(SharedPool {
            file: Arc::new(file),
            name: Name { owner, number },
            end: 0,
            chunks: BTreeMap::new(),
            is_imported: true,
        });
        Ok(id)
    }

    /// Returns the data that another process needs, beside the pool, to import an allocation of it.
    pub(crate) fn export_pool_pointer(&mut self, address: u64) -> Answer<PointerData> {
        let range = self.memory.ranges.starting(address);
        let range = range.ok_or(Code::INVALID_VALUE)?;
        let Kind::Pool {
            pool,
            is_live: true,
        } = range.kind
        else {
            return Err(Code::INVALID_VALUE);
        };
        let size = range.size;
        let pool = self.pool(pool)?;
        let chunk = pool.heap.chunk_of(address).map(|(start, _)| start);
        let shared = pool.shared.as_ref().filter(|shared| !shared.is_imported);
        let (Some(chunk), Some(shared)) = (chunk, shared) else {
            return Err(Code::INVALID_VALUE);
        };
        let offset = shared.chunks.get(&chunk).ok_or(Code::INVALID_VALUE)?;
        Ok(PointerData {
            pool: shared.name,
            offset: offset + (address - chunk),
            size,
        })
    }

    /// An allocation of an imported pool.
    pub(crate) fn import_pool_pointer(&mut self, id: Id, data: PointerData) -> Answer<u64> {
        let context = self.owner()?;
        let pool = self.pool(id)?;
        let card = pool.card;
        let shared = pool.shared.as_ref();
        let shared = shared.filter(|shared| shared.is_imported && shared.name == data.pool);
        let file = shared.ok_or(Code::INVALID_VALUE)?.file.clone();
        let before = data.offset % PAGE;
        let length = (before + data.size).next_multiple_of(PAGE);
        let known = file.metadata().map_err(|_| Code::OPERATING_SYSTEM)?.len();
        if data.offset - before < BLOCK || data.offset - before + length > known {
            return Err(Code::INVALID_VALUE);
        }
        let mapping = address_space::attach(length, &file, data.offset - before);
        let mapping = mapping.map_err(|_| Code::OUT_OF_MEMORY)?;
        let start = mapping + before;
        let card = card.unwrap_or(self.visible[0]);
        let kind = Kind::Borrowed {
            pool: id,
            mapping: (mapping, length),
        };
        let ranges = &mut self.memory.ranges;
        ranges.insert(start, data.size, card, context, kind);
        Ok(start)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_sound_data_or_none(words in proptest::array::uniform8(any::<u64>()), ours in any::<bool>()) {
            let mut bytes: [u8; 64] = to_bytes(words);
            if ours {
                bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
            }
            if let Some(data) = PointerData::from_bytes(&bytes) {
                prop_assert!(ours && data.size > 0 && data.offset + data.size < 1 << 62);
                bytes[40..].fill(0);
                prop_assert_eq!(data.to_bytes(), bytes);
            }
        }
    }
}
