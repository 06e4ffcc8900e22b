//! Resources that a pod asks of its machine, summed as Kubernetes sums them, and a machine's
//! resources.
//!
//! Limits replace missing requests, a pod's own amounts go before those of its containers, and its
//! overhead is added (`k8s.io/component-helpers/resource`, PodRequests). A container that is being
//! resized counts with the largest of three amounts: its request, its present resources and its
//! promised ones.

use std::collections::BTreeSet;
use std::sync::Arc;

use sublet_model::{
    Ask, Bytes, Claim, Host, HostPort, MiB, MilliCpu, Resources, Role, StockAllocatable, StockAsk,
    peak,
};
use sublet_queue::Amounts;

use crate::dialect::device_resources;
use crate::dialect::{ClaimError, containers};
use crate::keys;
use crate::object::{Container, ContainerStatus, Node, Pod, Quantity};
use crate::quantity::{QuantityError, bytes, milli_cpu, whole_number};

/// Amounts in scores for a container that asks no CPU or no memory (Kubernetes 1.36,
/// `pkg/scheduler/util`): a tenth of a core, and 200 MiB.
const LITTLE: (u64, u64) = (100, 200 << 20);

/// Resources of a machine if a file does not give them: the most that a list can give a node.
const ENOUGH: Host = Host {
    cpu: MilliCpu::new(1_000_000_000),
    memory: Bytes::new(1 << 60),
};

/// Reads an amount.
type Read = fn(&str) -> Result<u64, QuantityError>;

/// CPU and memory that a pod asks of its node, whether or not it asks for a GPU.
///
/// # Errors
/// A wrong amount.
pub fn host_of(pod: &Pod) -> Result<Host, ClaimError> {
    host_with(pod, |_| Missing::ZERO)
}

/// The same as `host_of`, with assumed requests for containers that ask nothing.
fn host_with(pod: &Pod, missing: impl Fn(u64) -> Missing) -> Result<Host, ClaimError> {
    Ok(Host {
        cpu: MilliCpu::new(asked(pod, "cpu", milli_cpu, missing(LITTLE.0))?),
        memory: Bytes::new(asked(pod, "memory", bytes, missing(LITTLE.1))?),
    })
}

/// Assumed request of a container that asks nothing.
#[derive(Debug, Clone, Copy)]
struct Missing {
    amount: u64,
    when: When,
}

/// When that amount counts, and whether `spec.resources` of the pod counts too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// For every container that does not say. The pod's own amount, if there is one, replaces the
    /// sum.
    Always,
    /// Only if no container says. The pod's own amount replaces the sum here too.
    Unsaid,
    /// For every container that does not say. The pod's own amount does not count.
    Alone,
}

impl Missing {
    const ZERO: Missing = Missing {
        amount: 0,
        when: When::Always,
    };
}

/// Part of a pod's request that only the stock scheduler counts.
///
/// # Errors
/// A wrong amount.
pub fn stock_ask(pod: &Pod) -> Result<StockAsk, ClaimError> {
    let own = &pod.spec.resources;
    let when = match own.requests.is_empty() && own.limits.is_empty() {
        true => When::Always,
        false => When::Unsaid,
    };
    let mut ask = StockAsk {
        nonzero: host_with(pod, |amount| Missing { amount, when })?,
        // NodeResourcesFit's scorer is made without the feature gate of pod-level resources
        // (Kubernetes 1.36, `noderesources/resource_allocation.go`).
        scored: host_with(pod, |amount| Missing {
            amount,
            when: When::Alone,
        })?,
        ports: ports(pod),
        ..StockAsk::default()
    };
    for name in names(pod) {
        let amount = asked(pod, name, bytes, Missing::ZERO)?;
        let list = if device_resources().any(|own| own == name) {
            &mut ask.devices
        } else {
            &mut ask.resources
        };
        list.add(&Arc::from(name), amount);
    }
    Ok(ask)
}

