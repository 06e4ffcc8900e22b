//! The amounts that containers of one pod take at their worst moment.

use crate::{ClaimShapeError, MiB, Milli, Part, Role};

/// Returns the peak of such amounts of one card.
///
/// Amounts and shares of memory have a worst moment each, so a pod with both may be counted as
/// more than it ever takes, and never as less.
///
/// # Errors
/// More thousandths of something than there are.
pub(crate) fn peak_part(amounts: &[(Role, Part)]) -> Result<Part, ClaimShapeError> {
    let part = peak_of(amounts);
    for (what, asked) in [
        ("compute time", part.compute),
        ("memory", part.memory_share),
    ] {
        if asked > Milli::WHOLE {
            let asked = asked.get().into();
            return Err(ClaimShapeError::TooMuch { what, asked });
        }
    }
    Ok(part)
}

/// The same, with more thousandths than there are where that many are asked.
#[must_use]
pub fn peak_of(amounts: &[(Role, Part)]) -> Part {
    let peak_of = |amount: fn(Part) -> u64| {
        let amounts = amounts.iter();
        peak(amounts.map(|&(role, part)| (role, amount(part))))
    };
    let milli = |asked| Milli::sum_of(asked);
    Part {
        memory: MiB::new(peak_of(|part| part.memory.get())).unwrap_or(MiB::MAX),
        compute: milli(peak_of(|part| part.compute.get().into())),
        memory_share: milli(peak_of(|part| part.memory_share.get().into())),
    }
}

/// The most that is in use at once, as Kubernetes counts it: the main containers together,
/// or any init container while it runs, and with either the sidecars started before
/// (KEP-753, "Resources calculation for scheduling and pod admission"). The amounts of one
/// pod's containers, in the order in which they start, in any one unit.
#[must_use]
pub fn peak(amounts: impl IntoIterator<Item = (Role, u64)>) -> u64 {
    let mut sidecars = 0u64;
    let mut main = 0u64;
    let mut peak = 0u64;
    for (role, amount) in amounts {
        match role {
            Role::Init => peak = peak.max(sidecars.saturating_add(amount)),
            Role::Sidecar => sidecars = sidecars.saturating_add(amount),
            Role::Main => main = main.saturating_add(amount),
        }
    }
    peak.max(sidecars.saturating_add(main))
}
