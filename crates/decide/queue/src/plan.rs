//! One tick of the queue: a snapshot in, decisions out.
//!
//! First all groups are counted: the use of each quota, its requests, and so its entitlement
//! (`count`). Then groups are tried, quota by quota as the order says, until none can
//! start any more (`start`): first guaranteed ones, then opportunistic ones. For a group that has
//! waited long room is kept (`keep`). The engine is the same afterwards.

mod asks;
mod by_node;
mod count;
mod keep;
mod lend;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use sublet_model::{Class, Entry, NodeIdx, Time};
use sublet_plan::Engine;
use sublet_plan::stock::NodeRules;

use asks::Asks;

use crate::accounts::{Accounts, Charge};
use crate::memo::PlacesKey;
use crate::place::{Ground, Lack, Places};
use crate::profile::ProfileTerms;
use crate::reclaim::Evictables;
use crate::{
    Group, QueueDecision, QueueHold, QueueMemo, QueueReason, QueueRules, QueueVictim, QuotaTree,
    Slot, TreeTotals,
};

/// State of the cluster, as far as the queue has to know.
pub struct QueueSnapshot<'a> {
    /// Nodes and pods. Its options say which scheduler looks at CPU and memory: for a plan that the
    /// stock scheduler must not refuse, the engine does (`StockRules::Here`).
    pub engine: &'a mut Engine,
    /// The nodes that pods may go on.
    pub nodes: &'a [(NodeIdx, NodeRules)],
    /// The quotas.
    pub tree: &'a QuotaTree,
    /// Amounts to divide among the quotas at the top of each tree.
    pub totals: &'a TreeTotals,
    /// Every group that waits or runs, in the order of their ids. A member that is being evicted is
    /// none any more: its group waits again.
    pub groups: &'a [Group],
    /// Room that the last decision kept, and the group for which it did.
    pub hold: Option<&'a QueueHold>,
    /// Would the eviction of all these pods break a disruption budget?
    pub breaks: &'a dyn Fn(&[&Entry]) -> bool,
    /// Settings of the site.
    pub rules: &'a QueueRules,
    /// Results of earlier ticks: the same memo for each tick.
    pub memo: &'a mut QueueMemo,
}

/// Decides what to do and to say in this state.
#[must_use]
pub fn plan(snapshot: QueueSnapshot<'_>, now: Time) -> Vec<QueueDecision> {
    let QueueSnapshot {
        engine,
        nodes,
        tree,
        totals,
        groups,
        hold,
        breaks,
        rules,
        memo,
    } = snapshot;
    memo.learn(tree, engine, nodes, groups);
    let cards = |(node, _): &(NodeIdx, NodeRules)| engine.ledger().book(*node).cards().len() as u64;
    let widest = nodes.iter().map(cards).max().unwrap_or(0);
    let mut tick = Tick {
        groups,
        rules,
        memo: &*memo,
        breaks,
        now,
        places: Places::new(engine.trial(now), nodes),
        asks: Asks::of_each(groups, memo),
        charges: Vec::with_capacity(groups.len()),
        reasons: vec![None; groups.len()],
        positions: vec![None; groups.len()],
        accounts: Accounts::new(tree, memo.dimensions(), totals),
        evictables: Evictables::default(),
        starts: BTreeMap::new(),
        work: 0,
        touched: BTreeSet::new(),
        no_room: BTreeMap::new(),
        no_reclaim: BTreeSet::new(),
        kept: None,
        room_since: vec![None; groups.len()],
        widest,
        overdue: BTreeSet::new(),
    };
    tick.count();
    tick.run(hold);
    tick.decisions()
}

