//! Conditional nodes of graphs: a part of a graph that runs, or runs again and again, by the value
//! of a condition when its turn comes. Kernels set conditions, so a launched graph cannot be laid
//! out beforehand: a [`Branch`] waits in the stream, and the work that it chooses is put in front
//! of the stream's other work.

use crate::driver::graph::Content;
use crate::driver::graph::exec::Step;
use crate::driver::result::{Answer, Code};
use crate::driver::stream::queue::{Id, Lane};
use crate::driver::stream::work::{Action, Work};
use crate::driver::{Driver, Session};

/// Card time that one look at a condition takes, in nanoseconds. It is not 0, so that an endless
/// loop does not keep everybody else from the driver.
const LOOK: u64 = 1000;

/// A value that decides, by its handle.
#[derive(Debug)]
pub(crate) struct Condition {
    /// The graph that it was made for.
    pub(crate) graph: Id,
    /// Value that each launch sets, if there is one.
    default: Option<u32>,
    value: u32,
    /// The node that it decides on; 0 before there is one.
    node: Id,
    /// Can a graph with that node be launched?
    is_instantiated: bool,
}

/// Effect of the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Branching {
    /// The first body once if it is not 0, else the second one if there is one.
    If,
    /// The body as long as it is not 0.
    While,
    /// The body with this number, if there is one.
    Switch,
}

/// A conditional node.
#[derive(Debug, Clone)]
pub(crate) struct Conditional {
    /// The value that decides.
    pub(crate) condition: Id,
    /// Its effect.
    pub(crate) branching: Branching,
    /// The graphs that it decides on; they belong to the node.
    pub(crate) bodies: Vec<Id>,
}

/// A conditional node on its way through a stream.
#[derive(Debug, Clone)]
pub(crate) struct Branch {
    pub(crate) condition: Id,
    branching: Branching,
    pub(crate) bodies: Vec<Vec<Step>>,
}

