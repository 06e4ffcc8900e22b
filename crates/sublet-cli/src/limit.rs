//! `sublet limit`: changes how much memory a running job may have. It returns when no
//! reservation against the old limit can succeed any more; what a job has already stays its.

use serde::Serialize;
use sublet_arbiter::admin::{Placed, Reply, Request, Snapshot, TenantRow};

use crate::answer::{Advised, Answer, DONE, Format, document};
use crate::jobs::mib;
use crate::machine::{Machine, MachineArgs};
use crate::run::request;

/// Arguments of `sublet limit`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet limit 3 --memory 6GiB        job 3 may have 6 GiB of each of its cards
  sublet limit train --memory 25%     by name, where only one job has it

A limit below what the job uses takes nothing away: the job gets no new memory until it has
freed enough, and its state is `over`.

EXIT CODES
  0  no reservation against the old limit succeeds any more
  1  no such job, no room for more, or no arbiter
  2  wrong arguments")]
pub struct Args {
    /// The job's number or name, as `sublet ps` shows them
    #[arg(value_name = "JOB")]
    job: String,
    /// Memory of each of its cards: 4GiB, 512MiB, 25%
    #[arg(short, long, value_name = "AMOUNT", allow_hyphen_values = true, value_parser = request::memory)]
    memory: String,
    #[command(flatten)]
    machine: MachineArgs,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Answers `sublet limit`.
///
/// # Errors
/// No such job, or the arbiter refuses.
pub fn run(args: &Args) -> anyhow::Result<Answer> {
    let machine = Machine::of(&args.machine);
    let hint = format!("`sublet ps{}` lists them", machine.argument());
    let id = number(&args.job, &machine.snapshot()?).map_err(|what| Advised::new(what, hint))?;
    let request = Request::Limit {
        id,
        memory: args.memory.clone(),
    };
    let mut client = machine.connect_to_running()?;
    let placed = match machine.ask(&mut client, &request)? {
        Reply::Limited(placed) => placed,
        Reply::Refused { reason, .. } => {
            let what = format!("job {id} keeps its limit: {reason}");
            let hint = format!(
                "`sublet top --once{}` shows what is free",
                machine.argument()
            );
            return Err(Advised::new(what, hint).into());
        }
        other => return Err(machine.unexpected(&other).into()),
    };
    let now = machine.snapshot()?;
    let job = now.tenants.iter().find(|job| job.id == Some(id));
    print(&placed, job, args.output)
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

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Limited<'a> {
    #[serde(flatten)]
    placed: &'a Placed,
    state: Option<&'a str>,
    #[serde(rename = "memoryUsedMiB")]
    used: Option<u64>,
}

fn print(placed: &Placed, job: Option<&TenantRow>, format: Format) -> anyhow::Result<Answer> {
    let limited = Limited {
        placed,
        state: job.map(|job| &*job.state),
        used: job.map(|job| job.memory_used_mib),
    };
    let text = match format {
        Format::Json => document(&limited, false)?,
        Format::Yaml => document(&limited, true)?,
        Format::Table => placed
            .gpus
            .iter()
            .map(|gpu| {
                let (id, index, limit) = (placed.id, gpu.index, mib(gpu.limit_mib));
                format!("job {id}: {limit} of GPU {index}\n")
            })
            .collect(),
    };
    let over = job.filter(|job| job.state == "over");
    let notes = over.map(|job| {
        let used = mib(job.memory_used_mib);
        format!("the job uses {used}: it gets no new memory until it has freed enough")
    });
    Ok(Answer {
        text,
        notes: notes.into_iter().collect(),
        code: DONE,
    })
}

#[cfg(test)]
mod tests {
    use sublet_arbiter::admin::PlacedGpu;

    use super::*;
    use crate::jobs::tests::example;

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
            }],
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
    }
}
