//! Plans of the queue, and how the extender obeys them.
//!
//! The slots of every plan count as used. A slot that nobody took has an entry under the UID of the
//! pod that it is for, or else under a name of its own. When its pod is bound, that entry becomes
//! the pod's in one step; when that fails, the slot's again. A member of a group goes to its slot's
//! node and gets its slot's cards, if its plan is of the newest epoch that is there; else it goes
//! nowhere.
//!
//! All of it comes from the watches, so every extender answers alike. An epoch keeps deposed
//! leaders away. It does not by itself keep a card from being given away twice:
//! [`State::take_slot`] looks at the cards again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use sublet_api::gang_plan::{
    GangPlanObject, PlannedRole, SlotEntry, SlotKey, SlotMark, slot_entries, slot_from_json,
    slot_of,
};
use sublet_api::group::gang_of;
use sublet_api::keys;
use sublet_api::object::Pod;
use sublet_client::Change;
use sublet_model::{Allocation, Claim, Entry, NodeName, PodUid, Standing, Time};

use crate::state::{Listed, Scheduler, State};
use crate::waiting::{Waiting, counted};
use crate::watches::{Listing, list_ended};

/// The plans, and the pod in each slot.
#[derive(Default)]
pub(crate) struct Plans {
    /// Are there any? Else nothing here is looked at.
    pub(crate) on: bool,
    plans: BTreeMap<Arc<str>, KnownPlan>,
    /// The epoch of each plan that is there. One that was there is not remembered: a plan out of the
    /// backup of another cluster would be obeyed for ever.
    epochs: BTreeSet<(u64, Arc<str>)>,
    /// Slots that nobody took, by their names in the ledger, and the names.
    held: BTreeMap<PodUid, SlotKey>,
    names: BTreeMap<SlotKey, PodUid>,
    /// Slots by the pods that they are for.
    for_pods: BTreeMap<PodUid, BTreeSet<SlotKey>>,
    /// The pods that are bound, or about to be, with a slot's name on them. More than one has it where
    /// somebody wrote it on a pod.
    takers: BTreeMap<SlotKey, BTreeSet<PodUid>>,
    taken: BTreeMap<PodUid, BTreeSet<SlotKey>>,
}

/// A plan that is there.
struct KnownPlan {
    epoch: u64,
    deadline: Time,
    slots: BTreeMap<SlotKey, SlotEntry>,
}

/// A pod's own words that concern the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Membership {
    /// It goes where it likes.
    None,
    /// It has this slot.
    Slot(SlotMark),
    /// It waits for one; the text says why, where it says something that cannot be read.
    Waits(Option<String>),
}

/// Reason why a member goes nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Parked {
    /// It has no slot.
    NoSlot,
    /// Its words about its slot or gang cannot be read.
    Unreadable(String),
    /// There is no such plan, or not that slot in it.
    NoPlan(Arc<str>),
    /// The plan is of a leadership that is over.
    OldPlan(Arc<str>),
    /// It was not bound in time.
    Late(Arc<str>),
    /// The slot is for another pod, or for one that asks something else.
    OfAnother,
}

impl fmt::Display for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Parked::NoSlot => f.write_str("its group waits in the queue (sublet queue)"),
            Parked::Unreadable(why) => write!(f, "it is queued, and cannot be read: {why}"),
            Parked::NoPlan(plan) => {
                write!(
                    f,
                    "its place in plan {plan} is gone; it waits for another one"
                )
            }
            Parked::OldPlan(plan) => {
                write!(
                    f,
                    "plan {plan} waits for the queue's controller to take it over"
                )
            }
            Parked::Late(plan) => write!(f, "its place in plan {plan} has lapsed"),
            Parked::OfAnother => f.write_str("its place is another pod's"),
        }
    }
}

impl Parked {
    /// May news of a plan that is on its way say otherwise?
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Parked::NoPlan(_) | Parked::OldPlan(_))
    }
}

