//! The slots of a plan as the ledger has them while no pod does.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{Claim, Entry, NameError, PodKey, PodUid, Standing};
use sublet_queue::{GroupId, Slot, SlotKey};

use super::{GangPlan, PlannedRole};
use crate::dialect::ClaimError;

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
