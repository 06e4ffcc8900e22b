//! Places a pod that asks for no GPU as the stock scheduler does, if such pods do not pass our
//! extender: on the node that is left emptiest.
//!
//! Two of its scores differ from node to node in a trace (`sublet_plan::stock::resources`). The
//! highest sum wins. Three things are approximated. Ties go by rank; the stock scheduler draws one.
//! Every node is scored; the stock scheduler looks at a part of a large cluster's. A list's pods
//! that ask for no CPU or no memory count as asking none; the stock scheduler assumes a little.

use std::cmp::Reverse;

use sublet_model::{Claim, Ledger, NodeIdx};
use sublet_plan::stock::{check_machine, resources};

/// The scheduler that places pods that ask for no GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CpuOnlyPods {
    /// The policy: they pass the extender, as in FGD's protocol.
    #[default]
    Policy,
    /// The stock scheduler, by its own scores.
    Stock,
}

/// The node that the stock scheduler takes for a pod that asks this; `None` if it fits nowhere.
pub(crate) fn choose(ledger: &Ledger, nodes: &[NodeIdx], claim: &Claim) -> Option<NodeIdx> {
    let score = |&node: &NodeIdx| {
        let book = ledger.book(node);
        check_machine(book, claim).ok()?;
        Some((resources(book, claim), Reverse(book.name()), node))
    };
    let best = nodes.iter().filter_map(score).max();
    best.map(|(_, _, node)| node)
}
