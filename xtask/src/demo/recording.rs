//! The demonstration as a picture that plays: an SVG in which each line appears when it was printed.
//!
//! It is made from a real run. An end-to-end test compares its lines with what the demonstration prints
//! now, but for the numbers.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Nobody watches for longer while nothing happens.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_500);

/// Size of a letter and of a line, in the picture's own unit.
const LETTER: (f64, f64) = (7.23, 17.0);

/// Space around the text.
const MARGIN: f64 = 14.0;

/// A line, and when it appears.
struct Line {
    at: Duration,
    text: String,
}

/// Runs the demonstration of that program and writes the picture.
pub(super) fn record(sublet: &Path, picture: &Path) -> Result<()> {
    let mut command = Command::new(sublet);
    // As people type it.
    command.arg0("sublet").arg("demo").stdout(Stdio::piped());
    let mut demo = command.spawn().context("start the demo")?;
    let output = demo.stdout.take().context("no pipe from the demo")?;
    let (mut last, mut at) = (Instant::now(), Duration::ZERO);
    let mut lines = Vec::new();
    for text in BufReader::new(output).lines() {
        let text = text?;
        println!("{text}");
        at += last.elapsed().min(LONGEST_PAUSE);
        last = Instant::now();
        lines.push(Line { at, text });
    }
    let status = demo.wait()?;
    ensure!(status.success(), "the demo failed: {status}");
    let text = drawn(&lines);
    std::fs::write(picture, text).with_context(|| format!("write {}", picture.display()))
}

fn drawn(lines: &[Line]) -> String {
    let columns = lines.iter().map(|line| line.text.chars().count()).max();
    let (letter, height) = LETTER;
    let width = columns.unwrap_or(0) as f64 * letter + 2.0 * MARGIN;
    let whole = lines.len() as f64 * height + 2.0 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {whole:.0}\" \
         xml:space=\"preserve\" font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"12\">\n\
         <title>sublet demo: five programs share two cards</title>\n<style>\n\
         text {{ white-space: pre; fill: #d8dee9; opacity: 0; animation: appear 1ms forwards; }}\n\
         .step {{ fill: #ffffff; font-weight: bold; }}\n.typed {{ fill: #8fbc8f; }}\n\
         @keyframes appear {{ to {{ opacity: 1; }} }}\n\
         @media (prefers-reduced-motion: reduce) {{ text {{ animation: none; opacity: 1; }} }}\n\
         </style>\n<rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#1f2430\"/>\n"
    );
    for (at, line) in lines.iter().enumerate() {
        let class = match &*line.text {
            text if text.starts_with("==>") => " class=\"step\"",
            text if text.starts_with("  $ ") => " class=\"typed\"",
            _ => "",
        };
        let _never_fails = writeln!(
            svg,
            "<text x=\"{MARGIN}\" y=\"{:.0}\"{class} style=\"animation-delay:{}ms\">{}</text>",
            MARGIN + (at as f64 + 0.75) * height,
            line.at.as_millis(),
            escaped(&line.text)
        );
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_appears_in_its_time_and_stands_below_the_last_one() {
        let line = |ms, text: &str| Line {
            at: Duration::from_millis(ms),
            text: text.to_owned(),
        };
        let svg = drawn(&[line(0, "==> a & b"), line(250, "  $ x <y>")]);
        for wanted in [
            "viewBox=\"0 0 93 62\"",
            "y=\"27\" class=\"step\" style=\"animation-delay:0ms\">==&gt; a &amp; b<",
            "y=\"44\" class=\"typed\" style=\"animation-delay:250ms\">  $ x &lt;y&gt;<",
        ] {
            assert!(svg.contains(wanted), "{wanted}: {svg}");
        }
    }
}
