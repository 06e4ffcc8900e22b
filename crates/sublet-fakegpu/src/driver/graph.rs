//! Graphs: nodes with an order, what is made of them to be launched, and the launch. The
//! nodes of a launched graph go into the stream one after the other, in an order that
//! theirs allows; a card runs one kernel at a time anyway.

use std::collections::{BTreeMap, HashMap};

use super::code::{Answer, Code};
use super::queue::Id;
use super::work::Action;
use super::{Driver, Session};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
pub const AUTO_FREE: u64 = 1;

/// What a node does.
#[derive(Debug, Clone)]
pub enum Content {
    /// One thing.
    Action(Action),
    /// All that another graph does.
    Child(Id),
}

/// A node.
#[derive(Debug, Clone)]
pub struct Node {
    /// The graph it is in.
    pub graph: Id,
    /// What it does.
    pub content: Content,
    /// Nodes it comes after.
    pub after: Vec<Id>,
    /// Does it do anything?
    pub is_enabled: bool,
    /// The parameters as the program gave them, to be told again.
    pub given: Vec<u64>,
    /// The node that this one was cloned from; 0 for none.
    pub copy_of: Id,
}

/// Something that can be launched.
#[derive(Debug, Clone)]
pub struct Exec {
    /// As it was made.
    pub flags: u64,
    steps: Vec<Step>,
    /// Memory that its nodes allocate.
    memory: Vec<u64>,
}

#[derive(Debug, Clone)]
struct Step {
    node: Id,
    action: Action,
    is_enabled: bool,
}

/// All graphs of a process.
#[derive(Debug, Default)]
pub struct Graphs {
    graphs: BTreeMap<Id, Vec<Id>>,
    nodes: HashMap<Id, Node>,
    execs: HashMap<Id, Exec>,
    /// How many graphs and execs have this memory of a node.
    memory: HashMap<u64, usize>,
}

