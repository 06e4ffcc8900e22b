//! Figures: what PyTorch programs that share a card get, with us and with the driver's own
//! time-slicing, and then the figures of [`shares`](crate::shares) on this card. A rate counts as a
//! part of the same program's rate with nobody beside it and without us.
//!
//! All PyTorch programs of a row measure over the same seconds: each says when it is warm, and works on
//! until a moment that is chosen when all are.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::arguments::Arguments;
use super::card::Card;
use super::findings::Findings;
use super::torch::Torch;
use crate::progress::progress;
use crate::report::{Report, Verdict, short};
use crate::shares;
use crate::stage::{Shell, Stage, Stages, number, soon};

/// Parts of what a program does alone that all together do at least.
const TOGETHER_TARGET: f64 = 0.97;
/// Points between a share and the requested one.
const SHARE_TARGET: f64 = 3.0;
/// Least work of a guaranteed program, as a part of its work alone.
const GUARANTEED_TARGET: f64 = 0.97;
/// Least work of an opportunistic program beside it.
const HARVEST_TARGET: f64 = 0.15;
/// Most time of the slowest of a hundred requests, as a multiple of its time alone.
const P99_TARGET: f64 = 1.30;

/// Networks, and their names here.
const NETWORKS: [(&str, &str); 3] = [
    ("resnet50", "ResNet-50"),
    ("bert", "BERT-base"),
    ("yolo", "YOLO-like"),
];

/// PyTorch's start and its choice of algorithms take so long at most.
const START_MAX: Duration = Duration::from_secs(300);

/// From when all are warm until they measure: each must have seen the file by then.
const HEAD_START: Duration = Duration::from_secs(2);

/// One program of a row.
#[derive(Clone)]
struct Program {
    /// Arguments of `torch_mix.py`.
    arguments: String,
    /// Flags of `sublet run`; without, it runs straight on the driver.
    flags: Option<Vec<&'static str>>,
}

impl Program {
    fn train(network: &str) -> Program {
        Program {
            arguments: format!("--program eager --model {network}"),
            flags: None,
        }
    }

    fn serve() -> Program {
        Program {
            arguments: "--program serve --model resnet50 --batch 1".to_owned(),
            flags: None,
        }
    }

    /// As a job with these flags.
    fn job(&self, flags: &[&'static str]) -> Program {
        let all = ["--memory", "40%"].iter().chain(flags).copied();
        Program {
            flags: Some(all.collect()),
            ..self.clone()
        }
    }
}

/// Runs the programs, and keeps their answers.
struct Runs<'a> {
    stage: &'a Stage,
    torch: &'a Torch,
    seconds: f64,
    all: Vec<Value>,
}

impl Runs<'_> {
    /// Runs programs beside each other; what each says of the seconds that they had in common.
    fn together(&mut self, programs: &[Program]) -> Result<Vec<Value>> {
        let begin = self.stage.path().join(format!("begin-{}", self.all.len()));
        let mut shells = Vec::new();
        for program in programs {
            let mut shell = self.stage.shell(program.flags.as_deref())?;
            let seconds = self.seconds;
            let common = format!(
                "--steps 1000000 --seconds {seconds} --begin '{}'",
                begin.display()
            );
            self.torch
                .tell(&mut shell, &format!("{} {common}", program.arguments))?;
            shells.push(shell);
        }
        for shell in &mut shells {
            let said = shell.hear_json(START_MAX)?;
            ensure!(said["ready"] == true, "a program did not begin: {said}");
        }
        // Whole or not at all: they look for it all the time.
        let unfinished = begin.with_extension("unfinished");
        fs::write(&unfinished, soon(HEAD_START).as_secs_f64().to_string())?;
        fs::rename(&unfinished, &begin)?;
        let patience = START_MAX + Duration::from_secs_f64(self.seconds);
        let mut reports = Vec::new();
        for (shell, program) in shells.iter_mut().zip(programs) {
            let report = shell.hear_json(patience)?;
            ensure!(report["ok"] == true, "a program failed: {report}");
            let flags = &program.flags;
            self.all
                .push(json!({"flags": flags, "arguments": program.arguments, "said": report}));
            reports.push(report);
        }
        shells.into_iter().try_for_each(Shell::end)?;
        Ok(reports)
    }

    /// The rates of programs beside each other, as parts of what each does alone.
    fn parts(&mut self, programs: &[Program], alone: &[f64]) -> Result<Vec<f64>> {
        let reports = self.together(programs)?;
        let rates = reports.iter().map(rate).zip(alone);
        rates.map(|(rate, alone)| Ok(rate? / alone)).collect()
    }
}

