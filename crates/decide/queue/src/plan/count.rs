//! Counts the use and the requests of each group and the entitlement of each quota, and lists the
//! groups that may be tried.

use std::collections::BTreeMap;
use std::rc::Rc;

use sublet_model::Class;

use super::Tick;
use super::asks::sum;
use crate::accounts::Charge;
use crate::line::{Line, Turn};
use crate::order::{Request, next};
use crate::{GangRole, Group, Infeasible, MOST_MEMBERS, QueueReason};

impl Tick<'_> {
    /// Charges what everybody has, and works out what each quota is entitled to.
    pub(super) fn count(&mut self) {
        let width = self.memo.dimensions().len();
        let mut requests = vec![0_u64; self.accounts.tree().by_number().len() * width];
        let mut counted = Vec::with_capacity(self.groups.len());
        let nothing = vec![0; width];
        for (at, group) in self.groups.iter().enumerate() {
            let charge = match self.charge_of(at, group) {
                Ok(charge) => charge,
                Err(reason) => {
                    self.reasons[at] = Some(reason);
                    self.charges.push(None);
                    continue;
                }
            };
            self.charges.push(Some(charge));
            // A number of its looks has only who has not run.
            let has = match self.memo.looks(at) {
                None => &self.has(group),
                Some(_) => &nothing,
            };
            self.accounts.charge(charge, has);
            let guaranteed = charge.class == Class::Guaranteed;
            let asks = Rc::clone(&self.asks[at]);
            let requested = match self.cannot_ask(at, charge) {
                Some(reason) => {
                    // Who can never start asks nothing, though it may run from before.
                    let is_hopeless = matches!(reason, QueueReason::Infeasible(_));
                    self.reasons[at] = Some(reason);
                    if is_hopeless { &nothing } else { has }
                }
                None => {
                    counted.extend(guaranteed.then_some(at));
                    &asks.all
                }
            };
            if guaranteed {
                let cells = requests[charge.quota * width..].iter_mut();
                for (cell, amount) in cells.zip(requested) {
                    *cell = cell.saturating_add(*amount);
                }
            }
        }
        self.accounts.entitle(&requests, self.rules.scaling);
        self.leave_out(&mut requests, counted);
    }

    /// Reason why nothing is asked for the waiting members of the group.
    fn cannot_ask(&self, at: usize, charge: Charge) -> Option<QueueReason> {
        let asks = &self.asks[at];
        let need = asks.firm_count;
        if need > MOST_MEMBERS as u64 {
            return Some(QueueReason::Infeasible(Infeasible::Members { need }));
        }
        if let Err(why) = self.accounts.check_empty(charge, &asks.firm) {
            return Some(QueueReason::Infeasible(why));
        }
        if let Some(why) = self.memo.never(at) {
            return Some(QueueReason::Infeasible(why));
        }
        asks.waits.as_ref().err().cloned()
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
        let width = self.memo.dimensions().len();
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
            let cells = &mut requests[quota * width..][..width];
            let before = self.accounts.within_max(quota, cells);
            for (cell, amount) in cells.iter_mut().zip(&self.asks[at].all) {
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
        for at in groups {
            let Some(charge) = self.charges[at] else {
                continue;
            };
            let firm = &self.asks[at].firm;
            if self.accounts.exceeds(charge.quota, firm).is_some() {
                let alike = beyond.entry((charge.quota, firm.clone())).or_default();
                alike.push(at);
            }
        }
        beyond
    }

    fn charge_of(&self, at: usize, group: &Group) -> Result<Charge, QueueReason> {
        let tree = self.accounts.tree();
        let quota = || group.quota.clone();
        match tree.number(&group.quota) {
            None => Err(QueueReason::NoQuota { quota: quota() }),
            Some(number) if !tree.below(Some(number)).is_empty() => {
                Err(QueueReason::ParentQuota { quota: quota() })
            }
            Some(number) => Ok(Charge::of(group, number, self.is_back(at, group))),
        }
    }

    /// The groups of that class that may be tried, by quota, in their order.
    pub(super) fn lines(&mut self, class: Class) -> Vec<Vec<Turn>> {
        let mut all: Vec<Vec<Turn>> = vec![Vec::new(); self.accounts.tree().by_number().len()];
        for (at, group) in self.groups.iter().enumerate() {
            if self.reasons[at].is_some() || !matches!(self.asks[at].waits, Ok(true)) {
                continue;
            }
            let Some(charge) = self.charges[at].filter(|charge| charge.class == class) else {
                continue;
            };
            self.reasons[at] = self.not_tried(group);
            if self.reasons[at].is_none() {
                let asks = &self.asks[at].together;
                if self.accounts.is_within_min(charge.quota, asks) {
                    self.room_since[at] = group.past.room_since.or(Some(self.now));
                }
                all[charge.quota].push(self.turn(at));
            }
        }
        for line in &mut all {
            line.sort_unstable();
            for (ahead, turn) in (0..).zip(line) {
                self.positions[turn.group] = Some(ahead);
            }
        }
        all
    }

    /// The turn of a group in the order within its quota.
    pub(super) fn turn(&self, at: usize) -> Turn {
        let (score, since) = self.rules.turn(&self.groups[at]);
        Turn {
            score,
            since,
            group: at,
        }
    }

    /// The line of the group that is next.
    pub(super) fn next(&self, lines: &[Line], class: Class) -> Option<usize> {
        next(&self.accounts, lines, class, |at| Request {
            asks: &self.asks[at].together,
            since: self.groups[at].since,
            weight: self.weight(at),
        })
    }

    /// Weight of a group in the order, by its wait.
    fn weight(&self, at: usize) -> (u64, u64) {
        const PARTS: u64 = 1024;
        let aging = self.terms().aging;
        let Some(aging) = aging.filter(|aging| self.asks[at].cards >= aging.cards) else {
            return (1, 1);
        };
        let waited = self.now.ms().saturating_sub(self.groups[at].since.ms());
        let more = waited.saturating_mul(PARTS) / aging.each_ms;
        (PARTS, PARTS.saturating_add(more))
    }

    /// Has the group gone so often that it starts only within entitlements?
    fn is_back(&self, at: usize, group: &Group) -> bool {
        let Some(limits) = self.terms().limits else {
            return false;
        };
        let most = match self.is_wide(at) {
            true => limits.wide_loans,
            false => limits.loans,
        };
        group.past.reclaims >= most
    }

    /// Reason why a group is not tried now.
    pub(super) fn not_tried(&self, group: &Group) -> Option<QueueReason> {
        if let Some(until) = group.not_before.filter(|until| self.now < *until) {
            return Some(QueueReason::BackOff { until });
        }
        let mut filters = self.rules.filters.iter();
        filters.find_map(|filter| filter.check(group).err())
    }

    /// Requests of one member.
    pub(super) fn of_one(&self, role: &GangRole) -> Vec<u64> {
        self.memo.row(&role.pod).to_vec()
    }

    /// Requests of the members of a group that have a place.
    pub(super) fn has(&self, group: &Group) -> Vec<u64> {
        let roles = group.roles().map(|role| (role, role.members.len() as u64));
        sum(self.memo, roles)
    }

    /// Does the group need more cards together than any node has?
    pub(super) fn is_wide(&self, group: usize) -> bool {
        self.asks[group].cards > self.widest
    }
}
