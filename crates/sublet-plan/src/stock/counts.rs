//! What a node has too little of: NodeResourcesFit and NodePorts. The ledger counts what is
//! taken.

use sublet_model::{Book, Claim};

use crate::Reason;

/// Has the node room for the pod, as far as the stock scheduler counts it? The resources that
/// cards are asked by come last, in [`check_devices`]: what a card lacks says more than a sum.
///
/// # Errors
/// What is too little.
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

/// Does the node have so much of the resources that cards are asked by? Its device plugin says
/// how much there is, and says nothing while it is away.
///
/// # Errors
/// What is too little.
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
