//! Graphs in graphs. Memory of a node is at one address for good, so a graph that allocates or frees
//! cannot be copied into another one; it can only be moved there, and then is that one's.

use crate::driver::Driver;
use crate::driver::graph::Content;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;
use crate::driver::stream::work::Action;

impl Driver {
    /// Makes a graph a part of another one, which has it from now on; the node.
    pub(crate) fn move_graph(&mut self, child: Id, graph: Id, after: &[Id]) -> Answer<Id> {
        let mut outer = Some(graph);
        while let Some(around) = outer {
            if around == child {
                return Err(Code::INVALID_VALUE);
            }
            let node = self.graphs.owned.get(&around);
            outer = node.and_then(|node| Some(self.node(*node).ok()?.graph));
        }
        self.nodes_of(child)?;
        if self.graphs.owned.contains_key(&child) {
            return Err(Code::INVALID_VALUE);
        }
        let node = self.add_node(graph, after, Content::Child(child))?;
        self.graphs.owned.insert(child, node);
        Ok(node)
    }

    /// Refuses calls that a graph does not allow once it was moved into another.
    pub(crate) fn forbid_if_moved(&self, graph: Id) -> Answer {
        if self.graphs.owned.contains_key(&graph) {
            return Err(Code::NOT_SUPPORTED);
        }
        Ok(())
    }
}

/// Does a node allocate or free?
pub(crate) fn is_of_memory(content: &Content) -> bool {
    matches!(content, Content::Action(Action::Alloc(_) | Action::Free(_)))
}
