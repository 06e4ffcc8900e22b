//! Finds a place for all members that start together, down to the cards, or for none of them.
//!
//! The engine that would place the pods answers, in a trial. A node must pass the rules of the pod
//! too: selectors, affinity, taints. Whether CPU and memory are looked at, the engine's options
//! say.

use std::rc::Rc;

use sublet_model::{Ask, Entry, NodeIdx, NodeName, PodKey, Standing};
use sublet_plan::stock::{NodeRules, PodRules};
use sublet_plan::{Candidacy, Trial};

use crate::need::{Wanted, total};
use crate::{GangRole, Group, Infeasible, MemberShape, QueueReason, Slot};

/// Where members may be placed, and those that have been.
pub(crate) struct Places<'a> {
    trial: Trial<'a>,
    nodes: &'a [(NodeIdx, NodeRules)],
    /// For rules that were asked about before, the nodes that pass them.
    open: Vec<(PodRules, Rc<[NodeIdx]>)>,
}

impl<'a> Places<'a> {
    pub(crate) fn new(trial: Trial<'a>, nodes: &'a [(NodeIdx, NodeRules)]) -> Places<'a> {
        Places {
            trial,
            nodes,
            open: Vec::new(),
        }
    }

    /// Takes a place for each of these members, or for none.
    pub(crate) fn take(
        &mut self,
        group: &Group,
        wanted: &[Wanted<'_>],
    ) -> Result<Vec<Slot>, QueueReason> {
        let opens: Vec<Rc<[NodeIdx]>> = wanted
            .iter()
            .map(|one| self.open_to(&one.role.pod))
            .collect();
        // The largest first: what is small fits beside it.
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_by_cached_key(|&at| std::cmp::Reverse(size(wanted[at].role)));
        self.trial.step(|trial| {
            let mut slots = Vec::new();
            for at in order {
                let Wanted { role, indices } = &wanted[at];
                for &index in indices {
                    let found = place(trial, (group, role, index), &opens[at])?;
                    slots.push(found.ok_or_else(|| QueueReason::NoRoom {
                        need: total(wanted),
                        placed: u32::try_from(slots.len()).unwrap_or(u32::MAX),
                        role: role.name.clone(),
                    })?);
                }
            }
            Ok(slots)
        })
    }

    /// The nodes that such a member may go on by its rules.
    fn open_to(&mut self, shape: &MemberShape) -> Rc<[NodeIdx]> {
        let known = self.open.iter().find(|(rules, _)| *rules == shape.rules);
        if let Some((_, open)) = known {
            return Rc::clone(open);
        }
        let passes = |(_, node): &&(NodeIdx, NodeRules)| shape.rules.check(node).is_ok();
        let open: Rc<[NodeIdx]> = self
            .nodes
            .iter()
            .filter(passes)
            .map(|(idx, _)| *idx)
            .collect();
        self.open.push((shape.rules.clone(), Rc::clone(&open)));
        open
    }
}

/// Takes the best place for a member, if there is one.
fn place(
    trial: &mut Trial<'_>,
    (group, role, index): (&Group, &GangRole, u32),
    open: &[NodeIdx],
) -> Result<Option<Slot>, QueueReason> {
    let unnamed = || QueueReason::Infeasible(Infeasible::Name(role.name.clone()));
    let uid = group.slot_uid(&role.name, index).map_err(|_| unnamed())?;
    let name = format!("{}-{}-{index}", group.id.object(), role.name);
    let pod = PodKey::new(group.id.namespace(), &name).map_err(|_| unnamed())?;
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
        })
    });
    Ok(slot)
}

/// How much of a node a member takes, roughly.
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
