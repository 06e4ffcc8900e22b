//! Shows a person the progress of slow work.
//!
//! On a terminal this is one live line, drawn again each second. Elsewhere (CI, a pipe) it is a
//! plain line every half minute, so that a log shows progress without becoming long. It writes
//! only to stderr; stdout is for results. If the terminal is gone, the work ends, as with a
//! hang-up: nobody waits for it any more.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use rustix::process::Signal;

/// Shows the progress of slow work.
#[derive(Debug)]
pub struct Progress {
    terminal: bool,
    started: Instant,
    shown: Option<Instant>,
}

impl Progress {
    /// Begins to count the time.
    #[must_use]
    pub fn new() -> Progress {
        Progress {
            terminal: std::io::stderr().is_terminal(),
            started: Instant::now(),
            shown: None,
        }
    }

    /// Prints a line that stays.
    pub fn say(&mut self, line: &str) {
        self.clear();
        self.write(&format!("{line}\n"));
    }

    /// Starts the clock of a new step.
    pub fn restart(&mut self) {
        self.clear();
        self.started = Instant::now();
        self.shown = Some(self.started);
    }

    /// Time for which this step has run.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Shows the current state if enough time has passed. Cheap enough to call in a loop.
    pub fn tick(&mut self, text: impl FnOnce() -> String) {
        let pause = if self.terminal {
            Duration::from_secs(1)
        } else {
            Duration::from_secs(30)
        };
        if self.shown.is_some_and(|shown| shown.elapsed() < pause) {
            return;
        }
        self.shown = Some(Instant::now());
        let elapsed = minutes(self.started.elapsed());
        if self.terminal {
            self.write(&format!("\r\x1b[2K  {elapsed}  {}", text()));
        } else {
            self.write(&format!("  {elapsed}  {}\n", text()));
        }
    }

    fn clear(&mut self) {
        if self.terminal && self.shown.take().is_some() {
            self.write("\r\x1b[2K");
        }
    }

    fn write(&self, text: &str) {
        let written = std::io::stderr().lock().write_all(text.as_bytes());
        if written.is_err() && self.terminal {
            let own = rustix::process::getpid();
            let _heard = rustix::process::kill_process(own, Signal::HUP);
        }
    }
}

impl Default for Progress {
    fn default() -> Progress {
        Progress::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn minutes(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_read_like_a_clock() {
        assert_eq!(minutes(Duration::from_secs(5)), "0:05");
        assert_eq!(minutes(Duration::from_secs(754)), "12:34");
    }
}
