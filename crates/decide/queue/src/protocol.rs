//! Leads from a decision of the queue to members that run: finds the writes that are due, given the
//! objects that are seen.
//!
//! A pure function of a plan, its pods and its groups. Each write can be made twice, and may be lost:
//! the next look finds the rest. So the next leader goes on, and remembers nothing.
//!
//! The order: the plan is there (its slots count as used from then on); victims are asked to go; when
//! they are gone the group is released; each pod that comes is first given a slot in the plan, and then
//! let go with the slot's name on it; the plan goes when every slot is bound or given up. A write to the
//! plan names the version that was seen, so a leader that was deposed changes no plan that its successor
//! has taken over.
//!
//! A later leadership has the higher epoch. A plan with a higher epoch than the leader's is a
//! successor's, and is left alone; if there is no successor it came from elsewhere, out of the
//! backup of another cluster or by hand, and goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::{NodeName, PodUid, Standing, Time, Victim};

use crate::group::{GangMode, GangRole, Group, GroupId};
use crate::slot::{Slot, SlotKey, SlotMark};

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

/// Plan of places for the members of some groups, as it is seen or as it is to be. `R`: request of
/// equal members, which the protocol carries along unread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueuePlan<R> {
    /// The object's name.
    pub name: Arc<str>,
    /// The object's version, for a write that must find it unchanged; empty for a new one.
    pub version: Arc<str>,
    /// The leadership that wrote or adopted it.
    pub epoch: u64,
    /// Deadline for binding its members. After it, the rest of the plan is given up.
    pub deadline: Time,
    /// The groups; each is whole in one plan.
    pub groups: Vec<PlannedGroup<R>>,
}

/// A group's part of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedGroup<R> {
    /// The group.
    pub id: GroupId,
    /// The quota that it counts for.
    pub quota: Arc<str>,
    /// Requests of its members, role by role.
    pub roles: Vec<R>,
    /// Places of its members.
    pub slots: Vec<Slot>,
    /// Pods that must be gone before any of its members starts.
    pub victims: Vec<Victim>,
}

/// A pod as it is seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSnapshot {
    /// The queue's scheduling gate is on it.
    pub held: bool,
    /// The slot that it says it has.
    pub slot: Option<SlotKey>,
    /// The node that it is bound to. The ledger must have it there.
    pub bound: Option<NodeName>,
    /// It is being deleted.
    pub going: bool,
    /// It has had its place, and has ended.
    pub ended: bool,
}

/// A group as it is seen.
#[derive(Debug, Clone)]
pub struct GroupSnapshot<'a> {
    /// The group.
    pub group: &'a Group,
    /// Its owner makes no pods until it is released.
    pub suspended: bool,
    /// Its pods that are not bound, each with its role, in the order in which they get slots.
    pub waiting: Vec<(Arc<str>, PodUid)>,
    /// The plan that was last given up for it, as noted on the group.
    pub requeued_by: Option<Arc<str>>,
    /// Roles whose members come only when those of the others run: no other member waits for them.
    pub late: &'a BTreeSet<Arc<str>>,
    /// Its owner sets the number of members of each role, whether or not they are there yet. A slot
    /// without such a member is given back.
    pub is_sized: bool,
}

/// Facts that are seen beside the plan.
pub struct PlanSnapshot<'a> {
    /// The leadership that looks.
    pub epoch: u64,
    /// Has it been confirmed since the plan is there? Then one of a higher epoch is nobody's.
    pub is_confirmed: bool,
    /// Time of the look.
    pub now: Time,
    /// Every pod that waits or holds something; one that has ended is none.
    pub pods: &'a BTreeMap<PodUid, PodSnapshot>,
    /// Every group that there is.
    pub groups: &'a BTreeMap<GroupId, GroupSnapshot<'a>>,
    /// Can a node take pods?
    pub is_usable: &'a dyn Fn(&NodeName) -> bool,
    /// Is the group in another plan, which goes before this one?
    pub has_other_plan: &'a dyn Fn(&GroupId) -> bool,
    /// Do the plan's slots fit beside all else? A plan of an earlier leadership may have come late.
    pub fits: bool,
}