fn rate(report: &Value) -> Result<f64> {
    let rate = number(report, "/eager/stepsPerSecond")?;
    ensure!(
        rate > 0.0,
        "a program got no step done, give it more --torch-seconds: {report}"
    );
    Ok(rate)
}

pub(super) fn measure(
    stages: &Stages,
    card: &Card,
    arguments: &Arguments,
    findings: &mut Findings,
) -> Result<()> {
    networks(&stages.open()?, card, arguments, findings)?;
    findings.report.say(
        "What follows are the figures of `cargo xtask bench shares`. Programs on a real card look at \
         its clock to see that a kernel has run for long enough, so time in which the driver \
         interrupts a kernel counts as its own: by the driver's slices the parts can add up to more \
         than the card.",
    );
    let before = findings.report.tables().len();
    let only = &arguments.shares;
    shares::measure(only, stages, arguments.quick, &mut findings.report)?;
    findings.keep("shares", json!(findings.report.tables()[before..]));
    findings.report.misses();
    Ok(())
}

/// Networks of PyTorch.
fn networks(
    stage: &Stage,
    card: &Card,
    arguments: &Arguments,
    findings: &mut Findings,
) -> Result<()> {
    let torch = match Torch::find_any(stage, card, &arguments.python)? {
        Ok(torch) => torch,
        Err(why) => {
            findings
                .report
                .say(&format!("Networks were not measured: {why}."));
            findings.keep("notMeasured", json!(why));
            return Ok(());
        }
    };
    let seconds = arguments.torch_seconds();
    let mut runs = Runs {
        stage,
        torch: &torch,
        seconds,
        all: Vec::new(),
    };
    findings.report.say(&format!(
        "Networks with random weights train on random data, in eager mode, {seconds} s a row. A \
         rate is given as a part of what the same program does with nobody beside it and without \
         us."
    ));
    let networks = match arguments.quick {
        true => &NETWORKS[..1],
        false => &NETWORKS[..],
    };
    let alone = alone(&mut runs, networks, &mut findings.report)?;
    pairs(&mut runs, networks, &alone, &mut findings.report)?;
    twins(&mut runs, alone[0], &mut findings.report)?;
    let last = alone.len() - 1;
    let (neighbour, rate) = (networks[last], alone[last]);
    classes(&mut runs, alone[0], neighbour, rate, &mut findings.report)?;
    requests(&mut runs, neighbour, &mut findings.report)?;
    findings.keep("runs", json!(runs.all));
    Ok(())
}

/// Work of each network alone without us, in steps a second; and the part of that with us.
fn alone(runs: &mut Runs<'_>, networks: &[(&str, &str)], report: &mut Report) -> Result<Vec<f64>> {
    report.say("## Alone");
    let mut table = vec![row(&["", "steps/s without us", "with us"])];
    let mut all = Vec::new();
    for (network, label) in networks {
        progress(&format!("{label} alone"));
        let program = Program::train(network);
        let without = rate(&runs.together(std::slice::from_ref(&program))?[0])?;
        let with = runs.parts(&[program.job(&[])], &[without])?[0];
        table.push(row(&[label, &short(without), &part(with)]));
        all.push(without);
    }
    report.table(&table);
    Ok(all)
}

/// Each network beside each, for equal shares.
fn pairs(
    runs: &mut Runs<'_>,
    networks: &[(&str, &str)],
    alone: &[f64],
    report: &mut Report,
) -> Result<()> {
    report.say("## Pairs");
    report.say("Two programs with `--compute 50%` each. *sum*: what both did together.");
    let head = ["", "with us", "sum", "the driver's slices", "sum"];
    let mut table = vec![row(&head)];
    let mut least: Option<(f64, String)> = None;
    for (first, (network, label)) in networks.iter().enumerate() {
        for (second, (other, other_label)) in networks.iter().enumerate().skip(first) {
            let what = format!("{label} and {other_label}");
            progress(&what);
            let programs = [Program::train(network), Program::train(other)];
            let alone = [alone[first], alone[second]];
            let half = ["--compute", "50%"];
            let jobs = programs.each_ref().map(|program| program.job(&half));
            let (ours, slices) = (runs.parts(&jobs, &alone)?, runs.parts(&programs, &alone)?);
            let sum: f64 = ours.iter().sum();
            table.push(row(&[
                &what,
                &parts(&ours),
                &part(sum),
                &parts(&slices),
                &part(slices.iter().sum()),
            ]));
            if least.as_ref().is_none_or(|(least, _)| sum < *least) {
                least = Some((sum, what));
            }
        }
    }
    report.table(&table);
    let (sum, what) = least.context("no pair")?;
    let what = format!("least sum ({what})");
    report.verdicts(&[Verdict::at_least_times(&what, sum, TOGETHER_TARGET)]);
    Ok(())
}

