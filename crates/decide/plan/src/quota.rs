//! Limits on the GPUs that a namespace's pods may have together, on any cards. A rule beside the
//! fit: it knows no node. It is asked before a place is looked for, and when one is taken.

use std::fmt;

use sublet_model::{
    Allocation, Book, Claim, ContainerClaim, Ledger, MiB, Milli, PodKey, PodUid, Portion, peak,
};

/// The most that the pods of a namespace may have at their worst moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GpuQuota {
    /// Memory of all their cards together.
    pub memory: Option<MiB>,
    /// Compute time that is promised, in percent of one card.
    pub compute: Option<u64>,
}

impl GpuQuota {
    /// The quota that both allow.
    #[must_use]
    pub fn and(self, other: GpuQuota) -> GpuQuota {
        GpuQuota {
            memory: self.memory.into_iter().chain(other.memory).min(),
            compute: self.compute.into_iter().chain(other.compute).min(),
        }
    }
}

/// More than a namespace may have. `asked` by the pod, `used` by all others, `limit` for all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverQuota {
    namespace: String,
    what: Limited,
    asked: u64,
    used: u64,
    limit: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limited {
    /// In MiB.
    Memory,
    /// In percent of one card.
    Compute,
}

impl fmt::Display for OverQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, of, key) = match self.what {
            Limited::Memory => (" MiB", "GPU memory", "gpumem"),
            Limited::Compute => (" %", "a GPU's compute time", "gpucores"),
        };
        write!(
            f,
            "{}{unit} of {of} asked, and namespace {} has {}{unit} of the {}{unit} that its quota \
             limits.nvidia.com/{key} allows",
            self.asked, self.namespace, self.used, self.limit
        )
    }
}

/// Checks whether the pod may have its request beside all that the ledger has of its namespace.
/// `allocation`: the pod's place; without one, a share of a card counts as that of the smallest
/// card there is.
///
/// The pod's own entry in the ledger does not count against it. The check looks at every entry.
///
/// # Errors
/// The limit that would be exceeded.
pub fn check_quota(
    ledger: &Ledger,
    quota: GpuQuota,
    (pod, uid): (&PodKey, &PodUid),
    claim: &Claim,
    allocation: Option<&Allocation>,
) -> Result<(), OverQuota> {
    if quota == GpuQuota::default() || !claim.has_gpu() {
        return Ok(());
    }
    let least = least_card(ledger.books().map(|(_, book)| book));
    let (asked, asked_milli) = held(claim, allocation, least);
    let (mut used, mut used_milli) = (0_u64, 0_u64);
    let others = ledger.entries().filter(|entry| entry.uid != *uid);
    for entry in others.filter(|entry| entry.pod.namespace() == pod.namespace()) {
        let on = ledger.find(entry.node.as_str());
        let least = least_card(on.map(|node| ledger.book(node)).into_iter());
        let (memory, milli) = held(&entry.claim, entry.allocation.as_ref(), least);
        used = used.saturating_add(memory);
        used_milli = used_milli.saturating_add(milli);
    }
    let over = |what, asked, used, limit| OverQuota {
        namespace: pod.namespace().to_owned(),
        what,
        asked,
        used,
        limit,
    };
    if let Some(limit) = quota.memory.map(MiB::get)
        && asked > 0
        && used.saturating_add(asked) > limit
    {
        return Err(over(Limited::Memory, asked, used, limit));
    }
    if let Some(limit) = quota.compute
        && asked_milli > 0
        && used_milli.saturating_add(asked_milli) > limit.saturating_mul(10)
    {
        let percent = |milli: u64| milli.div_ceil(10);
        let (asked, used) = (percent(asked_milli), percent(used_milli));
        return Err(over(Limited::Compute, asked, used, limit));
    }
    Ok(())
}

fn least_card<'a>(books: impl Iterator<Item = &'a Book>) -> MiB {
    let cards = books.flat_map(Book::cards);
    let memory = cards.map(|card| card.capacity.memory);
    memory.min().unwrap_or(MiB::ZERO)
}

/// Memory in MiB, and compute time in thousandths of a card, at the pod's worst moment of each. Amounts
/// come from the claim; the allocation tells how large the cards of shares are.
fn held(claim: &Claim, allocation: Option<&Allocation>, least: MiB) -> (u64, u64) {
    let memory = |container: &ContainerClaim| {
        let gpus = u64::from(container.demand.gpus.get());
        let of_least = match container.demand.portion {
            Portion::Part(part) => part.on(least).memory,
            Portion::Whole => least,
        };
        match (container.demand.portion, allocation) {
            // The claim says it all.
            (Portion::Part(part), _) if part.memory_share == Milli::ZERO => {
                part.memory.get().saturating_mul(gpus)
            }
            (_, Some(allocation)) => {
                let grants = allocation.of(&container.name);
                grants.map(|grant| grant.memory.get()).sum()
            }
            (_, None) => of_least.get().saturating_mul(gpus),
        }
    };
    let compute = |container: &ContainerClaim| {
        let each = match container.demand.portion {
            Portion::Part(part) => part.compute.get().into(),
            Portion::Whole => 1000,
        };
        u64::from(container.demand.gpus.get()).saturating_mul(each)
    };
    let at_worst = |amount: &dyn Fn(&ContainerClaim) -> u64| {
        let containers = claim.containers().iter();
        peak(containers.map(|container| (container.role, amount(container))))
    };
    (at_worst(&memory), at_worst(&compute))
}
