//! A program that makes the driver's calls it is told, and says what each gave (`c/calls.c`).
//!
//! Where a workload does what programs do, this does what a test wants to see: one call after
//! the other, with the very arguments with which somebody's program once failed.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Machine, Running};

/// The program, while it runs.
pub struct Calls {
    running: Running,
}

impl Machine {
    /// The program's file, compiled for this machine.
    ///
    /// # Errors
    /// There is no C compiler, or it refused.
    pub fn caller(&self) -> Result<String> {
        let file = self.path().join("calls-c");
        if !file.is_file() {
            self.compile("calls.c", &["-ldl"])?;
        }
        Ok(file.display().to_string())
    }

    /// Starts it as a job.
    ///
    /// # Errors
    /// It cannot be compiled or started.
    pub fn calls(&self, flags: &str) -> Result<Calls> {
        Calls::start(self.run(flags).arg(self.caller()?))
    }

    /// Starts it on the fake driver, past the product.
    ///
    /// # Errors
    /// As [`Machine::calls`].
    pub fn direct_calls(&self) -> Result<Calls> {
        let mut command = self.command(self.caller()?);
        let libraries = ["libsublet_fakecuda.so", "libsublet_fakenvml.so"];
        command.args(libraries.map(|name| self.built(name)));
        Calls::start(command.env("SUBLET_FAKE_GPU", self.spec()))
    }
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

    /// Tells it a line, and does not wait.
    ///
    /// # Errors
    /// It has ended.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let told = self.running.say(line);
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
        for line in script.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (call, expected) = line.split_once(" -> ").unwrap_or((line, "0"));
            let answer = self.call(call)?;
            ensure!(answer == expected, "{line}: it is {answer}, in{script}");
        }
        Ok(())
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
