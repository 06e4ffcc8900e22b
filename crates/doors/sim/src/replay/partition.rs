//! The nodes that a tenant would have for itself: as many as its `min` needs, rounded up to whole
//! ones.

use std::cmp::Reverse;

use sublet_plan::Policy;

use super::ground::Ground;
use super::jobs::Jobs;
use crate::trace::{NodeList, PodList};
use crate::world::milli_of;

/// By tenant, the nodes that it would have.
pub(super) fn partitions(nodes: &NodeList, jobs: &Jobs) -> Vec<NodeList> {
    let minima = jobs.minima().iter();
    minima.map(|min| partition(nodes, *min)).collect()
}

/// The fewest nodes of a list with so many thousandths of cards: the largest ones first, so that
/// gangs have the same members on them as in the whole cluster. At most all that have cards.
fn partition(nodes: &NodeList, min: u64) -> NodeList {
    let cards = |at: &usize| nodes.rows[*at].inventory.gpus().len();
    let mut order: Vec<usize> = (0..nodes.rows.len()).filter(|at| cards(at) > 0).collect();
    order.sort_by_key(|at| Reverse(cards(at)));
    let mut milli = 0;
    order.retain(|at| {
        let is_needed = milli < min;
        milli += 1000 * cards(at) as u64;
        is_needed
    });
    order.sort_unstable();
    NodeList {
        rows: order.into_iter().map(|at| nodes.rows[at].clone()).collect(),
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
    fn a_partition_is_rounded_up_to_whole_nodes() {
        let list = "name,cpu_milli,memory_mib,gpu\na,1,1,2\nb,1,1,0\nc,1,1,4\nd,1,1,4\n";
        let (nodes, _) = read_nodes(list.as_bytes(), BadLines::Stop).unwrap();
        for (min, expected) in [
            (0, ""),
            (1, "c"),
            (4000, "c"),
            (4001, "cd"),
            (8500, "acd"),
            (99_000, "acd"),
        ] {
            let partition = partition(&nodes, min);
            let names: String = partition.rows.iter().map(|row| row.name.as_str()).collect();
            assert_eq!(names, expected, "{min}");
        }
    }
}
