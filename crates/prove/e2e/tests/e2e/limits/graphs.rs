//! Memory of graphs at the limit where the driver tells little of them.

use anyhow::{Result, ensure};
use sublet_e2e::one_machine::{Machine, Running, mib, number};

use super::EXACT;

/// A driver that does not tell what a graph's nodes were given, or what is in a graph's graph, is
/// asked for the memory of the device's graphs.
#[test]
fn graphs_stop_at_the_limit_where_the_driver_does_not_tell_of_their_nodes() -> Result<()> {
    let faults = "cuGraphMemAllocNodeGetParams:801,cuGraphChildGraphNodeGetGraph:801";
    for (path, size_mib) in [
        ("graph", 2),
        ("capture", 100),
        ("branches", 96),
        ("nested", 6),
    ] {
        let Some(machine) = Machine::new(EXACT)? else {
            return Ok(());
        };
        let workload = machine.built("sublet-workload").display().to_string();
        let script = format!(
            "SUBLET_FAKE_FAULT={faults} exec {workload} alloc --path {path} --until-oom \
             --size {size_mib}MiB --hold stdin"
        );
        let mut run = machine.run("--memory 1GiB --name job");
        let mut job = Running::start(run.args(["sh", "-c", &script]))?;
        let report = job.report()?;
        let used = machine.card(0)?.used;
        println!("{path}: {report}, the driver counts {used}");
        let refused = &report["refused"];
        ensure!(refused["name"] == "CUDA_ERROR_OUT_OF_MEMORY", "{report}");
        ensure!(used <= mib(1024), "{path}: {used}, {report}");
        ensure!(used > mib(1024 - size_mib), "{path}: {used}, {report}");
        let row = machine.tenant("job")?;
        ensure!(mib(number(&row["usedMiB"])?) == used, "{row}");
        ensure!(row["state"] == "running", "{row}");
        job.end()?;
    }
    Ok(())
}
