//! Starts groups: the first of each quota's line that its quotas and the nodes let start, with
//! evictions if they are due.

use std::collections::{BTreeMap, BTreeSet};

use sublet_model::Class;

use super::Tick;
use crate::least::least;
use crate::need::{Wanted, missing_of, together};
use crate::order::{Lines, Waiting, before, next};
use crate::place::Ground;
use crate::reclaim::{Bundle, Claimant, Going, Rights, Running, unguarded, victims};
use crate::{Group, MOST_MEMBERS, QueueReason};

/// Says whether a group may have the room that is kept for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Leave {
    pub(super) ground: Ground,
    pub(super) quota: bool,
}

impl Leave {
    /// It leaves the kept room alone.
    pub(super) const ALL: Leave = Leave {
        ground: Ground::Free,
        quota: true,
    };
    /// It may have it.
    pub(super) const NOTHING: Leave = Leave {
        ground: Ground::Held,
        quota: false,
    };
}

/// Key by which groups of one quota fare alike: their looks, their priority, whether they can be
/// asked to leave, whether they had to have a place by now, and the kept room that they must leave
/// alone.
type Fare = (u32, i32, bool, bool, Leave);

/// Reasons why groups of one quota cannot start now: no group that looks like one of them can.
type Refused = BTreeMap<Fare, QueueReason>;

/// A group for which others go is so many times as much work.
pub(super) const EVICTING: usize = 125;