/// A write that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanStep<R> {
    /// Put this in place of the plan, if it is still the version that was seen.
    Rewrite(QueuePlan<R>),
    /// Ask a pod to go, by the Eviction API and its UID.
    Evict(PodUid),
    /// Let the group's owner make its pods.
    Release(GroupId),
    /// Take the scheduling gate off the pod and say its slot on it, in one write by UID.
    Free(PodUid, SlotMark),
    /// Say the slot on a pod that has no scheduling gate any more, by a write by UID.
    Steer(PodUid, SlotMark),
    /// Note on the group that this plan was given up for it, and keep its owner from making pods.
    Requeue(GroupId),
    /// Delete the plan, if it is still the version that was seen.
    Delete,
}

/// Fate of a group's part of a plan.
enum Fate<R> {
    /// It is like this from now on.
    Stays(PlannedGroup<R>),
    /// It is on its way back, by these steps; if there are none, others have still to end.
    GoesBack(Vec<PlanStep<R>>),
    /// Nothing of it is needed any more.
    Over,
}

/// The writes that are due for a plan, in any order. If the plan itself must be rewritten, the
/// writes for groups whose part changes wait for that: a slot stands in the plan before it is said
/// on a pod. The others do not wait, or no group of a large plan would start while pods of it still
/// come.
#[must_use]
pub fn next_steps<R: Clone + PartialEq>(
    plan: &QueuePlan<R>,
    snapshot: &PlanSnapshot<'_>,
) -> Vec<PlanStep<R>> {
    if plan.epoch > snapshot.epoch {
        // Somebody else leads, or nobody can.
        let is_nobodys = snapshot.is_confirmed;
        return is_nobodys.then_some(PlanStep::Delete).into_iter().collect();
    }
    if plan.epoch < snapshot.epoch && !snapshot.fits {
        return vec![PlanStep::Delete];
    }
    let mut going_back = Vec::new();
    let mut staying = Vec::new();
    let mut wanted = QueuePlan {
        name: plan.name.clone(),
        version: plan.version.clone(),
        epoch: snapshot.epoch,
        deadline: plan.deadline,
        groups: Vec::new(),
    };
    for part in &plan.groups {
        match fate(plan, part, snapshot) {
            Fate::Stays(left) => {
                if left == *part {
                    staying.push(part);
                }
                wanted.groups.push(left);
            }
            Fate::Over => {}
            Fate::GoesBack(steps) => {
                wanted.groups.push(part.clone());
                going_back.extend(steps);
            }
        }
    }
    if wanted.groups.is_empty() {
        return vec![PlanStep::Delete];
    }
    if plan.epoch != snapshot.epoch {
        // Nothing is done for it before it is ours.
        return vec![PlanStep::Rewrite(wanted)];
    }
    let rewritten = (wanted != *plan).then_some(PlanStep::Rewrite(wanted));
    let steps = staying
        .into_iter()
        .flat_map(|part| steps_of(plan, part, snapshot));
    rewritten
        .into_iter()
        .chain(going_back)
        .chain(steps)
        .collect()
}

/// Members to evict of a group that is in no plan, because a plan bound too few of them: they go, so
/// that no part of a gang stays. It happens if a plan went while a Binding was under way.
#[must_use]
pub fn stranded(seen: &GroupSnapshot<'_>, pods: &BTreeMap<PodUid, PodSnapshot>) -> Vec<PodUid> {
    if !may_roll_back(seen.group) || has_enough(seen) {
        return Vec::new();
    }
    let by_plan = bound_members(seen.group).filter(|uid| {
        let pod = pods.get(*uid);
        pod.is_some_and(|pod| pod.slot.is_some() && !pod.going)
    });
    by_plan.cloned().collect()
}

