//! A dialect as small as one can be, as CONTRIBUTING's recipe says: this file, and its line in
//! [`DIALECTS`](super::DIALECTS). Only the tests of this crate have it.

use sublet_model::{Demand, DialectName, MiB, Part, Portion, Sharing};

use super::{Asked, ClaimError, Dialect, NodeCards, OfferedDevice, Offering};
use crate::node::{NodeDefaults, NodeError, capacity};
use crate::object::Node;

/// `toy.dev/gpu`, with `toy.dev/percent` of each card's compute time and memory.
pub(super) struct Toy;

impl Dialect for Toy {
    fn name(&self) -> DialectName {
        DialectName("toy")
    }

    fn resources(&self) -> &'static [&'static str] {
        &["toy.dev/gpu", "toy.dev/percent"]
    }

    fn demand(&self, asked: &Asked<'_>) -> Result<Option<Demand>, ClaimError> {
        let Some([_, percent]) = asked.amounts(["toy.dev/gpu", "toy.dev/percent"])? else {
            return Ok(None);
        };
        let gpus = asked.cards("toy.dev/gpu")?;
        let part = Part {
            memory: MiB::new(percent).unwrap_or(MiB::MAX),
            compute: asked.percent("toy.dev/percent")?,
            ..Part::ZERO
        };
        Ok(Some(Demand {
            gpus,
            portion: Portion::Part(part),
            ..Demand::of_cards(gpus)
        }))
    }

    fn cards(&self, node: &Node, _: NodeDefaults) -> Result<Option<NodeCards>, NodeError> {
        let count = capacity(node, "toy.dev/gpu")?;
        if count == 0 {
            return Ok(None);
        }
        NodeCards::equal(count, MiB::from(100), Sharing::Memory).map(Some)
    }

    fn offering(&self) -> Option<Offering> {
        Some(Offering {
            resource: "toy.dev/gpu",
            device: OfferedDevice::Card,
            socket: "toy.sock",
        })
    }

    fn result_keys(&self) -> &'static [&'static str] {
        &["toy.dev/card"]
    }
}
