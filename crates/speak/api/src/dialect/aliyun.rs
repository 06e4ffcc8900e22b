//! Aliyun GPUShare: `aliyun.com/gpu-mem` on containers, five annotations per pod.
//!
//! Keys and values as the original scheduler extender (c0b6141) and device plugin (45fb8b8)
//! write and read them. Amounts on the wire are in the cluster's unit, MiB or GiB.

use std::collections::BTreeMap;

use sublet_model::{
    Allocation, Ask, CardRef, Claim, ContainerClaim, Demand, DialectName, GpuIndex, Grant, MiB,
    NodeFacts, Part, Portion, Role, Sharing, Unit,
};

use super::{Asked, ClaimError, Dialect, NodeCards, OfferedCards, OfferedDevice, Offering};
use crate::allocation::AllocationError;
use crate::keys;
use crate::node::{NodeDefaults, NodeError, capacity};
use crate::object::{Node, Pod};

pub(super) struct Aliyun;

/// An amount below this is meant in GiB where a unit is a MiB: GPUShare's own samples ask for `2`. No
/// card has as many GiB, and a CUDA context alone takes more MiB.
const FEW_MIB: u64 = 64;

impl Dialect for Aliyun {
    fn name(&self) -> DialectName {
        DialectName("aliyun")
    }

    fn resources(&self) -> &'static [&'static str] {
        &[keys::ALIYUN_GPU_MEM, keys::ALIYUN_GPU_CORE]
    }

    fn node_resources(&self) -> &'static [&'static str] {
        &[keys::ALIYUN_GPU_COUNT]
    }

    fn demand(&self, asked: &Asked<'_>) -> Result<Option<Demand>, ClaimError> {
        let [memory, compute] = [keys::ALIYUN_GPU_MEM, keys::ALIYUN_GPU_CORE];
        let Some([units, _]) = asked.amounts([memory, compute])? else {
            return Ok(None);
        };
        let amount = asked.unit.times(units);
        let amount = amount.ok_or_else(|| asked.too_large(memory))?;
        let part = Part {
            compute: asked.percent(compute)?,
            ..Part::of_memory(amount)
        };
        Ok(Some(Demand {
            portion: Portion::Part(part),
            ..Demand::of_memory(amount)
        }))
    }

    fn remark(&self, container: &ContainerClaim, unit: Unit) -> Option<String> {
        let (asked, name) = (memory_of(container).get(), &container.name);
        let is_odd = unit == Unit::MiB && asked < FEW_MIB;
        is_odd.then(|| {
            format!(
                "container {name} asks for {asked} of `{resource}`, and one is a MiB here \
                 (--memory-unit): that is {asked} MiB of a GPU, too little for any CUDA program; if \
                 GiB are meant, write {}",
                asked << 10,
                resource = keys::ALIYUN_GPU_MEM,
            )
        })
    }

    fn cards(&self, node: &Node, defaults: NodeDefaults) -> Result<Option<NodeCards>, NodeError> {
        let units = capacity(node, keys::ALIYUN_GPU_MEM)?;
        if units == 0 {
            return Ok(None);
        }
        let count = capacity(node, keys::ALIYUN_GPU_COUNT)?;
        // Not a whole number of units per card: the rest is on no card.
        let per_card = defaults.unit.times(units.checked_div(count).unwrap_or(0));
        let memory = per_card.unwrap_or(MiB::MAX);
        NodeCards::equal(count, memory, Sharing::Memory).map(Some)
    }

    fn offering(&self) -> Option<Offering> {
        Some(Offering {
            resource: keys::ALIYUN_GPU_MEM,
            device: OfferedDevice::Unit,
            // The original's name, for users who look into kubelet's folder.
            socket: "aliyungpushare.sock",
        })
    }

    fn amounts(&self, cards: &OfferedCards) -> Vec<(&'static str, u64)> {
        let count = match cards.sharing {
            Sharing::Whole => 0,
            Sharing::Memory | Sharing::Both => cards.count,
        };
        let compute = count.saturating_mul(100);
        vec![
            (keys::ALIYUN_GPU_COUNT, count),
            (keys::ALIYUN_GPU_CORE, compute),
        ]
    }

    fn result_keys(&self) -> &'static [&'static str] {
        &[
            keys::ALIYUN_IDX,
            keys::ALIYUN_POD,
            keys::ALIYUN_DEV,
            keys::ALIYUN_ASSUME_TIME,
            keys::ALIYUN_ASSIGNED,
            keys::ALIYUN_ALLOCATION,
        ]
    }

    fn assigned_mark(&self, pod: &Pod) -> Option<bool> {
        let mark = pod.metadata.annotations.get(keys::ALIYUN_ASSIGNED)?;
        Some(mark == "true")
    }

    fn older_allocation(
        &self,
        pod: &Pod,
        claim: &Claim,
    ) -> Result<Option<Allocation>, AllocationError> {
        if let Some(text) = pod.metadata.annotations.get(keys::ALIYUN_ALLOCATION) {
            return Ok(Some(on_card(claim, card_of_map(text)?)));
        }
        let Some(text) = pod.metadata.annotations.get(keys::ALIYUN_IDX) else {
            return Ok(None);
        };
        let index = text.parse().map_err(|_| AllocationError::Number {
            key: keys::ALIYUN_IDX,
            value: text.clone(),
            wanted: "the index of a GPU",
        })?;
        Ok(Some(on_card(claim, GpuIndex(index))))
    }

    fn results(
        &self,
        claim: &Claim,
        allocation: &Allocation,
        facts: &NodeFacts,
        now_ns: u64,
    ) -> BTreeMap<String, String> {
        let Some(grant) = allocation.grants.first() else {
            return BTreeMap::new();
        };
        let index = grant.card.index;
        let main = claim.containers().iter().filter(|c| c.role == Role::Main);
        let map: BTreeMap<String, BTreeMap<String, u64>> = main
            .map(|c| {
                let part = BTreeMap::from([(index.to_string(), units(facts.unit, memory_of(c)))]);
                (c.position.to_string(), part)
            })
            .collect();
        let map = serde_json::to_string(&map).expect("strings and numbers are always JSON");
        strings([
            (keys::ALIYUN_IDX, index.to_string()),
            (keys::ALIYUN_POD, units(facts.unit, peak(claim)).to_string()),
            (keys::ALIYUN_DEV, card_units(facts, grant).to_string()),
            (keys::ALIYUN_ASSUME_TIME, now_ns.to_string()),
            (keys::ALIYUN_ASSIGNED, "false".to_owned()),
            (keys::ALIYUN_ALLOCATION, map),
        ])
    }

    fn handed_over(&self, _claim: &Claim, now_ns: u64) -> BTreeMap<String, String> {
        strings([
            (keys::ALIYUN_ASSIGNED, "true".to_owned()),
            (keys::ALIYUN_ASSUME_TIME, now_ns.to_string()),
        ])
    }

    fn environment(
        &self,
        claim: &Claim,
        allocation: &Allocation,
        container: &ContainerClaim,
        facts: &NodeFacts,
    ) -> BTreeMap<String, String> {
        let Some(grant) = allocation.of(&container.name).next() else {
            return BTreeMap::new();
        };
        strings([
            (keys::ALIYUN_IDX, grant.card.index.to_string()),
            (keys::ALIYUN_POD, units(facts.unit, peak(claim)).to_string()),
            (
                keys::ALIYUN_CONTAINER,
                units(facts.unit, memory_of(container)).to_string(),
            ),
            (keys::ALIYUN_DEV, card_units(facts, grant).to_string()),
        ])
    }
}

