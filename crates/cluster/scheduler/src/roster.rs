//! Names of nodes to their slots, for callers that name thousands of them at once.
//!
//! A kube-scheduler names all nodes for every pod, and in nearly the same order each time: it
//! walks its own list in chunks, as many at once as it has threads. So the names lie in one piece,
//! in the expected order. A name is compared with those that come after the last two, and only
//! then looked up, in a small table that points into the same piece. A guess counts only where the
//! names are equal, so a wrong one costs time and nothing else.

use std::hash::BuildHasher;

use rustc_hash::{FxBuildHasher, FxHashMap};
use sublet_model::NodeIdx;

/// An order is kept for so many calls before another is learnt, and for twice as many each time
/// after. Learning costs as much as the look-ups of a few calls, and does not help where the order
/// is new each time.
const FIRST_PATIENCE: u32 = 16;

/// The known nodes.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    slots: FxHashMap<Box<str>, NodeIdx>,
    /// Nothing while it is out of date.
    order: Option<Order>,
    /// Calls since the order was learnt, and how many there must be before the next time.
    calls: u32,
    patience: u32,
}

impl Roster {
    /// Enters a node; again, where it has another slot now.
    pub(crate) fn insert(&mut self, name: &str, slot: NodeIdx) {
        if self.slots.get(name) != Some(&slot) {
            self.slots.insert(name.into(), slot);
            self.order = None;
        }
    }

    /// Forgets a node.
    pub(crate) fn remove(&mut self, name: &str) -> Option<NodeIdx> {
        let slot = self.slots.remove(name)?;
        self.order = None;
        Some(slot)
    }

    /// Number of known nodes.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Their names, in no order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.slots.keys().map(|name| &**name)
    }

    /// The slots of these nodes, and the names that are not known.
    pub(crate) fn resolve<'a>(&mut self, names: &[&'a str]) -> (Vec<NodeIdx>, Vec<&'a str>) {
        let order = self.order.take().unwrap_or_else(|| {
            (self.calls, self.patience) = (0, FIRST_PATIENCE);
            self.order_after(&[])
        });
        let mut unknown = Vec::new();
        let mut nodes = Vec::with_capacity(names.len());
        let mut surprises = 0;
        // What comes next if the caller goes on from here, or from where it was before.
        let (mut here, mut there) = (0, 0);
        for &name in names {
            if !order.is_at(here, name) {
                (here, there) = (there, here);
                if !order.is_at(here, name) {
                    let Some(place) = order.seek(name) else {
                        unknown.push(name);
                        continue;
                    };
                    here = place;
                    surprises += 1;
                }
            }
            nodes.push(order.places[here].1);
            here += 1;
        }
        self.calls = self.calls.saturating_add(1);
        // Where few are named, nothing is learnt.
        self.order = Some(
            if surprises * 2 > self.len() && self.calls > self.patience {
                (self.calls, self.patience) = (0, self.patience.saturating_mul(2));
                self.order_after(names)
            } else {
                order
            },
        );
        (nodes, unknown)
    }

    /// All nodes: first those named, as they are named, then the rest by slot. If all nodes came in
    /// one list, that is by name: the order of a kube-scheduler that knows no zones.
    fn order_after(&self, names: &[&str]) -> Order {
        let mut order = Order::with_room_for(self.slots.len());
        for name in names {
            if let Some(&slot) = self.slots.get(*name) {
                order.push(name, slot);
            }
        }
        let mut rest: Vec<_> = self.slots.iter().collect();
        rest.sort_unstable_by_key(|node| node.1);
        for (name, &slot) in rest {
            order.push(name, slot);
        }
        order
    }
}

/// The names in the order they are expected in, without a gap between them.
#[derive(Debug, Default)]
struct Order {
    text: Vec<u8>,
    /// Place by place, the end of the name in the text, and the node's slot.
    places: Vec<(usize, NodeIdx)>,
    /// By the name's hash, its place plus one, or further on in the table, before the next
    /// zero. Less than half full, so that one look is mostly enough.
    table: Vec<u32>,
}

impl Order {
    fn with_room_for(nodes: usize) -> Order {
        Order {
            table: vec![0; (2 * nodes + 1).next_power_of_two()],
            ..Order::default()
        }
    }

    /// Adds a name behind all others, unless it has a place already.
    fn push(&mut self, name: &str, slot: NodeIdx) {
        if let Err(vacant) = self.look_up(name) {
            self.text.extend_from_slice(name.as_bytes());
            self.places.push((self.text.len(), slot));
            self.table[vacant] = self.places.len() as u32;
        }
    }

    /// Is that the name at the place?
    fn is_at(&self, place: usize, name: &str) -> bool {
        let Some(&(end, _)) = self.places.get(place) else {
            return false;
        };
        let begin = place.checked_sub(1).map_or(0, |last| self.places[last].0);
        self.text[begin..end] == *name.as_bytes()
    }

    /// The name's place.
    fn seek(&self, name: &str) -> Option<usize> {
        self.look_up(name).ok()
    }

    /// The name's place, or where in the table it would be entered.
    fn look_up(&self, name: &str) -> Result<usize, usize> {
        let last = self.table.len() - 1;
        let mut at = FxBuildHasher.hash_one(name) as usize & last;
        loop {
            let Some(place) = self.table[at].checked_sub(1) else {
                return Err(at);
            };
            if self.is_at(place as usize, name) {
                return Ok(place as usize);
            }
            at = (at + 1) & last;
        }
    }
}

#[cfg(test)]
mod tests;
