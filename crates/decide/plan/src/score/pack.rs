//! `binpack` and `spread`, which look at memory alone: the best choice for a node with no other
//! known figures. A node's cost must only rise, or only fall, with the free amount. Then a scan can
//! tell from bounds of the free amount which nodes cannot be among the best.

use sublet_model::{MiB, Milli};

use super::{Asked, Cost, Kind, Score, Site, signed};

/// The node after it has taken the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct After {
    /// Left on the chosen card; zero for whole cards.
    pub(crate) card_left: MiB,
    /// Left on all cards of the node together.
    pub(crate) node_left: MiB,
    /// The capacity of all cards of the node together.
    pub(crate) node_capacity: MiB,
}

/// Computes [`After`] for a policy that wants it: that takes another look at all cards.
pub(crate) type Then<'a> = &'a dyn Fn() -> After;

/// A policy of memory.
#[derive(Debug)]
pub(crate) struct Pack {
    /// Cost of a card that would have so much memory left.
    pub(crate) card: fn(left: MiB) -> Cost,
    /// Cost of a node.
    pub(crate) node: fn(&After) -> Cost,
    /// The one of two amounts left, on a card or on all cards, that makes the node cost less:
    /// always the smaller one, or always the larger one.
    pub(crate) cheaper: fn(MiB, MiB) -> MiB,
}

pub(super) const BINPACK: Kind = Kind {
    name: "binpack",
    make: || Box::new(ByMemory(&PACK)),
};

pub(super) const SPREAD: Kind = Kind {
    name: "spread",
    make: || Box::new(ByMemory(&WIDE)),
};

#[derive(Debug, Clone)]
struct ByMemory(&'static Pack);

impl Score for ByMemory {
    fn card(&self, _: &Site<'_>, _: &Asked<'_>, _: usize, left: MiB) -> Cost {
        (self.0.card)(left)
    }

    fn node(&self, _: &Site<'_>, _: &Asked<'_>, _: usize, after: Then<'_>) -> Cost {
        (self.0.node)(&after())
    }

    fn sees_host(&self) -> bool {
        false
    }

    fn boxed(&self) -> Box<dyn Score> {
        Box::new(self.clone())
    }

    fn pack(&self) -> Option<&'static Pack> {
        Some(self.0)
    }
}

/// The least free memory that is enough, on cards and then on nodes: large holes remain for large
/// requests. This is best fit, as the GPUShare extender does it within a node.
static PACK: Pack = Pack {
    card: |left| signed(left.get()),
    node: |after| join(after.card_left.get(), after.node_left.get()),
    cheaper: Ord::min,
};

/// The most free memory, on cards, and then (as a share) on nodes: neighbours disturb each other
/// least.
static WIDE: Pack = Pack {
    card: |left| signed(MiB::MAX.get() - left.get()),
    node: |after| {
        let used = after.node_capacity.saturating_sub(after.node_left);
        let share = u64::from(Milli::share(used, after.node_capacity).get());
        join(
            share,
            u64::from(u32::MAX).saturating_sub(after.card_left.get()),
        )
    },
    cheaper: Ord::max,
};

/// Orders by `first`, then by `second`. They are cut off at 31 and 32 bits, since such amounts of
/// memory (2 PiB) do not occur.
fn join(first: u64, second: u64) -> Cost {
    let first = first.min(u64::from(u32::MAX >> 1));
    let second = second.min(u64::from(u32::MAX));
    signed(first << 32 | second)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn amount() -> impl Strategy<Value = MiB> {
        let amount = prop_oneof![0..40u64, 0..800_000u64, 0..=MiB::MAX.get()];
        amount.prop_map(|amount| MiB::new(amount).unwrap())
    }

    proptest! {
        #[test]
        fn a_node_costs_no_less_than_with_the_cheaper_amounts_left(
            spread: bool,
            (card, other_card) in (amount(), amount()),
            (node, other_node) in (amount(), amount()),
            node_capacity in amount(),
        ) {
            let Pack { node: cost, cheaper, .. } = if spread { &WIDE } else { &PACK };
            let after = |card_left, node_left| After { card_left, node_left, node_capacity };
            let best = after(cheaper(card, other_card), cheaper(node, other_node));
            prop_assert!(cost(&best) <= cost(&after(card, node)));
            prop_assert!(cost(&best) <= cost(&after(other_card, node)));
        }
    }
}
