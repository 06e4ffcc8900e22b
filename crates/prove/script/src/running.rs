//! A program that a test has started: its output is collected while it runs, every wait has a
//! deadline, and it does not outlive the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{PATIENCE, until};

/// A program that runs.
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    heard: Vec<String>,
    errors: Arc<Mutex<String>>,
    listener: Option<JoinHandle<()>>,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code, where no signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Its output, in lines.
    pub lines: Vec<String>,
    /// Its standard error.
    pub errors: String,
}

impl Running {
    /// Starts it with pipes in place of a terminal.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Running> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let stdout = child.stdout.take().context("no pipe")?;
        let stderr = child.stderr.take().context("no pipe")?;
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _test_has_ended = tell.send(line);
            }
        });
        let errors = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&errors);
        let listener = std::thread::spawn(move || listen(stderr, &heard));
        Ok(Running {
            stdin: child.stdin.take(),
            child,
            lines,
            heard: Vec::new(),
            errors,
            listener: Some(listener),
        })
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Its next line on standard output.
    ///
    /// # Errors
    /// None comes in time.
    pub fn line(&mut self) -> Result<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                self.heard.push(line.clone());
                Ok(line)
            }
            Err(why) => bail!("no line: {why}; it said: {}", self.errors()),
        }
    }

    /// Its next line, if one comes within this time.
    ///
    /// # Errors
    /// It has closed its output.
    pub fn line_within(&mut self, time: Duration) -> Result<Option<String>> {
        match self.lines.recv_timeout(time) {
            Ok(line) => {
                self.heard.push(line.clone());
                Ok(Some(line))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(why) => bail!("no line: {why}; it said: {}", self.errors()),
        }
    }

    /// Its next line, as JSON.
    ///
    /// # Errors
    /// None comes in time, or it is something else.
    pub fn report(&mut self) -> Result<Value> {
        let line = self.line()?;
        serde_json::from_str(&line).with_context(|| format!("not JSON: {line}"))
    }

    /// Returns its standard error so far.
    #[must_use]
    pub fn errors(&self) -> String {
        let errors = self.errors.lock();
        errors.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until standard error has these words.
    ///
    /// # Errors
    /// They do not come in time.
    pub fn until_error(&self, words: &str) -> Result<()> {
        until(words, || {
            let errors = self.errors();
            ensure!(errors.contains(words), "it said: {errors:?}");
            Ok(())
        })
    }

    /// True if it has ended.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(self.pid(), signal)?)
    }

    /// Writes a line to its standard input.
    ///
    /// # Errors
    /// It has closed that.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("standard input is closed")?;
        Ok(writeln!(stdin, "{line}")?)
    }

    /// Closes its standard input, for which programs that hold memory wait, and waits for its
    /// end.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn end(mut self) -> Result<Ended> {
        self.stdin = None;
        let child = &mut self.child;
        let status = until("its end", || child.try_wait()?.context("it still runs"));
        let status = status.with_context(|| format!("it said: {}", self.errors()))?;
        // What it left behind may hold the pipes: so no waiting for their ends beyond that.
        let mut lines = std::mem::take(&mut self.heard);
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            lines.push(line);
        }
        if let Some(listener) = self.listener.take() {
            let _panicked = listener.join();
        }
        Ok(Ended {
            code: status.code(),
            signal: status.signal(),
            lines,
            errors: self.errors(),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

impl Ended {
    /// The JSON line of a workload that was content.
    ///
    /// # Errors
    /// It failed, or printed something else.
    pub fn report(&self) -> Result<Value> {
        ensure!(self.code == Some(0), "it failed: {self:?}");
        let line = self.lines.last().context("it printed nothing")?;
        serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))
    }

    /// All that it printed, as one JSON document.
    ///
    /// # Errors
    /// It failed, or printed something else.
    pub fn document(&self) -> Result<Value> {
        ensure!(self.code == Some(0), "it failed: {self:?}");
        Ok(serde_json::from_str(&self.lines.join("\n"))?)
    }
}

fn listen(mut from: impl Read, into: &Mutex<String>) {
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..n]);
        into.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_str(&text);
    }
}
