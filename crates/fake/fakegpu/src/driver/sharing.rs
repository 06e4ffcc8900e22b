//! Memory that two processes use. Ordinary memory is private to its process until a
//! handle of it is asked for; then its blocks move into a file in the machine's folder
//! (`cuIpcGetMemHandle`) or into a file without a name whose descriptor the program passes
//! on (`cuMemExportToShareableHandle`), at the same addresses.
//!
//! The process that allocated the memory pays for it. If the memory went out as a descriptor, the
//! process pays as long as any such descriptor is open (`outlive`). When the process ends, memory
//! that others still have mapped is no longer counted: a limit of the fake.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use crate::driver::memory::address_space::{self, PAGE};
use crate::driver::memory::physical::{Physical, Properties};
use crate::driver::memory::ranges::Kind;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;
use crate::driver::{Driver, Session};

pub(crate) mod event;
pub(crate) mod external;
pub(crate) mod pool;
pub(crate) mod retained;

/// The first bytes of our handles, so that a stranger's is recognised.
const MAGIC: u64 = u64::from_le_bytes(*b"sublipc1");

/// State of shared memory on both sides.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    /// Blocks of ours that are in a file, and its number.
    exported: BTreeMap<u64, u64>,
    /// Blocks of others by their address: the owner, the length, and the number of times opened.
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    name: Handle,
    /// Addresses of its allocations, and the number of times that each is open.
    users: BTreeMap<u64, u32>,
}

/// Content of a `CUipcMemHandle`: the place of the file, and of the memory in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle {
    slot: u64,
    generation: u64,
    number: u64,
    length: u64,
    offset: u64,
    size: u64,
    card: u64,
}

impl Handle {
    /// As the program carries it.
    #[must_use]
    pub(crate) fn to_bytes(self) -> [u8; 64] {
        let Handle {
            slot,
            generation,
            number,
            length,
            offset,
            size,
            card,
        } = self;
        let owner = slot | generation << 32;
        to_bytes([MAGIC, owner, number, length, offset, size, card])
    }

    /// Reads a handle that a program carried; `None` if it is not ours.
    #[must_use]
    pub(crate) fn from_bytes(bytes: &[u8; 64]) -> Option<Handle> {
        let [magic, owner, number, length, offset, size, card] = from_bytes(bytes);
        let inside = offset.checked_add(size).is_some_and(|end| end <= length);
        let sound = magic == MAGIC && inside && size > 0 && length.is_multiple_of(PAGE);
        sound.then_some(Handle {
            slot: owner & 0xffff_ffff,
            generation: owner >> 32,
            number,
            length,
            offset,
            size,
            card,
        })
    }

    fn path(&self, driver: &Driver) -> PathBuf {
        let Handle {
            slot,
            generation,
            number,
            ..
        } = self;
        let folder = driver.registration.machine().folder();
        folder.join(format!("ipc-{slot}-{generation}-{number}"))
    }
}

impl Session {
    /// A handle by which another process can open an allocation.
    pub(crate) fn export_memory(&mut self, address: u64) -> Answer<Handle> {
        self.current()?;
        let range = self.memory.ranges.at(address).ok_or(Code::INVALID_VALUE)?;
        if range.kind != Kind::Device {
            return Err(Code::INVALID_VALUE);
        }
        let (start, size, card, context) = (range.start, range.size, range.card, range.context);
        let (block, length) = self.memory.blocks_of(range).ok_or(Code::INVALID_VALUE)?;
        let mut handle = Handle {
            slot: self.registration.index() as u64,
            generation: u64::from(self.registration.generation()),
            number: range.number,
            length,
            offset: start - block,
            size,
            card: card as u64,
        };
        if let Some(number) = self.memory.imports.exported.get(&block) {
            handle.number = *number;
            return Ok(handle);
        }
        // Nobody may write while the bytes move.
        self.finish_context(context);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(handle.path(self))
            .map_err(|_| Code::OPERATING_SYSTEM)?;
        // SAFETY: the block is mapped, and the context has nothing to do.
        let copied = unsafe { address_space::copy_into(&file, block, length) };
        let placed = copied.and_then(|()| address_space::place(block, length, &file, 0));
        placed.map_err(|_| Code::OPERATING_SYSTEM)?;
        self.memory.imports.exported.insert(block, handle.number);
        Ok(handle)
    }