/// Everything that a pod asks of its node, by resource: CPU in thousandths, all else in its base
/// unit.
///
/// # Errors
/// A wrong amount.
pub fn amounts_of(pod: &Pod) -> Result<Amounts, ClaimError> {
    let host = host_of(pod)?;
    let mut amounts = Amounts::from([
        (Arc::from("cpu"), host.cpu.get()),
        (Arc::from("memory"), host.memory.get()),
    ]);
    for name in names(pod) {
        let amount = asked(pod, name, bytes, Missing::ZERO)?;
        amounts.insert(Arc::from(name), amount);
    }
    amounts.insert(Arc::from("pods"), 1);
    Ok(amounts)
}

/// GPU amounts of a claim, by the names of our own dialect, whatever the pod's dialect is: number
/// of cards, their memory in bytes, and the promised compute time in percent of a card. `card` is
/// the memory of one card, for whole cards and for shares of a card.
#[must_use]
pub fn gpu_amounts(claim: &Claim, card: MiB) -> Amounts {
    let (cards, memory, compute) = match claim.ask() {
        Ask::Nothing => return Amounts::new(),
        Ask::Parts(parts) => {
            let compute = parts.iter().map(|part| u64::from(part.compute.get()));
            let compute: u64 = compute.sum();
            (
                parts.count(),
                parts.memory_on(card).get(),
                compute.div_ceil(10),
            )
        }
        Ask::WholeCards(cards) => {
            let count = u64::from(cards.get());
            (*cards, card.get().saturating_mul(count), 100 * count)
        }
    };
    Amounts::from([
        (Arc::from(keys::GPU), u64::from(cards.get())),
        (Arc::from(keys::GPU_MEMORY), memory.saturating_mul(1 << 20)),
        (Arc::from(keys::GPU_COMPUTE), compute),
    ])
}

/// Every resource that a pod names, CPU and memory aside.
fn names(pod: &Pod) -> BTreeSet<&str> {
    let of_containers = containers(pod).map(|(_, _, container)| &container.resources);
    let maps = of_containers
        .chain([&pod.spec.resources])
        .flat_map(|resources| [&resources.limits, &resources.requests]);
    let all = maps.chain([&pod.spec.overhead]).flat_map(|map| map.keys());
    all.map(String::as_str)
        .filter(|name| !matches!(*name, "cpu" | "memory"))
        .collect()
}

/// Amount of a resource that a pod asks at its worst moment.
fn asked(pod: &Pod, resource: &str, read: Read, missing: Missing) -> Result<u64, ClaimError> {
    let amount = |of: &str, quantity: &Quantity| {
        read(&quantity.0).map_err(|cause| ClaimError::Amount {
            container: of.to_owned(),
            resource: resource.to_owned(),
            value: quantity.0.clone(),
            cause,
        })
    };
    let mut named = false;
    let mut each = Vec::new();
    for (_, role, container) in containers(pod) {
        let mut most = None;
        for quantity in amounts(pod, container, role, resource) {
            most = most.max(Some(amount(&container.name, quantity)?));
        }
        named |= most.is_some();
        each.push((role, most));
    }
    let unsaid = match missing.when {
        When::Unsaid if named => 0,
        _ => missing.amount,
    };
    let each = each
        .into_iter()
        .map(|(role, most)| (role, most.unwrap_or(unsaid)));
    let mut sum = peak(each);
    let whole = &pod.spec.resources;
    let has_own = matches!(resource, "cpu" | "memory") || resource.starts_with("hugepages-");
    if has_own && missing.when != When::Alone {
        let own = whole.requests.get(resource);
        // The API server fills in a pod's requests from its limits, and its containers' too.
        let own = own.or_else(|| whole.limits.get(resource).filter(|_| !named));
        if let Some(quantity) = own {
            sum = amount("(pod)", quantity)?;
        }
    }
    if let Some(quantity) = pod.spec.overhead.get(resource) {
        sum = sum.saturating_add(amount("(overhead)", quantity)?);
    }
    Ok(sum)
}

