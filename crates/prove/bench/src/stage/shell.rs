//! A job that runs the lines it is sent: `/bin/sh` behind two pipes.
//!
//! One job can then run many programs one after another, so that a figure contains the start of
//! a program and not the start of a job.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Longest time of a step before it counts as broken.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs each line, then prints its exit code.
const SCRIPT: &str =
    r#"while IFS= read -r line; do eval "$line" </dev/null; echo "bench-end $?"; done"#;

/// The beginning of the line that the shell prints after each line it ran.
const END: &str = "bench-end ";

/// A shell that waits for lines.
pub(crate) struct Shell {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Shell {
    /// Starts `/bin/sh` by this command.
    pub(super) fn start(command: &mut Command) -> Result<Shell> {
        let mut child = command
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {command:?}"))?;
        let stdout = child.stdout.take().context("no pipe")?;
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _nobody_listens = tell.send(line);
            }
        });
        let stdin = child.stdin.take();
        Ok(Shell {
            child,
            stdin,
            lines,
        })
    }

    /// Sends a line that starts a process in the background.
    pub(crate) fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("the shell has ended")?;
        writeln!(stdin, "{line}").context("the shell has ended")?;
        Ok(stdin.flush()?)
    }

    /// Waits for the next line that a program prints.
    pub(crate) fn hear(&mut self, patience: Duration) -> Result<String> {
        loop {
            match self.lines.recv_timeout(patience) {
                Ok(line) if line.starts_with(END) => {}
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) => bail!("a program said nothing for {patience:?}"),
                Err(RecvTimeoutError::Disconnected) => bail!("the job ended"),
            }
        }
    }

    /// Waits for the next line, and reads it as JSON.
    pub(crate) fn hear_json(&mut self, patience: Duration) -> Result<Value> {
        let line = self.hear(patience)?;
        serde_json::from_str(&line).with_context(|| format!("not JSON: {line}"))
    }

    /// Runs a line to its end; returns every line of JSON that it printed. An exit code other than
    /// 0 is an error.
    pub(crate) fn run(&mut self, line: &str, patience: Duration) -> Result<Vec<Value>> {
        self.tell(line)?;
        let mut said = Vec::new();
        loop {
            let heard = match self.lines.recv_timeout(patience) {
                Ok(heard) => heard,
                Err(why) => bail!("`{line}`: {why}"),
            };
            match heard.strip_prefix(END) {
                Some("0") => return Ok(said),
                Some(code) => bail!("`{line}` ended with {code}; it said {said:?}"),
                None => said.extend(serde_json::from_str(&heard).ok()),
            }
        }
    }

    /// Runs a line to its end; returns the last line of JSON that it printed.
    pub(crate) fn ask(&mut self, line: &str) -> Result<Value> {
        let said = self.run(line, PATIENCE)?;
        said.into_iter()
            .next_back()
            .with_context(|| format!("`{line}` printed no report"))
    }

    /// Closes the shell's input and waits for its end.
    pub(crate) fn end(mut self) -> Result<()> {
        self.stdin = None;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // The shell ends when its input ends. If a program in it hangs, the shell is killed.
        self.stdin = None;
        for _ in 0..200 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}
