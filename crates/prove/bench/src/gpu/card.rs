//! The card that is measured, and the memory of it that is in use.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::stage::{Shell, Stage, number};

/// The first card of the machine.
pub(super) struct Card {
    pub(super) name: String,
    pub(super) driver: String,
    pub(super) bytes: u64,
    pub(super) is_fake: bool,
}

impl Card {
    /// Looks for it as any program does.
    pub(super) fn find(stage: &Stage) -> Result<Card> {
        let hint = "`--fake-gpu 1x80GiB` runs what needs none";
        let output = stage
            .bare(stage.built("sublet-workload"))
            .args(["info", "--reach"])
            .arg(stage.bare_reach())
            .arg(format!("--nvml={}", stage.bare_nvml()))
            .output()
            .context("cannot run sublet-workload")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let report: Value = serde_json::from_str(text.trim()).unwrap_or_default();
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            bail!("no GPU here that works ({}); {hint}", why.trim());
        }
        let device = &report["nvml"]["devices"][0];
        let text = |value: &Value| value.as_str().unwrap_or("unknown").to_owned();
        let Some(bytes) = device["memory"]["total"].as_u64() else {
            bail!("no GPU here (the driver shows no device); {hint}");
        };
        Ok(Card {
            name: text(&device["name"]),
            driver: text(&report["nvml"]["driverVersion"]),
            bytes,
            is_fake: stage.is_fake(),
        })
    }
}

/// Bytes of the card that are in use, as its own driver says. Asked past us.
pub(super) fn used_bytes(bare: &mut Shell) -> Result<f64> {
    let report =
        bare.ask("\"$BENCH_WORKLOAD\" info --reach \"$BENCH_REACH\" --nvml=\"$BENCH_NVML\"")?;
    number(&report, "/nvml/devices/0/memory/used")
}

/// The same when it no longer changes: a driver frees a dead process's memory in its own time.
pub(super) fn settled_bytes(bare: &mut Shell) -> Result<f64> {
    let mut last = used_bytes(bare)?;
    for _ in 0..50 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = used_bytes(bare)?;
        if now.total_cmp(&last).is_eq() {
            break;
        }
        last = now;
    }
    Ok(last)
}
