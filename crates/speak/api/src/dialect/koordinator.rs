//! Koordinator's deviceshare: `koordinator.sh/gpu-core`, `gpu-memory` and others on containers, three
//! annotations of wishes, three of results.
//!
//! Names, valid sets of resources and JSON as koord-scheduler (a7a1b76) reads and writes them. It
//! sums a pod's containers and gives each of them all the cards. Here each container gets what it
//! asks itself. Neither NICs nor FPGAs are handed out, so pods that ask for them are refused.

mod allocated;
pub mod device;

use std::collections::BTreeMap;

use serde::Deserialize;
use sublet_model::{
    Allocation, CardWishes, Claim, Count, Demand, DialectName, MiB, Milli, NodeFacts, Part,
    Portion, charges_of,
};

use super::asked::mib_of;
use super::{Asked, ClaimError, Dialect, OfferedCards};
use crate::allocation::AllocationError;
use crate::keys;
use crate::object::{Pod, Quantity};

pub(super) struct Koordinator;

/// Resources that only Koordinator hands out, and resources of other vendors' cards that stand
/// beside its names.
const NOT_OURS: [&str; 7] = [
    keys::KOORDINATOR_RDMA,
    keys::KOORDINATOR_FPGA,
    "dcu.com/gpu",
    "amd.com/gpu",
    "huawei.com/npu-core",
    "huawei.com/npu-cpu",
    "huawei.com/npu-dvpp",
];

/// The sets of resources that mean something, for people.
const VALID: &str = "`nvidia.com/gpu` alone, or `koordinator.sh/gpu` alone, or one of \
     `koordinator.sh/gpu-memory` and `koordinator.sh/gpu-memory-ratio`, with or without \
     `koordinator.sh/gpu-core` and `koordinator.sh/gpu.shared`";

impl Dialect for Koordinator {
    fn name(&self) -> DialectName {
        DialectName("koordinator")
    }

