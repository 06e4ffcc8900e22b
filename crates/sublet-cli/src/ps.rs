//! `sublet ps`: the jobs of this machine, once.

use serde::Serialize;
use sublet_arbiter::admin::{Snapshot, TenantRow};

use crate::answer::{Answer, DONE, Format, document};
use crate::jobs;
use crate::machine::{Machine, MachineArgs};

/// Arguments of `sublet ps`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet ps                          jobs that run and wait, and GPU processes that are none
  sublet ps --fake-gpu 2x16GiB       of a fake machine
  sublet ps -o json | jq '.tenants[] | select(.state == \"over\") | .name'

EXIT CODES
  0  printed
  1  no arbiter runs, so there are no jobs
  2  wrong arguments")]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Answers `sublet ps`.
///
/// # Errors
/// No arbiter runs, or it cannot be talked to.
pub fn run(args: &Args) -> anyhow::Result<Answer> {
    let snapshot = Machine::of(&args.machine).snapshot()?;
    Ok(Answer {
        text: print(&snapshot, args.output)?,
        notes: Vec::new(),
        code: DONE,
    })
}

#[derive(Serialize)]
struct Jobs<'a> {
    tenants: &'a [TenantRow],
}

fn print(snapshot: &Snapshot, format: Format) -> anyhow::Result<String> {
    let tenants = &snapshot.tenants;
    match format {
        Format::Table => Ok(jobs::text(snapshot, false)),
        Format::Json => document(&Jobs { tenants }, false),
        Format::Yaml => document(&Jobs { tenants }, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::tests::example;

    #[test]
    fn jobs_are_printed_in_every_form() {
        let table = print(&example(), Format::Table).unwrap();
        assert!(table.starts_with("ID  NAME   STATE "), "{table}");
        let json = print(&example(), Format::Json).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["tenants"][0]["memoryLimitMiB"], 4096);
        assert_eq!(json["tenants"][2]["state"], "waiting");
        let yaml = print(&example(), Format::Yaml).unwrap();
        assert!(yaml.contains("memoryUsedMiB: 480"), "{yaml}");
    }
}
