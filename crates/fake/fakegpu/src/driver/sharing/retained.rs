//! Memory that stays when it is given back, because something else still holds it: an open
//! descriptor of it, in any process, a multicast object that it is bound to, or a sparse array that
//! it is mapped into.
//!
//! A driver is not told when a descriptor is closed. So each descriptor is handed out as an open
//! file of its own. That file has a lock on one byte as long as any copy of the descriptor is open,
//! and each call of the driver checks whether the lock is still there. When the process ends,
//! memory that others still hold is no longer counted: a limit of the fake.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Arc;

use crate::driver::memory::address_space;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;
use crate::driver::{Driver, Session};

/// The byte that is locked: above all that anybody else would lock.
const BYTE: i64 = (1 << 62) + 1;

/// Memory of this process that others hold.
#[derive(Debug, Default)]
pub(crate) struct Outliving {
    open: Vec<Open>,
    /// Memory that is bound to multicast objects, by the object.
    bound: HashMap<Id, Vec<Binding>>,
    /// Memory behind the tiles of sparse arrays, by array and tile.
    tiles: HashMap<(Id, Tile), Id>,
}

/// Descriptors, and the memory that is given back when all of them are closed.
#[derive(Debug)]
struct Open {
    files: Vec<Arc<File>>,
    holds: Holds,
}

#[derive(Debug)]
enum Holds {
    /// Physical memory.
    Physical(Vec<Id>),
    /// Blocks that begin here, if they are freed.
    Blocks(u64),
    /// Blocks that were freed.
    Freed { card: usize, bytes: u64 },
}

#[derive(Debug)]
struct Binding {
    card: Option<usize>,
    offset: u64,
    size: u64,
    physical: Id,
}

/// A tile: level, layer, and its place in three dimensions.
pub(crate) type Tile = [u64; 5];

/// A descriptor for the program, of an open file of its own.
fn descriptor_of(file: &File) -> Answer<i32> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let opened = File::options().read(true).write(true).open(path);
    let opened = opened.map_err(|_| Code::OPERATING_SYSTEM)?;
    let lock = lock(libc::F_RDLCK);
    // SAFETY: the descriptor is open, the struct is live.
    if unsafe { libc::fcntl(opened.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } < 0 {
        return Err(Code::OPERATING_SYSTEM);
    }
    Ok(opened.into_raw_fd())
}

/// Is a descriptor of the file open that [`descriptor_of`] made?
fn is_open(file: &File) -> bool {
    let mut lock = lock(libc::F_WRLCK);
    // SAFETY: the descriptor is open, the struct is live.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    asked == 0 && i32::from(lock.l_type) != libc::F_UNLCK
}

fn lock(kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: BYTE,
        l_len: 1,
        l_pid: 0,
    }
}

impl Driver {
    /// A descriptor of physical memory, which holds it.
    pub(crate) fn give_out(&mut self, id: Id) -> Answer<i32> {
        let file = self.memory.physicals.get(id)?.file.clone();
        let descriptor = descriptor_of(&file)?;
        self.hold_physical(id)?;
        self.memory.outliving.open.push(Open {
            files: vec![file],
            holds: Holds::Physical(vec![id]),
        });
        Ok(descriptor)
    }

    /// A dma-buf of a range of addresses: it holds the memory behind, and shows nothing.
    pub(crate) fn give_out_range(&mut self, start: u64, size: u64) -> Answer<i32> {
        if size == 0
            || !start.is_multiple_of(address_space::PAGE)
            || !size.is_multiple_of(address_space::PAGE)
        {
            return Err(Code::INVALID_VALUE);
        }
        if !self.memory.is_accessible(start, size) {
            return Err(Code::INVALID_VALUE);
        }
        let physicals = self.physicals_within(start, size);
        let holds = if physicals.is_empty() {
            let range = self.memory.ranges.at(start).ok_or(Code::INVALID_VALUE)?;
            let blocks = self.memory.blocks_of(range).ok_or(Code::INVALID_VALUE)?;
            Holds::Blocks(blocks.0)
        } else {
            for id in &physicals {
                self.hold_physical(*id)?;
            }
            Holds::Physical(physicals)
        };
        let file = Arc::new(address_space::unnamed_file().map_err(|_| Code::OPERATING_SYSTEM)?);
        let descriptor = descriptor_of(&file)?;
        let files = vec![file];
        self.memory.outliving.open.push(Open { files, holds });
        Ok(descriptor)
    }

