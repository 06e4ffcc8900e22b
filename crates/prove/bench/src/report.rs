//! The report: Markdown that is printed piece by piece and stored word for word in a file.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use sublet_testbed::bench::Bench;

/// All that has been printed so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    text: String,
    tables: Vec<Vec<Vec<String>>>,
    /// The lines of the targets that were not met.
    missed: Vec<String>,
}

impl Report {
    /// Prints a paragraph, a heading or a list, and an empty line.
    pub(crate) fn say(&mut self, text: &str) {
        self.put(&format!("{text}\n\n"));
    }

    /// Prints a table; the first row is its head.
    pub(crate) fn table(&mut self, rows: &[Vec<String>]) {
        let mut text = String::new();
        for (number, row) in rows.iter().enumerate() {
            text += &format!("| {} |\n", row.join(" | "));
            if number == 0 {
                text += &format!("|---|{}\n", "---:|".repeat(row.len().saturating_sub(1)));
            }
        }
        self.say(text.trim_end());
        self.tables.push(rows.to_vec());
    }

    /// Tables that have been printed.
    pub(crate) fn tables(&self) -> &[Vec<Vec<String>>] {
        &self.tables
    }

    /// Prints whether targets were met, a line each.
    pub(crate) fn verdicts(&mut self, verdicts: &[Verdict]) {
        let lines: Vec<String> = verdicts.iter().map(Verdict::line).collect();
        self.say(&lines.join("\n"));
        let missed = verdicts.iter().filter(|verdict| !verdict.met);
        self.missed.extend(missed.map(Verdict::line));
    }

    /// Prints once more which targets were not met.
    pub(crate) fn misses(&mut self) {
        let missed = std::mem::take(&mut self.missed);
        self.say("## Targets that were not met");
        self.say(&match missed.len() {
            0 => "None of those above.".to_owned(),
            _ => missed.join("\n"),
        });
    }

    /// Text that has been printed.
    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Stores exactly the printed text as the page of this benchmark, and says so.
    pub(crate) fn store(&self, bench: &Bench, repository: &Path) -> Result<()> {
        let file = bench.file();
        self.write(&repository.join(&file))?;
        eprintln!("stored in {file}");
        Ok(())
    }

    /// Stores exactly the printed text in a file.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, format!("{}\n", self.text.trim_end()))
            .with_context(|| format!("write {}", path.display()))
    }

    fn put(&mut self, text: &str) {
        print!("{text}");
        // A reader must see results before the next slow step. `print!` itself fails on a closed
        // pipe.
        let _ = std::io::stdout().flush();
        self.text += text;
    }
}

/// A figure and its target.
#[derive(Debug)]
pub(crate) struct Verdict {
    what: String,
    value: String,
    target: String,
    met: bool,
}

impl Verdict {
    /// Met when the value is at most the limit.
    pub(crate) fn at_most(what: &str, value: f64, limit: f64, unit: &str) -> Verdict {
        Verdict {
            what: what.to_owned(),
            value: format!("{} {unit}", short(value)),
            target: format!("≤ {limit} {unit}"),
            met: value <= limit,
        }
    }

    /// Met when the value is at least the bound.
    pub(crate) fn at_least(what: &str, value: f64, bound: f64, unit: &str) -> Verdict {
        Verdict {
            what: what.to_owned(),
            value: format!("{} {unit}", short(value)),
            target: format!("≥ {bound} {unit}"),
            met: value >= bound,
        }
    }

    /// Met when the value, a multiple of a peer's figure, is at most the limit.
    pub(crate) fn at_most_times(what: &str, value: f64, limit: f64) -> Verdict {
        Verdict {
            what: what.to_owned(),
            value: format!("{value:.4} ×"),
            target: format!("≤ {limit} ×"),
            met: value <= limit,
        }
    }

    /// Met when the value is at least the bound; both are multiples of a peer's figure.
    pub(crate) fn at_least_times(what: &str, value: f64, bound: f64) -> Verdict {
        Verdict {
            what: what.to_owned(),
            value: format!("{value:.2} ×"),
            target: format!("≥ {bound} ×"),
            met: value >= bound,
        }
    }

    /// Met when the value, in percent or percentage points and rounded to two decimals, is at most
    /// the limit.
    pub(crate) fn at_most_hundredths(what: &str, value: f64, limit: f64, unit: &str) -> Verdict {
        // Adding zero turns a negative zero into a plain one.
        let value = (value * 100.0).round() / 100.0 + 0.0;
        Verdict {
            what: what.to_owned(),
            value: format!("{value:.2} {unit}"),
            target: format!("≤ {limit} {unit}"),
            met: value <= limit,
        }
    }

    /// Met when a statement holds.
    pub(crate) fn holds(what: &str, met: bool) -> Verdict {
        Verdict {
            what: what.to_owned(),
            value: if met { "yes" } else { "no" }.to_owned(),
            target: "yes".to_owned(),
            met,
        }
    }

    pub(crate) fn is_met(&self) -> bool {
        self.met
    }

    pub(crate) fn line(&self) -> String {
        let met = if self.met { "met" } else { "**not met**" };
        let Verdict {
            what,
            value,
            target,
            ..
        } = self;
        format!("- {what}: {value} (target {target}): {met}")
    }
}

/// Three significant digits.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        small if small >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_target_is_said() {
        let check = |verdict: Verdict| verdict.line();
        assert_eq!(
            check(Verdict::at_most("p50", 1.5, 1.0, "ms")),
            "- p50: 1.50 ms (target ≤ 1 ms): **not met**"
        );
        assert_eq!(
            check(Verdict::at_least_times("ours / none", 0.95, 0.95)),
            "- ours / none: 0.95 × (target ≥ 0.95 ×): met"
        );
    }

    #[test]
    fn misses_are_named_again_at_the_end() {
        let mut report = Report::default();
        let verdict = |value| Verdict::at_most("p50", value, 1.0, "ms");
        report.verdicts(&[verdict(0.5), verdict(2.0)]);
        report.misses();
        assert!(report.text.ends_with(
            "## Targets that were not met\n\n- p50: 2.00 ms (target ≤ 1 ms): **not met**\n\n"
        ));
        report.misses();
        assert!(report.text.ends_with("None of those above.\n\n"));
    }

    #[test]
    fn what_is_written_is_what_was_printed() {
        let mut report = Report::default();
        report.table(&[
            vec!["a".to_owned(), "b".to_owned()],
            vec!["c".to_owned(), short(12.34)],
        ]);
        assert_eq!(report.text, "| a | b |\n|---|---:|\n| c | 12.3 |\n\n");
    }
}
