//! Curves of several policies side by side, as SVG or a page that holds it.

use std::fmt::Write as _;
use std::path::Path;

/// Kind of the written file.
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

/// Curves over one axis.
pub(super) struct Chart {
    /// Title of the page.
    pub(super) title: &'static str,
    /// Curves with their names. A point is its horizontal position, and its height in percent.
    pub(super) curves: Vec<(String, Vec<(f64, f64)>)>,
    /// Start of the axis; points before it are left out.
    pub(super) from: f64,
    /// Label of the horizontal axis, and the unit of its figures.
    pub(super) across: String,
    pub(super) across_unit: &'static str,
    /// Label of the vertical axis.
    pub(super) up: &'static str,
}

/// A step of 1, 2 or 5 times a power of ten, so that about eight steps make up the span.
fn step(span: f64) -> f64 {
    let least = (span / 8.0).max(1e-3);
    let power = 10_f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
    steps
        .into_iter()
        .find(|step| *step >= least)
        .unwrap_or(least)
}

/// Positions on the page.
struct Scale {
    from: f64,
    to: f64,
    top: f64,
}

impl Scale {
    fn x(&self, across: f64) -> f64 {
        LEFT + (across - self.from) / (self.to - self.from).max(f64::MIN_POSITIVE) * PLOT_WIDTH
    }

    fn y(&self, percent: f64) -> f64 {
        TOP + PLOT_HEIGHT - percent / self.top * PLOT_HEIGHT
    }
}

impl Chart {
    pub(super) fn draw(&self, kind: Kind) -> String {
        let svg = self.svg();
        match kind {
            Kind::Svg => svg,
            Kind::Html => format!(
                "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
                 <title>{}</title>\n<body style=\"margin:2em\">\n{svg}</body>\n</html>\n",
                self.title
            ),
        }
    }

    /// End of the axis.
    pub(super) fn to(&self) -> f64 {
        let last = |(_, points): &(String, Vec<(f64, f64)>)| points.last().map_or(0.0, |p| p.0);
        self.curves.iter().map(last).fold(0.0, f64::max)
    }

    fn svg(&self) -> String {
        let seen = self.curves.iter().flat_map(|(_, points)| points);
        let highest = seen
            .filter(|point| point.0 >= self.from)
            .map(|point| point.1);
        let scale = Scale {
            from: self.from,
            to: self.to(),
            // A hair above a round figure is that figure.
            top: (highest.fold(1.0, f64::max) / 5.0 - 1e-6).ceil() * 5.0,
        };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" font-size=\"13\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        self.axes(&mut svg, &scale);
        for (at, (name, points)) in self.curves.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            let dash = if at < COLOURS.len() {
                ""
            } else {
                " stroke-dasharray=\"6 4\""
            };
            let shown = points.iter().filter(|point| point.0 >= self.from);
            let points: Vec<String> = shown
                .map(|point| format!("{:.1},{:.1}", scale.x(point.0), scale.y(point.1)))
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
                escaped(name),
            );
        }
        svg + "</svg>\n"
    }

    fn axes(&self, svg: &mut String, scale: &Scale) {
        let (bottom, right) = (TOP + PLOT_HEIGHT, LEFT + PLOT_WIDTH);
        let marks = |from: f64, to: f64| {
            let step = step(to - from);
            let count = ((to - from) / step + 1e-9) as u32;
            (0..=count).map(move |mark| from + f64::from(mark) * step)
        };
        for percent in marks(0.0, scale.top) {
            let at = scale.y(percent);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{percent} %</text>",
                LEFT - 8.0,
                at + 4.0
            );
        }
        for mark in marks(scale.from, scale.to) {
            let at = scale.x(mark);
            let mark = (mark * 1e3).round() / 1e3;
            let _ = writeln!(
                svg,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom}\" y2=\"{}\" stroke=\"black\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{mark}{}</text>",
                bottom + 5.0,
                bottom + 20.0,
                self.across_unit
            );
        }
        let _ = writeln!(
            svg,
            "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{PLOT_WIDTH}\" height=\"{PLOT_HEIGHT}\" \
             fill=\"none\" stroke=\"black\"/>\n<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}\
             </text>\n<text x=\"{LEFT}\" y=\"{}\">{}</text>",
            LEFT + PLOT_WIDTH / 2.0,
            bottom + 42.0,
            self.across,
            TOP - 10.0,
            self.up
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_figures() {
        let steps = [
            (50.0, 10.0),
            (130.0, 20.0),
            (5.0, 1.0),
            (100.0, 20.0),
            (8.0, 1.0),
            (0.9, 0.2),
        ];
        for (span, wanted) in steps {
            assert!((step(span) - wanted).abs() < 1e-9, "{span}: {}", step(span));
        }
        assert!(step(0.0) > 0.0);
    }
}
