//! `GangPlan` (`sublet.dev/v1alpha1`): where the members of groups go, as the queue's controller has
//! proven it on the ledger. The extenders obey it.
//!
//! An object comes over the wire unread and is read by [`GangPlanObject::read`], so that a bad one
//! costs only itself. `deploy/kubernetes/queue/18-gang-plans.yaml` has its schema.

mod role_pod;
mod slot;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sublet_model::{
    Claim, Entry, Host, NameError, NodeName, PodKey, PodUid, Standing, Time, Unit, Victim,
};
use sublet_queue::protocol::{PlannedGroup, QueuePlan};
use sublet_queue::{GroupId, MOST_MEMBERS, Slot};
pub use sublet_queue::{SlotKey, SlotMark};

pub use self::slot::{SlotTextError, slot_from_json, slot_of, slot_to_json};
use crate::allocation::{GrantJson, allocation_of_grants, grants_of};
use crate::dialect::{self, ClaimError};
use crate::machine::host_of;
use crate::object::{Meta, Pod};

/// A plan has at most so many slots: with 300 bytes each it stays below what etcd takes.
pub const MOST_SLOTS: usize = MOST_MEMBERS;

/// A plan's name has at most so many characters, so that the names of its slots are short enough.
const LONGEST_NAME: usize = 63;

/// Plan of places for the members of some groups, with the requests of their roles.
pub type GangPlan = QueuePlan<PlannedRole>;

/// A plan as the API server sends it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GangPlanObject {
    /// Its metadata.
    pub metadata: Meta,
    /// The plan, unread.
    pub spec: Value,
}

/// Equal members of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedRole {
    /// Its name within the group.
    pub name: Arc<str>,
    /// A pod of it, as much as a claim is read from. Its namespace is that of all members.
    pub pod: Arc<Pod>,
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

impl GangPlanObject {
    /// Reads the plan.
    ///
    /// # Errors
    /// The first field that cannot be read, and why.
    pub fn read(&self) -> Result<GangPlan, GangPlanError> {
        let Meta {
            name,
            resource_version,
            ..
        } = &self.metadata;
        if name.is_empty() || name.len() > LONGEST_NAME {
            let why = format!("it must have 1 to {LONGEST_NAME} characters");
            return Err(GangPlanError::new("metadata.name", &why));
        }
        let spec = SpecJson::<Value>::deserialize(&self.spec)
            .map_err(|error| GangPlanError::new("spec", &error))?;
        let deadline: Timestamp =
            (spec.deadline.parse()).map_err(|error| GangPlanError::new("spec.deadline", &error))?;
        let deadline = u64::try_from(deadline.as_millisecond())
            .map_err(|_| GangPlanError::new("spec.deadline", &"it is before 1970"))?;
        let groups = spec.groups.iter().enumerate();
        let groups = groups.map(|(at, group)| read_group(group, &format!("spec.groups[{at}]")));
        let plan = GangPlan {
            name: Arc::from(&**name),
            version: Arc::from(&**resource_version),
            epoch: spec.epoch,
            deadline: Time::from_ms(deadline),
            groups: groups.collect::<Result<_, _>>()?,
        };
        is_sound(&plan)?;
        Ok(plan)
    }
}

/// The object of a plan without its name, for the API server.
#[must_use]
pub fn plan_to_object(plan: &GangPlan) -> Value {
    // Times beyond the year 9999 have no text.
    let ms = i64::try_from(plan.deadline.ms()).unwrap_or(i64::MAX);
    let deadline = Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX);
    let spec = SpecJson {
        epoch: plan.epoch,
        deadline: deadline.to_string(),
        groups: plan.groups.iter().map(group_to_json).collect(),
    };
    json!({ "spec": spec })
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

/// Not too many slots, none twice.
fn is_sound(plan: &GangPlan) -> Result<(), GangPlanError> {
    let count: usize = plan.groups.iter().map(|group| group.slots.len()).sum();
    if count > MOST_SLOTS {
        let why = format!("{count} slots are too many (at most {MOST_SLOTS})");
        return Err(GangPlanError::new("spec.groups", &why));
    }
    let mut uids = BTreeSet::new();
    let mut pods = BTreeSet::new();
    for group in &plan.groups {
        let wrong =
            |why: String| GangPlanError::new(format!("spec.groups[{}].slots", group.id), &why);
        for slot in &group.slots {
            let uid = SlotKey::of(&plan.name, &group.id, slot).uid();
            if !uids.insert(uid.map_err(|error| wrong(error.to_string()))?) {
                let why = format!("{}/{} is there twice", slot.role, slot.index);
                return Err(wrong(why));
            }
            if let Some(pod) = &slot.pod
                && !pods.insert(pod)
            {
                return Err(wrong(format!("the pod {pod} has two slots")));
            }
        }
    }
    Ok(())
}

