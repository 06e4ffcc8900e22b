//! `sublet limit`: changes a running job's limits: memory of its cards, pinned memory of the
//! machine, compute time. It returns when no reservation against the old limit can succeed any
//! more. Resources that a job has already stay its own.

use anyhow::Context;
use clap::ValueHint;
use serde::Serialize;
use sublet_arbiter::admin::{Placed, PlacedGpu, Reply, Request, Snapshot, TenantGpuRow, TenantRow};

use crate::answer::{Advised, Answer, DONE, Format, document};
use crate::compute::ComputeTime;
use crate::jobs::mib;
use crate::machine::{Machine, MachineArgs};
use crate::run::args;
use crate::similar::similar;

/// Arguments of `sublet limit`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("limits").required(true).multiple(true), after_help = "\
EXAMPLES
  sublet limit 3 --memory 6GiB        job 3 may have 6 GiB of each of its GPUs
  sublet limit train --memory 25%     by name, where only one job has it
  sublet limit 3 --pinned-memory 2GiB job 3 may pin 2 GiB of host memory
  sublet limit 3 --compute 20%..60%   job 3 is promised 20 % of each GPU's time, gets 60 % at most

A limit below what the job uses takes nothing away: the job gets no new memory until it has
freed enough, and its state is `over`. More compute time is promised only where it is promised to
nobody else.

EXIT CODES
  0  no reservation against the old limit succeeds any more
  1  no such job, no room for more, or no arbiter
  2  wrong arguments")]
pub struct Args {
    /// The job's number or name, as `sublet ps` shows them
    #[arg(value_name = "JOB", value_hint = ValueHint::Other)]
    job: String,
    /// Memory of each of its GPUs: 4GiB, 4G, 512M, 25%
    #[arg(short, long, value_name = "AMOUNT", allow_hyphen_values = true,
          value_parser = args::memory, value_hint = ValueHint::Other, group = "limits")]
    memory: Option<String>,
    /// Host memory that it may pin for its GPUs: 2GiB, 512M
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true,
          value_parser = args::size, value_hint = ValueHint::Other, group = "limits")]
    pinned_memory: Option<String>,
    /// Compute time of each of its GPUs: a promise (30%), or a promise and a limit (30%..80%)
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true,
          value_parser = args::compute, value_hint = ValueHint::Other, group = "limits")]
    compute: Option<String>,
    #[command(flatten)]
    machine: MachineArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Answers `sublet limit`.
///
/// # Errors
/// No such job, or the arbiter refuses.
pub fn run(args: &Args) -> anyhow::Result<Answer> {
    let machine = Machine::of(&args.machine)?;
    let before = machine.snapshot()?;
    let id = number(&args.job, &before).map_err(|what| {
        let list = machine.command("ps");
        Advised::new(what, other_jobs(&args.job, &before, &list))
    })?;
    // At least one of them is there, as the arguments say; the last answer tells all limits.
    let on_cards = args.memory.clone();
    let on_cards = on_cards.map(|memory| Request::Limit { id, memory });
    let pinned = args.pinned_memory.clone();
    let pinned = pinned.map(|memory| Request::LimitPinned { id, memory });
    let mut placed = None;
    let compute = args.compute.clone();
    let compute = compute.map(|compute| Request::LimitCompute { id, compute });
    for request in on_cards.iter().chain(&pinned).chain(&compute) {
        placed = Some(change(&machine, id, request)?);
    }
    let placed = placed.context("no limit was given")?;
    let now = machine.snapshot()?;
    let job = now.tenants.iter().find(|job| job.id == Some(id));
    print(&placed, job, args.output)
}

/// Asks for one change.
fn change(machine: &Machine, id: u64, request: &Request) -> anyhow::Result<Placed> {
    let mut client = machine.connect_to_running()?;
    match machine.ask(&mut client, request)? {
        Reply::Limited(placed) => Ok(placed),
        Reply::Refused { reason, hint, .. } => {
            let (which, usual) = match request {
                Request::LimitPinned { .. } => (
                    "limit of pinned memory",
                    format!(
                        "`{}` shows what the jobs have pinned",
                        machine.command("ps")
                    ),
                ),
                Request::LimitCompute { .. } => (
                    "compute time",
                    format!(
                        "`{}` shows what is promised to the jobs",
                        machine.command("top --once")
                    ),
                ),
                _ => (
                    "limit",
                    format!("`{}` shows what is free", machine.command("top --once")),
                ),
            };
            let what = format!("job {id} keeps its {which}: {reason}");
            Err(Advised::new(what, hint.unwrap_or(usual)).into())
        }
        other => Err(machine.unexpected(&other).into()),
    }
}

