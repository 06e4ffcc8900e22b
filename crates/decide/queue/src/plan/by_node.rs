//! Chooses victims node by node: for each node the cheapest legal set that leaves a place for a
//! member, and of all nodes the cheapest. A gang takes its cheapest nodes, one member after another.

use std::collections::BTreeMap;
use std::rc::Rc;

use sublet_model::{Class, NodeIdx, PodUid};

use super::Tick;
use super::start::Leave;
use crate::accounts::{Accounts, Charge};
use crate::least::least;
use crate::need::Wanted;
use crate::place::Search;
use crate::profile::LossLimits;
use crate::reclaim::{Bundle, Claimant, Evictables, Going, Rights, Running, unguarded};
use crate::{Group, QueueReason};

/// Cost of victims: is one of them guaranteed, does a group go whole, the highest priority, and the
/// work that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cost(bool, bool, i32, u64);

impl Cost {
    const NONE: Cost = Cost(false, false, i32::MIN, 0);

    fn with(self, bundle: &Bundle) -> Cost {
        let (is_guaranteed, is_whole, priority, loss, ..) = bundle.rank;
        Cost(
            self.0 | is_guaranteed,
            self.1 | is_whole,
            self.2.max(priority),
            self.3.saturating_add(loss),
        )
    }
}

