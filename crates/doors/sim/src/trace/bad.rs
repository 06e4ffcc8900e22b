//! Rows of a list that cannot be used, and reasons why a list cannot be read.

use std::fmt;
use std::io;

/// The treatment of a row that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BadLines {
    /// Stop at it.
    #[default]
    Stop,
    /// Leave it out and count it.
    Count,
}

/// The place of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// On that line of the file, from 1.
    Line(u64),
    /// At that place of a JSON array, from 1.
    Item(u64),
}

/// A row that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    /// Place of the row.
    pub at: At,
    /// The column, from 1, where there are columns.
    pub column: Option<usize>,
    /// The name of the column or field; empty where it is not one that is wrong.
    pub name: String,
    /// The value as it stands, shortened; empty if nothing is there.
    pub value: String,
    /// The expected value, in words.
    pub expected: &'static str,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Line(line) => write!(f, "line {line}"),
            At::Item(item) => write!(f, "item {item}"),
        }
    }
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, name) = (self.at, &self.name);
        match self.column {
            Some(column) if name.is_empty() => write!(f, "{place}, column {column}")?,
            Some(column) => write!(f, "{place}, column {column} (`{name}`)")?,
            None if name.is_empty() => write!(f, "{place}")?,
            None => write!(f, "{place}, field `{name}`")?,
        }
        match (&*self.value, self.expected) {
            ("", expected) => write!(f, ": nothing there; expected {expected}"),
            (value, expected) => write!(f, ": `{value}` is not {expected}"),
        }
    }
}

impl std::error::Error for Bad {}

fn there_are(columns: &[String]) -> String {
    match columns {
        [] => "it is empty".to_owned(),
        _ => format!("there are {}", columns.join(", ")),
    }
}

/// Reason why a list cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A row that cannot be used.
    #[error(transparent)]
    Row(#[from] Bad),
    /// The header lacks a column.
    #[error("line 1: there is no column `{wanted}`; {}", there_are(found))]
    Column {
        /// The column, with its other names.
        wanted: String,
        /// Columns of the header.
        found: Vec<String>,
    },
    /// The header has a column twice.
    #[error("line 1: column `{0}` is there twice")]
    Twice(String),
    /// Not such a table at all, or the file cannot be read on.
    #[error("{0}")]
    Table(#[from] ::csv::Error),
    /// Not such an array at all, or the file cannot be read on.
    #[error("not an array of objects: {0}")]
    Array(#[from] serde_json::Error),
    /// The file cannot be read on.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Pods ask in another unit than nodes give.
    #[error("`gpu_memory_mib` must be in both lists or in neither")]
    Units,
}
