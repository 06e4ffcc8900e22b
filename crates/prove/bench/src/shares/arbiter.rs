//! Figure: how much CPU time the arbiter takes while many jobs contend for cards.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::tenants::{Tenant, Way};
use crate::progress::progress;
use crate::report::{Report, Verdict, short};
use crate::stage::{Stages, cpu_seconds, soon};

/// Percent of a core (issue 16).
const TARGET: f64 = 4.0;

/// A fake machine has so many cards; of a real one, one is measured.
const CARDS: u32 = 8;
const FAKE_CARDS: &str = "8x16GiB,context=64MiB";
const JOBS_PER_CARD: u32 = 8;

pub(super) fn measure(stages: &Stages, is_quick: bool, report: &mut Report) -> Result<()> {
    let (stage, cards) = match stages.are_fake() {
        true => (stages.fake(FAKE_CARDS)?, CARDS),
        false => (stages.open()?, 1),
    };
    let (jobs, seconds) = match is_quick {
        true => (cards, 3),
        false => (cards * JOBS_PER_CARD, 20),
    };
    progress(&format!("the arbiter with {jobs} jobs that contend"));
    let head_start = Duration::from_secs(10);
    let tenant = Tenant {
        percent: 100 / JOBS_PER_CARD,
        is_graph: false,
        // Long kernels, so that the programs leave some CPU time for the rest of the machine.
        microseconds: 5000,
        from: soon(head_start),
        seconds: seconds + 5,
    };
    let mut running = Vec::new();
    for _ in 0..jobs {
        running.push(tenant.start(&stage, Way::Ours)?);
    }
    std::thread::sleep(tenant.from.saturating_sub(soon(Duration::ZERO)));
    let arbiter = stage.arbiter()?;
    let (began, before) = (Instant::now(), cpu_seconds(arbiter)?);
    std::thread::sleep(Duration::from_secs(seconds));
    let share = (cpu_seconds(arbiter)? - before) / began.elapsed().as_secs_f64() * 100.0;
    for one in running {
        one.per_tenth()?;
    }
    report.say("## The arbiter");
    report.say(&format!(
        "{jobs} jobs on {cards} card(s), all of which want all of their card: {} % of a core, over \
         {seconds} s.",
        short(share)
    ));
    let what = format!("CPU time with {jobs} jobs");
    report.verdicts(&[Verdict::at_most(&what, share, TARGET, "% of a core")]);
    Ok(())
}
