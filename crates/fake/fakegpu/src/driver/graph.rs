//! Graphs: nodes with an order. Their executable form is in `exec`.

use std::collections::{BTreeMap, HashMap};

use crate::driver::Driver;
use crate::driver::graph::child::is_of_memory;
use crate::driver::graph::exec::Exec;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;
use crate::driver::stream::work::Action;

mod address_reuse;
pub(crate) mod capture;
mod child;
pub(crate) mod exec;

/// Action of a node.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// One thing.
    Action(Action),
    /// All that another graph does.
    Child(Id),
}

/// A node.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// The graph it is in.
    pub(crate) graph: Id,
    /// Its action.
    pub(crate) content: Content,
    /// Nodes it comes after.
    pub(crate) after: Vec<Id>,
    /// The parameters of a node that allocates, as the program gave them, to be told again.
    pub(crate) given: Vec<u64>,
}

/// All graphs of a process.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    graphs: BTreeMap<Id, Vec<Id>>,
    nodes: HashMap<Id, Node>,
    /// Graphs that were moved into another graph, with their node there.
    pub(crate) owned: HashMap<Id, Id>,
    pub(crate) execs: HashMap<Id, Exec>,
    /// Number of graphs and execs that have this memory of a node.
    pub(crate) memory: HashMap<u64, usize>,
}

impl Content {
    /// `CUgraphNodeType`.
    #[must_use]
    pub(crate) fn kind(&self) -> u32 {
        use crate::driver::stream::work::Source;
        match self {
            Content::Child(_) => 4,
            Content::Action(action) => match action {
                Action::Kernel(_) => 0,
                Action::Move(bytes) if matches!(bytes.from, Source::Pattern { .. }) => 2,
                Action::Move(_) => 1,
                Action::Empty => 5,
                Action::Wait(_) => 6,
                Action::Record(_) => 7,
                Action::Alloc(_) => 10,
                Action::Free(_) => 11,
                Action::Poll(_) => 12,
            },
        }
    }
}

impl Driver {
    /// An empty graph.
    pub(crate) fn make_graph(&mut self) -> Id {
        let id = self.new_id();
        self.graphs.graphs.insert(id, Vec::new());
        id
    }

    /// The nodes of a graph, in the order in which they were added: each comes after all that it
    /// shall come after.
    pub(crate) fn nodes_of(&self, graph: Id) -> Answer<&[Id]> {
        let nodes = self.graphs.graphs.get(&graph);
        nodes.map(Vec::as_slice).ok_or(Code::INVALID_VALUE)
    }

    /// A node by its handle.
    pub(crate) fn node(&self, id: Id) -> Answer<&Node> {
        self.graphs.nodes.get(&id).ok_or(Code::INVALID_VALUE)
    }

    /// As [`Driver::node`], to change it.
    pub(crate) fn node_mut(&mut self, id: Id) -> Answer<&mut Node> {
        self.graphs.nodes.get_mut(&id).ok_or(Code::INVALID_VALUE)
    }

    /// Adds a node after others of the same graph; its handle.
    pub(crate) fn add_node(&mut self, graph: Id, after: &[Id], content: Content) -> Answer<Id> {
        self.nodes_of(graph)?;
        if is_of_memory(&content) {
            self.forbid_if_moved(graph)?;
        }
        for node in after {
            if self.node(*node)?.graph != graph {
                return Err(Code::INVALID_VALUE);
            }
        }
        if let Content::Action(Action::Alloc(start)) = content {
            *self.graphs.memory.entry(start).or_default() += 1;
        }
        let id = self.new_id();
        let mut distinct: Vec<Id> = Vec::new();
        for node in after {
            if !distinct.contains(node) {
                distinct.push(*node);
            }
        }
        let node = Node {
            graph,
            content,
            after: distinct,
            given: Vec::new(),
        };
        self.graphs.nodes.insert(id, node);
        if let Some(nodes) = self.graphs.graphs.get_mut(&graph) {
            nodes.push(id);
        }
        Ok(id)
    }

    /// Removes a node of a graph that is gone, with its parts.
    fn end_node(&mut self, id: Id) -> Answer {
        let node = self.graphs.nodes.remove(&id).ok_or(Code::INVALID_VALUE)?;
        match node.content {
            Content::Action(Action::Alloc(start)) => self.release_node_memory(&[start]),
            Content::Action(_) => {}
            Content::Child(child) => {
                self.graphs.owned.remove(&child);
                self.drop_graph(child)?;
            }
        }
        Ok(())
    }

    /// Takes a graph away with its nodes, unless it belongs to a node.
    pub(crate) fn drop_graph(&mut self, graph: Id) -> Answer {
        if self.graphs.owned.contains_key(&graph) {
            return Err(Code::INVALID_VALUE);
        }
        let nodes = self.graphs.graphs.remove(&graph);
        for node in nodes.ok_or(Code::INVALID_VALUE)? {
            self.end_node(node)?;
        }
        Ok(())
    }

    /// Does a graph or an exec have a node with this memory?
    #[must_use]
    pub(crate) fn has_graph_with(&self, start: u64) -> bool {
        self.graphs.memory.contains_key(&start)
    }

    pub(crate) fn release_node_memory(&mut self, starts: &[u64]) {
        for start in starts {
            if let Some(n_users) = self.graphs.memory.get_mut(start) {
                *n_users -= 1;
                if *n_users == 0 {
                    self.graphs.memory.remove(start);
                    self.forget_graph_memory(*start);
                }
            }
        }
    }
}
