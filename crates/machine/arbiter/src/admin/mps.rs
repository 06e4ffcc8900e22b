//! The messages about MPS: to a job that has its cards, and to people.

use serde::{Deserialize, Serialize};

/// A job's programs are to be clients of MPS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacedMps {
    /// The folder with the daemon's sockets.
    pub pipe: String,
    /// Their share of each card's multiprocessors, in thousandths.
    pub compute_limit_milli: u16,
}

/// State of MPS.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MpsRow {
    /// `starting`, `serving` or `gone`.
    pub state: String,
    /// For how long.
    pub for_ms: u64,
    /// Reason why the daemon, or the one before it, ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it is started again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub again_in_ms: Option<u64>,
    /// The daemon's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The folder with its sockets.
    pub pipe: String,
}
