//! Lends beyond entitlements: where nobody entitled has a place, groups start that can be asked to
//! leave. They come last, and go first. A gang that no node could hold may also take the place of
//! other borrowers, each of which goes but once for that.

use std::collections::{BTreeSet, VecDeque};

use sublet_model::Class;

use super::Tick;
use super::start::{EVICTING, Leave};
use crate::accounts::Charge;
use crate::need::{Wanted, together, waits};
use crate::order::{Lines, Waiting, before, next};
use crate::place::Ground;
use crate::reclaim::Claimant;
use crate::{QueueReason, QuotaLimit};

impl Tick<'_> {
    /// Starts groups beyond the entitlement of their quotas, on free ground.
    pub(super) fn lend(&mut self) {
        if !self.terms().lends_beyond {
            return;
        }
        let mut lines = self.borrowers();
        let mut refused = vec![BTreeSet::new(); lines.len()];
        while self.work < self.rules.most_starts {
            let Some(quota) = next(&self.accounts, &lines, Class::Guaranteed) else {
                return;
            };
            let Some(first) = lines[quota].pop_front() else {
                return;
            };
            if first
                .looks
                .is_some_and(|looks| refused[quota].contains(&looks))
            {
                continue;
            }
            if !self.start_on_loan(&first) {
                refused[quota].extend(first.looks);
            }
        }
    }

    /// The groups that only entitlements keep from starting, by quota.
    fn borrowers(&mut self) -> Lines {
        let mut lines: Lines = vec![VecDeque::new(); self.accounts.tree().by_number().len()];
        for (at, group) in self.groups.iter().enumerate() {
            let charge = self.charges[at].filter(|charge| {
                charge.class == Class::Guaranteed && charge.preemptible && !charge.stays
            });
            let is_kept_by_quota = matches!(
                self.reasons[at],
                Some(
                    QueueReason::ExceedsEntitlement(_)
                        | QueueReason::OverQuota {
                            limit: QuotaLimit::Entitlement,
                            ..
                        }
                )
            );
            let Some(charge) = charge.filter(|_| is_kept_by_quota) else {
                continue;
            };
            if waits(group).unwrap_or(false) && self.not_tried(group).is_none() {
                lines[charge.quota].push_back(self.waiting(at));
            }
        }
        for line in &mut lines {
            line.make_contiguous().sort_unstable_by(before);
        }
        lines
    }

    /// Starts a group on free ground, or, if it needs more cards than a node has, in the place of
    /// others that are beyond their entitlements or of its own quota.
    fn start_on_loan(&mut self, waiting: &Waiting) -> bool {
        let group = &self.groups[waiting.group];
        let (Some(charge), Ok(wanted)) = (self.charges[waiting.group], together(group)) else {
            return false;
        };
        if self.takes_free_place(waiting, charge, &wanted) {
            self.reasons[waiting.group] = None;
            self.work += 1;
            return true;
        }
        let Some(limits) = self.terms().limits.filter(|_| self.is_wide(group)) else {
            return false;
        };
        let claimant = Claimant {
            charge,
            priority: group.priority,
            asks: &waiting.asks,
            rights: self.rights(waiting, charge, limits),
            on_loan: true,
        };
        let Some(reason) = self.reasons[waiting.group].clone() else {
            return false;
        };
        let started = self.start_evicting(waiting, &wanted, claimant, (Leave::ALL, reason));
        if started.is_ok() {
            self.reasons[waiting.group] = None;
            self.work += EVICTING;
            self.no_room.clear();
        }
        started.is_ok()
    }

    fn takes_free_place(
        &mut self,
        waiting: &Waiting,
        charge: Charge,
        wanted: &[Wanted<'_>],
    ) -> bool {
        let about = (self.memo.places_key(wanted), Ground::Free);
        if self.no_room.contains_key(&about)
            || self.accounts.check_loan(charge, &waiting.asks).is_err()
        {
            return false;
        }
        let group = &self.groups[waiting.group];
        match self.places.take(group, wanted, Ground::Free) {
            Ok(slots) => {
                self.accounts.charge(charge, &waiting.asks);
                self.touched.insert(waiting.group);
                self.starts.entry(waiting.group).or_default().slots = slots;
                true
            }
            Err(lack) => {
                self.no_room.insert(about, lack);
                false
            }
        }
    }
}
