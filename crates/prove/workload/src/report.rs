//! A program's observations, as one JSON line, and the failures that it can report.
//!
//! A report is filled while a program runs, so that after a failure it still shows the earlier
//! results. Nothing here decides whether a run was good: the reader of the line does.

use std::fmt;
use std::io::{self, Write};

use serde_json::{Map, Value, json};
use sublet_driver_api::cuda::{CUDA_ERROR_NOT_READY, CUDA_ERROR_OUT_OF_MEMORY};

/// Reason why a program could not go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The driver answered with a code other than success.
    Driver {
        /// The function, by its exported name.
        call: &'static str,
        /// The result code.
        code: u32,
        /// The driver's own name for the code.
        name: String,
    },
    /// The library could not be opened, or lacks a function.
    Load {
        /// `dlopen`, `dlsym` or `cuGetProcAddress`.
        call: &'static str,
        /// The system's message.
        why: String,
    },
    /// The driver reported success but did something else, such as returning other bytes.
    Wrong(String),
    /// The operating system refused something that has nothing to do with the driver.
    System {
        /// The failed action.
        call: &'static str,
        /// The system's message.
        why: String,
    },
}

impl Failure {
    /// Whether the driver said that there is no more memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Driver { code, .. } if *code == CUDA_ERROR_OUT_OF_MEMORY.0)
    }

    /// Whether the driver said that the work has not ended yet.
    pub(crate) fn is_not_ready(&self) -> bool {
        matches!(self, Self::Driver { code, .. } if *code == CUDA_ERROR_NOT_READY.0)
    }

    /// A refusal by the operating system.
    pub(crate) fn system(call: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::System {
            call,
            why: cause.to_string(),
        }
    }

    /// The failure as it stands in a report.
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Driver { call, code, name } => json!({"call": call, "code": code, "name": name}),
            Self::Load { call, why } | Self::System { call, why } => {
                json!({"call": call, "why": why})
            }
            Self::Wrong(why) => json!({"why": why}),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver { call, code, name } => write!(out, "{call} said {code} ({name})"),
            Self::Load { call, why } | Self::System { call, why } => write!(out, "{call}: {why}"),
            Self::Wrong(why) => out.write_str(why),
        }
    }
}

/// The line that a program prints.
#[derive(Debug, Default)]
pub(crate) struct Report {
    fields: Map<String, Value>,
    printed: bool,
}

impl Report {
    /// A report of the program with this name.
    pub(crate) fn new(program: &str) -> Self {
        let mut report = Self::default();
        report.set("program", program);
        report.set("pid", std::process::id());
        report
    }

    /// Sets one field; a later value replaces an earlier one.
    pub(crate) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.fields.insert(key.to_owned(), value.into());
    }

    /// A field that was set.
    #[cfg(test)]
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key)
    }

    /// Prints the line now, before the program only waits. Later calls print nothing.
    pub(crate) fn print(&mut self, outcome: &Result<(), Failure>) -> Result<(), Failure> {
        if self.printed {
            return Ok(());
        }
        self.printed = true;
        self.set("ok", outcome.is_ok());
        let error = outcome.as_ref().err().map(Failure::to_json);
        self.set("error", error.unwrap_or(Value::Null));
        let line = format!("{}\n", Value::Object(std::mem::take(&mut self.fields)));
        // In one piece: other processes of the same job may write to the same pipe.
        let mut out = io::stdout().lock();
        out.write_all(line.as_bytes())
            .and_then(|()| out.flush())
            .map_err(Failure::system("writing the report"))
    }
}

#[cfg(test)]
mod tests {
    use super::Failure;
    use serde_json::json;

    #[test]
    fn a_refusal_has_call_code_and_name() {
        let failure = Failure::Driver {
            call: "cuMemAlloc_v2",
            code: 2,
            name: "CUDA_ERROR_OUT_OF_MEMORY".to_owned(),
        };
        assert!(failure.is_out_of_memory());
        assert_eq!(
            failure.to_json(),
            json!({"call": "cuMemAlloc_v2", "code": 2, "name": "CUDA_ERROR_OUT_OF_MEMORY"})
        );
        assert_eq!(
            failure.to_string(),
            "cuMemAlloc_v2 said 2 (CUDA_ERROR_OUT_OF_MEMORY)"
        );
    }

    #[test]
    fn only_the_driver_runs_out_of_memory() {
        assert!(!Failure::Wrong("2".to_owned()).is_out_of_memory());
        let other = Failure::Driver {
            call: "cuInit",
            code: 800,
            name: "CUDA_ERROR_NOT_PERMITTED".to_owned(),
        };
        assert!(!other.is_out_of_memory());
    }
}