    fn resources(&self) -> &'static [&'static str] {
        &[
            keys::KOORDINATOR_GPU,
            keys::KOORDINATOR_CORE,
            keys::KOORDINATOR_MEMORY,
            keys::KOORDINATOR_RATIO,
            keys::KOORDINATOR_SHARED,
            // A pod that asks for one of these must hear that nobody hands it over.
            keys::KOORDINATOR_RDMA,
            keys::KOORDINATOR_FPGA,
        ]
    }

    fn marks(&self) -> &'static [&'static str] {
        &[
            keys::KOORDINATOR_HINT,
            keys::KOORDINATOR_JOINT,
            keys::KOORDINATOR_PARTITION,
        ]
    }

    fn extends(&self) -> Option<DialectName> {
        Some(DialectName("nvidia"))
    }

    /// Offers no network cards or FPGAs, so that no node takes a pod that asks for them.
    fn amounts(&self, cards: &OfferedCards) -> Vec<(&'static str, u64)> {
        let shared = cards.count.saturating_mul(cards.containers);
        vec![
            (keys::KOORDINATOR_GPU, cards.percent()),
            (keys::KOORDINATOR_CORE, cards.percent()),
            (keys::KOORDINATOR_MEMORY, cards.bytes()),
            (keys::KOORDINATOR_RATIO, cards.percent()),
            (keys::KOORDINATOR_SHARED, shared),
        ]
    }

    fn demand(&self, asked: &Asked<'_>) -> Result<Option<Demand>, ClaimError> {
        for resource in NOT_OURS {
            if asked.amount(resource)? > 0 {
                return Err(asked.together(format!(
                    "Sublet does not hand out `{resource}`: leave it out, or leave the pod to \
                     Koordinator"
                )));
            }
        }
        let amounts = Amounts::of(asked)?;
        let has = amounts.each().map(|(_, amount)| amount > 0);
        match has {
            [false, false, false, false, false, false] => Ok(None),
            [true, false, false, false, false, false] => {
                Ok(Some(Demand::of_cards(asked.cards(keys::NVIDIA_GPU)?)))
            }
            [false, true, false, false, false, false] => {
                let percent = (keys::KOORDINATOR_GPU, amounts.gpu);
                amounts.by_ratio(asked, percent, percent).map(Some)
            }
            [false, false, _, _, false, true] => {
                let ratio = (keys::KOORDINATOR_RATIO, amounts.ratio);
                let core = (keys::KOORDINATOR_CORE, amounts.core);
                amounts.by_ratio(asked, ratio, core).map(Some)
            }
            [false, false, _, _, true, false] => amounts.by_memory(asked).map(Some),
            _ => {
                let named = amounts.each().into_iter().filter(|(_, amount)| *amount > 0);
                let named: Vec<String> = named.map(|(name, _)| format!("`{name}`")).collect();
                Err(asked.together(format!(
                    "{} do not go together: write {VALID}",
                    named.join(", ")
                )))
            }
        }
    }

    fn wishes(&self, pod: &Pod) -> Result<CardWishes, ClaimError> {
        let annotations = &pod.metadata.annotations;
        if let Some(text) = annotations.get(keys::KOORDINATOR_JOINT) {
            check_joint(text)?;
        }
        if let Some(text) = annotations.get(keys::KOORDINATOR_PARTITION) {
            check_partition(text)?;
        }
        let hint = annotations.get(keys::KOORDINATOR_HINT);
        Ok(CardWishes {
            one_numa: hint.map_or(Ok(false), |text| wants_one_numa(text))?,
            ..CardWishes::default()
        })
    }

    fn result_keys(&self) -> &'static [&'static str] {
        &[
            keys::KOORDINATOR_ALLOCATED,
            keys::KOORDINATOR_MINORS,
            keys::KOORDINATOR_BOUND,
        ]
    }

    fn older_allocation(
        &self,
        pod: &Pod,
        claim: &Claim,
    ) -> Result<Option<Allocation>, AllocationError> {
        let text = pod.metadata.annotations.get(keys::KOORDINATOR_ALLOCATED);
        match text.filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => allocated::from_json(text, claim).map(Some),
        }
    }

    fn results(
        &self,
        claim: &Claim,
        allocation: &Allocation,
        facts: &NodeFacts,
        now_ns: u64,
    ) -> BTreeMap<String, String> {
        let mut charges = charges_of(claim, allocation);
        charges.sort_by_key(|charge| charge.card.index);
        let devices = allocated::to_json(&charges, facts);
        // Users hand these numbers to NVIDIA_VISIBLE_DEVICES, which counts as NVML does. Where a
        // card's minor is another number, the minor would name another pod's card.
        let indices = charges.iter().map(|charge| charge.card.index.to_string());
        let indices: Vec<String> = indices.collect();
        BTreeMap::from([
            (keys::KOORDINATOR_ALLOCATED.to_owned(), devices),
            (keys::KOORDINATOR_MINORS.to_owned(), indices.join(",")),
            (keys::KOORDINATOR_BOUND.to_owned(), now_ns.to_string()),
        ])
    }
}

/// Amounts that a container asks, as written; 0 for a resource that it does not ask.
struct Amounts {
    nvidia: u64,
    gpu: u64,
    shared: u64,
    core: u64,
    /// In bytes.
    memory: u64,
    ratio: u64,
}

impl Amounts {
    fn of(asked: &Asked<'_>) -> Result<Amounts, ClaimError> {
        Ok(Amounts {
            nvidia: asked.amount(keys::NVIDIA_GPU)?,
            gpu: asked.amount(keys::KOORDINATOR_GPU)?,
            shared: asked.amount(keys::KOORDINATOR_SHARED)?,
            core: asked.amount(keys::KOORDINATOR_CORE)?,
            memory: asked.bytes(keys::KOORDINATOR_MEMORY)?,
            ratio: asked.amount(keys::KOORDINATOR_RATIO)?,
        })
    }

