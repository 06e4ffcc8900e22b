//! Chooses the members to evict for a group that is entitled to amounts that others use.
//!
//! A member may be evicted for a group if, with all victims gone, the group is within the
//! entitlement of every quota above it, and one of these holds:
//!
//! - its group is opportunistic, and the other one is not;
//! - it uses something that the other one asks, and every quota from its own up to where the two
//!   branches meet uses more of that than it is entitled to;
//! - it is of the same quota, and its priority is lower.
//!
//! The entitlement of a quota depends on requests, never on use. So a group that was evicted by the
//! second rule cannot come back before something else changes, and nothing flaps. No member is
//! evicted before there is a proven place for the group, and every evicted member is needed for it.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use sublet_model::{Ask, Class, Entry, Ledger, NodeIdx, PodUid, Standing, Time};

use crate::accounts::{Accounts, Charge};
use crate::loss::{lost_ms, weighed};
use crate::memo::QueueMemo;
use crate::{GangRole, Group, Member, QueueReason, QueueVictim, Saves};

/// Members that go together: one that is more than its group needs, or all of a group.
#[derive(Debug, Clone)]
pub(crate) struct Bundle {
    pub(crate) group: usize,
    charge: Charge,
    priority: i32,
    pub(crate) rank: Rank,
    /// Each with what it uses, by dimension.
    pub(crate) members: Vec<(PodUid, Arc<[u64]>)>,
    /// Work that is lost, in milliseconds of one card.
    pub(crate) loss: u64,
    /// Cards that come free on each node.
    pub(crate) cards: Vec<(NodeIdx, u64)>,
    is_wide: bool,
    /// So many times it went before.
    reclaims: u32,
    /// It has checkpoints.
    saves: bool,
}

impl Bundle {
    pub(crate) fn quota(&self) -> usize {
        self.charge.quota
    }

    pub(crate) fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.members.iter().map(|(uid, _)| uid)
    }

    /// May it go for a gang that is not within a minimum? Once, or twice if it loses little.
    fn may_go_once_more(&self) -> bool {
        self.reclaims < if self.saves { 2 } else { 1 }
    }

    /// Cards that come free.
    pub(crate) fn all_cards(&self) -> u64 {
        self.cards.iter().map(|(_, cards)| cards).sum()
    }
}

/// Rights of a group against those that run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rights {
    /// Groups that need more cards than a node has go for it.
    pub(crate) wide: bool,
    /// Groups go for it once, or twice if they have checkpoints.
    pub(crate) once: bool,
    /// Groups go for it that are back within their entitlements, though others could.
    pub(crate) back: bool,
    /// Groups of its own quota go for it that need fewer cards than so many.
    pub(crate) own_below: u64,
    /// The most work that may be lost for it.
    pub(crate) budget: u64,
}

impl Rights {
    /// All that the law of quotas says.
    pub(crate) const ALL: Rights = Rights {
        wide: true,
        once: false,
        back: true,
        own_below: 0,
        budget: u64::MAX,
    };
}

/// The facts of a group that decide which members may be evicted for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claimant<'a> {
    pub(crate) charge: Charge,
    pub(crate) priority: i32,
    pub(crate) asks: &'a [u64],
    pub(crate) rights: Rights,
    /// It is to start beyond the entitlement of its quotas.
    pub(crate) on_loan: bool,
}

/// Groups that may have to go, by quota: opportunistic work by itself.
#[derive(Default)]
pub(crate) struct Evictables {
    spare: Vec<usize>,
    by_quota: Vec<Theirs>,
}

/// Groups of a quota that may be evicted.
#[derive(Default, Clone)]
struct Theirs {
    groups: Vec<usize>,
    lowest: i32,
    /// Made when somebody asks for the first time.
    bundles: Option<Vec<Rc<Bundle>>>,
}

