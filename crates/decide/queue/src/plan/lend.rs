//! Lends beyond entitlements: where nobody entitled has a place, groups start that can be asked to
//! leave. They come last, and go first. A gang that no node could hold may also take the place of
//! other borrowers, each of which goes but once for that.

use std::rc::Rc;

use sublet_model::Class;

use super::Tick;
use super::start::{EVICTING, Leave};
use crate::accounts::Charge;
use crate::line::{Line, Turn};
use crate::need::{Wanted, together};
use crate::place::Ground;
use crate::reclaim::Claimant;
use crate::rules::runs_ms;
use crate::{QueueReason, QuotaLimit};

impl Tick<'_> {
    /// Starts groups beyond the entitlement of their quotas, on free ground.
    pub(super) fn lend(&mut self) {
        if !self.terms().lends_beyond {
            return;
        }
        let mut lines = self.borrowers();
        while self.work < self.rules.most_starts {
            let Some(quota) = self.next(&lines, Class::Guaranteed) else {
                return;
            };
            let line = &mut lines[quota];
            let Some(first) = line.first() else {
                return;
            };
            match self.start_on_loan(first.group) {
                Ok(()) => line.start_first(),
                Err(why) => line.refuse_first(why),
            }
        }
    }

    /// The groups that only entitlements keep from starting, by quota.
    fn borrowers(&self) -> Vec<Line> {
        let by_number = self.accounts.tree().by_number();
        let unused = self.accounts.unused();
        // Nobody is lent more than is left, and only such gangs take it from others.
        let may_fit = |at: usize, quota: usize| {
            let left = unused.get(&*by_number[quota].tree);
            let mut asks = self.asks[at].together.iter().enumerate();
            self.is_wide(at) || asks.all(|(of, ask)| *ask <= left.map_or(0, |left| left[of]))
        };
        let quotas = by_number.len();
        let mut all: Vec<Vec<Turn>> = vec![Vec::new(); quotas];
        for (at, reason) in self.reasons.iter().enumerate() {
            let is_kept_by_quota = matches!(
                reason,
                Some(
                    QueueReason::ExceedsEntitlement(_)
                        | QueueReason::OverQuota {
                            limit: QuotaLimit::Entitlement,
                            ..
                        }
                )
            );
            if !is_kept_by_quota || !matches!(self.asks[at].waits, Ok(true)) {
                continue;
            }
            let charge = self.charges[at].filter(|charge| {
                charge.class == Class::Guaranteed && charge.preemptible && !charge.stays
            });
            let is_tried = || self.not_tried(&self.groups[at]).is_none();
            if let Some(charge) = charge.filter(|charge| may_fit(at, charge.quota) && is_tried()) {
                all[charge.quota].push(self.turn(at));
            }
        }
        let line = |mut turns: Vec<Turn>| {
            turns.sort_unstable();
            let fare = |at: usize| Some((self.memo.looks(at)?, runs_ms(&self.groups[at])));
            Line::of(&turns, fare)
        };
        all.into_iter().map(line).collect()
    }

    /// Starts a group on free ground, or, if it needs more cards than a node has, in the place of
    /// others that are beyond their entitlements or of its own quota.
    ///
    /// # Errors
    /// The reason why it waits, which is the one that it had before.
    fn start_on_loan(&mut self, at: usize) -> Result<(), QueueReason> {
        let group = &self.groups[at];
        let Some(reason) = self.reasons[at].clone() else {
            return Ok(());
        };
        let (Some(charge), Ok(wanted)) = (self.charges[at], together(group)) else {
            return Err(reason);
        };
        if self.takes_free_place(at, charge, &wanted) {
            self.reasons[at] = None;
            self.work += 1;
            return Ok(());
        }
        let limits = self.terms().limits;
        let Some(limits) = limits.filter(|_| self.is_wide(at)) else {
            return Err(reason);
        };
        let asks = Rc::clone(&self.asks[at].together);
        let claimant = Claimant {
            charge,
            priority: group.priority,
            asks: &asks,
            rights: self.rights(at, charge, limits),
            on_loan: true,
        };
        self.start_evicting(at, &wanted, claimant, (Leave::ALL, reason))?;
        self.reasons[at] = None;
        self.work += EVICTING;
        self.no_room.clear();
        Ok(())
    }

    fn takes_free_place(&mut self, at: usize, charge: Charge, wanted: &[Wanted<'_>]) -> bool {
        let about = (self.memo.places_key(wanted), Ground::Free);
        if self.no_room.contains_key(&about)
            || self
                .accounts
                .check_loan(charge, &self.asks[at].together)
                .is_err()
        {
            return false;
        }
        let group = &self.groups[at];
        match self.places.take(group, wanted, Ground::Free) {
            Ok(slots) => {
                self.accounts.charge(charge, &self.asks[at].together);
                self.touched.insert(at);
                self.starts.entry(at).or_default().slots = slots;
                true
            }
            Err(lack) => {
                self.no_room.insert(about, lack);
                false
            }
        }
    }
}
