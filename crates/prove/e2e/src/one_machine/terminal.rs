//! A terminal for a test: a program has one end of a pseudo-terminal, the test types at the other
//! end and reads the output. Nothing reads in between, so that the test can close its end.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::process::{Child, Command, ExitStatus};

use anyhow::{Context, Result, ensure};
use rustix::fs::OFlags;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Action, Termios, Winsize, tcflow, tcgetattr, tcsetwinsize};
use sublet_script::until;

/// The test's end, and all the output that was read from it.
pub struct Terminal {
    keyboard: File,
    screen: String,
    /// The program's end.
    other: File,
}

impl Terminal {
    /// A terminal of 140 columns and 30 lines.
    ///
    /// # Errors
    /// The kernel has no more pseudo-terminals.
    pub fn open() -> Result<Terminal> {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&keyboard)?;
        unlockpt(&keyboard)?;
        let name = ptsname(&keyboard, Vec::new())?;
        let mut options = File::options();
        let other = options.read(true).write(true).open(name.to_str()?)?;
        tcsetwinsize(
            &other,
            Winsize {
                ws_row: 30,
                ws_col: 140,
                ws_xpixel: 0,
                ws_ypixel: 0,
            },
        )?;
        let flags = rustix::fs::fcntl_getfl(&keyboard)?;
        rustix::fs::fcntl_setfl(&keyboard, flags | OFlags::NONBLOCK)?;
        Ok(Terminal {
            keyboard: File::from(keyboard),
            screen: String::new(),
            other,
        })
    }

    /// Starts a program there. With `setsid --ctty` before the program, the terminal becomes its
    /// controlling terminal, as after a login.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&self, command: &mut Command) -> Result<Sitting> {
        let end = || self.other.try_clone();
        command.stdin(end()?).stdout(end()?).stderr(end()?);
        let child = command.spawn();
        // `command` would keep copies of the program's end open.
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        Ok(Sitting(child.with_context(|| format!("{command:?}"))?))
    }

    /// Types these keys.
    ///
    /// # Errors
    /// The other end takes no more.
    pub fn types(&mut self, keys: &str) -> Result<()> {
        Ok(self.keyboard.write_all(keys.as_bytes())?)
    }

    /// Waits until these words were shown, and returns all the output so far.
    ///
    /// # Errors
    /// They do not come in time.
    pub fn shows(&mut self, words: &str) -> Result<&str> {
        until(words, || {
            self.look()?;
            ensure!(self.screen.contains(words), "it shows {:?}", self.screen);
            Ok(())
        })?;
        Ok(&self.screen)
    }

    /// The terminal's settings.
    ///
    /// # Errors
    /// It is gone.
    pub fn settings(&self) -> Result<Termios> {
        Ok(tcgetattr(&self.other)?)
    }

    /// Stops the terminal's output from now on.
    ///
    /// # Errors
    /// It is gone.
    pub fn holds_output(&self) -> Result<()> {
        Ok(tcflow(&self.other, Action::OOff)?)
    }

    fn look(&mut self) -> Result<()> {
        let mut bytes = [0; 4096];
        loop {
            match self.keyboard.read(&mut bytes) {
                Ok(n @ 1..) => self.screen += &String::from_utf8_lossy(&bytes[..n]),
                Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error)?,
                _ => return Ok(()),
            }
        }
    }
}

/// A program at a terminal. It is killed at the end of the test.
pub struct Sitting(Child);

impl Sitting {
    /// Its process.
    #[must_use]
    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.0)
    }

    /// The program's exit status.
    ///
    /// # Errors
    /// It still runs.
    pub fn has_ended(&mut self) -> Result<ExitStatus> {
        self.0.try_wait()?.context("it still runs")
    }

    /// Waits until the program has ended.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn end(&mut self) -> Result<ExitStatus> {
        until("its end", || self.has_ended())
    }

    /// The CPU time of the program, in hundredths of a second.
    ///
    /// # Errors
    /// It is gone.
    pub fn work(&self) -> Result<u64> {
        let file = format!("/proc/{}/stat", self.0.id());
        let stat = std::fs::read_to_string(file)?;
        let (_, rest) = stat.rsplit_once(") ").context("no name in stat")?;
        // Fields 14 and 15 of proc(5); `rest` begins with the third.
        let times = rest.split(' ').skip(11).take(2);
        times.map(|time| Ok(time.parse::<u64>()?)).sum()
    }
}

impl Drop for Sitting {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}
