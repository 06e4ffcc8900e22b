//! `sublet ps`: the jobs of this machine, once.

use serde::Serialize;
use sublet_arbiter::admin::{GpuRow, Snapshot, TenantRow};

use crate::answer::{Answer, DONE, Format, document};
use crate::jobs;
use crate::look;
use crate::machine::{Machine, MachineArgs};

/// Arguments of `sublet ps`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet ps                          jobs that run and wait, and GPU processes outside jobs;
                                     if there are none, the GPUs
  sublet ps --fake-gpu 2x16GiB       of a fake machine
  sublet ps -o json | jq '.jobs[] | select(.state == \"over\") | .name'

It starts nothing. Where no arbiter runs that this user may ask, it reads the driver.
A GPU's `contextMiB` and `packing` are then left out of its JSON, as where an arbiter could not
measure them.

EXIT CODES
  0  printed
  1  no driver, or an arbiter that does not answer
  2  wrong arguments")]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Answers `sublet ps`.
///
/// # Errors
/// There is no driver, or an arbiter that does not answer.
pub fn run(args: &Args) -> anyhow::Result<Answer> {
    let look = look::at(&Machine::of(&args.machine)?)?;
    Ok(Answer {
        text: print(&look.snapshot, args.output)?,
        notes: look.note.into_iter().collect(),
        code: DONE,
    })
}

/// Content of the tables, for programs.
#[derive(Serialize)]
struct Jobs<'a> {
    gpus: &'a [GpuRow],
    jobs: &'a [TenantRow],
}

fn print(snapshot: &Snapshot, format: Format) -> anyhow::Result<String> {
    let Snapshot { gpus, tenants, .. } = snapshot;
    let content = Jobs {
        gpus,
        jobs: tenants,
    };
    match format {
        Format::Table => Ok(jobs::text(snapshot, tenants.is_empty())),
        Format::Json => document(&content, false),
        Format::Yaml => document(&content, true),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::jobs::tests::{example, example_of_shares};

    /// Table and JSON of an example.
    pub(crate) fn answers() -> Vec<[String; 2]> {
        let mut idle = example_of_shares();
        idle.tenants.clear();
        [example_of_shares(), idle]
            .map(|snapshot| {
                [Format::Table, Format::Json].map(|form| print(&snapshot, form).unwrap())
            })
            .to_vec()
    }

    #[test]
    fn jobs_are_printed_in_every_form() {
        let table = print(&example(), Format::Table).unwrap();
        assert!(table.starts_with("ID  NAME   STATE "), "{table}");
        let mut idle = example();
        idle.tenants.clear();
        let table = print(&idle, Format::Table).unwrap();
        assert!(table.starts_with("GPU  MODEL"), "{table}");
        assert!(table.ends_with("\n\nno job\n"), "{table}");
        let json = print(&example(), Format::Json).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["jobs"][0]["limitMiB"], 4096);
        assert_eq!(json["jobs"][2]["state"], "waiting");
        assert_eq!(json["gpus"][0]["grantedMiB"], 8192);
        let yaml = print(&example(), Format::Yaml).unwrap();
        assert!(yaml.contains("usedMiB: 480"), "{yaml}");
    }
}
