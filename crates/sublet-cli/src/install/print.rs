//! Findings and results of an installation, for people and for programs.

use std::fmt::{self, Write as _};

use serde::Serialize;

use super::manifests::Object;
use super::preflight::{Check, Severity};
use super::worst;
use crate::answer::{Answer, DONE, Format, NOT_DONE, document};

/// Result of applying an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Created,
    Changed,
    Unchanged,
    Deleted,
    Kept,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Created => "created",
            Outcome::Changed => "changed",
            Outcome::Unchanged => "unchanged",
            Outcome::Deleted => "deleted",
            Outcome::Kept => "kept",
        })
    }
}

/// An object and the result of applying it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Applied {
    pub(super) object: String,
    pub(super) outcome: Outcome,
}

/// All of it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) checks: Vec<Check>,
    pub(super) objects: Vec<Applied>,
    /// Workloads that did not get ready, with the reasons.
    pub(super) unready: Vec<String>,
    pub(super) notes: Vec<String>,
}

impl Report {
    /// For printing. Not done if a check is an error or something is not ready.
    ///
    /// # Errors
    /// None that can happen: a report can be written.
    pub(super) fn answer(self, format: Format) -> anyhow::Result<Answer> {
        let is_done = worst(&self.checks) < Severity::Error && self.unready.is_empty();
        let text = match format {
            Format::Table => self.table(),
            Format::Json => document(&self, false)?,
            Format::Yaml => document(&self, true)?,
        };
        Ok(Answer {
            text,
            notes: Vec::new(),
            code: if is_done { DONE } else { NOT_DONE },
        })
    }

    fn table(&self) -> String {
        let mut text = String::new();
        // What was done says more than what was looked at.
        if self.objects.is_empty() {
            for check in &self.checks {
                text += &line(check);
            }
        }
        for outcome in [
            Outcome::Created,
            Outcome::Changed,
            Outcome::Unchanged,
            Outcome::Deleted,
        ] {
            let count = self
                .objects
                .iter()
                .filter(|object| object.outcome == outcome)
                .count();
            if count > 0 {
                let _never_fails = writeln!(text, "{count} objects {outcome}");
            }
        }
        for (title, lines) in [("not ready: ", &self.unready), ("", &self.notes)] {
            for line in lines {
                let _never_fails = writeln!(text, "{title}{line}");
            }
        }
        text
    }
}

/// Checks that are not ok, a line each.
pub(super) fn warnings(checks: &[Check]) -> Vec<String> {
    let bad = checks.iter().filter(|check| check.severity > Severity::Ok);
    bad.map(|check| line(check).trim_end().to_owned()).collect()
}

fn line(check: &Check) -> String {
    let word = match check.severity {
        Severity::Ok => "ok",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let mut text = format!("{word:<8} {:<19} {}\n", check.name, check.found);
    if let Some(advice) = &check.advice {
        let _never_fails = writeln!(text, "{:<28} → {advice}", "");
    }
    text
}

/// The manifests as a stream of YAML documents.
///
/// # Errors
/// None that can happen: an object can be written.
pub(super) fn manifests(objects: &[Object]) -> anyhow::Result<Answer> {
    let mut text = String::new();
    for object in objects {
        text += "---\n";
        text += &document(&object.value, true)?;
    }
    Ok(Answer {
        text,
        ..Answer::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_says_what_was_found_and_what_to_do() {
        let check = Check {
            name: "nodes",
            severity: Severity::Warning,
            found: "none".to_owned(),
            advice: Some("label one".to_owned()),
        };
        let report = Report {
            checks: vec![check],
            ..Report::default()
        };
        let answer = report.answer(Format::Table).unwrap();
        assert_eq!(
            answer.text,
            "warning  nodes               none\n                             → label one\n"
        );
        assert_eq!(answer.code, DONE);
    }

    #[test]
    fn what_is_not_ready_is_not_done() {
        let report = Report {
            objects: vec![Applied {
                object: "Namespace a".to_owned(),
                outcome: Outcome::Created,
            }],
            unready: vec!["Deployment a/b: 0 of 1 pods are ready".to_owned()],
            ..Report::default()
        };
        let answer = report.answer(Format::Table).unwrap();
        assert_eq!(
            answer.text,
            "1 objects created\nnot ready: Deployment a/b: 0 of 1 pods are ready\n"
        );
        assert_eq!(answer.code, NOT_DONE);
    }
}
