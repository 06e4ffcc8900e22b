//! The objects of the simulated API server, and the rules that they must obey after each write. The
//! server adds up by itself and never asks the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::{Allocation, Ask, Claim, GpuIndex, MiB, NodeFacts, NodeName, PodUid};

use crate::binding::{ApiAnswer, PodState};

/// A pod as the API server keeps it.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) bound: Option<(NodeName, Allocation)>,
    pub(super) assigned: bool,
}

/// All objects, and the times when the server cannot be reached.
#[derive(Default)]
pub(super) struct Server {
    pub(super) nodes: Vec<NodeFacts>,
    pub(super) claims: BTreeMap<PodUid, Arc<Claim>>,
    pub(super) pods: BTreeMap<PodUid, Object>,
    pub(super) down: Vec<(u64, u64)>,
}

impl Server {
    pub(super) fn is_down(&self, now: u64) -> bool {
        let within = |&(from, until): &(u64, u64)| from <= now && now < until;
        self.down.iter().any(within)
    }

    /// Writes a Binding as the server does: once, and only for a pod that exists.
    pub(super) fn bind(
        &mut self,
        pod: &PodUid,
        node: NodeName,
        allocation: Allocation,
    ) -> ApiAnswer {
        let refused = |code, message: &str| ApiAnswer::Refused {
            code,
            message: message.to_owned(),
        };
        match self.pods.get_mut(pod) {
            None => refused(404, "not found"),
            Some(object) if object.bound.is_some() => refused(409, "already assigned"),
            Some(object) => {
                object.bound = Some((node, allocation));
                ApiAnswer::Accepted
            }
        }
    }

    /// Compares the pod with the request of a Binding.
    pub(super) fn look(&self, pod: &PodUid, asked: &(NodeName, Allocation)) -> PodState {
        match self.pods.get(pod).map(|object| &object.bound) {
            None => PodState::Gone,
            Some(None) => PodState::Unbound,
            Some(Some(got)) if got == asked => PodState::AsAsked,
            Some(Some((node, _))) => PodState::Elsewhere(format!("bound to {node}")),
        }
    }

    /// Checks three rules: no card is granted beyond its capacity, a whole card has one pod, and
    /// look-alikes never start at the same time on node `c`.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut taken: BTreeMap<(&NodeName, GpuIndex), (MiB, u32)> = BTreeMap::new();
        let mut starting: Vec<&Claim> = Vec::new();
        for (pod, object) in &self.pods {
            let Some((node, allocation)) = &object.bound else {
                continue;
            };
            let claim = &self.claims[pod];
            let cards: BTreeSet<GpuIndex> =
                allocation.grants.iter().map(|g| g.card.index).collect();
            for card in cards {
                let amount = match claim.ask() {
                    Ask::Nothing => MiB::ZERO,
                    Ask::Parts(parts) => parts.memory(),
                    Ask::WholeCards(_) => self.capacity(node, card),
                };
                let account = taken.entry((node, card)).or_default();
                *account = (account.0.plus(amount), account.1 + 1);
            }
            if node.as_str() == "c" && !object.assigned {
                if starting
                    .iter()
                    .any(|other| other.looks_like(claim, sublet_model::Advertise::Units))
                {
                    return Err(format!("{pod} looks like another that starts on node c"));
                }
                starting.push(claim);
            }
        }
        for ((node, card), (amount, tenants)) in taken {
            if amount > self.capacity(node, card) {
                return Err(format!("{node}/{card}: {amount} taken by {tenants} pods"));
            }
        }
        Ok(())
    }

    fn capacity(&self, node: &NodeName, card: GpuIndex) -> MiB {
        let facts = self.nodes.iter().find(|facts| facts.name == *node).unwrap();
        facts.inventory.gpus()[usize::from(card.0)].memory
    }
}