impl Tick<'_> {
    /// Rights of a group under these limits.
    pub(super) fn rights(&self, at: usize, charge: Charge, limits: LossLimits) -> Rights {
        let group = &self.groups[at];
        let cards = self.asks[at].cards;
        let is_wide = self.is_wide(at);
        let in_min = self
            .accounts
            .is_within_min(charge.quota, &self.asks[at].together);
        let permille = match is_wide {
            true => limits.wide_permille,
            false => limits.budget_permille,
        };
        let waited = self.now.ms().saturating_sub(group.since.ms());
        let budget = waited.saturating_mul(cards).saturating_mul(permille) / 1000;
        Rights {
            wide: in_min || !limits.wide_spared,
            once: is_wide && !in_min,
            back: false,
            own_below: if is_wide && limits.wide_takes {
                cards
            } else {
                0
            },
            budget: match self.is_due(at, charge) {
                true => u64::MAX,
                false => budget,
            },
        }
    }

    /// Had the group to have a place by now, because its quota's minimum has room for it?
    pub(super) fn is_due(&self, at: usize, charge: Charge) -> bool {
        self.is_late(at, charge)
            && self
                .accounts
                .is_within_min(charge.quota, &self.asks[at].together)
    }

    /// Had the group to have a place by now, if its quota's minimum still has room for it?
    pub(super) fn is_late(&self, at: usize, charge: Charge) -> bool {
        if self.terms().limits.is_none() || charge.class == Class::Opportunistic {
            return false;
        }
        let quota = &self.accounts.tree().by_number()[charge.quota];
        let within = quota.min_within_ms.unwrap_or(self.rules.min_within_ms);
        let Some(since) = self.room_since[at] else {
            return false;
        };
        let since = since.ms().max(waits_since(&self.groups[at]));
        self.now.ms() >= since.saturating_add(within)
    }

    /// Victims by node, without those that can be spared.
    pub(super) fn victims_by_node(
        &mut self,
        at: usize,
        wanted: &[Wanted<'_>],
        claimant: Claimant<'_>,
        (leave, reason): (Leave, QueueReason),
    ) -> Result<Vec<Rc<Bundle>>, QueueReason> {
        // Only victims of its own quota make room in it.
        let Claimant { charge, asks, .. } = claimant;
        let takes_own = claimant.rights.own_below > 0
            || self.evictables.has_below(charge.quota, claimant.priority);
        if !claimant.on_loan && !takes_own && self.accounts.is_full(charge.quota, asks) {
            return Err(reason);
        }
        let offers = self.offers(claimant);
        if offers.is_empty() {
            return Err(reason);
        }
        let ledger = self.places.ledger();
        let free = unguarded(offers.clone(), |uid| ledger.entry(uid), self.breaks);
        match self.cheapest(at, wanted, claimant, (leave, &free)) {
            Some(bundles) => Ok(bundles),
            None if free.len() < offers.len()
                && self
                    .cheapest(at, wanted, claimant, (leave, &offers))
                    .is_some() =>
            {
                Err(QueueReason::Guarded)
            }
            None => Err(reason),
        }
    }

    /// Members that may go for this group, each as things are, the cheapest first.
    pub(super) fn offers(&mut self, claimant: Claimant<'_>) -> Vec<Rc<Bundle>> {
        self.ask_evictables(true, |evictables, accounts, about, spared| {
            evictables.offers(accounts, claimant, about, spared)
        })
    }

    /// Bundles of those that may be evicted; groups that this pass has touched are spared. `weighs`:
    /// checkpoints, and each time before, count in what is lost.
    pub(super) fn ask_evictables(
        &mut self,
        weighs: bool,
        ask: impl FnOnce(
            &mut Evictables,
            &Accounts<'_>,
            &Running<'_>,
            &dyn Fn(usize) -> bool,
        ) -> Vec<Rc<Bundle>>,
    ) -> Vec<Rc<Bundle>> {
        let mut evictables = std::mem::take(&mut self.evictables);
        let about = Running {
            groups: self.groups,
            charges: &self.charges,
            memo: self.memo,
            ledger: self.places.ledger(),
            now: self.now,
            weighs,
            saves_every_ms: self.rules.saves_every_ms,
            widest: self.widest,
        };
        let spared = |group: usize| self.touched.contains(&group);
        let bundles = ask(&mut evictables, &self.accounts, &about, &spared);
        self.evictables = evictables;
        bundles
    }

    fn cheapest(
        &mut self,
        group: usize,
        wanted: &[Wanted<'_>],
        claimant: Claimant<'_>,
        (leave, offers): (Leave, &[Rc<Bundle>]),
    ) -> Option<Vec<Rc<Bundle>>> {
        let group = &self.groups[group];
        let accounts = &self.accounts;
        let places = &mut self.places;
        // What makes room on nodes often makes room in quotas, too, and the other way round.
        let mut choose = |quotas_first: bool| {
            let mut choice = Choice::new(accounts, claimant, offers);
            if quotas_first {
                choice.make_room_in_quotas(leave)?;
            }
            let has_room = places.search(group, wanted, leave.ground, |search| {
                search.evict(choice.going.uids.iter());
                let mut members = search.members().into_iter();
                members.all(|member| choice.make_room(search, member))
            });
            has_room.then_some(())?;
            choice.make_room_in_quotas(leave)?;
            Some(choice.taken)
        };
        let taken = choose(false).or_else(|| choose(true))?;
        let mut found: Vec<Rc<Bundle>> = taken.iter().map(|&at| Rc::clone(&offers[at])).collect();
        found.sort_by_key(|bundle| bundle.rank);
        let mut works = |bundles: &[Rc<Bundle>]| {
            let going = Going::after(accounts, bundles, claimant);
            let check = |going: &Going<'_>| {
                let check = claimant.check(&going.accounts, leave.quota);
                check.is_ok()
            };
            going.filter(check).is_some_and(|going| {
                places.has_room_without(&going.uids, group, wanted, leave.ground)
            })
        };
        if !works(&found) {
            // Not legal in that order.
            found = taken.iter().map(|&at| Rc::clone(&offers[at])).collect();
        }
        least(&found, works).filter(|bundles| !bundles.is_empty())
    }
}

/// Since when a group waits, in milliseconds.
fn waits_since(group: &Group) -> u64 {
    let since = group
        .past
        .reclaimed
        .map_or(group.since, |at| at.max(group.since));
    since.ms()
}

/// Victims that have been chosen so far.
struct Choice<'c, 't> {
    claimant: Claimant<'c>,
    offers: &'c [Rc<Bundle>],
    by_node: BTreeMap<NodeIdx, Vec<usize>>,
    going: Going<'t>,
    taken: Vec<usize>,
    left: u64,
}

impl<'c, 't> Choice<'c, 't> {
    fn new(
        accounts: &Accounts<'t>,
        claimant: Claimant<'c>,
        offers: &'c [Rc<Bundle>],
    ) -> Choice<'c, 't> {
        let mut by_node: BTreeMap<NodeIdx, Vec<usize>> = BTreeMap::new();
        for (at, bundle) in offers.iter().enumerate() {
            for (node, _) in &bundle.cards {
                by_node.entry(*node).or_default().push(at);
            }
        }
        Choice {
            claimant,
            offers,
            by_node,
            going: Going::from(accounts),
            taken: Vec::new(),
            left: claimant.rights.budget,
        }
    }

