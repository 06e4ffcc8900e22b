//! Memory that a graph needs at once.
//!
//! Every allocation of a graph gets its address when its node is added, for good. The driver gives
//! the addresses of one allocation to another one of the graph only if the second comes after the
//! free of the first in the graph's order. Two allocations with the same addresses use the same
//! memory: NVIDIA documents that it reuses memory within a graph in this way. So a graph's memory
//! is the memory behind its addresses, each address counted once, both in a line of nodes and in
//! branches that run side by side, whatever the order in which they run. The driver puts memory
//! behind addresses in whole blocks.
//!
//! Needs that the driver does not report are not guessed: the graph is marked as unknown, and the
//! device is asked how much its launches take ([`super::unknown`]).

use std::collections::HashMap;

use sublet_abi::Units;

use super::unknown;
use crate::cuda::c::*;
use crate::cuda::real;

/// Needs of a graph.
#[derive(Debug, Clone, Default)]
pub(super) struct Needs {
    /// Memory on each card, as far as the driver reports it.
    pub cards: HashMap<CUdevice, Units>,
    /// Did the driver keep anything back that may be memory?
    pub is_unknown: bool,
}

impl Needs {
    /// True if it certainly needs nothing.
    pub(super) fn is_nothing(&self) -> bool {
        self.cards.is_empty() && !self.is_unknown
    }

    /// The cards on which it may have memory.
    pub(super) fn devices(&self) -> Vec<CUdevice> {
        if self.is_unknown {
            unknown::devices()
        } else {
            self.cards.keys().copied().collect()
        }
    }
}

/// Children of children; of a graph that is nested deeper than this not everything is known.
const DEPTH_MAX: usize = 16;

/// The least that the driver puts behind addresses: the granularity of `cuMemCreate` on every card
/// since Volta.
const BLOCK: u64 = 2 << 20;

/// Asks the driver about the needs of a graph.
pub(super) fn needs_of(graph: CUgraph) -> Needs {
    let mut extents = HashMap::new();
    let is_known = collect(graph, 0, &mut extents).is_some();
    let cards = extents
        .into_iter()
        .map(|(device, extents)| (device, union(extents)));
    Needs {
        cards: cards.collect(),
        is_unknown: !is_known,
    }
}

/// Start and end address of an allocation. An allocation without an address shares nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Extent {
    from: u64,
    to: u64,
}

/// By card, the allocations that were found.
type Extents = HashMap<CUdevice, Vec<Extent>>;

/// Finds the allocations of a graph, and of those in it: `depth` counts graphs around it. `None`
/// if the driver did not tell all.
fn collect(graph: CUgraph, depth: usize, extents: &mut Extents) -> Option<()> {
    if depth == DEPTH_MAX {
        return None;
    }
    let mut known = Some(());
    for node in nodes_of(graph)? {
        known = known.and(collect_node(node, depth, extents));
    }
    known
}

fn collect_node(node: CUgraphNode, depth: usize, extents: &mut Extents) -> Option<()> {
    match kind_of(node)? {
        CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            let mut given = CUDA_MEM_ALLOC_NODE_PARAMS_v1::default();
            // SAFETY: writes the struct it is given, for a node of this kind.
            let result = unsafe { real::cuGraphMemAllocNodeGetParams(node, &raw mut given) };
            told(result)?;
            if let Some(device) = card_of(&given) {
                let (from, bytes) = (given.dptr, given.bytesize as u64);
                let to = from.saturating_add(bytes);
                extents.entry(device).or_default().push(Extent { from, to });
            }
            Some(())
        }
        CU_GRAPH_NODE_TYPE_GRAPH => {
            let mut child = CUgraph::default();
            // SAFETY: writes the handle it is given, for a node of this kind.
            let result = unsafe { real::cuGraphChildGraphNodeGetGraph(node, &raw mut child) };
            told(result)?;
            collect(child, depth + 1, extents)
        }
        _ => Some(()),
    }
}

