//! The arbiter's counters: events since its start, and each user's use of the cards.

use serde::{Deserialize, Serialize};

/// The arbiter's counters since its start; the node agent makes its metrics of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Counters {
    /// Jobs placed.
    pub placed: u64,
    /// Jobs refused.
    pub refused: u64,
    /// Jobs that ended.
    pub ended: u64,
    /// Processes that got a slot.
    pub joined: u64,
    /// Processes that were sent away.
    pub sent_away: u64,
    /// Slots taken back from processes that died.
    pub reclaimed: u64,
    /// The longest time from noticing a death to the memory being back, in microseconds.
    #[serde(rename = "reclaimMaxUs")]
    pub reclaim_us_max: u64,
    /// Connections dropped because their messages made no sense.
    pub garbage: u64,
    /// Processes that were found on a card without a slot.
    pub unmanaged: u64,
    /// Processes that were ended for it.
    pub evicted: u64,
    /// Jobs that were found at work on a card for longer than their turns explain.
    pub overused: u64,
    /// Readings of the cards that failed.
    pub unreadable: u64,
    /// Processes that have a slot now.
    pub processes: u64,
    /// Connections of processes now.
    pub connections: u64,
}

/// One user of the machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserRow {
    /// The kernel's number.
    pub uid: u32,
    /// Name. The command that shows it looks it up, never the arbiter.
    pub user: Option<String>,
    /// Cards, each counted by the larger of memory and promised compute time.
    #[serde(rename = "gpus")]
    pub cards: f64,
    /// Jobs that have cards.
    pub running: u64,
    /// Jobs that wait.
    pub waiting: u64,
}