fn read_group(group: &Value, field: &str) -> Result<PlannedGroup<PlannedRole>, GangPlanError> {
    let group = GroupJson::deserialize(group).map_err(|error| GangPlanError::new(field, &error))?;
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
        let slot = read_slot(slot, &field)?;
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
        id: GroupId::new(group.id),
        quota: Arc::from(group.quota),
        victims: victims.collect::<Result<_, _>>()?,
        roles,
        slots,
    })
}

fn group_to_json(group: &PlannedGroup<PlannedRole>) -> GroupJson {
    let role = |role: &PlannedRole| RoleJson {
        name: role.name.to_string(),
        pod: role_pod::to_json(&role.pod),
    };
    let slot = |slot: &Slot| SlotJson {
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
        id: group.id.to_string(),
        quota: group.quota.to_string(),
        roles: group.roles.iter().map(role).collect(),
        slots: group.slots.iter().map(slot).collect(),
        victims: group.victims.iter().map(victim).collect(),
    }
}

fn read_slot(slot: SlotJson, field: &str) -> Result<Slot, GangPlanError> {
    let at = |name: &str| format!("{field}.{name}");
    let node = NodeName::new(&slot.node);
    let allocation = allocation_of_grants(slot.allocation);
    let pod = slot.pod.as_deref().map(PodUid::new).transpose();
    Ok(Slot {
        role: Arc::from(slot.role),
        index: slot.index,
        node: node.map_err(|error| GangPlanError::new(at("node"), &error))?,
        allocation: allocation.map_err(|error| GangPlanError::new(at("allocation"), &error))?,
        pod: pod.map_err(|error| GangPlanError::new(at("pod"), &error))?,
    })
}

/// A slot for the ledger.
#[derive(Debug, Clone)]
pub struct SlotEntry {
    /// The pod of the slot, if it is known.
    pub of: Option<PodUid>,
    /// Entry of the slot's resources, under the slot's own name.
    pub own: Entry,
}

/// Reason why the ledger cannot have the slots of a plan.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// Request of a role's members that cannot be read.
    #[error("role {role} of {group}: {error}")]
    Claim {
        /// The group.
        group: GroupId,
        /// The role.
        role: Arc<str>,
        /// Why.
        error: ClaimError,
    },
    /// The cards of a slot do not match the request of its role.
    #[error("slot {role}/{index} of {group} has not what it asks")]
    Allocation {
        /// The group.
        group: GroupId,
        /// The role.
        role: Arc<str>,
        /// Index of the member.
        index: u32,
    },
    /// A slot has no name that the ledger takes.
    #[error(transparent)]
    Name(#[from] NameError),
}

/// All slots of a plan for the ledger. `claim`: the claim of a role's members.
///
/// # Errors
/// The first slot that the ledger cannot have. None of the plan counts then.
pub fn slot_entries(
    plan: &GangPlan,
    claim: impl Fn(&PlannedRole) -> Result<Claim, ClaimError>,
) -> Result<BTreeMap<SlotKey, SlotEntry>, SlotError> {
    let mut entries = BTreeMap::new();
    for group in &plan.groups {
        let mut claims: BTreeMap<&str, (&PlannedRole, Arc<Claim>)> = BTreeMap::new();
        for role in &group.roles {
            let claim = claim(role).map_err(|error| SlotError::Claim {
                group: group.id.clone(),
                role: role.name.clone(),
                error,
            })?;
            claims.insert(&role.name, (role, Arc::new(claim)));
        }
        for slot in &group.slots {
            let Some((role, claim)) = claims.get(&*slot.role) else {
                continue;
            };
            let key = SlotKey::of(&plan.name, &group.id, slot);
            let entry = SlotEntry {
                of: slot.pod.clone(),
                own: entry_of(&key, role, slot, claim)?,
            };
            entries.insert(key, entry);
        }
    }
    Ok(entries)
}

fn entry_of(
    key: &SlotKey,
    role: &PlannedRole,
    slot: &Slot,
    claim: &Arc<Claim>,
) -> Result<Entry, SlotError> {
    if !slot.allocation.answers(claim) {
        return Err(SlotError::Allocation {
            group: key.group.clone(),
            role: key.role.clone(),
            index: key.index,
        });
    }
    Ok(Entry {
        pod: stand_in(key, role)?,
        uid: key.uid()?,
        node: slot.node.clone(),
        claim: claim.clone(),
        allocation: Some(slot.allocation.clone()),
        standing: Standing::Reserved,
        // Nobody waits for its devices yet.
        assigned: true,
        priority: role.pod.spec.priority.unwrap_or(0),
    })
}

/// Name of a slot in place of a pod's name, for people and for its namespace's quotas:
/// `g1.worker.0`. A role of a group of gangs has slashes in its name; a pod's name has none.
fn stand_in(key: &SlotKey, role: &PlannedRole) -> Result<PodKey, NameError> {
    let group = key.group.as_str().rsplit('/').next().unwrap_or_default();
    let name = format!("{group}.{}.{}", key.role, key.index);
    let mut name = name.replace('/', ".");
    name.truncate(name.floor_char_boundary(253));
    let namespace = match role.pod.metadata.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    };
    PodKey::new(namespace, &name)
}
