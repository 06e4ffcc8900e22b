//! Screen of `sublet top`: cards with bars, jobs below, one line of help. A function from the
//! visible state to a frame; it asks nobody.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table};
use sublet_arbiter::admin::{GpuRow, Snapshot, TenantRow};

use crate::align::title;
use crate::compute;
use crate::jobs::{job_cells, job_keys, mib, mps_line};

/// Characters of a card's bar.
const BAR: usize = 24;

/// The length of each bar if there are two.
const SHORT_BAR: usize = 12;

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
    frame.render_widget(headline(seen), head);
    frame.render_widget(gpu_table(seen), gpus);
    frame.render_widget(job_table(seen, jobs), jobs);
    frame.render_widget(Paragraph::new(foot_line(seen)), foot);
}

fn headline(seen: &Seen) -> Paragraph<'static> {
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
    Paragraph::new(text).style(Style::new().add_modifier(Modifier::BOLD))
}

fn foot_line(seen: &Seen) -> Line<'static> {
    match &seen.trouble {
        Some(trouble) => Line::styled(trouble.clone(), seen.colour(Color::Red)),
        None => Line::raw("q ends, ↑ ↓ scroll"),
    }
}

/// Names of the columns that show these keys. Where a bar and a figure show the same, one has it.
fn heading(keys: &[&str]) -> Row<'static> {
    let titles = keys.iter().map(|key| title(key));
    Row::new(titles.collect::<Vec<String>>()).style(Style::new().add_modifier(Modifier::BOLD))
}

fn gpu_table(seen: &Seen) -> Table<'static> {
    let with_compute = compute::is_shared(&seen.snapshot);
    let gpus = seen.snapshot.gpus.iter();
    let length = |cells: usize| Constraint::Length(u16::try_from(cells).unwrap_or(u16::MAX));
    if with_compute {
        let rows = gpus.map(|gpu| shared_gpu_row(seen, gpu));
        let bar = length(SHORT_BAR + 2);
        let widths = [4, 0, 18, 11, 0, 5].map(|cells| if cells == 0 { bar } else { length(cells) });
        let widths = widths.into_iter().chain([Constraint::Fill(1)]);
        let keys = [
            "gpu",
            "memoryMiB",
            "usedMiB",
            "freeMiB",
            "computeUsedPercent",
            "",
            "model",
        ];
        return Table::new(rows, widths).header(heading(&keys));
    }
    let rows = gpus.map(|gpu| gpu_row(seen, gpu));
    let widths = [4, BAR + 2, 20, 11, 11].map(length);
    let widths = widths.into_iter().chain([Constraint::Fill(1)]);
    let keys = ["gpu", "", "usedMiB", "grantedMiB", "freeMiB", "model"];
    Table::new(rows, widths).header(heading(&keys))
}

fn gpu_row(seen: &Seen, gpu: &GpuRow) -> Row<'static> {
    Row::new([
        Cell::from(gpu.index.to_string()),
        Cell::from(memory_bar(seen, gpu, BAR)),
        Cell::from(format!("{}/{}", gpu.used_mib, mib(gpu.memory_mib))),
        Cell::from(mib(gpu.granted_mib)),
        Cell::from(mib(gpu.free_mib)),
        model(seen, gpu),
    ])
}

/// A card whose compute time and memory are shared by jobs: the granted memory shows in the bar
/// alone.
fn shared_gpu_row(seen: &Seen, gpu: &GpuRow) -> Row<'static> {
    Row::new([
        Cell::from(gpu.index.to_string()),
        Cell::from(memory_bar(seen, gpu, SHORT_BAR)),
        Cell::from(format!("{}/{}", gpu.used_mib, mib(gpu.memory_mib))),
        Cell::from(mib(gpu.free_mib)),
        Cell::from(compute_bar(seen, gpu)),
        Cell::from(compute::percent(gpu.compute_used_percent)),
        model(seen, gpu),
    ])
}

