//! Arrays: memory with a shape. There are no textures here, and no copies to and from arrays, so
//! only the number of their bytes matters.

use crate::driver::Driver;
use crate::driver::memory::address_space::BLOCK;
use crate::driver::result::{Answer, Code};
use crate::driver::sharing::external::Part;
use crate::driver::stream::queue::Id;

/// `CUDA_ARRAY3D_LAYERED`.
pub(crate) const LAYERED: u32 = 1;
/// `CUDA_ARRAY3D_CUBEMAP`.
pub(crate) const CUBEMAP: u32 = 4;
/// `CUDA_ARRAY3D_SPARSE`: its memory is mapped tile by tile.
pub(crate) const SPARSE: u32 = 0x40;
/// `CUDA_ARRAY3D_DEFERRED_MAPPING`: its memory is mapped in one piece.
pub(crate) const DEFERRED: u32 = 0x80;
/// Size of a tile of a sparse array: 64 KiB, on all cards so far.
pub(crate) const TILE: u64 = 64 << 10;

/// Shape of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Elements of a row.
    pub(crate) width: u64,
    /// Rows, 0 for one-dimensional arrays.
    pub(crate) height: u64,
    /// Planes or layers, 0 for flat arrays.
    pub(crate) depth: u64,
    /// `CUarray_format`.
    pub(crate) format: u32,
    /// Numbers of one element: 1, 2 or 4.
    pub(crate) n_channels: u32,
    /// `CUDA_ARRAY3D_*`.
    pub(crate) flags: u32,
}

/// An array, or all levels of a mipmapped one.
#[derive(Debug, Clone)]
pub(crate) struct Array {
    /// Its shape.
    pub(crate) shape: Shape,
    /// Its context.
    pub(crate) context: Id,
    /// Its card.
    pub(crate) card: usize,
    /// Has it levels?
    pub(crate) is_mipmapped: bool,
    /// Bytes, of all levels.
    pub(crate) size: u64,
    backing: Backing,
}

/// Origin of an array's memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Backing {
    /// Blocks of the card, from this address on.
    Blocks(u64),
    /// The program maps it.
    Program,
    /// Another driver.
    External(Part),
}

impl Shape {
    /// Bytes of one element.
    pub(crate) fn element(&self) -> Answer<u64> {
        let number = match self.format {
            0x01 | 0x08 => 1,
            0x02 | 0x09 | 0x10 => 2,
            0x03 | 0x0a | 0x20 => 4,
            _ => return Err(Code::INVALID_VALUE),
        };
        match self.n_channels {
            1 | 2 | 4 => Ok(number * u64::from(self.n_channels)),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// Bytes of one row.
    pub(crate) fn row(&self) -> Answer<u64> {
        let row = self.element()?.checked_mul(self.width);
        row.filter(|row| *row > 0).ok_or(Code::INVALID_VALUE)
    }

    /// Bytes of the whole array.
    pub(crate) fn size(&self) -> Answer<u64> {
        let plane = self.row()?.checked_mul(self.height.max(1));
        let size = plane.and_then(|plane| plane.checked_mul(self.depth.max(1)));
        size.ok_or(Code::INVALID_VALUE)
    }

    /// Is the memory of such an array mapped by the program?
    #[must_use]
    pub(crate) fn has_no_memory(&self) -> bool {
        self.flags & (SPARSE | DEFERRED) != 0
    }

    /// Elements of a tile in each dimension.
    pub(crate) fn tile(&self) -> Answer<[u32; 3]> {
        let flat = self.depth == 0 || self.flags & LAYERED != 0;
        Ok(match (self.element()?, flat) {
            (1, true) => [256, 256, 1],
            (2, true) => [256, 128, 1],
            (4, true) => [128, 128, 1],
            (8, true) => [128, 64, 1],
            (_, true) => [64, 64, 1],
            (1, false) => [64, 32, 32],
            (2, false) => [32, 32, 32],
            (4, false) => [32, 32, 16],
            (8, false) => [32, 16, 16],
            (_, false) => [16, 16, 16],
        })
    }

    /// The next smaller level.
    #[must_use]
    pub(crate) fn halved(&self) -> Shape {
        let half = |size: u64| if size == 0 { 0 } else { (size / 2).max(1) };
        let depth = if self.flags & (LAYERED | CUBEMAP) == 0 {
            half(self.depth)
        } else {
            self.depth
        };
        Shape {
            width: half(self.width),
            height: half(self.height),
            depth,
            ..*self
        }
    }
}

impl Driver {
    /// Makes an array, with as many smaller levels as asked for.
    pub(crate) fn make_array(&mut self, shape: Shape, n_levels: u32) -> Answer<Id> {
        self.make_array_in(shape, n_levels, |driver, card, size| {
            if shape.has_no_memory() {
                return Ok(Backing::Program);
            }
            Ok(Backing::Blocks(driver.take_blocks(card, size)?.0))
        })
    }

    /// The same in memory that is got for it: of a card, so many bytes.
    pub(crate) fn make_array_in(
        &mut self,
        shape: Shape,
        n_levels: u32,
        get: impl FnOnce(&mut Driver, usize, u64) -> Answer<Backing>,
    ) -> Answer<Id> {
        let context = self.owner()?;
        let card = self.context(context)?.card;
        let mut shapes = vec![shape];
        for _ in 1..n_levels.clamp(1, 32) {
            match shapes.last() {
                Some(last) if last.halved() != *last => shapes.push(last.halved()),
                _ => break,
            }
        }
        let mut size = 0_u64;
        for shape in &shapes {
            let more = shape.size()?;
            size = size.checked_add(more).ok_or(Code::OUT_OF_MEMORY)?;
        }
        let backing = get(self, card, size)?;
        let id = self.new_id();
        let array = Array {
            shape,
            context,
            card,
            is_mipmapped: n_levels > 0,
            size,
            backing,
        };
        self.arrays.insert(id, array);
        Ok(id)
    }

    /// An array by its handle.
    pub(crate) fn array(&self, id: Id) -> Answer<&Array> {
        self.arrays.get(&id).ok_or(Code::INVALID_HANDLE)
    }

    /// Takes an array away. The caller waited for its context.
    pub(crate) fn drop_array(&mut self, id: Id) -> Answer {
        let array = self.arrays.remove(&id).ok_or(Code::INVALID_HANDLE)?;
        match array.backing {
            Backing::Blocks(start) => {
                self.give_blocks(array.card, start, array.size.next_multiple_of(BLOCK));
            }
            Backing::Program => self.clear_tiles(id),
            Backing::External(part) => self.unmap_external(part),
        }
        Ok(())
    }

    pub(crate) fn drop_arrays_of(&mut self, context: Id) {
        let arrays = self.arrays.iter();
        let of = arrays.filter(|(_, array)| array.context == context);
        let ids: Vec<Id> = of.map(|(id, _)| *id).collect();
        for id in ids {
            // Cannot fail: it is there.
            let _ = self.drop_array(id);
        }
    }
}
