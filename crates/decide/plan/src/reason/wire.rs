//! Reasons as the extender sends them: short, and the same for all nodes of a kind.

use std::fmt;

use sublet_model::{Ask, Milli, Part};

use super::Reason;

/// A reason in the short text that the extender sends: at most a few different texts for a claim.
pub struct Wire<'a>(pub &'a Reason, pub &'a Ask);

impl fmt::Display for Wire<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Reason::TooSmall { .. }, Ask::Parts(parts)) => {
                write!(f, "no GPU is as large as {}", parts.first().memory)
            }
            (Reason::NoRoom { .. }, Ask::Parts(parts)) => {
                let memory = Part {
                    compute: Milli::ZERO,
                    ..parts.first()
                };
                write!(f, "no GPU has {memory} free")
            }
            (
                Reason::NoCompute { .. } | Reason::Company { .. } | Reason::Overfull { .. },
                Ask::Parts(parts),
            ) => {
                write!(f, "no GPU has {} free", parts.first())
            }
            (Reason::TooFewRooms { .. }, Ask::Parts(parts)) => {
                let (asked, part) = (parts.count().get(), parts.first());
                write!(f, "fewer than {asked} GPUs have {part} free")
            }
            (Reason::TooFewForAll { .. }, _) => {
                write!(f, "no GPUs are free for all containers of the pod")
            }
            (Reason::TooFew { chosen, .. }, ask) => {
                write!(f, "node has fewer than {}", ask.gpus())?;
                match chosen {
                    true => write!(f, " that the pod accepts together"),
                    false => Ok(()),
                }
            }
            (Reason::NoIdle { .. }, Ask::WholeCards(asked)) => {
                write!(f, "node has fewer than {} idle GPUs", asked.get())
            }
            (Reason::Cpu { .. }, _) => write!(f, "too little CPU is left on the node"),
            (Reason::HostMemory { .. }, _) => write!(f, "too little memory is left on the node"),
            (Reason::Model { .. } | Reason::Unwanted { .. } | Reason::Tags { .. }, _) => {
                self.0.wanted_text(f)
            }
            (Reason::Splits { .. }, _) => write!(
                f,
                "as many pods as the node offers each GPU with enough room (--gpu-splits)"
            ),
            (Reason::LookAlike { .. }, _) => {
                write!(f, "a pod that looks the same is still starting on the node")
            }
            (Reason::KeptFor { .. }, _) => {
                write!(f, "room on the node is kept for a pod of higher priority")
            }
            (Reason::Unit { .. }, _) => write!(f, "node counts GPU memory in another unit"),
            (Reason::NoSlot, _) => write!(f, "node needs sublet.dev/gpu-slot in the pod"),
            (reason, _) => write!(f, "{reason}"),
        }
    }
}