/// Twins that ask for different shares.
fn twins(runs: &mut Runs<'_>, alone: f64, report: &mut Report) -> Result<()> {
    report.say("## Twins");
    report.say("Two ResNet-50 that ask for different shares.");
    let mut table = vec![row(&["asked", "part of alone", "error, points"])];
    let mut worst: f64 = 0.0;
    for asked in [
        [("10%", 0.10), ("90%", 0.90)],
        [("25%", 0.25), ("75%", 0.75)],
    ] {
        progress(&format!("shares of {} and {}", asked[0].0, asked[1].0));
        let jobs = asked.map(|(flag, _)| Program::train("resnet50").job(&["--compute", flag]));
        let got = runs.parts(&jobs, &[alone; 2])?;
        let errors = got
            .iter()
            .zip(asked)
            .map(|(got, (_, asked))| (got - asked).abs() * 100.0);
        let error = errors.fold(0.0, f64::max);
        worst = worst.max(error);
        let asked = format!("{} : {}", asked[0].0, asked[1].0);
        table.push(row(&[&asked, &parts(&got), &format!("{error:.1}")]));
    }
    report.table(&table);
    let verdict = Verdict::at_most_hundredths("largest error", worst, SHARE_TARGET, "points");
    report.verdicts(&[verdict]);
    Ok(())
}

/// A guaranteed program beside an opportunistic one.
fn classes(
    runs: &mut Runs<'_>,
    alone: f64,
    (neighbour, label): (&str, &str),
    neighbour_alone: f64,
    report: &mut Report,
) -> Result<()> {
    report.say("## Guaranteed beside opportunistic");
    progress("guaranteed beside opportunistic");
    let jobs = [
        Program::train("resnet50").job(&["--compute", "100%"]),
        Program::train(neighbour).job(&["--class", "opportunistic"]),
    ];
    let got = runs.parts(&jobs, &[alone, neighbour_alone])?;
    report.say(&format!(
        "ResNet-50 with `--compute 100%` beside an opportunistic {label}: {}.",
        parts(&got)
    ));
    report.verdicts(&[
        Verdict::at_least_times("guaranteed, of alone", got[0], GUARANTEED_TARGET),
        Verdict::at_least_times("opportunistic, of alone", got[1], HARVEST_TARGET),
    ]);
    Ok(())
}

/// A server beside a program that trains.
fn requests(
    runs: &mut Runs<'_>,
    (neighbour, label): (&str, &str),
    report: &mut Report,
) -> Result<()> {
    report.say("## Requests beside training");
    report.say(&format!(
        "A ResNet-50 answers a request each 20 ms, beside a {label} that trains."
    ));
    progress("requests beside training");
    let (server, trainer) = (Program::serve(), Program::train(neighbour));
    let opportunistic = trainer.job(&["--class", "opportunistic"]);
    let ways = [
        ("alone, without us", vec![server.clone()]),
        ("the driver's slices", vec![server.clone(), trainer]),
        (
            "with us, training is opportunistic",
            vec![server.job(&[]), opportunistic],
        ),
    ];
    let mut table = vec![row(&["", "p50, ms", "p99, ms", "p99, times alone"])];
    let mut first: Option<f64> = None;
    let mut last = 0.0;
    for (label, programs) in ways {
        let said = runs.together(&programs)?.swap_remove(0);
        let of = |key: &str| number(&said, &format!("/serve/{key}"));
        let (p50, p99) = (of("p50Ms")?, of("p99Ms")?);
        last = p99 / *first.get_or_insert(p99);
        let times = format!("{last:.2}");
        table.push(row(&[label, &short(p50), &short(p99), &times]));
    }
    report.table(&table);
    report.verdicts(&[Verdict::at_most_times("p99 with us", last, P99_TARGET)]);
    Ok(())
}

fn row(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|cell| (*cell).to_owned()).collect()
}

fn part(part: f64) -> String {
    format!("{part:.3}")
}

fn parts(all: &[f64]) -> String {
    let each: Vec<String> = all.iter().map(|one| part(*one)).collect();
    each.join(" : ")
}
