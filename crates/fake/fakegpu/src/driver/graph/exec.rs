//! The executable form of a graph, and its launch. The nodes go into the stream one after the
//! other, in an order that theirs allows; a card runs one kernel at a time anyway.

use crate::driver::graph::Content;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::Id;
use crate::driver::stream::work::Action;
use crate::driver::{Driver, Session};

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
pub(crate) const AUTO_FREE: u64 = 1;

/// Something that can be launched.
#[derive(Debug, Clone)]
pub(crate) struct Exec {
    /// As it was made.
    pub(crate) flags: u64,
    steps: Vec<Step>,
    /// Memory that its nodes allocate.
    memory: Vec<u64>,
    /// Values that decide its conditional nodes.
    conditions: Vec<Id>,
}

/// One node of an executable graph.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    node: Id,
    pub(crate) action: Action,
    pub(crate) is_enabled: bool,
}

impl Step {
    /// Do two lists of steps differ only in the parameters of their steps?
    pub(crate) fn are_alike(one: &[Step], other: &[Step]) -> bool {
        let alike = |(one, other): (&Step, &Step)| match (&one.action, &other.action) {
            (Action::Branch(one), Action::Branch(other)) => one.has_shape_of(other),
            (one, other) => kind_of(one) == kind_of(other),
        };
        one.len() == other.len() && one.iter().zip(other).all(alike)
    }

