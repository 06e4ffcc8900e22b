//! Tables of a setting: a row for each rule or for each group of jobs. Where a trace has several lists,
//! drawn by seeds, figures are means over them.

use super::call::{Group, Run, Waits};

/// Words for the sizes of jobs; the last is for jobs that need several nodes.
pub(super) const SIZES: [&str; 4] = ["up to 1", "2 to 4", "5 and more", "gangs"];

pub(super) fn hours(seconds: u64) -> f64 {
    seconds as f64 / 3600.0
}

/// The runs of one rule, one for each list.
pub(super) struct Rule<'a>(Vec<&'a Run>);

/// The rules, in their order, of the runs of each list.
pub(super) fn rules<'a>(lists: &[&'a Vec<Run>]) -> Vec<Rule<'a>> {
    let count = lists.first().map_or(0, |runs| runs.len());
    let rule = |at: usize| Rule(lists.iter().filter_map(|runs| runs.get(at)).collect());
    (0..count).map(rule).collect()
}

impl Rule<'_> {
    pub(super) fn name(&self) -> &str {
        self.0.first().map_or("", |run| &run.discipline)
    }

    fn about(&self) -> &str {
        self.0.first().map_or("", |run| &run.about)
    }

    /// The mean of a figure; of none if a list has none.
    fn mean(&self, figure: impl Fn(&Run) -> Option<f64>) -> Option<f64> {
        let figures: Option<Vec<f64>> = self.0.iter().map(|run| figure(run)).collect();
        let figures = figures.filter(|figures| !figures.is_empty())?;
        Some(figures.iter().sum::<f64>() / figures.len() as f64)
    }

    /// Percent of the cluster in which jobs ran to their end.
    pub(super) fn useful(&self) -> Option<f64> {
        self.mean(|run| Some(run.useful_percent))
    }

    /// Hours that jobs waited on average.
    pub(super) fn mean_wait(&self) -> Option<f64> {
        self.mean(|run| Some(run.mean_wait_seconds / 3600.0))
    }

    /// Hours that nine of ten jobs of that size waited at most.
    pub(super) fn p90(&self, size: &str) -> Option<f64> {
        self.mean(|run| {
            let mut groups = run.wait_by_size.iter();
            let group = groups.find(|group| group.gpus.as_deref() == Some(size))?;
            Some(hours(group.wait_seconds?.p90))
        })
    }

    /// Hours that a job waited at most while its tenant's `min` had room for it; none if the rule does
    /// not say.
    pub(super) fn wait_within_min(&self) -> Option<f64> {
        self.mean(|run| run.largest_wait_within_min_seconds.map(hours))
    }

    /// Tenants that wait no longer than alone on whole nodes, and on their `min` and nothing above it,
    /// and all that are large enough, in all lists.
    pub(super) fn sharing_incentive(&self) -> [u64; 3] {
        let sum = |figure: fn(&Run) -> u64| self.0.iter().map(|run| figure(run)).sum();
        [
            sum(|run| run.sharing_incentive),
            sum(|run| run.sharing_incentive_on_min),
            sum(|run| run.sharing_incentive_of),
        ]
    }

    /// Has each job ended that ever could?
    pub(super) fn all_end(&self) -> bool {
        self.0
            .iter()
            .all(|run| run.ended + run.impossible == run.jobs)
    }

    /// Figures of tenants and jobs under it.
    fn shares(&self) -> Vec<String> {
        let decimals = |figure: Option<f64>| figure.map_or("-".to_owned(), |it| format!("{it:.2}"));
        let short = |figure: Option<f64>| figure.map_or("-".to_owned(), |it| format!("{it:.1}"));
        let [on_nodes, on_min, of] = self.sharing_incentive();
        let mut row = vec![
            format!("`{}`", self.name()),
            decimals(self.useful()),
            decimals(self.mean(|run| Some(run.lost_percent))),
            short(self.mean_wait()),
        ];
        row.extend(SIZES.map(|size| short(self.p90(size))));
        let lag = self.mean(|run| run.largest_lag_seconds.map(hours));
        let lag_on_min = self.mean(|run| run.largest_lag_on_min_seconds.map(hours));
        let slowdown = self.mean(|run| Some(run.mean_bounded_slowdown));
        let late = self.mean(|run| run.late_within_min.map(|late| late as f64));
        row.extend([
            format!("{on_nodes} / {on_min} of {of}"),
            format!("{} / {}", short(lag), short(lag_on_min)),
            short(slowdown),
            short(self.wait_within_min()),
            late.map_or("-".to_owned(), |late| format!("{late:.0}")),
        ]);
        row
    }

    fn totals(&self) -> Vec<String> {
        let short = |figure: Option<f64>| figure.map_or("-".to_owned(), |it| format!("{it:.0}"));
        let used = self.mean(|run| Some(run.allocated_percent)).unwrap_or(0.0);
        let cpu: f64 = self.0.iter().map(|run| run.cpu_seconds).sum();
        vec![
            format!("`{}`", self.name()),
            format!("{used:.2}"),
            short(self.mean(|run| Some(run.evictions as f64))),
            short(self.mean(|run| Some(run.lost_work_gpu_hours))),
            short(self.mean(|run| Some(hours(run.makespan_seconds)))),
            short(self.mean(|run| Some(run.impossible as f64))),
            format!("{cpu:.1}"),
        ]
    }
}

