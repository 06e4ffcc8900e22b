//! Jobs of tenants through a queue: a run for each discipline.
//!
//! `sublet_sim::replay` does the runs; this module starts them, and says what there is to show.

mod view;

use std::fmt::Write as _;
use std::sync::Arc;

use sublet_sim::{
    DISCIPLINES, Discipline, PartitionSize, Replay, ReplayOutcome, ReplayStep, SizeClass,
    WaitGroup, WithinMin, mean, replay,
};

use self::view::QueueView;
use super::args::{Args, BadRequest};
use super::input::Input;
use super::load::Load;
use super::print::{self, Report, Waits, head, span, with_times};
use super::runs;
use crate::align::{columns, table, title};
use crate::answer::Answer;

/// Decisions are so many seconds apart, unless told otherwise. One decision of ours looks at all that
/// wait, and in a long trace ten thousand may: then minutes of computing become hours.
const INTERVAL: u64 = 300;

type Run<'a> = runs::Run<'a, &'static dyn Discipline, ReplayOutcome>;

struct QueueRuns<'a> {
    args: &'a Args,
    input: &'a Input,
    runs: Vec<Run<'a>>,
}

/// Does the runs, one for each discipline, and shows their results.
///
/// # Errors
/// Jobs that have no times or no quota.
pub(super) fn answer(args: &Args, input: &Input) -> anyhow::Result<Answer> {
    let policy = match &args.policy[..] {
        [policy] => policy,
        several => return Err(BadRequest::Policies(several.len()).into()),
    };
    let disciplines = match &args.discipline[..] {
        [] => DISCIPLINES,
        given => given,
    };
    for (at, discipline) in disciplines.iter().enumerate() {
        let name = discipline.name();
        if disciplines[..at]
            .iter()
            .any(|earlier| earlier.name() == name)
        {
            return Err(BadRequest::DisciplineTwice(name).into());
        }
    }
    let all = 2 * input.pods.rows.len();
    let runs = runs::side_by_side(args, disciplines, |discipline, progress| {
        let run = Replay {
            nodes: &input.nodes,
            pods: &input.pods,
            policy,
            discipline: *discipline,
            quotas: input.quotas.as_deref(),
            load: args.load.map(|Load(millionths)| millionths),
            interval: interval(args),
            profile: args.queue_profile.unwrap_or_default(),
            min_within: args.min_within,
            saves_every: args.checkpoint_every,
            run_times: args.run_times.unwrap_or_default().into(),
        };
        let mut seen = 0;
        Ok(replay(run, &mut |event| {
            seen += usize::from(matches!(event.step, ReplayStep::Comes | ReplayStep::Ends));
            progress.arrived(seen, all);
        })?)
    })?;
    print::answer(args, input, &QueueRuns { args, input, runs })
}

fn interval(args: &Args) -> u64 {
    args.interval.unwrap_or(INTERVAL)
}

impl Report for QueueRuns<'_> {
    type View = QueueView;

    fn table(&self) -> String {
        let runs = &self.runs[..];
        let mut text = self.head() + "\n";
        text += &self.totals();
        text.push('\n');
        text += &self.shares();
        text += "\nWaits: p50 / p90 / p99, until the start of the run in which a job ended.\n\n";
        let sizes: Vec<_> = runs.iter().map(|run| &run.outcome.sizes[..]).collect();
        text += &waits(runs, &["gpus", "jobs"], &sizes, |of| {
            vec![of.of.words().to_owned()]
        });
        text.push('\n');
        let tenants: Vec<_> = runs.iter().map(|run| &run.outcome.tenants[..]).collect();
        text += &waits(runs, &["quota", "minGpus", "jobs"], &tenants, |of| {
            vec![of.of.to_string(), (of.min_milli / 1000).to_string()]
        });
        text += "\nA partition is what a quota would have alone: nodes for its min, rounded up to \
                 whole ones,\non which its jobs start by backfill; `on min`: its min and nothing above \
                 it. Mean waits of the jobs that fit \
                 there, and the largest lag\nbehind the GPU time that the partition had given by then, \
                 in hours of the min.\n\n";
        text += &self.beside();
        text.push('\n');
        text.extend(runs.iter().map(why));
        for run in runs {
            let _ = writeln!(text, "{}: {}.", run.planned.name(), run.planned.about());
        }
        text
    }

    fn views(&self) -> Vec<QueueView> {
        let policies: Vec<String> = self.args.policy.iter().map(ToString::to_string).collect();
        let view = |run: &Run<'_>| {
            let mut view = QueueView::of(*run.planned, &run.outcome);
            view.policy = policies.join(" ");
            view.interval_seconds = interval(self.args);
            view.jobs = self.input.pods.rows.len();
            view.cpu_seconds = (!self.args.no_timing).then_some(run.cpu.as_secs_f64());
            view
        };
        self.runs.iter().map(view).collect()
    }

    fn csv(&self) -> Vec<String> {
        let heading = "discipline,by,group,jobs,p50_seconds,p90_seconds,p99_seconds,max_seconds";
        let mut lines = vec![heading.to_owned()];
        for run in &self.runs {
            let name = run.planned.name();
            let sizes = run.outcome.sizes.iter();
            let sizes = sizes.map(|group| ("size", group.of.words().to_owned(), &group.waits));
            let tenants = run.outcome.tenants.iter();
            let tenants = tenants.map(|group| ("quota", group.of.to_string(), &group.waits));
            lines.extend(sizes.chain(tenants).filter_map(|(by, group, waits)| {
                let Waits { p50, p90, p99, max } = Waits::of(waits)?;
                let jobs = waits.len();
                Some(format!(
                    "{name},{by},{group},{jobs},{p50},{p90},{p99},{max}"
                ))
            }));
        }
        lines
    }

    fn faults(&self) -> Vec<String> {
        let right = |run: &&Run<'_>| run.outcome.ends_empty && run.outcome.left == 0;
        let wrong = self.runs.iter().filter(|run| !right(run));
        let faults = wrong.map(|run| {
            format!(
                "{}: at the end {} jobs still waited{}",
                run.planned.name(),
                run.outcome.left,
                match run.outcome.ends_empty {
                    true => "",
                    false => ", and the ledger was not empty",
                }
            )
        });
        faults.collect()
    }
}

