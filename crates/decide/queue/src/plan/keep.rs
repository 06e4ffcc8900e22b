//! Keeps room for one group that has waited long, so that its wait is bounded.
//!
//! For a group that has waited for `reservation_after_ms` and is the first such by score and age,
//! the nodes are held on which there is least left to wait for. That is what ends first, where the
//! ends are known. Otherwise, with limits of what may be lost, it is the least that those have left,
//! in sum, that may not be asked to leave: by what they say, and else as long again as they have run,
//! for what has run for long runs on for long (Harchol-Balter and Downey, "Exploiting process lifetime
//! distributions", 1997). No group starts there that could
//! still be there when the others have ended. The rest of its quota is kept for it, too. There is
//! one such group at a time: no two wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use sublet_model::{NodeIdx, PodUid, Time};

use super::start::{Evicts, Leave};
use super::{Kept, Tick};
use crate::least::least;
use crate::line::{Line, Turn};
use crate::need::together;
use crate::place::Ground;
use crate::reclaim::{Claimant, Going};
use crate::{Group, QueueHold, QueueReason};

/// Milliseconds that each member has left at least, so that few young ones are less than many.
const YOUNG_MS: u64 = 60_000;

/// Milliseconds that a running group has left.
fn left_ms(group: &Group, now: Time) -> u64 {
    let began = group.started.unwrap_or(now);
    let age = now.ms().saturating_sub(began.ms());
    let says = group.runs_ms.and_then(|runs| runs.checked_sub(age));
    says.unwrap_or(age).saturating_add(YOUNG_MS)
}

