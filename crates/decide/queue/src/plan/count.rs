//! Counts the use and the requests of each group and the entitlement of each quota, and lists the
//! groups that may be tried.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use sublet_model::Class;

use super::Tick;
use crate::accounts::Charge;
use crate::need::{Wanted, firm, minimum, together, waits};
use crate::order::{Lines, Waiting, before};
use crate::reclaim::cards;
use crate::{GangRole, Group, Infeasible, MOST_MEMBERS, QueueReason};

impl Tick<'_> {
    /// Charges what everybody has, and works out what each quota is entitled to.
    pub(super) fn count(&mut self) {
        let width = self.memo.dimensions().len();
        let mut requests = vec![0_u64; self.accounts.tree().by_number().len() * width];
        let mut counted = Vec::with_capacity(self.groups.len());
        // One row for all groups: this is done for each of them in each tick.
        let mut row = vec![0; width];
        for (at, group) in self.groups.iter().enumerate() {
            let charge = match self.charge_of(group) {
                Ok(charge) => charge,
                Err(reason) => {
                    self.reasons[at] = Some(reason);
                    self.charges.push(None);
                    continue;
                }
            };
            self.charges.push(Some(charge));
            self.sum(has(group), &mut row);
            self.accounts.charge(charge, &row);
            let guaranteed = charge.class == Class::Guaranteed;
            match self.cannot_ask(at, charge) {
                Some(reason) => {
                    // Who can never start asks nothing, though it may run from before.
                    if matches!(reason, QueueReason::Infeasible(_)) {
                        row.fill(0);
                    }
                    self.reasons[at] = Some(reason);
                }
                None if guaranteed => {
                    self.sum(all(group), &mut row);
                    counted.push(at);
                }
                None => {}
            }
            if guaranteed {
                let cells = requests[charge.quota * width..].iter_mut();
                for (cell, amount) in cells.zip(&row) {
                    *cell = cell.saturating_add(*amount);
                }
            }
        }
        self.accounts.entitle(&requests, self.rules.scaling);
        self.leave_out(&mut requests, counted);
    }

    /// Reason why nothing is asked for the waiting members of the group.
    fn cannot_ask(&self, at: usize, charge: Charge) -> Option<QueueReason> {
        let group = &self.groups[at];
        let need: u64 = firm(group).map(|(_, count)| count).sum();
        if need > MOST_MEMBERS as u64 {
            return Some(QueueReason::Infeasible(Infeasible::Members { need }));
        }
        let mut least = vec![0; self.memo.dimensions().len()];
        self.sum(firm(group), &mut least);
        if let Err(why) = self.accounts.check_empty(charge, &least) {
            return Some(QueueReason::Infeasible(why));
        }
        if let Some(why) = self.memo.never(at) {
            return Some(QueueReason::Infeasible(why));
        }
        waits(group).err()
    }

    /// Leaves groups out of the division that ask more than their quota is entitled to: they could
    /// not use their part. The youngest is left out first, and then the rest may have enough.
    fn leave_out(&mut self, requests: &mut [u64], counted: Vec<usize>) {
        let groups = self.groups;
        let by_age = |&one: &usize, &other: &usize| {
            let age = |at: usize| (groups[at].since, &groups[at].id);
            age(one).cmp(&age(other))
        };
        let mut beyond = self.beyond(counted);
        for alike in beyond.values_mut() {
            alike.sort_unstable_by(by_age);
        }
        let mut row = vec![0; self.memo.dimensions().len()];
        loop {
            let youngest = beyond
                .iter_mut()
                .filter_map(|(asks, alike)| Some((*alike.last()?, asks, alike)))
                .max_by(|(one, ..), (other, ..)| by_age(one, other));
            let Some((at, (quota, least), alike)) = youngest else {
                return;
            };
            alike.pop();
            let short = self.accounts.exceeds(*quota, least);
            self.reasons[at] = short.map(QueueReason::ExceedsEntitlement);
            let quota = *quota;
            self.sum(all(&groups[at]), &mut row);
            let cells = &mut requests[quota * row.len()..][..row.len()];
            let before = self.accounts.within_max(quota, cells);
            for (cell, amount) in cells.iter_mut().zip(&row) {
                *cell = cell.saturating_sub(*amount);
            }
            // Of what is asked above a max nothing would come anyway.
            if self.accounts.within_max(quota, cells) != before {
                self.accounts.entitle(requests, self.rules.scaling);
                beyond.retain(|(quota, least), _| self.accounts.exceeds(*quota, least).is_some());
            }
        }
    }

    /// Finds the groups that ask more than their quotas are entitled to, by quota and by their
    /// least request.
    fn beyond(&self, groups: Vec<usize>) -> BTreeMap<(usize, Vec<u64>), Vec<usize>> {
        let mut beyond: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        let mut row = vec![0; self.memo.dimensions().len()];
        for at in groups {
            let Some(charge) = self.charges[at] else {
                continue;
            };
            self.sum(firm(&self.groups[at]), &mut row);
            if self.accounts.exceeds(charge.quota, &row).is_some() {
                let alike = beyond.entry((charge.quota, row.clone())).or_default();
                alike.push(at);
            }
        }
        beyond
    }

    fn charge_of(&self, group: &Group) -> Result<Charge, QueueReason> {
        let tree = self.accounts.tree();
        let quota = group.quota.clone();
        match tree.number(&group.quota) {
            None => Err(QueueReason::NoQuota { quota }),
            Some(at) if !tree.below(Some(at)).is_empty() => Err(QueueReason::ParentQuota { quota }),
            Some(at) => Ok(Charge::of(group, at, self.is_back(group))),
        }
    }

    pub(super) fn of_wanted(&self, wanted: &[Wanted<'_>]) -> Vec<u64> {
        let mut row = vec![0; self.memo.dimensions().len()];
        self.sum(wanted.iter().map(|one| (one.role, one.count())), &mut row);
        row
    }

    /// Sums up the requests of so many members of each role, by dimension.
    fn sum<'r>(&self, roles: impl Iterator<Item = (&'r GangRole, u64)>, row: &mut [u64]) {
        row.fill(0);
        for (role, count) in roles.filter(|(_, count)| *count > 0) {
            for (cell, amount) in row.iter_mut().zip(self.memo.row(&role.pod)) {
                *cell = cell.saturating_add(amount.saturating_mul(count));
            }
        }
    }

    /// The groups of that class that may be tried, by quota.
    pub(super) fn lines(&mut self, class: Class) -> Lines {
        let mut all: Vec<Vec<Waiting>> = vec![Vec::new(); self.accounts.tree().by_number().len()];
        let mut known = BTreeMap::new();
        for (at, group) in self.groups.iter().enumerate() {
            let Some(charge) = self.charges[at].filter(|_| group.class == class) else {
                continue;
            };
            if self.reasons[at].is_some() || !waits(group).unwrap_or(false) {
                continue;
            }
            self.reasons[at] = self.not_tried(group);
            if self.reasons[at].is_none() {
                let asks = self.asks(at, &mut known);
                if self.accounts.is_within_min(charge.quota, &asks) {
                    self.room_since[at] = group.past.room_since.or(Some(self.now));
                }
                all[charge.quota].push(self.in_line(at, asks));
            }
        }
        all.into_iter().map(|line| self.line(line)).collect()
    }

    fn in_line(&self, at: usize, asks: Rc<[u64]>) -> Waiting {
        let group = &self.groups[at];
        Waiting {
            group: at,
            score: self.rules.score.of(group),
            since: group.since,
            asks,
            weight: self.weight(group),
            looks: self.memo.looks(at),
        }
    }

    /// A group that waits, for a line.
    pub(super) fn waiting(&self, at: usize) -> Waiting {
        self.in_line(at, self.asks(at, &mut BTreeMap::new()))
    }

    /// Weight of a group in the order, by its wait.
    fn weight(&self, group: &Group) -> (u64, u64) {
        const PARTS: u64 = 1024;
        let aging = self.terms().aging;
        let Some(aging) = aging.filter(|aging| cards_together(group) >= aging.cards) else {
            return (1, 1);
        };
        let waited = self.now.ms().saturating_sub(group.since.ms());
        let more = waited.saturating_mul(PARTS) / aging.each_ms;
        (PARTS, PARTS.saturating_add(more))
    }

    /// Has the group gone so often that it starts only within entitlements?
    fn is_back(&self, group: &Group) -> bool {
        let Some(limits) = self.terms().limits else {
            return false;
        };
        let most = match self.is_wide(group) {
            true => limits.wide_loans,
            false => limits.loans,
        };
        group.past.reclaims >= most
    }

    /// Does the group need more cards together than any node has?
    pub(super) fn is_wide(&self, group: &Group) -> bool {
        cards_together(group) > self.widest
    }

    /// Reason why a group is not tried now.
    pub(super) fn not_tried(&self, group: &Group) -> Option<QueueReason> {
        if let Some(until) = group.not_before.filter(|until| self.now < *until) {
            return Some(QueueReason::BackOff { until });
        }
        let mut filters = self.rules.filters.iter();
        filters.find_map(|filter| filter.check(group).err())
    }

    /// Requests of the members of a group that start together, which are the same for groups that
    /// look alike.
    fn asks(&self, at: usize, known: &mut BTreeMap<u32, Rc<[u64]>>) -> Rc<[u64]> {
        let asks = || {
            let wanted = together(&self.groups[at]).unwrap_or_default();
            self.of_wanted(&wanted).into()
        };
        match self.memo.looks(at) {
            Some(looks) => Rc::clone(known.entry(looks).or_insert_with(asks)),
            None => asks(),
        }
    }

    /// Puts them in order.
    fn line(&mut self, mut line: Vec<Waiting>) -> VecDeque<Waiting> {
        line.sort_unstable_by(before);
        for (ahead, waiting) in (0..).zip(&line) {
            self.positions[waiting.group] = Some(ahead);
        }
        line.into()
    }
}

/// Number of cards that the group needs to start.
pub(super) fn cards_together(group: &Group) -> u64 {
    let all = minimum(group).map(|(role, count)| count.saturating_mul(cards(role)));
    all.fold(0, u64::saturating_add)
}

/// The members that have a place.
fn has(group: &Group) -> impl Iterator<Item = (&GangRole, u64)> {
    group.roles().map(|role| (role, role.members.len() as u64))
}

/// All members.
fn all(group: &Group) -> impl Iterator<Item = (&GangRole, u64)> {
    group.roles().map(|role| (role, u64::from(role.replicas)))
}
