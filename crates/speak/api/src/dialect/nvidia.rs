//! NVIDIA: `nvidia.com/gpu`, whole cards. It has no annotations of its own, so a pod's allocation
//! stands in `sublet.dev/allocation` alone.

use sublet_model::{Count, Demand, DialectName, MiB, Sharing};

use super::{Asked, ClaimError, Dialect, NodeCards, OfferedDevice, Offering};
use crate::keys;
use crate::node::{NodeDefaults, NodeError, capacity};
use crate::object::Node;

pub(super) struct Nvidia;

impl Dialect for Nvidia {
    fn name(&self) -> DialectName {
        DialectName("nvidia")
    }

    fn resources(&self) -> &'static [&'static str] {
        &[keys::NVIDIA_GPU]
    }

    fn demand(&self, asked: &Asked<'_>) -> Result<Option<Demand>, ClaimError> {
        let cards = asked.cards(keys::NVIDIA_GPU)?;
        Ok((cards > Count::ZERO).then(|| Demand::of_cards(cards)))
    }

    fn cards(&self, node: &Node, _: NodeDefaults) -> Result<Option<NodeCards>, NodeError> {
        let count = capacity(node, keys::NVIDIA_GPU)?;
        let label = node.metadata.labels.get(keys::NVIDIA_MEMORY_LABEL);
        let memory = label.and_then(|text| MiB::new(text.parse().ok()?));
        if count == 0 {
            return Ok(None);
        }
        let memory = memory.unwrap_or(MiB::ZERO);
        NodeCards::equal(count, memory, Sharing::Whole).map(Some)
    }

    fn offering(&self) -> Option<Offering> {
        Some(Offering {
            resource: keys::NVIDIA_GPU,
            device: OfferedDevice::Card,
            socket: "sublet-gpu.sock",
        })
    }
}
