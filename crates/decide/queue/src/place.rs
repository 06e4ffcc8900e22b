//! Finds a place for all members that start together, down to the cards, or for none of them.
//!
//! The engine that would place the pods answers, in a trial. A node must pass the rules of the pod
//! too: selectors, affinity, taints. Whether CPU and memory are looked at, the engine's options
//! say.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use sublet_model::{Ask, Entry, Ledger, NodeIdx, NodeName, PodKey, PodUid, Standing};
use sublet_plan::stock::{NodeRules, PodRules};
use sublet_plan::{Candidacy, Trial};

use crate::need::{Wanted, total};
use crate::{GangRole, Group, Infeasible, MemberShape, QueueReason, Slot};

/// Nodes on which members may be placed, and the members that have been placed.
pub(crate) struct Places<'a> {
    trial: Trial<'a>,
    nodes: &'a [(NodeIdx, NodeRules)],
    /// Nodes that are kept for the group that has waited long.
    held: BTreeSet<NodeIdx>,
    /// For rules that were asked about before, the nodes that pass them, without those that are
    /// held and with them.
    open: Vec<(PodRules, [Rc<[NodeIdx]>; 2])>,
}

/// Reason why members found no place together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Lack {
    /// So many found one. The next is of the role at that position among those that are wanted.
    Room { placed: usize, next: usize },
    /// A role of this name can have none.
    Name(Arc<str>),
}

