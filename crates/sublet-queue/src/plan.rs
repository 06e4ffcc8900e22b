//! One tick of the queue: a snapshot in, decisions out.
//!
//! First everybody is counted: what each quota uses, what is asked of it, and so what it is
//! entitled to. Then groups are tried, quota by quota as the order says, until none can start any
//! more: first guaranteed ones, then opportunistic ones. The engine is the same afterwards.

use std::collections::{BTreeMap, VecDeque};

use sublet_model::{Class, Entry, NodeIdx, Time};
use sublet_plan::Engine;
use sublet_plan::stock::NodeRules;

use crate::accounts::{Accounts, Charge};
use crate::need::{Wanted, minimum, missing, together};
use crate::order::{Lines, Waiting, before, next};
use crate::place::Places;
use crate::{
    Amounts, GangRole, Group, QueueDecision, QueueHold, QueueMemo, QueueReason, QueueRules,
    QueueVictim, QuotaTree, Slot,
};

/// What is, as far as the queue has to know.
pub struct QueueSnapshot<'a> {
    /// Nodes and pods. Its options say who looks at CPU and memory: for a plan that the stock
    /// scheduler must not refuse, the engine does (`StockRules::Here`).
    pub engine: &'a mut Engine,
    /// The nodes that pods may go on.
    pub nodes: &'a [(NodeIdx, NodeRules)],
    /// The quotas.
    pub tree: &'a QuotaTree,
    /// What there is, for the quotas at the top.
    pub total: &'a Amounts,
    /// Every group that waits or runs, in the order of their ids. A member that is being evicted is
    /// none any more: its group waits again.
    pub groups: &'a [Group],
    /// What the last decision kept, and for whom.
    pub hold: Option<&'a QueueHold>,
    /// Would the eviction of all these pods break a disruption budget?
    pub breaks: &'a dyn Fn(&[&Entry]) -> bool,
    /// What the site has set.
    pub rules: &'a QueueRules,
    /// What earlier ticks have worked out: the same one for each of them.
    pub memo: &'a mut QueueMemo,
}

/// What to do and to say, given what is.
#[must_use]
pub fn plan(snapshot: QueueSnapshot<'_>, now: Time) -> Vec<QueueDecision> {
    let QueueSnapshot {
        engine,
        nodes,
        tree,
        total,
        groups,
        hold: _,
        breaks: _,
        rules,
        memo,
    } = snapshot;
    memo.learn(tree, groups);
    let memo = &*memo;
    let mut tick = Tick {
        groups,
        rules,
        memo,
        now,
        places: Places::new(engine.trial(now), nodes),
        charges: Vec::with_capacity(groups.len()),
        reasons: vec![None; groups.len()],
        accounts: Accounts::new(tree, memo.dimensions(), total),
        starts: BTreeMap::new(),
    };
    tick.count();
    for class in [Class::Guaranteed, Class::Opportunistic] {
        let mut lines = tick.lines(class);
        tick.start_all(&mut lines, class);
        tick.start_surplus(class);
    }
    tick.decisions()
}

/// The work of one call.
struct Tick<'a> {
    groups: &'a [Group],
    rules: &'a QueueRules,
    memo: &'a QueueMemo,
    now: Time,
    accounts: Accounts<'a>,
    places: Places<'a>,
    /// By group, where it is charged; none where it has no quota.
    charges: Vec<Option<Charge>>,
    /// By group, why it waits; none where nobody of it waits, or it starts.
    reasons: Vec<Option<QueueReason>>,
    /// What starts, by group.
    starts: BTreeMap<usize, Start>,
}

#[derive(Default)]
struct Start {
    slots: Vec<Slot>,
    victims: Vec<QueueVictim>,
}

