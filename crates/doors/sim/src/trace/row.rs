//! One row as it stands, in any form of list, and the quantities that are read from its texts. Here
//! a text becomes a number, a name or a time, or is named as wrong.

use std::sync::Arc;

use sublet_model::{Bytes, Host, MilliCpu};

use super::bad::{At, Bad, TraceError};

/// Is told of each row, or why it is none.
pub(super) type Each<'a> = dyn FnMut(Result<&Row, Bad>) -> Result<(), TraceError> + 'a;

/// A field, and which of its names is used.
pub(super) type Named = (usize, usize);

/// The fields of a list's rows.
#[derive(Debug)]
pub(super) struct Layout {
    /// For each field its names; of several in a row the first counts.
    pub(super) fields: &'static [&'static [&'static str]],
    /// Fields that no row goes without.
    pub(super) required: &'static [usize],
    /// Fields that a row has all of, or none.
    pub(super) together: &'static [usize],
}

impl Layout {
    /// The field of that name.
    pub(super) fn find(&self, name: &str) -> Option<Named> {
        let fields = self.fields.iter().enumerate();
        fields
            .filter_map(|(field, names)| {
                let alias = names.iter().position(|known| *known == name)?;
                Some((field, alias))
            })
            .next()
    }

    /// A field that is missing where only these are given.
    pub(super) fn missing(&self, given: impl Fn(usize) -> bool) -> Option<usize> {
        let mut wanted = self.required.to_vec();
        if self.together.iter().any(|&field| given(field)) {
            wanted.extend(self.together);
        }
        wanted.into_iter().find(|&field| !given(field))
    }
}

/// One row. The same one is used again for the next, for the sake of its memory.
#[derive(Debug)]
pub(super) struct Row {
    layout: &'static Layout,
    at: At,
    /// Number of the row among all rows, from 1.
    number: u64,
    /// By field.
    cells: Vec<Cell>,
}

#[derive(Debug, Clone, Default)]
struct Cell {
    given: bool,
    /// Index of the name of the field that was used.
    alias: usize,
    /// From 1.
    column: Option<usize>,
    text: String,
}

impl Row {
    pub(super) fn new(layout: &'static Layout) -> Row {
        Row {
            layout,
            at: At::Line(0),
            number: 0,
            cells: vec![Cell::default(); layout.fields.len()],
        }
    }

    /// Empties it for the next row, which stands there.
    pub(super) fn begin(&mut self, at: At) {
        self.at = at;
        self.number += 1;
        for cell in &mut self.cells {
            cell.given = false;
            cell.text.clear();
        }
    }

