//! The texts of reasons that are the stock scheduler's own.

use std::fmt;
use std::sync::Arc;

use super::Reason;

impl Reason {
    /// The texts of the stock scheduler's rules, for `sublet plan`, `explain` and the simulator.
    pub(super) fn stock_text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Unschedulable => write!(f, "the node takes no new pods: it is cordoned"),
            Reason::Taint { taint } => write!(f, "the pod does not tolerate the taint {taint}"),
            Reason::NodeSelector { wanted, found } => {
                write!(f, "the pod selects {wanted}, and the node has ")?;
                had(f, found.as_ref())
            }
            Reason::NodeAffinity { terms, unmet } => {
                match terms {
                    0 | 1 => write!(f, "the pod's node affinity asks ")?,
                    n => write!(
                        f,
                        "none of the {n} terms of the pod's node affinity matches; the first asks "
                    )?,
                }
                match unmet {
                    Some((wanted, found)) => {
                        write!(f, "{wanted}, and the node has ")?;
                        had(f, found.as_ref())
                    }
                    None => write!(f, "nothing, which no node matches"),
                }
            }
            Reason::Pods { most } => write!(f, "the node has as many pods as it takes, {most}"),
            Reason::Resource {
                name,
                asked,
                left,
                allocatable,
            } => {
                write!(
                    f,
                    "{asked} {name} asked, and {left} of {allocatable} are left on the node"
                )?;
                match allocatable {
                    0 if name.contains('/') => write!(f, ": is its device plugin running?"),
                    _ => Ok(()),
                }
            }
            Reason::HostPort { port } => write!(f, "port {port} of the node is taken"),
            Reason::Cpu { asked, left } => {
                write!(f, "{asked} asked, and {left} is left on the node")
            }
            Reason::HostMemory { asked, left } => write!(
                f,
                "{} MiB of the machine's memory asked, and {} MiB are left",
                asked.get().div_ceil(1 << 20),
                left.whole_mib().get()
            ),
            _ => Ok(()),
        }
    }
}

/// Writes the value that a label of the node has.
fn had(f: &mut fmt::Formatter<'_>, value: Option<&Arc<str>>) -> fmt::Result {
    match value {
        Some(value) if value.is_empty() => write!(f, "it empty"),
        Some(value) => write!(f, "{value}"),
        None => write!(f, "no such label"),
    }
}
