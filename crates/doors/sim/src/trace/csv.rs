//! Rows of a table: a header line with names, then a line for each row.

use std::collections::BTreeSet;
use std::io::Read;

use csv::{ErrorKind, Position, ReaderBuilder, StringRecord};

use super::bad::{At, Bad, TraceError};
use super::row::{Each, Layout, Named, Row, shortened};

pub(super) fn read(
    text: impl Read,
    layout: &'static Layout,
    each: &mut Each<'_>,
) -> Result<(), TraceError> {
    let mut reader = ReaderBuilder::new()
        .trim(csv::Trim::All)
        .flexible(true)
        .from_reader(text);
    let header = reader.headers()?.clone();
    let columns = columns(&header, layout)?;
    let mut row = Row::new(layout);
    let mut record = StringRecord::new();
    loop {
        match reader.read_record(&mut record) {
            Ok(false) => return Ok(()),
            Ok(true) => {}
            Err(error) => {
                each(Err(not_text(error)?))?;
                continue;
            }
        }
        let at = At::Line(record.position().map_or(0, Position::line));
        row.begin(at);
        if record.len() != header.len() {
            let column = record.len().min(header.len());
            each(Err(Bad {
                at,
                column: Some(column + 1),
                name: header.get(column).unwrap_or("").to_owned(),
                value: shortened(record.get(column).unwrap_or("")),
                expected: match record.get(column) {
                    Some(_) => "the end of the line: the header has no more columns",
                    None => "a value: the header has more columns",
                },
            }))?;
            continue;
        }
        for &(column, field) in &columns {
            row.give(field, Some(column + 1), record.get(column).unwrap_or(""));
        }
        each(Ok(&row))?;
    }
}

/// The columns that mean something, each with its field.
fn columns(
    header: &StringRecord,
    layout: &'static Layout,
) -> Result<Vec<(usize, Named)>, TraceError> {
    let mut names = BTreeSet::new();
    for name in header.iter().filter(|name| !name.is_empty()) {
        if !names.insert(name) {
            return Err(TraceError::Twice(name.to_owned()));
        }
    }
    let known = |(column, name)| Some((column, layout.find(name)?));
    let columns: Vec<_> = header.iter().enumerate().filter_map(known).collect();
    let given = |wanted| columns.iter().any(|&(_, (field, _))| field == wanted);
    if let Some(field) = layout.missing(given) {
        return Err(TraceError::Column {
            wanted: match layout.fields[field] {
                [name, others @ ..] if !others.is_empty() => {
                    format!("{name} (or {})", others.join(", "))
                }
                names => names.concat(),
            },
            found: names.into_iter().map(str::to_owned).collect(),
        });
    }
    Ok(columns)
}

/// A line that is no text is a bad line; all else that goes wrong ends the reading.
fn not_text(error: csv::Error) -> Result<Bad, TraceError> {
    match error.kind() {
        ErrorKind::Utf8 {
            pos: Some(place),
            err,
        } => Ok(Bad {
            at: At::Line(place.line()),
            column: Some(err.field() + 1),
            name: String::new(),
            value: "\u{fffd}".to_owned(),
            expected: "UTF-8 text",
        }),
        _ => Err(error.into()),
    }
}
