//! Figure: what a cluster leaves unallocated when the stock scheduler places pods without GPU,
//! and when the extender places them (the cure).

use anyhow::Result;

use super::bank::{Bank, PERCENTS, Way, unallocated};
use super::quality::{OURS, PEER, cells, head, named, worst_and_misses};
use crate::report::{Report, Verdict};
use crate::stats::Spread;

/// Percent unallocated on the default list at 100 % arrived, with the cure (issue 6).
const DEFAULT_TARGET: f64 = 4.0;
/// Percentage points that may stay unallocated beyond FGD's in its own protocol.
const AS_GOOD: f64 = 0.1;

const ROWS: [(&str, &str, Way); 4] = [
    ("`fgd`, its own protocol", PEER, Way::Protocol),
    (
        "`fgd`, stock scheduler for pods without GPU",
        PEER,
        Way::Stock,
    ),
    (
        "`tiling`, stock scheduler for pods without GPU",
        OURS,
        Way::Stock,
    ),
    ("`tiling`, with the cure", OURS, Way::Protocol),
];

pub(super) fn measure(bank: &mut Bank<'_>, report: &mut Report) -> Result<()> {
    bank.fill_all("as deployed", &[PEER, OURS], Way::Protocol)?;
    bank.fill_all("as deployed", &[PEER, OURS], Way::Stock)?;
    report.say("## As deployed");
    report.say(
        "FGD's protocol sends pods that ask for no GPU through the same policy. In a cluster the \
         stock scheduler places those that name it, and it spreads: here by `NodeResourcesFit` \
         (`LeastAllocated`) plus `NodeResourcesBalancedAllocation` over CPU and memory, by the \
         formulas of Kubernetes 1.36. Approximated are ties (by rank; the stock scheduler draws), \
         and that all nodes are scored (it looks at a part of a large cluster's). The cure is \
         `schedulerName: sublet-scheduler` on those pods too: they pass the extender, and what \
         comes of it is the protocol itself. Unallocated GPU share in percent, mean ± standard \
         deviation.",
    );
    for list in bank.lists() {
        let mut rows = vec![head(&named(list))];
        for (name, policy, way) in ROWS {
            let mut row = vec![name.to_owned()];
            row.extend(cells(&bank.outcomes(list, policy, way)?));
            rows.push(row);
        }
        report.table(&rows);
    }
    report.verdicts(&verdicts(bank)?);
    Ok(())
}

fn verdicts(bank: &Bank<'_>) -> Result<Vec<Verdict>> {
    let mean = |list, policy, percent| {
        let outcomes = bank.outcomes(list, policy, Way::Protocol)?;
        anyhow::Ok(Spread::of(&unallocated(&outcomes, percent)).mean)
    };
    let mut verdicts = vec![Verdict::at_most_hundredths(
        "with the cure, default at 100 %",
        mean("default", OURS, 100)?,
        DEFAULT_TARGET,
        "%",
    )];
    let mut cells = Vec::new();
    for list in bank.lists() {
        for percent in PERCENTS {
            let above = mean(list, OURS, percent)? - mean(list, PEER, percent)?;
            cells.push((format!("{list} at {percent} %"), above, AS_GOOD));
        }
    }
    verdicts.extend(worst_and_misses(
        "with the cure above FGD's own row",
        &cells,
    ));
    Ok(verdicts)
}
