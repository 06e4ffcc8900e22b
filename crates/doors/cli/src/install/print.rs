//! Findings and results of an installation, for people and for programs.

use std::fmt::Write as _;

use serde::Serialize;

use super::preflight::{Check, Severity, worst};
use crate::answer::{Answer, DONE, Format, NOT_DONE, document, print_notes};

/// All of it.
#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) checks: Vec<Check>,
    /// Output of helm.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) helm: String,
    pub(super) notes: Vec<String>,
}

impl Report {
    /// For printing. Not done if a check is an error.
    ///
    /// # Errors
    /// None that can happen: a report can be written.
    pub(super) fn answer(self, format: Format) -> anyhow::Result<Answer> {
        let is_done = worst(&self.checks) < Severity::Error;
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
        let mut text = self.helm.clone();
        // What was done says more than what was looked at.
        if text.is_empty() {
            text.extend(self.checks.iter().map(line));
        }
        for note in &self.notes {
            let _never_fails = writeln!(text, "{note}");
        }
        text
    }
}

/// A line on standard error about what is being done.
pub(super) fn progress(line: &str) {
    print_notes(&[line.to_owned()]);
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// JSON of an example; people get a line for each check.
    pub(crate) fn answers() -> Vec<[String; 2]> {
        let report = Report {
            checks: vec![Check {
                name: "nodes",
                severity: Severity::Warning,
                found: "none".to_owned(),
                advice: Some("label one".to_owned()),
            }],
            helm: "installed\n".to_owned(),
            notes: vec!["and patched".to_owned()],
        };
        let answer = report.answer(Format::Json).unwrap();
        vec![[String::new(), answer.text]]
    }

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
    fn after_an_installation_helm_has_the_word() {
        let report = Report {
            helm: "installed\n".to_owned(),
            notes: vec!["and patched".to_owned()],
            ..Report::default()
        };
        let answer = report.answer(Format::Table).unwrap();
        assert_eq!(answer.text, "installed\nand patched\n");
    }
}
