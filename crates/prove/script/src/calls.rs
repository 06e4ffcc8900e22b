//! A program that makes the driver's calls it is told, and prints the result of each (`calls.c`;
//! its first lines document its input).
//!
//! A workload acts like real programs. This program makes exactly the calls that a test needs, one
//! after the other, with the very arguments with which somebody's program once failed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::arguments::expand;
use crate::{Running, cc};

/// The program, while it runs.
pub struct Calls {
    running: Running,
}

/// Compiles the program into a file.
///
/// # Errors
/// There is no C compiler, or it refused.
pub fn compile(program: &Path) -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/calls.c");
    cc(&source, program, &["-O1", "-ldl", "-pthread"])
}

impl Calls {
    /// Starts the program.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Calls> {
        let running = Running::start(command)?;
        Ok(Calls { running })
    }

    /// Its process, or that of the command above it.
    #[must_use]
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// The same without the script, for a caller that wants to see its end.
    #[must_use]
    pub fn into_running(self) -> Running {
        self.running
    }

    /// Tells it a line, and does not wait.
    ///
    /// # Errors
    /// It has ended.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let told = self.running.say(&expand(line));
        told.with_context(|| format!("{line}: it said {}", self.running.errors()))
    }

    /// Its next answer.
    ///
    /// # Errors
    /// None comes in time.
    pub fn answer(&mut self) -> Result<String> {
        self.running.line()
    }

    /// Its next answer, if it comes within this time.
    ///
    /// # Errors
    /// It has ended.
    pub fn answer_within(&mut self, time: Duration) -> Result<Option<String>> {
        self.running.line_within(time)
    }

    /// One line there, one back.
    ///
    /// # Errors
    /// It has ended, or does not answer in time.
    pub fn call(&mut self, line: &str) -> Result<String> {
        self.tell(line)?;
        self.answer().with_context(|| line.to_owned())
    }

    /// A number that it answers.
    ///
    /// # Errors
    /// As [`Calls::call`], or it is no number.
    pub fn number(&mut self, line: &str) -> Result<u64> {
        let answer = self.call(line)?;
        answer.parse().with_context(|| format!("{line}: {answer}"))
    }

    /// Plays a script: `call -> answer`, or a call alone that must give 0. Lines that begin
    /// with `#` are for the reader.
    ///
    /// # Errors
    /// An answer is another, or does not come.
    pub fn play(&mut self, script: &str) -> Result<()> {
        self.play_with(script, |_| Ok(false))
    }

    /// The same, but `check` may take a line for itself and report that it did: for expectations of
    /// something else than the program.
    ///
    /// # Errors
    /// As [`Calls::play`], or the check's.
    pub fn play_with(
        &mut self,
        script: &str,
        mut check: impl FnMut(&str) -> Result<bool>,
    ) -> Result<()> {
        for line in script.lines().map(str::trim) {
            let is_for_readers = line.is_empty() || line.starts_with('#');
            if is_for_readers || check(line).with_context(|| format!("{line}, in{script}"))? {
                continue;
            }
            let (call, expected) = line.split_once(" -> ").unwrap_or((line, "0"));
            let answer = self.call(call)?;
            ensure!(answer == expected, "{line}: it is {answer}, in{script}");
        }
        Ok(())
    }

    /// Plays a script in a child of the program, which is forked when it is first told something.
    ///
    /// # Errors
    /// As [`Calls::play`].
    pub fn play_in(&mut self, child: usize, script: &str) -> Result<()> {
        let lines = script
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        let script: String = lines.map(|line| format!("\nin {child} {line}")).collect();
        self.play(&script)
    }

    /// Closes its input and waits for its end, which must be a good one.
    ///
    /// # Errors
    /// It does not end, or failed.
    pub fn end(self) -> Result<()> {
        let ended = self.running.end()?;
        ensure!(ended.code == Some(0), "{ended:?}");
        Ok(())
    }
}
