//! Addresses of memory in graphs. An allocation that comes after the free of another one of the
//! same graph, in the order of the nodes, gets that one's addresses, and so its memory. Allocations
//! that can be alive at the same time never share addresses. So a driver reuses memory within a
//! graph, and a graph needs the memory behind its addresses.

use std::collections::{BTreeMap, BTreeSet};

use crate::driver::Driver;
use crate::driver::graph::Content;
use crate::driver::result::Answer;
use crate::driver::stream::queue::Id;
use crate::driver::stream::work::Action;

impl Driver {
    /// Returns the address of an allocation that comes after other nodes of a graph.
    pub(crate) fn place_in_graph(
        &mut self,
        graph: Id,
        after: &[Id],
        card: usize,
        size: u64,
    ) -> Answer<u64> {
        let before = self.all_before(after)?;
        let mut balance: BTreeMap<u64, i64> = BTreeMap::new();
        for id in self.nodes_of(graph)? {
            match self.node(*id)?.content {
                Content::Action(Action::Alloc(start)) => *balance.entry(start).or_default() += 1,
                Content::Action(Action::Free(start)) if before.contains(id) => {
                    *balance.entry(start).or_default() -= 1;
                }
                _ => {}
            }
        }
        let freed = balance.into_iter().filter(|(_, balance)| *balance == 0);
        let mut fitting = freed.filter(|(start, _)| {
            let room = self.graph_memory_at(*start);
            room.is_some_and(|(of, room)| of == card && room >= size)
        });
        match fitting.next().map(|(start, _)| start) {
            Some(start) => Ok(start),
            None => self.reserve_graph_memory(card, size),
        }
    }

    /// These nodes, and all that they come after.
    fn all_before(&self, nodes: &[Id]) -> Answer<BTreeSet<Id>> {
        let mut seen = BTreeSet::new();
        let mut next = nodes.to_vec();
        while let Some(id) = next.pop() {
            if seen.insert(id) {
                next.extend(&self.node(id)?.after);
            }
        }
        Ok(seen)
    }
}
