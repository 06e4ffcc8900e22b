//! `GangPlan` (`sublet.dev/v1alpha1`): where the members of groups go, as the queue's controller has
//! proven it on the ledger. The extenders obey it.
//!
//! An object comes over the wire unread ([`GangPlanObject`]) and is read by [`GangPlan::of`], so that
//! a bad one costs only itself. `deploy/kubernetes/queue/18-gang-plans.yaml` has its schema.

mod entries;
mod role_pod;
mod slot;
mod state;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sublet_model::{Claim, Host, NameError, NodeName, PodKey, PodUid, Time, Unit};
use sublet_queue::MOST_MEMBERS;

pub use self::entries::{SlotEntry, SlotError};
pub use self::slot::{SlotKey, SlotMark, SlotTextError, is_slot_uid, slot_from_json, slot_to_json};
use crate::allocation::{GrantJson, allocation_of_grants, grants_of};
use crate::dialect::{self, ClaimError};
use crate::machine::host_of;
use crate::object::{Meta, Pod};
use crate::preempting::Victim;

/// A plan has at most so many slots: with 300 bytes each it stays below what etcd takes.
pub const MOST_SLOTS: usize = MOST_MEMBERS;

/// A plan's name has at most so many characters, so that the names of its slots are short enough.
const LONGEST_NAME: usize = 63;

/// A plan as the API server sends it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GangPlanObject {
    /// Its metadata.
    pub metadata: Meta,
    /// The plan, unread.
    pub spec: Value,
    /// Its progress, unread.
    pub status: Value,
}

/// Plan of places for the members of some groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GangPlan {
    /// The object's name.
    pub name: Arc<str>,
    /// The object's version, for a write that must find it unchanged; empty for a new one.
    pub version: Arc<str>,
    /// The leadership that wrote or adopted it.
    pub epoch: u64,
    /// Deadline for binding its members. After it, the rest of the plan is given up.
    pub deadline: Time,
    /// The groups; each is whole in one plan.
    pub groups: Vec<PlannedGroup>,
    /// Its progress.
    pub phase: PlanPhase,
}

/// One group of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedGroup {
    /// Such as `podgroup/team-a/g1`.
    pub id: Arc<str>,
    /// The quota that it counts for.
    pub quota: Arc<str>,
    /// Requests of its members.
    pub roles: Vec<PlannedRole>,
    /// Place of each member.
    pub slots: Vec<PlannedSlot>,
    /// Pods that are evicted for it.
    pub victims: Vec<Victim>,
}

/// Equal members of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRole {
    /// Its name within the group.
    pub name: Arc<str>,
    /// A pod of it, as much as a claim is read from. Its namespace is that of all members.
    pub pod: Arc<Pod>,
}

/// The place of one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedSlot {
    /// Its role.
    pub role: Arc<str>,
    /// Index of the member in its role.
    pub index: u32,
    /// Node for the member.
    pub node: NodeName,
    /// Cards for the member; empty if it asks for none.
    pub allocation: sublet_model::Allocation,
    /// The pod that it is for, once there is one.
    pub pod: Option<PodUid>,
}

/// Progress of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum PlanPhase {
    /// Its slots count as used.
    #[default]
    Reserved,
    /// Its victims are asked to go.
    Evicting,
    /// Its members may start.
    Released,
    /// Nothing of it is left to do.
    Done,
}

/// Reason why a plan cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{field}`: {why}")]
pub struct GangPlanError {
    /// Such as `spec.groups[0].slots[3].node`.
    pub field: String,
    /// The fault.
    pub why: String,
}

