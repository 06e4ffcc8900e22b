//! Where the stock scheduler puts a pod that asks for no GPU, if such pods do not pass our
//! extender: to the node that is left emptiest.
//!
//! Two of its scores differ from node to node in a trace, both of weight 1 in the default
//! profile: `NodeResourcesFit` with `LeastAllocated`, and `NodeResourcesBalancedAllocation`,
//! each over CPU and memory, in whole numbers from 0 to 100 (Kubernetes 1.36,
//! `pkg/scheduler/framework/plugins/noderesources`). The highest sum wins. What is
//! approximated: ties go by rank, where the stock scheduler draws one; every node is scored,
//! where it looks at a part of a large cluster's; and pods that ask for no CPU or no memory
//! count as asking none, where it assumes a little.

use std::cmp::Reverse;

use sublet_model::{Host, Ledger, NodeIdx};

/// Who places pods that ask for no GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuOnlyPods {
    /// The policy: they pass the extender, as in FGD's protocol.
    #[default]
    Policy,
    /// The stock scheduler, by its own scores.
    Stock,
}

/// The best score of either plugin.
const MOST: u64 = 100;

/// The node that the stock scheduler takes for a pod that asks this; `None` if it fits nowhere.
pub(crate) fn choose(ledger: &Ledger, nodes: &[NodeIdx], asked: Host) -> Option<NodeIdx> {
    let score = |&node: &NodeIdx| {
        let book = ledger.book(node);
        let (capacity, left) = (book.facts()?.host, book.host_left());
        let fits = asked.cpu <= left.cpu && asked.memory <= left.memory;
        let score = score(asked, capacity.saturating_sub(left), capacity);
        fits.then(|| (score, Reverse(book.name()), node))
    };
    let best = nodes.iter().filter_map(score).max();
    best.map(|(_, _, node)| node)
}

/// Both scores of a node on which so much is taken.
fn score(asked: Host, taken: Host, capacity: Host) -> u64 {
    let with = amounts(taken.plus(asked), capacity);
    let without = amounts(taken, capacity);
    // A node is judged by what the pod does to its balance, brought back to 50 to 100.
    let balanced = MOST / 2 + (MOST / 2 + balance(with) - balance(without)) / 2;
    least_allocated(with) + balanced
}

/// Requested and there, of CPU and of memory.
type Amounts = [(u64, u64); 2];

fn amounts(requested: Host, capacity: Host) -> Amounts {
    [
        (requested.cpu.get(), capacity.cpu.get()),
        (requested.memory.get(), capacity.memory.get()),
    ]
}

/// The mean of what is left of each, in percent.
fn least_allocated(amounts: Amounts) -> u64 {
    let there = amounts.iter().filter(|(_, capacity)| *capacity > 0);
    let count = there.clone().count() as u64;
    let left = |(requested, capacity): &(u64, u64)| {
        // Bytes of a machine, times a hundred, are far below 2^64.
        capacity.saturating_sub(*requested) * MOST / capacity
    };
    there.map(left).sum::<u64>() / count.max(1)
}

/// 100 where CPU and memory are taken to the same share, 50 where one is full and the other
/// untouched.
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
    use sublet_model::{Bytes, MilliCpu};

    use super::*;

    fn host(cores: u64, gib: u64) -> Host {
        Host {
            cpu: MilliCpu::new(1000 * cores),
            memory: Bytes::new(gib << 30),
        }
    }

    #[test]
    fn both_scores_are_the_stock_scheduler_s() {
        // Empty: 90 % and 80 % left; balance from 100 to 95, so (50 + 95 - 100) / 2 + 50.
        assert_eq!(score(host(1, 2), Host::ZERO, host(10, 10)), 85 + 72);
        // Half full of CPU: 40 % and 80 % left; balance from 75 to 80.
        assert_eq!(score(host(1, 2), host(5, 0), host(10, 10)), 60 + 77);
        // No memory given: CPU alone, and no balance to speak of.
        assert_eq!(score(host(1, 0), host(5, 0), host(10, 0)), 40 + 75);
        assert_eq!(score(host(1, 1), Host::ZERO, Host::ZERO), 75);
    }
}
