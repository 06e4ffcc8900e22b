//! Evictions, saved work and run time of a group, as the annotations of its objects and pods say them.
//!
//! A value that cannot be read counts as if it was not there, and is reported. Whoever may edit the
//! object may write what they like: with more evictions the group goes later and borrows less, with
//! checkpoints that there are not it goes first. No quota's minimum waits longer for it.

use sublet_model::Time;
use sublet_queue::{GroupPast, Saves};

use super::field::{GroupError, moment};
use crate::duration::milliseconds;
use crate::keys;
use crate::object::Meta;

/// Reads what the group's own object says. `odd`: values that cannot be read.
pub(super) fn past_of(meta: &Meta, odd: &mut Vec<GroupError>) -> GroupPast {
    let count = |text: &str| text.parse::<u32>().ok();
    let none = "a whole number; 0 counts";
    let reclaims = read(meta, keys::RECLAIMS, (count, none), odd);
    let none = "a time in RFC 3339; none counts";
    GroupPast {
        reclaims: reclaims.unwrap_or(0),
        reclaimed: read(meta, keys::RECLAIMED_AT, (moment, none), odd),
        room_since: None,
        saves: saves_of(meta, odd),
    }
}

/// Reads which work is saved, on the group's own object, on a template of its pods or on a pod.
pub(super) fn saves_of(meta: &Meta, odd: &mut Vec<GroupError>) -> Saves {
    let every = read(meta, keys::CHECKPOINT_EVERY, (above_zero, DURATION), odd);
    let none = "a time in RFC 3339; none counts";
    let last: Option<Time> = read(meta, keys::CHECKPOINTED_AT, (moment, none), odd);
    let every = every.map_or(Saves::Unknown, Saves::Every);
    last.map_or(every, Saves::At)
}

/// Reads for how many milliseconds the work runs at most, on the group's own object or on a template
/// of its pods.
pub(super) fn runs_of(meta: &Meta, odd: &mut Vec<GroupError>) -> Option<u64> {
    read(meta, keys::MAX_RUN_TIME, (above_zero, DURATION), odd)
}

const DURATION: &str = "a duration above zero, such as 30m; none counts";

fn above_zero(text: &str) -> Option<u64> {
    milliseconds(text).filter(|ms| *ms > 0)
}

/// Joins what two objects of one group say.
pub(super) fn joined(one: &GroupPast, other: &GroupPast) -> GroupPast {
    GroupPast {
        reclaims: one.reclaims.max(other.reclaims),
        reclaimed: one.reclaimed.max(other.reclaimed),
        room_since: None,
        saves: saves_together(one.saves, other.saves),
    }
}

/// Joins what two of them say of saved work: the latest time, else the first period.
pub(super) fn saves_together(one: Saves, other: Saves) -> Saves {
    match (one, other) {
        (Saves::At(one), Saves::At(other)) => Saves::At(one.max(other)),
        (Saves::Every(_), Saves::At(_)) | (Saves::Unknown, _) => other,
        (Saves::At(_) | Saves::Every(_), _) => one,
    }
}

fn read<T>(
    meta: &Meta,
    key: &str,
    (value, wanted): (impl Fn(&str) -> Option<T>, &str),
    odd: &mut Vec<GroupError>,
) -> Option<T> {
    let text = meta.annotations.get(key)?;
    let read = value(text);
    if read.is_none() {
        odd.push(GroupError::of_key("annotations", key, text, wanted));
    }
    read
}
