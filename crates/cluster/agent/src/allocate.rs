//! Finds the pod that kubelet means. Allocate tells a device plugin how many devices one
//! container gets, but not the pod of the container. The answer is found by size and order:
//! among the pods of this node that have cards and wait for them, the one with a
//! container of that size. If two pods qualify, nothing is guessed; both are named. Only if
//! both get the same in every respect, one answer serves either pod (`twins`).
//!
//! This is also the last referee: a share that would exceed its card, or lies on a card that is
//! sick or gone, is refused here, whichever scheduler bound the pod. Pure: pods and node in,
//! decision out. It reads no clock and calls no server (see `card_allocator`).

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_api::object::Pod;
use sublet_api::{AllocationError, bound_entry, dialect, is_over, keys, whole_number};
use sublet_model::{
    Allocation, Bytes, Carrier, Claim, ContainerClaim, Entry, Gpu, GpuUuid, Health, Ledger, MiB,
    Milli, NodeFacts, PodKey, PodUid, Portion, Role,
};
use sublet_share::ComputeRange;

mod given;
pub mod named;
mod refusal;
mod response;
mod twins;

use refusal::{anew, one_only};

pub use given::Given;
pub use refusal::{AllocateError, KubeletAsk, Others};
pub use response::{AllocationResponse, CardLimit, Twin};

/// The node as containers are to find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The node's devices and how they are handed out.
    pub facts: NodeFacts,
    /// The operator wants no isolation by cGPU here.
    pub no_isolation: bool,
}

/// Finds the container that kubelet means, and says what it gets. `pods`: all pods bound
/// to the node, freshly listed.
///
/// # Errors
/// Nobody or several wait for that, or the last referee objects.
pub fn decide(
    pods: &[Pod],
    site: &Site,
    asked: KubeletAsk,
    given: &Given,
    now_ns: u64,
) -> Result<AllocationResponse, AllocateError> {
    let tenants = Tenants::read(pods, &site.facts);
    let meant = tenants.meant_by(asked, &site.facts, given)?;
    let mut all: Vec<_> = meant
        .iter()
        .map(|one| {
            let handed = hand_over(&tenants, one, site)?;
            let done = done(one, asked, given);
            let annotations = dialect::assigned_annotations(&one.entry.claim, &done, now_ns);
            Ok(AllocationResponse {
                annotations,
                ..handed
            })
        })
        .collect();
    if all.len() == 1 {
        return all.remove(0);
    }
    // About others kubelet asks more than once.
    let is_sole = |one: &Tenant<'_>| {
        one.entry.claim.containers().len() == 1 && one.container.role == Role::Main
    };
    let are_sole = meant.iter().all(is_sole);
    let answer = are_sole.then_some(all).and_then(twins::one_of);
    answer.unwrap_or_else(|| Err(ambiguous(asked, &meant)))
}

