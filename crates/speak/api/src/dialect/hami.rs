//! HAMi: amounts beside `nvidia.com/gpu`, wishes in annotations, results as its users' scripts
//! read them.
//!
//! Names and rules as HAMi 2.10 (4707fb0) has them. Each container of a pod has its own choice of
//! cards. Differences that our rules require:
//! - All of a card's compute time (`gpucores` 100) keeps other guaranteed pods away. Opportunistic
//!   pods, which HAMi does not have, may still use the card.
//! - `priority` is read and changes nothing. In HAMi, a pod without a priority has 1, and
//!   containers of priority 0 stop it while they launch work. Here all pods get their promised
//!   share, and the label `sublet.dev/class` decides which pods give way.
//! - A pod's `gpu-scheduler-policy` and `node-scheduler-policy` are preferences, and the cluster has
//!   one policy. Only `mutex` is more than that, so it is refused.
//! - More than 100 `gpucores` are refused. HAMi takes them for 100.

pub mod register;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::{
    Allocation, CardRef, CardWishes, Carrier, Claim, ContainerCards, ContainerClaim, ContainerName,
    Count, Demand, DialectName, GpuIndex, GpuUuid, Grant, MiB, Milli, NodeFacts, Part, Portion,
    Role, Sharing,
};

use super::{Asked, ClaimError, Dialect, NodeCards, OfferedCards, containers};
use crate::allocation::AllocationError;
use crate::keys;
use crate::node::{NodeDefaults, NodeError};
use crate::object::{Container, Node, Pod};

pub(super) struct Hami;

/// The annotations by which a pod names or rules out cards.
const WISHES: [&str; 6] = [
    keys::HAMI_USE_MODEL,
    keys::HAMI_NO_MODEL,
    keys::HAMI_USE_UUID,
    keys::HAMI_NO_UUID,
    keys::HAMI_NUMA,
    keys::HAMI_MODE,
];

impl Dialect for Hami {
    fn name(&self) -> DialectName {
        DialectName("hami")
    }

