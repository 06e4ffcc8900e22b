//! Checks the resources that a node has too little of: the plugins NodeResourcesFit and NodePorts.
//! The ledger counts the amounts in use.

use sublet_model::{Book, Claim};

use crate::Reason;

/// Has the node room for the pod, by the stock scheduler's counts? The resources by which cards are
/// asked for are checked last, in [`check_devices`]: a reason that names a card tells more than a
/// sum.
///
/// # Errors
/// The first resource that is short.
pub fn check_machine(book: &Book, claim: &Claim) -> Result<(), Reason> {
    let (asked, left) = (claim.host(), book.host_left());
    if let Some(node) = book.facts().and_then(|facts| facts.stock.as_ref())
        && book.machine().pods >= node.pods
    {
        return Err(Reason::Pods { most: node.pods });
    }
    if asked.cpu > left.cpu {
        return Err(Reason::Cpu {
            asked: asked.cpu,
            left: left.cpu,
        });
    }
    if asked.memory > left.memory {
        return Err(Reason::HostMemory {
            asked: asked.memory,
            left: left.memory,
        });
    }
    let Some(ask) = claim.stock() else {
        return Ok(());
    };
    check(book, ask.resources.iter())?;
    let mut taken = book.machine().ports.iter();
    match taken.find_map(|taken| ask.ports.iter().find(|port| port.conflicts(taken))) {
        Some(port) => Err(Reason::HostPort {
            port: port.clone().into(),
        }),
        None => Ok(()),
    }
}

/// Has the node enough of the resources by which cards are asked for? Its device plugin reports the
/// amount, and reports nothing while it does not run.
///
/// # Errors
/// The first resource that is short.
pub(crate) fn check_devices(book: &Book, claim: &Claim) -> Result<(), Reason> {
    match claim.stock() {
        Some(ask) => check(book, ask.devices.iter()),
        None => Ok(()),
    }
}

fn check<'a>(
    book: &Book,
    asked: impl Iterator<Item = (&'a std::sync::Arc<str>, u64)>,
) -> Result<(), Reason> {
    let Some(node) = book.facts().and_then(|facts| facts.stock.as_ref()) else {
        return Ok(());
    };
    for (name, asked) in asked {
        let allocatable = node.resources.get(name);
        let left = allocatable.saturating_sub(book.machine().resources.get(name));
        if asked > left {
            return Err(Reason::Resource {
                name: name.clone(),
                asked,
                left,
                allocatable,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
