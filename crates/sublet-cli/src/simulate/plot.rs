//! Curves of several policies side by side, as SVG or a page that holds it: what was left
//! unallocated while pods arrived, from where policies begin to differ.

use std::fmt::Write as _;
use std::path::Path;

use super::compare::Spread;
use super::runs::Run;

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Svg,
    Html,
}

/// A file name that does not say which.
#[derive(Debug, thiserror::Error)]
#[error("--plot {0}: the name must end in .svg or .html")]
pub(super) struct NoKind(String);

impl Kind {
    pub(super) fn of(file: &Path) -> Result<Kind, NoKind> {
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("svg") => Ok(Kind::Svg),
            Some("html" | "htm") => Ok(Kind::Html),
            _ => Err(NoKind(file.display().to_string())),
        }
    }
}

/// Okabe and Ito's colours, which people of any colour vision can tell apart.
const COLOURS: [&str; 7] = [
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
];

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 480.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 28.0;
const PLOT_WIDTH: f64 = 600.0;
const PLOT_HEIGHT: f64 = 396.0;

struct Line {
    name: String,
    /// Arrived percent, unallocated percent: mean over seeds.
    points: Vec<(f64, f64)>,
}

fn lines(runs: &[Run]) -> Vec<Line> {
    let mut lines: Vec<(String, std::collections::BTreeMap<u32, Vec<f64>>)> = Vec::new();
    for run in runs {
        let name = run.policy.to_string();
        let at = match lines.iter().position(|(known, _)| *known == name) {
            Some(at) => at,
            None => {
                lines.push((name, Default::default()));
                lines.len() - 1
            }
        };
        for point in &run.outcome.curve.points {
            let figures = lines[at].1.entry(point.arrived_percent).or_default();
            figures.push(100.0 - point.allocated_percent);
        }
    }
    let line = |(name, points): (String, std::collections::BTreeMap<u32, Vec<f64>>)| Line {
        name,
        points: points
            .into_iter()
            .map(|(percent, figures)| (f64::from(percent), Spread::of(&figures).mean))
            .collect(),
    };
    lines.into_iter().map(line).collect()
}

pub(super) fn draw(runs: &[Run], kind: Kind) -> String {
    let svg = svg(&lines(runs));
    match kind {
        Kind::Svg => svg,
        Kind::Html => format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
             <title>Unallocated GPUs</title>\n<body style=\"margin:2em\">\n{svg}</body>\n</html>\n"
        ),
    }
}

fn svg(lines: &[Line]) -> String {
    let last = |line: &Line| line.points.last().map_or(0.0, |point| point.0);
    let to = lines.iter().map(last).fold(0.0, f64::max);
    // Below 80 % every policy places everything: nothing to see.
    let from = if to > 90.0 { 80.0 } else { 0.0 };
    let seen = lines.iter().flat_map(|line| &line.points);
    let highest = seen.filter(|point| point.0 >= from).map(|point| point.1);
    let top = (highest.fold(1.0, f64::max) / 5.0).ceil() * 5.0;
    let x = |percent: f64| LEFT + (percent - from) / (to - from).max(1.0) * PLOT_WIDTH;
    let y = |percent: f64| TOP + PLOT_HEIGHT - percent / top * PLOT_HEIGHT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    axes(&mut svg, (from, to), top, &x, &y);
    for (at, line) in lines.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let dash = if at < COLOURS.len() {
            ""
        } else {
            " stroke-dasharray=\"6 4\""
        };
        let shown = line.points.iter().filter(|point| point.0 >= from);
        let points: Vec<String> = shown
            .map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash} points=\"{}\"/>",
            points.join(" ")
        );
        let height = TOP + 10.0 + 20.0 * at as f64;
        let right = LEFT + PLOT_WIDTH + 16.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{right}\" x2=\"{}\" y1=\"{height}\" y2=\"{height}\" stroke=\"{colour}\" \
             stroke-width=\"2\"{dash}/><text x=\"{}\" y=\"{}\">{}</text>",
            right + 22.0,
            right + 28.0,
            height + 4.0,
            escaped(&line.name),
        );
    }
    svg + "</svg>\n"
}

fn axes(
    svg: &mut String,
    (from, to): (f64, f64),
    top: f64,
    x: &dyn Fn(f64) -> f64,
    y: &dyn Fn(f64) -> f64,
) {
    let (bottom, right) = (TOP + PLOT_HEIGHT, LEFT + PLOT_WIDTH);
    let mut percent = 0.0;
    while percent <= top {
        let at = y(percent);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{percent} %</text>",
            LEFT - 8.0,
            at + 4.0
        );
        percent += if top > 20.0 { 5.0 } else { 1.0 };
    }
    let mut percent = from;
    while percent <= to {
        let at = x(percent);
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom}\" y2=\"{}\" stroke=\"black\"/>\
             <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{percent} %</text>",
            bottom + 5.0,
            bottom + 20.0
        );
        percent += 10.0;
    }
    let _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{PLOT_WIDTH}\" height=\"{PLOT_HEIGHT}\" fill=\"none\" \
         stroke=\"black\"/>\n<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">GPU share asked by all \
         that arrived, percent of the cluster</text>\n<text x=\"{LEFT}\" y=\"{}\">GPU share left \
         unallocated, percent of the cluster</text>",
        LEFT + PLOT_WIDTH / 2.0,
        bottom + 42.0,
        TOP - 10.0
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
