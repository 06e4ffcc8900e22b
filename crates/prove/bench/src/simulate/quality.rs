//! Figure: what share each policy leaves unallocated on each list, and which pods it drops.

use anyhow::Result;
use sublet_plan::Policy;
use sublet_sim::{Drops, Outcome};

use super::bank::{Bank, PERCENTS, Way, paired, unallocated};
use super::traces::TUNED_ON;
use crate::report::{Report, Verdict};
use crate::stats::Spread;

/// Sublet's own policy.
pub(super) const OURS: &str = "tiling";
/// The policy that ours is compared with.
pub(super) const PEER: &str = "fgd";

/// The percentage that any scheduler must leave unallocated on the default list, by [`PERCENTS`].
/// The bound even holds for a scheduler that sees the future, moves pods and refuses pods that do
/// not tile. It comes from a linear program over the ways to fill a card; means of seeds 42-51.
/// It was computed once and is quoted here.
const FLOOR: [f64; 5] = [5.01, 3.10, 1.50, 0.50, 0.11];

/// The same at 100 % arrived on all lists. Here shares of pods may be split at will.
const FLOOR_AT_100: [(&str, f64); 17] = [
    ("default", 3.10),
    ("cpu050", 3.10),
    ("cpu100", 3.10),
    ("cpu200", 3.10),
    ("cpu250", 3.28),
    ("gpushare40", 4.35),
    ("gpushare60", 6.65),
    ("gpushare80", 8.60),
    ("gpushare100", 10.84),
    ("gpuspec10", 3.15),
    ("gpuspec20", 3.10),
    ("gpuspec25", 3.12),
    ("gpuspec33", 3.60),
    ("multigpu20", 2.66),
    ("multigpu30", 2.33),
    ("multigpu40", 2.00),
    ("multigpu50", 1.66),
];

/// Pairs of the percentage arrived on the default list, and the most that may stay unallocated.
const DEFAULT_TARGETS: [(u32, f64); 2] = [(100, 3.7), (130, 3.6)];

/// Percentage points that may stay unallocated beyond FGD's.
const AS_GOOD: f64 = 0.1;
/// The same at 95 %, on other lists than the default one.
const EARLY: f64 = 0.3;

pub(super) fn policies() -> Vec<&'static str> {
    Policy::names().collect()
}

pub(super) fn measure(bank: &mut Bank<'_>, report: &mut Report) -> Result<()> {
    let policies = policies();
    bank.fill_all("quality", &policies, Way::Protocol)?;
    report.say("## Quality");
    report.say(&format!(
        "GPU share left unallocated, in percent of the cluster, when pods that ask for so many \
         percent of it have arrived (FGD's protocol: {} orders of arrival, pods are placed or \
         dropped for ever, none leaves). Mean ± standard deviation over the orders. `{OURS}` is \
         Sublet's; lists marked * were also tuned on, with other orders.",
        bank.seeds.len()
    ));
    at_100(bank, &policies, report)?;
    against_peer(bank, report)?;
    unseen(bank, report)?;
    targets(bank, report)?;
    report.say("### Every list");
    report.say(
        "Beside what is unallocated, pods dropped until 100 % had arrived, by what they asked, \
         mean of the orders.",
    );
    for list in bank.lists() {
        every(bank, list, &policies, report)?;
    }
    Ok(())
}

/// A list's name, with a mark if the policy was tuned on the list.
pub(super) fn named(list: &str) -> String {
    let mark = if TUNED_ON.contains(&list) { "*" } else { "" };
    format!("{list}{mark}")
}

fn at_100(bank: &Bank<'_>, policies: &[&'static str], report: &mut Report) -> Result<()> {
    report.say(
        "### All policies at 100 % arrived\n\nThe floor is what any scheduler must leave, also one \
         that sees the future and refuses what does not tile (linear program over the ways to \
         fill a card, worked out once and quoted). On the default list it is 5.01 at 95 %, 3.10 \
         at 100 %, 1.50 at 110 %, 0.50 at 120 % and 0.11 at 130 %.",
    );
    let first = ["list", "floor"].into_iter();
    let mut rows = vec![
        first
            .chain(policies.iter().copied())
            .map(str::to_owned)
            .collect(),
    ];
    for list in bank.lists() {
        let floor = FLOOR_AT_100.iter().find(|(known, _)| *known == list);
        let mut row = vec![
            named(list),
            floor.map_or("-".to_owned(), |(_, f)| format!("{f:.2}")),
        ];
        for policy in policies {
            let outcomes = bank.outcomes(list, policy, Way::Protocol)?;
            let mean = Spread::of(&unallocated(&outcomes, 100)).mean;
            row.push(format!("{mean:.2}"));
        }
        rows.push(row);
    }
    report.table(&rows);
    Ok(())
}

