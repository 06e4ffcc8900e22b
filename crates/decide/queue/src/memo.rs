//! Results of one tick that the next need not work out again.
//!
//! It decides nothing: with an empty memo a tick comes to the same decisions, later.

use std::collections::BTreeMap;
use std::sync::Arc;

use sublet_model::NodeIdx;
use sublet_plan::Engine;
use sublet_plan::stock::NodeRules;

use crate::accounts::Dimensions;
use crate::empty::{EmptyNodes, Known, Looks};
use crate::need::{Wanted, count, together};
use crate::{Group, Infeasible, MatchPolicy, MemberShape, QuotaTree};

/// Kept by the caller that calls [`crate::plan`] again and again.
#[derive(Debug, Default)]
pub struct QueueMemo {
    dimensions: Dimensions,
    /// By the address of a shape, which is kept alive here so that no other gets its address.
    shapes: BTreeMap<usize, KnownShape>,
    /// Amounts of a shape that is not known: none.
    nothing: Arc<[u64]>,
    /// So many numbers were given out.
    numbers: u32,
    empty: EmptyNodes,
    /// By the place of a group among all, why it can never start.
    hopeless: BTreeMap<usize, Infeasible>,
    /// By the same, a number of how it looks; none for one that has run already.
    looks: Vec<Option<u32>>,
    /// No group is taken to look like another.
    #[cfg(test)]
    pub(crate) tells_apart: bool,
}

#[derive(Debug)]
struct KnownShape {
    shape: Arc<MemberShape>,
    /// Amounts that it asks, by dimension.
    row: Arc<[u64]>,
    /// Shapes of one number ask the same of nodes and of quotas.
    number: u32,
}

/// Key of the places that members need: the number of their shape, and how many they are.
pub(crate) type PlacesKey = Vec<(u32, usize)>;

impl QueueMemo {
    /// Learns the shapes of these groups, and forgets shapes that nobody has any more. Finds out which
    /// groups look alike, and which could not even start on empty nodes. This must not depend on the
    /// groups that were tried before: such a group does not count as asking.
    pub(crate) fn learn(
        &mut self,
        tree: &QuotaTree,
        engine: &Engine,
        nodes: &[(NodeIdx, NodeRules)],
        groups: &[Group],
    ) {
        let dimensions = Dimensions::of(tree);
        if dimensions != self.dimensions {
            self.shapes.clear();
            self.dimensions = dimensions;
        }
        self.shapes
            .retain(|_, known| Arc::strong_count(&known.shape) > 1);
        self.empty.begin_tick(engine, nodes);
        self.hopeless.clear();
        self.looks.clear();
        self.looks.resize(groups.len(), None);
        // One for all groups: most ticks have nothing new to find out.
        let mut looks = Looks::new();
        // Many look like the one before.
        let mut last: Option<(Looks, Known)> = None;
        for (at, group) in groups.iter().enumerate() {
            self.look_at(group, &mut looks);
            // Of a group that runs already somebody may be where no other could go. One that has had
            // enough starts one by one.
            let has_had_enough = group.matching == MatchPolicy::OnceSatisfied && group.satisfied;
            if has_had_enough || group.members().next().is_some() {
                continue;
            }
            let known = match &last {
                Some((of_last, known)) if *of_last == looks && known.number.is_some() => {
                    known.clone()
                }
                _ => {
                    let known = self.empty.look_up(engine, group, &looks);
                    last = Some((looks.clone(), known.clone()));
                    known
                }
            };
            self.looks[at] = known.number;
            let why = known.lack;
            let why = why.and_then(|lack| Some(lack.on_empty_nodes(&together(group).ok()?)));
            self.hopeless.extend(why.map(|why| (at, why)));
        }
        #[cfg(test)]
        if self.tells_apart {
            self.looks.fill(None);
        }
    }

    fn look_at(&mut self, group: &Group, looks: &mut Looks) {
        looks.clear();
        for gang in &group.gangs {
            looks.push((gang.min, count(gang.roles.len()), 0));
            let roles = gang.roles.iter();
            looks.extend(roles.map(|role| (self.learn_shape(&role.pod), role.min, role.replicas)));
        }
    }

    /// Learns a shape. Its number.
    fn learn_shape(&mut self, shape: &Arc<MemberShape>) -> u32 {
        if let Some(known) = self.shapes.get(&address(shape)) {
            return known.number;
        }
        let row: Arc<[u64]> = self.dimensions.row(&shape.amounts).into();
        let alike = |known: &&KnownShape| {
            known.shape.claim == shape.claim && known.shape.rules == shape.rules && known.row == row
        };
        let same = self.shapes.values().find(alike).map(|known| known.number);
        let number = same.unwrap_or_else(|| {
            self.numbers += 1;
            self.numbers
        });
        let known = KnownShape {
            shape: Arc::clone(shape),
            row,
            number,
        };
        self.shapes.insert(address(shape), known);
        number
    }

    /// Reason why that group can never start, if it cannot.
    pub(crate) fn never(&self, group: usize) -> Option<Infeasible> {
        self.hopeless.get(&group).cloned()
    }

    /// Number of that group's looks: groups of one number ask the same of nodes and of their
    /// quotas.
    pub(crate) fn looks(&self, group: usize) -> Option<u32> {
        self.looks.get(group).copied().flatten()
    }

    pub(crate) fn dimensions(&self) -> &Dimensions {
        &self.dimensions
    }

    /// Amounts that a member of that shape asks, by dimension.
    pub(crate) fn row(&self, shape: &Arc<MemberShape>) -> &Arc<[u64]> {
        let known = self.shapes.get(&address(shape));
        known.map_or(&self.nothing, |known| &known.row)
    }

    fn number(&self, shape: &Arc<MemberShape>) -> u32 {
        let known = self.shapes.get(&address(shape));
        known.map_or(0, |known| known.number)
    }

    /// Key of the places that these members need.
    pub(crate) fn places_key(&self, wanted: &[Wanted<'_>]) -> PlacesKey {
        let of = |one: &Wanted<'_>| (self.number(&one.role.pod), one.indices.len());
        wanted.iter().map(of).collect()
    }
}

fn address(shape: &Arc<MemberShape>) -> usize {
    Arc::as_ptr(shape).addr()
}