impl Tick<'_> {
    /// Charges what everybody has, and works out what each quota is entitled to.
    fn count(&mut self) {
        let cells = self.accounts.tree().by_number().len() * self.memo.dimensions().len();
        let mut requests = vec![0; cells];
        let mut counted = Vec::new();
        for (at, group) in self.groups.iter().enumerate() {
            let charge = self.charge_of(group);
            match charge {
                Ok(charge) => {
                    let used = self.row(group, |role| role.members.len() as u64);
                    self.accounts.charge(charge, &used);
                    let least = self.least(group);
                    if let Err(why) = self.accounts.check_empty(charge, &least) {
                        self.reasons[at] = Some(QueueReason::Infeasible(why));
                    } else if let Err(incomplete) = together(group) {
                        self.reasons[at] = Some(incomplete);
                        add(&mut requests, charge, &used);
                    } else if charge.class == Class::Guaranteed {
                        let all = self.row(group, |role| u64::from(role.replicas));
                        add(&mut requests, charge, &all);
                        counted.push((at, charge, all, least));
                    }
                    self.charges.push(Some(charge));
                }
                Err(reason) => {
                    self.reasons[at] = Some(reason);
                    self.charges.push(None);
                }
            }
        }
        self.accounts.entitle(&requests, self.rules.scaling);
        self.leave_out(&mut requests, counted);
    }

    /// Who asks more than its quota is entitled to has no part in what is divided: it could not use
    /// it. The youngest is left out first, and then the rest may have enough.
    fn leave_out(&mut self, requests: &mut [u64], mut counted: Vec<Counted>) {
        loop {
            let exceeding = |(_, charge, _, least): &&Counted| {
                self.accounts.exceeds(charge.quota, least).is_some()
            };
            counted = counted.iter().filter(exceeding).cloned().collect();
            let youngest = (0..counted.len()).max_by_key(|&at| {
                let group = &self.groups[counted[at].0];
                (group.since, &group.id)
            });
            let Some(youngest) = youngest else { return };
            let (at, charge, all, least) = counted.swap_remove(youngest);
            let short = self.accounts.exceeds(charge.quota, &least);
            let row = charge.quota * all.len();
            for (cell, amount) in requests[row..].iter_mut().zip(&all) {
                *cell -= amount;
            }
            self.reasons[at] = short.map(QueueReason::ExceedsEntitlement);
            self.accounts.entitle(requests, self.rules.scaling);
        }
    }

    fn charge_of(&self, group: &Group) -> Result<Charge, QueueReason> {
        let tree = self.accounts.tree();
        let quota = group.quota.clone();
        match tree.number(&group.quota) {
            None => Err(QueueReason::NoQuota { quota }),
            Some(at) if !tree.below(Some(at)).is_empty() => Err(QueueReason::ParentQuota { quota }),
            Some(at) => Ok(Charge::of(group, at)),
        }
    }

    /// What so many members of each role ask together, by dimension.
    fn row(&self, group: &Group, count: impl Fn(&GangRole) -> u64) -> Vec<u64> {
        self.sum(group.roles().map(|role| (role, count(role))))
    }

    fn least(&self, group: &Group) -> Vec<u64> {
        self.sum(minimum(group))
    }

    fn of_wanted(&self, wanted: &[Wanted<'_>]) -> Vec<u64> {
        self.sum(wanted.iter().map(|one| (one.role, one.count())))
    }

    fn sum<'r>(&self, roles: impl Iterator<Item = (&'r GangRole, u64)>) -> Vec<u64> {
        let mut sum = vec![0u64; self.memo.dimensions().len()];
        for (role, count) in roles.filter(|(_, count)| *count > 0) {
            for (cell, amount) in sum.iter_mut().zip(self.memo.row(&role.pod)) {
                *cell = cell.saturating_add(amount.saturating_mul(count));
            }
        }
        sum
    }

    /// The groups of that class that may be tried, by quota.
    fn lines(&mut self, class: Class) -> Lines {
        let mut all: Vec<Vec<Waiting>> = vec![Vec::new(); self.accounts.tree().by_number().len()];
        for (at, group) in self.groups.iter().enumerate() {
            let Some(charge) = self.charges[at].filter(|_| group.class == class) else {
                continue;
            };
            let Ok(wanted) = together(group) else {
                continue;
            };
            if wanted.is_empty() || self.reasons[at].is_some() {
                continue;
            }
            let filters = self.rules.filters.iter();
            if let Some(reason) = filters
                .map(|filter| filter.check(group, self.now))
                .find_map(Result::err)
            {
                self.reasons[at] = Some(reason);
                continue;
            }
            all[charge.quota].push(Waiting {
                group: at,
                score: self.rules.score.score(group, self.now),
                since: group.since,
                asks: self.of_wanted(&wanted),
            });
        }
        let reasons = &mut self.reasons;
        let line = |mut line: Vec<Waiting>| {
            line.sort_by(before);
            for (ahead, behind) in (0..).zip(&line).skip(self.rules.lookahead) {
                reasons[behind.group] = Some(QueueReason::Behind { ahead });
            }
            line.truncate(self.rules.lookahead);
            VecDeque::from(line)
        };
        all.into_iter().map(line).collect()
    }

    /// Starts whoever can start.
    fn start_all(&mut self, lines: &mut Lines, class: Class) {
        while let Some(quota) = next(&self.accounts, lines, class) {
            let Some(first) = lines[quota].pop_front() else {
                return;
            };
            self.reasons[first.group] = self.start(&first).err();
        }
    }

    fn start(&mut self, waiting: &Waiting) -> Result<(), QueueReason> {
        let group = &self.groups[waiting.group];
        let Some(charge) = self.charges[waiting.group] else {
            return Ok(());
        };
        self.accounts.check(charge, &waiting.asks, true)?;
        let slots = self.places.take(group, &together(group)?)?;
        self.accounts.charge(charge, &waiting.asks);
        self.starts.entry(waiting.group).or_default().slots = slots;
        Ok(())
    }

    /// Starts members beyond the minima one by one, wherever there is room for them.
    fn start_surplus(&mut self, class: Class) {
        for (at, group) in self.groups.iter().enumerate() {
            let Some(charge) = self.charges[at].filter(|_| group.class == class) else {
                continue;
            };
            if self.reasons[at].is_some() {
                continue;
            }
            let starting = self.starts.get(&at).map_or(&[][..], |start| &start.slots);
            let starting: Vec<_> = starting
                .iter()
                .map(|slot| (slot.role.clone(), slot.index))
                .collect();
            for mut wanted in missing(group) {
                wanted.indices.retain(|index| {
                    let is = |(role, other): &(_, _)| *role == wanted.role.name && other == index;
                    !starting.iter().any(is)
                });
                for index in wanted.indices {
                    let one = [Wanted {
                        role: wanted.role,
                        indices: vec![index],
                    }];
                    let asks = self.of_wanted(&one);
                    let starts = self.accounts.check(charge, &asks, true);
                    let slots = starts.and_then(|()| self.places.take(group, &one));
                    let Ok(slots) = slots else { break };
                    self.accounts.charge(charge, &asks);
                    self.starts.entry(at).or_default().slots.extend(slots);
                }
            }
        }
    }

    fn decisions(self) -> Vec<QueueDecision> {
        let mut decisions = Vec::new();
        for (at, start) in self.starts {
            let Start { slots, victims } = start;
            let group = self.groups[at].id.clone();
            decisions.push(match victims.is_empty() {
                true => QueueDecision::Admit { group, slots },
                false => QueueDecision::Evict {
                    group,
                    slots,
                    victims,
                },
            });
        }
        let explained = self.reasons.into_iter().enumerate();
        decisions.extend(explained.filter_map(|(at, reason)| {
            Some(QueueDecision::Explain {
                group: self.groups[at].id.clone(),
                position: 0,
                reason: reason?,
            })
        }));
        decisions
    }
}

/// A group, where it is charged, what all of it asks and what it needs at least.
type Counted = (usize, Charge, Vec<u64>, Vec<u64>);

fn add(requests: &mut [u64], to: Charge, amounts: &[u64]) {
    if to.class == Class::Guaranteed {
        let row = to.quota * amounts.len();
        for (cell, amount) in requests[row..].iter_mut().zip(amounts) {
            *cell = cell.saturating_add(*amount);
        }
    }
}

#[cfg(test)]
mod tests;
