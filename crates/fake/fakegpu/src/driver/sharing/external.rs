//! Memory that another driver made, such as Vulkan's, and the CUDA objects made from it.
//!
//! There is no other driver here: a descriptor of any file stands for such memory. It is charged to
//! the process that imports it, as long as the import or any object made from it is there. NVML,
//! too, counts memory that a process makes by Vulkan and passes on to CUDA itself. A file that is
//! imported twice is one memory; two processes that import it are charged both: a limit of the
//! fake.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use crate::driver::Driver;
use crate::driver::memory::address_space::{self, BLOCK, PAGE};
use crate::driver::memory::array::{Backing, Shape};
use crate::driver::memory::ranges::Kind;
use crate::driver::result::{Answer, Code};
use crate::driver::sharing::file_of;
use crate::driver::stream::queue::Id;

/// Memory of others, and how it came in.
#[derive(Debug, Default)]
pub(crate) struct Externals {
    memory: HashMap<Source, Memory>,
    imports: HashMap<Id, Import>,
}

/// Identity of the memory: a file, by its device and number, on a card.
type Source = (u64, u64, usize);

#[derive(Debug)]
struct Memory {
    file: File,
    /// Bytes charged to the card.
    bytes: u64,
    /// Number of imports, and of the objects made from them.
    n_users: usize,
}

#[derive(Debug)]
struct Import {
    source: Source,
    size: u64,
    context: Id,
}

/// A part of such memory at addresses of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    source: Source,
    /// Its pages: where, and how many bytes.
    pages: (u64, u64),
}

impl Driver {
    /// Makes memory known that is behind a descriptor. If it succeeds the descriptor is ours.
    pub(crate) fn import_external(&mut self, descriptor: i32, size: u64) -> Answer<Id> {
        let context = self.owner()?;
        let card = self.context(context)?.card;
        let file = file_of(descriptor)?;
        let about = file.metadata().map_err(|_| Code::INVALID_VALUE)?;
        if size == 0 || !about.is_file() || about.len() < size {
            return Err(Code::INVALID_VALUE);
        }
        let source = (about.dev(), about.ino(), card);
        let wanted = address_space::round_up(size, BLOCK).ok_or(Code::OUT_OF_MEMORY)?;
        let known = self.memory.externals.memory.get(&source);
        let more = wanted.saturating_sub(known.map_or(0, |memory| memory.bytes));
        let charged = self.registration.charge(card, more);
        charged.map_err(|_| Code::OUT_OF_MEMORY)?;
        let memory = self.memory.externals.memory.entry(source);
        let memory = memory.or_insert(Memory {
            file,
            bytes: 0,
            n_users: 0,
        });
        memory.bytes += more;
        memory.n_users += 1;
        let import = Import {
            source,
            size,
            context,
        };
        let id = self.new_id();
        self.memory.externals.imports.insert(id, import);
        // SAFETY: the program has given it to us, and we have a copy.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        Ok(id)
    }

    /// Ends an import. Objects that were made from it stay.
    pub(crate) fn drop_external(&mut self, id: Id) -> Answer {
        let import = self.memory.externals.imports.remove(&id);
        let import = import.ok_or(Code::INVALID_HANDLE)?;
        self.leave_external(import.source);
        Ok(())
    }

    /// A range of imported memory, for `cuMemFree`.
    pub(crate) fn map_external_buffer(&mut self, id: Id, offset: u64, size: u64) -> Answer<u64> {
        let context = self.owner()?;
        let (address, part) = self.map_external(id, offset, size)?;
        let card = part.source.2;
        let kind = Kind::External { part };
        let ranges = &mut self.memory.ranges;
        ranges.insert(address, size, card, context, kind);
        Ok(address)
    }

    /// An array in imported memory, for `cuMipmappedArrayDestroy`.
    pub(crate) fn map_external_array(
        &mut self,
        id: Id,
        offset: u64,
        shape: Shape,
        n_levels: u32,
    ) -> Answer<Id> {
        if shape.has_no_memory() {
            return Err(Code::INVALID_VALUE);
        }
        self.make_array_in(shape, n_levels, |driver, _, size| {
            let (_, part) = driver.map_external(id, offset, size)?;
            Ok(Backing::External(part))
        })
    }

    fn map_external(&mut self, id: Id, offset: u64, size: u64) -> Answer<(u64, Part)> {
        let import = self.memory.externals.imports.get(&id);
        let Import {
            source, size: room, ..
        } = *import.ok_or(Code::INVALID_HANDLE)?;
        let end = offset.checked_add(size).filter(|end| *end <= room);
        let end = end.filter(|_| size > 0).ok_or(Code::INVALID_VALUE)?;
        let memory = self.memory.externals.memory.get_mut(&source);
        let memory = memory.ok_or(Code::INVALID_HANDLE)?;
        let first = offset - offset % PAGE;
        let length = address_space::round_up(end - first, PAGE).ok_or(Code::INVALID_VALUE)?;
        let start = address_space::attach(length, &memory.file, first);
        let start = start.map_err(|_| Code::OUT_OF_MEMORY)?;
        memory.n_users += 1;
        let pages = (start, length);
        Ok((start + (offset - first), Part { source, pages }))
    }

    /// A part of imported memory is given back.
    pub(crate) fn unmap_external(&mut self, part: Part) {
        address_space::release(part.pages.0, part.pages.1);
        self.leave_external(part.source);
    }

    fn leave_external(&mut self, source: Source) {
        let externals = &mut self.memory.externals.memory;
        let Some(memory) = externals.get_mut(&source) else {
            return;
        };
        memory.n_users -= 1;
        if memory.n_users == 0 {
            let bytes = memory.bytes;
            externals.remove(&source);
            self.registration.refund(source.2, bytes);
        }
    }

    /// Ends the imports of a context.
    pub(crate) fn drop_externals_of(&mut self, context: Id) {
        let imports = self.memory.externals.imports.iter();
        let of_it = imports.filter(|(_, import)| import.context == context);
        let ids: Vec<Id> = of_it.map(|(id, _)| *id).collect();
        for id in ids {
            // Cannot fail: it is there.
            let _ = self.drop_external(id);
        }
    }
}