    fn resources(&self) -> &'static [&'static str] {
        &[
            keys::HAMI_MEMORY,
            keys::HAMI_MEMORY_PERCENT,
            keys::HAMI_CORES,
            keys::HAMI_PRIORITY,
        ]
    }

    fn marks(&self) -> &'static [&'static str] {
        &WISHES
    }

    fn extends(&self) -> Option<DialectName> {
        Some(DialectName("nvidia"))
    }

    fn demand(&self, asked: &Asked<'_>) -> Result<Option<Demand>, ClaimError> {
        let gpus = asked.cards(keys::NVIDIA_GPU)?;
        let memory = asked.amount(keys::HAMI_MEMORY)?;
        let percent = asked.percent(keys::HAMI_MEMORY_PERCENT)?;
        let cores = asked.percent(keys::HAMI_CORES)?;
        if asked.amount(keys::HAMI_PRIORITY)? > 1 {
            return Err(asked.too_large(keys::HAMI_PRIORITY));
        }
        let amounts = memory > 0 || percent > Milli::ZERO || cores > Milli::ZERO;
        if gpus == Count::ZERO && !amounts {
            return Ok(None);
        }
        // A pod with wishes and no amounts asks for whole cards, as it does without its wishes.
        if !containers(asked.pod).any(|(.., one)| has_amounts(one)) {
            return Ok(Some(Demand::of_cards(gpus)));
        }
        // Memory wins over a percentage; neither is all of it.
        let part = match (memory, percent) {
            (0, Milli::ZERO) => share(Milli::WHOLE),
            (0, percent) => share(percent),
            (memory, _) => {
                let memory = MiB::new(memory);
                Part::of_memory(memory.ok_or_else(|| asked.too_large(keys::HAMI_MEMORY))?)
            }
        };
        // Whoever has all of the memory and says nothing of cores has the card, as HAMi's webhook
        // fills it in. Where cores are 0 in so many words, it does not, but nobody else has room.
        let compute = match cores {
            Milli::ZERO if part.memory_share == Milli::WHOLE => Milli::WHOLE,
            cores => cores,
        };
        Ok(Some(Demand {
            gpus: gpus.max(Count::new(1)),
            portion: Portion::Part(Part { compute, ..part }),
            // Cores are a limit too; without any there is none.
            compute_limit: match compute {
                Milli::ZERO => Milli::WHOLE,
                compute => compute,
            },
        }))
    }

    fn container_cards(&self) -> ContainerCards {
        ContainerCards::Own
    }

    fn wishes(&self, pod: &Pod) -> Result<CardWishes, ClaimError> {
        let annotations = &pod.metadata.annotations;
        let list = |key| annotations.get(key).map_or("", String::as_str).split(',');
        let words = |key| list(key).map(str::trim).filter(|word| !word.is_empty());
        // HAMi calls a Tesla V100 `NVIDIA-Tesla V100`, and users copy that.
        let models = |key| {
            let lower = words(key).map(str::to_lowercase);
            lower
                .map(|word| Arc::from(word.strip_prefix("nvidia-").unwrap_or(&word)))
                .collect()
        };
        let uuids = |key: &'static str| -> Result<BTreeSet<GpuUuid>, ClaimError> {
            let uuid = |word: &str| {
                GpuUuid::new(word).map_err(|_| field(key, word, "UUIDs of GPUs, with commas"))
            };
            words(key).map(uuid).collect()
        };
        let mut modes = words(keys::HAMI_MODE).peekable();
        if let Some(first) = modes.peek().copied()
            && !modes.any(|mode| mode == "hami-core")
        {
            return Err(field(keys::HAMI_MODE, first, "`hami-core`, or nothing"));
        }
        if words(keys::HAMI_GPU_POLICY).any(|policy| policy == "mutex") {
            let wanted = "`binpack` or `spread`, and `nvidia.com/gpucores: 100` for a card that no \
                          other guaranteed pod has";
            return Err(field(keys::HAMI_GPU_POLICY, "mutex", wanted));
        }
        // The words that Go knows for these.
        let one_numa = match words(keys::HAMI_NUMA).next() {
            None | Some("0" | "f" | "F" | "false" | "False" | "FALSE") => false,
            Some("1" | "t" | "T" | "true" | "True" | "TRUE") => true,
            Some(other) => return Err(field(keys::HAMI_NUMA, other, "`true` or `false`")),
        };
        Ok(CardWishes {
            uuids: uuids(keys::HAMI_USE_UUID)?,
            not_uuids: uuids(keys::HAMI_NO_UUID)?,
            models: models(keys::HAMI_USE_MODEL),
            not_models: models(keys::HAMI_NO_MODEL),
            one_numa,
            ..CardWishes::default()
        })
    }

    fn cards(&self, node: &Node, _: NodeDefaults) -> Result<Option<NodeCards>, NodeError> {
        // Without our agent's inventory, what our agent said is not true any more.
        let Some(text) = register_of_hami(node) else {
            return Ok(None);
        };
        let inventory = register::read(text).map_err(|why| NodeError::Register {
            key: keys::HAMI_REGISTER,
            why,
        })?;
        Ok(Some(NodeCards {
            inventory,
            sharing: Sharing::Memory,
        }))
    }

    fn plugin(&self, node: &Node) -> Option<&'static str> {
        register_of_hami(node).map(|_| "HAMi")
    }

    fn carrier(&self) -> (&'static str, Carrier) {
        (keys::NVIDIA_GPU, Carrier::Cards)
    }

    fn amounts(&self, cards: &OfferedCards) -> Vec<(&'static str, u64)> {
        let (count, memory) = match cards.sharing {
            Sharing::Whole => (0, 0),
            Sharing::Memory | Sharing::Both => (cards.count, cards.memory.get()),
        };
        let percent = count.saturating_mul(100);
        vec![
            (keys::HAMI_MEMORY, memory),
            (keys::HAMI_MEMORY_PERCENT, percent),
            (keys::HAMI_CORES, percent),
            (keys::HAMI_PRIORITY, count.saturating_mul(cards.containers)),
        ]
    }

    fn result_keys(&self) -> &'static [&'static str] {
        &[
            keys::HAMI_NODE,
            keys::HAMI_TIME,
            keys::HAMI_BIND_TIME,
            keys::HAMI_PHASE,
            keys::HAMI_TO_ALLOCATE,
            keys::HAMI_ALLOCATED,
        ]
    }

    fn older_allocation(
        &self,
        pod: &Pod,
        claim: &Claim,
    ) -> Result<Option<Allocation>, AllocationError> {
        let annotations = &pod.metadata.annotations;
        let key = [keys::HAMI_ALLOCATED, keys::HAMI_TO_ALLOCATE];
        let said = key
            .into_iter()
            .find_map(|key| Some((key, annotations.get(key).filter(|text| !text.is_empty())?)));
        let Some((key, text)) = said else {
            return Ok(None);
        };
        let allocation = allocation_of(text, key, pod, claim)?;
        match allocation.answers(claim) {
            true => Ok(Some(allocation)),
            false => Err(AllocationError::Mismatch { key }),
        }
    }

    fn assigned_mark(&self, pod: &Pod) -> Option<bool> {
        let phase = pod.metadata.annotations.get(keys::HAMI_PHASE)?;
        Some(phase == "success")
    }

    fn results(
        &self,
        claim: &Claim,
        allocation: &Allocation,
        facts: &NodeFacts,
        now_ns: u64,
    ) -> BTreeMap<String, String> {
        let seconds = (now_ns / 1_000_000_000).to_string();
        let devices = devices_text(claim, allocation);
        let pairs = [
            (keys::HAMI_NODE, facts.name.to_string()),
            (keys::HAMI_TIME, seconds.clone()),
            (keys::HAMI_BIND_TIME, seconds),
            (keys::HAMI_PHASE, "allocating".to_owned()),
            (keys::HAMI_TO_ALLOCATE, devices.clone()),
            (keys::HAMI_ALLOCATED, devices),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value)).into()
    }

    fn handed_over(&self, claim: &Claim, _now_ns: u64) -> BTreeMap<String, String> {
        let pairs = [
            (keys::HAMI_PHASE, "success".to_owned()),
            (keys::HAMI_TO_ALLOCATE, ";".repeat(claim.pod_containers())),
        ];
        pairs.map(|(key, value)| (key.to_owned(), value)).into()
    }

    /// Variables of HAMi's library. Our library reads none of them, so they do no harm. Programs
    /// that read them find the usual values.
    fn environment(
        &self,
        _claim: &Claim,
        allocation: &Allocation,
        container: &ContainerClaim,
        _facts: &NodeFacts,
    ) -> BTreeMap<String, String> {
        let grants = allocation.of(&container.name).enumerate();
        let limits = grants.map(|(at, grant)| {
            let key = format!("{}_{at}", keys::HAMI_MEMORY_LIMIT);
            (key, format!("{}m", grant.memory.get()))
        });
        let cores = cores_of(container);
        let cores = (cores > 0).then(|| (keys::HAMI_CORE_LIMIT.to_owned(), cores.to_string()));
        limits.chain(cores).collect()
    }
}