fn told(result: CUresult) -> Option<()> {
    (result == CUDA_SUCCESS).then_some(())
}

/// All blocks with an address of any extent, each once.
fn union(extents: Vec<Extent>) -> Units {
    let (known, unknown): (Vec<_>, Vec<_>) =
        extents.into_iter().partition(|extent| extent.from != 0);
    let mut blocks: Vec<(u64, u64)> = known
        .iter()
        .map(|extent| (extent.from / BLOCK, extent.to.div_ceil(BLOCK)))
        .collect();
    blocks.sort_unstable();
    let alone = unknown.iter().map(|extent| extent.to.div_ceil(BLOCK));
    let mut count = alone.fold(0_u64, u64::saturating_add);
    let mut counted_to = 0;
    for (from, to) in blocks {
        count = count.saturating_add(to.saturating_sub(from.max(counted_to)));
        counted_to = counted_to.max(to);
    }
    Units::taken_by(count.saturating_mul(BLOCK)).unwrap_or(Units::MAX)
}

/// The card of an allocation; `None` for the host.
pub(super) fn card_of(given: &CUDA_MEM_ALLOC_NODE_PARAMS_v1) -> Option<CUdevice> {
    let location = given.poolProps.location;
    (location.r#type == CU_MEM_LOCATION_TYPE_DEVICE).then_some(location.id)
}

fn kind_of(node: CUgraphNode) -> Option<CUgraphNodeType> {
    let mut kind = CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: writes the number it is given.
    told(unsafe { real::cuGraphNodeGetType(node, &raw mut kind) })?;
    Some(kind)
}

fn nodes_of(graph: CUgraph) -> Option<Vec<CUgraphNode>> {
    let mut count = 0;
    let none = std::ptr::null_mut();
    // SAFETY: without a list, the driver writes the count alone.
    told(unsafe { real::cuGraphGetNodes(graph, none, &raw mut count) })?;
    let mut nodes = vec![CUgraphNode::default(); count];
    // SAFETY: there is room for as many as the count says.
    told(unsafe { real::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) })?;
    nodes.truncate(count);
    Some(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn memory_behind_the_same_addresses_counts_once() {
        const MIB: u64 = 1 << 20;
        for (extents, mib) in [
            (&[][..], 0),
            (&[(2, 1)], 2),
            (&[(2, 2), (4, 6)], 8),
            // One after the other at the same place, and one beside them.
            (&[(100, 40), (100, 38), (200, 50)], 90),
            (&[(100, 40), (120, 40)], 60),
            (&[(100, 40), (110, 2), (160, 2)], 42),
            // Two small ones in one block, and one across two.
            (&[(2, 1), (3, 1)], 2),
            (&[(3, 2)], 4),
            // A driver that does not say where.
            (&[(0, 40), (0, 50)], 90),
        ] {
            let extent = |&(from, bytes): &(u64, u64)| Extent {
                from: from * MIB,
                to: (from + bytes) * MIB,
            };
            let needed = union(extents.iter().map(extent).collect());
            assert_eq!(needed.bytes(), mib * MIB, "{extents:?}");
        }
        let (from, to) = (0, u64::MAX);
        assert_eq!(union(vec![Extent { from, to }; 2]), Units::MAX);
    }

    proptest! {
        #[test]
        fn it_is_the_number_of_blocks_that_are_touched(
            extents in proptest::collection::vec((1_u64..50, 1_u64..20), 0..12)
        ) {
            let blocks: BTreeSet<u64> =
                extents.iter().flat_map(|&(from, count)| from..from + count).collect();
            let extent = |&(from, count): &(u64, u64)| Extent {
                from: from * BLOCK + 512,
                to: (from + count) * BLOCK - 512,
            };
            let needed = union(extents.iter().map(extent).collect());
            prop_assert_eq!(needed.bytes(), blocks.len() as u64 * BLOCK);
        }
    }
}
