//! Parts of sparse arrays, and the memory that they are mapped to.
//!
//! A program maps an array piece by piece, and unmaps other pieces than it has mapped. So each
//! mapped piece is a box. Every area that is mapped anew or unmapped is cut out of the boxes, and
//! each remaining box refers to its memory once. Pure.

use std::collections::HashMap;

use super::book::Id;

/// A part of an array in which boxes have coordinates of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::cuda) struct Tile {
    /// The array, or the mipmapped array, by its handle.
    pub(in crate::cuda) array: u64,
    pub(in crate::cuda) part: TilePart,
}

/// Part of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::cuda) enum TilePart {
    /// All of it: an array that is mapped in one piece.
    Whole,
    /// A level of a layer, in elements.
    Level { level: u32, layer: u32 },
    /// The small levels of a layer together, in bytes.
    Tail { layer: u32 },
}

/// A box: where it begins, and where it ends, in each dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Region {
    from: [u64; 3],
    to: [u64; 3],
}

/// References that a step changed: memory can be in both lists, and several times.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) came: Vec<Id>,
    pub(super) went: Vec<Id>,
}

/// Memory that is mapped into one array.
#[derive(Debug)]
pub struct Mapped(Vec<(Tile, Vec<(Region, Id)>)>);

impl Mapped {
    /// The memory of each box.
    pub(super) fn memories(self) -> impl Iterator<Item = Id> {
        self.0
            .into_iter()
            .flat_map(|(_, boxes)| boxes)
            .map(|(_, id)| id)
    }
}

/// All mapped boxes; no two of one tile overlap.
#[derive(Debug, Default)]
pub(super) struct Tiles {
    boxes: HashMap<Tile, Vec<(Region, Id)>>,
}

impl Region {
    /// From an offset on.
    pub(in crate::cuda) fn new(offset: [u64; 3], extent: [u64; 3]) -> Self {
        let to = std::array::from_fn(|axis| offset[axis].saturating_add(extent[axis]));
        Self { from: offset, to }
    }

    /// The only one of a part that has no others.
    pub(in crate::cuda) const ALL: Self = Self {
        from: [0; 3],
        to: [u64::MAX; 3],
    };

    fn is_empty(&self) -> bool {
        (0..3).any(|axis| self.from[axis] >= self.to[axis])
    }

    fn meets(&self, other: &Region) -> bool {
        (0..3).all(|axis| self.from[axis] < other.to[axis] && other.from[axis] < self.to[axis])
    }

    /// Returns the rest of this box without the `other` box, which it meets: at most two boxes for
    /// each dimension.
    fn without(mut self, other: &Region) -> Vec<Region> {
        let mut left = Vec::new();
        for axis in 0..3 {
            let (mut below, mut above) = (self, self);
            below.to[axis] = other.from[axis];
            above.from[axis] = other.to[axis];
            left.extend([below, above].into_iter().filter(|part| !part.is_empty()));
            self.from[axis] = self.from[axis].max(other.from[axis]);
            self.to[axis] = self.to[axis].min(other.to[axis]);
        }
        left
    }
}

impl Tiles {
    /// Maps a box to memory, or to none.
    pub(super) fn set(&mut self, tile: Tile, region: Region, memory: Option<Id>) -> Change {
        let mut change = Change::default();
        if region.is_empty() {
            return change;
        }
        let boxes = self.boxes.entry(tile).or_default();
        let mut after = Vec::with_capacity(boxes.len() + 1);
        for (known, id) in boxes.drain(..) {
            if !known.meets(&region) {
                after.push((known, id));
                continue;
            }
            let left = known.without(&region);
            change.went.push(id);
            change.came.extend(left.iter().map(|_| id));
            after.extend(left.into_iter().map(|part| (part, id)));
        }
        if let Some(id) = memory {
            change.came.push(id);
            after.push((region, id));
        }
        *boxes = after;
        if boxes.is_empty() {
            self.boxes.remove(&tile);
        }
        change
    }

    /// Takes all that is mapped into an array out of the list.
    pub(super) fn take(&mut self, array: u64) -> Mapped {
        let boxes = self.boxes.extract_if(|tile, _| tile.array == array);
        Mapped(boxes.collect())
    }

    /// Puts it back.
    pub(super) fn put(&mut self, mapped: Mapped) {
        self.boxes.extend(mapped.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const PLACE: Tile = Tile {
        array: 7,
        part: TilePart::Level { level: 0, layer: 0 },
    };

    fn count(counts: &mut BTreeMap<Id, i64>, change: &Change) {
        for (ids, sign) in [(&change.came, 1), (&change.went, -1)] {
            for id in ids {
                *counts.entry(*id).or_default() += sign;
            }
        }
    }

    #[test]
    fn a_hole_in_the_middle_leaves_the_rest() {
        let (mut tiles, mut counts) = (Tiles::default(), BTreeMap::new());
        let whole = Region::new([0; 3], [4, 4, 4]);
        count(&mut counts, &tiles.set(PLACE, whole, Some(Id(1))));
        let hole = Region::new([1; 3], [2, 2, 2]);
        count(&mut counts, &tiles.set(PLACE, hole, None));
        assert_eq!(counts[&Id(1)], 6, "a slab on each side");
        count(&mut counts, &tiles.set(PLACE, hole, Some(Id(2))));
        let elsewhere = Tile {
            part: TilePart::Tail { layer: 0 },
            ..PLACE
        };
        count(&mut counts, &tiles.set(elsewhere, Region::ALL, None));
        count(&mut counts, &tiles.set(PLACE, whole, None));
        assert_eq!(counts, BTreeMap::from([(Id(1), 0), (Id(2), 0)]));
        assert!(tiles.boxes.is_empty());
    }

    proptest! {
        /// Against a picture of single cells: memory is referred to exactly while a cell is
        /// mapped to it.
        #[test]
        fn it_is_as_if_each_cell_was_mapped_alone(
            steps in proptest::collection::vec(
                (0_u64..4, 0_u64..4, 0_u64..2, 0_u64..4, 0_u64..4, 1_u64..3, 0_u64..4),
                1..30,
            ),
        ) {
            let (mut tiles, mut counts) = (Tiles::default(), BTreeMap::new());
            let mut cells: BTreeMap<[u64; 3], Id> = BTreeMap::new();
            for (x, y, z, width, height, depth, memory) in steps {
                let region = Region::new([x, y, z], [width, height, depth]);
                let memory = (memory > 0).then_some(Id(memory));
                count(&mut counts, &tiles.set(PLACE, region, memory));
                for cell in (0..width * height * depth).map(|n| {
                    [x + n % width, y + n / width % height, z + n / width / height]
                }) {
                    match memory {
                        Some(id) => cells.insert(cell, id),
                        None => cells.remove(&cell),
                    };
                }
                for (id, count) in &counts {
                    prop_assert!(*count >= 0);
                    let is_mapped = cells.values().any(|mapped| mapped == id);
                    prop_assert_eq!(is_mapped, *count > 0, "{:?}: {}", id, count);
                }
            }
            for id in tiles.take(PLACE.array).memories() {
                *counts.entry(id).or_default() -= 1;
            }
            prop_assert!(counts.values().all(|count| *count == 0));
        }
    }
}