/// The refusal where kubelet could mean several.
fn ambiguous(asked: KubeletAsk, meant: &[Tenant<'_>]) -> AllocateError {
    AllocateError::Ambiguous {
        asked,
        pods: meant.iter().map(|one| one.entry.pod.clone()).collect(),
        advice: one_only(meant.iter().map(|one| one.pod)),
    }
}

/// Makes the answer for that container.
fn hand_over(
    tenants: &Tenants<'_>,
    tenant: &Tenant<'_>,
    site: &Site,
) -> Result<AllocationResponse, AllocateError> {
    let facts = &site.facts;
    let allocation = tenants.check(tenant, facts)?;
    let claim = &tenant.entry.claim;
    let mut environment = dialect::environment(claim, &allocation, tenant.container, facts);
    if site.no_isolation {
        environment.insert(keys::CGPU_DISABLE.to_owned(), "true".to_owned());
    }
    Ok(AllocationResponse {
        pod: tenant.entry.pod.clone(),
        uid: tenant.entry.uid.clone(),
        container: tenant.container.name.clone(),
        role: tenant.container.role,
        position: tenant.container.position,
        cards: limits(&allocation, tenant.container, facts),
        whole: matches!(tenant.container.demand.portion, Portion::Whole),
        pinned: memory_limit(tenant.pod, tenant.container),
        compute: compute_time(tenant.container),
        class: claim.class(),
        slice: dialect::slice_of(tenant.pod).unwrap_or(None),
        isolated: !site.no_isolation,
        environment,
        annotations: BTreeMap::new(),
        twins: Vec::new(),
        device: None,
    })
}

/// The containers of a pod that have their devices once this one has them.
fn done(tenant: &Tenant<'_>, asked: KubeletAsk, given: &Given) -> Vec<String> {
    let is_done = |one: &&ContainerClaim| {
        one.name == tenant.container.name
            || is_given(tenant.pod, &tenant.entry.uid, one, given)
            || !is_asked_about(tenant.pod, one, asked)
    };
    let containers = tenant.entry.claim.containers().iter();
    containers
        .filter(is_done)
        .map(|one| one.name.to_string())
        .collect()
}

/// Returns the limit of a container on each of its cards. The amount is the claim's, as in the
/// ledger: an annotation cannot make it more.
fn limits(
    allocation: &Allocation,
    container: &ContainerClaim,
    facts: &NodeFacts,
) -> Vec<CardLimit> {
    let limit = |grant: &sublet_model::Grant| {
        let at = facts.inventory.position(&grant.card);
        let card = at.map_or(MiB::ZERO, |at| facts.inventory.gpus()[at].memory);
        CardLimit {
            index: grant.card.index,
            uuid: grant.card.uuid.clone(),
            memory: match container.demand.portion {
                Portion::Part(part) => part.on(card).memory,
                Portion::Whole => card,
            },
        }
    };
    allocation.of(&container.name).map(limit).collect()
}

/// Returns a container's share of the time of each of its cards. A whole card is all its own.
fn compute_time(container: &ContainerClaim) -> ComputeRange {
    let demand = &container.demand;
    let request = match demand.portion {
        Portion::Part(part) => part.compute,
        Portion::Whole => Milli::ZERO,
    };
    ComputeRange::new(request, demand.compute_limit).unwrap_or(ComputeRange::ANY)
}

/// The container's own limit of ordinary memory, `resources.limits.memory`, in whole MiB. What
/// the driver pins is memory of the node as well, and memory that a driver takes for itself
/// need not be charged to the control group of the container that asked for it.
fn memory_limit(pod: &Pod, container: &ContainerClaim) -> Option<MiB> {
    let list = match container.role {
        Role::Main => &pod.spec.containers,
        Role::Init | Role::Sidecar => &pod.spec.init_containers,
    };
    let limits = &list.get(container.position)?.resources.limits;
    // The API server has read it before; what is no number of bytes to us is no limit.
    let bytes = whole_number(&limits.get("memory")?.0).ok()?;
    Some(Bytes::new(bytes).whole_mib())
}

/// Chooses, among the IDs that kubelet could take, those on the cards of the container it
/// probably means. Then kubelet's list of devices and owners is right. Empty if that is in doubt,
/// and then kubelet picks by itself: the IDs decide nothing.
///
/// # Errors
/// No pod or several pods wait for such devices.
pub fn prefer(
    pods: &[Pod],
    facts: &NodeFacts,
    asked: KubeletAsk,
    given: &Given,
    available: &[String],
    must: &[String],
) -> Result<Vec<String>, AllocateError> {
    let tenants = Tenants::read(pods, facts);
    let meant = tenants.meant_by(asked, facts, given)?;
    let gpus = facts.inventory.gpus();
    let cards_of = |tenant: &Tenant<'_>| -> Vec<&GpuUuid> {
        let own = tenant.allocation.of(&tenant.container.name);
        own.filter_map(|grant| gpus[facts.inventory.position(&grant.card)?].uuid.as_ref())
            .collect()
    };
    let cards = cards_of(&meant[0]);
    if meant.iter().any(|other| cards_of(other) != cards) {
        return Ok(Vec::new());
    }
    let is_on_card = |id: &&String| cards.iter().any(|uuid| card_of(id) == uuid.as_str());
    let count = usize::try_from(asked.count).unwrap_or(usize::MAX);
    let rest = available.iter().filter(|id| !must.contains(id));
    let preferred = must.iter().chain(rest.filter(is_on_card)).take(count);
    Ok(preferred.cloned().collect())
}