/// The work of one call.
struct Tick<'a> {
    groups: &'a [Group],
    rules: &'a QueueRules,
    memo: &'a QueueMemo,
    breaks: &'a dyn Fn(&[&Entry]) -> bool,
    now: Time,
    accounts: Accounts<'a>,
    places: Places<'a>,
    asks: Vec<Rc<Asks>>,
    /// The account of each group; none for a group without a quota.
    charges: Vec<Option<Charge>>,
    /// Reason why each group waits; none if none of its members waits, or it starts.
    reasons: Vec<Option<QueueReason>>,
    /// Number of groups of the same quota that come before each group; none if it stands in no
    /// line.
    positions: Vec<Option<u32>>,
    evictables: Evictables,
    /// The members that start, by group.
    starts: BTreeMap<usize, Start>,
    /// Number of groups that have started; one that needs evictions counts for many.
    work: usize,
    /// Groups that start, and groups that lose a member: no other member of these is evicted.
    touched: BTreeSet<usize>,
    /// Members that found no place. They find none until some member is evicted.
    no_room: BTreeMap<(PlacesKey, Ground), Lack>,
    /// Groups for which no eviction helps.
    no_reclaim: BTreeSet<(usize, i32, bool, PlacesKey)>,
    /// Room that is kept, and the group for which it is.
    kept: Option<Kept>,
    /// Since when the minimum of each group's quota has room for it.
    room_since: Vec<Option<Time>>,
    /// The most cards that a node has.
    widest: u64,
    /// Groups within their quota's minimum that had to have a place by now, and have none.
    overdue: BTreeSet<usize>,
}

/// The members of a group that start, and the members that are evicted for them.
#[derive(Default)]
struct Start {
    slots: Vec<Slot>,
    victims: Vec<QueueVictim>,
}

/// Room that is kept.
struct Kept {
    group: usize,
    nodes: Vec<NodeIdx>,
    /// Time when all groups on these nodes have ended, if all of them have an end.
    until: Option<Time>,
}

impl Kept {
    fn hold(self, groups: &[Group]) -> QueueHold {
        QueueHold {
            group: groups[self.group].id.clone(),
            nodes: self.nodes,
            until: self.until,
        }
    }
}

impl Tick<'_> {
    fn terms(&self) -> &'static ProfileTerms {
        self.rules.profile.terms()
    }

    fn run(&mut self, hold: Option<&QueueHold>) {
        let quotas = self.accounts.tree().by_number().len();
        self.evictables = Evictables::of(self.groups, &self.charges, self.memo, quotas);
        let mut lines = self.lines(Class::Guaranteed);
        self.keep_on(hold, &mut lines);
        let lines = self.start_all(&lines, Class::Guaranteed);
        self.keep_for(&lines);
        self.start_surplus(Class::Guaranteed);
        self.lend();
        let lines = self.lines(Class::Opportunistic);
        self.start_all(&lines, Class::Opportunistic);
        self.start_surplus(Class::Opportunistic);
    }

    fn decisions(mut self) -> Vec<QueueDecision> {
        self.move_up();
        let mut decisions = Vec::new();
        for (at, Start { slots, victims }) in self.starts {
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
        let hold = self.kept.map(|kept| kept.hold(self.groups));
        decisions.extend(hold.map(QueueDecision::Hold));
        let explained = self.reasons.into_iter().enumerate();
        decisions.extend(explained.filter_map(|(at, reason)| {
            Some(QueueDecision::Explain {
                group: self.groups[at].id.clone(),
                position: self.positions[at].unwrap_or(0),
                reason: reason?,
                room_since: self.room_since[at],
            })
        }));
        decisions
    }

    /// A group that starts leaves its line, so the groups behind it move up.
    fn move_up(&mut self) {
        let groups = self.groups;
        let line = |at: usize| (groups[at].class, &groups[at].quota);
        let mut gone: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        for &at in self.starts.keys() {
            gone.entry(line(at)).or_default().extend(self.positions[at]);
        }
        gone.values_mut().for_each(|all| all.sort_unstable());
        for (at, position) in self.positions.iter_mut().enumerate() {
            if let (Some(position), Some(gone)) = (position, gone.get(&line(at))) {
                let ahead = gone.partition_point(|other| *other < *position);
                *position -= u32::try_from(ahead).unwrap_or(0);
            }
        }
    }
}

#[cfg(test)]
mod tests;
