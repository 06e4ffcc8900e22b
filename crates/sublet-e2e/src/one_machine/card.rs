//! A card as the fake driver itself counts it, through the twin of NVML that no interposer
//! stands before. It is the referee: what the arbiter and the interposer count is held to it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use super::number;

/// One card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// All bytes in use: whole pieces of 2 MiB, contexts included.
    pub used: u64,
    /// The same by process.
    pub processes: BTreeMap<u64, u64>,
}

impl Card {
    pub(super) fn of(device: &Value) -> Result<Card> {
        let rows = device["processes"].as_array();
        let rows = rows.with_context(|| format!("no processes in {device}"))?;
        let mut processes = BTreeMap::new();
        for row in rows {
            processes.insert(number(&row["pid"])?, number(&row["used"])?);
        }
        Ok(Card {
            used: number(&device["memory"]["used"])?,
            processes,
        })
    }
}
