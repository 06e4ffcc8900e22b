//! Columns of text, aligned as Go's `text/tabwriter` aligns them.
//!
//! `kubectl inspect gpushare` has always printed through that writer, and scripts cut its
//! output by position, so the same rules are followed to the last space (minimum width 0,
//! padding 2, filled with blanks). Our own tables use it too. It never wraps or shortens.

use std::fmt::Write;

/// Blanks between columns.
const PADDING: usize = 2;

/// Replaces tabs by blanks: a cell is text that ends in a tab; a column is a run of
/// consecutive lines that all have a cell there, and is as wide as its longest cell plus two.
/// Text after a line's last tab is no cell.
#[must_use]
pub(crate) fn align(text: &str) -> String {
    let lines: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split('\t').collect())
        .collect();
    let n_cells: Vec<usize> = lines.iter().map(|line| line.len() - 1).collect();
    let mut widths: Vec<Vec<usize>> = n_cells.iter().map(|&n| vec![0; n]).collect();
    for column in 0..n_cells.iter().copied().max().unwrap_or(0) {
        let mut from = 0;
        while from < lines.len() {
            let run = n_cells[from..].iter().take_while(|&&n| n > column).count();
            let block = from..from + run;
            let longest = lines[block.clone()]
                .iter()
                .map(|line| line[column].chars().count())
                .max();
            for line in &mut widths[block] {
                line[column] = longest.unwrap_or(0) + PADDING;
            }
            from += run + 1;
        }
    }
    let mut aligned = String::with_capacity(text.len() * 2);
    for (line, widths) in lines.iter().zip(&widths) {
        for (cell, &width) in line.iter().zip(widths) {
            let _never_fails = write!(aligned, "{cell:<width$}");
        }
        aligned.push_str(line.last().unwrap_or(&""));
        aligned.push('\n');
    }
    aligned
}

/// Units at the end of keys of the JSON form. A column's name leaves the unit out, because its cells
/// have it.
pub(crate) const UNITS: [&str; 8] = [
    "MiB", "Bytes", "Percent", "Milli", "Ms", "Us", "Seconds", "GpuHours",
];

/// Name of the column that shows a key of the JSON form: its words in capitals, without the unit.
/// `waitSeconds.p50` is `WAIT P50`.
#[must_use]
pub(crate) fn title(key: &str) -> String {
    let mut title = String::with_capacity(key.len() + 4);
    for part in key.split('.') {
        let stems = UNITS.iter().filter_map(|unit| part.strip_suffix(unit));
        let stem = stems.min_by_key(|stem| stem.len()).unwrap_or(part);
        if !title.is_empty() {
            title.push(' ');
        }
        for letter in stem.chars() {
            if letter.is_ascii_uppercase() {
                title.push(' ');
            }
            title.push(letter.to_ascii_uppercase());
        }
    }
    title
}

/// A table of our own with a column for each of these keys of the JSON form, so that a column and
/// its key cannot have different names.
#[must_use]
pub(crate) fn columns(keys: &[&str], rows: &[Vec<String>]) -> String {
    let titles: Vec<String> = keys.iter().map(|key| title(key)).collect();
    let heading: Vec<&str> = titles.iter().map(String::as_str).collect();
    table(&heading, rows)
}

/// A table of our own: a heading, rows, two blanks between columns and none at line ends. For
/// headings that are values, such as the policies that were compared; else [`columns`] is right.
#[must_use]
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = heading.join("\t");
    text.push('\n');
    for row in rows {
        text.push_str(&row.join("\t"));
        text.push('\n');
    }
    let aligned = align(&text);
    let lines: Vec<&str> = aligned.lines().map(str::trim_end).collect();
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_ends_with_its_run_of_lines() {
        let check = |text: &str| align(text).replace(' ', "·");
        assert_eq!(check("a\tb\nlong\tb\n"), "a·····b\nlong··b\n");
        assert_eq!(check("a\tb\n--\nlong\tb\n"), "a··b\n--\nlong··b\n");
        assert_eq!(check("a\tbbb\t\nx\n"), "a··bbb··\nx\n");
        assert_eq!(
            check("a\tb\tc\nd\te\nf\tgg\th\n"),
            "a··b··c\nd··e\nf··gg··h\n"
        );
        assert_eq!(check("ä\t\tb\n"), "ä····b\n");
        assert_eq!(check(""), "");
        assert_eq!(check("\n\n"), "\n\n");
    }

    #[test]
    fn a_column_has_the_name_of_its_key_without_the_unit() {
        for (key, name) in [
            ("name", "NAME"),
            ("limitMiB", "LIMIT"),
            ("pinnedUsedMiB", "PINNED USED"),
            ("turnWaitPercent", "TURN WAIT"),
            ("waitedMs", "WAITED"),
            ("lostWorkGpuHours", "LOST WORK"),
            ("startsWhen", "STARTS WHEN"),
            ("waitSeconds.p50", "WAIT P50"),
            ("gpus", "GPUS"),
        ] {
            assert_eq!(title(key), name);
        }
        let rows = [vec!["1".to_owned(), "2 MiB".to_owned()]];
        assert_eq!(
            columns(&["gpu", "usedMiB"], &rows),
            "GPU  USED\n1    2 MiB\n"
        );
    }

    #[test]
    fn our_tables_have_no_blanks_at_line_ends() {
        let rows = [vec!["a".to_owned(), "b".to_owned()]];
        assert_eq!(table(&["NAME", "X"], &rows), "NAME  X\na     b\n");
    }
}
