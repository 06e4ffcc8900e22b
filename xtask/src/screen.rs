//! What a task says while it runs: bold headings on a terminal, plain text elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

/// Announces a step.
pub(crate) fn heading(text: &str) {
    if stderr().is_terminal() {
        eprintln!("\x1b[1m==> {text}\x1b[0m");
    } else {
        eprintln!("==> {text}");
    }
}

/// A time as people say it.
pub(crate) fn time(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}
