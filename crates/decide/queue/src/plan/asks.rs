//! Works out what each group asks, once in a tick for all groups that look alike.

use std::rc::Rc;

use crate::memo::QueueMemo;
use crate::need::{Wanted, firm, minimum, together, waits};
use crate::reclaim::cards;
use crate::{GangRole, Group, QueueReason};

/// Requests of a group; amounts are by dimension.
#[derive(Debug)]
pub(super) struct Asks {
    /// Amounts of the members that start together.
    pub(super) together: Rc<[u64]>,
    /// Amounts of the members that it cannot do without, and their number.
    pub(super) firm: Vec<u64>,
    pub(super) firm_count: u64,
    /// Amounts of all members.
    pub(super) all: Vec<u64>,
    /// Cards that it needs to start.
    pub(super) cards: u64,
    /// Must members of it start together now?
    pub(super) waits: Result<bool, QueueReason>,
}

impl Asks {
    fn of(group: &Group, memo: &QueueMemo) -> Asks {
        let amounts = |wanted: &[Wanted<'_>]| {
            let roles = wanted.iter().map(|one| (one.role, one.count()));
            sum(memo, roles)
        };
        let all = group.roles().map(|role| (role, u64::from(role.replicas)));
        let needs = minimum(group).map(|(role, count)| count.saturating_mul(cards(role)));
        Asks {
            together: amounts(&together(group).unwrap_or_default()).into(),
            firm: sum(memo, firm(group)),
            firm_count: firm(group).map(|(_, count)| count).sum(),
            all: sum(memo, all),
            cards: needs.fold(0, u64::saturating_add),
            waits: waits(group),
        }
    }

    /// Requests of each of these groups, in their order.
    pub(super) fn of_each(groups: &[Group], memo: &QueueMemo) -> Vec<Rc<Asks>> {
        // By the number of their looks.
        let mut known: Vec<Option<Rc<Asks>>> = Vec::new();
        let of = |(at, group): (usize, &Group)| {
            let looks = memo.looks(at).and_then(|looks| usize::try_from(looks).ok());
            let of_looks = looks.and_then(|looks| known.get(looks)?.clone());
            of_looks.unwrap_or_else(|| {
                let asks = Rc::new(Asks::of(group, memo));
                // The reason of who is not complete has a name in it.
                if let Some(looks) = looks.filter(|_| asks.waits.is_ok()) {
                    known.resize(known.len().max(looks + 1), None);
                    known[looks] = Some(Rc::clone(&asks));
                }
                asks
            })
        };
        groups.iter().enumerate().map(of).collect()
    }
}

/// Sums up the requests of so many members of each role, by dimension.
pub(super) fn sum<'r>(
    memo: &QueueMemo,
    roles: impl Iterator<Item = (&'r GangRole, u64)>,
) -> Vec<u64> {
    let mut row = vec![0; memo.dimensions().len()];
    for (role, count) in roles.filter(|(_, count)| *count > 0) {
        for (cell, amount) in row.iter_mut().zip(&**memo.row(&role.pod)) {
            *cell = u64::saturating_add(*cell, amount.saturating_mul(count));
        }
    }
    row
}
