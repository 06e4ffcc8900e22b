//! The texts of reasons that come from the node: its facts, and its way of handing out cards.

use std::fmt;

use sublet_model::Sharing;

use super::Reason;

impl Reason {
    /// Writes which property of the node keeps the pod away.
    pub(super) fn node_text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Unknown => write!(
                f,
                "the node is not known, or its GPU inventory cannot be read"
            ),
            Reason::NoGpu => write!(f, "the node has no GPU"),
            Reason::Sharing { node } => {
                let (only, also) = match node {
                    Sharing::Whole => ("whole GPUs", "parts"),
                    Sharing::Memory | Sharing::Both => ("parts of GPUs", "whole GPUs"),
                };
                write!(
                    f,
                    "the node hands out {only} only; its label sublet.dev/sharing=both, or agent.sharing of the chart, has it hand out {also} too"
                )
            }
            Reason::Unit { node, scheduler } => write!(
                f,
                "the node counts GPU memory in {node}, the scheduler in {scheduler}: give both the same --memory-unit"
            ),
            Reason::NoSlot => write!(
                f,
                "the node hands out what the pod asks for by slots, and the pod does not ask for sublet.dev/gpu-slot: 1"
            ),
            Reason::SlotBeside => write!(
                f,
                "the node hands out what the pod asks for by devices of its own, and the pod also asks for sublet.dev/gpu-slot"
            ),
            Reason::Plugin { plugin } => write!(
                f,
                "the device plugin of {plugin} hands out the node's GPUs, and does not know what Sublet decides"
            ),
            _ => Ok(()),
        }
    }
}
