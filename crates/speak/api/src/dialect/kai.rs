//! KAI: annotations of a pod that ask for a fraction of a card, or of several.
//!
//! Annotations and rules as the scheduler (72de64f) reads them. KAI keeps a card for fractions by a
//! reservation pod; here the ledger does. KAI writes a pod's cards into the label
//! `runai-gpu-group`. Sublet does not write that label: a Binding carries annotations and no
//! labels, and the label's value names a reservation pod, which does not exist here.

use sublet_model::{Count, Demand, DialectName, MiB, Milli, Part, Portion};

use super::fraction::{milli, thousandths};
use super::{Asked, ClaimError, Dialect};
use crate::keys;
use crate::object::Pod;

pub(super) struct Kai;

impl Dialect for Kai {
    fn name(&self) -> DialectName {
        DialectName("kai")
    }

    fn resources(&self) -> &'static [&'static str] {
        &[]
    }

    fn marks(&self) -> &'static [&'static str] {
        &[
            keys::KAI_FRACTION,
            keys::KAI_MEMORY,
            keys::KAI_DEVICES,
            keys::KAI_CONTAINER,
        ]
    }

    fn demand(&self, asked: &Asked<'_>) -> Result<Option<Demand>, ClaimError> {
        let Some(part) = part_of(asked)? else {
            return Ok(None);
        };
        let gpus = match annotation(asked.pod, keys::KAI_DEVICES) {
            None => Count::new(1),
            Some(text) => {
                let gpus = text.parse().ok().filter(|gpus: &u32| *gpus > 0);
                let wanted = "a whole number of cards, 1 or more";
                Count::new(gpus.ok_or_else(|| wrong(keys::KAI_DEVICES, text, wanted))?)
            }
        };
        let is_its = asked.container.name == container_of(asked.pod)?;
        Ok(is_its.then_some(Demand {
            gpus,
            portion: Portion::Part(part),
            compute_limit: Milli::WHOLE,
        }))
    }
}

/// Part of each card that the pod asks. KAI's fraction is one of memory; it promises no compute
/// time.
fn part_of(asked: &Asked<'_>) -> Result<Option<Part>, ClaimError> {
    let fraction = annotation(asked.pod, keys::KAI_FRACTION);
    let memory = annotation(asked.pod, keys::KAI_MEMORY);
    match (fraction, memory) {
        (Some(_), Some(_)) => Err(asked.together(format!(
            "annotations `{}` and `{}` both say how much memory it gets: leave one of them out",
            keys::KAI_FRACTION,
            keys::KAI_MEMORY,
        ))),
        (Some(text), None) => {
            let share = thousandths(text).and_then(milli);
            let share = share.filter(|share| *share > Milli::ZERO);
            let wanted = "a decimal number above 0 and below 1, such as `0.5`";
            let is_below_one = text.trim_start_matches('0').starts_with('.');
            let share = share.filter(|_| is_below_one);
            let memory_share = share.ok_or_else(|| wrong(keys::KAI_FRACTION, text, wanted))?;
            Ok(Some(Part {
                memory_share,
                ..Part::ZERO
            }))
        }
        (None, Some(text)) => {
            let amount = text.parse().ok().and_then(MiB::new);
            let amount = amount.filter(|amount| *amount > MiB::ZERO);
            let wanted = "a whole number of MiB, 1 or more";
            let amount = amount.ok_or_else(|| wrong(keys::KAI_MEMORY, text, wanted))?;
            Ok(Some(Part::of_memory(amount)))
        }
        (None, None) => match annotation(asked.pod, keys::KAI_DEVICES) {
            Some(text) => Err(wrong(
                keys::KAI_DEVICES,
                text,
                "`gpu-fraction` or `gpu-memory` beside it",
            )),
            // A container is named, and nothing is asked for it.
            None => Ok(None),
        },
    }
}

/// The name of the container that gets the cards: the first main one unless the pod says so.
fn container_of(pod: &Pod) -> Result<&str, ClaimError> {
    let spec = &pod.spec;
    let Some(name) = annotation(pod, keys::KAI_CONTAINER) else {
        let first = spec.containers.first();
        return Ok(first.map_or("", |first| first.name.as_str()));
    };
    let mut all = spec.init_containers.iter().chain(&spec.containers);
    match all.any(|one| one.name == name) {
        true => Ok(name),
        false => Err(wrong(
            keys::KAI_CONTAINER,
            name,
            "the name of one of the pod's containers",
        )),
    }
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.get(key).map(String::as_str)
}

fn wrong(field: &'static str, value: &str, wanted: &'static str) -> ClaimError {
    ClaimError::Field {
        field,
        value: value.to_owned(),
        wanted,
    }
}