impl Tick<'_> {
    /// Starts all groups that can start, and returns those that cannot.
    pub(super) fn start_all(&mut self, lines: &mut Lines, class: Class) -> Vec<(usize, Waiting)> {
        let mut failed = self.set_aside(lines);
        let mut refused = vec![Refused::default(); lines.len()];
        let (mut started, mut evicted) = (false, false);
        while self.work < self.rules.most_starts {
            let Some(quota) = next(&self.accounts, lines, class) else {
                let again = self.worth_trying(&mut failed, (started, evicted));
                if again.is_empty() {
                    return failed;
                }
                self.no_room.clear();
                refused.fill(Refused::default());
                for (quota, waiting) in again {
                    lines[quota].push_back(waiting);
                }
                (started, evicted) = (false, false);
                continue;
            };
            let line = &mut lines[quota];
            let Some(first) = line.pop_front() else {
                return failed;
            };
            let (fare, leave) = (self.fare(&first), self.leave(&self.groups[first.group]));
            let result = self.start(&first, leave);
            self.reasons[first.group] = result.as_ref().err().cloned();
            match result {
                Err(why) => {
                    refused[quota].extend(fare.map(|fare| (fare, why)));
                    failed.push((quota, first));
                }
                Ok(Evicts(evicts)) => {
                    started = true;
                    evicted |= evicts;
                    self.work += if evicts { EVICTING } else { 1 };
                    if evicts {
                        refused.fill(Refused::default());
                    }
                }
            }
            while let Some(alike) = line.front()
                && let Some(why) = self.fare(alike).and_then(|fare| refused[quota].get(&fare))
            {
                self.reasons[alike.group] = Some(why.clone());
                failed.extend(line.pop_front().map(|alike| (quota, alike)));
            }
        }
        for Waiting { group, .. } in lines.iter().flatten() {
            let ahead = self.positions[*group].unwrap_or(0);
            self.reasons[*group] = Some(QueueReason::Behind { ahead });
        }
        failed
    }

    /// The key of this group and all that fare alike; none if no group looks like it.
    fn fare(&self, waiting: &Waiting) -> Option<Fare> {
        let group = &self.groups[waiting.group];
        let charge = self.charges[waiting.group]?;
        let (is_due, leave) = (self.is_due(waiting, charge), self.leave(group));
        let key = (waiting.looks?, group.priority);
        Some((key.0, key.1, charge.preemptible, is_due, leave))
    }

    /// Takes those out that their quotas refuse and no eviction can help, which most ticks are full
    /// of: then the order need not be asked about each of them.
    fn set_aside(&mut self, lines: &mut Lines) -> Vec<(usize, Waiting)> {
        let mut aside = Vec::new();
        let somebody_is_over = self.evictables.is_anybody_over(&self.accounts);
        for (quota, line) in lines.iter_mut().enumerate() {
            let (mut refused, mut tried) = (Refused::default(), BTreeSet::new());
            for waiting in std::mem::take(line) {
                let fare = self.fare(&waiting);
                if fare.is_some_and(|fare| tried.contains(&fare)) {
                    line.push_back(waiting);
                    continue;
                }
                let known = fare.and_then(|fare| refused.get(&fare).cloned());
                let is_known = known.is_some();
                let why = known.or_else(|| self.held_up(&waiting, somebody_is_over));
                let Some(why) = why else {
                    tried.extend(fare);
                    line.push_back(waiting);
                    continue;
                };
                if !is_known {
                    refused.extend(fare.map(|fare| (fare, why.clone())));
                }
                self.reasons[waiting.group] = Some(why);
                aside.push((quota, waiting));
            }
        }
        aside
    }

    /// Reason why its quotas refuse a group, if no eviction can help.
    fn held_up(&self, waiting: &Waiting, somebody_is_over: bool) -> Option<QueueReason> {
        let group = &self.groups[waiting.group];
        let charge = self.charges[waiting.group]?;
        let may_evict = charge.class == Class::Guaranteed
            && (somebody_is_over
                || self.evictables.may_yield(charge.quota, group.priority)
                || self.takes_own(group));
        if may_evict {
            return None;
        }
        let leave = self.leave(group);
        let reason = self
            .accounts
            .check(charge, &waiting.asks, leave.quota)
            .err()?;
        let free = self.accounts.check(charge, &waiting.asks, false);
        let held_for = free.ok().and_then(|()| self.held_for());
        Some(held_for.unwrap_or(reason))
    }

    /// May the group take from smaller ones of its own quota?
    fn takes_own(&self, group: &Group) -> bool {
        let limits = self.terms().limits;
        limits.is_some_and(|limits| limits.wide_takes) && self.is_wide(group)
    }

    /// Takes those out that may be able to start now. After an eviction that may be any group. If
    /// groups have only started, a group that found no place may find one: places are not chosen so
    /// that the rest fits best.
    fn worth_trying(
        &self,
        failed: &mut Vec<(usize, Waiting)>,
        (started, evicted): (bool, bool),
    ) -> Vec<(usize, Waiting)> {
        let may_start = |(_, waiting): &mut (usize, Waiting)| {
            let reason = self.reasons[waiting.group].as_ref();
            evicted || started && matches!(reason, Some(QueueReason::NoRoom { .. }))
        };
        let mut again: Vec<_> = failed.extract_if(.., may_start).collect();
        again.sort_by(|(_, one), (_, other)| before(one, other));
        again
    }

    /// Tells which kept room a group must leave alone: none if it has ended by then, or goes when
    /// told.
    fn leave(&self, group: &Group) -> Leave {
        let until = self.kept.as_ref().and_then(|kept| kept.until);
        let ends = group.ends.zip(until);
        let is_gone = ends.is_some_and(|(ends, until)| ends <= until);
        match is_gone || group.class == Class::Opportunistic {
            true => Leave::NOTHING,
            false => Leave::ALL,
        }
    }

    pub(super) fn start(&mut self, waiting: &Waiting, leave: Leave) -> Result<Evicts, QueueReason> {
        let group = &self.groups[waiting.group];
        let Some(charge) = self.charges[waiting.group] else {
            return Ok(Evicts(false));
        };
        let wanted = together(group)?;
        let claimant = Claimant {
            charge,
            priority: group.priority,
            asks: &waiting.asks,
            rights: match self.terms().limits {
                Some(limits) => self.rights(waiting, charge, limits),
                None => Rights::ALL,
            },
            on_loan: false,
        };
        let Err(reason) = self.start_free(waiting, &wanted, claimant, leave) else {
            return Ok(Evicts(false));
        };
        let is_due = self.is_due(waiting, charge);
        let places = self.memo.places_key(&wanted);
        let about = (charge.quota, group.priority, is_due, places);
        if is_due {
            self.overdue.insert(waiting.group);
        }
        if self.no_reclaim.contains(&about) {
            return Err(reason);
        }
        let mut result = self.start_evicting(waiting, &wanted, claimant, (leave, reason));
        // Whoever has had to wait for so long does not wait for kept room, too.
        if let Err(reason) = &result
            && is_due
            && leave != Leave::NOTHING
            && self.kept.is_some()
        {
            let leave = (Leave::NOTHING, reason.clone());
            result = self.start_evicting(waiting, &wanted, claimant, leave);
        }
        match result {
            Ok(()) => {
                self.overdue.remove(&waiting.group);
                self.no_reclaim.clear();
                Ok(Evicts(true))
            }
            Err(reason) => {
                self.no_reclaim.insert(about);
                Err(reason)
            }
        }
    }

    fn start_free(
        &mut self,
        waiting: &Waiting,
        wanted: &[Wanted<'_>],
        Claimant { charge, asks, .. }: Claimant<'_>,
        leave: Leave,
    ) -> Result<(), QueueReason> {
        let group = &self.groups[waiting.group];
        self.accounts
            .check(charge, asks, leave.quota)
            .map_err(|reason| match self.accounts.check(charge, asks, false) {
                Ok(()) => self.held_for().unwrap_or(reason),
                Err(_) => reason,
            })?;
        let about = (self.memo.places_key(wanted), leave.ground);
        if let Some(lack) = self.no_room.get(&about) {
            return Err(lack.clone().reason(wanted));
        }
        let slots = self.places.take(group, wanted, leave.ground);
        let slots = slots.map_err(|lack| {
            self.no_room.insert(about, lack.clone());
            lack.reason(wanted)
        })?;
        self.accounts.charge(charge, asks);
        self.touched.insert(waiting.group);
        self.starts.entry(waiting.group).or_default().slots = slots;
        Ok(())
    }

    /// Starts a group in the place of others, if it is entitled to that. `reason`: why it cannot
    /// start as things are.
    pub(super) fn start_evicting(
        &mut self,
        waiting: &Waiting,
        wanted: &[Wanted<'_>],
        claimant: Claimant<'_>,
        (leave, reason): (Leave, QueueReason),
    ) -> Result<(), QueueReason> {
        let bundles = match self.terms().limits {
            Some(_) => self.victims_by_node(waiting, wanted, claimant, (leave, reason.clone()))?,
            None => self.victims_by_rank(waiting, wanted, claimant, (leave, reason.clone()))?,
        };
        let Some(going) = Going::after(&self.accounts, &bundles, claimant) else {
            return Err(reason);
        };
        let ledger = self.places.ledger();
        let entries = going.uids.iter().filter_map(|uid| ledger.entry(uid));
        if (self.breaks)(&entries.collect::<Vec<_>>()) {
            return Err(QueueReason::Guarded);
        }
        let group = &self.groups[waiting.group];
        let slots = self
            .places
            .take_without(&going.uids, group, wanted, leave.ground);
        let slots = slots.map_err(|lack| lack.reason(wanted))?;
        self.accounts = going.accounts;
        self.accounts.charge(claimant.charge, claimant.asks);
        self.touched.insert(waiting.group);
        self.touched
            .extend(bundles.iter().map(|bundle| bundle.group));
        let start = self.starts.entry(waiting.group).or_default();
        start.slots = slots;
        start.victims = victims(self.groups, &bundles);
        Ok(())
    }

    /// Victims by rank: the beginning of one sequence for the whole cluster, without those that can
    /// be spared.
    fn victims_by_rank(
        &mut self,
        waiting: &Waiting,
        wanted: &[Wanted<'_>],
        claimant: Claimant<'_>,
        (leave, reason): (Leave, QueueReason),
    ) -> Result<Vec<Bundle>, QueueReason> {
        let group = &self.groups[waiting.group];
        let touched = &self.touched;
        let about = Running {
            groups: self.groups,
            charges: &self.charges,
            memo: self.memo,
            ledger: self.places.ledger(),
            now: self.now,
            weighs: false,
            saves_every_ms: None,
            widest: self.widest,
        };
        let evictables = &mut self.evictables;
        let row = evictables.row(&self.accounts, claimant, &about, |group| {
            touched.contains(&group)
        });
        if row.is_empty() {
            return Err(reason);
        }
        let ledger = self.places.ledger();
        let free = unguarded(row.clone(), |uid| ledger.entry(uid), self.breaks);
        let accounts = &self.accounts;
        let places = &mut self.places;
        let mut works = |bundles: &[Bundle]| {
            let going = Going::after(accounts, bundles, claimant);
            let fits = |going: &Going<'_>| {
                let check = going
                    .accounts
                    .check(claimant.charge, claimant.asks, leave.quota);
                check.is_ok()
            };
            let going = going.filter(fits);
            going.is_some_and(|going| {
                places.has_room_without(&going.uids, group, wanted, leave.ground)
            })
        };
        let found = least(&free, &mut works).filter(|bundles| !bundles.is_empty());
        found.ok_or_else(|| {
            let is_guarded = free.len() < row.len() && works(&row);
            if is_guarded {
                QueueReason::Guarded
            } else {
                reason
            }
        })
    }

    /// Starts members beyond the minima one by one, wherever there is room for them. A group whose
    /// member finds no room gets the reason, as far as it has none yet.
    pub(super) fn start_surplus(&mut self, class: Class) {
        for (at, group) in self.groups.iter().enumerate() {
            let Some(charge) = self.charges[at].filter(|_| group.class == class) else {
                continue;
            };
            // Of a group that somebody has to leave nobody starts.
            let is_started = self.starts.contains_key(&at);
            let is_left = self.touched.contains(&at) && !is_started;
            if self.reasons[at].is_some() || is_left || !has_missing(group) {
                continue;
            }
            let starting = self.starts.get(&at).map_or(&[][..], |start| &start.slots);
            let starting = starting.iter().map(|slot| (slot.role.clone(), slot.index));
            let starting: BTreeSet<_> = starting.collect();
            // What does not go into this plan goes into the next.
            let mut left = MOST_MEMBERS.saturating_sub(starting.len());
            let leave = self.leave(group);
            for role in group.roles() {
                let open = missing_of(role);
                let open = open.filter(|index| !starting.contains(&(role.name.clone(), *index)));
                for index in open {
                    if left == 0 {
                        break;
                    }
                    left -= 1;
                    let one = [Wanted {
                        role,
                        indices: vec![index],
                    }];
                    let asks = self.of_wanted(&one);
                    if let Err(reason) = self.accounts.check(charge, &asks, leave.quota) {
                        self.reasons[at].get_or_insert(reason);
                        break;
                    }
                    let slots = match self.places.take(group, &one, leave.ground) {
                        Ok(slots) => slots,
                        Err(lack) => {
                            self.reasons[at].get_or_insert(lack.reason(&one));
                            break;
                        }
                    };
                    self.accounts.charge(charge, &asks);
                    self.starts.entry(at).or_default().slots.extend(slots);
                }
            }
        }
    }
}

fn has_missing(group: &Group) -> bool {
    let mut roles = group.roles();
    roles.any(|role| role.members.len() < role.replicas as usize)
}

/// Somebody goes for the group that starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Evicts(pub(super) bool);
