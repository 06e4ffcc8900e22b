//! Figure: the pace of a training loop that needs two thirds of a card alone, beside a program that
//! always has work.

use anyhow::Result;

use super::tenants::{Ask, Job, Way, pace};
use crate::progress::progress;
use crate::report::{Report, Verdict};
use crate::stage::Stages;

/// Ten launches of a millisecond, their end, and 5 ms of work on the CPU.
const LOOP: &str = "steady --microseconds 1000 --kernels 10 --pause 0.005 --spin";

/// Part of a card that the loop needs to keep its pace.
const NEED: f64 = 2.0 / 3.0;

/// Promises of the loop, in percent; the other one has the rest.
const PROMISES: [u32; 3] = [25, 50, 75];

/// Part of what a promise allows (issue 41).
const TARGET: f64 = 0.95;

pub(super) fn measure(stages: &Stages, is_quick: bool, report: &mut Report) -> Result<()> {
    let seconds = if is_quick { 3 } else { 10 };
    report.say("## Training beside a busy program");
    report.say(
        "Ten launches of 1 ms, their end, and 5 ms of work on the CPU, again and again. `allowed` \
         is what the promise allows of the pace alone: the promise by the need, at most 1. The \
         cells are the pace beside a program that always has work, as a part of what is allowed. \
         Alone the loop runs without us: at the same time on a card of its own where cards are fake, \
         else before.",
    );
    let mut head = vec!["promised".to_owned(), "allowed".to_owned()];
    head.extend(Way::ALL.map(|way| way.name().to_owned()));
    let mut rows = vec![head];
    let mut verdicts = Vec::new();
    for promise in PROMISES {
        let allowed = (f64::from(promise) / 100.0 / NEED).min(1.0);
        let mut cells = vec![format!("{promise} %"), format!("{allowed:.3}")];
        for way in Way::ALL {
            progress(&format!("training, {promise} %: {}", way.name()));
            let program = Job {
                seconds,
                ..Job::new("training", Ask::Share(promise), LOOP)
            };
            let other = Job::new("busy", Ask::Share(100 - promise), "steady");
            let part = pace(stages, way, other, &program)? / allowed;
            cells.push(format!("{part:.3}"));
            if way == Way::Ours {
                let what = format!("pace at {promise} %, of what is allowed");
                verdicts.push(Verdict::at_least_times(&what, part, TARGET));
            }
        }
        rows.push(cells);
    }
    report.table(&rows);
    report.verdicts(&verdicts);
    Ok(())
}
