//! Chooses the group whose turn it is: among quotas by the used part of their entitlement, within a
//! quota by score, age and name.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::rc::Rc;

use sublet_model::{Class, Time};

use crate::accounts::Accounts;

/// A group in its quota's line.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    /// Its position in the snapshot.
    pub(crate) group: usize,
    pub(crate) score: i64,
    pub(crate) since: Time,
    /// Amounts that its members that start together ask, by dimension.
    pub(crate) asks: Rc<[u64]>,
    /// Its share in the order is that of its quota times the first, over the second.
    pub(crate) weight: (u64, u64),
    /// Number of its looks, which groups that look alike share; none for a group that has run.
    pub(crate) looks: Option<u32>,
}

/// The groups of each quota that may be tried, the first of its order first.
pub(crate) type Lines = Vec<VecDeque<Waiting>>;

/// Part of its entitlement that a quota would use: the largest part of any dimension, as a
/// fraction.
#[derive(Debug, Clone, Copy)]
struct Share {
    used: u64,
    of: u64,
}

impl Share {
    const NONE: Share = Share { used: 0, of: 1 };

    fn cmp(self, other: Share) -> Ordering {
        let cross = |a: u64, b: u64| u128::from(a) * u128::from(b);
        // Of nothing anything is too much.
        (self.of == 0)
            .cmp(&(other.of == 0))
            .then_with(|| cross(self.used, other.of).cmp(&cross(other.used, self.of)))
    }
}

/// The line of the group that is next: among the quotas of each level, first one below its minimum,
/// then the one with the smallest share, then the one with the first group by the order within a
/// quota.
pub(crate) fn next(accounts: &Accounts<'_>, lines: &Lines, class: Class) -> Option<usize> {
    best(accounts, lines, class, None)
}

fn best(
    accounts: &Accounts<'_>,
    lines: &Lines,
    class: Class,
    parent: Option<usize>,
) -> Option<usize> {
    let below = accounts.tree().below(parent);
    let leaves = below.iter().filter_map(|&quota| {
        let leaf = match accounts.tree().below(Some(quota)) {
            [] => (!lines[quota].is_empty()).then_some(quota),
            _ => best(accounts, lines, class, Some(quota)),
        }?;
        let first = lines[leaf].front()?;
        Some((rank(accounts, quota, first, class), first, leaf))
    });
    let first = leaves.min_by(|(a, first, _), (b, other, _)| {
        a.0.cmp(&b.0)
            .then_with(|| a.1.cmp(b.1))
            .then_with(|| before(first, other))
    });
    first.map(|(_, _, leaf)| leaf)
}

/// Is the quota at or above its minimum, and its share with the group.
fn rank(accounts: &Accounts<'_>, quota: usize, first: &Waiting, class: Class) -> (bool, Share) {
    let (used, min) = match class {
        Class::Guaranteed => (accounts.used(quota), accounts.min(quota)),
        // No minimum is for opportunistic work.
        Class::Opportunistic => (accounts.spare(quota), &[][..]),
    };
    let asked = || first.asks.iter().enumerate().filter(|(_, ask)| **ask > 0);
    let is_below = |(at, ask): (usize, &u64)| {
        let min = min.get(at).copied().unwrap_or(0);
        used[at].saturating_add(*ask) <= min
    };
    let is_beyond = !asked().all(is_below);
    let entitlement = accounts.entitlement(quota);
    let shares = asked().filter(|(at, _)| entitlement[*at] < u64::MAX);
    let (times, over) = first.weight;
    let shares = shares.map(|(at, ask)| Share {
        used: used[at].saturating_add(*ask).saturating_mul(times),
        of: entitlement[at].saturating_mul(over),
    });
    let largest = shares.max_by(|a, b| a.cmp(*b));
    (is_beyond, largest.unwrap_or(Share::NONE))
}

/// The order within a quota. Groups of a snapshot are in the order of their ids.
pub(crate) fn before(one: &Waiting, other: &Waiting) -> Ordering {
    let key = |it: &Waiting| (std::cmp::Reverse(it.score), it.since, it.group);
    key(one).cmp(&key(other))
}