    /// Sets a field's text. A text under a better name stays. False if the field was given under
    /// the same name before.
    pub(super) fn give(
        &mut self,
        (field, alias): Named,
        column: Option<usize>,
        text: &str,
    ) -> bool {
        let cell = &mut self.cells[field];
        if cell.given && cell.alias <= alias {
            return cell.alias != alias;
        }
        cell.text.clear();
        cell.text.push_str(text.trim());
        (cell.given, cell.alias, cell.column) = (true, alias, column);
        true
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Was it given, be it empty?
    pub(super) fn is_given(&self, field: usize) -> bool {
        self.cells[field].given
    }

    /// The field's text; empty if nothing was given.
    pub(super) fn text(&self, field: usize) -> &str {
        &self.cells[field].text
    }

    pub(super) fn bad(&self, field: usize, expected: &'static str) -> Bad {
        let cell = &self.cells[field];
        let alias = if cell.given { cell.alias } else { 0 };
        Bad {
            at: self.at,
            column: cell.column.filter(|_| cell.given),
            name: self.layout.fields[field][alias].to_owned(),
            value: shortened(&cell.text),
            expected,
        }
    }

    pub(super) fn name(&self, field: usize) -> Result<Arc<str>, Bad> {
        let text = self.text(field);
        let bad = |c: char| !c.is_ascii_graphic() || matches!(c, ',' | ';' | '/' | '"' | '\\');
        if text.is_empty() || text.len() > 200 || text.contains(bad) {
            return Err(self.bad(field, "a name of up to 200 printable ASCII characters"));
        }
        Ok(Arc::from(text))
    }

    pub(super) fn whole(
        &self,
        field: usize,
        most: u64,
        expected: &'static str,
    ) -> Result<u64, Bad> {
        // Some lists write whole numbers as `8.0`.
        let text = self.text(field);
        let text = text.strip_suffix(".0").unwrap_or(text);
        let number: Option<u64> = text.parse().ok();
        number
            .filter(|number| *number <= most)
            .ok_or_else(|| self.bad(field, expected))
    }

    /// A span of time in seconds; parts of a second count as a whole one.
    pub(super) fn span(&self, field: usize) -> Result<Option<u64>, Bad> {
        if self.text(field).is_empty() {
            return Ok(None);
        }
        let seconds = seconds(self.text(field));
        let expected = "a number of seconds below 10^12";
        seconds.map(Some).ok_or_else(|| self.bad(field, expected))
    }

    /// A moment in seconds: a number, or a date and a time of day, which are counted from 1970.
    pub(super) fn moment(&self, field: usize) -> Result<Option<u64>, Bad> {
        let text = self.text(field);
        if text.is_empty() {
            return Ok(None);
        }
        let moment = seconds(text).or_else(|| date(text));
        let expected = "a number of seconds below 10^12, or YYYY-MM-DD hh:mm:ss";
        moment.map(Some).ok_or_else(|| self.bad(field, expected))
    }

    /// CPU and memory; nothing, where neither is given.
    pub(super) fn host(&self, cpu: usize, memory: usize) -> Result<Host, Bad> {
        if !self.is_given(cpu) && !self.is_given(memory) {
            return Ok(Host::default());
        }
        let cpu = self.whole(cpu, 1_000_000_000, "thousandths of a core, at most 10^9")?;
        let mib = self.whole(memory, 1 << 40, "MiB of memory, at most 2^40")?;
        Ok(Host {
            cpu: MilliCpu::new(cpu),
            memory: Bytes::new(mib << 20),
        })
    }
}

/// So much of a text that it can be recognised.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

/// `66`, `66.5`: parts of a second count as a whole one.
fn seconds(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let more = u64::from(part.bytes().any(|byte| byte != b'0'));
    let whole: u64 = whole.parse().ok()?;
    (whole < 1_000_000_000_000).then_some(whole + more)
}

/// `2017-10-09 07:01:55` in seconds from 1970, by a calendar without leap seconds.
fn date(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    let form = b"0000-00-00 00:00:00";
    let fits = |(byte, form): (&u8, &u8)| match form {
        b'0' => byte.is_ascii_digit(),
        other => byte == other,
    };
    if bytes.len() != form.len() || !bytes.iter().zip(form).all(fits) {
        return None;
    }
    let number = |from: usize, to: usize| text[from..to].parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_of = |month: u64| match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    if year < 1970 || !(1..=12).contains(&month) || !(1..=days_of(month)).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // Leap days of all years before: every 4th year, not the 100th, but the 400th.
    let leap_days = |years: u64| years / 4 - years / 100 + years / 400;
    let years = (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969);
    let months: u64 = (1..month).map(days_of).sum();
    let days = years + months + day - 1;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spans_are_rounded_up_and_dates_counted_from_1970() {
        assert_eq!(seconds("66.0"), Some(66));
        assert_eq!(seconds("66.01"), Some(67));
        assert_eq!(seconds("999999999999"), Some(999_999_999_999));
        for bad in ["", ".5", "5.", "1e3", "-1", "1000000000000", "1.2.3"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
        // `date -u +%s -d …` says so.
        assert_eq!(date("1970-01-01 00:00:00"), Some(0));
        assert_eq!(date("2017-10-09 07:01:55"), Some(1_507_532_515));
        assert_eq!(date("2000-02-29 23:59:59"), Some(951_868_799));
        assert_eq!(date("2100-03-01 00:00:00"), Some(4_107_542_400));
        for bad in [
            "2017-02-29 00:00:00",
            "2100-02-29 00:00:00",
            "2017-13-01 00:00:00",
            "2017-00-01 00:00:00",
            "2017-01-00 00:00:00",
            "2017-01-01 24:00:00",
            "2017-01-01 00:60:00",
            "2017-01-01T00:00:00",
            "1969-12-31 23:59:59",
            "2017-1-1 0:0:0",
            "２017-01-01 00:00",
        ] {
            assert_eq!(date(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn the_next_second_is_one_later(at in 0..253_402_300_799_u64) {
            // Written by the civil calendar of Hinnant, which counts years from March.
            let written = |at: u64| {
                let (day, second) = (at / 86_400 + 719_468, at % 86_400);
                let (era, of_era) = (day / 146_097, day % 146_097);
                let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
                let of_year = of_era - (365 * year + year / 4 - year / 100);
                let month = (5 * of_year + 2) / 153;
                let day = of_year - (153 * month + 2) / 5 + 1;
                let (month, late) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
                let (minutes, second) = (second / 60, second % 60);
                format!(
                    "{:04}-{month:02}-{day:02} {:02}:{:02}:{second:02}",
                    era * 400 + year + late, minutes / 60, minutes % 60
                )
            };
            prop_assert_eq!(date(&written(at)), Some(at));
            prop_assert_eq!(date(&written(at + 1)), Some(at + 1));
        }
    }
}