impl Content {
    /// `CUgraphNodeType`.
    #[must_use]
    pub fn kind(&self) -> u32 {
        use super::work::Source;
        match self {
            Content::Child(_) => 4,
            Content::Action(action) => match action {
                Action::Kernel(_) => 0,
                Action::Move(bytes) if matches!(bytes.from, Source::Pattern { .. }) => 2,
                Action::Move(_) => 1,
                Action::Call(_) => 3,
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
    pub fn make_graph(&mut self) -> Id {
        let id = self.new_id();
        self.graphs.graphs.insert(id, Vec::new());
        id
    }

    /// The nodes of a graph, in the order in which they were added.
    pub fn nodes_of(&self, graph: Id) -> Answer<&[Id]> {
        let nodes = self.graphs.graphs.get(&graph);
        nodes.map(Vec::as_slice).ok_or(Code::INVALID_VALUE)
    }

    /// A node by its handle.
    pub fn node(&self, id: Id) -> Answer<&Node> {
        self.graphs.nodes.get(&id).ok_or(Code::INVALID_VALUE)
    }

    /// As [`Driver::node`], to change it.
    pub fn node_mut(&mut self, id: Id) -> Answer<&mut Node> {
        self.graphs.nodes.get_mut(&id).ok_or(Code::INVALID_VALUE)
    }

    /// Adds a node after others of the same graph; its handle.
    pub fn add_node(&mut self, graph: Id, after: &[Id], content: Content) -> Answer<Id> {
        self.nodes_of(graph)?;
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
            is_enabled: true,
            given: Vec::new(),
            copy_of: 0,
        };
        self.graphs.nodes.insert(id, node);
        if let Some(nodes) = self.graphs.graphs.get_mut(&graph) {
            nodes.push(id);
        }
        Ok(id)
    }

    /// Takes a node away, and every order it is in.
    pub fn drop_node(&mut self, id: Id) -> Answer {
        let graph = self.node(id)?.graph;
        if let Some(nodes) = self.graphs.graphs.get_mut(&graph) {
            nodes.retain(|node| *node != id);
        }
        for node in self.graphs.nodes.values_mut() {
            node.after.retain(|other| *other != id);
        }
        let node = self.graphs.nodes.remove(&id);
        if let Some(Content::Action(Action::Alloc(start))) = node.map(|node| node.content) {
            self.release_node_memory(&[start]);
        }
        Ok(())
    }

    /// Takes a graph away with its nodes.
    pub fn drop_graph(&mut self, graph: Id) -> Answer {
        for node in self.nodes_of(graph)?.to_vec() {
            if let Content::Child(child) = self.node(node)?.content {
                self.drop_graph(child)?;
            }
            self.drop_node(node)?;
        }
        self.graphs.graphs.remove(&graph);
        Ok(())
    }

    /// The same nodes in a graph of its own, with the handles of the copies.
    pub fn clone_graph(&mut self, graph: Id) -> Answer<(Id, BTreeMap<Id, Id>)> {
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

    /// Adds or removes the order of two nodes.
    pub fn set_order(&mut self, first: Id, second: Id, ordered: bool) -> Answer {
        if self.node(first)?.graph != self.node(second)?.graph || first == second {
            return Err(Code::INVALID_VALUE);
        }
        let after = &mut self.node_mut(second)?.after;
        let known = after.contains(&first);
        if known == ordered {
            return Err(Code::INVALID_VALUE);
        }
        if ordered {
            after.push(first);
        } else {
            after.retain(|node| *node != first);
        }
        Ok(())
    }

    /// The nodes such that each comes after those it shall come after.
    fn sorted(&self, nodes: &[Id]) -> Answer<Vec<Id>> {
        let mut order: Vec<Id> = Vec::with_capacity(nodes.len());
        let mut placed = std::collections::HashSet::new();
        let mut left: Vec<Id> = nodes.to_vec();
        while !left.is_empty() {
            let before = left.len();
            let mut later = Vec::new();
            for id in left {
                let after = &self.node(id)?.after;
                if after.iter().all(|other| placed.contains(other)) {
                    placed.insert(id);
                    order.push(id);
                } else {
                    later.push(id);
                }
            }
            if later.len() == before {
                // They wait for each other.
                return Err(Code::INVALID_VALUE);
            }
            left = later;
        }
        Ok(order)
    }

    fn flatten(&self, graph: Id, steps: &mut Vec<Step>) -> Answer {
        for id in self.sorted(self.nodes_of(graph)?)? {
            let node = self.node(id)?;
            match &node.content {
                Content::Child(child) => self.flatten(*child, steps)?,
                Content::Action(action) => steps.push(Step {
                    node: id,
                    action: action.clone(),
                    is_enabled: node.is_enabled,
                }),
            }
        }
        Ok(())
    }

    /// Makes something of a graph that can be launched.
    pub fn instantiate(&mut self, graph: Id, flags: u64) -> Answer<Id> {
        let mut steps = Vec::new();
        self.flatten(graph, &mut steps)?;
        let memory: Vec<u64> = steps
            .iter()
            .filter_map(|step| match step.action {
                Action::Alloc(start) => Some(start),
                _ => None,
            })
            .collect();
        // Memory of a node is at one address, so only one exec at a time can have it.
        if memory
            .iter()
            .any(|start| self.graphs.memory.get(start).is_some_and(|n| *n > 1))
        {
            return Err(Code::NOT_SUPPORTED);
        }
        for start in &memory {
            *self.graphs.memory.entry(*start).or_default() += 1;
        }
        let id = self.new_id();
        let exec = Exec {
            flags,
            steps,
            memory,
        };
        self.graphs.execs.insert(id, exec);
        Ok(id)
    }

    /// Takes over what changed in a graph of the same shape. False if the shape differs.
    pub fn update_exec(&mut self, exec: Id, graph: Id) -> Answer<bool> {
        let mut steps = Vec::new();
        self.flatten(graph, &mut steps)?;
        let exec = self.exec_mut(exec)?;
        let kind = |step: &Step| Content::Action(step.action.clone()).kind();
        let same = exec.steps.len() == steps.len()
            && exec
                .steps
                .iter()
                .zip(&steps)
                .all(|(old, new)| kind(old) == kind(new));
        if same {
            exec.steps = steps;
        }
        Ok(same)
    }

    /// Changes what one node does in an exec.
    pub fn set_step(
        &mut self,
        exec: Id,
        node: Id,
        action: Option<Action>,
        enabled: Option<bool>,
    ) -> Answer {
        let exec = self.exec_mut(exec)?;
        let step = exec.steps.iter_mut().find(|step| step.node == node);
        let step = step.ok_or(Code::INVALID_VALUE)?;
        if let Some(action) = action {
            step.action = action;
        }
        step.is_enabled = enabled.unwrap_or(step.is_enabled);
        Ok(())
    }

    /// Does a node do anything in an exec?
    pub fn is_step_enabled(&self, exec: Id, node: Id) -> Answer<bool> {
        let exec = self.exec(exec)?;
        let step = exec.steps.iter().find(|step| step.node == node);
        step.map(|step| step.is_enabled).ok_or(Code::INVALID_VALUE)
    }

    /// What can be launched, by its handle.
    pub fn exec(&self, id: Id) -> Answer<&Exec> {
        self.graphs.execs.get(&id).ok_or(Code::INVALID_VALUE)
    }

    fn exec_mut(&mut self, id: Id) -> Answer<&mut Exec> {
        self.graphs.execs.get_mut(&id).ok_or(Code::INVALID_VALUE)
    }

    /// Takes an exec away; launches that are on their way still run.
    pub fn drop_exec(&mut self, id: Id) -> Answer {
        let exec = self.graphs.execs.remove(&id).ok_or(Code::INVALID_VALUE)?;
        self.release_node_memory(&exec.memory);
        Ok(())
    }

    /// Does a graph or an exec have a node with this memory?
    #[must_use]
    pub(super) fn has_graph_with(&self, start: u64) -> bool {
        self.graphs.memory.contains_key(&start)
    }

    fn release_node_memory(&mut self, starts: &[u64]) {
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

impl Session {
    /// Launches an exec in a stream, or makes its nodes part of the graph that the stream
    /// is captured into.
    pub fn launch(&mut self, exec: Id, stream: Id) -> Answer {
        let Exec {
            flags,
            steps,
            memory,
        } = self.exec(exec)?.clone();
        if self.captures.of(stream).is_some() {
            for step in steps.into_iter().filter(|step| step.is_enabled) {
                self.capture(stream, step.action)?;
            }
            return Ok(());
        }
        let frees = |start: &u64| {
            let mut steps = steps.iter();
            steps.any(|step| matches!(step.action, Action::Free(freed) if freed == *start))
        };
        let left: Vec<u64> = memory
            .iter()
            .copied()
            .filter(|start| !frees(start) && self.is_live_graph_memory(*start))
            .collect();
        if !left.is_empty() && flags & AUTO_FREE == 0 {
            return Err(Code::INVALID_VALUE);
        }
        for start in left {
            self.enqueue(stream, Action::Free(start))?;
        }
        self.charge_graph_memory(&memory)?;
        for step in steps {
            if step.is_enabled {
                self.enqueue(stream, step.action)?;
            }
        }
        Ok(())
    }
}