impl Membership {
    /// Reads a pod.
    pub(crate) fn of(pod: &Pod) -> Membership {
        if let Some(text) = pod.metadata.annotations.get(keys::SLOT) {
            return match slot_from_json(text) {
                Ok(mark) => Membership::Slot(mark),
                Err(error) => {
                    Membership::Waits(Some(format!("annotation `{}`: {error}", keys::SLOT)))
                }
            };
        }
        match gang_of(pod) {
            Ok(None) => Membership::None,
            Ok(Some(_)) => Membership::Waits(None),
            Err(error) => Membership::Waits(Some(error.to_string())),
        }
    }
}

impl Scheduler {
    /// Would a pod that says this of itself go nowhere?
    pub(crate) fn is_parked(&self, membership: &Membership) -> bool {
        matches!(membership, Membership::Waits(_)) && self.state().plans.on
    }
}

impl State {
    /// Does the queue decide about the victims for a pod with this membership?
    pub(crate) fn is_of_queue(&self, membership: &Membership) -> bool {
        self.plans.on && *membership != Membership::None
    }

    /// Returns where a pod must go: nowhere in particular, to its slot's node, or nowhere at all.
    pub(crate) fn place_of_member(
        &self,
        now: Time,
        membership: &Membership,
        uid: &PodUid,
        claim: &Claim,
    ) -> Result<Option<&NodeName>, Parked> {
        if !self.plans.on {
            return Ok(None);
        }
        match membership {
            Membership::None => Ok(None),
            Membership::Waits(None) => Err(Parked::NoSlot),
            Membership::Waits(Some(why)) => Err(Parked::Unreadable(why.clone())),
            Membership::Slot(mark) => {
                let slot = self.plans.slot_of(now, mark, uid, claim)?;
                Ok(Some(&slot.own.node))
            }
        }
    }

    /// Gives a member its slot, for the Binding that is about to be sent.
    pub(crate) fn take_slot(
        &mut self,
        now: Time,
        waiting: &Waiting,
        mark: &SlotMark,
        node: &NodeName,
    ) -> Result<Allocation, String> {
        let Waiting { uid, claim, .. } = waiting;
        let slot = self.plans.slot_of(now, mark, uid, claim);
        let SlotEntry { own, .. } = slot.map_err(|parked| parked.to_string())?;
        if own.node != *node {
            return Err(format!("its place is on node {}", own.node));
        }
        let allocation = own.allocation.clone().unwrap_or_default();
        let entry = Entry {
            pod: waiting.pod.clone(),
            uid: uid.clone(),
            node: node.clone(),
            claim: claim.clone(),
            allocation: Some(allocation.clone()),
            standing: Standing::Reserved,
            assigned: false,
            priority: waiting.priority,
        };
        self.let_go(&mark.key);
        let why = match self.engine.reserve_at(now, entry) {
            Ok(true) => {
                self.plans.take(&mark.key, uid);
                return Ok(allocation);
            }
            Ok(false) => format!("{node}: the cards of its place are not free"),
            Err(reason) => format!("{node}: {reason}"),
        };
        self.settle(&mark.key);
        Err(why)
    }

    /// Gives back the place of a failed Binding: to its slot, if it had one.
    pub(crate) fn release(&mut self, uid: &PodUid) {
        self.engine.release(uid);
        if self.engine.ledger().entry(uid).is_none() {
            self.give_back(uid);
        }
    }

    /// The pod's own entry; that of a slot which is kept for it is none.
    pub(crate) fn own_entry(&self, uid: &PodUid) -> Option<&Entry> {
        let entry = self.engine.ledger().entry(uid);
        entry.filter(|_| !self.plans.holds(uid))
    }

    /// A pod was seen bound, and is about to be entered.
    pub(crate) fn seen_bound(&mut self, uid: &PodUid, pod: &Pod) {
        if !self.plans.on {
            return;
        }
        if let Some(key) = self.plans.held.remove(uid) {
            self.plans.names.remove(&key);
        }
        if let Some(mark) = slot_of(pod) {
            self.plans.take(&mark.key, uid);
        }
    }