    /// A descriptor by which another process can import physical memory.
    pub(crate) fn export_physical(&mut self, id: Id) -> Answer<i32> {
        let physical = self.memory.physicals.get(id)?;
        if physical.properties.handle_types & 1 == 0 {
            return Err(Code::INVALID_VALUE);
        }
        if physical.offset != 0 || physical.size == 0 || !is_complete(physical) {
            self.move_to_own_file(id)?;
        }
        self.give_out(id)
    }

    fn move_to_own_file(&mut self, id: Id) -> Answer {
        let seq = self.queues.last();
        self.wait_until(|driver| {
            let mut streams = driver.queues.iter();
            streams.all(|(id, _)| driver.queues.is_done(id, seq))
        });
        let physical = self.memory.physicals.get(id)?;
        let system = |_| Code::OPERATING_SYSTEM;
        let own = Arc::new(address_space::unnamed_file().map_err(system)?);
        own.set_len(physical.size + PAGE).map_err(system)?;
        let from = (&*physical.file, physical.offset);
        address_space::copy_data(from, &own, physical.size).map_err(system)?;
        own.write_all_at(&trailer(physical), physical.size)
            .map_err(system)?;
        for place in &physical.mapped {
            address_space::place(*place, physical.size, &own, 0).map_err(system)?;
        }
        address_space::punch(&physical.file, physical.offset, physical.size);
        let physical = self.memory.physicals.get_mut(id)?;
        (physical.file, physical.offset) = (own, 0);
        Ok(())
    }
}

impl Driver {
    /// Opens an allocation of another process.
    pub(crate) fn import_memory(&mut self, handle: Handle) -> Answer<u64> {
        let context = self.owner()?;
        if handle.slot == self.registration.index() as u64
            && handle.generation == u64::from(self.registration.generation())
        {
            return Err(Code::INVALID_CONTEXT);
        }
        let card = usize::try_from(handle.card).unwrap_or(usize::MAX);
        if !self.visible.contains(&card) {
            return Err(Code::INVALID_DEVICE);
        }
        let same = |open: &Open| {
            let Handle {
                slot,
                generation,
                number,
                ..
            } = open.name;
            (slot, generation, number) == (handle.slot, handle.generation, handle.number)
        };
        let found = self.memory.imports.open.iter().find(|(_, open)| same(open));
        let block = match found.map(|(block, _)| *block) {
            Some(block) => block,
            None => {
                let opened = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(handle.path(self));
                let file = opened.map_err(|_| Code::INVALID_VALUE)?;
                let long = file
                    .metadata()
                    .is_ok_and(|about| about.len() >= handle.length);
                if !long {
                    return Err(Code::INVALID_VALUE);
                }
                let block = address_space::attach(handle.length, &file, 0)
                    .map_err(|_| Code::OUT_OF_MEMORY)?;
                let open = Open {
                    name: handle,
                    users: BTreeMap::new(),
                };
                self.memory.imports.open.insert(block, open);
                block
            }
        };
        let start = block + handle.offset;
        if let Some(open) = self.memory.imports.open.get_mut(&block) {
            *open.users.entry(start).or_default() += 1;
        }
        if self.memory.ranges.starting(start).is_none() {
            let ranges = &mut self.memory.ranges;
            ranges.insert(start, handle.size, card, context, Kind::Imported);
        }
        Ok(start)
    }

    /// Closes a mapping of [`Driver::import_memory`].
    pub(crate) fn close_import(&mut self, start: u64) -> Answer {
        let before = self.memory.imports.open.range_mut(..=start).next_back();
        let (_, open) = before.ok_or(Code::INVALID_VALUE)?;
        let n_users = open.users.get_mut(&start).ok_or(Code::INVALID_VALUE)?;
        *n_users -= 1;
        if *n_users == 0 {
            self.drop_import(start);
        }
        Ok(())
    }

    pub(crate) fn drop_import(&mut self, start: u64) {
        self.memory.ranges.remove(start);
        let Some((&block, open)) = self.memory.imports.open.range_mut(..=start).next_back() else {
            return;
        };
        open.users.remove(&start);
        if open.users.is_empty() {
            address_space::release(block, open.name.length);
            self.memory.imports.open.remove(&block);
        }
    }

    /// The file of blocks of ours that are taken away.
    pub(crate) fn forget_export(&mut self, block: u64) {
        if let Some(number) = self.memory.imports.exported.remove(&block) {
            let handle = Handle {
                slot: self.registration.index() as u64,
                generation: u64::from(self.registration.generation()),
                number,
                length: 0,
                offset: 0,
                size: 0,
                card: 0,
            };
            // Another process may have swept the folder already.
            let _ = std::fs::remove_file(handle.path(self));
        }
    }

