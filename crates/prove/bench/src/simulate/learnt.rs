//! Figures: how good the policy is when it may not learn, and after a restart.

use anyhow::Result;

use super::bank::{Bank, PERCENTS, Way, paired};
use super::quality::{OURS, deviating, head, named, worst_and_misses};
use crate::report::Report;
use crate::stats::Spread;

/// Our policy without any knowledge of the pods.
const STILL: &str = "tiling-still";
/// The policy that it must not be worse than.
const SIMPLE: &str = "best-fit";

/// Percentage points that a restart may cost.
const RESTART_TARGET: f64 = 0.1;

/// One policy, run in one way.
type Kind = (&'static str, Way);

pub(super) fn still(bank: &mut Bank<'_>, report: &mut Report) -> Result<()> {
    bank.fill_all("learning switched off", &[STILL, SIMPLE], Way::Protocol)?;
    report.say("## Learning switched off");
    report.say(&format!(
        "`{STILL}` knows the nodes and nothing of the pods that come. Its unallocated share minus \
         that of `{SIMPLE}`, paired by order, mean ± standard deviation in percentage points."
    ));
    let kinds = [(STILL, Way::Protocol), (SIMPLE, Way::Protocol)];
    compare(
        bank,
        kinds,
        &format!("`{STILL}` minus `{SIMPLE}`"),
        0.0,
        report,
    )
}

pub(super) fn restart(bank: &mut Bank<'_>, report: &mut Report) -> Result<()> {
    bank.fill_all("restart", &[OURS], Way::Protocol)?;
    bank.fill_all("restart", &[OURS], Way::Restart)?;
    report.say("## Restart at 90 % arrived");
    report.say(&format!(
        "When 90 % have arrived the scheduler is replaced by a new one that is told of the nodes \
         and of the placed pods, in the order of their names, and learns from those. `{OURS}` with \
         that minus `{OURS}` without, paired by order, mean ± standard deviation in percentage \
         points."
    ));
    let kinds = [(OURS, Way::Restart), (OURS, Way::Protocol)];
    compare(bank, kinds, "cost of a restart", RESTART_TARGET, report)
}

fn compare(
    bank: &Bank<'_>,
    [these, those]: [Kind; 2],
    what: &str,
    limit: f64,
    report: &mut Report,
) -> Result<()> {
    let mut rows = vec![head("list")];
    let mut cells = Vec::new();
    for list in bank.lists() {
        let of = |(policy, way): Kind| bank.outcomes(list, policy, way);
        let (these, those) = (of(these)?, of(those)?);
        let mut row = vec![named(list)];
        for percent in PERCENTS {
            let differences = paired(&these, &those, percent);
            row.push(deviating(&differences, true));
            let cell = format!("{list} at {percent} %");
            cells.push((cell, Spread::of(&differences).mean, limit));
        }
        rows.push(row);
    }
    report.table(&rows);
    report.verdicts(&worst_and_misses(what, &cells));
    Ok(())
}