fn model(seen: &Seen, gpu: &GpuRow) -> Cell<'static> {
    match &gpu.sick {
        Some(problem) => Cell::from(problem.clone()).style(seen.colour(Color::Red)),
        None => Cell::from(gpu.model.clone()),
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
fn compute_bar(seen: &Seen, gpu: &GpuRow) -> Line<'static> {
    let of_bar = |percent: f64| width((percent * 10.0) as u64, 1000, SHORT_BAR);
    let used = of_bar(gpu.compute_used_percent.unwrap_or_default());
    let promised = of_bar(gpu.compute_promised_percent);
    bar(seen, SHORT_BAR, (used, Color::Green), promised)
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
    let room = usize::from(area.height.saturating_sub(1));
    let first = seen.scrolled.min(jobs.len().saturating_sub(room));
    let shown = &jobs[first..jobs.len().min(first + room)];
    let with_compute = compute::is_shared(&seen.snapshot);
    let keys = job_keys(with_compute);
    let cells: Vec<_> = shown
        .iter()
        .map(|job| job_cells(job, with_compute))
        .collect();
    let columns = columns(&keys, &cells, usize::from(area.width));
    let rows = shown.iter().zip(cells).map(|(job, cells)| {
        let cells = columns.iter().map(|(at, _)| Cell::from(cells[*at].clone()));
        Row::new(cells).style(job_style(seen, job))
    });
    let widths = columns.iter().map(|(at, width)| match at {
        at if at + 1 == keys.len() => Constraint::Fill(1),
        _ => Constraint::Length(u16::try_from(*width).unwrap_or(u16::MAX)),
    });
    let shown: Vec<_> = columns.iter().map(|(at, _)| keys[*at]).collect();
    Table::new(rows.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
        .column_spacing(GAP)
        .header(heading(&shown))
}

/// Columns that can be left out if a job has values in them and there is no room, the least
/// important first.
const DISPENSABLE: [&str; 7] = [
    "pids",
    "pinnedUsedMiB",
    "requestMiB",
    "class",
    "lastRefusal",
    "turnWaitPercent",
    "computeRequestPercent",
];

/// A name or a list of processes that is longer is cut off.
const WIDEST: usize = 32;

/// Blanks between two columns.
const GAP: u16 = 2;

/// Chooses the columns of `rows` to show in so much room, and their widths. The last one has the
/// room that is left.
fn columns(keys: &[&str], rows: &[Vec<String>], room: usize) -> Vec<(usize, usize)> {
    let width = |at: usize| {
        let cells = rows.iter().map(|cells| cells[at].chars().count());
        let is_last = at + 1 == keys.len();
        let most = if is_last { usize::MAX } else { WIDEST };
        let widest = cells.max().unwrap_or_default().min(most);
        widest.max(title(keys[at]).len())
    };
    let mut shown: Vec<(usize, usize)> = (0..keys.len()).map(|at| (at, width(at))).collect();
    for key in DISPENSABLE {
        let gaps = usize::from(GAP) * (shown.len() - 1);
        let wanted: usize = shown.iter().map(|(_, width)| width).sum();
        if wanted + gaps <= room {
            break;
        }
        shown.retain(|(at, _)| keys[*at] != key);
    }
    shown
}

fn job_style(seen: &Seen, job: &TenantRow) -> Style {
    match job.state.as_str() {
        "over" | "unmanaged" => seen.colour(Color::Red),
        "waiting" | "ending" => seen.colour(Color::Yellow),
        _ => Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::jobs::tests::{example, example_of_shares};

    fn seen() -> Seen {
        Seen {
            title: "2x16GiB".to_owned(),
            snapshot: example(),
            trouble: None,
            colours: true,
            scrolled: 0,
        }
    }

    fn terminal(seen: &Seen, width: u16, height: u16) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, seen)).unwrap();
        terminal
    }

    fn lines(seen: &Seen, width: u16, height: u16) -> Vec<String> {
        let terminal = terminal(seen, width, height);
        let buffer = terminal.backend().buffer();
        let cells: Vec<_> = buffer
            .content()
            .iter()
            .map(ratatui::buffer::Cell::symbol)
            .collect();
        cells
            .chunks(usize::from(width))
            .map(|line| line.concat().trim_end().to_owned())
            .collect()
    }

    #[test]
    fn a_screen_shows_cards_jobs_and_help() {
        assert_eq!(
            lines(&seen(), 140, 11),
            [
                "sublet top  2x16GiB  2 running, 1 waiting, 1 unmanaged",
                "GPU                             USED                 GRANTED     FREE        MODEL",
                "0    ███████▒▒▒▒▒············   4200/16384 MiB       8192 MiB    8192 MiB    Fake",
                "1    ························   0/16384 MiB          0 MiB       16384 MiB   Fake",
                "",
                "ID  NAME   STATE        GPUS  REQUEST       LIMIT     USED      PINNED USED  \
                 LAST REFUSAL      PIDS   REASON",
                "1   train  running      0     4096 MiB      4096 MiB  3000 MiB  40 MiB       \
                 512 MiB, 3 s ago  11,12",
                "2   serve  over         0,1   2 × 4096 MiB  1024 MiB  1200 MiB  0/512 MiB    \
                 -                 -      uses 176 MiB more than its limit",
                "3   later  waiting (1)  -     4096 MiB      -         0 MiB     0 MiB        \
                 -                 -      GPU 0 lacks 1 MiB",
                "-   stray  unmanaged    0     -             -         480 MiB   -            \
                 -                 99",
                "q ends, ↑ ↓ scroll",
            ]
        );
    }

    #[test]
    fn shared_compute_time_has_a_bar_beside_that_of_memory() {
        let mut shared = seen();
        shared.snapshot = example_of_shares();
        let wide = lines(&shared, 190, 11);
        assert_eq!(
            wide[1..3],
            [
                "GPU  MEMORY         USED               FREE        COMPUTE USED         MODEL",
                "0    ████▒▒······   4200/16384 MiB     8192 MiB    ███████████·   85 %  Fake",
            ]
        );
        assert!(
            wide[5].contains("COMPUTE REQUEST  COMPUTE USED  TURN WAIT"),
            "{wide:?}"
        );
        let narrow = lines(&shared, 80, 11);
        assert_eq!(narrow[1..3], wide[1..3]);
        assert_eq!(
            narrow[5],
            "ID  NAME   STATE        GPUS  LIMIT     USED      COMPUTE USED  REASON"
        );
    }

    #[test]
    fn scrolling_ends_at_the_last_job() {
        let mut far = seen();
        far.scrolled = 100;
        let lines = lines(&far, 120, 9);
        assert!(lines[6].starts_with("3   later"), "{lines:?}");
        assert!(lines[7].starts_with("-   stray"), "{lines:?}");
    }

    #[test]
    fn a_narrow_terminal_shows_why_before_it_shows_processes() {
        let heading = |width| lines(&seen(), width, 11)[5].clone();
        assert!(heading(140).contains("PIDS"));
        assert!(!heading(105).contains("PIDS"));
        let narrow = lines(&seen(), 80, 11);
        assert_eq!(
            narrow[5],
            "ID  NAME   STATE        GPUS  LIMIT     USED      REASON"
        );
        assert_eq!(
            narrow[7],
            "2   serve  over         0,1   1024 MiB  1200 MiB  uses 176 MiB more than its lim"
        );
        let mut long = seen();
        long.snapshot.tenants[0].name = "n".repeat(100);
        let cut = lines(&long, 140, 11);
        assert!(cut[8].ends_with("GPU 0 lacks 1 MiB"), "{cut:?}");
    }

    #[test]
    fn trouble_is_said_and_colours_can_be_left_out() {
        let mut plain = seen();
        plain.trouble = Some("the arbiter is gone".to_owned());
        plain.colours = false;
        assert_eq!(lines(&plain, 80, 12)[11], "the arbiter is gone");
        let terminal = terminal(&plain, 80, 12);
        let cells = terminal.backend().buffer().content();
        assert!(cells.iter().all(|cell| cell.fg == Color::Reset));
    }

    #[test]
    fn no_size_breaks_it() {
        for (width, height) in [(1, 1), (5, 3), (300, 2), (0, 0), (40, 100)] {
            let _drawn = terminal(&seen(), width, height);
        }
        let mut empty = seen();
        empty.snapshot = Snapshot::default();
        assert!(lines(&empty, 80, 8)[0].contains("0 running"));
        let widths = [width(1, 0, BAR), width(1, 16384, BAR), width(9, 3, BAR)];
        assert_eq!(widths, [0, 1, BAR]);
    }
}