/// The one card that `{"0":{"1":3},"1":{"1":2}}` names: container, card, units.
fn card_of_map(text: &str) -> Result<GpuIndex, AllocationError> {
    let key = keys::ALIYUN_ALLOCATION;
    let map: BTreeMap<String, BTreeMap<String, u64>> =
        serde_json::from_str(text).map_err(|cause| AllocationError::Json { key, cause })?;
    let mut cards = map.values().flat_map(BTreeMap::keys);
    let Some(first) = cards.next() else {
        return Err(AllocationError::Mismatch { key });
    };
    if cards.any(|card| card != first) {
        // A pod stays on one card: that is what the ledger can account for.
        return Err(AllocationError::Mismatch { key });
    }
    first
        .parse()
        .map(GpuIndex)
        .map_err(|_| AllocationError::Number {
            key,
            value: first.clone(),
            wanted: "the index of a GPU",
        })
}

fn on_card(claim: &Claim, index: GpuIndex) -> Allocation {
    let grant = |container: &ContainerClaim| Grant {
        container: container.name.clone(),
        card: CardRef { index, uuid: None },
        memory: memory_of(container),
    };
    Allocation {
        grants: claim.containers().iter().map(grant).collect(),
    }
}

fn memory_of(container: &ContainerClaim) -> MiB {
    match container.demand.portion {
        Portion::Part(part) => part.memory,
        Portion::Whole => MiB::ZERO,
    }
}

fn peak(claim: &Claim) -> MiB {
    match claim.ask() {
        Ask::Parts(parts) => parts.memory(),
        Ask::WholeCards(_) | Ask::Nothing => MiB::ZERO,
    }
}

/// Amounts were whole units when they came in, so they are again when they go out.
fn units(unit: Unit, memory: MiB) -> u64 {
    unit.whole_in(memory)
}

fn card_units(facts: &NodeFacts, grant: &Grant) -> u64 {
    let position = facts.inventory.position(&grant.card);
    let memory = position.map_or(MiB::ZERO, |at| facts.inventory.gpus()[at].memory);
    units(facts.unit, memory)
}

fn strings<const N: usize>(pairs: [(&str, String); N]) -> BTreeMap<String, String> {
    pairs
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
}
