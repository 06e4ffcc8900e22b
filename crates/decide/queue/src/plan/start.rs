//! Starts groups: the first of each quota's line that its quotas and the nodes let start, with
//! evictions if they are due.

use std::collections::BTreeSet;
use std::rc::Rc;

use sublet_model::{Class, Time};

use super::Tick;
use crate::least::least;
use crate::line::{Line, Turn};
use crate::need::{Wanted, missing_of, together};
use crate::place::Ground;
use crate::reclaim::{Bundle, Claimant, Going, Rights, unguarded, victims};
use crate::rules::runs_ms;
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
/// asked to leave, whether they had to have a place by now if their quota's minimum has room, the
/// kept room that they must leave alone, and how long they run: among equals the first of the order
/// has waited longest, and may cost most.
type Fare = (u32, i32, bool, bool, Leave, u64);

/// A group for which others go is so many times as much work.
pub(super) const EVICTING: usize = 125;

impl Tick<'_> {
    /// Starts all groups of these lines that can start. Gives back those that cannot.
    pub(super) fn start_all(&mut self, lines: &[Vec<Turn>], class: Class) -> Vec<Line> {
        let lines = lines.iter();
        let lines = lines.map(|turns| Line::of(turns, |group| self.fare(group)));
        let mut lines: Vec<Line> = lines.collect();
        self.set_aside(&mut lines);
        let (mut started, mut evicted) = (false, false);
        while self.work < self.rules.most_starts {
            let Some(quota) = self.next(&lines, class) else {
                // After an eviction any group may be able to start. If groups have only started, one
                // that found no place may find one: places are not chosen so that the rest fits best.
                let may_start = |why: &QueueReason| {
                    evicted || started && matches!(why, QueueReason::NoRoom { .. })
                };
                let opened = lines.iter_mut().map(|line| line.open_where(may_start));
                if opened.filter(|is_any| *is_any).count() == 0 {
                    break;
                }
                self.no_room.clear();
                (started, evicted) = (false, false);
                continue;
            };
            let Some(first) = lines[quota].first() else {
                break;
            };
            let leave = self.leave(class, self.groups[first.group].ends);
            match self.start(first.group, leave) {
                Err(why) => lines[quota].refuse_first(why),
                Ok(Evicts(evicts)) => {
                    lines[quota].start_first();
                    started = true;
                    evicted |= evicts;
                    self.work += if evicts { EVICTING } else { 1 };
                    if evicts {
                        lines.iter_mut().for_each(Line::open_rest);
                    }
                }
            }
        }
        for (turns, refused) in lines.iter().flat_map(Line::queues) {
            for Turn { group, .. } in turns {
                let behind = || QueueReason::Behind {
                    ahead: self.positions[group].unwrap_or(0),
                };
                self.reasons[group] = Some(refused.cloned().unwrap_or_else(behind));
            }
        }
        lines
    }

    /// The key of this group and all that fare alike; none if no group looks like it.
    fn fare(&self, at: usize) -> Option<Fare> {
        let (looks, charge) = (self.memo.looks(at)?, self.charges[at]?);
        let group = &self.groups[at];
        let is_late = self.is_late(at, charge);
        let leave = self.leave(charge.class, group.ends);
        let (priority, runs) = (group.priority, runs_ms(group));
        Some((looks, priority, charge.preemptible, is_late, leave, runs))
    }

    /// Refuses those that their quotas refuse and no eviction can help, which most ticks are full
    /// of: then the order need not be asked about each of them.
    fn set_aside(&self, lines: &mut [Line]) {
        let somebody_is_over = self.evictables.is_anybody_over(&self.accounts);
        for line in lines {
            line.refuse_where(|group| self.held_up(group, somebody_is_over));
        }
    }

    /// Reason why its quotas refuse a group, if no eviction can help.
    fn held_up(&self, at: usize, somebody_is_over: bool) -> Option<QueueReason> {
        let group = &self.groups[at];
        let charge = self.charges[at]?;
        let may_evict = charge.class == Class::Guaranteed
            && (somebody_is_over
                || self.evictables.may_yield(charge.quota, group.priority)
                || self.takes_own(at));
        if may_evict {
            return None;
        }
        let leave = self.leave(charge.class, group.ends);
        let reason = self
            .accounts
            .check(charge, &self.asks[at].together, leave.quota)
            .err()?;
        let free = self.accounts.check(charge, &self.asks[at].together, false);
        let held_for = free.ok().and_then(|()| self.held_for());
        Some(held_for.unwrap_or(reason))
    }

    /// May the group take from smaller ones of its own quota?
    fn takes_own(&self, group: usize) -> bool {
        let limits = self.terms().limits;
        limits.is_some_and(|limits| limits.wide_takes) && self.is_wide(group)
    }

    /// Tells which kept room a group must leave alone: none if it has ended by then, or goes when
    /// told.
    fn leave(&self, class: Class, ends: Option<Time>) -> Leave {
        let until = self.kept.as_ref().and_then(|kept| kept.until);
        let is_gone = ends.zip(until).is_some_and(|(ends, until)| ends <= until);
        match is_gone || class == Class::Opportunistic {
            true => Leave::NOTHING,
            false => Leave::ALL,
        }
    }

    pub(super) fn start(&mut self, at: usize, leave: Leave) -> Result<Evicts, QueueReason> {
        let group = &self.groups[at];
        let Some(charge) = self.charges[at] else {
            return Ok(Evicts(false));
        };
        let wanted = together(group)?;
        let asks = Rc::clone(&self.asks[at].together);
        let claimant = Claimant {
            charge,
            priority: group.priority,
            asks: &asks,
            rights: match self.terms().limits {
                Some(limits) => self.rights(at, charge, limits),
                None => Rights::ALL,
            },
            on_loan: false,
        };
        let Err(reason) = self.start_free(at, &wanted, claimant, leave) else {
            return Ok(Evicts(false));
        };
        let is_due = self.is_due(at, charge);
        let places = self.memo.places_key(&wanted);
        let about = (charge.quota, group.priority, is_due, places);
        if is_due {
            self.overdue.insert(at);
        }
        if self.no_reclaim.contains(&about) {
            return Err(reason);
        }
        let mut result = self.start_evicting(at, &wanted, claimant, (leave, reason));
        // Whoever has had to wait for so long does not wait for kept room, too.
        if let Err(reason) = &result
            && is_due
            && leave != Leave::NOTHING
            && self.kept.is_some()
        {
            let leave = (Leave::NOTHING, reason.clone());
            result = self.start_evicting(at, &wanted, claimant, leave);
        }
        match result {
            Ok(()) => {
                self.overdue.remove(&at);
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
        at: usize,
        wanted: &[Wanted<'_>],
        Claimant { charge, asks, .. }: Claimant<'_>,
        leave: Leave,
    ) -> Result<(), QueueReason> {
        let group = &self.groups[at];
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
        self.touched.insert(at);
        self.starts.entry(at).or_default().slots = slots;
        Ok(())
    }

    /// Starts a group in the place of others, if it is entitled to that. `reason`: why it cannot
    /// start as things are.
    pub(super) fn start_evicting(
        &mut self,
        at: usize,
        wanted: &[Wanted<'_>],
        claimant: Claimant<'_>,
        (leave, reason): (Leave, QueueReason),
    ) -> Result<(), QueueReason> {
        let bundles = match self.terms().limits {
            Some(_) => self.victims_by_node(at, wanted, claimant, (leave, reason.clone()))?,
            None => self.victims_by_rank(at, wanted, claimant, (leave, reason.clone()))?,
        };
        let Some(going) = Going::after(&self.accounts, &bundles, claimant) else {
            return Err(reason);
        };
        let ledger = self.places.ledger();
        let entries = going.uids.iter().filter_map(|uid| ledger.entry(uid));
        if (self.breaks)(&entries.collect::<Vec<_>>()) {
            return Err(QueueReason::Guarded);
        }
        let group = &self.groups[at];
        let slots = self
            .places
            .take_without(&going.uids, group, wanted, leave.ground);
        let slots = slots.map_err(|lack| lack.reason(wanted))?;
        self.accounts = going.accounts;
        self.accounts.charge(claimant.charge, claimant.asks);
        self.touched.insert(at);
        self.touched
            .extend(bundles.iter().map(|bundle| bundle.group));
        let start = self.starts.entry(at).or_default();
        start.slots = slots;
        start.victims = victims(self.groups, &bundles);
        Ok(())
    }

    /// Victims by rank: the beginning of one sequence for the whole cluster, without those that can
    /// be spared.
    fn victims_by_rank(
        &mut self,
        at: usize,
        wanted: &[Wanted<'_>],
        claimant: Claimant<'_>,
        (leave, reason): (Leave, QueueReason),
    ) -> Result<Vec<Rc<Bundle>>, QueueReason> {
        let group = &self.groups[at];
        let row = self.ask_evictables(false, |evictables, accounts, about, spared| {
            evictables.row(accounts, claimant, about, spared)
        });
        if row.is_empty() {
            return Err(reason);
        }
        let ledger = self.places.ledger();
        let free = unguarded(row.clone(), |uid| ledger.entry(uid), self.breaks);
        let accounts = &self.accounts;
        let places = &mut self.places;
        let mut works = |bundles: &[Rc<Bundle>]| {
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
            if self.reasons[at].is_some() {
                continue;
            }
            let Some(charge) = self.charges[at].filter(|charge| charge.class == class) else {
                continue;
            };
            // Of a group that somebody has to leave nobody starts.
            let is_started = self.starts.contains_key(&at);
            let is_left = self.touched.contains(&at) && !is_started;
            if is_left || !has_missing(group) {
                continue;
            }
            let starting = self.starts.get(&at).map_or(&[][..], |start| &start.slots);
            let starting = starting.iter().map(|slot| (slot.role.clone(), slot.index));
            let starting: BTreeSet<_> = starting.collect();
            // What does not go into this plan goes into the next.
            let mut left = MOST_MEMBERS.saturating_sub(starting.len());
            let leave = self.leave(class, group.ends);
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
                    let asks = self.of_one(role);
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
