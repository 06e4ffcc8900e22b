//! Figure: what a context and a module take beyond what programs ask for, and how well that is
//! known beforehand.
//!
//! A context is reserved at the size that the arbiter measured with a process of its own; what a
//! module costs no call says, and a job can be over its limit by it until it is read. Measured as
//! the change of the whole card's use, with nothing else on it. And how the driver packs memory,
//! as the arbiter found out.

use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use sublet_arbiter::gauge::Sizes;

use super::card::{settled_bytes, used_bytes};
use super::findings::Findings;
use crate::progress::progress;
use crate::report::short;
use crate::stage::{PATIENCE, Shell, Stage, until};

const MIB: f64 = (1 << 20) as f64;

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// PTX is compiled at the first load, which takes some tenths of a second.
const LOADED: Duration = Duration::from_secs(1);

/// Makes a context and one small block, and waits.
const CONTEXT: &str = "\"$BENCH_WORKLOAD\" alloc --reach \"$BENCH_REACH\" --size 2MiB --hold 60 &";

/// The same with a module of three kernels, which run now and then.
const MODULE: &str = "\"$BENCH_WORKLOAD\" serve --reach \"$BENCH_REACH\" --keep 2MiB --seconds 60 >/dev/null & echo \"{\\\"pid\\\": $!}\"";

pub(super) fn measure(stage: &Stage, findings: &mut Findings) -> Result<()> {
    progress("what contexts and modules take");
    let mut bare = stage.shell(None)?;
    let mut rows = Vec::new();
    for (label, line) in [
        ("a context and 2 MiB", CONTEXT),
        ("the same, with a module", MODULE),
    ] {
        let without = cost(&mut bare, None, line)?;
        let mut job = stage.shell(Some(&["--name", "overshoot", "--memory", "50%"]))?;
        let with = cost(&mut bare, Some(&mut job), line)?;
        let tenant = stage.tenant("overshoot")?;
        let context = stage
            .snapshot()?
            .gpus
            .first()
            .and_then(|gpu| gpu.context_mib)
            .unwrap_or(0);
        job.end()?;
        rows.push((label, without, with, tenant.memory_used_mib, context));
    }
    bare.end()?;
    print(&rows, findings);
    let packing = stage.snapshot()?.gpus.first().and_then(|gpu| gpu.packing);
    print_packing(packing.as_ref(), findings);
    Ok(())
}

fn print_packing(packing: Option<&Sizes>, findings: &mut Findings) {
    findings.report.say("## How the driver packs memory");
    let Some(packing) = packing else {
        findings
            .report
            .say("The driver did not let itself be measured.");
        return;
    };
    let kept = match packing.kept {
        u32::MAX => "all".to_owned(),
        kept => kept.to_string(),
    };
    findings.report.table(&[
        ["what", "bytes"].map(str::to_owned).to_vec(),
        vec!["a block".to_owned(), packing.block.to_string()],
        vec!["shares a piece up to".to_owned(), packing.small.to_string()],
        vec!["a piece".to_owned(), packing.piece.to_string()],
        vec!["empty pieces that are kept".to_owned(), kept],
        vec!["a pool takes at once".to_owned(), packing.pool.to_string()],
    ]);
    findings.keep("packing", json!(packing));
}

type Row<'a> = (&'a str, f64, f64, u64, u64);

fn print(rows: &[Row<'_>], findings: &mut Findings) {
    findings.report.say("## Contexts and modules");
    findings.report.say(
        "MiB that the card's use grows by, as its own driver counts it, with one process on it; \
         and what the arbiter reserves for a context.",
    );
    let head = ["", "without us", "with us", "reserved for a context"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    table.extend(rows.iter().map(|(label, without, with, _, context)| {
        vec![
            (*label).to_owned(),
            short(*without),
            short(*with),
            context.to_string(),
        ]
    }));
    findings.report.table(&table);
    let list = rows.iter().map(|(label, without, with, used, context)| {
        json!({"what": label, "withoutMiB": without, "withMiB": with,
               "chargedMiB": used, "contextMiB": context})
    });
    findings.keep("overshoot", list.collect());
}

/// Growth of the card's use while a program runs, in MiB.
fn cost(bare: &mut Shell, job: Option<&mut Shell>, line: &str) -> Result<f64> {
    let before = settled_bytes(bare)?;
    let pid = match job {
        Some(job) => start(job, line)?,
        None => start(bare, line)?,
    };
    until("the program to be on the card", LOOK_EVERY, || {
        ensure!(used_bytes(bare)? > before, "nothing is on it");
        Ok(())
    })?;
    // A module comes after its context, and a driver may take a while to load it.
    std::thread::sleep(LOADED);
    let during = settled_bytes(bare)?;
    kill_process(pid, Signal::KILL)?;
    Ok((during - before) / MIB)
}

fn start(shell: &mut Shell, line: &str) -> Result<Pid> {
    shell.tell(line)?;
    let report = shell.hear_json(PATIENCE)?;
    let pid = report["pid"]
        .as_i64()
        .and_then(|pid| i32::try_from(pid).ok());
    let pid = pid.and_then(Pid::from_raw);
    ensure!(
        pid.is_some() && report["ok"] != false,
        "it did not start: {report}"
    );
    pid.ok_or_else(|| anyhow::anyhow!("no process"))
}
