//! Refusals for people: a line per node, or per kind of reason where nodes are many.
//!
//! Nothing is hidden without saying how many; JSON and YAML always have every node.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sublet_plan::Reason;

use crate::align::align;

/// More nodes than this with one kind of reason become one line.
pub(crate) const MANY: usize = 20;

/// A line per node, indented by two blanks; kinds of reasons with many nodes last, in one
/// line each: the node that comes nearest, with its numbers, and how many others there are.
pub(crate) fn grouped(refusals: &BTreeMap<String, Reason>) -> String {
    let mut kinds: BTreeMap<&str, Vec<(&String, &Reason)>> = BTreeMap::new();
    for (node, refusal) in refusals {
        kinds
            .entry(refusal.label())
            .or_default()
            .push((node, refusal));
    }
    let mut lines = String::new();
    for (node, refusal) in refusals {
        if kinds[refusal.label()].len() <= MANY {
            let _never_fails = writeln!(lines, "  {node}\t{refusal}");
        }
    }
    for nodes in kinds.values().filter(|nodes| nodes.len() > MANY) {
        // The first of the nearest, so that the answer does not depend on chance.
        let nearest = nodes
            .iter()
            .rev()
            .max_by_key(|(_, refusal)| nearness(refusal));
        if let Some((node, refusal)) = nearest {
            let n = nodes.len();
            let _never_fails = writeln!(lines, "  {n} nodes\tthe nearest, {node}: {refusal}");
        }
    }
    align(&lines)
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
        let mut refusals: BTreeMap<String, Reason> =
            (0..20).map(|n| (format!("n{n:02}"), no_room(n))).collect();
        refusals.insert("z".to_owned(), Reason::NoGpu);
        let text = grouped(&refusals);
        assert_eq!(text.lines().count(), 21);
        assert!(text.starts_with("  n00  GPU 0 lacks 100 MiB"));
        refusals.insert("n20".to_owned(), no_room(19));
        assert_eq!(
            grouped(&refusals),
            "  z         the node has no GPU\n  \
             21 nodes  the nearest, n19: GPU 0 lacks 81 MiB: 100 MiB asked, and the largest hole \
             on this node is 19 MiB\n"
        );
    }
}
