//! Owners of addresses: the charge for each pointer, until the pointer is freed.
//!
//! Programs allocate and free from many threads at once, so the map is split into shards, each
//! with its own lock. An address that is not here was not charged by us, and its owner is not
//! ours to guess: the call that frees it goes to the driver as it is.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A power of two. Two threads meet with a chance of one in so many.
const SHARDS: usize = 64;

/// Addresses and their entries.
#[derive(Debug)]
pub struct Pointers<T> {
    /// Made for the first address: most programs use one or two of these maps. All six of a process
    /// are 48 KiB, and a page costs a microsecond when it is first touched, in `cuInit`.
    shards: OnceLock<Box<[Shard<T>]>>,
}

/// On a cache line of its own, or two shards would still slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<T> {
    map: Mutex<Entries<T>>,
}

/// Addresses are multiples of large powers of two; this spreads them.
#[derive(Debug, Default, Clone, Copy)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // 2^64 divided by the golden ratio; the upper bits carry every bit of the value down.
        let mixed = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

impl<T> Default for Pointers<T> {
    fn default() -> Self {
        Self {
            shards: OnceLock::new(),
        }
    }
}

impl<T> Pointers<T> {
    /// Remembers an address. Returns its earlier entry: the driver gave the address out again, so
    /// the earlier owner is gone without our having seen it go.
    pub fn insert(&self, address: u64, value: T) -> Option<T> {
        let shards = self.shards.get_or_init(|| {
            let empty = || Shard {
                map: Mutex::default(),
            };
            std::iter::repeat_with(empty).take(SHARDS).collect()
        });
        shard(shards, address).insert(address, value)
    }

    /// Forgets an address.
    pub fn remove(&self, address: u64) -> Option<T> {
        shard(self.shards.get()?, address).remove(&address)
    }

    /// Returns the entry of an address.
    pub fn get(&self, address: u64) -> Option<T>
    where
        T: Clone,
    {
        shard(self.shards.get()?, address).get(&address).cloned()
    }

    /// Forgets every address for which `gone` is true, and returns them with their entries.
    pub fn remove_where(&self, gone: impl Fn(&T) -> bool) -> Vec<(u64, T)> {
        let mut removed = Vec::new();
        for shard in self.shards.get().into_iter().flatten() {
            let mut map = locked(shard);
            removed.extend(map.extract_if(|_, value| gone(value)));
        }
        removed
    }
}

type Entries<T> = HashMap<u64, T, BuildHasherDefault<Spread>>;

fn shard<T>(shards: &[Shard<T>], address: u64) -> MutexGuard<'_, Entries<T>> {
    let mut spread = Spread::default();
    spread.write_u64(address);
    // Other bits than those the map itself begins with.
    locked(&shards[(spread.0 >> 48) as usize % SHARDS])
}

fn locked<T>(shard: &Shard<T>) -> MutexGuard<'_, Entries<T>> {
    // Whoever panicked with the lock had the map in one piece.
    shard.map.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn addresses_of_one_allocator_meet_many_shards() {
        let pointers: Pointers<()> = Pointers::default();
        for index in 0..1024_u64 {
            pointers.insert(0x7f00_0000_0000 + (index << 21), ());
        }
        let shards = pointers.shards.get().expect("made for the first address");
        let used = shards
            .iter()
            .filter(|shard| !locked(shard).is_empty())
            .count();
        assert!(used > SHARDS / 2, "only {used} of {SHARDS}");
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in proptest::collection::vec((0_u64..40, 0_u8..4), 0..200)) {
            let pointers = Pointers::default();
            let mut model = BTreeMap::new();
            for (step, (address, verb)) in steps.into_iter().enumerate() {
                let address = address << 21;
                match verb {
                    0 | 1 => prop_assert_eq!(
                        pointers.insert(address, step),
                        model.insert(address, step)
                    ),
                    2 => prop_assert_eq!(pointers.remove(address), model.remove(&address)),
                    _ => {
                        let mut gone = pointers.remove_where(|value| value % 3 == 0);
                        gone.sort_unstable();
                        let pairs = model.iter().map(|(&address, &value)| (address, value));
                        let mut expected: Vec<(u64, usize)> =
                            pairs.filter(|(_, value)| value % 3 == 0).collect();
                        expected.sort_unstable();
                        prop_assert_eq!(gone, expected);
                        model.retain(|_, value| *value % 3 != 0);
                    }
                }
            }
        }
    }
}
