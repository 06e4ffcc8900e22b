//! KubeShare 1: annotations of a pod, as its SharePods carry them.
//!
//! Annotations and rules as its scheduler and controller (branch release-1.0) read them on a
//! SharePod. Its controller copies them to the pod that it makes; here they are read on the pod.

use std::sync::Arc;

use sublet_model::{
    CardTags, CardWishes, Class, Count, Demand, DialectName, GpuUuid, Milli, Part, Portion, Role,
};

use super::asked::mib_of;
use super::fraction::{milli, thousandths};
use super::{Asked, ClaimError, Dialect};
use crate::keys;
use crate::object::Pod;

pub(super) struct SharePod;

impl Dialect for SharePod {
    fn name(&self) -> DialectName {
        DialectName("sharepod")
    }

    fn resources(&self) -> &'static [&'static str] {
        &[]
    }

    fn marks(&self) -> &'static [&'static str] {
        &[
            keys::SHAREPOD_REQUEST,
            keys::SHAREPOD_LIMIT,
            keys::SHAREPOD_MEMORY,
        ]
    }

    fn demand(&self, asked: &Asked<'_>) -> Result<Option<Demand>, ClaimError> {
        let wanted = Wanted::of(asked.pod)?;
        // KubeShare gives all main containers the same card and one sum.
        if asked.pod.spec.containers.len() > 1 {
            return Err(asked.together(format!(
                "annotations such as `{}` ask for one container, and the pod has {}: leave one, or \
                 ask by `{}` of each container",
                keys::SHAREPOD_LIMIT,
                asked.pod.spec.containers.len(),
                keys::GPU_MEMORY,
            )));
        }
        if asked.role != Role::Main {
            return Ok(None);
        }
        Ok(Some(Demand {
            gpus: Count::new(1),
            portion: Portion::Part(Part {
                compute: wanted.request,
                ..wanted.memory
            }),
            compute_limit: wanted.limit,
        }))
    }

    fn wishes(&self, pod: &Pod) -> Result<CardWishes, ClaimError> {
        let tag = |key| annotation(pod, key).map(Arc::from);
        // The UUID of a card, or a name that pods of one card share.
        let named = annotation(pod, keys::SHAREPOD_GPU);
        let uuid = named.filter(|name| name.starts_with("GPU-"));
        let is_uuid =
            "the UUID of a card as `nvidia-smi -L` says it, or a name of your own for one";
        let uuids = uuid
            .map(|uuid| GpuUuid::new(uuid).map_err(|_| wrong(keys::SHAREPOD_GPU, uuid, is_uuid)));
        Ok(CardWishes {
            uuids: uuids.transpose()?.into_iter().collect(),
            tags: CardTags {
                affinity: tag(keys::SHAREPOD_AFFINITY),
                anti_affinity: tag(keys::SHAREPOD_ANTI_AFFINITY),
                exclusion: tag(keys::SHAREPOD_EXCLUSION),
                virtual_gpu: named.filter(|_| uuid.is_none()).map(Arc::from),
            },
            ..CardWishes::default()
        })
    }

    fn class(&self, pod: &Pod) -> Result<Class, ClaimError> {
        Ok(match Wanted::of(pod)?.request {
            Milli::ZERO => Class::Opportunistic,
            _ => Class::Guaranteed,
        })
    }
}

/// An annotation that says something.
fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    let text = pod.metadata.annotations.get(key)?;
    Some(&**text).filter(|text| !text.is_empty())
}

/// Amounts that the annotations ask of one card.
struct Wanted {
    request: Milli,
    limit: Milli,
    memory: Part,
}

impl Wanted {
    fn of(pod: &Pod) -> Result<Wanted, ClaimError> {
        // All three or none.
        let text = |key| annotation(pod, key).unwrap_or_default();
        let share = |key| {
            let share = thousandths(text(key)).and_then(milli);
            share.ok_or_else(|| wrong(key, text(key), "a part of a card, from `0` to `1.0`"))
        };
        let request = share(keys::SHAREPOD_REQUEST)?;
        let limit = share(keys::SHAREPOD_LIMIT)?;
        let refused = |key, wanted| Err(wrong(key, text(key), wanted));
        if limit == Milli::ZERO || limit < request {
            let wanted = "more than `0`, and at least as much as `kubeshare/gpu_request`";
            return refused(keys::SHAREPOD_LIMIT, wanted);
        }
        let memory = text(keys::SHAREPOD_MEMORY).parse().ok();
        let Some(memory) = memory.filter(|memory: &u64| *memory > 0).and_then(mib_of) else {
            return refused(
                keys::SHAREPOD_MEMORY,
                "a whole number of bytes, at least `1`",
            );
        };
        Ok(Wanted {
            request,
            limit,
            memory: Part::of_memory(memory),
        })
    }
}

fn wrong(field: &'static str, value: &str, wanted: &'static str) -> ClaimError {
    ClaimError::Field {
        field,
        value: value.to_owned(),
        wanted,
    }
}