fn against_peer(bank: &Bank<'_>, report: &mut Report) -> Result<()> {
    report.say(&format!(
        "### `{OURS}` minus `{PEER}`, paired by order\n\nBelow nothing is better. Mean ± standard \
         deviation of the differences, in percentage points."
    ));
    let mut rows = vec![head("list")];
    for list in bank.lists() {
        let difference = |percent| difference(bank, list, percent);
        let mut row = vec![named(list)];
        for percent in PERCENTS {
            row.push(deviating(&difference(percent)?, true));
        }
        rows.push(row);
    }
    report.table(&rows);
    Ok(())
}

fn difference(bank: &Bank<'_>, list: &'static str, percent: u32) -> Result<Vec<f64>> {
    let ours = bank.outcomes(list, OURS, Way::Protocol)?;
    let theirs = bank.outcomes(list, PEER, Way::Protocol)?;
    Ok(paired(&ours, &theirs, percent))
}

/// Prints the mean over the lists that the policy was not tuned on.
fn unseen(bank: &Bank<'_>, report: &mut Report) -> Result<()> {
    let lists: Vec<_> = bank
        .lists()
        .filter(|list| !TUNED_ON.contains(list))
        .collect();
    if lists.is_empty() {
        return Ok(());
    }
    report.say(&format!(
        "### Mean of the {} lists that were not tuned on",
        lists.len()
    ));
    let mut rows = vec![head("policy")];
    for policy in ["best-fit", PEER, OURS] {
        let mut row = vec![policy.to_owned()];
        for percent in PERCENTS {
            let mut means = Vec::new();
            for &list in &lists {
                let outcomes = bank.outcomes(list, policy, Way::Protocol)?;
                means.push(Spread::of(&unallocated(&outcomes, percent)).mean);
            }
            row.push(format!("{:.2}", Spread::of(&means).mean));
        }
        rows.push(row);
    }
    report.table(&rows);
    Ok(())
}

/// Prints the targets: on the default list, and against FGD on every list. Every miss has a line.
fn targets(bank: &Bank<'_>, report: &mut Report) -> Result<()> {
    report.say("### Targets");
    let mut verdicts = Vec::new();
    let ours = bank.outcomes("default", OURS, Way::Protocol)?;
    for (percent, limit) in DEFAULT_TARGETS {
        let mean = Spread::of(&unallocated(&ours, percent)).mean;
        let what = format!("`{OURS}` on default at {percent} %");
        verdicts.push(Verdict::at_most_hundredths(&what, mean, limit, "%"));
    }
    let mut cells = Vec::new();
    for list in bank.lists() {
        for percent in PERCENTS {
            let mean = Spread::of(&difference(bank, list, percent)?).mean;
            let limit = limit(list, percent);
            cells.push((format!("{list} at {percent} %"), mean, limit));
        }
    }
    let what = format!("`{OURS}` minus `{PEER}`");
    verdicts.extend(worst_and_misses(&what, &cells));
    report.verdicts(&verdicts);
    Ok(())
}

fn limit(list: &str, percent: u32) -> f64 {
    if percent == 95 && list != "default" {
        EARLY
    } else {
        AS_GOOD
    }
}

/// One line for each limit, with the worst of its cells, and one line for each further cell that
/// misses.
pub(super) fn worst_and_misses(what: &str, cells: &[(String, f64, f64)]) -> Vec<Verdict> {
    let mut sorted: Vec<_> = cells.iter().collect();
    sorted.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut limits: Vec<f64> = Vec::new();
    let mut verdicts = Vec::new();
    for (cell, value, limit) in sorted {
        let first = !limits.contains(limit);
        if first {
            limits.push(*limit);
            let of = cells.iter().filter(|(_, _, of)| of == limit).count();
            let what = format!("{what}, worst of {of} cells, {cell}");
            verdicts.push(Verdict::at_most_hundredths(&what, *value, *limit, "points"));
        } else {
            let what = format!("{what}, {cell}");
            let verdict = Verdict::at_most_hundredths(&what, *value, *limit, "points");
            verdicts.extend((!verdict.is_met()).then_some(verdict));
        }
    }
    verdicts
}