impl Tick<'_> {
    /// Starts the group for which room was kept, or keeps on.
    pub(super) fn keep_on(&mut self, hold: Option<&QueueHold>, lines: &mut [Vec<Turn>]) {
        let Some(hold) = hold else { return };
        let groups = self.groups;
        let Ok(at) = groups.binary_search_by(|group| group.id.cmp(&hold.group)) else {
            return;
        };
        let Some(charge) = self.charges[at] else {
            return;
        };
        let line = &mut lines[charge.quota];
        let Some(place) = line.iter().position(|turn| turn.group == at) else {
            return;
        };
        line.remove(place);
        match self.start(at, Leave::NOTHING) {
            Ok(Evicts(_)) => {}
            Err(reason) => {
                self.reasons[at] = Some(reason);
                self.keep(at, &hold.nodes);
            }
        }
    }

    /// If nothing is kept: keeps room for the first of those that had to have a place by now, or that
    /// have waited long. The former do not wait for the latter.
    pub(super) fn keep_for(&mut self, lines: &[Line]) {
        let kept_for = self.kept.as_ref().map(|kept| kept.group);
        let is_due = |group| self.overdue.contains(&group);
        if kept_for.is_some_and(|group| self.overdue.is_empty() || is_due(group)) {
            return;
        }
        let after = self.rules.reservation_after_ms;
        let waits_long = |(first, reason): &(Turn, &QueueReason)| {
            let waits_for_others = matches!(
                reason,
                QueueReason::NoRoom { .. } | QueueReason::OverQuota { .. } | QueueReason::Guarded
            );
            let since = self.groups[first.group].since;
            waits_for_others && since.plus_ms(after) <= self.now
        };
        let refused = || {
            let queues = lines.iter().flat_map(Line::queues);
            queues.filter_map(|(mut turns, why)| Some((turns.next()?, why?)))
        };
        // By their true age: who says to be short is not kept room for before others.
        let order = |(first, _): &(Turn, &QueueReason)| {
            let since = self.groups[first.group].since;
            (first.score, since, first.group)
        };
        let overdue = refused().filter(|(first, _)| is_due(first.group));
        let first = overdue.min_by_key(order);
        if kept_for.is_some() && first.is_none() {
            return;
        }
        let waits_long = || refused().filter(waits_long).min_by_key(order);
        if let Some((first, _)) = first.or_else(waits_long) {
            self.keep(first.group, &[]);
        }
    }

    /// Keeps these nodes for a group, or better ones if they are not enough.
    fn keep(&mut self, at: usize, nodes: &[NodeIdx]) {
        let Some(charge) = self.charges[at] else {
            return;
        };
        // While its quota is in the way, nodes would stand idle.
        let in_quota = self
            .accounts
            .check(charge, &self.asks[at].together, false)
            .is_ok();
        let chosen = match in_quota {
            true => self.nodes_for(at, nodes),
            false if !self.terms().holds_quota => None,
            false => Some((Vec::new(), None)),
        };
        let Some((nodes, until)) = chosen else { return };
        if self.terms().holds_quota {
            self.accounts.keep(charge.quota, &self.asks[at].together);
        }
        self.places.hold(&nodes);
        self.no_room.clear();
        self.kept = Some(Kept {
            group: at,
            nodes,
            until,
        });
    }

    /// The nodes with the least left to wait for on which the group has a place once all groups'
    /// members there have ended, and when that is.
    fn nodes_for(&mut self, at: usize, before: &[NodeIdx]) -> Option<(Vec<NodeIdx>, Option<Time>)> {
        let group = &self.groups[at];
        let wanted = together(group).ok()?;
        let busy = self.busy();
        let gone = |nodes: &[NodeIdx]| -> BTreeSet<PodUid> {
            let there = nodes.iter().filter_map(|node| busy.get(node));
            let uids = there.flat_map(|node| node.uids.iter().map(|(uid, _)| uid.clone()));
            uids.collect()
        };
        let has_room = |tick: &mut Self, nodes: &[NodeIdx]| {
            let places = &mut tick.places;
            places.has_room_without(&gone(nodes), group, &wanted, Ground::Held)
        };
        let nodes = match !before.is_empty() && has_room(self, before) {
            true => before.to_vec(),
            false => {
                let may_go = self.may_go(at);
                let limits = self.terms().limits;
                let mut all: Vec<NodeIdx> = busy.keys().copied().collect();
                all.sort_by_cached_key(|node| {
                    let there = &busy[node];
                    let stay = there.uids.iter().filter(|(uid, _)| !may_go.contains(uid));
                    let all = stay.map(|(_, left)| *left);
                    let left = match limits {
                        Some(_) => all.fold(0, u64::saturating_add),
                        None => 0,
                    };
                    (there.ends, left, there.uids.len(), *node)
                });
                least(&all, |nodes| has_room(self, nodes))?
            }
        };
        let ends = nodes.iter().filter_map(|node| busy.get(node));
        let last = ends
            .map(|node| node.ends)
            .max()
            .unwrap_or(Some(self.now).into());
        Some((nodes, last.0))
    }

    /// Members that may go for a group, on each node as if nobody went elsewhere.
    fn may_go(&mut self, at: usize) -> BTreeSet<PodUid> {
        let (Some(limits), Some(charge)) = (self.terms().limits, self.charges[at]) else {
            return BTreeSet::new();
        };
        let asks = Rc::clone(&self.asks[at].together);
        let claimant = Claimant {
            charge,
            priority: self.groups[at].priority,
            asks: &asks,
            rights: self.rights(at, charge, limits),
            on_loan: false,
        };
        let mut by_node: BTreeMap<NodeIdx, Going<'_>> = BTreeMap::new();
        for bundle in self.offers(claimant) {
            for (node, _) in &bundle.cards {
                let going = by_node.entry(*node);
                let going = going.or_insert_with(|| Going::from(&self.accounts));
                if going.may_go(&bundle, claimant) {
                    going.goes(&bundle);
                }
            }
        }
        by_node.into_values().flat_map(|going| going.uids).collect()
    }

    /// The nodes with members of groups.
    fn busy(&self) -> BTreeMap<NodeIdx, Busy> {
        let ledger = self.places.ledger();
        let mut busy: BTreeMap<NodeIdx, Busy> = BTreeMap::new();
        for (at, group) in self.groups.iter().enumerate() {
            let ends = End(group.ends);
            let left = left_ms(group, self.now);
            let bound = group.members().map(|(_, member)| member.uid.clone());
            let slots = self.starts.get(&at).map_or(&[][..], |start| &start.slots);
            let starting = slots
                .iter()
                .filter_map(|slot| group.slot_uid(&slot.role, slot.index).ok());
            for uid in bound.chain(starting) {
                let entry = ledger.entry(&uid);
                let node = entry.and_then(|entry| ledger.find(entry.node.as_str()));
                if let Some(node) = node {
                    let there = busy.entry(node).or_default();
                    there.ends = there.ends.max(ends);
                    there.uids.push((uid, left));
                }
            }
        }
        busy
    }

    /// Reason of the wait for a group that must leave the kept room alone.
    pub(super) fn held_for(&self) -> Option<QueueReason> {
        let kept = self.kept.as_ref()?;
        Some(QueueReason::HeldFor {
            group: self.groups[kept.group].id.clone(),
            until: kept.until,
        })
    }
}

/// A node with members of groups on it, and when the last of them has ended.
#[derive(Default)]
struct Busy {
    ends: End,
    /// Each with the milliseconds that it has left.
    uids: Vec<(PodUid, u64)>,
}

/// Time when something ends. Something without such a time ends after all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct End(Option<Time>);

impl Default for End {
    fn default() -> End {
        End(Some(Time::default()))
    }
}

impl From<Option<Time>> for End {
    fn from(at: Option<Time>) -> End {
        End(at)
    }
}

impl Ord for End {
    fn cmp(&self, other: &End) -> std::cmp::Ordering {
        (self.0.is_none(), self.0).cmp(&(other.0.is_none(), other.0))
    }
}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &End) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
