//! What a graph needs at once.
//!
//! In a chain of nodes, as every capture of a single stream is: the largest sum that is alive
//! at one moment. Where branches run side by side the driver reuses memory between them only
//! along edges, and the sum of all is taken, which is never too little.

use std::collections::HashMap;

use sublet_abi::Units;

use crate::cuda::c::*;
use crate::cuda::real;

/// What a graph needs of each card.
pub(super) type Needs = HashMap<CUdevice, Units>;

/// Children of children; a graph that is nested deeper than this is no program's.
const DEPTH_MAX: usize = 16;

/// What a graph needs, as far as the driver tells. `depth` counts graphs around it.
pub(super) fn needs_of(graph: CUgraph, depth: usize) -> Needs {
    let mut needs = Needs::new();
    if depth == DEPTH_MAX {
        return needs;
    }
    let nodes = nodes_of(graph);
    let kinds: Vec<_> = nodes.iter().map(|&node| kind_of(node)).collect();
    let has_memory = kinds.contains(&CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    if has_memory {
        let order = chain(&nodes, &edges_of(graph));
        needs = match order {
            Some(chain) => peak(&steps_of(&chain)),
            None => sum(&steps_of(&nodes)),
        };
    }
    for (&node, &kind) in nodes.iter().zip(&kinds) {
        let mut child = CUgraph::default();
        if kind != CU_GRAPH_NODE_TYPE_GRAPH {
            continue;
        }
        // SAFETY: writes the handle it is given, for a node of this kind.
        let result = unsafe { real::cuGraphChildGraphNodeGetGraph(node, &raw mut child) };
        if result == CUDA_SUCCESS {
            for (device, amount) in needs_of(child, depth + 1) {
                let entry = needs.entry(device).or_default();
                *entry = entry.saturating_add(amount);
            }
        }
    }
    needs
}

/// What a node does to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Alloc(CUdeviceptr, CUdevice, Units),
    Free(CUdeviceptr),
}

/// The most that is alive at one moment, if the steps come one after the other.
fn peak(steps: &[Step]) -> Needs {
    let mut live: HashMap<CUdeviceptr, (CUdevice, Units)> = HashMap::new();
    let (mut now, mut most) = (Needs::new(), Needs::new());
    for step in steps {
        match *step {
            Step::Alloc(address, device, amount) => {
                let entry = now.entry(device).or_default();
                *entry = entry.saturating_add(amount);
                live.insert(address, (device, amount));
                let high = most.entry(device).or_default();
                *high = (*high).max(*entry);
            }
            Step::Free(address) => {
                if let Some((device, amount)) = live.remove(&address) {
                    let entry = now.entry(device).or_default();
                    *entry = entry.saturating_sub(amount);
                }
            }
        }
    }
    most
}

/// Everything that is ever allocated.
fn sum(steps: &[Step]) -> Needs {
    let mut needs = Needs::new();
    for step in steps {
        if let Step::Alloc(_, device, amount) = *step {
            let entry = needs.entry(device).or_default();
            *entry = entry.saturating_add(amount);
        }
    }
    needs
}

/// The nodes in the order of their edges, if they form one chain.
fn chain(nodes: &[CUgraphNode], edges: &[(CUgraphNode, CUgraphNode)]) -> Option<Vec<CUgraphNode>> {
    if edges.len() + 1 != nodes.len() {
        return None;
    }
    let mut next = HashMap::new();
    let mut is_start: HashMap<_, _> = nodes.iter().map(|&node| (node, true)).collect();
    for &(from, to) in edges {
        if next.insert(from, to).is_some() {
            return None;
        }
        is_start.insert(to, false);
    }
    let mut starts = nodes.iter().filter(|node| is_start[node]);
    let (first, None) = (*starts.next()?, starts.next()) else {
        return None;
    };
    let chain: Vec<_> = std::iter::successors(Some(first), |node| next.get(node).copied())
        .take(nodes.len())
        .collect();
    (chain.len() == nodes.len()).then_some(chain)
}