fn every(
    bank: &Bank<'_>,
    list: &'static str,
    policies: &[&'static str],
    report: &mut Report,
) -> Result<()> {
    report.say(&format!("#### {}", named(list)));
    let mut first = head("policy");
    let drops = ["parts", "× 1", "× 2", "× 4", "× 8", "no GPU"];
    first.extend(drops.map(|name| format!("dropped {name}")));
    let mut rows = vec![first];
    if list == "default" {
        let mut floor = vec!["(floor)".to_owned()];
        floor.extend(FLOOR.map(|percent| format!("{percent:.2}")));
        floor.extend(drops.map(|_| "-".to_owned()));
        rows.push(floor);
    }
    for policy in policies {
        let outcomes = bank.outcomes(list, policy, Way::Protocol)?;
        let mut row = vec![(*policy).to_owned()];
        row.extend(cells(&outcomes));
        row.extend(dropped(&outcomes));
        rows.push(row);
    }
    report.table(&rows);
    Ok(())
}

/// Mean numbers of dropped pods, by what the pods asked for.
pub(super) fn dropped(outcomes: &[&Outcome]) -> Vec<String> {
    let of: [fn(&Drops) -> u32; 6] = [
        |drops| drops.share,
        |drops| drops.whole[0],
        |drops| drops.whole[1],
        |drops| drops.whole[2],
        |drops| drops.whole[3],
        |drops| drops.none,
    ];
    let mean = |of: fn(&Drops) -> u32| {
        let counts: Vec<f64> = outcomes.iter().map(|o| f64::from(of(&o.drops))).collect();
        format!("{:.1}", Spread::of(&counts).mean)
    };
    of.map(mean).to_vec()
}

/// The head of a table with a column for each percent of arrival.
pub(super) fn head(first: &str) -> Vec<String> {
    let percents = PERCENTS.iter().map(|percent| format!("{percent} %"));
    [first.to_owned()].into_iter().chain(percents).collect()
}

/// The share that the runs leave unallocated, by percent of arrival.
pub(super) fn cells(outcomes: &[&Outcome]) -> Vec<String> {
    let cell = |percent: &u32| deviating(&unallocated(outcomes, *percent), false);
    PERCENTS.iter().map(cell).collect()
}

/// Mean and standard deviation; the mean has a sign if it is a difference.
pub(super) fn deviating(figures: &[f64], signed: bool) -> String {
    let Spread { mean, deviation } = Spread::of(figures);
    match signed {
        true => format!("{mean:+.2} ± {deviation:.2}"),
        false => format!("{mean:.2} ± {deviation:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_cell_of_each_limit_is_shown_and_every_miss() {
        let cell = |name: &str, value, limit| (name.to_owned(), value, limit);
        let cells = [
            cell("a", -0.5, 0.1),
            cell("b", 0.4, 0.3),
            cell("c", 0.2, 0.3),
            cell("d", 0.15, 0.1),
            cell("e", 0.12, 0.1),
        ];
        let lines: Vec<String> = worst_and_misses("x", &cells)
            .iter()
            .map(Verdict::line)
            .collect();
        assert_eq!(
            lines,
            [
                "- x, worst of 2 cells, b: 0.40 points (target ≤ 0.3 points): **not met**",
                "- x, worst of 3 cells, d: 0.15 points (target ≤ 0.1 points): **not met**",
                "- x, e: 0.12 points (target ≤ 0.1 points): **not met**",
            ]
        );
    }

    #[test]
    fn every_published_list_has_a_floor() {
        let names: Vec<_> = FLOOR_AT_100.iter().map(|(list, _)| *list).collect();
        assert_eq!(names, super::super::traces::PUBLISHED);
        assert_eq!(limit("default", 95), AS_GOOD);
        assert_eq!(limit("cpu250", 95), EARLY);
        assert_eq!(limit("cpu250", 100), AS_GOOD);
    }

    #[test]
    fn a_difference_has_a_sign() {
        assert_eq!(deviating(&[1.0, 2.0], true), "+1.50 ± 0.71");
        assert_eq!(deviating(&[1.0, 2.0], false), "1.50 ± 0.71");
        assert_eq!(head("list")[1], "95 %");
    }
}
