//! Not a byte more of the host's memory than may be pinned, by every way to have the driver pin
//! it.
//!
//! The driver has no count of it that anybody could ask, so the referee is the program: it says
//! how much it got before it was refused.

use anyhow::{Result, ensure};
use serde_json::json;
use sublet_e2e::one_machine::{Machine, Running, mib, number};

use super::{EXACT, limit};

/// Every way to have the driver pin memory of the host, and a limit in MiB. The driver gives
/// memory behind handles in pieces of 2 MiB, and grows pools by 32; by the other ways the last
/// of it comes in ever smaller blocks.
const HOST_PATHS: [(&str, u64); 6] = [
    ("host --down-to 512", 255),
    ("host-alloc --down-to 512", 255),
    ("host-register --down-to 512", 255),
    ("host-vmm", 256),
    ("host-numa", 256),
    ("host-pool", 256),
];

/// One path to the end of the budget. It is told another end, beyond that: one that is not
/// stopped shall not take the machine's memory.
fn check_host_path(machine: &Machine, path: &str, limit_mib: u64) -> Result<()> {
    let limit = mib(limit_mib);
    let words = format!("alloc --path {path} --size 2MiB --count 300 --until-oom --hold stdin");
    let flags = format!("--memory 64MiB --pinned-memory {limit_mib}MiB --name job");
    let mut job = Running::start(&mut machine.job(&flags, &words))?;
    let report = job.report()?;
    let row = machine.tenant("job")?;
    let bytes = number(&report["bytes"])?;
    println!("{path}: {bytes} bytes of {limit}");
    ensure!(
        report["refused"]["name"] == "CUDA_ERROR_OUT_OF_MEMORY",
        "{report}"
    );
    ensure!(bytes == limit, "not to the byte: {report}");
    ensure!(row["pinnedUsedMiB"] == limit_mib, "{row}");
    ensure!(row["pinnedLimitMiB"] == limit_mib, "{row}");
    ensure!(row["pinnedLastRefusal"].is_object(), "{row}");
    // None of it is the card's.
    ensure!(row["usedMiB"] == 0, "{row}");
    ensure!(machine.card(0)?.used == 0, "{row}");
    ensure!(report["memory"]["free"] == mib(64), "{report}");
    let ended = job.end()?;
    ensure!(ended.code == Some(0), "{ended:?}");
    Ok(())
}

#[test]
fn every_path_to_pinned_memory_stops_at_its_limit() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let mut wrong = Vec::new();
    for (path, limit_mib) in HOST_PATHS {
        if let Err(error) = check_host_path(&machine, path, limit_mib) {
            wrong.push(format!("{path}: {error:#}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// One budget for all processes of a job, changed while they run, and back when one is killed.
#[test]
fn a_jobs_processes_share_one_limit_of_pinned_memory() -> Result<()> {
    let Some(machine) = Machine::new(EXACT)? else {
        return Ok(());
    };
    let workload = machine.built("sublet-workload").display().to_string();
    let pin = format!("{workload} alloc --path host --size 1MiB --until-oom --count 1000");
    let script = format!(
        "{workload} alloc --path host --size 64MiB --hold 600 & read line; {pin}; read line; \
         {pin}; read line; kill -9 $!; wait $!; {pin}"
    );
    let mut run = machine.run("--memory 64MiB --name job");
    let mut job = Running::start(run.args(["sh", "-c", &script]))?;
    job.report()?;
    let row = machine.tenant("job")?;
    assert_eq!(
        (&row["pinnedLimitMiB"], &row["pinnedUsedMiB"]),
        (&json!(null), &json!(64))
    );
    let limited = limit(&machine, "job --pinned-memory 96MiB -o json")?.document()?;
    assert_eq!(limited["pinnedLimitMiB"], 96, "{limited}");
    assert_eq!(limited["gpus"][0]["limitMiB"], 64, "{limited}");
    job.say("")?;
    assert_eq!(job.report()?["bytes"], mib(32));
    // Below what is pinned: nothing is taken away, and nothing more is given.
    let lowered = limit(&machine, "job --pinned-memory 32MiB")?;
    assert_eq!(lowered.code, Some(0), "{lowered:?}");
    assert!(lowered.errors.contains("64 MiB pinned"), "{lowered:?}");
    let row = machine.tenant("job")?;
    assert_eq!(row["state"], "over", "{row}");
    assert_eq!(row["reason"], "32 MiB more pinned than its limit", "{row}");
    job.say("")?;
    let refused = job.report()?;
    assert_eq!(refused["bytes"], 0, "{refused}");
    job.say("")?;
    assert_eq!(
        job.report()?["bytes"],
        mib(32),
        "what the killed one had is back"
    );
    job.end()?;
    Ok(())
}
