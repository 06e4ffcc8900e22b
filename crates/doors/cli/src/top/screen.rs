//! Screen of `sublet top`: cards with bars, jobs below, one line of help. A function from the
//! visible state to a frame; it asks nobody.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use sublet_arbiter::admin::{GpuRow, Snapshot, TenantRow};

use super::columns::{Column, GAP, display_width, fit, shortened};
use crate::align::title;
use crate::compute;
use crate::jobs::{job_cells, job_keys, mib, mps_line};

#[cfg(test)]
mod tests;

/// Characters of a card's bar.
const BAR: usize = 24;

/// The length of each bar if there are two.
const SHORT_BAR: usize = 12;

/// The shortest bar that says anything.
const LEAST_BAR: usize = 8;

/// The state to show.
pub(super) struct Seen {
    /// Name of the machine.
    pub(super) title: String,
    /// The last word of the arbiter.
    pub(super) snapshot: Snapshot,
    /// Reason why the snapshot is not the newest.
    pub(super) trouble: Option<String>,
    /// May colours be used?
    pub(super) colours: bool,
    /// Jobs above the first one that is shown.
    pub(super) scrolled: usize,
}

impl Seen {
    fn colour(&self, colour: Color) -> Style {
        if self.colours {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame, seen: &Seen) {
    let n_gpus = u16::try_from(seen.snapshot.gpus.len()).unwrap_or(u16::MAX);
    let [head, gpus, _, jobs, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(n_gpus.saturating_add(1)),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let room = usize::from(frame.area().width);
    frame.render_widget(headline(seen, room), head);
    frame.render_widget(gpu_table(seen, room), gpus);
    frame.render_widget(job_table(seen, jobs), jobs);
    frame.render_widget(Paragraph::new(foot_line(seen, room)), foot);
}

fn headline(seen: &Seen, room: usize) -> Paragraph<'static> {
    let count = |state: &str| {
        let tenants = seen.snapshot.tenants.iter();
        tenants.filter(|job| job.state == state).count()
    };
    let (running, waiting) = (count("running") + count("over"), count("waiting"));
    let mut text = format!(
        "sublet top  {}  {running} running, {waiting} waiting",
        seen.title
    );
    match count("unmanaged") {
        0 => {}
        n => text += &format!(", {n} unmanaged"),
    }
    if let Some(mps) = &seen.snapshot.mps {
        text += &format!(", MPS {}", mps_line(mps));
    }
    Paragraph::new(shortened(&text, room)).style(Style::new().add_modifier(Modifier::BOLD))
}

fn foot_line(seen: &Seen, room: usize) -> Line<'static> {
    match &seen.trouble {
        Some(trouble) => Line::styled(shortened(trouble, room), seen.colour(Color::Red)),
        None => Line::raw("q ends, ↑ ↓ scroll"),
    }
}

/// A table of these columns: each with its place among `keys`, and its width.
fn table(keys: &[&str], shown: &[(usize, usize)], rows: Vec<Row<'static>>) -> Table<'static> {
    let widths = shown.iter().map(|(_, width)| {
        let width = u16::try_from(*width).unwrap_or(u16::MAX);
        Constraint::Length(width)
    });
    let heading = shown.iter().map(|(at, _)| title(keys[*at]));
    let heading = Row::new(heading.collect::<Vec<_>>());
    Table::new(rows, widths.collect::<Vec<_>>())
        .column_spacing(GAP)
        .header(heading.style(Style::new().add_modifier(Modifier::BOLD)))
}

/// A column of the cards' table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GpuColumn {
    Index,
    MemoryBar,
    Used,
    Granted,
    Free,
    ComputeBar,
    ComputeUsed,
    Model,
}

/// Columns of cards with their keys. Where a bar and a figure show the same, one has it.
const GPU_COLUMNS: [(GpuColumn, &str); 8] = [
    (GpuColumn::Index, "gpu"),
    (GpuColumn::MemoryBar, "memoryMiB"),
    (GpuColumn::Used, "usedMiB"),
    (GpuColumn::Granted, "grantedMiB"),
    (GpuColumn::Free, "freeMiB"),
    (GpuColumn::ComputeBar, ""),
    (GpuColumn::ComputeUsed, "computeUsedPercent"),
    (GpuColumn::Model, "model"),
];

/// Columns of cards, the most important first. What is granted shows in the bar too, and is what is
/// not free.
const GPU_IMPORTANCE: [GpuColumn; 8] = [
    GpuColumn::Index,
    GpuColumn::Used,
    GpuColumn::Free,
    GpuColumn::MemoryBar,
    GpuColumn::ComputeUsed,
    GpuColumn::ComputeBar,
    GpuColumn::Model,
    GpuColumn::Granted,
];

fn gpu_table(seen: &Seen, room: usize) -> Table<'static> {
    let shown = fit(&gpu_columns(&seen.snapshot, room), room);
    let row = |gpu: &GpuRow| {
        let cells = shown.iter().map(|(at, width)| {
            let (column, _) = GPU_COLUMNS[*at];
            match column {
                GpuColumn::MemoryBar => Cell::from(memory_bar(seen, gpu, *width)),
                GpuColumn::ComputeBar => Cell::from(compute_bar(seen, gpu, *width)),
                GpuColumn::Model => model(seen, gpu, *width),
                figure => Cell::from(gpu_text(gpu, figure)),
            }
        });
        Row::new(cells.collect::<Vec<_>>())
    };
    let rows = seen.snapshot.gpus.iter().map(row);
    table(&GPU_COLUMNS.map(|(_, key)| key), &shown, rows.collect())
}

