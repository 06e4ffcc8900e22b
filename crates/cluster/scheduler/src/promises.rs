//! Room that is made for pods which wait: the controller has evicted others for them.
//!
//! The stock scheduler keeps a nominated node's sums free for the nominated pod. It cannot keep a
//! card free: an evicted pod is often made anew at once, and would take the same card again. So a
//! pod of lower priority does not get a node where it would leave no place for such a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sublet_api::object::Pod;
use sublet_api::{Preempting, keys, preempting_from_json};
use sublet_model::{Claim, Entry, NodeIdx, NodeName, PodUid, Standing, Time};
use sublet_plan::{Reason, RefusedNode};

use crate::state::State;
use crate::waiting::Waiting;

/// Time that room is kept. A pod that has not come by then is held up by something else.
const KEPT_MS: u64 = 5 * 60 * 1_000;

/// Room by the pod that it is made for.
pub(crate) type Promises = BTreeMap<PodUid, Preempting>;

/// Reads from a waiting pod the room that is made for it.
pub(crate) fn promise_of(pod: &Pod) -> Option<Preempting> {
    let text = pod.metadata.annotations.get(keys::PREEMPTING)?;
    let read = preempting_from_json(text);
    read.inspect_err(|error| {
        let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
        let annotation = keys::PREEMPTING;
        tracing::warn!(namespace, name, annotation, %error, "it is of no use");
    })
    .ok()
}

impl State {
    /// Takes the nodes out that a pod must leave to others, and says why.
    pub(crate) fn leave_promised(
        &mut self,
        now: Time,
        uid: &PodUid,
        claim: &Claim,
        priority: i32,
        nodes: &mut Vec<NodeIdx>,
    ) -> Vec<RefusedNode> {
        if self.promises.is_empty() || !claim.has_gpu() {
            return Vec::new();
        }
        let mut refused = Vec::new();
        for (promised, preempting) in self.promises.clone() {
            let Some(node) = self.engine.ledger().find(preempting.node.as_str()) else {
                continue;
            };
            let Some(waiting) = self.waiting.get(&promised) else {
                continue;
            };
            let over = now >= preempting.at.plus_ms(KEPT_MS);
            if over || promised == *uid || waiting.priority <= priority || !nodes.contains(&node) {
                continue;
            }
            let other = waiting.pod.clone();
            let theirs = entry_of(waiting);
            let ours = Entry {
                uid: uid.clone(),
                claim: Arc::new(claim.clone()),
                priority,
                ..theirs.clone()
            };
            let going: BTreeSet<PodUid> = preempting
                .victims
                .iter()
                .map(|victim| victim.uid.clone())
                .collect();
            if !self.engine.leaves_room(now, &theirs, node, &going, &ours) {
                nodes.retain(|one| *one != node);
                let reason = Reason::KeptFor { other };
                refused.push(RefusedNode { node, reason });
            }
        }
        refused
    }
}

/// A pod that waits as an entry of no node.
pub(crate) fn entry_of(waiting: &Waiting) -> Entry {
    Entry {
        pod: waiting.pod.clone(),
        uid: waiting.uid.clone(),
        node: NodeName::new("none").expect("a name"),
        claim: waiting.claim.clone(),
        allocation: None,
        standing: Standing::Reserved,
        assigned: false,
        priority: waiting.priority,
    }
}