    fn each(&self) -> [(&'static str, u64); 6] {
        [
            (keys::NVIDIA_GPU, self.nvidia),
            (keys::KOORDINATOR_GPU, self.gpu),
            (keys::KOORDINATOR_SHARED, self.shared),
            (keys::KOORDINATOR_CORE, self.core),
            (keys::KOORDINATOR_MEMORY, self.memory),
            (keys::KOORDINATOR_RATIO, self.ratio),
        ]
    }

    /// Percent of memory: all of a card is a card for this container alone.
    fn by_ratio(
        &self,
        asked: &Asked<'_>,
        ratio: (&'static str, u64),
        core: (&'static str, u64),
    ) -> Result<Demand, ClaimError> {
        let cards = self.cards(ratio.1);
        let memory_share = self.of_each(asked, ratio, cards)?;
        let compute = self.of_each(asked, core, cards)?;
        let gpus = count(asked, ratio.0, cards)?;
        if memory_share == Milli::WHOLE {
            return Ok(Demand::of_cards(gpus));
        }
        let part = Part {
            memory_share,
            compute,
            ..Part::ZERO
        };
        Ok(part_of(asked, gpus, part))
    }

    /// Bytes of memory, of all its cards together.
    fn by_memory(&self, asked: &Asked<'_>) -> Result<Demand, ClaimError> {
        // Koordinator's webhook, too, takes the number of cards from the compute time here.
        let cards = self.cards(self.core);
        let compute = self.of_each(asked, (keys::KOORDINATOR_CORE, self.core), cards)?;
        let part = Part {
            compute,
            ..Part::of_memory(mib_of(self.memory.div_ceil(cards)).unwrap_or(MiB::MAX))
        };
        Ok(part_of(
            asked,
            count(asked, keys::KOORDINATOR_SHARED, cards)?,
            part,
        ))
    }

    /// Number of cards that the container asks. Percentages count too: 200 are two cards.
    fn cards(&self, percent: u64) -> u64 {
        match self.shared {
            0 => (percent / 100).max(1),
            shared => shared,
        }
    }

    /// Share of each card, from a percentage of all cards together.
    fn of_each(
        &self,
        asked: &Asked<'_>,
        (name, percent): (&str, u64),
        cards: u64,
    ) -> Result<Milli, ClaimError> {
        let is_of_whole_cards = self.shared > 0 || percent <= 100 || percent.is_multiple_of(100);
        let each = (is_of_whole_cards && percent.is_multiple_of(cards)).then(|| percent / cards);
        let each = each.and_then(|each| Milli::new(u16::try_from(each).ok()?.checked_mul(10)?));
        each.ok_or_else(|| {
            asked.together(format!(
                "`{name}` is {percent} for {cards} card{}: it must be the same for each card and \
                 100 at most, and without `{}` a multiple of 100 if it is more",
                if cards == 1 { "" } else { "s" },
                keys::KOORDINATOR_SHARED,
            ))
        })
    }
}

fn count(asked: &Asked<'_>, name: &'static str, cards: u64) -> Result<Count, ClaimError> {
    let cards = u32::try_from(cards).map_err(|_| asked.too_large(name))?;
    Ok(Count::new(cards))
}

/// The core share is a promise: koord-scheduler sets it aside. It is also a limit only if the pod's
/// label names HAMi-core: only then koordlet enforces it (`CUDA_DEVICE_SM_LIMIT`).
fn part_of(asked: &Asked<'_>, gpus: Count, part: Part) -> Demand {
    let provider = asked.pod.metadata.labels.get(keys::KOORDINATOR_ISOLATION);
    let is_limited = provider.is_some_and(|provider| provider == "HAMi-core");
    Demand {
        gpus,
        portion: Portion::Part(part),
        compute_limit: match part.compute {
            compute if is_limited && compute > Milli::ZERO => compute,
            _ => Milli::WHOLE,
        },
    }
}

/// `{"gpu":{…},"rdma":{…}}`: requirements on cards.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct HintJson {
    selector: Option<BTreeMap<String, serde_json::Value>>,
    vf_selector: Option<BTreeMap<String, serde_json::Value>>,
    // How many devices an amount means, of network cards only: for GPUs Koordinator does not read it.
    #[serde(rename = "allocateStrategy")]
    _allocate_strategy: Option<String>,
    required_topology_scope: Option<String>,
    exclusive_policy: Option<String>,
}

/// Must the pod's cards be of one NUMA node? All else that a hint can require is refused, until
/// topology is there.
fn wants_one_numa(text: &str) -> Result<bool, ClaimError> {
    let wrong = |wanted| wrong_field(keys::KOORDINATOR_HINT, text, wanted);
    let hints: BTreeMap<String, Option<HintJson>> = serde_json::from_str(text)
        .map_err(|_| wrong("JSON such as `{\"gpu\":{\"requiredTopologyScope\":\"NUMANode\"}}`"))?;
    let mut one_numa = false;
    for (device, hint) in hints {
        let hint = hint.unwrap_or_default();
        let selects = [&hint.selector, &hint.vf_selector].into_iter().flatten();
        // An empty selector takes every device.
        if selects.into_iter().any(|selector| !selector.is_empty()) {
            return Err(wrong("no selector: Sublet knows no labels of devices yet"));
        }
        if hint
            .exclusive_policy
            .is_some_and(|policy| !policy.is_empty())
        {
            return Err(wrong(
                "no `exclusivePolicy`: Sublet keeps no pods off each other's devices yet",
            ));
        }
        match hint.required_topology_scope.as_deref() {
            // All cards of a pod are on one node anyway.
            None | Some("" | "Node") => {}
            Some("NUMANode") => one_numa |= device == "gpu",
            Some(_) => {
                return Err(wrong(
                    "`NUMANode` or `Node` as `requiredTopologyScope`: Sublet does not place by \
                     PCIe topology yet",
                ));
            }
        }
    }
    Ok(one_numa)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JointJson {
    // Devices that should be near each other. Of those only GPUs can be asked for here.
    #[serde(rename = "deviceTypes", default)]
    _device_types: Option<Vec<String>>,
    #[serde(default)]
    required_scope: Option<String>,
}

fn check_joint(text: &str) -> Result<(), ClaimError> {
    let wrong = |wanted| wrong_field(keys::KOORDINATOR_JOINT, text, wanted);
    let joint: JointJson = serde_json::from_str(text)
        .map_err(|_| wrong("JSON such as `{\"deviceTypes\":[\"gpu\"]}`"))?;
    match joint.required_scope.as_deref() {
        None | Some("") => Ok(()),
        Some(_) => Err(wrong(
            "no `requiredScope`: Sublet does not place by PCIe topology yet",
        )),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PartitionJson {
    #[serde(default)]
    allocate_policy: Option<String>,
    #[serde(default)]
    ring_bus_bandwidth: Option<Quantity>,
}

/// The best effort is made: any cards are the best that we can tell apart.
fn check_partition(text: &str) -> Result<(), ClaimError> {
    let wrong = |wanted| wrong_field(keys::KOORDINATOR_PARTITION, text, wanted);
    let spec: PartitionJson = serde_json::from_str(text)
        .map_err(|_| wrong("JSON such as `{\"allocatePolicy\":\"BestEffort\"}`"))?;
    match spec.allocate_policy.as_deref() {
        None | Some("" | "BestEffort") if spec.ring_bus_bandwidth.is_none() => Ok(()),
        _ => Err(wrong(
            "`BestEffort` as `allocatePolicy` and no `ringBusBandwidth`: Sublet does not place by \
             partitions yet",
        )),
    }
}

fn wrong_field(field: &'static str, value: &str, wanted: &'static str) -> ClaimError {
    ClaimError::Field {
        field,
        value: value.to_owned(),
        wanted,
    }
}