impl Branching {
    /// By C's number, for so many bodies.
    pub(crate) fn of(number: u32, n_bodies: u32) -> Answer<Branching> {
        match (number, n_bodies) {
            (0, 1 | 2) => Ok(Branching::If),
            (1, 1) => Ok(Branching::While),
            (2, 1..=1024) => Ok(Branching::Switch),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn body(self, value: u32) -> usize {
        match self {
            Branching::If | Branching::While => usize::from(value == 0),
            Branching::Switch => value as usize,
        }
    }
}

impl Branch {
    /// Are the two branches the same, except for the actions of their steps?
    pub(crate) fn has_shape_of(&self, other: &Branch) -> bool {
        let alike = |(one, two): (&Vec<Step>, &Vec<Step>)| Step::are_alike(one, two);
        self.branching == other.branching
            && self.bodies.len() == other.bodies.len()
            && self.bodies.iter().zip(&other.bodies).all(alike)
    }
}

impl Driver {
    /// Makes a condition for a node of a graph.
    pub(crate) fn make_condition(&mut self, graph: Id, default: Option<u32>) -> Answer<Id> {
        self.nodes_of(graph)?;
        let id = self.new_id();
        let condition = Condition {
            graph,
            default,
            value: 0,
            node: 0,
            is_instantiated: false,
        };
        self.graphs.conditions.insert(id, condition);
        Ok(id)
    }

    /// Adds a conditional node, with empty graphs as its bodies.
    pub(crate) fn add_conditional(
        &mut self,
        graph: Id,
        after: &[Id],
        condition: Id,
        branching: Branching,
        n_bodies: u32,
    ) -> Answer<Id> {
        let known = self.graphs.conditions.get(&condition);
        let known = known.ok_or(Code::INVALID_VALUE)?;
        if known.node != 0 || !self.is_within(graph, known.graph) {
            return Err(Code::INVALID_VALUE);
        }
        let bodies: Vec<Id> = (0..n_bodies).map(|_| self.make_graph()).collect();
        let content = Content::Conditional(Conditional {
            condition,
            branching,
            bodies: bodies.clone(),
        });
        let node = match self.add_node(graph, after, content) {
            Ok(node) => node,
            Err(code) => {
                for body in bodies {
                    self.drop_graph(body)?;
                }
                return Err(code);
            }
        };
        for body in &bodies {
            self.graphs.owned.insert(*body, node);
        }
        self.node_mut(node)?.given = bodies;
        if let Some(known) = self.graphs.conditions.get_mut(&condition) {
            known.node = node;
        }
        Ok(node)
    }

    /// Is a graph another one, or a body of its nodes at any depth?
    fn is_within(&self, graph: Id, outer: Id) -> bool {
        let mut graph = graph;
        while graph != outer {
            let node = self.graphs.owned.get(&graph);
            match node.and_then(|node| self.node(*node).ok()) {
                Some(node) => graph = node.graph,
                None => return false,
            }
        }
        true
    }

    /// Has a graph a condition that decides nothing? Then it cannot be instantiated.
    #[must_use]
    pub(crate) fn has_idle_condition(&self, graph: Id) -> bool {
        let mut conditions = self.graphs.conditions.values();
        conditions.any(|condition| condition.graph == graph && condition.node == 0)
    }

    /// Removes the bodies of a node that is gone.
    pub(crate) fn drop_conditional(&mut self, conditional: &Conditional) -> Answer {
        self.graphs.conditions.remove(&conditional.condition);
        for body in &conditional.bodies {
            self.graphs.owned.remove(body);
            self.drop_graph(*body)?;
        }
        Ok(())
    }

    /// A conditional node as a stream meets it.
    pub(crate) fn branch(&self, conditional: &Conditional) -> Answer<Branch> {
        let mut bodies = Vec::with_capacity(conditional.bodies.len());
        for body in &conditional.bodies {
            let mut steps = Vec::new();
            self.flatten(*body, &mut steps)?;
            let sound = |step: &Step| {
                matches!(
                    step.action,
                    Action::Kernel(_) | Action::Move(_) | Action::Empty | Action::Branch(_)
                )
            };
            if !steps.iter().all(sound) {
                return Err(Code::NOT_SUPPORTED);
            }
            bodies.push(steps);
        }
        Ok(Branch {
            condition: conditional.condition,
            branching: conditional.branching,
            bodies,
        })
    }

    /// Only one thing that can be launched may have a condition.
    pub(crate) fn take_conditions(&mut self, conditions: &[Id]) -> Answer {
        let taken = |id: &Id| {
            let condition = self.graphs.conditions.get(id);
            condition.is_some_and(|condition| condition.is_instantiated)
        };
        if conditions.iter().any(taken) {
            return Err(Code::NOT_SUPPORTED);
        }
        self.mark_conditions(conditions, true);
        Ok(())
    }

    /// Undoes [`Driver::take_conditions`].
    pub(crate) fn give_conditions(&mut self, conditions: &[Id]) {
        self.mark_conditions(conditions, false);
    }

    fn mark_conditions(&mut self, conditions: &[Id], is_instantiated: bool) {
        for id in conditions {
            if let Some(condition) = self.graphs.conditions.get_mut(id) {
                condition.is_instantiated = is_instantiated;
            }
        }
    }

    /// A graph with these conditions begins to run.
    fn reset_conditions(&mut self, conditions: &[Id]) {
        for id in conditions {
            if let Some(condition) = self.graphs.conditions.get_mut(id) {
                condition.value = condition.default.unwrap_or(condition.value);
            }
        }
    }

    /// A kernel sets a condition. False if there is none.
    pub(crate) fn set_condition(&mut self, id: Id, value: u32) -> bool {
        let condition = self.graphs.conditions.get_mut(&id);
        condition.map(|condition| condition.value = value).is_some()
    }

    /// Returns a branch's entry in a queue.
    pub(crate) fn work_of_branch(branch: Box<Branch>) -> (Lane, u64, Work) {
        (Lane::Compute, LOOK, Work::Branch(branch))
    }

    /// Decides a branch that had its turn at `end`. The chosen work comes next in its stream, under
    /// the branch's own number, so work that waits for the branch waits for the chosen work, too.
    pub(crate) fn decide(&mut self, stream: Id, seq: u64, branch: Box<Branch>, end: u64) {
        let condition = self.graphs.conditions.get(&branch.condition);
        let value = condition.map_or(0, |condition| condition.value);
        let body = branch.bodies.get(branch.branching.body(value));
        let enabled = body.into_iter().flatten().filter(|step| step.is_enabled);
        let mut actions: Vec<Action> = enabled.map(|step| step.action.clone()).collect();
        if branch.branching == Branching::While && value != 0 {
            actions.push(Action::Branch(branch));
        }
        let mut lanes = Vec::new();
        let mut next = Vec::new();
        for action in actions {
            // Only of an event that is gone, which no body has.
            let Ok(Some(work)) = self.work_of(action) else {
                continue;
            };
            if !lanes.contains(&work.0) {
                lanes.push(work.0);
            }
            next.push(work);
        }
        self.queues.push_front(stream, seq, end, next);
        let card = self.queues.get(stream).map_or(0, |stream| stream.card);
        for lane in lanes {
            // Without its thread the stream stays where it is, as with a card that hangs.
            let _ = self.call_worker(card, lane, false);
        }
    }
}

impl Session {
    /// Sets the conditions of a graph back when the launch has its turn.
    pub(crate) fn begin_conditions(&mut self, stream: Id, conditions: Vec<Id>) -> Answer {
        if conditions.is_empty() {
            return Ok(());
        }
        let reset = move |driver: &mut Driver| driver.reset_conditions(&conditions);
        let work = Work::Change(Box::new(reset));
        self.submit(stream, Lane::Instant, 0, work).map(drop)
    }
}