    /// The pod has an entry of its own, or none any more: its slots go with that.
    pub(crate) fn settle_pod(&mut self, uid: &PodUid) {
        for key in self.plans.slots_for(uid) {
            self.settle(&key);
        }
    }

    /// A pod is gone from the ledger: the slot that it had is free again, until its plan says
    /// otherwise.
    pub(crate) fn give_back(&mut self, uid: &PodUid) {
        let keys = self.plans.slots_for(uid);
        for key in self.plans.taken.remove(uid).unwrap_or_default() {
            if let Some(takers) = self.plans.takers.get_mut(&key) {
                takers.remove(uid);
                if takers.is_empty() {
                    self.plans.takers.remove(&key);
                }
            }
        }
        for key in keys {
            self.settle(&key);
        }
    }

    /// Enters a plan in place of its earlier version.
    pub(crate) fn set_plan(&mut self, object: &GangPlanObject) {
        let name = &object.metadata.name;
        let (unit, rules) = (self.engine.options().unit, self.engine.options().stock);
        let claim = |role: &PlannedRole| {
            let claim = role.claim(unit)?;
            Ok(counted(claim, &role.pod, rules))
        };
        let read = object.read().map_err(|error| error.to_string());
        let read = read.and_then(|plan| {
            let slots = slot_entries(&plan, claim).map_err(|error| error.to_string())?;
            Ok((plan, slots))
        });
        let (plan, slots) = match read {
            Ok(read) => read,
            Err(why) => {
                tracing::warn!(plan = name, why, "plan cannot be read and reserves nothing");
                return self.remove_plan(name);
            }
        };
        let mut keys = self.plans.remove(name);
        keys.extend(slots.keys().cloned());
        let known = KnownPlan {
            epoch: plan.epoch,
            deadline: plan.deadline,
            slots,
        };
        self.plans.insert(plan.name, known);
        keys.iter().for_each(|key| self.settle(key));
    }

    /// A plan is gone.
    pub(crate) fn remove_plan(&mut self, name: &str) {
        for key in self.plans.remove(name) {
            self.settle(&key);
        }
    }

    /// A complete list has named these plans; all others are gone.
    fn keep_plans(&mut self, listed: &BTreeSet<String>) {
        let known = self.plans.plans.keys();
        let gone = known.filter(|name| !listed.contains(&***name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.remove_plan(&name);
        }
    }

    /// Makes the ledger have the slot exactly once: as an entry of its own, or as its pod's.
    fn settle(&mut self, key: &SlotKey) {
        self.let_go(key);
        let Some((_, slot)) = self.plans.slot(key) else {
            return;
        };
        // Its pod may be bound without having said which slot it has.
        let is_its = |uid: &&PodUid| slot.of.is_none() || slot.of.as_ref() == Some(uid);
        let takers = self.plans.takers.get(key).into_iter().flatten();
        let mut takers = takers.filter(is_its).chain(&slot.of);
        if takers.any(|uid| self.own_entry(uid).is_some()) {
            return;
        }
        let uid = slot.of.as_ref().filter(|uid| !self.plans.holds(uid));
        let uid = uid.unwrap_or(&slot.own.uid).clone();
        let entry = Entry {
            uid: uid.clone(),
            ..slot.own.clone()
        };
        self.engine.observe(entry);
        self.plans.names.insert(key.clone(), uid.clone());
        self.plans.held.insert(uid, key.clone());
    }

    /// Takes a slot's own entry out of the ledger, if it has one.
    fn let_go(&mut self, key: &SlotKey) {
        if let Some(name) = self.plans.names.remove(key) {
            self.plans.held.remove(&name);
            self.engine.forget(&name);
        }
    }
}

impl Plans {
    /// Is that the name of a slot which nobody took?
    pub(crate) fn holds(&self, uid: &PodUid) -> bool {
        self.held.contains_key(uid)
    }

    /// The slot of that key, with its plan.
    fn slot(&self, key: &SlotKey) -> Option<(&KnownPlan, &SlotEntry)> {
        let plan = self.plans.get(&key.plan)?;
        Some((plan, plan.slots.get(key)?))
    }

