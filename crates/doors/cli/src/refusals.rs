//! Nodes that cannot take a pod, with reasons. Programs get each node; people get a line per node,
//! or per kind of reason if there are many nodes.
//!
//! Nothing is hidden without saying how many; JSON and YAML always have every node.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};

use serde::ser::{Serialize, Serializer};
use sublet_plan::Reason;

use crate::align::align;

/// More nodes than this with one kind of reason become one line.
pub(crate) const MANY: usize = 20;

/// A reason, and its words once they were needed.
#[derive(Debug)]
pub(crate) struct Worded {
    reason: Reason,
    words: OnceLock<String>,
}

impl Worded {
    fn words(&self) -> &str {
        self.words.get_or_init(|| self.reason.to_string())
    }
}

/// All reasons that were given, each once: a node's stays the same until the node changes, and
/// many nodes have the same.
#[derive(Debug, Default)]
pub(crate) struct Reasons(HashMap<Reason, Arc<Worded>>);

impl Reasons {
    /// The one that equals it.
    pub(crate) fn share(&mut self, reason: Reason) -> Arc<Worded> {
        let worded = |reason: &Reason| {
            Arc::new(Worded {
                reason: reason.clone(),
                words: OnceLock::new(),
            })
        };
        Arc::clone(self.0.entry(reason).or_insert_with_key(worded))
    }
}

/// Nodes that cannot take a pod, in the order of their names, and why.
///
/// A plan for a full cluster consists mostly of these (a reason for each pod and node), so neither
/// names nor reasons are copied.
#[derive(Debug, Clone)]
pub(crate) struct Refusals(Vec<(Arc<str>, Arc<Worded>)>);

/// As a map from a node's name to the reason in words.
impl Serialize for Refusals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nodes = self.0.iter();
        serializer.collect_map(nodes.map(|(node, reason)| (&**node, reason.words())))
    }
}

impl Refusals {
    /// No node at all.
    pub(crate) const NONE: Refusals = Refusals(Vec::new());

    /// Updates some nodes: each gets its reason, or none if it can take the pod.
    pub(crate) fn update(&mut self, mut nodes: Vec<(Arc<str>, Option<Arc<Worded>>)>) {
        nodes.sort_by(|(a, _), (b, _)| a.cmp(b));
        let is_new = |node: &str| {
            nodes
                .binary_search_by(|(name, _)| (**name).cmp(node))
                .is_ok()
        };
        self.0.retain(|(node, _)| !is_new(node));
        let refused = nodes.into_iter();
        self.0
            .extend(refused.filter_map(|(node, reason)| Some((node, reason?))));
        // Two sorted runs.
        self.0.sort_by(|(a, _), (b, _)| a.cmp(b));
    }

    /// Number of nodes that cannot take the pod.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Is that node one of them?
    pub(crate) fn has(&self, node: &str) -> bool {
        self.0
            .binary_search_by(|(name, _)| (**name).cmp(node))
            .is_ok()
    }

    /// Reasons of these nodes, node by node.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = &Reason> {
        self.0.iter().map(|(_, worded)| &worded.reason)
    }

    /// A line per node, indented by two blanks. Kinds of reasons with many nodes come last, in one
    /// line each: the node that comes nearest, with its numbers, and the number of other nodes.
    pub(crate) fn grouped(&self) -> String {
        let mut kinds: BTreeMap<&str, Vec<(&str, &Worded)>> = BTreeMap::new();
        for (node, why) in &self.0 {
            let kind = kinds.entry(why.reason.label()).or_default();
            kind.push((node, why));
        }
        let mut lines = String::new();
        for (node, why) in &self.0 {
            if kinds[why.reason.label()].len() <= MANY {
                let _never_fails = writeln!(lines, "  {node}\t{}", why.words());
            }
        }
        for nodes in kinds.values().filter(|nodes| nodes.len() > MANY) {
            // The first of the nearest, so that the answer does not depend on chance.
            let nearest = nodes
                .iter()
                .rev()
                .max_by_key(|(_, why)| nearness(&why.reason));
            if let Some((node, why)) = nearest {
                let (n, words) = (nodes.len(), why.words());
                let _never_fails = writeln!(lines, "  {n} nodes\tthe nearest, {node}: {words}");
            }
        }
        align(&lines)
    }
}

/// Measures how near a node comes to the request: larger is nearer. Compare only within one kind.
fn nearness(refusal: &Reason) -> u64 {
    match refusal {
        Reason::NoRoom { hole, .. } => hole.get(),
        Reason::TooSmall { largest, .. } => largest.get(),
        Reason::NoIdle { idle, .. } => u64::from(idle.get()),
        Reason::TooFew { total, .. } => u64::from(total.get()),
        Reason::Cpu { left, .. } => left.get(),
        Reason::HostMemory { left, .. } => left.get(),
        Reason::Resource { left, .. } => *left,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use sublet_model::{GpuIndex, MiB};
    use sublet_plan::SickCards;

    use super::*;

    fn no_room(hole: u32) -> Reason {
        Reason::NoRoom {
            asked: MiB::from(100),
            hole: MiB::from(hole),
            gpu: GpuIndex(0),
            sick: SickCards::default(),
            unsure: MiB::ZERO,
        }
    }

    fn refusals(nodes: impl IntoIterator<Item = (Arc<str>, Reason)>) -> Refusals {
        let mut reasons = Reasons::default();
        let mut refusals = Refusals::NONE;
        let share = |(node, reason)| (node, Some(reasons.share(reason)));
        refusals.update(nodes.into_iter().map(share).collect());
        refusals
    }

    #[test]
    fn few_nodes_have_a_line_each_and_many_share_one() {
        let named = |n: u32| (Arc::from(format!("n{n:02}")), no_room(n));
        let mut nodes: Vec<(Arc<str>, Reason)> = (0..20).map(named).collect();
        nodes.insert(0, (Arc::from("z"), Reason::NoGpu));
        let text = refusals(nodes.iter().cloned()).grouped();
        assert_eq!(text.lines().count(), 21);
        assert!(text.starts_with("  n00  GPU 0 lacks 100 MiB"));
        nodes.push((Arc::from("n20"), no_room(19)));
        assert_eq!(
            refusals(nodes).grouped(),
            "  z         the node has no GPU\n  \
             21 nodes  the nearest, n19: GPU 0 lacks 81 MiB: 100 MiB asked, and the largest hole \
             on this node is 19 MiB\n"
        );
    }

    #[test]
    fn nodes_are_found_and_written_by_name() {
        let mut refusals = refusals(["c", "a", "b"].map(|name| (Arc::from(name), Reason::NoGpu)));
        assert!(refusals.has("a") && refusals.has("c") && !refusals.has("d"));
        let no = "the node has no GPU";
        let json = format!(r#"{{"a":"{no}","b":"{no}","c":"{no}"}}"#);
        assert_eq!(serde_json::to_string(&refusals).unwrap(), json);
        // What changes is replaced, and the rest stays where it is.
        let now = Reasons::default().share(Reason::Unknown);
        let news = [("d", Some(now)), ("a", None), ("b", None)];
        refusals.update(news.map(|(name, why)| (Arc::from(name), why)).to_vec());
        let reasons: Vec<_> = refusals.reasons().cloned().collect();
        assert_eq!(reasons, [Reason::NoGpu, Reason::Unknown]);
        assert!(refusals.has("c") && refusals.has("d") && !refusals.has("a"));
    }
}
