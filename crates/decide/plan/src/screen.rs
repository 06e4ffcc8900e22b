//! The best place that a node could offer, judged by the node's outline alone.
//!
//! A scan over thousands of nodes opens a node's page only if that could change the answer.
//! Nothing is decided here: [`fit`] says whether a claim fits, where, and at what cost. A [`Hope`]
//! is never worse than the place that `fit` finds, and if [`may_fit`] says no, so does `fit`
//! (property tests in `engine`).
//!
//! [`fit`]: crate::fit

use sublet_model::{Ask, Count, MiB, Outline};

use crate::score::{After, Cost, Pack};

/// A bound: no place on the node is better. The derived order is that of places: contended ones
/// come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hope {
    /// The place is only free if some soft hold is not used.
    pub(crate) contended: bool,
    /// The policy's cost of the node.
    pub(crate) cost: Cost,
}

/// False if the claim certainly does not fit on the node.
pub(crate) fn may_fit(outline: &Outline, ask: &Ask) -> bool {
    match ask {
        Ask::Nothing => true,
        Ask::Parts(parts) => outline.has_room(parts.first().memory),
        Ask::WholeCards(asked) => *asked <= outline.idle(),
    }
}

/// The best place to hope for on a node; `None` if the claim certainly does not fit.
pub(crate) fn hope(outline: &Outline, ask: &Ask, policy: &Pack) -> Option<Hope> {
    if !may_fit(outline, ask) {
        return None;
    }
    if matches!(ask, Ask::Parts(parts) if parts.has_shares()) {
        // An outline does not say how large a share of which card is.
        return Some(Hope::ANYTHING);
    }
    let left = outline.left();
    let (card_left, node_left) = match ask {
        Ask::Nothing => (MiB::ZERO, left),
        Ask::Parts(parts) => {
            let asked = parts.first().memory;
            let Some(least) = outline.least_room(asked) else {
                return Some(Hope::CONTENDED);
            };
            let room = (policy.cheaper)(least, outline.hole());
            let node_left = left.saturating_sub(parts.memory());
            (room.saturating_sub(asked), node_left)
        }
        &Ask::WholeCards(asked) => {
            if asked > outline.idle().saturating_sub(outline.wanted()) {
                return Some(Hope::CONTENDED);
            }
            (MiB::ZERO, whole_left(outline, asked, policy))
        }
    };
    let after = After {
        card_left,
        node_left,
        node_capacity: outline.capacity(),
    };
    Some(Hope {
        contended: false,
        cost: (policy.node)(&after),
    })
}

impl Hope {
    /// No place is better.
    const ANYTHING: Hope = Hope {
        contended: false,
        cost: Cost::MIN,
    };

    /// Such places are rare, so a closer bound of their cost is not worth the time.
    const CONTENDED: Hope = Hope {
        contended: true,
        cost: 0,
    };
}

fn whole_left(outline: &Outline, asked: Count, policy: &Pack) -> MiB {
    let (least, most) = outline.idle_memory(asked);
    let left = outline.left();
    (policy.cheaper)(left.saturating_sub(least), left.saturating_sub(most))
}
