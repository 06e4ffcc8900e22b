//! All rows of a list, in any form.

use std::io::{self, BufRead, BufReader, Cursor, Read};

use super::bad::{Bad, BadLines, TraceError};
use super::row::{Layout, Row};
use super::{csv, json};

/// All rows of a list in any form; with [`BadLines::Count`] also the rows that were left out.
pub(super) fn rows<T>(
    text: impl Read,
    layout: &'static Layout,
    bad: BadLines,
    mut row: impl FnMut(&Row) -> Result<T, TraceError>,
) -> Result<(Vec<T>, Vec<Bad>), TraceError> {
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    let mut each = |read: Result<&Row, Bad>| {
        match read.map_err(TraceError::from).and_then(&mut row) {
            Ok(row) => rows.push(row),
            Err(TraceError::Row(problem)) if bad == BadLines::Count => left_out.push(problem),
            Err(problem) => return Err(problem),
        }
        Ok(())
    };
    let mut text = BufReader::new(text);
    let (first, blanks) = first_byte(&mut text)?;
    // The blanks are put back, so that lines are counted from the file's beginning.
    let text = Cursor::new(blanks).chain(text);
    match first {
        Some(b'[') => json::read_array(text, layout, &mut each)?,
        Some(b'{') => json::read_lines(text, layout, &mut each)?,
        _ => csv::read(text, layout, &mut each)?,
    }
    Ok((rows, left_out))
}

/// The first byte that is no blank, which is left where it stands, and the blanks before it.
/// A byte order mark is passed over.
fn first_byte(text: &mut impl BufRead) -> io::Result<(Option<u8>, Vec<u8>)> {
    const MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
    let mut before = Vec::new();
    let first = loop {
        let Some(&byte) = text.fill_buf()?.first() else {
            break None;
        };
        let of_mark = before.len() < MARK.len() && MARK[before.len()] == byte;
        if !of_mark && !byte.is_ascii_whitespace() {
            break Some(byte);
        }
        before.push(byte);
        text.consume(1);
    };
    if before.starts_with(&MARK) {
        before.drain(..MARK.len());
    }
    Ok((first, before))
}