/// The number of the job that a text means: its number, or a name that one job has.
fn number(job: &str, snapshot: &Snapshot) -> Result<u64, String> {
    let jobs = || snapshot.tenants.iter().filter(|row| row.id.is_some());
    if let Ok(id) = job.parse::<u64>() {
        return match jobs().any(|row| row.id == Some(id)) {
            true => Ok(id),
            false => Err(format!("there is no job {id}")),
        };
    }
    let ids: Vec<u64> = jobs()
        .filter(|row| row.name == job)
        .filter_map(|row| row.id)
        .collect();
    match ids.as_slice() {
        [id] => Ok(*id),
        [] => Err(format!("there is no job `{job}`")),
        _ => {
            let ids: Vec<_> = ids.iter().map(u64::to_string).collect();
            Err(format!(
                "several jobs are called `{job}`: {}; say which number",
                ids.join(", ")
            ))
        }
    }
}

/// Hint about jobs that may be meant. `list` is the command that shows all.
fn other_jobs(job: &str, snapshot: &Snapshot, list: &str) -> String {
    let jobs = snapshot.tenants.iter().filter(|row| row.id.is_some());
    let names = jobs
        .map(|row| row.name.as_str())
        .filter(|name| *name != job);
    match similar(job, names.map(|name| (name, format!("`{name}`")))).as_slice() {
        [] => format!("`{list}` lists them"),
        names => format!("similar names: {}; `{list}` lists all", names.join(", ")),
    }
}

/// A job with its new limits.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Limited<'a> {
    id: u64,
    gpus: Vec<LimitedGpu<'a>>,
    #[serde(rename = "pinnedLimitMiB")]
    pinned_limit_mib: Option<u64>,
    state: Option<&'a str>,
    #[serde(rename = "usedMiB")]
    used_mib: Option<u64>,
    #[serde(rename = "pinnedUsedMiB")]
    pinned_used_mib: Option<u64>,
    compute_request_percent: Option<f64>,
    compute_limit_percent: Option<f64>,
}

/// A card of the job.
#[derive(Serialize)]
struct LimitedGpu<'a> {
    gpu: u16,
    uuid: &'a str,
    #[serde(rename = "limitMiB")]
    limit_mib: u64,
}

impl<'a> Limited<'a> {
    fn of(placed: &'a Placed, job: Option<&'a TenantRow>) -> Limited<'a> {
        let gpu = |gpu: &'a PlacedGpu| LimitedGpu {
            gpu: gpu.index,
            uuid: &gpu.uuid,
            limit_mib: gpu.limit_mib,
        };
        Limited {
            id: placed.id,
            gpus: placed.gpus.iter().map(gpu).collect(),
            pinned_limit_mib: placed.pinned_limit_mib,
            state: job.map(|job| &*job.state),
            used_mib: job.map(|job| job.memory_used_mib),
            pinned_used_mib: job.and_then(|job| job.pinned_used_mib),
            compute_request_percent: job.and_then(|job| job.compute_request_percent),
            compute_limit_percent: job.and_then(|job| job.compute_limit_percent),
        }
    }
}

fn print(placed: &Placed, job: Option<&TenantRow>, format: Format) -> anyhow::Result<Answer> {
    let limited = Limited::of(placed, job);
    let text = match format {
        Format::Json => document(&limited, false)?,
        Format::Yaml => document(&limited, true)?,
        Format::Table => {
            let id = placed.id;
            let on_card = |gpu: &PlacedGpu| {
                let (index, limit) = (gpu.index, mib(gpu.limit_mib));
                format!("job {id}: {limit} of GPU {index}\n")
            };
            let pinned = placed.pinned_limit_mib.map(mib);
            let pinned = pinned.map(|limit| format!("job {id}: {limit} pinned\n"));
            let compute = ComputeTime::told(placed.compute.as_deref());
            let compute = compute.filter(|compute| !compute.is_any());
            let compute = compute.map(|compute| format!("job {id}: compute time {compute}\n"));
            let lines = placed.gpus.iter().map(on_card);
            lines.chain(pinned).chain(compute).collect()
        }
    };
    Ok(Answer {
        text,
        notes: job.map(notes).unwrap_or_default(),
        code: DONE,
    })
}