    /// Enters a plan that is not there.
    fn insert(&mut self, name: Arc<str>, plan: KnownPlan) {
        for (key, slot) in &plan.slots {
            if let Some(uid) = &slot.of {
                let keys = self.for_pods.entry(uid.clone()).or_default();
                keys.insert(key.clone());
            }
        }
        self.epochs.insert((plan.epoch, name.clone()));
        self.plans.insert(name, plan);
    }

    /// Removes a plan, and returns the keys of its slots.
    fn remove(&mut self, name: &str) -> BTreeSet<SlotKey> {
        let Some((name, plan)) = self.plans.remove_entry(name) else {
            return BTreeSet::new();
        };
        self.epochs.remove(&(plan.epoch, name));
        for (key, slot) in &plan.slots {
            if let Some(uid) = &slot.of
                && let Some(keys) = self.for_pods.get_mut(uid)
            {
                keys.remove(key);
                if keys.is_empty() {
                    self.for_pods.remove(uid);
                }
            }
        }
        plan.slots.into_keys().collect()
    }

    /// The slots that are for a pod, or that it has taken.
    fn slots_for(&self, uid: &PodUid) -> BTreeSet<SlotKey> {
        let maps = [&self.for_pods, &self.taken].into_iter();
        let keys = maps.filter_map(|map| map.get(uid)).flatten();
        keys.cloned().collect()
    }

    fn take(&mut self, key: &SlotKey, uid: &PodUid) {
        let takers = self.takers.entry(key.clone()).or_default();
        takers.insert(uid.clone());
        self.taken
            .entry(uid.clone())
            .or_default()
            .insert(key.clone());
    }

    /// A pod's slot, if the slot is valid and the pod's.
    fn slot_of(
        &self,
        now: Time,
        mark: &SlotMark,
        uid: &PodUid,
        claim: &Claim,
    ) -> Result<&SlotEntry, Parked> {
        let name = || mark.key.plan.clone();
        let found = self.slot(&mark.key);
        let found = found.filter(|(_, slot)| slot.own.node == mark.node);
        let (plan, slot) = found.ok_or_else(|| Parked::NoPlan(name()))?;
        let newest = self.epochs.last();
        if newest.is_some_and(|(epoch, _)| *epoch != plan.epoch) {
            return Err(Parked::OldPlan(name()));
        }
        if now >= plan.deadline {
            return Err(Parked::Late(name()));
        }
        let takers = self.takers.get(&mark.key).into_iter().flatten();
        let is_its = takers.chain(&slot.of).all(|of| of == uid);
        if !ask_the_same(&slot.own.claim, claim) || !is_its {
            return Err(Parked::OfAnother);
        }
        Ok(slot)
    }
}

/// Do both make the same request for cards? A plan may be made of templates before there are pods.
/// These lack the parts that operators and webhooks add to pods: init containers, slots, CPU and
/// memory. The stock scheduler holds the pod to its node's CPU and memory.
fn ask_the_same(planned: &Claim, pod: &Claim) -> bool {
    planned.dialect() == pod.dialect()
        && planned.class() == pod.class()
        && planned.containers() == pod.containers()
        && planned.models() == pod.models()
        && planned.wishes() == pod.wishes()
}

/// A plan was listed, new, changed or gone.
pub(crate) fn plans(
    scheduler: &Arc<Scheduler>,
    listed: &mut Listing<String>,
    change: &Change<GangPlanObject>,
) {
    match change {
        Change::ListBegins => *listed = Some(BTreeSet::new()),
        Change::ListEnds => {
            let listed = listed.take().unwrap_or_default();
            scheduler.state().keep_plans(&listed);
            list_ended(scheduler, Listed::Plans);
            return;
        }
        Change::Set(plan) => {
            scheduler.state().set_plan(plan);
            if let Some(listed) = listed {
                listed.insert(plan.metadata.name.clone());
            }
        }
        Change::Gone(plan) => scheduler.state().remove_plan(&plan.metadata.name),
    }
    scheduler.freed.send_replace(());
}