/// Columns that the cards' table may show, the most important first.
fn gpu_columns(snapshot: &Snapshot, room: usize) -> Vec<Column> {
    let with_compute = compute::is_shared(snapshot);
    let fullest: Vec<GpuRow> = snapshot.gpus.iter().map(fullest).collect();
    let is_sick = fullest.iter().any(|gpu| gpu.sick.is_some());
    let mut order = GPU_IMPORTANCE.to_vec();
    if is_sick {
        // Then it says what is the matter.
        order.retain(|column| *column != GpuColumn::Model);
        order.insert(2, GpuColumn::Model);
    }
    let shown = |column: &GpuColumn| {
        let at = GPU_COLUMNS.iter().position(|(known, _)| known == column)?;
        let texts = fullest
            .iter()
            .map(|gpu| display_width(&gpu_text(gpu, *column)));
        let most = texts.max().unwrap_or_default();
        let most = most.max(title(GPU_COLUMNS[at].1).len());
        match column {
            GpuColumn::ComputeBar | GpuColumn::ComputeUsed if !with_compute => None,
            GpuColumn::MemoryBar | GpuColumn::ComputeBar => Some(Column {
                at,
                least: LEAST_BAR,
                most: if with_compute { SHORT_BAR } else { BAR },
            }),
            GpuColumn::Model => Some(Column {
                at,
                least: most.min(LEAST_TEXT),
                most: if is_sick {
                    most.min(WIDEST.max(room / 2))
                } else {
                    most
                },
            }),
            _ => Some(Column::whole(at, most)),
        }
    };
    order.iter().filter_map(shown).collect()
}

/// The card with the longest figures that it can have: columns stay in their place while they change.
fn fullest(gpu: &GpuRow) -> GpuRow {
    let memory = gpu.memory_mib;
    GpuRow {
        used_mib: gpu.used_mib.max(memory),
        granted_mib: gpu.granted_mib.max(memory),
        free_mib: gpu.free_mib.max(memory),
        compute_used_percent: Some(gpu.compute_used_percent.unwrap_or_default().max(100.0)),
        ..gpu.clone()
    }
}

/// Text of a card's cell; none where a bar is drawn.
fn gpu_text(gpu: &GpuRow, column: GpuColumn) -> String {
    match column {
        GpuColumn::Index => gpu.index.to_string(),
        GpuColumn::Used => format!("{}/{}", gpu.used_mib, mib(gpu.memory_mib)),
        GpuColumn::Granted => mib(gpu.granted_mib),
        GpuColumn::Free => mib(gpu.free_mib),
        GpuColumn::ComputeUsed => compute::percent(gpu.compute_used_percent),
        GpuColumn::Model => gpu.sick.as_ref().unwrap_or(&gpu.model).clone(),
        GpuColumn::MemoryBar | GpuColumn::ComputeBar => String::new(),
    }
}

fn model(seen: &Seen, gpu: &GpuRow, width: usize) -> Cell<'static> {
    let text = shortened(&gpu_text(gpu, GpuColumn::Model), width);
    match &gpu.sick {
        Some(_) => Cell::from(text).style(seen.colour(Color::Red)),
        None => Cell::from(text),
    }
}