impl Evictables {
    /// All groups that run, except those that must not be evicted.
    pub(crate) fn of(
        groups: &[Group],
        charges: &[Option<Charge>],
        memo: &QueueMemo,
        quotas: usize,
    ) -> Evictables {
        let mut evictables = Evictables {
            spare: Vec::new(),
            by_quota: vec![Theirs::default(); quotas],
        };
        // A number of its looks has only who has not run.
        let all = groups.iter().enumerate();
        for (at, group) in all.filter(|(at, _)| memo.looks(*at).is_none()) {
            let Some(charge) = charges[at].filter(|charge| charge.preemptible) else {
                continue;
            };
            // A plan that is being carried out is left alone until it is done.
            let mut standings = group.members().map(|(_, member)| member.standing);
            let is_bound = |standing| standing == Standing::Bound;
            if !standings.next().is_some_and(is_bound) || !standings.all(is_bound) {
                continue;
            }
            if charge.class == Class::Opportunistic {
                evictables.spare.push(at);
                continue;
            }
            let theirs = &mut evictables.by_quota[charge.quota];
            theirs.lowest = match theirs.groups.is_empty() {
                true => group.priority,
                false => theirs.lowest.min(group.priority),
            };
            theirs.groups.push(at);
        }
        evictables
    }

    /// Does any quota with a group that may go use more than it is entitled to?
    pub(crate) fn is_anybody_over(&self, accounts: &Accounts<'_>) -> bool {
        let theirs = self.by_quota.iter().enumerate();
        let mut theirs = theirs.filter(|(_, theirs)| !theirs.groups.is_empty());
        theirs.any(|(quota, _)| {
            let mut both = accounts.used(quota).iter().zip(accounts.entitlement(quota));
            both.any(|(used, entitlement)| used > entitlement)
        })
    }

    /// Might somebody go for a group of that quota and priority while no quota uses too much?
    pub(crate) fn may_yield(&self, quota: usize, priority: i32) -> bool {
        !self.spare.is_empty() || self.has_below(quota, priority)
    }

    /// Has the quota a group of a lower priority that may go?
    pub(crate) fn has_below(&self, quota: usize, priority: i32) -> bool {
        let own = &self.by_quota[quota];
        !own.groups.is_empty() && own.lowest < priority
    }

    /// Lists the bundles that may go for this group, one after another: each may go when those
    /// before it have gone. `spared`: groups that are not touched.
    pub(crate) fn row(
        &mut self,
        accounts: &Accounts<'_>,
        claimant: Claimant<'_>,
        about: &Running<'_>,
        spared: impl Fn(usize) -> bool,
    ) -> Vec<Rc<Bundle>> {
        let mut going = Going::from(accounts);
        let mut all = self.ranked(accounts, claimant, about, |bundle| !spared(bundle.group));
        all.retain(|bundle| {
            let may_go = going.may_go(bundle, claimant);
            if may_go {
                going.goes(bundle);
            }
            may_go
        });
        all
    }

    /// Lists the bundles that may go for this group as things are, within its budget, by rank.
    pub(crate) fn offers(
        &mut self,
        accounts: &Accounts<'_>,
        claimant: Claimant<'_>,
        about: &Running<'_>,
        spared: impl Fn(usize) -> bool,
    ) -> Vec<Rc<Bundle>> {
        let going = Going::from(accounts);
        self.ranked(accounts, claimant, about, |bundle| {
            !spared(bundle.group)
                && claimant.price(bundle) <= claimant.rights.budget
                && going.may_go(bundle, claimant)
        })
    }

    /// Lists those bundles by rank whose quotas may have to give something to this group.
    fn ranked(
        &mut self,
        accounts: &Accounts<'_>,
        claimant: Claimant<'_>,
        about: &Running<'_>,
        counts: impl Fn(&Bundle) -> bool,
    ) -> Vec<Rc<Bundle>> {
        let Claimant { charge, asks, .. } = claimant;
        if charge.class == Class::Opportunistic {
            return Vec::new();
        }
        let mut all = about.bundles(&self.spare);
        all.retain(|bundle| counts(bundle));
        for (quota, theirs) in self.by_quota.iter_mut().enumerate() {
            let may_go = match quota == charge.quota {
                true => theirs.lowest < claimant.priority || claimant.rights.own_below > 0,
                false => accounts.is_over(quota, charge.quota, asks),
            };
            if !may_go || theirs.groups.is_empty() {
                continue;
            }
            let bundles = &mut theirs.bundles;
            let bundles = bundles.get_or_insert_with(|| about.bundles(&theirs.groups));
            all.extend(bundles.iter().filter(|bundle| counts(bundle)).cloned());
        }
        all.sort_by_key(|bundle| bundle.rank);
        all
    }
}

