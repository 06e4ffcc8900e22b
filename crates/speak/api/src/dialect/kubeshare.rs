//! KubeShare 2: labels of a pod, and the annotations that its scheduler writes.
//!
//! Labels and rules as its scheduler (a862311) reads them. Its two kinds of pods, by `priority`,
//! are placed differently there, and both are promised `gpu_request`. So both are guaranteed here.
//! Only a pod that asks for no promise and has no priority gets the time that others leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::{
    Allocation, CardRef, CardWishes, Claim, Class, Count, Demand, DialectName, GpuIndex, GpuUuid,
    Grant, MiB, Milli, NodeFacts, Part, Portion, Role,
};

use super::asked::mib_of;
use super::fraction::{milli, thousandths};
use super::{Asked, ClaimError, Dialect};
use crate::allocation::AllocationError;
use crate::keys;
use crate::object::Pod;

pub(super) struct KubeShare;

const GROUP: [&str; 4] = [
    keys::KUBESHARE_GROUP_NAME,
    keys::KUBESHARE_POD_GROUP_NAME,
    keys::KUBESHARE_GROUP_HEADCOUNT,
    keys::KUBESHARE_GROUP_THRESHOLD,
];

/// Advice for a pod with a group: the label to write in its place.
const START_TOGETHER: &str = "no `sharedgpu/group_…`, but the label `scheduling.x-k8s.io/pod-group` with the name of a \
     PodGroup, whose `minMember` pods start together where the queue is on (`queue.enabled`)";

impl Dialect for KubeShare {
    fn name(&self) -> DialectName {
        DialectName("kubeshare")
    }

    fn resources(&self) -> &'static [&'static str] {
        &[]
    }

    fn marks(&self) -> &'static [&'static str] {
        &[
            keys::KUBESHARE_REQUEST,
            keys::KUBESHARE_LIMIT,
            keys::KUBESHARE_MEMORY,
        ]
    }

    fn demand(&self, asked: &Asked<'_>) -> Result<Option<Demand>, ClaimError> {
        let wanted = Wanted::of(asked.pod)?;
        if wanted.limit == 0 {
            return Ok(None);
        }
        // KubeShare gives all main containers the same card and one sum, which they take from each
        // other. A container here has a part of its own, and a pod that asks once does not say how
        // the sum is to be divided. Init containers get nothing there either.
        if asked.pod.spec.containers.len() > 1 {
            return Err(asked.together(format!(
                "labels such as `{}` ask for one container, and the pod has {}: leave one, or ask \
                 by `{}` of each container",
                keys::KUBESHARE_LIMIT,
                asked.pod.spec.containers.len(),
                keys::GPU_MEMORY,
            )));
        }
        if asked.role != Role::Main {
            return Ok(None);
        }
        if wanted.limit > 1000 {
            // All of their memory comes with them, whatever `gpu_mem` says.
            let cards = u32::try_from(wanted.limit / 1000).unwrap_or(u32::MAX);
            return Ok(Some(Demand::of_cards(Count::new(cards))));
        }
        wanted.part(asked).map(Some)
    }

    fn wishes(&self, pod: &Pod) -> Result<CardWishes, ClaimError> {
        let labels = &pod.metadata.labels;
        // A part of a gang that runs without the others holds its cards for nothing. The queue starts
        // gangs, and reads other names of them.
        let group = GROUP.iter().find_map(|key| Some((*key, labels.get(*key)?)));
        if let Some((field, value)) = group {
            return Err(ClaimError::Field {
                field,
                value: value.clone(),
                wanted: START_TOGETHER,
            });
        }
        let model = labels.get(keys::KUBESHARE_MODEL);
        let model = model.filter(|model| !model.is_empty());
        Ok(CardWishes {
            models: model.map_or_else(BTreeSet::new, |model| {
                BTreeSet::from([Arc::from(model.to_lowercase())])
            }),
            ..CardWishes::default()
        })
    }

    fn class(&self, pod: &Pod) -> Result<Class, ClaimError> {
        let priority = match pod.metadata.labels.get(keys::KUBESHARE_PRIORITY) {
            None => 0,
            Some(text) if text.is_empty() => 0,
            Some(text) => {
                let priority = text.parse().ok().filter(|priority: &u8| *priority <= 100);
                priority.ok_or_else(|| {
                    let wanted = "a whole number from 0 to 100";
                    wrong(keys::KUBESHARE_PRIORITY, text, wanted)
                })?
            }
        };
        let wanted = Wanted::of(pod)?;
        Ok(match (priority, wanted.request) {
            (0, 0) => Class::Opportunistic,
            _ => Class::Guaranteed,
        })
    }

    fn result_keys(&self) -> &'static [&'static str] {
        &[
            keys::KUBESHARE_UUID,
            keys::KUBESHARE_CELL,
            keys::KUBESHARE_PORT,
        ]
    }

    fn older_allocation(
        &self,
        pod: &Pod,
        claim: &Claim,
    ) -> Result<Option<Allocation>, AllocationError> {
        let text = pod.metadata.annotations.get(keys::KUBESHARE_UUID);
        match text.filter(|text| !text.is_empty()) {
            None => Ok(None),
            Some(text) => on_cards(text, claim).map(Some),
        }
    }

    /// `cell_id` and `gpu_manager_port` name things that only KubeShare has.
    fn results(
        &self,
        claim: &Claim,
        allocation: &Allocation,
        _facts: &NodeFacts,
        _now_ns: u64,
    ) -> BTreeMap<String, String> {
        let uuids = allocation.grants.iter();
        let uuids: Option<Vec<&str>> = uuids
            .map(|grant| grant.card.uuid.as_ref().map(GpuUuid::as_str))
            .collect();
        let Some(uuids) = uuids else {
            // Where no agent reports the node nobody knows them.
            return BTreeMap::new();
        };
        let is_whole = claim
            .containers()
            .iter()
            .any(|c| c.demand.portion == Portion::Whole);
        let text = match is_whole {
            // It ends each of several with a comma.
            true => uuids.iter().map(|uuid| format!("{uuid},")).collect(),
            false => uuids.join(","),
        };
        BTreeMap::from([(keys::KUBESHARE_UUID.to_owned(), text)])
    }
}

