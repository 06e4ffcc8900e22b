//! The programs that share a card, each run in one of three ways.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::stage::Stage;

/// Ways in which programs share a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// As jobs, by `sublet run --compute`.
    Ours,
    /// Straight on the driver, which gives slices in turn.
    Slices,
    /// Straight on the driver, each with a limiter like HAMi-core's.
    TokenBucket,
}

impl Way {
    pub(super) const ALL: [Way; 3] = [Way::Ours, Way::Slices, Way::TokenBucket];

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Ours => "**Sublet**",
            Way::Slices => "the driver's slices",
            Way::TokenBucket => "token bucket",
        }
    }
}

/// One program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tenant {
    /// The percentage of the card that it asks for.
    pub(super) percent: u32,
    pub(super) is_graph: bool,
    pub(super) microseconds: u32,
    /// When the window begins, on CLOCK_MONOTONIC.
    pub(super) from: Duration,
    pub(super) seconds: u64,
}

/// A program that runs.
pub(super) struct Running(Child);

impl Tenant {
    pub(super) fn start(&self, stage: &Stage, way: Way) -> Result<Running> {
        let program = stage.built("sublet-workload");
        let share = format!("{}%", self.percent);
        let mut command = match way {
            Way::Ours => {
                let flags = ["--name", &share, "--memory", "1GiB", "--compute", &share];
                stage.job(&flags, program)
            }
            Way::Slices | Way::TokenBucket => stage.bare(program),
        };
        let reach = match way {
            Way::Ours => "linked".to_owned(),
            Way::Slices | Way::TokenBucket => stage.bare_reach(),
        };
        command.args(["steady", "--reach", &reach]);
        command.args(["--launch", if self.is_graph { "graph" } else { "eager" }]);
        command.args(["--microseconds", &self.microseconds.to_string()]);
        command.args(["--from", &self.from.as_nanos().to_string()]);
        command.args(["--seconds", &self.seconds.to_string()]);
        if way == Way::TokenBucket {
            let limit = self.percent.to_string();
            command.args(["--token-bucket", &limit, "--nvml", &stage.bare_nvml()]);
        }
        Running::of(command)
    }
}

impl Running {
    fn of(mut command: Command) -> Result<Running> {
        let child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn();
        Ok(Running(child.context("cannot start a program")?))
    }

    /// Kernels that ended in each tenth of a second of the program's window.
    pub(super) fn per_tenth(self) -> Result<Vec<f64>> {
        let output = self.0.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "a program failed: {text}");
        let line = text.lines().next_back().context("a program said nothing")?;
        let report: Value = serde_json::from_str(line)?;
        let tenths = report["perTenth"].as_array().context("no counts")?;
        Ok(tenths.iter().filter_map(Value::as_f64).collect())
    }
}

/// The share of the card, in percent, that these kernels of each tenth of a second took.
pub(super) fn percent_of(per_tenth: &[f64], microseconds: u32) -> f64 {
    let kernels: f64 = per_tenth.iter().sum();
    let tenths = per_tenth.len().max(1) as f64;
    kernels * f64::from(microseconds) / (tenths * 1e5) * 100.0
}

#[cfg(test)]
mod tests {
    use super::percent_of;

    #[test]
    fn kernels_that_fill_half_of_the_time_are_half_of_the_card() {
        assert!((percent_of(&[100.0, 100.0], 500) - 50.0).abs() < 1e-9);
        assert!(percent_of(&[], 500).abs() < 1e-9);
    }
}
