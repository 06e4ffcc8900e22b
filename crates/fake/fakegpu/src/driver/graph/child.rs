//! Graphs that are copied, and graphs in graphs. Memory of a node is at one address for good, so
//! a graph that allocates or frees can neither be copied nor lose a node or an edge; as a part
//! of another graph it can only be moved there, and then is that one's.

use std::collections::BTreeMap;

use crate::driver::Driver;
use crate::driver::graph::Content;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;
use crate::driver::stream::work::Action;

impl Driver {
    /// The same nodes in a graph of its own, with the handles of the copies.
    pub(crate) fn clone_graph(&mut self, graph: Id) -> Answer<(Id, BTreeMap<Id, Id>)> {
        if self.has(graph, &is_conditional)? || self.has(graph, &is_of_memory)? {
            return Err(Code::NOT_SUPPORTED);
        }
        let nodes = self.nodes_of(graph)?.to_vec();
        let copy = self.make_graph();
        let mut copies = BTreeMap::new();
        for id in self.sorted(&nodes)? {
            let node = self.node(id)?.clone();
            let after: Vec<Id> = node.after.iter().map(|other| copies[other]).collect();
            let content = match node.content {
                Content::Child(child) => Content::Child(self.clone_graph(child)?.0),
                content => content,
            };
            let new = self.add_node(copy, &after, content)?;
            let node_copy = self.node_mut(new)?;
            (node_copy.is_enabled, node_copy.given) = (node.is_enabled, node.given);
            copies.insert(id, new);
        }
        Ok((copy, copies))
    }

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
        if self.graphs.owned.contains_key(&child) {
            return Err(Code::INVALID_VALUE);
        }
        if self.has(child, &is_conditional)? {
            return Err(Code::NOT_SUPPORTED);
        }
        let node = self.add_node(graph, after, Content::Child(child))?;
        self.graphs.owned.insert(child, node);
        Ok(node)
    }

    /// Refuses calls that a graph does not allow once it was moved into another.
    pub(crate) fn forbid_if_moved(&self, graph: Id) -> Answer {
        let node = self.graphs.owned.get(&graph);
        match node.and_then(|node| self.node(*node).ok()) {
            Some(node) if matches!(node.content, Content::Child(_)) => Err(Code::NOT_SUPPORTED),
            _ => Ok(()),
        }
    }

    /// Refuses to take anything from a graph that has memory.
    pub(crate) fn forbid_if_it_has_memory(&self, graph: Id) -> Answer {
        if self.has(graph, &is_of_memory)? {
            return Err(Code::NOT_SUPPORTED);
        }
        Ok(())
    }

    /// Is a node of a graph such a one, or a node of a graph in it?
    fn has(&self, graph: Id, is_meant: &impl Fn(&Content) -> bool) -> Answer<bool> {
        for id in self.nodes_of(graph)? {
            let content = &self.node(*id)?.content;
            let inside = match content {
                Content::Child(child) => self.has(*child, is_meant)?,
                Content::Action(_) | Content::Conditional(_) => false,
            };
            if inside || is_meant(content) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A graph with such a node cannot be copied.
fn is_conditional(content: &Content) -> bool {
    matches!(content, Content::Conditional(_))
}

/// Nor can one that allocates or frees.
pub(crate) fn is_of_memory(content: &Content) -> bool {
    matches!(content, Content::Action(Action::Alloc(_) | Action::Free(_)))
}