impl Claimant<'_> {
    /// May it start, as far as quotas say?
    ///
    /// # Errors
    /// The first limit that it would pass.
    pub(crate) fn check(
        &self,
        accounts: &Accounts<'_>,
        leaves_kept: bool,
    ) -> Result<(), QueueReason> {
        match self.on_loan {
            true => accounts.check_loan(self.charge, self.asks),
            false => accounts.check(self.charge, self.asks, leaves_kept),
        }
    }

    /// Part of the budget that a bundle takes. Opportunistic work takes none, and neither does what
    /// goes for a higher priority in its quota.
    pub(crate) fn price(&self, bundle: &Bundle) -> u64 {
        let is_lower = bundle.charge.quota == self.charge.quota && bundle.priority < self.priority;
        match is_lower || bundle.charge.class == Class::Opportunistic {
            true => 0,
            false => bundle.loss,
        }
    }
}

/// Data from which bundles are made.
pub(crate) struct Running<'a> {
    pub(crate) groups: &'a [Group],
    pub(crate) charges: &'a [Option<Charge>],
    pub(crate) memo: &'a QueueMemo,
    pub(crate) ledger: &'a Ledger,
    pub(crate) now: Time,
    /// Checkpoints count in the work that is lost, and so does each time before.
    pub(crate) weighs: bool,
    pub(crate) saves_every_ms: Option<u64>,
    /// The most cards that a node has.
    pub(crate) widest: u64,
}

impl Running<'_> {
    fn bundles(&self, of: &[usize]) -> Vec<Rc<Bundle>> {
        let mut all = Vec::with_capacity(of.len());
        for &at in of {
            if let Some(charge) = self.charges[at] {
                bundles(at, &self.groups[at], charge, self, &mut all);
            }
        }
        all
    }

    /// Milliseconds that each card of a group counts as lost.
    fn lost_ms(&self, group: &Group) -> u64 {
        if !self.weighs {
            let began = group.started.unwrap_or(self.now);
            return self.now.ms().saturating_sub(began.ms());
        }
        let lost = lost_ms(group, self.now, self.saves_every_ms);
        weighed(lost, group.past.reclaims)
    }

    /// Cards of these members by node.
    fn cards(&self, members: &[(&GangRole, &Member)]) -> Vec<(NodeIdx, u64)> {
        let on_node = |(role, member): &(&GangRole, &Member)| {
            Some((self.ledger.find(member.node.as_str())?, cards(role)))
        };
        let mut by_node: Vec<(NodeIdx, u64)> = members.iter().filter_map(on_node).collect();
        by_node.sort_unstable();
        by_node.dedup_by(|(node, cards), (before, sum)| {
            let is_same = node == before;
            *sum += if is_same { *cards } else { 0 };
            is_same
        });
        by_node
    }
}

/// Accounts as they are when some have gone.
#[derive(Clone)]
pub(crate) struct Going<'t> {
    pub(crate) accounts: Accounts<'t>,
    pub(crate) uids: BTreeSet<PodUid>,
}

impl<'t> Going<'t> {
    pub(crate) fn from(accounts: &Accounts<'t>) -> Going<'t> {
        Going {
            accounts: accounts.clone(),
            uids: BTreeSet::new(),
        }
    }

    /// Accounts after each of those bundles has gone in turn; none if one of them must not go.
    pub(crate) fn after(
        accounts: &Accounts<'t>,
        bundles: &[Rc<Bundle>],
        claimant: Claimant<'_>,
    ) -> Option<Going<'t>> {
        let mut going = Going::from(accounts);
        for bundle in bundles {
            if !going.may_go(bundle, claimant) {
                return None;
            }
            going.goes(bundle);
        }
        Some(going)
    }

    /// Amounts that the bundle still has.
    fn amounts(&self, bundle: &Bundle) -> Vec<u64> {
        let mut sum = vec![0; bundle.members.first().map_or(0, |(_, row)| row.len())];
        let there = bundle.members.iter();
        for (_, row) in there.filter(|(uid, _)| !self.uids.contains(uid)) {
            for (cell, amount) in sum.iter_mut().zip(&**row) {
                *cell += amount;
            }
        }
        sum
    }

