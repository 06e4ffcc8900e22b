//! Could a group start if nothing ran on any node? Who could not never starts, and is told so at
//! once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_model::{NodeFacts, NodeIdx, Time};
use sublet_plan::Engine;
use sublet_plan::stock::NodeRules;

use crate::memo::Outlook;
use crate::need::Wanted;
use crate::place::{Ground, Lack, Places};
use crate::{Group, GroupId};

/// The nodes as they would be without pods, and what was asked about them.
#[derive(Debug, Default)]
pub(crate) struct EmptyNodes {
    engine: Option<Engine>,
    facts: Vec<NodeFacts>,
    nodes: Vec<(NodeIdx, NodeRules)>,
    /// Members that have a place together.
    possible: BTreeSet<Outlook>,
    /// Groups that have none.
    hopeless: BTreeMap<GroupId, (Outlook, Lack)>,
}

impl EmptyNodes {
    /// Forgets everything if the nodes are others than before.
    pub(crate) fn forget_if_changed(&mut self, engine: &Engine, nodes: &[(NodeIdx, NodeRules)]) {
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
        if !same {
            *self = EmptyNodes {
                facts: facts().cloned().collect(),
                nodes: nodes.to_vec(),
                ..EmptyNodes::default()
            };
        }
    }

    /// What the group lacks on empty nodes, if that is known and it has not changed.
    pub(crate) fn lack_of(&self, group: &GroupId, outlook: &Outlook) -> Option<&Lack> {
        let (then, lack) = self.hopeless.get(group)?;
        (then == outlook).then_some(lack)
    }

    /// Does nothing stand in the list of those that lack something?
    pub(crate) fn knows_nobody(&self) -> bool {
        self.hopeless.is_empty()
    }

    /// Finds out whether the group could start on empty nodes. True if it could not.
    pub(crate) fn is_hopeless(
        &mut self,
        like: &Engine,
        group: &Group,
        (wanted, outlook): (&[Wanted<'_>], Outlook),
    ) -> bool {
        if self.possible.contains(&outlook) {
            return false;
        }
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
        let result = places.take(group, wanted, Ground::Held);
        match result {
            Ok(_) => {
                self.possible.insert(outlook);
                false
            }
            Err(lack) => {
                self.hopeless.insert(group.id.clone(), (outlook, lack));
                true
            }
        }
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