/// Notes about usage of a job that is above its limits.
fn notes(job: &TenantRow) -> Vec<String> {
    let mut notes = Vec::new();
    let pinned = job.pinned_used_mib.zip(job.pinned_limit_mib);
    let pinned = pinned.filter(|(used, limit)| used > limit);
    let is_over = |gpu: &TenantGpuRow| gpu.used_mib > gpu.limit_mib;
    if job.state == "over" && (pinned.is_none() || job.per_gpu.iter().any(is_over)) {
        let used = mib(job.memory_used_mib);
        notes.push(format!(
            "the job uses {used}: it gets no new memory until it has freed enough"
        ));
    }
    if let Some((used, _)) = pinned {
        let used = mib(used);
        notes.push(format!(
            "the job has {used} pinned: it can pin no more until it has let go of enough"
        ));
    }
    notes
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::jobs::tests::{example, example_of_shares};

    /// JSON of an example; people get sentences.
    pub(crate) fn answers() -> Vec<[String; 2]> {
        let placed = Placed {
            id: 2,
            gpus: vec![PlacedGpu {
                index: 0,
                uuid: "GPU-0".to_owned(),
                limit_mib: 1024,
                context_mib: 0,
            }],
            pinned_limit_mib: Some(30),
            compute: Some("20 %..60 %".to_owned()),
            mps: None,
            dir: "/r".to_owned(),
        };
        let snapshot = example_of_shares();
        let answer = print(&placed, snapshot.tenants.get(1), Format::Json).unwrap();
        vec![[String::new(), answer.text]]
    }

    #[test]
    fn a_job_is_meant_by_number_or_by_a_name_of_its_own() {
        let mut snapshot = example();
        assert_eq!(number("2", &snapshot), Ok(2));
        assert_eq!(number("train", &snapshot), Ok(1));
        assert_eq!(number("9", &snapshot), Err("there is no job 9".to_owned()));
        // A process that is no job has a name and no number.
        assert_eq!(
            number("stray", &snapshot),
            Err("there is no job `stray`".to_owned())
        );
        let hint = |job: &str| other_jobs(job, &snapshot, "sublet ps");
        assert_eq!(
            hint("trian"),
            "similar names: `train`; `sublet ps` lists all"
        );
        for job in ["9", "notebook", "train"] {
            assert_eq!(hint(job), "`sublet ps` lists them", "{job}");
        }
        snapshot.tenants[1].name = "train".to_owned();
        let error = number("train", &snapshot).unwrap_err();
        assert_eq!(
            error,
            "several jobs are called `train`: 1, 2; say which number"
        );
    }

    #[test]
    fn a_limit_below_use_is_pointed_out() {
        let placed = Placed {
            id: 2,
            gpus: vec![PlacedGpu {
                index: 0,
                uuid: "GPU-0".to_owned(),
                limit_mib: 1024,
                context_mib: 0,
            }],
            pinned_limit_mib: None,
            compute: None,
            mps: None,
            dir: "/r".to_owned(),
        };
        let snapshot = example();
        let answer = print(&placed, snapshot.tenants.get(1), Format::Table).unwrap();
        assert_eq!(answer.text, "job 2: 1024 MiB of GPU 0\n");
        assert_eq!(
            answer.notes,
            ["the job uses 1200 MiB: it gets no new memory until it has freed enough"]
        );
        let answer = print(&placed, snapshot.tenants.first(), Format::Json).unwrap();
        assert_eq!(answer.notes, [""; 0]);
        let json: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
        assert_eq!(
            (json["id"].as_u64(), json["gpus"][0]["limitMiB"].as_u64()),
            (Some(2), Some(1024))
        );
        assert_eq!(json["state"], "running");
        assert_eq!(
            (
                json["pinnedUsedMiB"].as_u64(),
                json["pinnedLimitMiB"].as_u64()
            ),
            (Some(40), None)
        );
    }

    #[test]
    fn a_limit_of_pinned_memory_is_told_with_the_others() {
        let placed = Placed {
            id: 1,
            gpus: Vec::new(),
            pinned_limit_mib: Some(30),
            compute: None,
            mps: None,
            dir: "/r".to_owned(),
        };
        let shared = Placed {
            compute: Some("20 %..60 %".to_owned()),
            ..placed.clone()
        };
        let answer = print(&shared, None, Format::Table).unwrap();
        assert_eq!(
            answer.text,
            "job 1: 30 MiB pinned\njob 1: compute time 20 %, at most 60 %\n"
        );
        let mut job = example().tenants.remove(0);
        job.pinned_limit_mib = Some(30);
        job.state = "over".to_owned();
        let answer = print(&placed, Some(&job), Format::Table).unwrap();
        assert_eq!(answer.text, "job 1: 30 MiB pinned\n");
        let more = "the job has 40 MiB pinned: it can pin no more until it has let go of enough";
        assert_eq!(answer.notes, [more]);
        job.pinned_limit_mib = Some(40);
        job.state = "running".to_owned();
        assert_eq!(
            print(&placed, Some(&job), Format::Table).unwrap().notes,
            [""; 0]
        );
    }

    #[test]
    fn one_limit_or_the_other_is_to_be_given() {
        use clap::{Args as _, Command, FromArgMatches};
        let parse = |words: &str| {
            let command = Args::augment_args(Command::new("limit").no_binary_name(true));
            let matches = command.try_get_matches_from(words.split(' '));
            let args = matches.and_then(|matches| Args::from_arg_matches(&matches));
            args.map(|args| (args.memory, args.pinned_memory, args.compute))
                .map_err(|error| error.to_string())
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(parse("3 --memory 25%"), Ok((text("25 %"), None, None)));
        assert_eq!(
            parse("3 --compute 20%..60%"),
            Ok((None, None, text("20 %..60 %")))
        );
        assert_eq!(
            parse("3 --pinned-memory 2GiB"),
            Ok((None, text("2048 MiB"), None))
        );
        let both = parse("a --memory 1GiB --pinned-memory 2GiB");
        assert_eq!(both, Ok((text("1024 MiB"), text("2048 MiB"), None)));
        let error = parse("3").unwrap_err();
        assert!(
            error.contains("--memory") && error.contains("--pinned-memory"),
            "{error}"
        );
        let error = parse("3 --pinned-memory 25%").unwrap_err();
        assert!(error.contains("`25%` is not a size"), "{error}");
    }
}