impl QueueRuns<'_> {
    /// Describes the replayed input and its options.
    fn head(&self) -> String {
        let QueueRuns { args, input, runs } = self;
        let mut text = head(args, input);
        let quotas = match &args.quotas {
            Some(file) => format!("is from {}", file.display()),
            None => "is its part of the GPU time that all jobs ask".to_owned(),
        };
        let when = match interval(args) {
            0 => "at each arrival and each end".to_owned(),
            seconds => format!("at most once in {seconds} s"),
        };
        let _ = writeln!(
            text,
            "\nThe min of each quota {quotas}. The queue decides {when}.\n\
             An evicted job loses its work and waits again. No rule but `easy` knows how long a job will \
             run."
        );
        // The same for all of them.
        let impossible = runs.first().map(|run| &run.outcome.impossible);
        if let Some((count @ 1.., Some(first))) = impossible {
            let _ = writeln!(
                text,
                "{count} jobs could not start even if nothing ran, and are left out (the first: {first})."
            );
        }
        let apart = runs.iter().find(|run| run.outcome.too_large > 0);
        if let Some(run) = apart {
            let _ = writeln!(
                text,
                "{}: {} jobs never start there: their quota has no min, or a partition that is smaller.",
                run.planned.name(),
                run.outcome.too_large
            );
        }
        text
    }

    fn totals(&self) -> String {
        let keys = [
            "discipline",
            "ended",
            "allocatedPercent",
            "usefulPercent",
            "lostPercent",
            "evictions",
            "lostWorkGpuHours",
            "makespanSeconds",
            "cpuSeconds",
        ];
        let row = |run: &Run<'_>| {
            let outcome = &run.outcome;
            vec![
                run.planned.name().to_owned(),
                outcome.ended.to_string(),
                format!("{:.2} %", outcome.useful_percent + outcome.lost_percent),
                format!("{:.2} %", outcome.useful_percent),
                format!("{:.2} %", outcome.lost_percent),
                outcome.evictions.to_string(),
                format!("{:.0} GPU h", outcome.lost_hours),
                span(outcome.makespan),
                format!("{:.1} s", run.cpu.as_secs_f64()),
            ]
        };
        with_times(self.args, &keys, self.runs.iter().map(row).collect())
    }

    /// Figures of jobs and quotas, by discipline.
    fn shares(&self) -> String {
        let keys = [
            "discipline",
            "meanWaitSeconds",
            "meanBoundedSlowdown",
            "sharingIncentive",
            "sharingIncentiveOnMin",
            "largestLagSeconds",
            "largestLagQuota",
            "largestWaitWithinMinSeconds",
            "lateWithinMin",
        ];
        let row = |run: &Run<'_>| {
            let outcome = &run.outcome;
            let within =
                |of: fn(WithinMin) -> String| outcome.within_min.map_or("-".to_owned(), of);
            let lag = outcome.largest_lag(PartitionSize::WholeNodes);
            let incentive = |size| {
                let (no_worse, of) = outcome.sharing_incentive(size);
                format!("{no_worse} of {of}")
            };
            vec![
                run.planned.name().to_owned(),
                about(outcome.mean_wait),
                format!("{:.1}", outcome.bounded_slowdown),
                incentive(PartitionSize::WholeNodes),
                incentive(PartitionSize::Min),
                lag.map_or("-".to_owned(), |(_, seconds)| hours(seconds)),
                lag.map_or("-".to_owned(), |(name, _)| name.to_string()),
                within(|within| span(within.longest)),
                within(|within| within.late.to_string()),
            ]
        };
        let rows: Vec<_> = self.runs.iter().map(row).collect();
        columns(&keys, &rows)
    }

    /// Each quota on a partition of its own, and beside it by each discipline.
    fn beside(&self) -> String {
        let keys = ["quota", "partition.gpus", "partition.jobs"];
        let keys = keys.map(title).into_iter();
        let partition = ["meanWaitSeconds", "p90WaitSeconds"];
        let partition = partition.map(|key| title(&format!("partition.{key}")));
        let names = self.runs.iter().map(|run| run.planned.name().to_owned());
        let heading: Vec<String> = keys.chain(partition).chain(names).collect();
        let heading: Vec<&str> = heading.iter().map(String::as_str).collect();
        let Some(first) = self.runs.first() else {
            return String::new();
        };
        let row = |(at, group): (usize, &WaitGroup<Arc<str>>)| {
            let alone = group.alone.as_ref()?;
            let mut row = vec![
                group.of.to_string(),
                alone.gpus.to_string(),
                alone.waits.len().to_string(),
                mean(&alone.waits).map_or("-".to_owned(), about),
                Waits::of(&alone.waits).map_or("-".to_owned(), |waits| span(waits.p90)),
            ];
            row.extend(self.runs.iter().map(|run| {
                let here = run.outcome.tenants[at].alone.as_ref();
                here.map_or("-".to_owned(), |here| {
                    let wait = mean(&here.here).map_or("-".to_owned(), about);
                    format!("{wait} / {}", hours(here.lag_seconds))
                })
            }));
            Some(row)
        };
        let rows = first.outcome.tenants.iter().enumerate();
        let rows: Vec<_> = rows.filter_map(row).collect();
        table(&heading, &rows)
    }
}

