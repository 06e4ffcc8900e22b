//! Sublet's own short form: four resources on containers, an annotation and the label of the class.
//!
//! Its meaning is that of `sublet run --gpus 2 --memory 4GiB --compute 30%..80%`, in the same
//! words.

use sublet_model::{Count, Demand, DialectName, MiB, Milli, Part, Portion, Sharing};

use super::{Asked, ClaimError, Dialect, OfferedCards};
use crate::keys;
use crate::object::Pod;

pub(super) struct Sublet;

impl Dialect for Sublet {
    fn name(&self) -> DialectName {
        DialectName("sublet")
    }

    fn resources(&self) -> &'static [&'static str] {
        &[
            keys::GPU,
            keys::GPU_MEMORY,
            keys::GPU_MEMORY_PERCENT,
            keys::GPU_COMPUTE,
        ]
    }

    fn marks(&self) -> &'static [&'static str] {
        &[keys::COMPUTE_LIMIT]
    }

    fn amounts(&self, cards: &OfferedCards) -> Vec<(&'static str, u64)> {
        let times = match cards.sharing {
            Sharing::Whole => 1,
            // As often as containers can have a part of each.
            Sharing::Memory | Sharing::Both => cards.containers,
        };
        vec![
            (keys::GPU, cards.count.saturating_mul(times)),
            (keys::GPU_MEMORY, cards.bytes()),
            (keys::GPU_MEMORY_PERCENT, cards.percent()),
            (keys::GPU_COMPUTE, cards.percent()),
        ]
    }

    fn demand(&self, asked: &Asked<'_>) -> Result<Option<Demand>, ClaimError> {
        let gpus = asked.cards(keys::GPU)?;
        let part = Part {
            memory: asked.memory(keys::GPU_MEMORY)?,
            compute: asked.percent(keys::GPU_COMPUTE)?,
            memory_share: asked.percent(keys::GPU_MEMORY_PERCENT)?,
        };
        if gpus == Count::ZERO && part.is_zero() {
            return Ok(None);
        }
        let has_memory = part.memory > MiB::ZERO;
        let has_share = part.memory_share > Milli::ZERO;
        let portion = match (has_memory, has_share) {
            (true, true) => {
                return Err(asked.together(format!(
                    "`{}` and `{}` both say how much memory it gets: leave one of them out",
                    keys::GPU_MEMORY,
                    keys::GPU_MEMORY_PERCENT
                )));
            }
            (false, false) if part.compute > Milli::ZERO => {
                return Err(asked.together(format!(
                    "`{}` goes with a part of a card: add `{}` or `{}`; whole cards come with all \
                     of their compute time",
                    keys::GPU_COMPUTE,
                    keys::GPU_MEMORY,
                    keys::GPU_MEMORY_PERCENT
                )));
            }
            (false, false) => Portion::Whole,
            _ => Portion::Part(part),
        };
        Ok(Some(Demand {
            gpus: gpus.max(Count::new(1)),
            portion,
            compute_limit: compute_limit(asked.pod)?,
        }))
    }
}

/// The most compute time that each container may use of each of its cards.
fn compute_limit(pod: &Pod) -> Result<Milli, ClaimError> {
    let Some(text) = pod.metadata.annotations.get(keys::COMPUTE_LIMIT) else {
        return Ok(Milli::WHOLE);
    };
    let percent: Option<u16> = text.parse().ok();
    let limit = percent.and_then(|percent| Milli::new(percent.checked_mul(10)?));
    let limit = limit.filter(|limit| *limit > Milli::ZERO);
    if limit.is_none() && !pod.spec.node_name.is_empty() {
        // An annotation can be changed at any time. What a pod has already counts all the same.
        return Ok(Milli::WHOLE);
    }
    limit.ok_or_else(|| ClaimError::Field {
        field: keys::COMPUTE_LIMIT,
        value: text.clone(),
        wanted: "a whole number of percent, from 1 to 100",
    })
}
