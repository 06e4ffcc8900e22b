//! Nodes that cannot take a pod, and why: for programs each of them, for people a line per node,
//! or per kind of reason where nodes are many.
//!
//! Nothing is hidden without saying how many; JSON and YAML always have every node.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeMap as _, Serializer};
use sublet_plan::Reason;

use crate::align::align;

/// More nodes than this with one kind of reason become one line.
pub(crate) const MANY: usize = 20;

/// Nodes that cannot take a pod, in the order of their names, and why.
///
/// A plan for a full cluster consists mostly of these (a reason for each pod and node), so neither
/// names nor texts are copied, and a reason that many nodes have is kept once.
#[derive(Debug)]
pub(crate) struct Refusals {
    /// With the reason's place in the list.
    nodes: Vec<(Arc<str>, u32)>,
    reasons: Vec<Reason>,
}

impl FromIterator<(Arc<str>, Reason)> for Refusals {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Reason)>>(refused: I) -> Refusals {
        let mut known = HashMap::new();
        let place = |(node, reason)| {
            let next = known.len() as u32;
            (node, *known.entry(reason).or_insert(next))
        };
        let mut nodes: Vec<_> = refused.into_iter().map(place).collect();
        nodes.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut reasons: Vec<(Reason, u32)> = known.into_iter().collect();
        reasons.sort_unstable_by_key(|(_, place)| *place);
        let reasons = reasons.into_iter().map(|(reason, _)| reason).collect();
        Refusals { nodes, reasons }
    }
}

/// As a map from a node's name to the reason in words.
impl Serialize for Refusals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let texts: Vec<String> = self.reasons.iter().map(Reason::to_string).collect();
        let mut map = serializer.serialize_map(Some(self.len()))?;
        for (node, reason) in &self.nodes {
            map.serialize_entry(&**node, &texts[*reason as usize])?;
        }
        map.end()
    }
}

impl Refusals {
    /// No node at all.
    pub(crate) const NONE: Refusals = Refusals {
        nodes: Vec::new(),
        reasons: Vec::new(),
    };

    /// How many nodes cannot take the pod.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Is that node one of them?
    pub(crate) fn has(&self, node: &str) -> bool {
        self.nodes
            .binary_search_by(|(name, _)| (**name).cmp(node))
            .is_ok()
    }

    /// Why they cannot, each reason once.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = &Reason> {
        self.reasons.iter()
    }

    fn each(&self) -> impl Iterator<Item = (&str, &Reason)> {
        let nodes = self.nodes.iter();
        nodes.map(|(node, reason)| (&**node, &self.reasons[*reason as usize]))
    }

    /// A line per node, indented by two blanks; kinds of reasons with many nodes last, in one
    /// line each: the node that comes nearest, with its numbers, and how many others there are.
    pub(crate) fn grouped(&self) -> String {
        let mut kinds: BTreeMap<&str, Vec<(&str, &Reason)>> = BTreeMap::new();
        for refused in self.each() {
            kinds.entry(refused.1.label()).or_default().push(refused);
        }
        let mut lines = String::new();
        for (node, reason) in self.each() {
            if kinds[reason.label()].len() <= MANY {
                let _never_fails = writeln!(lines, "  {node}\t{reason}");
            }
        }
        for nodes in kinds.values().filter(|nodes| nodes.len() > MANY) {
            // The first of the nearest, so that the answer does not depend on chance.
            let nearest = nodes
                .iter()
                .rev()
                .max_by_key(|(_, reason)| nearness(reason));
            if let Some((node, reason)) = nearest {
                let n = nodes.len();
                let _never_fails = writeln!(lines, "  {n} nodes\tthe nearest, {node}: {reason}");
            }
        }
        align(&lines)
    }
}

/// How much of what is asked a node has: larger is nearer. Only compared within one kind.
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
    use sublet_model::{Count, GpuIndex, MiB};

    use super::*;

    fn no_room(hole: u32) -> Reason {
        Reason::NoRoom {
            asked: MiB::from(100),
            hole: MiB::from(hole),
            gpu: GpuIndex(0),
            sick: Count::ZERO,
            unsure: MiB::ZERO,
        }
    }

    #[test]
    fn few_nodes_have_a_line_each_and_many_share_one() {
        let named = |n: u32| (Arc::from(format!("n{n:02}")), no_room(n));
        let mut nodes: Vec<(Arc<str>, Reason)> = (0..20).map(named).collect();
        nodes.insert(0, (Arc::from("z"), Reason::NoGpu));
        let refusals: Refusals = nodes.iter().cloned().collect();
        let text = refusals.grouped();
        assert_eq!(text.lines().count(), 21);
        assert!(text.starts_with("  n00  GPU 0 lacks 100 MiB"));
        nodes.push((Arc::from("n20"), no_room(19)));
        let refusals: Refusals = nodes.into_iter().collect();
        assert_eq!(
            refusals.grouped(),
            "  z         the node has no GPU\n  \
             21 nodes  the nearest, n19: GPU 0 lacks 81 MiB: 100 MiB asked, and the largest hole \
             on this node is 19 MiB\n"
        );
    }

    #[test]
    fn nodes_are_found_and_written_by_name() {
        let nodes = ["c", "a", "b"].map(|name| (Arc::from(name), Reason::NoGpu));
        let refusals: Refusals = nodes.into_iter().collect();
        assert!(refusals.has("a") && refusals.has("c") && !refusals.has("d"));
        let no = "the node has no GPU";
        let json = format!(r#"{{"a":"{no}","b":"{no}","c":"{no}"}}"#);
        assert_eq!(serde_json::to_string(&refusals).unwrap(), json);
    }
}
