//! Figure: what programs get that do not always want their turn, have several processes or
//! threads, or queue as much as they can, each beside one that always has work.

use anyhow::{Context, Result};

use super::tenants::{Ask, HEAD_START, Job, Way, beside, pace, share_of};
use crate::progress::progress;
use crate::report::{Report, Verdict, short};
use crate::stage::{Stages, number};

/// One row.
struct Story {
    what: &'static str,
    /// Request of the program that is looked at, and its words.
    program: (Ask, &'static str),
    seconds: u64,
    /// The same of the other one, and its number of processes.
    other: (Ask, &'static str, u32),
    measure: Measure,
}

/// A figure of a story, and the bound of ours.
#[derive(Clone, Copy)]
enum Measure {
    /// The program's percent of the card after so many seconds, and how far it may be from that
    /// which it asked for.
    Share {
        skip: usize,
        asked: f64,
        points: f64,
    },
    /// The least percent of the card.
    Least { skip: usize, percent: f64 },
    /// The least pace, as a part of that alone.
    Pace(f64),
    /// The longest backlog of the other one, in seconds.
    Beyond(f64),
}

/// A program that always has work, and one that pauses.
const BUSY: &str = "steady";
const PAUSES: &str = "steady --kernels 10 --pause 0.005";

const HIGH: (Ask, &str) = (Ask::Share(75), BUSY);

/// The share of a program with 75 %.
const fn high(skip: usize, points: f64) -> Measure {
    Measure::Share {
        skip,
        asked: 75.0,
        points,
    }
}

const fn low(words: &'static str) -> (Ask, &'static str, u32) {
    (Ask::Share(25), words, 1)
}

const STORIES: [Story; 9] = [
    Story {
        what: "75 %: ten launches of 500 µs, then 5 ms without; its pace, of that alone",
        program: (Ask::Share(75), PAUSES),
        seconds: 10,
        other: low(BUSY),
        measure: Measure::Pace(0.85),
    },
    Story {
        what: "75 % beside a job with 8 processes, after 5 s",
        program: HIGH,
        seconds: 12,
        other: (Ask::Share(25), BUSY, 8),
        measure: high(5, 3.0),
    },
    Story {
        what: "75 % comes to one that never waits, 2 ms, from the second second on",
        program: HIGH,
        seconds: 8,
        other: low("steady --kernels 1 --never-wait --microseconds 2000"),
        measure: high(1, 3.0),
    },
    Story {
        what: "the same, 10 ms",
        program: HIGH,
        seconds: 8,
        other: low("steady --kernels 1 --never-wait --microseconds 10000"),
        measure: high(1, 3.0),
    },
    Story {
        what: "backlog of that one, seconds",
        program: HIGH,
        seconds: 3,
        other: low("steady --kernels 1 --never-wait --microseconds 10000"),
        measure: Measure::Beyond(0.5),
    },
    Story {
        what: "75 % beside 32 threads that never wait",
        program: HIGH,
        seconds: 8,
        other: low("steady --kernels 1 --never-wait --threads 32"),
        measure: high(1, 3.0),
    },
    Story {
        what: "75 % beside a thread for each launch",
        program: HIGH,
        seconds: 8,
        other: low("steady --kernels 1 --never-wait --fresh-threads"),
        measure: high(1, 3.0),
    },
    Story {
        what: "75 % beside three kernels of 100 ms at a time",
        program: HIGH,
        seconds: 24,
        other: low("steady --microseconds 100000 --kernels 3"),
        measure: high(0, 5.0),
    },
    Story {
        what: "opportunistic beside a server that uses 8 %",
        program: (Ask::Rest, BUSY),
        seconds: 10,
        other: (
            Ask::Share(50),
            "serve --launches 20 --microseconds 50 --every 0.0125",
            1,
        ),
        measure: Measure::Least {
            skip: 1,
            percent: 80.0,
        },
    },
];

/// Seconds of each story in a quick run, and of those the ones before it counts.
const QUICK: (u64, usize) = (3, 1);

pub(super) fn measure(stages: &Stages, is_quick: bool, report: &mut Report) -> Result<()> {
    report.say("## Ordinary programs");
    report.say(&format!(
        "Percent of the card where nothing else is said. The other one has 25 % where nothing else \
         is said, always has work, and was alone for {} s. Kernels of 500 µs by eights, two such \
         bursts queued. The token bucket knows neither classes nor jobs of several processes: each \
         process has its part of the limit.",
        HEAD_START.as_secs()
    ));
    let mut head = vec!["program".to_owned(), "wanted".to_owned()];
    head.extend(Way::ALL.map(|way| way.name().to_owned()));
    let mut rows = vec![head];
    let mut verdicts = Vec::new();
    for story in STORIES {
        let story = if is_quick { story.quick() } else { story };
        let mut cells = vec![story.what.to_owned(), story.measure.wanted()];
        for way in Way::ALL {
            progress(&format!("{}: {}", story.what, way.name()));
            let value = story.run(stages, way)?;
            cells.push(short(value));
            if way == Way::Ours {
                verdicts.push(story.measure.verdict(story.what, value));
            }
        }
        rows.push(cells);
    }
    report.table(&rows);
    report.verdicts(&verdicts);
    Ok(())
}

impl Story {
    fn quick(mut self) -> Story {
        self.seconds = QUICK.0;
        if let Measure::Share { skip, .. } = &mut self.measure {
            *skip = (*skip).min(QUICK.1);
        }
        self
    }

    fn run(&self, stages: &Stages, way: Way) -> Result<f64> {
        let (ask, words) = self.program;
        let program = Job {
            seconds: self.seconds,
            ..Job::new("program", ask, words)
        };
        let (ask, words, n_processes) = self.other;
        let other = Job {
            n_processes,
            ..Job::new("other", ask, words)
        };
        self.measure.take(stages, way, other, &program)
    }
}

impl Measure {
    /// Runs a program beside another one.
    fn take(self, stages: &Stages, way: Way, other: Job, program: &Job) -> Result<f64> {
        match self {
            Measure::Share { skip, .. } | Measure::Least { skip, .. } => {
                share_of(&beside(stages, way, &[other], program)?.reports, skip)
            }
            Measure::Pace(_) => pace(stages, way, other, program),
            Measure::Beyond(_) => {
                let seen = beside(stages, way, &[other], program)?;
                let report = seen.others.iter().flatten().next();
                number(report.context("no report")?, "/secondsBeyond")
            }
        }
    }

    fn wanted(self) -> String {
        match self {
            Measure::Share { asked, points, .. } => format!("{asked} ± {points}"),
            Measure::Least { percent, .. } => format!("≥ {percent}"),
            Measure::Pace(least) => format!("≥ {least}"),
            Measure::Beyond(most) => format!("≤ {most}"),
        }
    }

    fn verdict(self, what: &str, value: f64) -> Verdict {
        match self {
            Measure::Share { asked, points, .. } => {
                let what = format!("{what}, error");
                Verdict::at_most_hundredths(&what, (value - asked).abs(), points, "points")
            }
            Measure::Least { percent, .. } => Verdict::at_least(what, value, percent, "%"),
            Measure::Pace(least) => Verdict::at_least_times(what, value, least),
            Measure::Beyond(most) => Verdict::at_most(what, value, most, "s"),
        }
    }
}