/// The amounts of a container; the largest of them is charged.
fn amounts<'a>(
    pod: &'a Pod,
    container: &'a Container,
    role: Role,
    resource: &str,
) -> impl Iterator<Item = &'a Quantity> {
    let resources = &container.resources;
    let asked = resources.requests.get(resource);
    let asked = asked.or_else(|| resources.limits.get(resource));
    let (init, main) = (
        &pod.status.init_container_statuses,
        &pod.status.container_statuses,
    );
    let statuses = match role {
        Role::Main => &main[..],
        Role::Sidecar => &init[..],
        // For containers that end only the request is certain.
        Role::Init => &[],
    };
    let is_its = |status: &&ContainerStatus| status.name == container.name;
    let status = statuses.iter().find(is_its);
    let has = status.and_then(|status| status.resources.as_ref());
    // Without the first the node does not report on resizing at all.
    let promised = status.filter(|_| has.is_some());
    let has = has.and_then(|has| has.requests.get(resource));
    let promised = promised.and_then(|status| status.allocated_resources.get(resource));
    let asked = asked.filter(|_| has.is_none() || !is_infeasible(pod));
    [asked, has, promised].into_iter().flatten()
}

/// Has its node reported that it can never provide the pod's present request?
fn is_infeasible(pod: &Pod) -> bool {
    let conditions = &pod.status.conditions;
    let pending = conditions.iter().find(|c| c.kind == "PodResizePending");
    pending.is_some_and(|condition| condition.reason == "Infeasible")
}

/// Ports of the machine that a pod wants for itself.
fn ports(pod: &Pod) -> Vec<HostPort> {
    let mut ports = Vec::new();
    let lasting = containers(pod).filter(|(_, role, _)| *role != Role::Init);
    for port in lasting.flat_map(|(_, _, container)| &container.ports) {
        // On the machine's own network each container port is a port of the machine.
        let number = match port.host_port {
            0 if pod.spec.host_network => port.container_port,
            number => number,
        };
        let or =
            |text: &str, default: &str| Arc::from(if text.is_empty() { default } else { text });
        if number > 0 {
            ports.push(HostPort {
                port: number,
                protocol: or(&port.protocol, "TCP"),
                address: match port.host_ip.as_str() {
                    "" | "0.0.0.0" => None,
                    address => Some(Arc::from(address)),
                },
            });
        }
    }
    ports
}

/// Resources of a node that pods can have: CPU, memory and all others. `has_cards`: does the node
/// itself list its cards?
///
/// A node from a cluster has a UID, and has only the resources that it lists. A node without a UID
/// comes from a file that somebody wrote; a resource that the file leaves out is unlimited.
///
/// # Errors
/// The name and text of an amount that cannot be read, and the fault.
pub(crate) fn allocatable(
    node: &Node,
    has_cards: bool,
) -> Result<(Host, StockAllocatable), (String, String, QuantityError)> {
    let status = &node.status;
    // As the API server fills it in.
    let list = if status.allocatable.is_empty() {
        &status.capacity
    } else {
        &status.allocatable
    };
    let by_hand = node.metadata.uid.is_empty();
    let read = |resource: &str, read: Read, missing: u64| match list.get(resource) {
        Some(quantity) => {
            read(&quantity.0).map_err(|cause| (resource.to_owned(), quantity.0.clone(), cause))
        }
        None if by_hand => Ok(missing),
        None => Ok(0),
    };
    let host = Host {
        cpu: MilliCpu::new(read("cpu", milli_cpu, ENOUGH.cpu.get())?),
        memory: Bytes::new(read("memory", bytes, ENOUGH.memory.get())?),
    };
    let mut resources = Resources::default();
    let listed = list.keys().map(String::as_str);
    let kubelet_s = ["ephemeral-storage"].into_iter();
    let mut all: BTreeSet<&str> = listed.chain(kubelet_s).collect();
    for own in device_resources().filter(|_| has_cards) {
        all.insert(own);
    }
    for name in all {
        if !matches!(name, "cpu" | "memory" | "pods") {
            resources.add(&Arc::from(name), read(name, bytes, u64::MAX)?);
        }
    }
    let pods = read("pods", whole_number, u64::MAX)?;
    Ok((host, StockAllocatable { resources, pods }))
}

#[cfg(test)]
mod tests;