    /// Physical memory from a descriptor that [`Session::export_physical`] made. The
    /// descriptor stays the caller's.
    pub(crate) fn import_physical(&mut self, descriptor: i32) -> Answer<Id> {
        let file = file_of(descriptor)?;
        let length = file.metadata().map_err(|_| Code::INVALID_VALUE)?.len();
        let size = length.checked_sub(PAGE).ok_or(Code::INVALID_VALUE)?;
        let mut trailer = [0; 40];
        let read = file.read_exact_at(&mut trailer, size);
        read.map_err(|_| Code::INVALID_VALUE)?;
        let [magic, card, handle_types, location, location_id] = from_bytes(&trailer);
        if magic != MAGIC {
            return Err(Code::INVALID_VALUE);
        }
        let card = self.card_of_word(card)?;
        let device = card.map_or(location_id as i32, |card| self.device_of(card));
        let id = self.new_id();
        let physical = Physical {
            size,
            card,
            properties: Properties {
                handle_types: handle_types as u32,
                location: location as u32,
                location_id: device,
                rdma: false,
            },
            n_handles: 1,
            mapped: Vec::new(),
            n_held: 0,
            is_imported: true,
            file: Arc::new(file),
            offset: 0,
        };
        self.memory.physicals.insert(id, physical);
        Ok(id)
    }

    /// The card that [`word_of_card`] made a word of; `None` for the host.
    pub(crate) fn card_of_word(&self, word: u64) -> Answer<Option<usize>> {
        if word == u64::MAX {
            return Ok(None);
        }
        let card = usize::try_from(word).map_err(|_| Code::INVALID_DEVICE)?;
        if self.visible.contains(&card) {
            Ok(Some(card))
        } else {
            Err(Code::INVALID_DEVICE)
        }
    }
}

/// The file behind a descriptor of the program, which stays the program's.
pub(crate) fn file_of(descriptor: i32) -> Answer<File> {
    if descriptor < 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the program keeps the descriptor open for this call.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let own = borrowed.try_clone_to_owned();
    Ok(File::from(own.map_err(|_| Code::INVALID_VALUE)?))
}

/// A card for another process, whose devices may have other numbers.
pub(crate) fn word_of_card(card: Option<usize>) -> u64 {
    card.map_or(u64::MAX, |card| card as u64)
}

/// Returns words as bytes that a program carries; the rest is zero.
pub(crate) fn to_bytes<const N: usize, const B: usize>(words: [u64; N]) -> [u8; B] {
    const { assert!(N * 8 <= B, "more words than bytes") };
    let mut bytes = [0; B];
    for (part, word) in bytes.chunks_exact_mut(8).zip(words) {
        part.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Reads the words that [`to_bytes`] was given.
pub(crate) fn from_bytes<const N: usize, const B: usize>(bytes: &[u8; B]) -> [u64; N] {
    const { assert!(N * 8 <= B, "more words than bytes") };
    let mut words = [0; N];
    for (word, part) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let part = part.first_chunk().copied();
        *word = part.map_or(0, u64::from_ne_bytes);
    }
    words
}

/// Does the memory have a file of its own, with the data for an importer at its end?
fn is_complete(physical: &Physical) -> bool {
    let about = physical.file.metadata();
    about.is_ok_and(|about| about.len() == physical.size + PAGE) && physical.file.as_raw_fd() >= 0
}

fn trailer(physical: &Physical) -> [u8; 40] {
    let Properties {
        handle_types,
        location,
        location_id,
        ..
    } = physical.properties;
    to_bytes([
        MAGIC,
        word_of_card(physical.card),
        u64::from(handle_types),
        u64::from(location),
        i64::from(location_id).cast_unsigned(),
    ])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_sound_handle_or_none(words in proptest::array::uniform8(any::<u64>()), ours in any::<bool>()) {
            let mut bytes: [u8; 64] = to_bytes(words);
            if ours {
                bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
            }
            if let Some(handle) = Handle::from_bytes(&bytes) {
                prop_assert!(ours && handle.offset + handle.size <= handle.length);
                bytes[56..].fill(0);
                prop_assert_eq!(handle.to_bytes(), bytes);
            }
        }
    }
}
