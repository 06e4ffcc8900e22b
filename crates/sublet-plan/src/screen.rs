//! What a node's place could be at best, from the node's outline alone.
//!
//! A scan over thousands of nodes opens a node's page only if that could change the answer.
//! Nothing is decided here: whether a claim fits, where, and at what cost is for [`fit`] to say. A
//! [`Hope`] is never worse than that, and where [`may_fit`] says no, so does `fit` (property tests in
//! `engine`).
//!
//! [`fit`]: crate::fit

use sublet_model::{Ask, Count, MiB, Outline};

use crate::score::{After, Cost, Pack};

/// No place on the node comes before this. Derived order, as for places: contended ones come
/// last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hope {
    /// The place is only free if no soft hold comes true.
    pub(crate) contended: bool,
    /// The policy's cost of the node.
    pub(crate) cost: Cost,
}

/// False where the claim certainly does not fit on a node.
pub(crate) fn may_fit(outline: &Outline, ask: &Ask) -> bool {
    match ask {
        Ask::Nothing => true,
        Ask::Parts(parts) => outline.has_room(parts.first().memory),
        Ask::WholeCards(asked) => *asked <= outline.idle(),
    }
}

/// The most that can be hoped for on a node; `None` where the claim certainly does not fit.
pub(crate) fn hope(outline: &Outline, ask: &Ask, policy: &Pack) -> Option<Hope> {
    if !may_fit(outline, ask) {
        return None;
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
    /// Such places are rare, and what they cost is not worth a closer look.
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