    /// The step of a node, however deep in branches it is.
    fn of(steps: &mut [Step], node: Id) -> Option<&mut Step> {
        for step in steps {
            if step.node == node {
                return Some(step);
            }
            if let Action::Branch(branch) = &mut step.action {
                let mut bodies = branch.bodies.iter_mut();
                let found = bodies.find_map(|body| Step::of(body, node));
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// The conditions that steps look at, however deep.
    fn conditions(steps: &[Step], found: &mut Vec<Id>) {
        for step in steps {
            if let Action::Branch(branch) = &step.action {
                found.push(branch.condition);
                for body in &branch.bodies {
                    Step::conditions(body, found);
                }
            }
        }
    }
}

fn kind_of(action: &Action) -> u32 {
    Content::Action(action.clone()).kind()
}

impl Driver {
    pub(crate) fn flatten(&self, graph: Id, steps: &mut Vec<Step>) -> Answer {
        for id in self.sorted(self.nodes_of(graph)?)? {
            let node = self.node(id)?;
            let action = match &node.content {
                Content::Child(child) => {
                    self.flatten(*child, steps)?;
                    continue;
                }
                Content::Action(action) => action.clone(),
                Content::Conditional(conditional) => {
                    Action::Branch(Box::new(self.branch(conditional)?))
                }
            };
            steps.push(Step {
                node: id,
                action,
                is_enabled: node.is_enabled,
            });
        }
        Ok(())
    }

    /// Makes something of a graph that can be launched.
    pub(crate) fn instantiate(&mut self, graph: Id, flags: u64) -> Answer<Id> {
        self.forbid_if_moved(graph)?;
        let mut steps = Vec::new();
        self.flatten(graph, &mut steps)?;
        let memory: Vec<u64> = steps
            .iter()
            .filter_map(|step| match step.action {
                Action::Alloc(start) => Some(start),
                _ => None,
            })
            .collect();
        // Memory of a node is at one address, so only one exec at a time can have it. Nodes of
        // the graph can have it in common.
        let n_nodes = |start: &u64| memory.iter().filter(|other| *other == start).count();
        let is_elsewhere = |start: &u64| {
            let users = self.graphs.memory.get(start).copied();
            users.is_some_and(|users| users > n_nodes(start))
        };
        if memory.iter().any(is_elsewhere) {
            return Err(Code::NOT_SUPPORTED);
        }
        let mut conditions = Vec::new();
        Step::conditions(&steps, &mut conditions);
        self.take_conditions(&conditions)?;
        for start in &memory {
            *self.graphs.memory.entry(*start).or_default() += 1;
        }
        let id = self.new_id();
        let exec = Exec {
            flags,
            steps,
            memory,
            conditions,
        };
        self.graphs.execs.insert(id, exec);
        Ok(id)
    }

    /// Takes over the changes of a graph of the same shape. False if the shape differs.
    pub(crate) fn update_exec(&mut self, exec: Id, graph: Id) -> Answer<bool> {
        self.forbid_if_moved(graph)?;
        let mut steps = Vec::new();
        self.flatten(graph, &mut steps)?;
        let old = self.exec(exec)?;
        if !Step::are_alike(&old.steps, &steps) {
            return Ok(false);
        }
        // Kernels name the conditions of their own graph, so these come with them.
        let mut conditions = Vec::new();
        Step::conditions(&steps, &mut conditions);
        let given = old.conditions.clone();
        self.give_conditions(&given);
        if let Err(code) = self.take_conditions(&conditions) {
            self.take_conditions(&given)?;
            return Err(code);
        }
        let exec = self.exec_mut(exec)?;
        (exec.steps, exec.conditions) = (steps, conditions);
        Ok(true)
    }

    /// Changes the action of one node in an exec.
    pub(crate) fn set_step(
        &mut self,
        exec: Id,
        node: Id,
        action: Option<Action>,
        enabled: Option<bool>,
    ) -> Answer {
        let exec = self.exec_mut(exec)?;
        let step = Step::of(&mut exec.steps, node).ok_or(Code::INVALID_VALUE)?;
        if let Some(action) = action {
            step.action = action;
        }
        step.is_enabled = enabled.unwrap_or(step.is_enabled);
        Ok(())
    }

    /// Does a node do anything in an exec?
    pub(crate) fn is_step_enabled(&self, exec: Id, node: Id) -> Answer<bool> {
        let exec = self.exec(exec)?;
        let step = exec.steps.iter().find(|step| step.node == node);
        step.map(|step| step.is_enabled).ok_or(Code::INVALID_VALUE)
    }

    /// Returns an executable graph by its handle.
    pub(crate) fn exec(&self, id: Id) -> Answer<&Exec> {
        self.graphs.execs.get(&id).ok_or(Code::INVALID_VALUE)
    }

    fn exec_mut(&mut self, id: Id) -> Answer<&mut Exec> {
        self.graphs.execs.get_mut(&id).ok_or(Code::INVALID_VALUE)
    }

    /// Takes the memory of its nodes before it is launched.
    pub(crate) fn upload(&mut self, id: Id) -> Answer {
        let memory = self.exec(id)?.memory.clone();
        self.charge_graph_memory(&memory)
    }

    /// Takes an exec away; launches that are on their way still run.
    pub(crate) fn drop_exec(&mut self, id: Id) -> Answer {
        let exec = self.graphs.execs.remove(&id).ok_or(Code::INVALID_VALUE)?;
        self.release_node_memory(&exec.memory);
        self.give_conditions(&exec.conditions);
        Ok(())
    }
}

impl Session {
    /// Launches an exec in a stream, or makes its nodes part of the graph that the stream
    /// is captured into.
    pub(crate) fn launch(&mut self, exec: Id, stream: Id) -> Answer {
        let Exec {
            flags,
            steps,
            memory,
            conditions,
        } = self.exec(exec)?.clone();
        if self.captures.of(stream).is_some() {
            if !conditions.is_empty() || !memory.is_empty() {
                // It would be a part of another graph, which it cannot be.
                return self.forbid_if_captured(stream);
            }
            for step in steps.into_iter().filter(|step| step.is_enabled) {
                self.capture(stream, step.action)?;
            }
            return Ok(());
        }
        // What is allocated at an address more often than freed there outlives the launch.
        let outlives = |start: u64| {
            let balance = steps.iter().map(|step| match step.action {
                Action::Alloc(at) if at == start => 1,
                Action::Free(at) if at == start => -1,
                _ => 0,
            });
            balance.sum::<i32>() > 0
        };
        let mut left = memory.clone();
        left.sort_unstable();
        left.dedup();
        left.retain(|start| outlives(*start) && self.is_live_graph_memory(*start));
        if !left.is_empty() && flags & AUTO_FREE == 0 {
            return Err(Code::INVALID_VALUE);
        }
        for start in left {
            self.enqueue(stream, Action::Free(start))?;
        }
        self.charge_graph_memory(&memory)?;
        self.begin_conditions(stream, conditions)?;
        for step in steps {
            if step.is_enabled {
                self.enqueue(stream, step.action)?;
            }
        }
        Ok(())
    }
}