    fn take(&mut self, at: usize) {
        let bundle = &self.offers[at];
        self.left = self.left.saturating_sub(self.claimant.price(bundle));
        self.going.goes(bundle);
        self.taken.push(at);
    }

    /// Takes the cheapest offers from quotas that are full, until they let the group start.
    fn make_room_in_quotas(&mut self, leave: Leave) -> Option<()> {
        let mut next = 0;
        while let Err(reason) = self.claimant.check(&self.going.accounts, leave.quota) {
            let QueueReason::OverQuota { short, .. } = reason else {
                return None;
            };
            let full = self.going.accounts.tree().number(&short.quota)?;
            let tree = self.going.accounts.tree();
            let at = (next..self.offers.len()).find(|&at| {
                let bundle = &self.offers[at];
                !self.taken.contains(&at)
                    && tree.upwards(bundle.quota()).any(|quota| quota == full)
                    && self.claimant.price(bundle) <= self.left
                    && self.going.may_go(bundle, self.claimant)
            })?;
            self.take(at);
            next = at + 1;
        }
        Some(())
    }

    /// Places a member, with the cheapest victims on one node if need be.
    fn make_room(&mut self, search: &mut Search<'_, '_>, member: (usize, u32)) -> bool {
        if search.place(member) {
            return true;
        }
        let nodes = self.by_node.iter();
        let sets = nodes.filter_map(|(&node, there)| {
            let (cost, set) = self.on_node(search, member, (node, there))?;
            Some((cost, node, set))
        });
        let Some((_, node, set)) = sets.min_by_key(|(cost, node, _)| (*cost, *node)) else {
            return false;
        };
        for at in set {
            search.evict(self.offers[at].uids());
            self.take(at);
        }
        search.place_on(member, node)
    }

    /// The cheapest legal set on a node that leaves a place for the member.
    fn on_node(
        &self,
        search: &mut Search<'_, '_>,
        member: (usize, u32),
        (node, there): (NodeIdx, &[usize]),
    ) -> Option<(Cost, Vec<usize>)> {
        let mut all: Vec<(usize, u64)> = Vec::new();
        for &at in there.iter().filter(|at| !self.taken.contains(at)) {
            let mut cards = self.offers[at].cards.iter();
            let freed = cards.find(|(on, _)| *on == node);
            all.push((at, freed.map_or(0, |(_, cards)| *cards)));
        }
        let freed: u64 = all.iter().map(|(_, cards)| cards).sum();
        let missing = search.whole_cards(member).saturating_sub(search.idle(node));
        if !search.is_open(member, node) || freed < missing {
            return None;
        }
        let found = self.enough(search, (member, node), &all, missing);
        let found = found.or_else(|| {
            // Whoever has little first: a quota stays above its entitlement for longer.
            all.sort_by_key(|(at, _)| self.offers[*at].all_cards());
            self.enough(search, (member, node), &all, missing)
        });
        let set = found?;
        let cost = set
            .iter()
            .fold(Cost::NONE, |cost, &at| cost.with(&self.offers[at]));
        Some((cost, set))
    }

    /// Takes legal victims of a node in that order until the member fits, and leaves out those that
    /// can be spared, the last ones first.
    fn enough(
        &self,
        search: &mut Search<'_, '_>,
        (member, node): ((usize, u32), NodeIdx),
        order: &[(usize, u64)],
        missing: u64,
    ) -> Option<Vec<usize>> {
        let (mut going, mut left) = (self.going.clone(), self.left);
        let (mut set, mut freed) = (Vec::new(), 0);
        let uids = |set: &[usize]| -> Vec<&PodUid> {
            set.iter().flat_map(|&at| self.offers[at].uids()).collect()
        };
        let mut fits = |set: &[usize]| search.fits(member, node, uids(set).into_iter());
        for &(at, cards) in order {
            let bundle = &self.offers[at];
            let price = self.claimant.price(bundle);
            if price > left || !going.may_go(bundle, self.claimant) {
                continue;
            }
            going.goes(bundle);
            left -= price;
            set.push(at);
            freed += cards;
            if freed < missing || !fits(&set) {
                continue;
            }
            for spared in (0..set.len() - 1).rev() {
                let mut fewer = set.clone();
                fewer.remove(spared);
                if fits(&fewer) {
                    set = fewer;
                }
            }
            return Some(set);
        }
        None
    }
}
