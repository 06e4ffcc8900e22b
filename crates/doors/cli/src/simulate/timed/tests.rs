//! An end that must not be.

use std::time::Duration;

use clap::Parser;
use sublet_plan::Policy;
use sublet_sim::{BadLines, CpuOnlyPods, read_nodes, read_pods};

use super::*;
use crate::answer::NOT_DONE;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

#[test]
fn a_ledger_that_is_not_empty_at_the_end_is_an_error() {
    let nodes = "sn,cpu_milli,memory_mib,gpu\na,1,1,1\n";
    let (nodes, _) = read_nodes(nodes.as_bytes(), BadLines::Stop).unwrap();
    let pods = "num_gpu,creation_time,duration\n1,0,9\n";
    let (pods, _) = read_pods(pods.as_bytes(), &nodes, BadLines::Stop).unwrap();
    let planned = Planned {
        policy: Policy::default(),
        seed: None,
    };
    let run = Timed {
        nodes: &nodes,
        pods: &pods,
        policy: &planned.policy,
        cpu_only: CpuOnlyPods::Policy,
        load: None,
    };
    let outcome = timed(run, |_| {}).unwrap();
    let args = Line::parse_from(["simulate", "--nodes", "n", "--pods", "p"]).args;
    let input = Input {
        nodes,
        pods,
        sequence: None,
        quotas: None,
        notes: vec!["note".to_owned()],
    };
    let mut report = TimedRuns {
        args: &args,
        input: &input,
        runs: vec![Run {
            planned: &planned,
            outcome,
            cpu: Duration::ZERO,
        }],
    };
    let good = print::answer(&args, &input, &report).unwrap();
    assert_eq!((good.code, good.notes.len()), (0, 1));
    report.runs[0].outcome.ends_empty = false;
    let bad = print::answer(&args, &input, &report).unwrap();
    assert_eq!((bad.code, bad.text), (NOT_DONE, good.text));
    assert!(bad.notes[1].starts_with("error: tiling: when the last pod had gone"));
}