fn fate<R: Clone>(
    plan: &QueuePlan<R>,
    part: &PlannedGroup<R>,
    snapshot: &PlanSnapshot<'_>,
) -> Fate<R> {
    let Some(seen) = snapshot.groups.get(&part.id) else {
        return Fate::Over;
    };
    if (snapshot.has_other_plan)(&part.id) {
        return Fate::Over;
    }
    let is_whole = !may_roll_back(seen.group) || has_enough(seen);
    let mut left = part.clone();
    let usable = |slot: &Slot| is_bound(slot, snapshot) || (snapshot.is_usable)(&slot.node);
    // What was on a node that is lost is planned anew.
    left.slots.retain(usable);
    if seen.is_sized {
        give_back(&mut left, seen.group, snapshot);
    }
    if left.slots.iter().all(|slot| is_bound(slot, snapshot)) && is_whole {
        return Fate::Over;
    }
    match (snapshot.now >= plan.deadline, is_whole) {
        // Whoever comes later has its place for as long as the others run.
        (true, true) => {
            left.slots
                .retain(|slot| seen.late.contains(&slot.role) && !is_bound(slot, snapshot));
            match left.slots.is_empty() {
                true => Fate::Over,
                false => Fate::Stays(claimed(left, seen, snapshot)),
            }
        }
        (true, false) => roll_back(plan, seen, snapshot),
        // All have come and ended: whoever comes next queues.
        (false, false) if part.slots.iter().all(|slot| has_ended(slot, snapshot)) => Fate::Over,
        // Nobody has come yet, so the whole group may go elsewhere.
        (false, false) if left.slots.len() < part.slots.len() && none_bound(seen) => Fate::Over,
        (false, _) => Fate::Stays(claimed(left, seen, snapshot)),
    }
}

fn may_roll_back(group: &Group) -> bool {
    group.mode == GangMode::Strict && !group.satisfied
}

fn bound_members(group: &Group) -> impl Iterator<Item = &PodUid> {
    let roles = group.gangs.iter().flat_map(|gang| &gang.roles);
    let members = roles.flat_map(|role| &role.members);
    let bound = members.filter(|member| member.standing == Standing::Bound);
    bound.map(|member| &member.uid)
}

fn none_bound(seen: &GroupSnapshot<'_>) -> bool {
    bound_members(seen.group).next().is_none()
}

/// Is the slot's pod bound there?
fn is_bound(slot: &Slot, snapshot: &PlanSnapshot<'_>) -> bool {
    let pod = slot.pod.as_ref().and_then(|uid| snapshot.pods.get(uid));
    pod.is_some_and(|pod| pod.bound.as_ref() == Some(&slot.node))
}

/// Has the slot's pod had its place, and ended?
fn has_ended(slot: &Slot, snapshot: &PlanSnapshot<'_>) -> bool {
    let pod = slot.pod.as_ref().and_then(|uid| snapshot.pods.get(uid));
    pod.is_some_and(|pod| pod.ended)
}

/// Have enough members of every gang and role been bound, those aside that come later?
fn has_enough(seen: &GroupSnapshot<'_>) -> bool {
    seen.group.gangs.iter().all(|gang| {
        let (later, now): (Vec<&GangRole>, Vec<&GangRole>) = gang
            .roles
            .iter()
            .partition(|role| seen.late.contains(&role.name));
        let sum = |numbers: &mut dyn Iterator<Item = u32>| numbers.fold(0, u32::saturating_add);
        let min = gang
            .min
            .saturating_sub(sum(&mut later.iter().map(|role| role.min)));
        sum(&mut now.iter().map(|role| bound_of(role))) >= min
            && now.iter().all(|role| bound_of(role) >= role.min)
    })
}

/// Number of bound members of the role.
fn bound_of(role: &GangRole) -> u32 {
    let members = role.members.iter();
    let bound = members.filter(|one| one.standing == Standing::Bound);
    u32::try_from(bound.count()).unwrap_or(u32::MAX)
}

/// Removes the slots that no member of the group can take any more, the last ones first. The slot
/// of a pod stays as long as the pod.
fn give_back<R>(part: &mut PlannedGroup<R>, group: &Group, snapshot: &PlanSnapshot<'_>) {
    let pod = |slot: &Slot| slot.pod.as_ref().and_then(|uid| snapshot.pods.get(uid));
    let has_pod = |slot: &Slot| pod(slot).is_some_and(|pod| !pod.going);
    let mut open: BTreeMap<Arc<str>, u32> = BTreeMap::new();
    for role in group.gangs.iter().flat_map(|gang| &gang.roles) {
        let slots = part.slots.iter().filter(|slot| slot.role == role.name);
        let held = slots.filter(|slot| has_pod(slot) && !is_bound(slot, snapshot));
        let held = u32::try_from(held.count()).unwrap_or(u32::MAX);
        let taken = bound_of(role).saturating_add(held);
        open.insert(role.name.clone(), role.replicas.saturating_sub(taken));
    }
    part.slots.retain(|slot| {
        if has_pod(slot) {
            return true;
        }
        let left = open.get_mut(&slot.role).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    });
}

