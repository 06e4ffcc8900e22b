//! A card as the fake driver itself counts it. The count comes from the twin of NVML that no
//! interposer stands in front of. The arbiter's and the interposer's counts must agree with it.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

/// One card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// All bytes in use, contexts included, in whole blocks of 2 MiB.
    pub used: u64,
    /// The bytes in use by each process.
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

/// A number of bytes, or of MiB, in a report.
///
/// # Errors
/// It is not there.
pub fn number(value: &Value) -> Result<u64> {
    value
        .as_u64()
        .with_context(|| format!("{value} is no number"))
}
