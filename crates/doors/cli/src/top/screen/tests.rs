//! What the screen shows in so many cells.

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
            "GPU  MEMORY                    USED             GRANTED    FREE       MODEL",
            "0    ███████▒▒▒▒▒············  4200/16384 MiB   8192 MiB   8192 MiB   Fake",
            "1    ························  0/16384 MiB      0 MiB      16384 MiB  Fake",
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
    let bar = " ".repeat(14);
    assert_eq!(
        wide[1],
        format!(
            "GPU  MEMORY        USED             GRANTED    FREE       {bar}COMPUTE USED  MODEL"
        )
    );
    assert_eq!(
        wide[2],
        "0    ████▒▒······  4200/16384 MiB   8192 MiB   8192 MiB   ███████████·  85 %          Fake"
    );
    assert!(
        wide[5].contains("COMPUTE REQUEST  COMPUTE USED  TURN WAIT"),
        "{wide:?}"
    );
    let narrow = lines(&shared, 80, 11);
    assert_eq!(
        narrow[1],
        format!("GPU  MEMORY        USED             FREE       {bar}COMPUTE USED  MODEL")
    );
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
        "2   serve  over         0,1   1024 MiB  1200 MiB  uses 176 MiB more than its li…"
    );
    let mut long = seen();
    long.snapshot.tenants[0].name = "n".repeat(100);
    let cut = lines(&long, 140, 11);
    assert!(cut[8].ends_with("GPU 0 lacks 1 MiB"), "{cut:?}");
}

#[test]
fn forty_columns_show_who_uses_what() {
    assert_eq!(
        lines(&seen(), 40, 11),
        [
            "sublet top  2x16GiB  2 running, 1 waiti…",
            "GPU  USED             FREE       MODEL",
            "0    4200/16384 MiB   8192 MiB   Fake",
            "1    0/16384 MiB      16384 MiB  Fake",
            "",
            "ID  NAME   STATE        GPUS  USED",
            "1   train  running      0     3000 MiB",
            "2   serve  over         0,1   1200 MiB",
            "3   later  waiting (1)  -     0 MiB",
            "-   stray  unmanaged    0     480 MiB",
            "q ends, ↑ ↓ scroll",
        ]
    );
    let mut sick = seen();
    sick.snapshot.gpus[1].sick = Some("the driver says: GPU is lost (15)".to_owned());
    assert_eq!(
        lines(&sick, 40, 11)[1..4],
        [
            "GPU  USED             MODEL",
            "0    4200/16384 MiB   Fake",
            "1    0/16384 MiB      the driver says:…",
        ]
    );
}

/// Machines whose texts are longer than most terminals are wide.
fn full_machines() -> [Seen; 4] {
    let mut long = seen();
    long.snapshot = example_of_shares();
    let jobs = &mut long.snapshot.tenants;
    jobs[0].name = "train-20261128-0930-resnet152-of-somebody".to_owned();
    jobs[0].pids = (4_190_000..4_190_020).collect();
    jobs[1].reason = Some("uses 1234567 MiB more than its limit of 7654321 MiB".to_owned());
    jobs[1].gpus = (0..16).collect();
    for gpu in &mut long.snapshot.gpus {
        (gpu.memory_mib, gpu.used_mib) = (1_843_200, 1_843_199);
        gpu.model = "NVIDIA GB300 288GB HBM3e".to_owned();
    }
    let mut sick = seen();
    sick.snapshot.gpus[1].sick = Some("Xid 79: GPU has fallen off the bus 12345".to_owned());
    sick.trouble = Some("cannot talk to process 12345678; looking for a new one".to_owned());
    let mut shares = seen();
    shares.snapshot = example_of_shares();
    [seen(), shares, long, sick]
}

/// A word of the screen, or the beginning of one that is cut and says so.
fn is_whole(word: &str, words: &[&str]) -> bool {
    let digit = |c: char| c.is_ascii_digit();
    let begins = |whole: &str, kept: &str| {
        let rest = whole.strip_prefix(kept);
        rest.is_some_and(|rest| !(kept.ends_with(digit) && rest.starts_with(digit)))
    };
    words.iter().any(|whole| {
        let cut = word.strip_suffix('…');
        *whole == word || cut.is_some_and(|kept| begins(whole, kept))
    })
}

#[test]
fn no_width_cuts_a_digit() {
    for seen in full_machines() {
        let whole = lines(&seen, 600, 12);
        for width in 20..=200 {
            for (line, whole) in lines(&seen, width, 12).iter().zip(&whole) {
                let words: Vec<&str> = whole.split_whitespace().collect();
                let of_bars = |word: &&str| word.chars().all(|c| "█▒·".contains(c));
                let mut shown = line.split_whitespace().filter(|word| !of_bars(word));
                let cut = shown.find(|word| !is_whole(word, &words));
                assert_eq!(cut, None, "{width} columns: {line}\nof {whole}");
            }
        }
    }
}

#[test]
fn every_column_has_its_importance() {
    let mut keys = job_keys(true);
    let mut known = JOB_IMPORTANCE.to_vec();
    keys.sort_unstable();
    known.sort_unstable();
    assert_eq!(known, keys);
    assert!(
        GPU_COLUMNS
            .iter()
            .all(|(column, _)| GPU_IMPORTANCE.contains(column))
    );
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
