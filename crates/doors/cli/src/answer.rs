//! Answer of a command: text, notes and an exit code. Also prints a command's errors.
//!
//! Commands return an [`Answer`] instead of printing, so that tests read exactly what people
//! read. Only [`Answer::print`] and [`print_error`] touch the streams. Nothing here exits.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, BufWriter, ErrorKind, Write as _};
use std::path::Path;

use clap::ValueEnum;
use serde::Serialize;
use sublet_client::Client;

use crate::paste;

/// Done, and everything is as wished.
pub const DONE: u8 = 0;
/// The command could not do something, or the answer to its question is no.
pub const NOT_DONE: u8 = 1;
/// The command line or an input file is wrong.
pub const BAD_INPUT: u8 = 2;

/// Format of a command's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
    /// For programs, readable.
    Yaml,
}

/// A command's answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Answer {
    /// For standard output.
    pub text: String,
    /// For standard error, a line each: objects that were passed over, and faults.
    pub notes: Vec<String>,
    /// Exit code.
    pub code: u8,
}

impl Answer {
    /// Prints it and returns the exit code.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn print(self) -> anyhow::Result<u8> {
        print_notes(&self.notes);
        to_stdout(|out| out.write_all(self.text.as_bytes()))?;
        Ok(self.code)
    }
}

/// Prints a line each to standard error.
pub(crate) fn print_notes(notes: &[String]) {
    let mut stderr = io::stderr().lock();
    for note in notes {
        let _nobody_listens = writeln!(stderr, "{note}");
    }
}

/// Writes to standard output. A reader that has gone away (`| head -1`) has read what it wanted,
/// and is no error.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn to_stdout(
    write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    // Standard output alone would be written line by line.
    let mut out = BufWriter::with_capacity(BUFFER, io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to standard output"))
        }
        _ => Ok(()),
    }
}

/// Size of the buffer, in bytes: the capacity of a pipe.
const BUFFER: usize = 64 * 1024;

/// JSON with two blanks of indentation, or YAML.
///
/// # Errors
/// A value that cannot be written; those of this crate always can.
pub(crate) fn document(value: &impl Serialize, yaml: bool) -> anyhow::Result<String> {
    let mut text = Vec::new();
    write_document(value, yaml, &mut text)?;
    Ok(String::from_utf8(text)?)
}

/// The same, written as it is made: some documents are 100 MB long.
///
/// # Errors
/// An error of the writer, or a value that cannot be written. All values of this crate can be.
pub(crate) fn write_document(
    value: &impl Serialize,
    yaml: bool,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    if yaml {
        let text = serde_saphyr::to_string(value).map_err(io::Error::other)?;
        return out.write_all(text.as_bytes());
    }
    // An error of the writer stays what it was: a reader may have gone.
    serde_json::to_writer_pretty(&mut *out, value)?;
    out.write_all(b"\n")
}

/// An error that comes with advice.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Advised {
    what: String,
    hint: String,
    #[source]
    cause: Option<Box<dyn Error + Send + Sync>>,
    /// Exit code of the program that ends by it.
    code: u8,
}

impl Advised {
    pub(crate) fn new(what: impl Into<String>, hint: impl Into<String>) -> Advised {
        Advised {
            what: what.into(),
            hint: hint.into(),
            cause: None,
            code: NOT_DONE,
        }
    }

    /// The same, caused by the arguments alone.
    pub(crate) fn of_input(mut self) -> Advised {
        self.code = BAD_INPUT;
        self
    }

    /// The same, with the error of the system or of the other side.
    pub(crate) fn caused_by(mut self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Advised {
        self.cause = Some(cause.into());
        self
    }
}

/// Connects, and on failure gives advice for finding the fault. `without`: the words of a command
/// that needs no cluster for much the same.
pub(crate) async fn connected(
    kubeconfig: Option<&Path>,
    without: Option<&str>,
) -> Result<Client, Advised> {
    let mut hint = "`kubectl config view` shows what kubectl would use".to_owned();
    if let Some(words) = without {
        hint += &format!("; `{} {words}` needs no cluster", paste::program());
    }
    let connected = sublet_client::connect(kubeconfig).await;
    connected.map_err(|error| Advised::new("cannot connect to the cluster", hint).caused_by(error))
}

/// Error that the API server or the way to it gave, with advice.
pub(crate) fn api_error(what: &str, error: kube::Error) -> Advised {
    let hint = match &error {
        kube::Error::Api(status) if status.code == 401 => {
            "log in again: the credentials of this kubeconfig are not accepted"
        }
        kube::Error::Api(status) if status.code == 403 => {
            "this account needs the right to list pods and nodes of the whole cluster"
        }
        kube::Error::Api(_) => "the API server's log may say why",
        _ => "is the API server of this kubeconfig's current context running and reachable?",
    };
    Advised::new(what, hint).caused_by(error)
}

/// Text of an error for people: the failure, its cause, and advice if there is any.
#[must_use]
pub fn error_text(error: &anyhow::Error) -> String {
    let mut text = format!("error: {error}\n");
    let mut last = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // Some libraries repeat the cause's words in their own.
        if !last.contains(&cause) {
            let _never_fails = writeln!(text, "  caused by: {cause}");
            last = cause;
        }
    }
    for advised in error.chain().filter_map(|e| e.downcast_ref::<Advised>()) {
        let _never_fails = writeln!(text, "hint: {}", advised.hint);
    }
    text
}

/// Exit code of a program that ends by this error.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> u8 {
    let advised = error.chain().find_map(|e| e.downcast_ref::<Advised>());
    advised.map_or(NOT_DONE, |advised| advised.code)
}

/// Prints an error to standard error.
pub fn print_error(error: &anyhow::Error) {
    let mut stderr = io::stderr().lock();
    let _nobody_listens = stderr.write_all(error_text(error).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_why_and_what_to_do() {
        let advised = || Advised::new("cannot list nodes", "try again");
        let error = anyhow::Error::new(advised().caused_by("connection refused"));
        assert_eq!(
            error_text(&error),
            "error: cannot list nodes\n  caused by: connection refused\nhint: try again\n"
        );
        assert_eq!(error_text(&anyhow::anyhow!("no")), "error: no\n");
        assert_eq!(exit_code(&error), NOT_DONE);
        assert_eq!(exit_code(&anyhow::anyhow!("no")), NOT_DONE);
        assert_eq!(exit_code(&advised().of_input().into()), BAD_INPUT);
    }
}
