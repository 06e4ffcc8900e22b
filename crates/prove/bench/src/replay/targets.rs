//! Targets of our rules, beside the other rules at the same load.

use anyhow::{Context, Result};

use super::call::{OURS, Ours};
use super::tables::{Rule, SIZES};
use crate::report::Verdict;

/// Targets at a load. Shares of the cluster's time are in percentage points.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Due {
    /// So many tenants may wait longer than alone.
    losers: u64,
    /// The rule that gangs wait no longer by.
    gangs: &'static str,
    /// The most that jobs of one GPU wait, as a multiple of backfill's; none is due.
    one_gpu: Option<f64>,
    /// So much less than backfill's may come to something.
    useful: f64,
}

impl Due {
    /// Up to 0.9 of the cluster a queue ends; at all of it none does.
    fn at(load: Option<&str>) -> Due {
        let load: f64 = load.and_then(|load| load.parse().ok()).unwrap_or(0.0);
        let (losers, gangs) = if load <= 0.9 {
            (1, "fifo")
        } else {
            (2, "backfill")
        };
        let (one_gpu, useful) = match load {
            ..=0.8 => (Some(1.0), LITTLE),
            ..=0.9 => (Some(1.25), 2.0),
            _ => (None, 3.0),
        };
        Due {
            losers,
            gangs,
            one_gpu,
            useful,
        }
    }
}

/// So little may be lost where jobs write checkpoints, or the cluster is not full.
const LITTLE: f64 = 0.2;

/// Hours after its time in which a job has its place that the minimum of its tenant has room for.
const LATE: f64 = 0.5;

/// Two decimals: a target is printed as it is.
fn rounded(figure: f64) -> f64 {
    (figure * 100.0).round() / 100.0
}