fn steps_of(nodes: &[CUgraphNode]) -> Vec<Step> {
    let step = |&node: &CUgraphNode| match kind_of(node) {
        CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            let mut given = CUDA_MEM_ALLOC_NODE_PARAMS_v1::default();
            // SAFETY: writes the struct it is given, for a node of this kind.
            let result = unsafe { real::cuGraphMemAllocNodeGetParams(node, &raw mut given) };
            let device = card_of(&given).filter(|_| result == CUDA_SUCCESS)?;
            let amount = Units::taken_by(given.bytesize as u64).unwrap_or(Units::MAX);
            Some(Step::Alloc(given.dptr, device, amount))
        }
        CU_GRAPH_NODE_TYPE_MEM_FREE => {
            let mut address = 0;
            // SAFETY: writes the address it is given, for a node of this kind.
            let result = unsafe { real::cuGraphMemFreeNodeGetParams(node, &raw mut address) };
            (result == CUDA_SUCCESS).then_some(Step::Free(address))
        }
        _ => None,
    };
    nodes.iter().filter_map(step).collect()
}

/// The card of an allocation; `None` for the host.
pub(super) fn card_of(given: &CUDA_MEM_ALLOC_NODE_PARAMS_v1) -> Option<CUdevice> {
    let location = given.poolProps.location;
    (location.r#type == CU_MEM_LOCATION_TYPE_DEVICE).then_some(location.id)
}

fn kind_of(node: CUgraphNode) -> CUgraphNodeType {
    let mut kind = CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: writes the number it is given.
    let _ = unsafe { real::cuGraphNodeGetType(node, &raw mut kind) };
    kind
}

fn nodes_of(graph: CUgraph) -> Vec<CUgraphNode> {
    let mut count = 0;
    let none = std::ptr::null_mut();
    // SAFETY: without a list, the driver writes the count alone.
    if unsafe { real::cuGraphGetNodes(graph, none, &raw mut count) } != CUDA_SUCCESS {
        return Vec::new();
    }
    let mut nodes = vec![CUgraphNode::default(); count];
    // SAFETY: there is room for as many as the count says.
    let result = unsafe { real::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) };
    nodes.truncate(if result == CUDA_SUCCESS { count } else { 0 });
    nodes
}

fn edges_of(graph: CUgraph) -> Vec<(CUgraphNode, CUgraphNode)> {
    let mut count = 0;
    let none = std::ptr::null_mut();
    // SAFETY: as above.
    if unsafe { real::cuGraphGetEdges(graph, none, none, &raw mut count) } != CUDA_SUCCESS {
        return Vec::new();
    }
    let mut from = vec![CUgraphNode::default(); count];
    let mut to = from.clone();
    // SAFETY: there is room for as many as the count says, twice.
    let result =
        unsafe { real::cuGraphGetEdges(graph, from.as_mut_ptr(), to.as_mut_ptr(), &raw mut count) };
    let count = if result == CUDA_SUCCESS { count } else { 0 };
    from.into_iter().zip(to).take(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(count: u64) -> Units {
        Units::new(count).expect("few units")
    }

    #[test]
    fn a_chain_needs_its_peak_and_branches_their_sum() {
        let steps = [
            Step::Alloc(1, 0, units(5)),
            Step::Free(1),
            Step::Alloc(2, 0, units(3)),
            Step::Alloc(3, 0, units(4)),
            Step::Alloc(4, 1, units(9)),
            Step::Free(2),
            Step::Free(77),
        ];
        assert_eq!(peak(&steps), Needs::from([(0, units(7)), (1, units(9))]));
        assert_eq!(sum(&steps), Needs::from([(0, units(12)), (1, units(9))]));
    }

    #[test]
    fn only_one_line_of_nodes_is_a_chain() {
        let node = CUgraphNode;
        let check = |nodes: &[usize], edges: &[(usize, usize)], expected: Option<&[usize]>| {
            let nodes: Vec<_> = nodes.iter().copied().map(node).collect();
            let edges: Vec<_> = edges.iter().map(|&(a, b)| (node(a), node(b))).collect();
            let expected = expected.map(|list| list.iter().copied().map(node).collect::<Vec<_>>());
            assert_eq!(chain(&nodes, &edges), expected, "{nodes:?} {edges:?}");
        };
        check(&[1], &[], Some(&[1]));
        check(&[3, 1, 2], &[(2, 3), (1, 2)], Some(&[1, 2, 3]));
        check(&[1, 2], &[], None);
        check(&[1, 2, 3], &[(1, 2), (1, 3)], None);
        check(&[1, 2, 3], &[(1, 3), (2, 3)], None);
        check(&[1, 2, 3], &[(2, 3), (3, 2)], None);
        check(&[], &[], None);
    }
}
