//! Work that is lost if a group goes.

use sublet_model::Time;

use crate::{Group, Saves};

/// Milliseconds of the group's run that it loses if it goes now. `assumed`: period between the
/// checkpoints of a group that does not say it.
pub(crate) fn lost_ms(group: &Group, now: Time, assumed: Option<u64>) -> u64 {
    let began = group.started.unwrap_or(now);
    let since = |then: Time| now.ms().saturating_sub(then.ms());
    let every = |period: u64| since(began) % period.max(1);
    match group.past.saves {
        Saves::Unknown => assumed.map_or(since(began), every),
        Saves::Every(period) => every(period),
        Saves::At(saved) => since(saved.max(began)),
    }
}

/// Lost work as it counts: double for each time that the group went before, so that no group goes
/// again and again.
pub(crate) fn weighed(lost: u64, reclaims: u32) -> u64 {
    lost.saturating_mul(1 << reclaims.min(32))
}