/// Separator between a card's UUID and a number in a device ID, as in the original.
pub(crate) const ID_SEPARATOR: &str = "-_-";

fn card_of(id: &str) -> &str {
    id.split_once(ID_SEPARATOR).map_or(id, |(card, _)| card)
}

/// The node's pods that have, or should have, a GPU.
struct Tenants<'a> {
    known: Vec<(&'a Pod, Entry)>,
    garbled: Vec<(PodKey, String)>,
}

/// One container that waits for what kubelet asks.
struct Tenant<'a> {
    pod: &'a Pod,
    entry: &'a Entry,
    allocation: &'a Allocation,
    container: &'a ContainerClaim,
}

impl<'a> Tenants<'a> {
    fn read(pods: &'a [Pod], facts: &NodeFacts) -> Tenants<'a> {
        let mut tenants = Tenants {
            known: Vec::new(),
            garbled: Vec::new(),
        };
        let here = |pod: &&Pod| pod.spec.node_name == facts.name.as_str() && !is_over(pod);
        for pod in pods.iter().filter(here) {
            match read_entry(pod, facts) {
                Ok(Some((entry, problem))) => {
                    if let Some(problem) = problem {
                        let pair = (entry.pod.clone(), problem.to_string());
                        tenants.garbled.push(pair);
                    }
                    tenants.known.push((pod, entry));
                }
                Ok(None) => {}
                Err(problem) => {
                    // The API server gave the name, so it is one.
                    let key = sublet_api::pod_key(pod).ok();
                    tenants.garbled.extend(key.map(|key| (key, problem)));
                }
            }
        }
        tenants
    }

    /// The one container that waits for such devices. Several, each of another pod, only if
    /// kubelet's checkpoint was read; never none.
    fn meant_by(
        &self,
        asked: KubeletAsk,
        facts: &NodeFacts,
        given: &Given,
    ) -> Result<Vec<Tenant<'_>>, AllocateError> {
        let mut fitting = Vec::new();
        let mut others = Others {
            garbled: self.garbled.clone(),
            ..Others::default()
        };
        for (pod, entry) in &self.known {
            let Some(allocation) = &entry.allocation else {
                if !self.garbled.iter().any(|(key, _)| *key == entry.pod) {
                    others.without_cards.push(entry.pod.clone());
                }
                continue;
            };
            if entry.assigned {
                continue;
            }
            // Kubelet asks in the order in which containers start, which is the claim's.
            let mut waiting = entry
                .claim
                .containers()
                .iter()
                .filter(|one| !is_given(pod, &entry.uid, one, given))
                .peekable();
            let any = waiting.peek().is_some();
            match waiting.find(|one| is_size(pod, &entry.claim, one, asked, facts)) {
                Some(container) => fitting.push(Tenant {
                    pod,
                    entry,
                    allocation,
                    container,
                }),
                None if any => others.waiting.push(entry.pod.clone()),
                None => {}
            }
        }
        if fitting.len() > 1 && !given.has_checkpoint() {
            return Err(ambiguous(asked, &fitting));
        }
        if fitting.is_empty() {
            let node = facts.name.clone();
            return Err(AllocateError::Nobody {
                node,
                asked,
                others,
            });
        }
        Ok(fitting)
    }