impl GangPlanError {
    fn new(field: impl Into<String>, why: &impl ToString) -> GangPlanError {
        GangPlanError {
            field: field.into(),
            why: why.to_string(),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct SpecJson<G> {
    epoch: u64,
    deadline: String,
    groups: Vec<G>,
}

#[derive(Serialize, Deserialize)]
struct GroupJson {
    id: String,
    quota: String,
    roles: Vec<RoleJson>,
    slots: Vec<SlotJson>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    victims: Vec<VictimJson>,
}

#[derive(Serialize, Deserialize)]
struct RoleJson {
    name: String,
    pod: Value,
}

#[derive(Serialize, Deserialize)]
struct SlotJson {
    role: String,
    index: u32,
    node: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    allocation: Vec<GrantJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct VictimJson {
    namespace: String,
    name: String,
    uid: String,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StatusJson {
    phase: PlanPhase,
}

impl GangPlan {
    /// Reads an object.
    ///
    /// # Errors
    /// The first field that cannot be read, and why.
    pub fn of(object: &GangPlanObject) -> Result<GangPlan, GangPlanError> {
        let Meta {
            name,
            resource_version,
            ..
        } = &object.metadata;
        if name.is_empty() || name.len() > LONGEST_NAME {
            let why = format!("it must have 1 to {LONGEST_NAME} characters");
            return Err(GangPlanError::new("metadata.name", &why));
        }
        let spec = SpecJson::<Value>::deserialize(&object.spec)
            .map_err(|error| GangPlanError::new("spec", &error))?;
        let status = match &object.status {
            Value::Null => StatusJson::default(),
            status => StatusJson::deserialize(status)
                .map_err(|error| GangPlanError::new("status", &error))?,
        };
        let deadline: Timestamp =
            (spec.deadline.parse()).map_err(|error| GangPlanError::new("spec.deadline", &error))?;
        let deadline = u64::try_from(deadline.as_millisecond())
            .map_err(|_| GangPlanError::new("spec.deadline", &"it is before 1970"))?;
        let groups = spec.groups.iter().enumerate();
        let groups =
            groups.map(|(at, group)| PlannedGroup::of(group, &format!("spec.groups[{at}]")));
        let plan = GangPlan {
            name: Arc::from(&**name),
            version: Arc::from(&**resource_version),
            epoch: spec.epoch,
            deadline: Time::from_ms(deadline),
            groups: groups.collect::<Result<_, _>>()?,
            phase: status.phase,
        };
        plan.is_sound()?;
        Ok(plan)
    }

    /// The object without its name, for the API server.
    #[must_use]
    pub fn to_object(&self) -> Value {
        // Times beyond the year 9999 have no text.
        let ms = i64::try_from(self.deadline.ms()).unwrap_or(i64::MAX);
        let deadline = Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX);
        let spec = SpecJson {
            epoch: self.epoch,
            deadline: deadline.to_string(),
            groups: self.groups.iter().map(PlannedGroup::to_json).collect(),
        };
        json!({ "spec": spec })
    }

    /// The same of its status.
    #[must_use]
    pub fn status_to_object(&self) -> Value {
        json!({ "status": StatusJson { phase: self.phase } })
    }

    /// Every slot, with its group.
    pub fn slots(&self) -> impl Iterator<Item = (&PlannedGroup, &PlannedSlot)> {
        let of = |group| move |slot| (group, slot);
        self.groups
            .iter()
            .flat_map(move |group| group.slots.iter().map(of(group)))
    }

    /// The slot of that name, with its group.
    #[must_use]
    pub fn slot(
        &self,
        group: &str,
        role: &str,
        index: u32,
    ) -> Option<(&PlannedGroup, &PlannedSlot)> {
        let group = self.groups.iter().find(|one| *one.id == *group)?;
        let mut slots = group.slots.iter();
        let slot = slots.find(|slot| *slot.role == *role && slot.index == index)?;
        Some((group, slot))
    }

    /// Under which name the ledger has a slot that no pod has.
    #[must_use]
    pub fn key_of(&self, group: &PlannedGroup, slot: &PlannedSlot) -> SlotKey {
        SlotKey {
            plan: self.name.clone(),
            group: group.id.clone(),
            role: slot.role.clone(),
            index: slot.index,
        }
    }

    /// Not too many slots, none twice.
    fn is_sound(&self) -> Result<(), GangPlanError> {
        let count = self.slots().count();
        if count > MOST_SLOTS {
            let why = format!("{count} slots are too many (at most {MOST_SLOTS})");
            return Err(GangPlanError::new("spec.groups", &why));
        }
        let mut uids = BTreeSet::new();
        let mut pods = BTreeSet::new();
        for (group, slot) in self.slots() {
            let field = || format!("spec.groups[{}].slots", group.id);
            let uid = self.key_of(group, slot).uid();
            let uid = uid.map_err(|error| GangPlanError::new(field(), &error))?;
            if !uids.insert(uid) {
                let why = format!("{}/{} is there twice", slot.role, slot.index);
                return Err(GangPlanError::new(field(), &why));
            }
            if let Some(pod) = &slot.pod
                && !pods.insert(pod)
            {
                let why = format!("the pod {pod} has two slots");
                return Err(GangPlanError::new(field(), &why));
            }
        }
        Ok(())
    }
}

impl PlannedGroup {
    fn of(group: &Value, field: &str) -> Result<PlannedGroup, GangPlanError> {
        let group =
            GroupJson::deserialize(group).map_err(|error| GangPlanError::new(field, &error))?;
        if group.id.is_empty() {
            return Err(GangPlanError::new(format!("{field}.id"), &"it is empty"));
        }
        let mut roles: Vec<PlannedRole> = Vec::new();
        for (at, role) in group.roles.iter().enumerate() {
            let field = format!("{field}.roles[{at}]");
            let role = PlannedRole::of(role, &field)?;
            if roles.iter().any(|known| known.name == role.name) {
                let why = format!("{} is there twice", role.name);
                return Err(GangPlanError::new(field, &why));
            }
            roles.push(role);
        }
        let slots = group.slots.into_iter().enumerate();
        let slots = slots.map(|(at, slot)| {
            let field = format!("{field}.slots[{at}]");
            let slot = PlannedSlot::of(slot, &field)?;
            if roles.iter().any(|role| role.name == slot.role) {
                Ok(slot)
            } else {
                let why = format!("there is no role {}", slot.role);
                Err(GangPlanError::new(format!("{field}.role"), &why))
            }
        });
        let slots = slots.collect::<Result<_, _>>()?;
        let victims = group.victims.iter().enumerate();
        let victims = victims.map(|(at, victim)| {
            let field = format!("{field}.victims[{at}]");
            let wrong = |error: NameError| GangPlanError::new(&*field, &error);
            Ok(Victim {
                pod: PodKey::new(&victim.namespace, &victim.name).map_err(wrong)?,
                uid: PodUid::new(&victim.uid).map_err(wrong)?,
            })
        });
        Ok(PlannedGroup {
            id: Arc::from(group.id),
            quota: Arc::from(group.quota),
            victims: victims.collect::<Result<_, _>>()?,
            roles,
            slots,
        })
    }

    fn to_json(&self) -> GroupJson {
        let role = |role: &PlannedRole| RoleJson {
            name: role.name.to_string(),
            pod: role_pod::to_json(&role.pod),
        };
        let slot = |slot: &PlannedSlot| SlotJson {
            role: slot.role.to_string(),
            index: slot.index,
            node: slot.node.to_string(),
            allocation: grants_of(&slot.allocation),
            pod: slot.pod.as_ref().map(PodUid::to_string),
        };
        let victim = |victim: &Victim| VictimJson {
            namespace: victim.pod.namespace().to_owned(),
            name: victim.pod.name().to_owned(),
            uid: victim.uid.to_string(),
        };
        GroupJson {
            id: self.id.to_string(),
            quota: self.quota.to_string(),
            roles: self.roles.iter().map(role).collect(),
            slots: self.slots.iter().map(slot).collect(),
            victims: self.victims.iter().map(victim).collect(),
        }
    }

    /// The role of that name; every slot of a plan that was read has one.
    #[must_use]
    pub fn role(&self, name: &str) -> Option<&PlannedRole> {
        self.roles.iter().find(|role| *role.name == *name)
    }
}

impl PlannedRole {
    /// A role whose members have the same request as this pod. Fields that do not matter for the
    /// claim are left out.
    #[must_use]
    pub fn new(name: &str, pod: &Pod) -> PlannedRole {
        PlannedRole {
            name: Arc::from(name),
            pod: Arc::new(role_pod::trimmed(pod)),
        }
    }

    fn of(role: &RoleJson, field: &str) -> Result<PlannedRole, GangPlanError> {
        if role.name.is_empty() {
            return Err(GangPlanError::new(format!("{field}.name"), &"it is empty"));
        }
        let pod = Pod::deserialize(&role.pod)
            .map_err(|error| GangPlanError::new(format!("{field}.pod"), &error))?;
        Ok(PlannedRole::new(&role.name, &pod))
    }

    /// Claim of a member: cards, or only CPU and memory of its node.
    ///
    /// # Errors
    /// A request for cards that cannot be read.
    pub fn claim(&self, unit: Unit) -> Result<Claim, ClaimError> {
        Ok(dialect::claim_of(&self.pod, unit)?
            .unwrap_or_else(|| Claim::host_only(host_of(&self.pod).unwrap_or(Host::ZERO))))
    }
}

impl PlannedSlot {
    fn of(slot: SlotJson, field: &str) -> Result<PlannedSlot, GangPlanError> {
        let at = |name: &str| format!("{field}.{name}");
        let node = NodeName::new(&slot.node);
        let allocation = allocation_of_grants(slot.allocation);
        let pod = slot.pod.as_deref().map(PodUid::new).transpose();
        Ok(PlannedSlot {
            role: Arc::from(slot.role),
            index: slot.index,
            node: node.map_err(|error| GangPlanError::new(at("node"), &error))?,
            allocation: allocation.map_err(|error| GangPlanError::new(at("allocation"), &error))?,
            pod: pod.map_err(|error| GangPlanError::new(at("pod"), &error))?,
        })
    }
}
