//! Checks whether a group could start if nothing ran on any node. A group that could not never
//! starts, and its owner is told so at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::{NodeFacts, NodeIdx, Time};
use sublet_plan::Engine;
use sublet_plan::stock::NodeRules;

use crate::need::{firm, together};
use crate::place::{Ground, Lack, Places};
use crate::{Group, MOST_MEMBERS};

/// Key of the places that a group needs that has not run yet: the minimum and the number of roles
/// of each gang, and the shape's number, the minimum and all members of each role.
pub(crate) type Looks = Vec<(u32, u32, u32)>;

/// The nodes as they would be without pods, and the answers about them.
#[derive(Debug, Default)]
pub(crate) struct EmptyNodes {
    engine: Option<Engine>,
    facts: Vec<NodeFacts>,
    nodes: Vec<(NodeIdx, NodeRules)>,
    /// Lacks of groups in this tick, by how they look; none if they could start.
    known: BTreeMap<Looks, Known>,
    /// The same of the tick before, as far as it was not asked for in this one.
    earlier: BTreeMap<Looks, Known>,
}

/// Result for groups that look alike.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    /// A number of these looks in this tick; none where a name is what the group lacks, which is that
    /// of one group only.
    pub(crate) number: Option<u32>,
    pub(crate) lack: Option<Lack>,
}

impl EmptyNodes {
    /// Forgets everything if the nodes are others than before, and otherwise what nobody asked for in
    /// the last tick.
    pub(crate) fn begin_tick(&mut self, engine: &Engine, nodes: &[(NodeIdx, NodeRules)]) {
        let facts = || {
            nodes
                .iter()
                .filter_map(|(node, _)| engine.ledger().book(*node).facts())
        };
        let same = self.nodes == nodes
            && facts().count() == self.facts.len()
            && facts()
                .zip(&self.facts)
                .all(|(now, then)| is_like(now, then));
        if same {
            self.earlier = std::mem::take(&mut self.known);
            return;
        }
        *self = EmptyNodes {
            facts: facts().cloned().collect(),
            nodes: nodes.to_vec(),
            ..EmptyNodes::default()
        };
    }

    /// Finds what the group, which has not run yet, lacks on empty nodes; none if it could start
    /// there.
    pub(crate) fn look_up(&mut self, like: &Engine, group: &Group, looks: &Looks) -> Known {
        if let Some(known) = self.known.get(looks) {
            return known.clone();
        }
        let (looks, lack) = match self.earlier.remove_entry(looks) {
            Some((looks, known)) => (looks, known.lack),
            None => (looks.clone(), self.find_lack(like, group)),
        };
        if matches!(lack, Some(Lack::Name(_))) {
            return Known { number: None, lack };
        }
        let number = u32::try_from(self.known.len()).ok();
        let known = Known { number, lack };
        self.known.insert(looks, known.clone());
        known
    }

    fn find_lack(&mut self, like: &Engine, group: &Group) -> Option<Lack> {
        let need: u64 = firm(group).map(|(_, count)| count).sum();
        if need > MOST_MEMBERS as u64 {
            // Its number says that it can never start.
            return None;
        }
        let wanted = together(group).ok()?;
        let engine = self.engine.get_or_insert_with(|| {
            let mut engine = Engine::new(like.options().clone());
            for facts in &self.facts {
                let facts = NodeFacts {
                    handed: Arc::default(),
                    measured: Arc::default(),
                    ..facts.clone()
                };
                engine.set_node(facts);
            }
            engine
        });
        let there = self.nodes.iter().filter_map(|(_, rules)| {
            let node = engine.ledger().find(&rules.name)?;
            Some((node, rules.clone()))
        });
        let nodes: Vec<(NodeIdx, NodeRules)> = there.collect();
        let mut places = Places::new(engine.trial(Time::default()), &nodes);
        places.take(group, &wanted, Ground::Held).err()
    }
}

/// Do both say the same of what an empty node has?
fn is_like(now: &NodeFacts, then: &NodeFacts) -> bool {
    let same_cards =
        Arc::ptr_eq(&now.inventory, &then.inventory) || now.inventory == then.inventory;
    same_cards
        && (
            &now.name,
            now.sharing,
            now.identity,
            now.advertise,
            now.unit,
        ) == (
            &then.name,
            then.sharing,
            then.identity,
            then.advertise,
            then.unit,
        )
        && (now.splits, now.host, &now.model, now.plugin, &now.stock)
            == (
                then.splits,
                then.host,
                &then.model,
                then.plugin,
                &then.stock,
            )
}