    pub(crate) fn may_go(&self, bundle: &Bundle, claimant: Claimant<'_>) -> bool {
        let (from, to) = (bundle.charge, claimant.charge);
        if from.class == Class::Opportunistic {
            return to.class == Class::Guaranteed;
        }
        let rights = claimant.rights;
        if from.quota == to.quota {
            let is_small = bundle.all_cards() < rights.own_below && bundle.may_go_once_more();
            return bundle.priority < claimant.priority
                || is_small && bundle.priority == claimant.priority;
        }
        let is_spared = bundle.is_wide && !rights.wide || rights.once && !bundle.may_go_once_more();
        if is_spared {
            return false;
        }
        let both = claimant.asks.iter().zip(self.amounts(bundle));
        let both: Vec<u64> = both.map(|(ask, has)| has.min(*ask)).collect();
        let stays = from.stays && !rights.back;
        self.accounts.is_over(from.quota, to.quota, &both)
            && (!stays || self.accounts.stays_over(from.quota, to.quota, &both))
    }

    pub(crate) fn goes(&mut self, bundle: &Bundle) {
        let amounts = self.amounts(bundle);
        self.accounts.discharge(bundle.charge, &amounts);
        let uids = bundle.members.iter().map(|(uid, _)| uid.clone());
        self.uids.extend(uids);
    }
}

/// The order in which bundles go: opportunistic ones first, then surplus, then by priority, then
/// what loses the least work, the newest, and the last by name.
pub(crate) type Rank = (bool, bool, i32, u64, Reverse<Option<Time>>, Reverse<usize>);

/// Adds the bundles of a group.
fn bundles(
    at: usize,
    group: &Group,
    charge: Charge,
    about: &Running<'_>,
    all: &mut Vec<Rc<Bundle>>,
) {
    let each = about.lost_ms(group);
    let all_cards: u64 = group.members().map(|(role, _)| cards(role)).sum();
    let bundle = |members: Vec<(&GangRole, &Member)>, is_whole: bool| {
        let cards: u64 = members.iter().map(|(role, _)| cards(role)).sum();
        let row = |(role, member): &(&GangRole, &Member)| {
            (member.uid.clone(), Arc::clone(about.memo.row(&role.pod)))
        };
        let loss = each.saturating_mul(cards);
        Rc::new(Bundle {
            group: at,
            charge,
            priority: group.priority,
            rank: (
                charge.class == Class::Guaranteed,
                is_whole,
                group.priority,
                loss,
                Reverse(group.started),
                Reverse(at),
            ),
            members: members.iter().map(row).collect(),
            loss,
            cards: about.cards(&members),
            is_wide: all_cards > about.widest,
            reclaims: group.past.reclaims,
            saves: about.saves_every_ms.is_some() || group.past.saves != Saves::Unknown,
        })
    };
    for gang in &group.gangs {
        let placed = gang.roles.iter().map(|role| role.members.len());
        let mut above = placed.sum::<usize>().saturating_sub(gang.min as usize);
        for role in gang.roles.iter().rev() {
            let there = role.members.len();
            let surplus = there.saturating_sub(role.min as usize).min(above);
            above -= surplus;
            // The last one is the first to go.
            let surplus = role.members[there - surplus..].iter().rev();
            all.extend(surplus.map(|member| bundle(vec![(role, member)], false)));
        }
    }
    all.push(bundle(group.members().collect(), true));
}

/// Number of cards of a member.
pub(crate) fn cards(role: &GangRole) -> u64 {
    match role.pod.claim.ask() {
        Ask::Nothing => 0,
        Ask::Parts(parts) => u64::from(parts.count().get()),
        Ask::WholeCards(count) => u64::from(count.get()),
    }
}

/// The victims of these bundles, by group.
pub(crate) fn victims(groups: &[Group], bundles: &[Rc<Bundle>]) -> Vec<QueueVictim> {
    let of = |bundle: &Rc<Bundle>| {
        let group = groups[bundle.group].id.clone();
        let members = bundle.members.clone().into_iter();
        members.map(move |(uid, _)| QueueVictim {
            group: group.clone(),
            uid,
        })
    };
    let all: BTreeSet<QueueVictim> = bundles.iter().flat_map(of).collect();
    all.into_iter().collect()
}

/// Leaves out bundles that a disruption budget guards by themselves.
pub(crate) fn unguarded<'e>(
    row: Vec<Rc<Bundle>>,
    entry: impl Fn(&PodUid) -> Option<&'e Entry>,
    breaks: &dyn Fn(&[&Entry]) -> bool,
) -> Vec<Rc<Bundle>> {
    let free = |bundle: &Rc<Bundle>| {
        let entries = bundle.members.iter().filter_map(|(uid, _)| entry(uid));
        !breaks(&entries.collect::<Vec<_>>())
    };
    row.into_iter().filter(free).collect()
}