/// Amounts in the labels, in thousandths of a card and in bytes; 0 for a missing label.
struct Wanted {
    request: u64,
    limit: u64,
    memory: u64,
}

impl Wanted {
    fn of(pod: &Pod) -> Result<Wanted, ClaimError> {
        let label = |key| pod.metadata.labels.get(key).map(String::as_str);
        let cards = |key| match label(key) {
            None => Ok(0),
            Some(text) => thousandths(text)
                .ok_or_else(|| wrong(key, text, "a number of cards, such as `0.5` or `2`")),
        };
        let memory = match label(keys::KUBESHARE_MEMORY) {
            None => 0,
            Some(text) => text
                .parse()
                .map_err(|_| wrong(keys::KUBESHARE_MEMORY, text, "a whole number of bytes"))?,
        };
        let wanted = Wanted {
            request: cards(keys::KUBESHARE_REQUEST)?,
            limit: cards(keys::KUBESHARE_LIMIT)?,
            memory,
        };
        let limit = label(keys::KUBESHARE_LIMIT);
        let refused = |why| Err(wrong(keys::KUBESHARE_LIMIT, limit.unwrap_or_default(), why));
        if limit.is_none() {
            return refused("how much compute time the pod may use, such as `1.0`");
        }
        if wanted.request > wanted.limit {
            return refused("at least as much as `sharedgpu/gpu_request`");
        }
        let is_whole = wanted.limit.is_multiple_of(1000) && wanted.request == wanted.limit;
        if wanted.limit > 1000 && !is_whole {
            return refused(
                "`1.0` at most, or for several cards a whole number that is the same as \
                 `sharedgpu/gpu_request`",
            );
        }
        Ok(wanted)
    }

    fn part(&self, asked: &Asked<'_>) -> Result<Demand, ClaimError> {
        let share = |thousandths| milli(thousandths).unwrap_or(Milli::WHOLE);
        let part = match self.memory {
            0 if self.request == 0 => {
                return Err(asked.together(format!(
                    "`{}` alone says no memory: add `{}` or `{}`",
                    keys::KUBESHARE_LIMIT,
                    keys::KUBESHARE_MEMORY,
                    keys::KUBESHARE_REQUEST,
                )));
            }
            // As much of the card's memory as of its compute time.
            0 => Part {
                memory_share: share(self.request),
                ..Part::ZERO
            },
            memory => Part::of_memory(mib_of(memory).unwrap_or(MiB::MAX)),
        };
        Ok(Demand {
            gpus: Count::new(1),
            portion: Portion::Part(Part {
                compute: share(self.request),
                ..part
            }),
            compute_limit: share(self.limit),
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

/// The cards that `GPU-a` or `GPU-a,GPU-b,` names.
fn on_cards(text: &str, claim: &Claim) -> Result<Allocation, AllocationError> {
    let key = keys::KUBESHARE_UUID;
    let mut grants = Vec::new();
    for container in claim.containers() {
        for uuid in text.trim_end_matches(',').split(',') {
            let uuid = GpuUuid::new(uuid).map_err(|cause| AllocationError::Name { key, cause })?;
            grants.push(Grant {
                container: container.name.clone(),
                card: CardRef {
                    // KubeShare says no index, and no card has this one: where nobody knows the
                    // UUIDs the pod is on a card that nobody knows.
                    index: GpuIndex(u16::MAX),
                    uuid: Some(uuid),
                },
                memory: match container.demand.portion {
                    Portion::Part(part) => part.memory,
                    Portion::Whole => MiB::ZERO,
                },
            });
        }
    }
    let allocation = Allocation { grants };
    match allocation.answers(claim) {
        true => Ok(allocation),
        false => Err(AllocationError::Mismatch { key }),
    }
}
