//! `sublet.dev/asked`: the request of a pod when it was bound.
//!
//! Resources of a container cannot change, but any user who may change the pod can change its
//! labels and annotations. A pod that asks by them could lower its request below its real usage,
//! and its cards would be given away twice. So the Binding records the request, under a key that
//! only Sublet writes. Pods that others bound have no such record; their labels are believed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sublet_model::{
    CardTags, Claim, Class, ContainerClaim, ContainerName, Count, Demand, MiB, Milli, Part, Portion,
};

use super::{DIALECTS, Dialect, containers};
use crate::keys;
use crate::object::Pod;

/// Original request of a pod.
pub(super) struct Kept {
    pub(super) dialect: &'static dyn Dialect,
    pub(super) class: Class,
    pub(super) tags: CardTags,
    /// In the order in which they start.
    pub(super) containers: Vec<ContainerClaim>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KeptJson {
    dialect: String,
    class: String,
    containers: Vec<DemandJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    affinity: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    anti_affinity: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exclusion: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    virtual_gpu: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DemandJson {
    container: String,
    gpus: u32,
    /// Absent for whole cards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<PartJson>,
    limit_milli: u16,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PartJson {
    #[serde(rename = "memoryMiB")]
    memory_mib: u64,
    memory_milli: u16,
    compute_milli: u16,
}

/// The annotation's text.
pub(super) fn to_json(claim: &Claim) -> String {
    let demand = |container: &ContainerClaim| {
        let demand = container.demand;
        DemandJson {
            container: container.name.to_string(),
            gpus: demand.gpus.get(),
            part: match demand.portion {
                Portion::Whole => None,
                Portion::Part(part) => Some(PartJson {
                    memory_mib: part.memory.get(),
                    memory_milli: part.memory_share.get(),
                    compute_milli: part.compute.get(),
                }),
            },
            limit_milli: demand.compute_limit.get(),
        }
    };
    let text = |tag: &Option<Arc<str>>| tag.as_deref().map(str::to_owned);
    let dialect = claim.dialect().map(|name| name.0);
    let kept = KeptJson {
        dialect: dialect.unwrap_or_default().to_owned(),
        class: claim.class().word().to_owned(),
        containers: claim.containers().iter().map(demand).collect(),
        affinity: text(&claim.tags().affinity),
        anti_affinity: text(&claim.tags().anti_affinity),
        exclusion: text(&claim.tags().exclusion),
        virtual_gpu: text(&claim.tags().virtual_gpu),
    };
    serde_json::to_string(&kept).expect("strings and numbers are always JSON")
}

/// Reads the pod's original request; `None` if the pod has none or a part of it cannot be read.
pub(super) fn read(pod: &Pod) -> Option<Kept> {
    let text = pod.metadata.annotations.get(keys::ASKED)?;
    let kept: KeptJson = serde_json::from_str(text).ok()?;
    let mut classes = [Class::Guaranteed, Class::Opportunistic].into_iter();
    let demand = |one: &DemandJson| {
        let (position, role, container) =
            containers(pod).find(|(.., c)| c.name == one.container)?;
        Some(ContainerClaim {
            name: ContainerName::new(&container.name).ok()?,
            position,
            role,
            demand: demand_of(one)?,
        })
    };
    let demands: Option<Vec<ContainerClaim>> = kept.containers.iter().map(demand).collect();
    Some(Kept {
        dialect: *DIALECTS.iter().find(|one| one.name().0 == kept.dialect)?,
        class: classes.find(|class| class.word() == kept.class)?,
        tags: CardTags {
            affinity: kept.affinity.map(Into::into),
            anti_affinity: kept.anti_affinity.map(Into::into),
            exclusion: kept.exclusion.map(Into::into),
            virtual_gpu: kept.virtual_gpu.map(Into::into),
        },
        containers: demands.filter(|demands| !demands.is_empty())?,
    })
}

fn demand_of(one: &DemandJson) -> Option<Demand> {
    let portion = match &one.part {
        None => Portion::Whole,
        Some(part) => Portion::Part(Part {
            memory: MiB::new(part.memory_mib)?,
            compute: Milli::new(part.compute_milli)?,
            memory_share: Milli::new(part.memory_milli)?,
        }),
    };
    Some(Demand {
        gpus: Count::new(one.gpus),
        portion,
        compute_limit: Milli::new(one.limit_milli)?,
    })
}