/// The register, if HAMi's device plugin wrote it.
fn register_of_hami(node: &Node) -> Option<&str> {
    let text = node.metadata.annotations.get(keys::HAMI_REGISTER)?;
    (!register::is_ours(text)).then_some(text)
}

/// Does the container name a resource that only HAMi has?
fn has_amounts(container: &Container) -> bool {
    let resources = Hami.resources().iter();
    resources
        .map(|name| container.resources.asked(name))
        .any(|asked| asked.is_some())
}

fn share(memory_share: Milli) -> Part {
    Part {
        memory_share,
        ..Part::ZERO
    }
}

fn field(field: &'static str, value: &str, wanted: &'static str) -> ClaimError {
    ClaimError::Field {
        field,
        value: value.to_owned(),
        wanted,
    }
}

/// Percent of a card's compute time.
fn cores_of(container: &ContainerClaim) -> u16 {
    match container.demand.portion {
        Portion::Part(part) => part.compute.get() / 10,
        Portion::Whole => 100,
    }
}

/// `GPU-a,NVIDIA,3000,30:;` for each container of the pod, init containers first; `;` alone for a
/// container that asks for no card.
fn devices_text(claim: &Claim, allocation: &Allocation) -> String {
    let mut texts = vec![String::new(); claim.pod_containers()];
    for container in claim.containers() {
        let place = match container.role {
            Role::Init | Role::Sidecar => container.position,
            Role::Main => claim.init_containers() + container.position,
        };
        for grant in allocation.of(&container.name) {
            let card = match &grant.card.uuid {
                Some(uuid) => uuid.to_string(),
                None => grant.card.index.to_string(),
            };
            let memory = grant.memory.get();
            texts[place] += &format!("{card},NVIDIA,{memory},{}:", cores_of(container));
        }
    }
    texts.iter().map(|text| format!("{text};")).collect()
}

/// Reads such a text.
fn allocation_of(
    text: &str,
    key: &'static str,
    pod: &Pod,
    claim: &Claim,
) -> Result<Allocation, AllocationError> {
    let names = pod.spec.init_containers.iter().chain(&pod.spec.containers);
    let mut grants = Vec::new();
    for (container, devices) in names.zip(text.split(';')) {
        for device in devices.split(':').filter(|device| !device.is_empty()) {
            let name = ContainerName::new(&container.name);
            grants.push(grant_of(
                device,
                key,
                name.map_err(|cause| AllocationError::Name { key, cause })?,
            )?);
        }
    }
    // In the order of the claim's containers, which is that of the pod's.
    grants.retain(|grant| {
        claim
            .containers()
            .iter()
            .any(|one| one.name == grant.container)
    });
    Ok(Allocation { grants })
}

/// Reads `GPU-a,NVIDIA,3000,30`.
fn grant_of(
    device: &str,
    key: &'static str,
    container: ContainerName,
) -> Result<Grant, AllocationError> {
    let mut fields = device.split(',');
    let uuid = GpuUuid::new(fields.next().unwrap_or_default());
    let uuid = uuid.map_err(|cause| AllocationError::Name { key, cause })?;
    let memory = fields.nth(1).unwrap_or_default();
    let amount = memory.parse().ok().and_then(MiB::new);
    Ok(Grant {
        container,
        card: CardRef {
            // It does not say. The UUID counts.
            index: GpuIndex(u16::MAX),
            uuid: Some(uuid),
        },
        memory: amount.ok_or_else(|| AllocationError::Number {
            key,
            value: memory.to_owned(),
            wanted: "an amount of memory in MiB",
        })?,
    })
}