/// Verdicts on our rules at a load.
///
/// # Errors
/// A rule or a size of jobs is missing.
pub(super) fn verdicts(rules: &[Rule<'_>], load: Option<&str>) -> Result<Vec<Verdict>> {
    let all_end = rules.iter().all(Rule::all_end);
    let mut verdicts = vec![Verdict::holds(
        "every job ends that has room, by every rule",
        all_end,
    )];
    for ours in OURS.iter().filter(|ours| ours.is_judged) {
        verdicts.extend(of(ours, rules, load)?);
    }
    Ok(verdicts)
}

fn of(ours: &Ours, rules: &[Rule<'_>], load: Option<&str>) -> Result<Vec<Verdict>> {
    let due = Due::at(load);
    let at = load.map_or("as they came".to_owned(), |load| format!("at {load}"));
    let rule = |name: &str| {
        let found = rules.iter().find(|rule| rule.name() == name);
        found.with_context(|| format!("`{name}` is not among the runs"))
    };
    let figure = |figure: Option<f64>| figure.map(rounded).context("a figure is missing");
    let (it, backfill) = (rule(ours.name)?, rule("backfill")?);
    let [one, _, many, gangs] = SIZES;
    let [on_nodes, on_min, tenants] = it.sharing_incentive();
    let less = if ours.saves { LITTLE } else { due.useful };
    let said = |what: &str| format!("`{}`, {at}: {what}", ours.name);
    let at_most = |what: &str, value, limit: Option<f64>, factor: f64| -> Result<Verdict> {
        let limit = rounded(figure(limit)? * factor);
        Ok(Verdict::at_most(&said(what), figure(value)?, limit, "h"))
    };
    let incentive = |on: &str, no_worse: u64| {
        Verdict::at_least(
            &said(&format!("tenants that wait no longer than alone {on}")),
            no_worse as f64,
            tenants.saturating_sub(due.losers) as f64,
            "tenants",
        )
    };
    let mut verdicts = vec![
        incentive("on their `min`", on_min),
        incentive("on whole nodes", on_nodes),
        at_most(
            &format!("p90 wait of gangs, beside `{}`", due.gangs),
            it.p90(gangs),
            rule(due.gangs)?.p90(gangs),
            1.0,
        )?,
        at_most(
            "mean wait, beside `backfill`",
            it.mean_wait(),
            backfill.mean_wait(),
            1.0,
        )?,
        at_most(
            "p90 wait of jobs of 5 GPUs and more, beside 1.1 of `partitions`",
            it.p90(many),
            rule("partitions")?.p90(many),
            1.1,
        )?,
        Verdict::at_least(
            &said("GPU time that came to something, beside `backfill`"),
            figure(it.useful())?,
            rounded(figure(backfill.useful())? - less),
            "%",
        ),
    ];
    if let Some(factor) = due.one_gpu {
        verdicts.push(at_most(
            &format!("p90 wait of jobs of one GPU, beside {factor} of `backfill`"),
            it.p90(one),
            backfill.p90(one),
            factor,
        )?);
    }
    if let Some(seconds) = ours.min_within {
        verdicts.push(Verdict::at_most(
            &said("wait of a job that the `min` of its tenant had room for, at most"),
            figure(it.wait_within_min())?,
            seconds as f64 / 3600.0 + LATE,
            "h",
        ));
    }
    Ok(verdicts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::replay::call::Run;
    use crate::replay::tables::{beside, rules, shares, totals};

    /// A run with the same p90 of all sizes, in hours.
    fn run(name: &str, useful: f64, hours: u64, no_worse: u64) -> Run {
        let wait = hours * 3600;
        let waits = json!({"p50": 1, "p90": wait, "p99": wait});
        let size = |gpus: &str| json!({"gpus": gpus, "jobs": 3, "waitSeconds": waits});
        let partition = json!({
            "gpus": 8, "jobs": 2, "meanWaitSeconds": 7200, "p90WaitSeconds": 10800,
            "sameJobsMeanWaitSeconds": wait, "sameJobsP90WaitSeconds": 3600, "lagSeconds": 5400,
        });
        let quota = json!({
            "quota": "a", "minGpus": 5, "jobs": 3, "waitSeconds": waits, "partition": partition,
        });
        let run = json!({
            "discipline": name, "about": "a rule", "jobs": 3, "ended": 2, "impossible": 1,
            "allocatedPercent": useful, "usefulPercent": useful, "lostPercent": 0,
            "evictions": 0, "lostWorkGpuHours": 0, "makespanSeconds": 7200,
            "meanWaitSeconds": wait, "meanBoundedSlowdown": 2, "sharingIncentive": no_worse,
            "sharingIncentiveOf": 11, "sharingIncentiveOnMin": no_worse + 1,
            "largestLagSeconds": 3600, "largestLagOnMinSeconds": 360, "cpuSeconds": 1.5,
            "largestWaitWithinMinSeconds": 86400 + 1799, "lateWithinMin": 4,
            "waitBySize": SIZES.map(size), "waitByQuota": [quota],
        });
        serde_json::from_value(run).unwrap()
    }

    #[test]
    fn targets_are_those_of_the_load() {
        let runs = vec![
            run("fair, 1 day", 77.0, 20, 9),
            run("fair, 1 h, checkpoints", 78.0, 15, 10),
            run("fifo", 70.0, 30, 2),
            run("backfill", 78.0, 17, 7),
            run("partitions", 70.0, 15, 11),
        ];
        let list = [&runs];
        let missed = |load: Option<&str>| {
            let verdicts = verdicts(&rules(&list), load).unwrap();
            let lines = verdicts.iter().filter(|verdict| !verdict.is_met());
            let lines = lines.map(Verdict::line);
            lines.collect::<Vec<_>>()
        };
        let day = |at: &str, what: &str| format!("- `fair, 1 day`, {at}: {what}: **not met**");
        let nodes = "tenants that wait no longer than alone on whole nodes: 9.00 tenants (target ≥ 10 \
                     tenants)";
        let wait = "mean wait, beside `backfill`: 20.0 h (target ≤ 17 h)";
        let five = "p90 wait of jobs of 5 GPUs and more, beside 1.1 of `partitions`: 20.0 h (target ≤ \
                    16.5 h)";
        let useful = "GPU time that came to something, beside `backfill`: 77.0 % (target ≥ 77.8 %)";
        let one = "p90 wait of jobs of one GPU, beside 1 of `backfill`: 20.0 h (target ≤ 17 h)";
        let gangs = "p90 wait of gangs, beside `backfill`: 20.0 h (target ≤ 17 h)";
        // A day and half an hour is due to the other.
        let late = |at: &str| {
            format!(
                "- `fair, 1 h, checkpoints`, {at}: wait of a job that the `min` of its tenant had room \
                 for, at most: 24.5 h (target ≤ 1.5 h): **not met**"
            )
        };
        for (load, at, of_the_day) in [
            (None, "as they came", &[nodes, wait, five, useful, one][..]),
            // 1.25 of 17 h, and two points less.
            (Some("0.9"), "at 0.9", &[nodes, wait, five]),
            (Some("1.0"), "at 1.0", &[gangs, wait, five]),
        ] {
            let of_the_day = of_the_day.iter().map(|what| day(at, what));
            let expected: Vec<String> = of_the_day.chain([late(at)]).collect();
            assert_eq!(missed(load), expected);
        }
        assert!(of(&OURS[0], &rules(&[&runs[1..].to_vec()]), None).is_err());
    }

    #[test]
    fn figures_of_several_lists_are_means_and_tenants_are_added() {
        let (one, other) = (vec![run("x", 70.0, 10, 10)], vec![run("x", 80.0, 20, 11)]);
        let rules = rules(&[&one, &other]);
        let row = &shares(&rules)[1];
        let expected = [
            "`x`", "75.00", "0.00", "15.0", "15.0", "15.0", "15.0", "15.0",
        ];
        assert_eq!(row[..8], expected);
        let expected = ["21 / 23 of 22", "1.0 / 0.1", "2.0", "24.5", "4"];
        assert_eq!(row[8..], expected);
        let expected = ["`x`", "75.00", "0", "0", "2", "1", "3.0"];
        assert_eq!(totals(&rules)[1], expected);
        // A tenant alone, and its waits and its lag here.
        let expected = ["a (min 5)", "8", "2", "2 / 3", "10 / 1 / 2"];
        assert_eq!(beside(&one)[1], expected);
        assert!(rules[0].all_end(), "the third could never start");
    }
}