    /// The last referee. Returns the allocation with each card as the node knows it now:
    /// older annotations have no UUID, and an index may have moved.
    fn check(&self, tenant: &Tenant<'_>, facts: &NodeFacts) -> Result<Allocation, AllocateError> {
        let (pod, advice) = (&tenant.entry.pod, anew(tenant.pod));
        let mut ledger = Ledger::new();
        let book = ledger.set_node(facts.clone());
        for (_, entry) in &self.known {
            ledger.enter(entry.clone());
        }
        let cards = ledger.book(book).cards();
        let mut resolved = tenant.allocation.clone();
        for grant in &mut resolved.grants {
            let at = facts.inventory.position(&grant.card);
            let at = at.ok_or_else(|| AllocateError::NoCard {
                pod: pod.clone(),
                card: match &grant.card.uuid {
                    Some(uuid) => format!("GPU {uuid}"),
                    None => format!("GPU {}", grant.card.index),
                },
                node: facts.name.clone(),
                advice,
            })?;
            let gpu: &Gpu = &facts.inventory.gpus()[at];
            if let Health::Sick(why) = &gpu.health {
                return Err(AllocateError::Sick {
                    pod: pod.clone(),
                    gpu: gpu.index,
                    why: why.clone(),
                    advice,
                });
            }
            let card = &cards[at];
            let (promised, capacity) = (card.used, card.capacity);
            if promised.memory > capacity.memory {
                return Err(AllocateError::Over {
                    pod: pod.clone(),
                    gpu: gpu.index,
                    lacks: promised.memory.saturating_sub(capacity.memory),
                    promised: promised.memory,
                    capacity: capacity.memory,
                    tenants: card.tenants,
                });
            }
            if promised.compute > capacity.compute {
                return Err(AllocateError::OverCompute {
                    pod: pod.clone(),
                    gpu: gpu.index,
                    promised: promised.compute,
                    tenants: card.tenants,
                });
            }
            grant.card.index = gpu.index;
            grant.card.uuid.clone_from(&gpu.uuid);
        }
        Ok(resolved)
    }
}

/// The pod as the ledger enters it; `None` where it asks for no GPU. The error is for
/// people.
pub(crate) fn read_entry(
    pod: &Pod,
    facts: &NodeFacts,
) -> Result<Option<(Entry, Option<AllocationError>)>, String> {
    let claim = dialect::claim_of(pod, facts.unit).map_err(|error| error.to_string())?;
    let Some(claim) = claim else { return Ok(None) };
    bound_entry(pod, Arc::new(claim))
        .map(Some)
        .map_err(|error| error.to_string())
}

/// Has that container its devices already?
fn is_given(pod: &Pod, uid: &PodUid, container: &ContainerClaim, given: &Given) -> bool {
    let name = &container.name;
    given.has(uid, name)
        || dialect::assigned_containers(pod)
            .iter()
            .any(|one| one == name.as_str())
}

/// Would kubelet ask for that container exactly what it asks now?
fn is_size(
    pod: &Pod,
    claim: &Claim,
    container: &ContainerClaim,
    asked: KubeletAsk,
    facts: &NodeFacts,
) -> bool {
    if asked.resource == keys::GPU_SLOT {
        // The slot carries Allocate and no amount: only the number of slots can be compared.
        return slots_of(pod, container) == Some(asked.count);
    }
    let carrier = claim.carrier_on(facts.advertise);
    if dialect::resource_of(claim) != Some(asked.resource) || carrier == Carrier::Slots {
        return false;
    }
    match (carrier, container.demand.portion) {
        (Carrier::Units, Portion::Part(part)) => facts.unit.times(asked.count) == Some(part.memory),
        _ => u64::from(container.demand.gpus.get()) == asked.count,
    }
}

/// Does kubelet ever ask about that container? On a node with slots it does so only where there is
/// a slot. Without one the container gets nothing; but its pod must not wait for ever, because no
/// other pod comes to the node while one waits.
fn is_asked_about(pod: &Pod, container: &ContainerClaim, asked: KubeletAsk) -> bool {
    asked.resource != keys::GPU_SLOT || slots_of(pod, container).is_some()
}

/// Number of slots that a container asks for, if any.
fn slots_of(pod: &Pod, container: &ContainerClaim) -> Option<u64> {
    let spec = &pod.spec;
    let mut all = spec.init_containers.iter().chain(&spec.containers);
    let found = all.find(|one| one.name == container.name.as_str())?;
    let slots = whole_number(found.resources.asked(keys::GPU_SLOT)?).ok()?;
    (slots > 0).then_some(slots)
}

#[cfg(test)]
pub(crate) mod tests;
