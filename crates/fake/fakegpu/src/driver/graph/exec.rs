//! The executable form of a graph, and its launch. The nodes go into the stream one after the
//! other, in an order that theirs allows: kernels of one graph do not run at the same time.

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
    flags: u64,
    steps: Vec<Action>,
    /// Memory that its nodes allocate.
    memory: Vec<u64>,
}

impl Driver {
    /// Collects the actions of a graph and of the graphs in it.
    fn flatten(&self, graph: Id, steps: &mut Vec<Action>) -> Answer {
        for id in self.nodes_of(graph)? {
            match &self.node(*id)?.content {
                Content::Child(child) => self.flatten(*child, steps)?,
                Content::Action(action) => steps.push(action.clone()),
            }
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
            .filter_map(|step| match step {
                Action::Alloc(start) => Some(*start),
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

    /// Returns an executable graph by its handle.
    fn exec(&self, id: Id) -> Answer<&Exec> {
        self.graphs.execs.get(&id).ok_or(Code::INVALID_VALUE)
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
        } = self.exec(exec)?.clone();
        if self.captures.of(stream).is_some() {
            if !memory.is_empty() {
                // It would be a part of another graph, which it cannot be.
                return self.forbid_if_captured(stream);
            }
            for step in steps {
                self.capture(stream, step)?;
            }
            return Ok(());
        }
        // What is allocated at an address more often than freed there outlives the launch.
        let outlives = |start: u64| {
            let balance = steps.iter().map(|step| match step {
                Action::Alloc(at) if *at == start => 1,
                Action::Free(at) if *at == start => -1,
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
        for step in steps {
            self.enqueue(stream, step)?;
        }
        Ok(())
    }
}