/// Everybody of the group goes, then that is noted on the group, and then the plan goes. It goes last
/// because nothing else says that the group is on its way back.
fn roll_back<R>(
    plan: &QueuePlan<R>,
    seen: &GroupSnapshot<'_>,
    snapshot: &PlanSnapshot<'_>,
) -> Fate<R> {
    let mut there =
        bound_members(seen.group).filter_map(|uid| Some((uid, snapshot.pods.get(uid)?)));
    let there: Vec<_> = there.by_ref().collect();
    if !there.is_empty() {
        let stay = there.into_iter().filter(|(_, pod)| !pod.going);
        let evict = stay.map(|(uid, _)| PlanStep::Evict(uid.clone()));
        return Fate::GoesBack(evict.collect());
    }
    match seen.requeued_by.as_ref() == Some(&plan.name) {
        true => Fate::Over,
        false => Fate::GoesBack(vec![PlanStep::Requeue(seen.group.id.clone())]),
    }
}

/// The part with its pods: each that waits gets a free slot of its role. A slot whose pod is gone is free
/// again, and so is one whose pod has ended: the next pod of a Job that makes them one after the other
/// takes it.
fn claimed<R>(
    mut part: PlannedGroup<R>,
    seen: &GroupSnapshot<'_>,
    snapshot: &PlanSnapshot<'_>,
) -> PlannedGroup<R> {
    for slot in &mut part.slots {
        slot.pod = slot
            .pod
            .take()
            .filter(|uid| snapshot.pods.contains_key(uid));
    }
    let with_pod = part.slots.iter().filter_map(|slot| slot.pod.clone());
    let has_slot: BTreeSet<PodUid> = with_pod.collect();
    for (role, uid) in &seen.waiting {
        let Some(pod) = snapshot.pods.get(uid).filter(|pod| !pod.going) else {
            continue;
        };
        if pod.bound.is_some() || has_slot.contains(uid) {
            continue;
        }
        let of_role = |slot: &Slot| slot.role == *role;
        let free = |slot: &Slot| of_role(slot) && slot.pod.is_none();
        let left = |slot: &Slot| of_role(slot) && has_ended(slot, snapshot);
        let mut slots = part.slots.iter();
        let at = slots.position(free);
        let at = at.or_else(|| part.slots.iter().position(left));
        if let Some(at) = at {
            part.slots[at].pod = Some(uid.clone());
        }
    }
    part
}

/// Steps that are due for a group if its part of the plan is as it should be.
fn steps_of<R>(
    plan: &QueuePlan<R>,
    part: &PlannedGroup<R>,
    snapshot: &PlanSnapshot<'_>,
) -> Vec<PlanStep<R>> {
    let victims = part.victims.iter().map(|victim| &victim.uid);
    let there = victims.filter_map(|uid| Some((uid, snapshot.pods.get(uid)?)));
    let there: Vec<_> = there.collect();
    if !there.is_empty() {
        let stay = there.into_iter().filter(|(_, pod)| !pod.going);
        return stay.map(|(uid, _)| PlanStep::Evict(uid.clone())).collect();
    }
    let is_suspended = |seen: &GroupSnapshot<'_>| seen.suspended;
    if snapshot.groups.get(&part.id).is_some_and(is_suspended) {
        return vec![PlanStep::Release(part.id.clone())];
    }
    let slots = part.slots.iter();
    let steps = slots.filter_map(|slot| step_of(&plan.name, &part.id, slot, snapshot));
    steps.collect()
}

/// The step that is due for the pod that has a slot.
fn step_of<R>(
    plan: &Arc<str>,
    group: &GroupId,
    slot: &Slot,
    snapshot: &PlanSnapshot<'_>,
) -> Option<PlanStep<R>> {
    let uid = slot.pod.clone()?;
    let pod = snapshot.pods.get(&uid)?;
    if pod.bound.is_some() || pod.going || pod.ended {
        return None;
    }
    let mark = SlotMark {
        key: SlotKey::of(plan, group, slot),
        node: slot.node.clone(),
    };
    if pod.held {
        return Some(PlanStep::Free(uid, mark));
    }
    let says_it = pod.slot.as_ref() == Some(&mark.key);
    (!says_it).then_some(PlanStep::Steer(uid, mark))
}
