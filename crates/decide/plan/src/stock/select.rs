//! Chooses the node that the stock scheduler would take. The extender's filter and scores are
//! called as in a cluster, and the stock scheduler's own scores are added.

use sublet_model::{Claim, NodeIdx, PodUid, Time};

use super::score::weigh;
use super::{NodeRules, PodRules};
use crate::Engine;

/// The value of one of the extender's ten steps: its weight in the shipped configuration, 10,
/// times the stock scheduler's best score divided by the extender's, 100 / 10.
const STEP: u64 = 100;

/// A pod that is to be placed.
#[derive(Debug, Clone, Copy)]
pub struct Waiting<'a> {
    /// Its UID.
    pub uid: &'a PodUid,
    /// The pod's claim.
    pub claim: &'a Claim,
    /// The pod's requirements on its node.
    pub rules: &'a PodRules,
    /// Does the extender let all nodes pass that can take the pod, instead of the best few? It does
    /// so for a pod that has soft wishes of its own, or that was tried before.
    pub everywhere: bool,
    /// Has the pod soft wishes that no score here counts, about other pods or even spreading?
    pub unweighed: bool,
}

/// The node that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selected {
    /// The node.
    pub node: NodeIdx,
    /// Other nodes that may be taken instead. The stock scheduler draws among nodes of equal score,
    /// and wishes that are not counted here may make any of these the best.
    pub alternatives: Vec<NodeIdx>,
}

/// The node that the stock scheduler takes for a pod, among the `open` nodes, which its rules
/// allow; `None` if no node can take the pod.
pub fn select<'a>(
    engine: &mut Engine,
    now: Time,
    pod: Waiting<'_>,
    open: &[NodeIdx],
    rules: impl Fn(NodeIdx) -> &'a NodeRules,
) -> Option<Selected> {
    let Waiting { uid, claim, .. } = pod;
    let soft = |node| pod.rules.soft_taints(rules(node));
    // To the two policies of memory all nodes are alike for a pod without GPU: the extender lets
    // all of them pass and scores none.
    let blind = !claim.has_gpu() && !engine.options().policy.sees_host();
    let passed = if blind {
        let fits = |node: &&NodeIdx| engine.fit(uid, claim, **node).is_ok();
        open.iter().filter(fits).copied().collect()
    } else {
        engine.choose(now, uid, claim, open, pod.everywhere, soft)
    };
    if let [] | [_] = passed[..] {
        let node = *passed.first()?;
        let alternatives = Vec::new();
        return Some(Selected { node, alternatives });
    }
    let steps: Vec<u64> = if blind {
        vec![0; passed.len()]
    } else {
        let scores = engine.prioritize(now, uid, claim, &passed, soft);
        scores.iter().map(|(_, score)| u64::from(*score)).collect()
    };
    let stock = weigh(&passed, claim, pod.rules, engine.ledger(), rules);
    let totals: Vec<u64> = steps
        .iter()
        .zip(stock)
        .map(|(step, stock)| STEP * step + stock)
        .collect();
    let best = totals.iter().copied().max()?;
    let first = totals.iter().position(|total| *total == best)?;
    let node = passed[first];
    let alternatives = passed
        .into_iter()
        .zip(totals)
        .filter(|(_, total)| pod.unweighed || *total == best)
        .map(|(other, _)| other)
        .filter(|other| *other != node)
        .collect();
    Some(Selected { node, alternatives })
}

#[cfg(test)]
mod tests;
