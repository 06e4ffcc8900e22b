//! Figure: PyTorch alone on the card, with and without us: ResNet-50 training on random data in
//! eager mode and as a CUDA graph, and matrix products of cuBLAS.
//!
//! Each run is a new Python process; runs with and without us take turns, because a card's
//! clocks change with its temperature.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::arguments::Arguments;
use super::card::Card;
use super::findings::Findings;
use super::loops::SOLO_TARGET;
use crate::progress::progress;
use crate::report::{Report, Verdict, short};
use crate::stage::{PATIENCE, Shell, Stage, number};
use crate::stats::median;

const SCRIPT: &str = include_str!("../../../../prove/workload/workloads/torch_mix.py");

/// The script's programs, and what they are called here.
const PROGRAMS: [(&str, &str); 3] = [
    ("eager", "ResNet-50 training, eager"),
    ("graphs", "ResNet-50 training, CUDA graph"),
    ("matmul", "matrix products, cuBLAS"),
];

/// PyTorch's start, its choice of algorithms, the warm-up: seconds at most, for all programs.
const START_MAX: u64 = 300;

/// A line for the shell that runs the script, if this machine can.
pub(super) struct Torch {
    start: String,
}

impl Torch {
    /// Finds PyTorch, or says why it cannot be used.
    pub(super) fn find(stage: &Stage, card: &Card, python: &Path) -> Result<Result<Torch, String>> {
        if card.is_fake {
            return Ok(Err("PyTorch's kernels cannot run on a fake card".to_owned()));
        }
        Torch::probe(stage, python, "torch.cuda.init()", "")
    }

    /// The same, but on a fake card it works on the processor, with the smallest of batches: it
    /// shows that what runs it works.
    pub(super) fn find_any(
        stage: &Stage,
        card: &Card,
        python: &Path,
    ) -> Result<Result<Torch, String>> {
        if !card.is_fake {
            return Torch::find(stage, card, python);
        }
        let flags = " --device cpu --batch 2 --image 64 --tokens 16 --together 1 --warm-up 1";
        Torch::probe(stage, python, "torch.set_num_threads(1)", flags)
    }

    fn probe(
        stage: &Stage,
        python: &Path,
        line: &str,
        flags: &str,
    ) -> Result<Result<Torch, String>> {
        let script = stage.path().join("torch_mix.py");
        fs::write(&script, SCRIPT)?;
        let probe = stage
            .bare(python)
            .args(["-c", &format!("import torch; {line}")])
            .output();
        let output = match probe {
            Ok(output) => output,
            Err(why) => return Ok(Err(format!("{} does not run: {why}", python.display()))),
        };
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            let last = why.lines().next_back().unwrap_or("no reason given");
            let python = python.display();
            return Ok(Err(format!(
                "{python} has no PyTorch that works here: {last}"
            )));
        }
        let start = format!("'{}' '{}'{flags}", python.display(), script.display());
        Ok(Ok(Torch { start }))
    }

    /// Begins one of its programs; what it prints is to be heard.
    pub(super) fn tell(&self, shell: &mut Shell, arguments: &str) -> Result<()> {
        shell.tell(&format!("{} {arguments}", self.start))
    }

    /// Runs one or all of its programs.
    pub(super) fn run(&self, shell: &mut Shell, arguments: &str, seconds: f64) -> Result<Value> {
        let patience = PATIENCE + Duration::from_secs(START_MAX) + Duration::from_secs_f64(seconds);
        let said = shell.run(&format!("{} {arguments}", self.start), patience)?;
        said.into_iter().next_back().context("no report")
    }
}

pub(super) fn measure(
    stage: &Stage,
    card: &Card,
    arguments: &Arguments,
    findings: &mut Findings,
) -> Result<()> {
    findings.report.say("## PyTorch");
    let torch = match Torch::find(stage, card, &arguments.python)? {
        Ok(torch) => torch,
        Err(why) => {
            findings.report.table(&not_measured(&why));
            findings.keep("torch", json!({"notMeasured": why}));
            return Ok(());
        }
    };
    let (rounds, seconds) = (arguments.rounds(), arguments.torch_seconds());
    progress(&format!("PyTorch, {rounds} time(s) with and without us"));
    let flags: &[&str] = &["--name", "torch", "--memory", "50%"];
    let mut with = stage.shell(Some(flags))?;
    let mut without = stage.shell(None)?;
    let all = format!("--program all --steps 1000000 --seconds {seconds}");
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let time = seconds * PROGRAMS.len() as f64;
        // Whoever goes second finds a warmer card.
        if round % 2 == 0 {
            ours.push(torch.run(&mut with, &all, time)?);
            bare.push(torch.run(&mut without, &all, time)?);
        } else {
            bare.push(torch.run(&mut without, &all, time)?);
            ours.push(torch.run(&mut with, &all, time)?);
        }
        progress(&format!("round {} of {rounds}", round + 1));
    }
    with.end()?;
    without.end()?;
    print(&ours, &bare, arguments, &mut findings.report)?;
    findings.keep("torch", json!({"withUs": ours, "withoutUs": bare}));
    Ok(())
}

fn not_measured(why: &str) -> Vec<Vec<String>> {
    let mut table = vec![vec!["".to_owned(), "not measured, because".to_owned()]];
    table.extend(PROGRAMS.map(|(_, label)| vec![label.to_owned(), why.to_owned()]));
    table
}

fn print(ours: &[Value], bare: &[Value], arguments: &Arguments, report: &mut Report) -> Result<()> {
    report.say(&format!(
        "PyTorch {}, {} s each, {} round(s) in turns; half of the card's memory is the limit. \
         Steps a second (for ResNet-50 a step is a batch of 64), and how many times as long a \
         step takes with us: the median over rounds, in brackets the least and the most.",
        ours.first()
            .and_then(|one| one["torch"].as_str())
            .unwrap_or("?"),
        arguments.torch_seconds(),
        ours.len()
    ));
    let head = ["", "without us", "with us", "times as long"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    let mut verdicts = Vec::new();
    for (program, label) in PROGRAMS {
        let rate = |list: &[Value]| -> Result<Vec<f64>> {
            let path = format!("/{program}/stepsPerSecond");
            list.iter().map(|one| number(one, &path)).collect()
        };
        let (with, without) = (rate(ours)?, rate(bare)?);
        let longer: Vec<f64> = without.iter().zip(&with).map(|(a, b)| a / b).collect();
        let least = longer.iter().copied().fold(f64::INFINITY, f64::min);
        let most = longer.iter().copied().fold(0.0, f64::max);
        table.push(vec![
            label.to_owned(),
            short(median(&without)),
            short(median(&with)),
            format!("{:.4} × ({least:.4}–{most:.4})", median(&longer)),
        ]);
        let what = format!("{label}, solo");
        verdicts.push(Verdict::at_most_times(&what, median(&longer), SOLO_TARGET));
    }
    report.table(&table);
    report.verdicts(&verdicts);
    Ok(())
}
