//! Progress of long work, as one line of a terminal's standard error that is drawn again a few times
//! a second and gone at the end. Without a terminal there is none.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::jobs::duration;

/// Time between two drawings of the line.
const EVERY: Duration = Duration::from_millis(200);

/// The whole of a run.
const WHOLE: usize = 1000;

/// Progress of several runs. If the terminal that the results would go to is closed, the runs end:
/// nobody would see them.
pub(super) struct Progress {
    /// The part of each run that is done, in thousandths.
    done: Vec<AtomicUsize>,
    begun: Instant,
    shown: Option<Mutex<Instant>>,
    ends_with_terminal: bool,
}

impl Progress {
    pub(super) fn new(runs: usize) -> Progress {
        let visible = std::io::stderr().is_terminal();
        let now = Instant::now();
        Progress {
            done: (0..runs).map(|_| AtomicUsize::new(0)).collect(),
            begun: now,
            shown: visible.then(|| Mutex::new(now)),
            ends_with_terminal: std::io::stdout().is_terminal(),
        }
    }

    /// Progress of one of the runs.
    pub(super) fn of_run(&self, at: usize) -> RunProgress<'_> {
        RunProgress { all: self, at }
    }

    fn show(&self) {
        let Some(shown) = &self.shown else { return };
        let Ok(mut shown) = shown.try_lock() else {
            return;
        };
        if shown.elapsed() < EVERY {
            return;
        }
        *shown = Instant::now();
        let done = self.done.iter().map(|done| done.load(Ordering::Relaxed));
        let line = line(&done.collect::<Vec<_>>(), self.begun.elapsed());
        let line = format!("\r\x1b[K{line}");
        let written = std::io::stderr().lock().write_all(line.as_bytes());
        if written.is_err() && self.ends_with_terminal {
            // The signal that the end of a terminal sends. A process that ignores it goes on
            // (`nohup`).
            let own = rustix::process::getpid();
            let _heard = rustix::process::kill_process(own, Signal::HUP);
        }
    }

    pub(super) fn clear(&self) {
        if self.shown.is_some() {
            clear();
        }
    }
}

/// Progress of one run among others.
pub(super) struct RunProgress<'a> {
    all: &'a Progress,
    at: usize,
}

impl RunProgress<'_> {
    /// So many steps of so many are done.
    pub(super) fn arrived(&self, number: usize, all: usize) {
        if self.all.shown.is_some() {
            // A run that ends is done by `ended` alone.
            let done = (WHOLE * number / all.max(1)).min(WHOLE - 1);
            self.all.done[self.at].store(done, Ordering::Relaxed);
            self.all.show();
        }
    }

    /// The run has ended.
    pub(super) fn ended(&self) {
        self.all.done[self.at].store(WHOLE, Ordering::Relaxed);
    }
}

/// The line about runs of which these thousandths are done, after so much time.
fn line(done: &[usize], after: Duration) -> String {
    let (runs, sum) = (done.len(), done.iter().sum::<usize>());
    let ended = done.iter().filter(|done| **done == WHOLE).count();
    let all = WHOLE * runs;
    let mut line = format!("{ended} of {runs} runs done, {} %", 100 * sum / all.max(1));
    if 100 * sum >= all && sum > 0 {
        let left = after.as_millis() * (all - sum) as u128 / sum as u128;
        let left = u64::try_from(left).unwrap_or(u64::MAX);
        line += &format!(", about {} left", duration(left));
    }
    line
}

/// Does some work, and says on a terminal what is done meanwhile.
pub(super) fn meanwhile<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let visible = std::io::stderr().is_terminal();
    if visible {
        let _nobody_looks = write!(std::io::stderr().lock(), "\r\x1b[K{what} …");
    }
    let done = work();
    if visible {
        clear();
    }
    done
}

fn clear() {
    let _nobody_looks = write!(std::io::stderr().lock(), "\r\x1b[K");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_done_of_all_runs() {
        let check = |done: &[usize], seconds| line(done, Duration::from_secs(seconds));
        assert_eq!(check(&[0], 3), "0 of 1 runs done, 0 %");
        // Too early to say.
        assert_eq!(check(&[9, 0], 3), "0 of 2 runs done, 0 %");
        assert_eq!(check(&[500], 30), "0 of 1 runs done, 50 %, about 30 s left");
        assert_eq!(
            check(&[1000, 200, 300, 0], 120),
            "1 of 4 runs done, 37 %, about 3 min left"
        );
        assert_eq!(check(&[1000], 5), "1 of 1 runs done, 100 %, about 0 s left");
    }

    #[test]
    fn a_run_is_done_when_it_has_ended() {
        let progress = Progress {
            shown: Some(Mutex::new(Instant::now())),
            ..Progress::new(2)
        };
        let run = progress.of_run(1);
        let done = || progress.done[1].load(Ordering::Relaxed);
        run.arrived(1, 4);
        assert_eq!(done(), 250);
        // An arrival may be counted twice, and there may be none at all.
        run.arrived(9, 4);
        assert_eq!(done(), 999);
        run.arrived(0, 0);
        assert_eq!(done(), 0);
        run.ended();
        assert_eq!(done(), 1000);
    }
}