/// A mean span of time.
fn about(seconds: f64) -> String {
    span(seconds.round() as u64)
}

fn hours(seconds: u64) -> String {
    format!("{:.1} h", seconds as f64 / 3600.0)
}

/// Reasons why gangs waited, if the discipline says so, and the number of evicted gangs.
fn why(run: &Run<'_>) -> String {
    let waited = &run.outcome.gangs_waited_for;
    let all: u64 = waited.values().sum();
    if all == 0 {
        return String::new();
    }
    let percent = |seconds: u64| 100.0 * seconds as f64 / all as f64;
    let mut parts: Vec<(&str, u64)> = waited.iter().map(|(word, of)| (*word, *of)).collect();
    parts.sort_by_key(|(_, seconds)| std::cmp::Reverse(*seconds));
    let parts = parts.into_iter();
    let parts: Vec<String> = parts
        .map(|(word, seconds)| format!("{word} {:.0} %", percent(seconds)))
        .collect();
    let gangs = run.outcome.sizes.iter();
    let gangs = gangs.filter(|group| group.of == SizeClass::Gang);
    let evictions: u64 = gangs.map(|group| group.evictions).sum();
    format!(
        "Gangs of {} waited for: {}. They were evicted {evictions} times.\n\n",
        run.planned.name(),
        parts.join(", ")
    )
}

/// A row for each group, with a cell for each run. All runs have the same groups. `keys`: those of
/// the first columns.
fn waits<T>(
    runs: &[Run<'_>],
    keys: &[&str],
    groups: &[&[WaitGroup<T>]],
    name: impl Fn(&WaitGroup<T>) -> Vec<String>,
) -> String {
    let titles: Vec<String> = keys.iter().map(|key| title(key)).collect();
    let names = runs.iter().map(|run| run.planned.name());
    let heading: Vec<&str> = titles.iter().map(String::as_str).chain(names).collect();
    let row = |(at, group): (usize, &WaitGroup<T>)| {
        let mut row = name(group);
        row.push(group.jobs.to_string());
        row.extend(groups.iter().map(|groups| cell(groups.get(at))));
        row
    };
    let all = groups.first().copied().unwrap_or(&[]);
    let rows: Vec<_> = all.iter().enumerate().map(row).collect();
    table(&heading, &rows)
}

fn cell<T>(group: Option<&WaitGroup<T>>) -> String {
    let waits = group.and_then(|group| Waits::of(&group.waits));
    waits.map_or("-".to_owned(), |waits| {
        let Waits { p50, p90, p99, .. } = waits;
        format!("{} / {} / {}", span(p50), span(p90), span(p99))
    })
}