fn with_heading<const N: usize>(
    heading: [&str; N],
    rows: impl Iterator<Item = Vec<String>>,
) -> Vec<Vec<String>> {
    let heading = heading.map(str::to_owned).to_vec();
    std::iter::once(heading).chain(rows).collect()
}

/// Figures of tenants and jobs, by rule.
pub(super) fn shares(rules: &[Rule<'_>]) -> Vec<Vec<String>> {
    let heading = [
        "",
        "useful, %",
        "lost, %",
        "mean wait, h",
        "p90 up to 1 GPU, h",
        "2 to 4",
        "5 and more",
        "gangs",
        "sharing incentive: nodes / `min`",
        "largest lag, h of `min`: nodes / `min`",
        "mean bounded slowdown",
        "within `min`, h",
        "late",
    ];
    with_heading(heading, rules.iter().map(Rule::shares))
}

/// Figures of the cluster, by rule.
pub(super) fn totals(rules: &[Rule<'_>]) -> Vec<Vec<String>> {
    let heading = [
        "",
        "GPUs in use, %",
        "evictions",
        "GPU hours lost",
        "makespan, h",
        "jobs that never start",
        "CPU s",
    ];
    with_heading(heading, rules.iter().map(Rule::totals))
}

/// The rules in a few words, a line each.
pub(super) fn abouts(rules: &[Rule<'_>]) -> String {
    let line = |rule: &Rule<'_>| format!("- `{}`: {}", rule.name(), rule.about());
    let lines: Vec<String> = rules.iter().map(line).collect();
    lines.join("\n")
}

/// A row for each size of jobs, a column for each rule.
pub(super) fn waits(runs: &[Run]) -> Vec<Vec<String>> {
    let first = runs.first().map_or(&[][..], |run| &run.wait_by_size);
    let row = |(at, group): (usize, &Group)| {
        let cells = runs.iter().map(|run| cell(run.wait_by_size.get(at)));
        let row = [name(group), group.jobs.to_string()];
        row.into_iter().chain(cells).collect()
    };
    let rows = first.iter().enumerate().map(row);
    headed(&["", "jobs"], runs, rows)
}

/// Each tenant of a list on a partition of its own, and the same jobs by each rule: the mean and the
/// p90 of their waits, and the tenant's largest lag.
pub(super) fn beside(runs: &[Run]) -> Vec<Vec<String>> {
    let first = runs.first().map_or(&[][..], |run| &run.wait_by_quota);
    let row = |(at, group): (usize, &Group)| {
        let alone = group.partition?;
        let mut row = vec![
            name(group),
            alone.gpus.to_string(),
            alone.jobs.to_string(),
            both(alone.mean_wait_seconds, alone.p90_wait_seconds),
        ];
        row.extend(runs.iter().map(|run| {
            let here = run.wait_by_quota.get(at).and_then(|group| group.partition);
            here.map_or("-".to_owned(), |here| {
                let waits = (
                    here.same_jobs_mean_wait_seconds,
                    here.same_jobs_p90_wait_seconds,
                );
                format!(
                    "{} / {:.0}",
                    both(waits.0, waits.1),
                    hours(here.lag_seconds)
                )
            })
        }));
        Some(row)
    };
    let rows = first.iter().enumerate().filter_map(row);
    headed(&["", "GPUs alone", "jobs", "alone"], runs, rows)
}

/// A heading of these cells and of the rules, and the rows below it.
fn headed(
    cells: &[&str],
    runs: &[Run],
    rows: impl Iterator<Item = Vec<String>>,
) -> Vec<Vec<String>> {
    let names = runs.iter().map(|run| format!("`{}`", run.discipline));
    let cells = cells.iter().map(|cell| (*cell).to_owned());
    std::iter::once(cells.chain(names).collect())
        .chain(rows)
        .collect()
}

fn name(group: &Group) -> String {
    match (&group.gpus, &group.quota, group.min_gpus) {
        (Some(gpus), ..) if gpus == SIZES[3] => gpus.clone(),
        (Some(gpus), ..) => format!("{gpus} GPUs"),
        (None, Some(quota), Some(min)) => format!("{quota} (min {min})"),
        _ => String::new(),
    }
}

/// A mean and a p90 in hours.
fn both(mean: Option<f64>, p90: Option<u64>) -> String {
    let mean = mean.map_or("-".to_owned(), |mean| format!("{:.0}", mean / 3600.0));
    let p90 = p90.map_or("-".to_owned(), |p90| format!("{:.0}", hours(p90)));
    format!("{mean} / {p90}")
}

fn cell(group: Option<&Group>) -> String {
    let waits = group.and_then(|group| group.wait_seconds);
    waits.map_or("-".to_owned(), |Waits { p50, p90, p99 }| {
        let [p50, p90, p99] = [p50, p90, p99].map(hours);
        format!("{p50:.2} / {p90:.2} / {p99:.2}")
    })
}
