//! The nodes that a tenant would have for itself: as many as its `min` needs.

use std::cmp::Reverse;
use std::sync::Arc;

use sublet_model::NodeFacts;
use sublet_plan::Policy;

use super::ground::Ground;
use super::jobs::Jobs;
use crate::trace::{NodeList, PodList};
use crate::world::milli_of;

/// Size of the partitions of tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionSize {
    /// Whole nodes, as one would buy them. All partitions together may be more than the cluster.
    WholeNodes,
    /// The `min` and nothing above it: the last node has no more cards than that.
    Min,
}

/// By tenant, the nodes that it would have.
pub(super) fn partitions(nodes: &NodeList, jobs: &Jobs, size: PartitionSize) -> Vec<NodeList> {
    let minima = jobs.minima().iter();
    minima.map(|min| partition(nodes, *min, size)).collect()
}

/// The fewest nodes of a list with so many thousandths of cards: the largest ones first, so that
/// gangs have the same members on them as in the whole cluster. At most all that have cards.
fn partition(nodes: &NodeList, min: u64, size: PartitionSize) -> NodeList {
    let cards = |at: &usize| nodes.rows[*at].inventory.gpus().len();
    let mut order: Vec<usize> = (0..nodes.rows.len()).filter(|at| cards(at) > 0).collect();
    order.sort_by_key(|at| Reverse(cards(at)));
    let mut milli = 0;
    order.retain(|at| {
        let is_needed = milli < min;
        milli += 1000 * cards(at) as u64;
        is_needed
    });
    let all: usize = order.iter().map(cards).sum();
    let last = order.last().copied();
    order.sort_unstable();
    let over = match size {
        PartitionSize::WholeNodes => 0,
        PartitionSize::Min => all - all.min(min.div_ceil(1000) as usize),
    };
    let row = |at: usize| {
        let row = nodes.rows[at].clone();
        match last == Some(at) && over > 0 {
            true => NodeFacts {
                inventory: Arc::new(row.inventory.with_first(cards(&at) - over)),
                ..row
            },
            false => row,
        }
    };
    NodeList {
        rows: order.into_iter().map(row).collect(),
        ..nodes.clone()
    }
}

/// GPUs of each of these.
pub(super) fn gpus(partitions: &[NodeList]) -> Vec<u64> {
    let milli = partitions.iter().map(milli_of);
    milli.map(|milli| milli / 1000).collect()
}

/// The engines of these.
pub(super) fn grounds(
    partitions: &[NodeList],
    jobs: &Jobs,
    pods: &PodList,
    policy: &Policy,
) -> Vec<Ground> {
    let ground = |(tenant, nodes): (usize, &NodeList)| {
        let of = jobs.all().iter().filter(|job| job.tenant == tenant);
        let claims = of.map(|job| &pods.rows[job.row as usize].claim);
        Ground::of(nodes, claims, policy)
    };
    partitions.iter().enumerate().map(ground).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{BadLines, read_nodes};

    #[test]
    fn a_partition_is_rounded_up_to_whole_nodes_or_has_as_many_cards_as_the_min() {
        let list = "name,cpu_milli,memory_mib,gpu\na,1,1,2\nb,1,1,0\nc,1,1,4\nd,1,1,4\n";
        let (nodes, _) = read_nodes(list.as_bytes(), BadLines::Stop).unwrap();
        for (min, expected, exactly) in [
            (0, "", ""),
            (1, "c4", "c1"),
            (3000, "c4", "c3"),
            (4000, "c4", "c4"),
            (4001, "c4d4", "c4d1"),
            (8500, "a2c4d4", "a1c4d4"),
            (99_000, "a2c4d4", "a2c4d4"),
        ] {
            let cards = |size| {
                let partition = partition(&nodes, min, size);
                let row = |row: &NodeFacts| format!("{}{}", row.name, row.inventory.gpus().len());
                partition.rows.iter().map(row).collect::<String>()
            };
            assert_eq!(cards(PartitionSize::WholeNodes), expected, "{min}");
            assert_eq!(cards(PartitionSize::Min), exactly, "{min}");
        }
    }
}