impl Lack {
    /// The same, if all nodes are empty.
    pub(crate) fn on_empty_nodes(self, wanted: &[Wanted<'_>]) -> Infeasible {
        match self {
            Lack::Room { placed, next } => Infeasible::Nodes {
                need: total(wanted),
                placed: u32::try_from(placed).unwrap_or(u32::MAX),
                role: wanted[next].role.name.clone(),
            },
            Lack::Name(role) => Infeasible::Name(role),
        }
    }

    /// The same for people.
    pub(crate) fn reason(self, wanted: &[Wanted<'_>]) -> QueueReason {
        match self {
            Lack::Room { placed, next } => QueueReason::NoRoom {
                need: total(wanted),
                placed: u32::try_from(placed).unwrap_or(u32::MAX),
                role: wanted[next].role.name.clone(),
            },
            Lack::Name(role) => QueueReason::Infeasible(Infeasible::Name(role)),
        }
    }
}

/// May members go on nodes that are held?
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ground {
    /// They may not.
    Free,
    /// They may.
    Held,
}

impl<'a> Places<'a> {
    pub(crate) fn new(trial: Trial<'a>, nodes: &'a [(NodeIdx, NodeRules)]) -> Places<'a> {
        Places {
            trial,
            nodes,
            held: BTreeSet::new(),
            open: Vec::new(),
        }
    }

    /// Pods as they are now.
    pub(crate) fn ledger(&self) -> &Ledger {
        self.trial.engine().ledger()
    }

    /// Holds these nodes and no others.
    pub(crate) fn hold(&mut self, nodes: &[NodeIdx]) {
        self.held = nodes.iter().copied().collect();
        self.open.clear();
    }

    /// Takes a place for each of these members, or for none.
    pub(crate) fn take(
        &mut self,
        group: &Group,
        wanted: &[Wanted<'_>],
        ground: Ground,
    ) -> Result<Vec<Slot>, Lack> {
        let parts = self.parts(wanted, ground);
        self.trial.step(|trial| take(trial, group, wanted, &parts))
    }

    /// Takes places as if these pods had gone, and lets them go if it succeeds.
    pub(crate) fn take_without(
        &mut self,
        gone: &BTreeSet<PodUid>,
        group: &Group,
        wanted: &[Wanted<'_>],
        ground: Ground,
    ) -> Result<Vec<Slot>, Lack> {
        let parts = self.parts(wanted, ground);
        self.trial.step(|trial| {
            evict(trial, gone);
            take(trial, group, wanted, &parts)
        })
    }

    /// Would there be a place if these pods had gone?
    pub(crate) fn has_room_without(
        &mut self,
        gone: &BTreeSet<PodUid>,
        group: &Group,
        wanted: &[Wanted<'_>],
        ground: Ground,
    ) -> bool {
        let parts = self.parts(wanted, ground);
        let undone = self.trial.step(|trial| {
            evict(trial, gone);
            Err::<(), bool>(take(trial, group, wanted, &parts).is_ok())
        });
        undone.is_err_and(|has_room| has_room)
    }

    /// Searches places for these members with others gone, and undoes it all.
    pub(crate) fn search<T>(
        &mut self,
        group: &Group,
        wanted: &[Wanted<'_>],
        ground: Ground,
        search: impl FnOnce(&mut Search<'_, '_>) -> T,
    ) -> T {
        let opens = self.parts(wanted, ground);
        let undone: Result<(), T> = self.trial.step(|trial| {
            Err(search(&mut Search {
                trial,
                group,
                wanted,
                opens: &opens,
            }))
        });
        match undone {
            Err(found) => found,
            Ok(()) => unreachable!("it fails in any case"),
        }
    }

    /// The nodes open to each of these.
    fn parts(&mut self, wanted: &[Wanted<'_>], ground: Ground) -> Vec<Rc<[NodeIdx]>> {
        let all = wanted.iter();
        all.map(|one| self.open_to(&one.role.pod, ground)).collect()
    }

    /// The nodes that such a member may go on by its rules.
    fn open_to(&mut self, shape: &MemberShape, ground: Ground) -> Rc<[NodeIdx]> {
        let of = |open: &[Rc<[NodeIdx]>; 2]| Rc::clone(&open[usize::from(ground == Ground::Held)]);
        let known = self.open.iter().find(|(rules, _)| *rules == shape.rules);
        if let Some((_, open)) = known {
            return of(open);
        }
        let passes = |(_, node): &&(NodeIdx, NodeRules)| shape.rules.check(node).is_ok();
        let passing = self.nodes.iter().filter(passes).map(|(idx, _)| *idx);
        let all: Rc<[NodeIdx]> = passing.collect();
        let free = all.iter().filter(|node| !self.held.contains(node));
        let open = [free.copied().collect(), all];
        let found = of(&open);
        self.open.push((shape.rules.clone(), open));
        found
    }
}

/// Members that are placed one by one, each where the caller says.
pub(crate) struct Search<'s, 't> {
    trial: &'s mut Trial<'t>,
    group: &'s Group,
    wanted: &'s [Wanted<'s>],
    opens: &'s [Rc<[NodeIdx]>],
}

impl Search<'_, '_> {
    /// The members, the largest first: the position of each role among those that are wanted, and
    /// the member's number.
    pub(crate) fn members(&self) -> Vec<(usize, u32)> {
        let mut order: Vec<usize> = (0..self.wanted.len()).collect();
        order.sort_by_cached_key(|&at| std::cmp::Reverse(size(self.wanted[at].role)));
        let of = |at: usize| {
            self.wanted[at]
                .indices
                .iter()
                .map(move |index| (at, *index))
        };
        order.into_iter().flat_map(of).collect()
    }

    /// Number of whole cards that a member needs; none for parts of cards.
    pub(crate) fn whole_cards(&self, (at, _): (usize, u32)) -> u64 {
        match self.wanted[at].role.pod.claim.ask() {
            Ask::WholeCards(count) => count.get().into(),
            Ask::Nothing | Ask::Parts(_) => 0,
        }
    }

    /// Is the node open to a member?
    pub(crate) fn is_open(&self, (at, _): (usize, u32), node: NodeIdx) -> bool {
        self.opens[at].contains(&node)
    }

    /// Number of idle cards of a node.
    pub(crate) fn idle(&self, node: NodeIdx) -> u64 {
        let ledger = self.trial.engine().ledger();
        ledger.outline(node).idle().get().into()
    }

    pub(crate) fn evict<'u>(&mut self, gone: impl Iterator<Item = &'u PodUid>) {
        gone.for_each(|uid| {
            let _entry = self.trial.evict(uid);
        });
    }

    /// Places a member on any node that is open to it.
    pub(crate) fn place(&mut self, member: (usize, u32)) -> bool {
        place_on(
            self.trial,
            self.group,
            self.wanted,
            member,
            &self.opens[member.0],
        )
    }

    /// Places a member on a node.
    pub(crate) fn place_on(&mut self, member: (usize, u32), node: NodeIdx) -> bool {
        place_on(self.trial, self.group, self.wanted, member, &[node])
    }

    /// Would the member fit on a node if these had gone?
    pub(crate) fn fits<'u>(
        &mut self,
        member: (usize, u32),
        node: NodeIdx,
        gone: impl Iterator<Item = &'u PodUid>,
    ) -> bool {
        let (group, wanted) = (self.group, self.wanted);
        let undone: Result<(), bool> = self.trial.step(|trial| {
            for uid in gone {
                let _entry = trial.evict(uid);
            }
            Err(place_on(trial, group, wanted, member, &[node]))
        });
        undone.is_err_and(|fits| fits)
    }
}

fn place_on(
    trial: &mut Trial<'_>,
    group: &Group,
    wanted: &[Wanted<'_>],
    (at, index): (usize, u32),
    nodes: &[NodeIdx],
) -> bool {
    let placed = place(trial, (group, wanted[at].role, index), nodes);
    placed.is_ok_and(|slot| slot.is_some())
}

fn evict(trial: &mut Trial<'_>, gone: &BTreeSet<PodUid>) {
    for uid in gone {
        // Who has gone already is not there.
        let _entry = trial.evict(uid);
    }
}

/// Takes a place for each of these members; some may have one if it fails.
fn take(
    trial: &mut Trial<'_>,
    group: &Group,
    wanted: &[Wanted<'_>],
    opens: &[Rc<[NodeIdx]>],
) -> Result<Vec<Slot>, Lack> {
    // The largest first: what is small fits beside it.
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_cached_key(|&at| std::cmp::Reverse(size(wanted[at].role)));
    let mut slots = Vec::new();
    for at in order {
        let Wanted { role, indices } = &wanted[at];
        for &index in indices {
            let found = place(trial, (group, role, index), &opens[at])?;
            slots.push(found.ok_or(Lack::Room {
                placed: slots.len(),
                next: at,
            })?);
        }
    }
    Ok(slots)
}

/// Takes the best place for a member, if there is one.
fn place(
    trial: &mut Trial<'_>,
    (group, role, index): (&Group, &GangRole, u32),
    open: &[NodeIdx],
) -> Result<Option<Slot>, Lack> {
    let uid = group.slot_uid(&role.name, index);
    let uid = uid.map_err(|_| Lack::Name(role.name.clone()))?;
    // Nobody is told of it by this name.
    let pod = PodKey::new("slot", "slot").expect("a name");
    let Some(anywhere) = open.first() else {
        return Ok(None);
    };
    let node: NodeName = trial.engine().ledger().book(*anywhere).name().clone();
    let entry = Entry {
        pod,
        uid: uid.clone(),
        node,
        claim: role.pod.claim.clone(),
        allocation: None,
        standing: Standing::Reserved,
        // Members of a plan start one after another; no other has to wait for this one.
        assigned: true,
        priority: group.priority,
    };
    let candidacy = Candidacy { entry, nodes: open };
    if trial.place(&[candidacy]).is_err() {
        return Ok(None);
    }
    let entry = trial.engine().ledger().entry(&uid);
    let slot = entry.and_then(|entry| {
        Some(Slot {
            role: role.name.clone(),
            index,
            node: entry.node.clone(),
            allocation: entry.allocation.clone()?,
            pod: None,
        })
    });
    Ok(slot)
}

/// Rough size of a member on a node.
fn size(role: &GangRole) -> (u64, u64) {
    let claim = &role.pod.claim;
    let cards = match claim.ask() {
        Ask::Nothing => 0,
        Ask::Parts(parts) => parts.memory().get(),
        // More than any part of as many cards.
        Ask::WholeCards(count) => u64::from(count.get()) << 32,
    };
    (cards, claim.host().cpu.get())
}
