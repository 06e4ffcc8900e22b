//! The stock scheduler's scores that differ from node to node, in its default profile and in whole
//! numbers as there (Kubernetes 1.36, `pkg/scheduler/framework/plugins`).
//!
//! Some scores are left out: ImageLocality (the files of a cluster seldom say which images a node
//! has), and the preferences of the pod about other pods or about even spreading. The preferences
//! of running pods are left out too: the shipped configuration tells the scheduler to ignore them
//! (`ignorePreferredTermsOfExistingPods`).

use sublet_model::{Book, Claim, Host, Ledger, NodeIdx};

use super::{NodeRules, PodRules};

/// The best score of a plugin.
const MOST: u64 = 100;

/// The weights of these plugins; all others have weight 1.
const TAINT_TOLERATION: u64 = 3;
const NODE_AFFINITY: u64 = 2;

/// The stock scheduler's own score of each of these nodes, without the extender's. Scores of taints
/// and preferences are relative to the largest value among the nodes.
pub(super) fn weigh<'a>(
    nodes: &[NodeIdx],
    claim: &Claim,
    pod: &PodRules,
    ledger: &Ledger,
    rules: impl Fn(NodeIdx) -> &'a NodeRules,
) -> Vec<u64> {
    let of = |worth: &dyn Fn(&NodeRules) -> u64| {
        let each: Vec<u64> = nodes.iter().map(|&node| worth(rules(node))).collect();
        let most = each.iter().copied().max().unwrap_or(0).max(1);
        each.into_iter().map(move |worth| MOST * worth / most)
    };
    let taints = of(&|node| u64::from(pod.soft_taints(node)));
    let preferences = of(&|node| pod.preference(node));
    let resources = nodes
        .iter()
        .map(|&node| resources(ledger.book(node), claim));
    resources
        .zip(taints.zip(preferences))
        .map(|(resources, (taints, preferences))| {
            resources + TAINT_TOLERATION * (MOST - taints) + NODE_AFFINITY * preferences
        })
        .collect()
}

/// NodeResourcesFit (`LeastAllocated`) and NodeResourcesBalancedAllocation of a node for a pod,
/// each over CPU and memory.
#[must_use]
pub fn resources(book: &Book, claim: &Claim) -> u64 {
    let capacity = book.facts().map_or(Host::ZERO, |facts| facts.host);
    let (asked, taken) = (claim.host(), book.machine());
    let scored = claim.stock().map_or(asked, |ask| ask.scored);
    let least = least_allocated(amounts(taken.nonzero.plus(scored), capacity));
    if asked == Host::ZERO {
        // A balance score would collect pods that ask for nothing on the balanced nodes.
        return least;
    }
    let with = amounts(taken.host.plus(asked), capacity);
    let without = amounts(taken.host, capacity);
    // The score is what the pod changes in the node's balance, scaled to 50 to 100.
    least + MOST / 2 + (MOST / 2 + balance(with) - balance(without)) / 2
}

/// The requested amount and the capacity, of CPU and of memory.
type Amounts = [(u64, u64); 2];

fn amounts(requested: Host, capacity: Host) -> Amounts {
    [
        (requested.cpu.get(), capacity.cpu.get()),
        (requested.memory.get(), capacity.memory.get()),
    ]
}

/// The mean of the free CPU and the free memory, in percent.
fn least_allocated(amounts: Amounts) -> u64 {
    let there = amounts.iter().filter(|(_, capacity)| *capacity > 0);
    let count = there.clone().count() as u64;
    let left = |(requested, capacity): &(u64, u64)| {
        let left = u128::from(capacity.saturating_sub(*requested));
        (left * u128::from(MOST) / u128::from(*capacity)) as u64
    };
    there.map(left).sum::<u64>() / count.max(1)
}

/// 100 if equal shares of CPU and memory are taken, 50 if one of them is full and the other empty.
fn balance(amounts: Amounts) -> u64 {
    let share = |(requested, capacity): (u64, u64)| {
        (capacity > 0).then(|| (requested as f64 / capacity as f64).min(1.0))
    };
    let deviation = match amounts.map(share) {
        [Some(cpu), Some(memory)] => ((cpu - memory) / 2.0).abs(),
        _ => 0.0,
    };
    ((1.0 - deviation) * MOST as f64) as u64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sublet_model::{Bytes, MilliCpu, NodeFacts, NodeName, StockAsk};

    use super::*;
    use crate::script;

    fn host(cores: u64, gib: u64) -> Host {
        Host {
            cpu: MilliCpu::new(1000 * cores),
            memory: Bytes::new(gib << 30),
        }
    }

    /// The score of a node with this capacity, with so much taken, for a pod that asks for this.
    fn score(asked: &Claim, taken: Host, capacity: Host) -> u64 {
        let mut ledger = Ledger::new();
        let plain = NodeFacts::plain(NodeName::new("n").unwrap(), Arc::default());
        let node = ledger.set_node(NodeFacts {
            host: capacity,
            ..plain
        });
        let there = Arc::new(Claim::host_only(taken));
        ledger.enter(script::entry("there", "n", &there));
        resources(ledger.book(node), asked)
    }

    #[test]
    fn scores_of_resources_are_the_stock_scheduler_s() {
        let check = |asked, taken, capacity| score(&Claim::host_only(asked), taken, capacity);
        // Empty node: 90 % and 80 % left. Balance falls from 100 to 95: (50 + 95 - 100) / 2 + 50.
        assert_eq!(check(host(1, 2), Host::ZERO, host(10, 10)), 85 + 72);
        // Half of the CPU taken: 40 % and 80 % left. Balance rises from 75 to 80.
        assert_eq!(check(host(1, 2), host(5, 0), host(10, 10)), 60 + 77);
        // The node has no memory: only CPU counts, and the balance does not change.
        assert_eq!(check(host(1, 0), host(5, 0), host(10, 0)), 40 + 75);
        assert_eq!(check(host(1, 1), Host::ZERO, Host::ZERO), 75);
        // Nothing asked for: no balance score. More taken than the node has: nothing left.
        assert_eq!(check(Host::ZERO, host(5, 5), host(10, 10)), 50);
        assert_eq!(check(host(1, 0), host(50, 5), host(10, 10)), 25 + 75);
        // Amounts larger than any machine has must not overflow.
        let enough = Host {
            cpu: MilliCpu::new(1_000_000_000),
            memory: Bytes::new(1 << 60),
        };
        assert_eq!(check(host(1, 1), Host::ZERO, enough), 99 + 74);
        let little = StockAsk {
            scored: host(1, 1),
            ..StockAsk::default()
        };
        let unset = Claim::host_only(Host::ZERO).with_stock(Arc::new(little));
        assert_eq!(score(&unset, Host::ZERO, host(10, 10)), 90);
    }
}