    /// Notes that blocks are freed. True if somebody still holds them; they are then given back
    /// later.
    pub(crate) fn is_outlived(&mut self, card: usize, start: u64, bytes: u64) -> bool {
        let open = &mut self.memory.outliving.open;
        let of_it = open.extract_if(
            ..,
            |open| matches!(open.holds, Holds::Blocks(at) if at == start),
        );
        let files: Vec<_> = of_it.flat_map(|open| open.files).collect();
        if !files.iter().any(|file| is_open(file)) {
            return false;
        }
        let holds = Holds::Freed { card, bytes };
        open.push(Open { files, holds });
        true
    }

    /// Gives back the memory that nobody holds any more.
    pub(crate) fn sweep(&mut self) {
        let open = &mut self.memory.outliving.open;
        let over = open.extract_if(.., |open| !open.files.iter().any(|file| is_open(file)));
        for Open { holds, .. } in over.collect::<Vec<_>>() {
            match holds {
                Holds::Physical(ids) => ids.into_iter().for_each(|id| self.let_go(id)),
                Holds::Blocks(_) => {}
                Holds::Freed { card, bytes } => self.registration.refund(card, bytes),
            }
        }
    }

    /// Binds physical memory to a multicast object.
    pub(crate) fn bind(
        &mut self,
        object: Id,
        offset: u64,
        physical: Id,
        from: u64,
        size: u64,
    ) -> Answer {
        let room = self.memory.physicals.get(object)?.size;
        let memory = self.memory.physicals.get(physical)?;
        let fits = |offset: u64, room| offset.checked_add(size).is_some_and(|end| end <= room);
        if size == 0 || !fits(offset, room) || !fits(from, memory.size) || memory.card.is_none() {
            return Err(Code::INVALID_VALUE);
        }
        let card = memory.card;
        let bound = self.memory.outliving.bound.entry(object).or_default();
        let overlaps = |known: &Binding| {
            known.card == card && known.offset < offset + size && offset < known.offset + known.size
        };
        if bound.iter().any(overlaps) {
            return Err(Code::INVALID_VALUE);
        }
        bound.push(Binding {
            card,
            offset,
            size,
            physical,
        });
        self.hold_physical(physical)
    }

    /// Undoes [`Driver::bind`], in a range of an object and on a card.
    pub(crate) fn unbind(&mut self, object: Id, card: usize, offset: u64, size: u64) -> Answer {
        let end = offset.checked_add(size).ok_or(Code::INVALID_VALUE)?;
        let bound = self.memory.outliving.bound.get_mut(&object);
        let bound = bound.ok_or(Code::INVALID_VALUE)?;
        let is_meant = |known: &mut Binding| {
            known.card == Some(card) && offset <= known.offset && known.offset + known.size <= end
        };
        let unbound: Vec<Binding> = bound.extract_if(.., is_meant).collect();
        unbound
            .into_iter()
            .for_each(|one| self.let_go(one.physical));
        Ok(())
    }

    /// Unbinds the memory of an object that is gone.
    pub(crate) fn unbind_all(&mut self, object: Id) {
        let bound = self.memory.outliving.bound.remove(&object);
        for one in bound.into_iter().flatten() {
            self.let_go(one.physical);
        }
    }

    /// Maps a tile of a sparse array to physical memory, or to none.
    pub(crate) fn set_tile(&mut self, array: Id, tile: Tile, physical: Option<Id>) -> Answer {
        let tiles = &mut self.memory.outliving.tiles;
        let before = match physical {
            Some(id) => tiles.insert((array, tile), id),
            None => tiles.remove(&(array, tile)),
        };
        if let Some(id) = physical {
            self.hold_physical(id)?;
        }
        if let Some(id) = before {
            self.let_go(id);
        }
        Ok(())
    }

    /// An array is gone.
    pub(crate) fn clear_tiles(&mut self, array: Id) {
        let tiles = &mut self.memory.outliving.tiles;
        let of_it = tiles.extract_if(|(of, _), _| *of == array);
        let ids: Vec<Id> = of_it.map(|(_, id)| id).collect();
        ids.into_iter().for_each(|id| self.let_go(id));
    }

    fn hold_physical(&mut self, id: Id) -> Answer {
        self.memory.physicals.get_mut(id)?.n_held += 1;
        Ok(())
    }

    fn let_go(&mut self, id: Id) {
        if let Ok(physical) = self.memory.physicals.get_mut(id) {
            physical.n_held -= 1;
        }
        self.drop_physical_if_unused(id);
    }
}

impl Session {
    /// Gives back memory that was held when this call began and is not any more.
    pub(crate) fn begin(&mut self) {
        if !self.memory.outliving.open.is_empty() {
            self.sweep();
        }
    }
}
