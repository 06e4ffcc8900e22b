//! A dialect as small as one can be, as CONTRIBUTING's recipe says: this file, and its line in
//! [`DIALECTS`](super::DIALECTS). Only the tests of this crate have it.

use sublet_model::{Count, Demand, DialectName, MiB, Milli, Part, Portion, Sharing, Unit};

use super::{Dialect, EqualCards, OfferedDevice, Offering};
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

    fn demand(&self, amounts: &[u64], _: Unit) -> Result<Demand, usize> {
        let gpus = Count::new(u32::try_from(amounts[0]).map_err(|_| 0_usize)?);
        let percent = u16::try_from(amounts[1]).ok();
        let milli = percent.and_then(|percent| Milli::new(percent.checked_mul(10)?));
        let part = Part {
            memory: MiB::new(amounts[1]).ok_or(1_usize)?,
            compute: milli.ok_or(1_usize)?,
        };
        Ok(Demand {
            gpus,
            portion: Portion::Part(part),
            ..Demand::of_cards(gpus)
        })
    }

    fn cards(&self, node: &Node, _: NodeDefaults) -> Result<Option<EqualCards>, NodeError> {
        let count = capacity(node, "toy.dev/gpu")?;
        Ok((count > 0).then_some(EqualCards {
            count,
            memory: MiB::from(100),
            sharing: Sharing::Memory,
        }))
    }

    fn offering(&self) -> Offering {
        Offering {
            device: OfferedDevice::Card,
            socket: "toy.sock",
        }
    }

    fn result_keys(&self) -> &'static [&'static str] {
        &["toy.dev/card"]
    }
}
