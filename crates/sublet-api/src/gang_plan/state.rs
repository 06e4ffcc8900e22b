//! A plan as the protocol sees it (`sublet_queue::protocol`), and back.

use sublet_queue::GroupId;
use sublet_queue::protocol::{GroupPlan, PlanState, SlotState};

use super::{GangPlan, PlannedGroup, PlannedSlot};

impl GangPlan {
    /// Facts by which the protocol decides.
    #[must_use]
    pub fn state(&self) -> PlanState {
        let slot = |slot: &PlannedSlot| SlotState {
            role: slot.role.clone(),
            index: slot.index,
            node: slot.node.clone(),
            pod: slot.pod.clone(),
        };
        let group = |group: &PlannedGroup| GroupPlan {
            group: GroupId::new(group.id.clone()),
            slots: group.slots.iter().map(slot).collect(),
            victims: group.victims.iter().map(|one| one.uid.clone()).collect(),
        };
        PlanState {
            name: self.name.clone(),
            epoch: self.epoch,
            deadline: self.deadline,
            groups: self.groups.iter().map(group).collect(),
        }
    }

    /// The plan that the protocol wants: the remaining groups and slots, each slot with its present
    /// pod.
    #[must_use]
    pub fn rewritten(&self, wanted: &PlanState) -> GangPlan {
        let mut plan = self.clone();
        (plan.epoch, plan.deadline) = (wanted.epoch, wanted.deadline);
        plan.groups.retain_mut(|group| {
            let mut parts = wanted.groups.iter();
            let Some(part) = parts.find(|part| part.group.as_str() == &*group.id) else {
                return false;
            };
            group.slots.retain_mut(|slot| {
                let is_it = |left: &&SlotState| left.role == slot.role && left.index == slot.index;
                let left = part.slots.iter().find(is_it);
                slot.pod = left.and_then(|left| left.pod.clone());
                left.is_some()
            });
            true
        });
        plan
    }
}