/// Red if hardly any memory is left.
fn memory_bar(seen: &Seen, gpu: &GpuRow, length: usize) -> Line<'static> {
    let used = width(gpu.used_mib, gpu.memory_mib, length);
    let granted = width(gpu.granted_mib, gpu.memory_mib, length);
    let is_full = used > length * 9 / 10;
    let colour = if is_full { Color::Red } else { Color::Green };
    bar(seen, length, (used, colour), granted)
}

/// Bar of the compute time that jobs used within the last second, and of the time promised to them.
/// A card that is always at work is no cause for alarm.
fn compute_bar(seen: &Seen, gpu: &GpuRow, length: usize) -> Line<'static> {
    let of_bar = |percent: f64| width((percent * 10.0) as u64, 1000, length);
    let used = of_bar(gpu.compute_used_percent.unwrap_or_default());
    let promised = of_bar(gpu.compute_promised_percent);
    bar(seen, length, (used, Color::Green), promised)
}

/// Draws the part in use as a full bar, and the part that is granted and not in use as a light one.
fn bar(seen: &Seen, length: usize, used: (usize, Color), granted: usize) -> Line<'static> {
    let (used, colour) = used;
    let granted = granted.max(used) - used;
    Line::from(vec![
        Span::styled("█".repeat(used), seen.colour(colour)),
        Span::styled("▒".repeat(granted), seen.colour(Color::Blue)),
        Span::raw("·".repeat(length - used - granted)),
    ])
}

/// A part of a bar, rounded up: a little is to be seen.
fn width(part: u64, whole: u64, length: usize) -> usize {
    let part = u128::from(part) * length as u128;
    match u128::from(whole) {
        0 => 0,
        whole => usize::try_from(part.div_ceil(whole))
            .unwrap_or(length)
            .min(length),
    }
}

fn job_table(seen: &Seen, area: Rect) -> Table<'static> {
    let jobs = &seen.snapshot.tenants;
    // The heading takes a line; the last job never leaves the bottom.
    let lines = usize::from(area.height.saturating_sub(1));
    let first = seen.scrolled.min(jobs.len().saturating_sub(lines));
    let jobs = &jobs[first..jobs.len().min(first + lines)];
    let with_compute = compute::is_shared(&seen.snapshot);
    let keys = job_keys(with_compute);
    let texts: Vec<_> = jobs
        .iter()
        .map(|job| job_cells(job, with_compute))
        .collect();
    let room = usize::from(area.width);
    let shown = fit(&job_columns(&keys, &texts, room), room);
    let rows = jobs.iter().zip(texts).map(|(job, texts)| {
        let cells = shown
            .iter()
            .map(|(at, width)| shortened(&texts[*at], *width));
        Row::new(cells.collect::<Vec<_>>()).style(job_style(seen, job))
    });
    table(&keys, &shown, rows.collect())
}

/// Keys of the columns of jobs, the most important first.
const JOB_IMPORTANCE: [&str; 15] = [
    "id",
    "name",
    "state",
    "usedMiB",
    "limitMiB",
    "gpus",
    "computeUsedPercent",
    "reason",
    "computeRequestPercent",
    "turnWaitPercent",
    "lastRefusal",
    "class",
    "requestMiB",
    "pinnedUsedMiB",
    "pids",
];

/// A longer name is cut off, and where there is little room what is the matter with a card.
const WIDEST: usize = 32;

/// A name, a reason or a model is cut to no less than this.
const LEAST_TEXT: usize = 8;

/// Columns that the jobs' table may show, the most important first.
fn job_columns(keys: &[&str], rows: &[Vec<String>], room: usize) -> Vec<Column> {
    let known = |key: &&str| keys.iter().position(|known| known == key);
    let column = |at: usize| {
        let widest = rows.iter().map(|row| display_width(&row[at])).max();
        let most = widest.unwrap_or_default().max(title(keys[at]).len());
        let least = most.min(LEAST_TEXT);
        match keys[at] {
            "name" => Column {
                at,
                least,
                most: most.min(WIDEST.min(room / 4).max(least)),
            },
            "reason" => Column { at, least, most },
            _ => Column::whole(at, most),
        }
    };
    let order = JOB_IMPORTANCE.iter().filter_map(known);
    order.map(column).collect()
}

fn job_style(seen: &Seen, job: &TenantRow) -> Style {
    match job.state.as_str() {
        "over" | "unmanaged" => seen.colour(Color::Red),
        "waiting" | "ending" => seen.colour(Color::Yellow),
        _ => Style::new(),
    }
}
