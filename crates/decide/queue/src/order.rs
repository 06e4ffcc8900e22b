//! Chooses the quota whose turn it is, by the used part of its entitlement.

use std::cmp::Ordering;

use sublet_model::{Class, Time};

use crate::accounts::Accounts;
use crate::line::Line;

/// Request of a group whose turn may be next.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Amounts that its members that start together ask, by dimension.
    pub(crate) asks: &'a [u64],
    /// Since when it waits.
    pub(crate) since: Time,
    /// Its share in the order is that of its quota times the first, over the second.
    pub(crate) weight: (u64, u64),
}

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
/// quota. `request`: the request of a group.
pub(crate) fn next<'a>(
    accounts: &Accounts<'_>,
    lines: &[Line],
    class: Class,
    request: impl Fn(usize) -> Request<'a>,
) -> Option<usize> {
    best(accounts, lines, class, &request, None)
}

fn best<'a>(
    accounts: &Accounts<'_>,
    lines: &[Line],
    class: Class,
    request: &impl Fn(usize) -> Request<'a>,
    parent: Option<usize>,
) -> Option<usize> {
    let below = accounts.tree().below(parent);
    let leaves = below.iter().filter_map(|&quota| {
        let leaf = match accounts.tree().below(Some(quota)) {
            [] => quota,
            _ => best(accounts, lines, class, request, Some(quota))?,
        };
        let first = lines[leaf].first()?;
        let request = request(first.group);
        // Among quotas nobody gains by what it says of itself.
        let turn = (first.score, request.since, first.group);
        Some((rank(accounts, quota, request, class), turn, leaf))
    });
    let first = leaves.min_by(|(a, first, _), (b, other, _)| {
        a.0.cmp(&b.0)
            .then_with(|| a.1.cmp(b.1))
            .then_with(|| first.cmp(other))
    });
    first.map(|(_, _, leaf)| leaf)
}

/// Is the quota at or above its minimum, and its share with the group.
fn rank(accounts: &Accounts<'_>, quota: usize, first: Request<'_>, class: Class) -> (bool, Share) {
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
