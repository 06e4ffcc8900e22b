//! Lists of nodes, of pods and of quotas: CSV with a header line, or JSON with the same names.
//!
//! The columns are those of Alibaba's openb trace and of the Philly jobs; more can be given,
//! unknown ones are passed over. The columns of a node are in `nodes`, those of a pod in `pods`.
//! JSON is an array of objects, or one object on each line; a number may stand in a string, and a
//! field that is missing or null counts as empty. The first byte that is not blank tells the form.
//! Rows are read one by one, so that a list need not fit into memory twice.
//!
//! If cards have no memory given, each has 1000 MiB, so that one thousandth of a card and
//! one MiB are the same: the engine divides cards by memory.

mod csv;
mod json;
mod nodes;
mod pods;
mod quotas;
mod row;

use std::fmt;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::sync::Arc;

use sublet_model::{Claim, NodeFacts, Unit};

use self::row::{Layout, Row};
use crate::snapshot::{Reach, Running};

pub use self::nodes::read_nodes;
pub(crate) use self::pods::claim;
pub use self::pods::read_pods;
pub use self::quotas::{QuotaRow, read_quotas};

/// Memory of a card for which none is given, MiB.
const CARD: u32 = 1000;

/// A pod of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRow {
    /// Its name.
    pub name: Arc<str>,
    /// Its claim. Pods with equal claims share it.
    pub claim: Arc<Claim>,
    /// Higher goes first when pods wait.
    pub priority: i32,
    /// When it comes, in seconds since some moment that is the same for the whole list.
    pub comes: Option<u64>,
    /// Run time, in seconds.
    pub lasts: Option<u64>,
    /// The tenant. Pods of one tenant share the name.
    pub tenant: Option<Arc<str>>,
    /// The nodes that are open to it; `None` for all.
    pub reach: Option<Reach>,
}

/// A list of nodes, and the pods that run on them before anything arrives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeList {
    /// In the order of the list.
    pub rows: Vec<NodeFacts>,
    /// Do the nodes say how much memory their cards have?
    pub by_memory: bool,
    /// Pods that run from the start; lists have none.
    pub running: Vec<Running>,
    /// Amount that one `aliyun.com/gpu-mem` stands for; lists ask in MiB.
    pub unit: Unit,
}

/// A list of pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodList {
    /// In the order of the list.
    pub rows: Vec<PodRow>,
}

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

/// Is told of each row, or why it is none.
type Each<'a> = dyn FnMut(Result<&Row, Bad>) -> Result<(), TraceError> + 'a;

/// All rows of a list in any form; with [`BadLines::Count`] also the rows that were left out.
fn rows<T>(
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

#[cfg(test)]
mod tests;
