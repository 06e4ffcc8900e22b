//! Figure: how exact a limit is, as each library inside the job reports it, and as memory that is
//! really given.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::arguments::Arguments;
use super::card::Card;
use super::findings::Findings;
use super::torch::Torch;
use crate::progress::progress;
use crate::report::{Report, Verdict};
use crate::stage::{PATIENCE, Shell, Stage, number};

const MIB: f64 = (1 << 20) as f64;

/// Ways to take all there is: blocks of 64 MiB, at each refusal half as large, down to 2 MiB.
const PATHS: [&str; 4] = ["plain", "async", "vmm", "array"];
const STEP: &str = "--size 64MiB --until-oom --down-to 2MiB";

pub(super) fn measure(
    stage: &Stage,
    card: &Card,
    arguments: &Arguments,
    findings: &mut Findings,
) -> Result<()> {
    progress("limits, as programs see them");
    // A quarter of the card, in whole MiB.
    let limit = (card.bytes / 4) >> 20;
    let memory = format!("{limit}MiB");
    let flags: &[&str] = &["--name", "limit", "--memory", &memory];
    let mut job = stage.shell(Some(flags))?;
    let mut seen = as_seen(&mut job)?;
    let mut taken = Vec::new();
    for path in PATHS {
        let line =
            format!("\"$BENCH_WORKLOAD\" alloc --reach \"$BENCH_REACH\" --path {path} {STEP}");
        let said = job.run(&line, PATIENCE + Duration::from_secs(60))?;
        let report = said.into_iter().next_back().context("no report")?;
        taken.push((path.to_owned(), number(&report, "/bytes")? / MIB));
    }
    match Torch::find(stage, card, &arguments.python)? {
        Ok(torch) => {
            let report = torch.run(&mut job, "--program memory", 0.0)?;
            let held = |name: &str| number(&report, &format!("/memory/held/{name}"));
            seen.push(Seen::new("PyTorch: `mem_get_info`", held("total")? / MIB));
            let properties = held("totalOfProperties")? / MIB;
            seen.push(Seen::new("PyTorch: device properties", properties));
            taken.push((
                "PyTorch".to_owned(),
                number(&report, "/memory/bytes")? / MIB,
            ));
        }
        Err(why) => findings
            .report
            .say(&format!("Not asked: PyTorch, because {why}.")),
    }
    let context = stage
        .snapshot()?
        .gpus
        .first()
        .and_then(|gpu| gpu.context_mib)
        .unwrap_or(0);
    job.end()?;
    print(limit as f64, context, &seen, &taken, &mut findings.report);
    findings.keep(
        "limit",
        json!({
            "limitMiB": limit,
            "contextChargedMiB": context,
            "totalMiB": seen.iter().map(|one| (one.who.clone(), json!(one.mib))).collect::<serde_json::Map<_, _>>(),
            "takenMiB": taken.iter().map(|(who, mib)| (who.clone(), json!(mib))).collect::<serde_json::Map<_, _>>(),
        }),
    );
    Ok(())
}

/// Memory of the card as one program sees it.
struct Seen {
    who: String,
    mib: f64,
}

impl Seen {
    fn new(who: &str, mib: f64) -> Seen {
        Seen {
            who: who.to_owned(),
            mib,
        }
    }
}

fn as_seen(job: &mut Shell) -> Result<Vec<Seen>> {
    let info = job
        .ask("\"$BENCH_WORKLOAD\" info --reach \"$BENCH_REACH\" --memory --nvml=\"$BENCH_NVML\"")?;
    let total = |path: &str| Ok::<f64, anyhow::Error>(number(&info, path)? / MIB);
    let mut seen = vec![
        Seen::new("`cuDeviceTotalMem`", total("/devices/0/totalMem")?),
        Seen::new(
            "`cuMemGetInfo` (`cudaMemGetInfo`)",
            total("/devices/0/memory/total")?,
        ),
        Seen::new("NVML", total("/nvml/devices/0/memory/total")?),
    ];
    // A number alone is JSON too.
    let line = "command -v nvidia-smi >/dev/null && \
                nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits -i 0 || true";
    let said = job.run(line, PATIENCE)?;
    if let Some(mib) = said.first().and_then(Value::as_f64) {
        seen.push(Seen::new("`nvidia-smi`", mib));
    }
    Ok(seen)
}

fn print(limit: f64, context: u64, seen: &[Seen], taken: &[(String, f64)], report: &mut Report) {
    report.say("## A limit");
    report.say(&format!(
        "A job with {limit} MiB. What the card's size is for whoever asks inside it:"
    ));
    let head = ["asked of", "MiB", "off by"];
    let row = |label: &str, mib: f64, off: f64| {
        vec![label.to_owned(), format!("{mib}"), format!("{off}")]
    };
    let mut table = vec![head.map(str::to_owned).to_vec()];
    table.extend(
        seen.iter()
            .map(|one| row(&one.who, one.mib, one.mib - limit)),
    );
    report.table(&table);
    report.say(&format!(
        "And what one process gets when it takes all there is, in blocks down to 2 MiB; {context} \
         MiB of the limit are kept for its context."
    ));
    let head = ["taken by", "MiB", "left of the limit, after the context"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    let left = |mib: f64| limit - context as f64 - mib;
    table.extend(taken.iter().map(|(who, mib)| row(who, *mib, left(*mib))));
    report.table(&table);
    let off = seen.iter().map(|one| (one.mib - limit).abs());
    let over = taken.iter().map(|(_, mib)| mib - limit);
    report.verdicts(&[
        Verdict::at_most(
            "a card's size inside the job, off by",
            off.fold(0.0, f64::max),
            0.0,
            "MiB",
        ),
        Verdict::at_most(
            "memory taken over the limit",
            over.fold(0.0, f64::max),
            0.0,
            "MiB",
        ),
    ]);
}
