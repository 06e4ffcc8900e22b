//! Figure: how often a card changes from one program to another, and how much of the card nobody
//! used while somebody wanted all of it: drains, turns that end, and the switches themselves.
//!
//! A fake card's own record of its slices says who had it when. Of a real one nobody says it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use sublet_fakegpu::machine::FakeMachine;

use super::tenants::{Ask, HEAD_START, Job, Running, Way, share_of};
use crate::progress::progress;
use crate::report::{Report, Verdict, short};
use crate::stage::{Stage, Stages, number, soon};

/// Percent of the card (issue 41).
const TARGET: f64 = 3.0;

/// Time by which the server begins before the window and ends after it.
const MARGIN: Duration = Duration::from_millis(500);

/// A row: what runs beside a program of the other half that always has work.
const ROWS: [(&str, &str); 3] = [
    ("a program that always has work", "steady"),
    (
        "a server that uses 20 %",
        "serve --launches 20 --microseconds 50 --every 0.005",
    ),
    (
        "a loop of ten launches of 1 ms and 5 ms without",
        "steady --microseconds 1000 --kernels 10 --pause 0.005",
    ),
];

/// The result of a row in one way.
struct Seen {
    /// Nothing on a real card.
    switches_a_second: Option<f64>,
    idle: f64,
}

pub(super) fn measure(stages: &Stages, is_quick: bool, report: &mut Report) -> Result<()> {
    let seconds = if is_quick { 3 } else { 8 };
    report.say("## Switches");
    report.say(&format!(
        "Changes of the card from one process to another in a second, and percent of the card that \
         no kernel had, over {seconds} s. Each beside a program that always has work, 50 : 50. A real \
         card does not say who had it when."
    ));
    let mut head = vec!["beside a busy one".to_owned()];
    for way in Way::ALL {
        head.extend([way.name(), "idle"].map(str::to_owned));
    }
    let mut rows = vec![head];
    let mut most: f64 = 0.0;
    for (what, words) in ROWS {
        let mut cells = vec![what.to_owned()];
        for way in Way::ALL {
            progress(&format!("switches, {what}: {}", way.name()));
            let seen = run(stages, way, words, seconds)?;
            let switches = seen.switches_a_second.map_or("unknown".to_owned(), short);
            cells.extend([switches, format!("{:.1}", seen.idle)]);
            if way == Way::Ours {
                most = most.max(seen.idle);
            }
        }
        rows.push(cells);
    }
    report.table(&rows);
    let verdict = Verdict::at_most_hundredths("most that nobody used", most, TARGET, "%");
    report.verdicts(&[verdict]);
    Ok(())
}

fn run(stages: &Stages, way: Way, words: &str, seconds: u64) -> Result<Seen> {
    let stage = stages.open()?;
    let from = soon(HEAD_START);
    let to = from + Duration::from_secs(seconds);
    let window = format!("--from {} --seconds {seconds}", from.as_nanos());
    let half = Ask::Share(50);
    let start = |words: String| Job::new("half", half, words).start(&stage, way);
    let busy = start(format!("steady {window}"))?;
    let is_server = words.starts_with("serve");
    let program = match is_server {
        true => {
            std::thread::sleep(HEAD_START.saturating_sub(MARGIN));
            let all = (MARGIN * 2).as_secs() + seconds;
            start(format!("{words} --seconds {all}"))?
        }
        false => start(format!("{words} {window}"))?,
    };
    let (busy, program) = (share(busy)?, program.reports()?);
    let program = match is_server {
        // A millisecond each.
        true => number(&program[0], "/requestsPerSecond")? * 0.001 * 100.0,
        false => share_of(&program, 0)?,
    };
    Ok(Seen {
        switches_a_second: match stages.are_fake() {
            true => Some(switches(&stage, from, to)?),
            false => None,
        },
        idle: (100.0 - busy - program).max(0.0),
    })
}

fn share(running: Running) -> Result<f64> {
    share_of(&running.reports()?, 0)
}

/// Changes of the card's process in a second, as the fake machine remembers them.
fn switches(stage: &Stage, from: Duration, to: Duration) -> Result<f64> {
    let mut entries = fs::read_dir(stage.path())?.filter_map(|entry| Some(entry.ok()?.path()));
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("sublet-fake-")
    };
    let folder = entries.find(is_it).context("no fake machine")?;
    let mut slices = FakeMachine::open(&folder)?.slices(0);
    slices.sort_by_key(|(_, slice)| slice.start);
    let nanos = |at: Duration| u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
    // It remembers so many slices only.
    let first = slices.first().map_or(0, |(_, slice)| slice.start);
    let (from, to) = (nanos(from).max(first), nanos(to));
    slices.retain(|(_, slice)| (from..to).contains(&slice.start));
    let changes = slices.windows(2).filter(|pair| pair[0].0 != pair[1].0);
    Ok(changes.count() as f64 * 1e9 / (to - from).max(1) as f64)
}
