//! `scheduling.koordinator.sh/device-allocated`: a pod's cards and its amounts on each.
//!
//! `{"gpu":[{"minor":3,"resources":{"koordinator.sh/gpu-core":"50",…},"id":"GPU-…"}]}`, the fields
//! in Koordinator's order. It names no containers: in Koordinator each container has all the cards.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sublet_model::{
    Allocation, Bytes, CardRef, Charge, Claim, GpuIndex, GpuUuid, Grant, MiB, Milli, NodeFacts,
    Part, Portion, Role,
};
use sublet_queue::quantity;

use super::mib_of;
use crate::allocation::AllocationError;
use crate::keys;
use crate::object::Quantity;
use crate::quantity::bytes;

const KEY: &str = keys::KOORDINATOR_ALLOCATED;

#[derive(Serialize)]
struct DeviceJson {
    minor: u16,
    resources: BTreeMap<&'static str, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
}

/// The annotation's text.
pub(super) fn to_json(charges: &[Charge], facts: &NodeFacts) -> String {
    let devices: Vec<DeviceJson> = charges.iter().map(|one| device_of(one, facts)).collect();
    let all = BTreeMap::from([("gpu", devices)]);
    serde_json::to_string(&all).expect("strings and numbers are always JSON")
}

fn device_of(charge: &Charge, facts: &NodeFacts) -> DeviceJson {
    let position = facts.inventory.position(&charge.card);
    let gpu = position.map(|at| &facts.inventory.gpus()[at]);
    let total = gpu.map_or(MiB::ZERO, |gpu| gpu.memory);
    let part = match charge.whole {
        true => Part::whole(total),
        false => charge.part,
    };
    let memory = part.on(total).memory;
    let ratio = match part.memory {
        // A percentage as it was asked, and not what is left of it after rounding.
        MiB::ZERO => part.memory_share,
        _ => Milli::share(memory, total),
    };
    let mut resources = BTreeMap::from([
        (keys::KOORDINATOR_MEMORY, written(memory)),
        (keys::KOORDINATOR_RATIO, (ratio.get() / 10).to_string()),
    ]);
    if part.compute > Milli::ZERO {
        let core = part.compute.get() / 10;
        resources.insert(keys::KOORDINATOR_CORE, core.to_string());
    }
    let uuid = charge.card.uuid.as_ref();
    DeviceJson {
        // Where the minor is not known Koordinator, too, takes the one number for the other.
        minor: gpu.and_then(|gpu| gpu.minor).unwrap_or(charge.card.index.0),
        resources,
        id: uuid.map(GpuUuid::to_string),
    }
}

/// An amount of memory as Kubernetes writes it.
pub(super) fn written(memory: MiB) -> String {
    quantity(keys::KOORDINATOR_MEMORY, Bytes::from(memory).get())
}

#[derive(Deserialize)]
struct ReadJson {
    minor: i64,
    #[serde(default)]
    resources: Option<BTreeMap<String, Quantity>>,
    #[serde(default)]
    id: Option<String>,
}

/// The allocation of a pod that Koordinator bound.
pub(super) fn from_json(text: &str, claim: &Claim) -> Result<Allocation, AllocationError> {
    let all: BTreeMap<String, Option<Vec<ReadJson>>> =
        serde_json::from_str(text).map_err(|cause| AllocationError::Json { key: KEY, cause })?;
    let gpus = all.get("gpu").and_then(Option::as_ref);
    let cards = gpus.into_iter().flatten().map(card_of);
    let cards: Vec<(CardRef, MiB)> = cards.collect::<Result<_, _>>()?;
    let mismatch = AllocationError::Mismatch { key: KEY };
    // What the pod holds beyond its claim would be charged to nobody.
    if cards.len() != claim.ask().gpus().get() as usize {
        return Err(mismatch);
    }
    match over_containers(claim, &cards) {
        Some(allocation) if allocation.answers(claim) => Ok(allocation),
        _ => Err(mismatch),
    }
}

/// A card, and the amount of its memory that the pod has.
fn card_of(read: &ReadJson) -> Result<(CardRef, MiB), AllocationError> {
    let number = |value: String, wanted| AllocationError::Number {
        key: KEY,
        value,
        wanted,
    };
    let index = u16::try_from(read.minor);
    let index = index.map_err(|_| number(read.minor.to_string(), "the number of a GPU"))?;
    let id = read.id.as_deref().filter(|id| !id.is_empty());
    let uuid = id.map(GpuUuid::new).transpose();
    let uuid = uuid.map_err(|cause| AllocationError::Name { key: KEY, cause })?;
    let resources = read.resources.as_ref();
    let memory = resources.and_then(|all| all.get(keys::KOORDINATOR_MEMORY));
    let memory = match memory {
        None => MiB::ZERO,
        Some(Quantity(text)) => {
            let amount = bytes(text).ok().and_then(mib_of);
            amount.ok_or_else(|| number(text.clone(), "an amount of memory"))?
        }
    };
    let index = GpuIndex(index);
    Ok((CardRef { index, uuid }, memory))
}

/// The pod's cards as our containers have them: parts on the first ones, whole cards one after the
/// other. The sum is the same, whichever container really uses which.
fn over_containers(claim: &Claim, cards: &[(CardRef, MiB)]) -> Option<Allocation> {
    let mut grants = Vec::new();
    let mut taken = 0_usize;
    for container in claim.containers() {
        let gpus = container.demand.gpus.get() as usize;
        let (first, asked) = match container.demand.portion {
            Portion::Part(part) => (0_usize, Some(part)),
            Portion::Whole => (taken, None),
        };
        for (card, held) in cards.get(first..first.checked_add(gpus)?)? {
            grants.push(Grant {
                container: container.name.clone(),
                card: card.clone(),
                memory: match asked {
                    Some(part) if part.memory_share == Milli::ZERO => part.memory,
                    _ => *held,
                },
            });
        }
        // An init container ends before the next one starts.
        if asked.is_none() && container.role != Role::Init {
            taken += gpus;
        }
    }
    Some(Allocation { grants })
}
