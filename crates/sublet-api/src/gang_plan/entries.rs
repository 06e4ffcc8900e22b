//! The slots of a plan as the ledger has them while no pod does.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{Claim, Entry, NameError, PodKey, PodUid, Standing};

use super::{GangPlan, PlannedGroup, PlannedRole, PlannedSlot, SlotKey};
use crate::dialect::ClaimError;

/// A slot for the ledger.
#[derive(Debug, Clone)]
pub struct SlotEntry {
    /// Key of the slot.
    pub key: SlotKey,
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
        group: Arc<str>,
        /// The role.
        role: Arc<str>,
        /// Why.
        error: ClaimError,
    },
    /// The cards of a slot do not match the request of its role.
    #[error("slot {role}/{index} of {group} has not what it asks")]
    Allocation {
        /// The group.
        group: Arc<str>,
        /// The role.
        role: Arc<str>,
        /// Index of the member.
        index: u32,
    },
    /// A slot has no name that the ledger takes.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl GangPlan {
    /// All slots for the ledger. `claim`: the claim of a role's members.
    ///
    /// # Errors
    /// The first slot that the ledger cannot have. None of the plan counts then.
    pub fn entries(
        &self,
        claim: impl Fn(&PlannedRole) -> Result<Claim, ClaimError>,
    ) -> Result<Vec<SlotEntry>, SlotError> {
        let mut entries = Vec::new();
        for group in &self.groups {
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
                let key = self.key_of(group, slot);
                entries.push(entry_of(group, role, slot, claim, key)?);
            }
        }
        Ok(entries)
    }
}

fn entry_of(
    group: &PlannedGroup,
    role: &PlannedRole,
    slot: &PlannedSlot,
    claim: &Arc<Claim>,
    key: SlotKey,
) -> Result<SlotEntry, SlotError> {
    if !slot.allocation.answers(claim) {
        return Err(SlotError::Allocation {
            group: group.id.clone(),
            role: slot.role.clone(),
            index: slot.index,
        });
    }
    let own = Entry {
        pod: stand_in(group, role, slot)?,
        uid: key.uid()?,
        node: slot.node.clone(),
        claim: claim.clone(),
        allocation: Some(slot.allocation.clone()),
        standing: Standing::Reserved,
        // Nobody waits for its devices yet.
        assigned: true,
        priority: role.pod.spec.priority.unwrap_or(0),
    };
    let of = slot.pod.clone();
    Ok(SlotEntry { key, of, own })
}

/// Name of a slot in place of a pod's name, for people and for its namespace's quotas:
/// `g1.worker.0`. A role of a group of gangs has slashes in its name; a pod's name has none.
fn stand_in(
    group: &PlannedGroup,
    role: &PlannedRole,
    slot: &PlannedSlot,
) -> Result<PodKey, NameError> {
    let group = group.id.rsplit('/').next().unwrap_or_default();
    let name = format!("{group}.{}.{}", slot.role, slot.index);
    let mut name = name.replace('/', ".");
    name.truncate(name.floor_char_boundary(253));
    let namespace = match role.pod.metadata.namespace.as_str() {
        "" => "default",
        namespace => namespace,
    };
    PodKey::new(namespace, &name)
}
