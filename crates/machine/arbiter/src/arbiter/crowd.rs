//! Connections without a right to stay, by owner: the number per owner, and the connection that
//! makes room for another. Each question and each change costs the same few steps for any number
//! of connections. An arbiter that looked through all of them for each new one would fall behind.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::closers::Owner;
use crate::poller::Key;

/// Some connections. A key is never used twice and grows, so the lowest is the oldest.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    owners: BTreeMap<Owner, BTreeSet<Key>>,
    /// Each owner with the number of its connections and the oldest of them; the last makes room.
    order: BTreeSet<(usize, Reverse<Key>, Owner)>,
    len: usize,
}

impl Crowd {
    /// Adds a connection. One that is there already changes nothing.
    pub(super) fn insert(&mut self, owner: Owner, key: Key) {
        self.change(owner, |keys| keys.insert(key));
    }

    /// Removes a connection that goes, or that may stay from now on. An unknown one changes
    /// nothing.
    pub(super) fn remove(&mut self, owner: Owner, key: Key) {
        self.change(owner, |keys| keys.remove(&key));
    }

    /// All of them.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// An owner's.
    pub(super) fn len_of(&self, owner: Owner) -> usize {
        self.owners.get(&owner).map_or(0, BTreeSet::len)
    }

    /// An owner's oldest.
    pub(super) fn oldest_of(&self, owner: Owner) -> Option<Key> {
        self.owners.get(&owner)?.first().copied()
    }

    /// The oldest of the owner that has most of them: a user or container that comes often makes no
    /// room for itself at the cost of others.
    pub(super) fn oldest_of_most(&self) -> Option<Key> {
        self.order.last().map(|(_, Reverse(oldest), _)| *oldest)
    }

    fn change(&mut self, owner: Owner, how: impl FnOnce(&mut BTreeSet<Key>) -> bool) {
        let keys = self.owners.entry(owner).or_default();
        let place = |keys: &BTreeSet<Key>| {
            let oldest = keys.first()?;
            Some((keys.len(), Reverse(*oldest), owner))
        };
        let before = place(keys);
        how(keys);
        let now = place(keys);
        if let Some(before) = &before {
            self.order.remove(before);
            self.len -= before.0;
        }
        match now {
            Some(now) => {
                self.len += now.0;
                self.order.insert(now);
            }
            None => {
                self.owners.remove(&owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sublet_share::UserId;

    use super::*;

    fn user(number: u32) -> Owner {
        Owner::User(UserId(number))
    }

    #[test]
    fn whoever_has_most_makes_room() {
        let room = |owned: &[(u32, Key)]| {
            let mut crowd = Crowd::default();
            for (owner, key) in owned {
                crowd.insert(user(*owner), *key);
            }
            crowd.oldest_of_most()
        };
        assert_eq!(room(&[]), None);
        assert_eq!(room(&[(1, 1), (2, 2)]), Some(1));
        assert_eq!(room(&[(1, 1), (2, 7), (2, 5)]), Some(5));
        assert_eq!(room(&[(1, 3), (2, 1), (2, 5), (1, 2)]), Some(1));
    }

    proptest! {
        #[test]
        fn a_crowd_is_what_came_and_did_not_go(
            steps in prop::collection::vec((any::<bool>(), 0..4u32, 0..12u64), 0..60),
        ) {
            let (mut crowd, mut plain) = (Crowd::default(), BTreeSet::new());
            for (comes, owner, key) in steps {
                if comes {
                    crowd.insert(user(owner), key);
                    plain.insert((user(owner), key));
                } else {
                    crowd.remove(user(owner), key);
                    plain.remove(&(user(owner), key));
                }
                let of = |owner| plain.iter().filter(move |(own, _)| *own == owner);
                prop_assert_eq!(crowd.len(), plain.len());
                for owner in (0..4).map(user) {
                    prop_assert_eq!(crowd.len_of(owner), of(owner).count());
                    prop_assert_eq!(crowd.oldest_of(owner), of(owner).map(|(_, key)| *key).min());
                }
                let oldest = |owner| of(owner).map(|(_, key)| *key).min();
                let most = (0..4).map(user).filter_map(|owner| Some((of(owner).count(), oldest(owner)?)));
                let most = most.max_by_key(|(n, oldest)| (*n, Reverse(*oldest)));
                prop_assert_eq!(crowd.oldest_of_most(), most.map(|(_, key)| key));
            }
        }
    }
}
