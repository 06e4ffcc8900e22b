//! Lists of nodes and of pods, as text with a header line, one row each.
//!
//! The columns are those of Alibaba's openb trace; more can be given, unknown ones are passed
//! over. A node: `sn` (or `name`), `cpu_milli`, `memory_mib`, `gpu`, `model`, and
//! `gpu_memory_mib` where cards are rented by memory. A pod: `name`, `cpu_milli`,
//! `memory_mib`, `num_gpu`, `gpu_milli` or `gpu_memory_mib` (of each GPU), `gpu_spec`
//! (`A|B`: models accepted), `priority`, `creation_time`, and `deletion_time` or `duration`
//! in seconds.
//!
//! Where cards have no memory given, each has 1000 MiB, so that one thousandth of a card and
//! one MiB are the same: the engine divides cards by memory.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use sublet_model::{
    Ask, Bytes, Claim, ContainerClaim, ContainerName, Count, Demand, Dialect, Host, MiB, MilliCpu,
    Models, Portion, Role,
};

/// What a card has whose memory is not given.
const CARD: u32 = 1000;

/// A node of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRow {
    /// Its name.
    pub name: Arc<str>,
    /// CPU and memory.
    pub host: Host,
    /// How many cards.
    pub gpus: u32,
    /// Memory of each card.
    pub gpu_memory: MiB,
    /// The cards' model; may be empty.
    pub model: Arc<str>,
}

/// A pod of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRow {
    /// Its name.
    pub name: Arc<str>,
    /// What it asks. Pods that ask the same share it.
    pub claim: Arc<Claim>,
    /// Higher goes first when pods wait.
    pub priority: i32,
    /// When it comes, in seconds from the start of the trace.
    pub comes: Option<u64>,
    /// How long it runs, in seconds.
    pub lasts: Option<u64>,
}

/// A list of nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    /// In the order of the list.
    pub rows: Vec<NodeRow>,
    /// Do the nodes say how much memory their cards have?
    pub by_memory: bool,
}

/// A list of pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pods {
    /// In the order of the list.
    pub rows: Vec<PodRow>,
}

/// What to do with a row that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BadLines {
    /// Stop at it.
    #[default]
    Stop,
    /// Leave it out and count it.
    Count,
}

/// A row that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column} (`{name}`): `{value}` is not {expected}")]
pub struct Bad {
    /// The line, from 1.
    pub line: u64,
    /// The column, from 1.
    pub column: usize,
    /// The column's name.
    pub name: String,
    /// What stands there.
    pub value: String,
    /// What should.
    pub expected: &'static str,
}

/// Why a list cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A row that cannot be used.
    #[error(transparent)]
    Row(#[from] Bad),
    /// The header lacks a column.
    #[error("line 1: there is no column `{wanted}`; there are {}", found.join(", "))]
    Column {
        /// The column, with its other names.
        wanted: &'static str,
        /// What the header has.
        found: Vec<String>,
    },
    /// The header has a column twice.
    #[error("line 1: column `{0}` is there twice")]
    Twice(String),
    /// Not such a table at all, or the file cannot be read on.
    #[error("{0}")]
    Table(#[from] csv::Error),
    /// Pods ask in another unit than nodes give.
    #[error("column `gpu_memory_mib` must be in both lists or in neither")]
    Units,
}

/// A table, row by row, with its columns by name.
struct Table<R> {
    reader: csv::Reader<R>,
    names: BTreeMap<String, usize>,
    row: csv::StringRecord,
}

impl<R: Read> Table<R> {
    fn new(text: R) -> Result<Table<R>, TraceError> {
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .from_reader(text);
        let mut names = BTreeMap::new();
        for (at, name) in reader.headers()?.iter().enumerate() {
            let name = name.trim_start_matches('\u{feff}').to_owned();
            if !name.is_empty() && names.insert(name.clone(), at).is_some() {
                return Err(TraceError::Twice(name));
            }
        }
        Ok(Table {
            reader,
            names,
            row: csv::StringRecord::new(),
        })
    }

    fn find(&self, names: &[&str]) -> Option<usize> {
        names.iter().find_map(|name| self.names.get(*name).copied())
    }

    fn need(&self, names: &[&str], wanted: &'static str) -> Result<usize, TraceError> {
        self.find(names).ok_or_else(|| TraceError::Column {
            wanted,
            found: self.names.keys().cloned().collect(),
        })
    }

    fn next(&mut self) -> Result<bool, TraceError> {
        Ok(self.reader.read_record(&mut self.row)?)
    }

    fn text(&self, at: usize) -> &str {
        self.row.get(at).unwrap_or("")
    }

    fn bad(&self, at: usize, expected: &'static str) -> Bad {
        let name = self.names.iter().find(|(_, column)| **column == at);
        Bad {
            line: self.row.position().map_or(0, csv::Position::line),
            column: at + 1,
            name: name.map_or(String::new(), |(name, _)| name.clone()),
            value: self.text(at).chars().take(40).collect(),
            expected,
        }
    }

    fn name(&self, at: usize) -> Result<Arc<str>, Bad> {
        let text = self.text(at);
        let bad = |c: char| !c.is_ascii_graphic() || matches!(c, ',' | ';' | '/' | '"' | '\\');
        if text.is_empty() || text.len() > 200 || text.contains(bad) {
            return Err(self.bad(at, "a name of up to 200 printable ASCII characters"));
        }
        Ok(Arc::from(text))
    }

    fn number(&self, at: usize, most: u64, expected: &'static str) -> Result<u64, Bad> {
        // Some lists write whole numbers as `8.0`.
        let text = self.text(at);
        let text = text.strip_suffix(".0").unwrap_or(text);
        let number: Option<u64> = text.parse().ok();
        number
            .filter(|number| *number <= most)
            .ok_or_else(|| self.bad(at, expected))
    }

    fn seconds(&self, at: Option<usize>) -> Result<Option<u64>, Bad> {
        match at {
            Some(at) if !self.text(at).is_empty() => {
                let expected = "a whole number of seconds below 10^12";
                self.number(at, 1_000_000_000_000, expected).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn host(&self, cpu: usize, memory: usize) -> Result<Host, Bad> {
        let cpu = self.number(cpu, 1_000_000_000, "thousandths of a core, at most 10^9")?;
        let mib = self.number(memory, 1 << 40, "MiB of memory, at most 2^40")?;
        Ok(Host {
            cpu: MilliCpu::new(cpu),
            memory: Bytes::new(mib << 20),
        })
    }
}

/// Reads a list of nodes; with [`BadLines::Count`] also what was left out.
///
/// # Errors
/// No such table, a column missing, or a row that cannot be used.
pub fn read_nodes(text: impl Read, bad: BadLines) -> Result<(Nodes, Vec<Bad>), TraceError> {
    let mut table = Table::new(text)?;
    let name = table.need(&["sn", "name"], "sn (or name)")?;
    let cpu = table.need(&["cpu_milli"], "cpu_milli")?;
    let memory = table.need(&["memory_mib"], "memory_mib")?;
    let gpus = table.need(&["gpu", "num_gpu"], "gpu")?;
    let model = table.find(&["model"]);
    let gpu_memory = table.find(&["gpu_memory_mib"]);
    let mut names = std::collections::BTreeSet::new();
    let row = |table: &Table<_>| -> Result<NodeRow, Bad> {
        let name_text = table.name(name)?;
        if !names.insert(name_text.clone()) {
            return Err(table.bad(name, "a name of its own: an earlier line has it"));
        }
        let gpus = table.number(gpus, 4096, "a number of GPUs, at most 4096")?;
        let card = match gpu_memory {
            None => u64::from(CARD),
            Some(at) => table.number(at, u64::from(u32::MAX), "MiB of each GPU's memory")?,
        };
        Ok(NodeRow {
            name: name_text,
            host: table.host(cpu, memory)?,
            gpus: gpus as u32,
            gpu_memory: MiB::from(card as u32),
            model: Arc::from(model.map_or("", |at| table.text(at))),
        })
    };
    let (rows, left_out) = rows(&mut table, bad, row)?;
    let by_memory = gpu_memory.is_some();
    Ok((Nodes { rows, by_memory }, left_out))
}

/// Reads a list of pods for those nodes; with [`BadLines::Count`] also what was left out.
///
/// # Errors
/// No such table, a column missing, or a row that cannot be used.
pub fn read_pods(
    text: impl Read,
    nodes: &Nodes,
    bad: BadLines,
) -> Result<(Pods, Vec<Bad>), TraceError> {
    let mut table = Table::new(text)?;
    let columns = PodColumns {
        name: table.need(&["name"], "name")?,
        cpu: table.need(&["cpu_milli"], "cpu_milli")?,
        memory: table.need(&["memory_mib"], "memory_mib")?,
        gpus: table.need(&["num_gpu"], "num_gpu")?,
        portion: if nodes.by_memory {
            table.find(&["gpu_memory_mib"]).ok_or(TraceError::Units)?
        } else {
            table.need(&["gpu_milli"], "gpu_milli")?
        },
        spec: table.find(&["gpu_spec"]),
        priority: table.find(&["priority"]),
        comes: table.find(&["creation_time"]),
        ends: table.find(&["deletion_time"]),
        lasts: table.find(&["duration"]),
    };
    let mut claims = BTreeMap::new();
    let by_memory = nodes.by_memory;
    let (rows, left_out) = rows(&mut table, bad, |table| {
        columns.row(table, by_memory, &mut claims)
    })?;
    Ok((Pods { rows }, left_out))
}

fn rows<R: Read, T>(
    table: &mut Table<R>,
    bad: BadLines,
    mut row: impl FnMut(&Table<R>) -> Result<T, Bad>,
) -> Result<(Vec<T>, Vec<Bad>), TraceError> {
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    while table.next()? {
        match row(table) {
            Ok(row) => rows.push(row),
            Err(problem) if bad == BadLines::Count => left_out.push(problem),
            Err(problem) => return Err(problem.into()),
        }
    }
    Ok((rows, left_out))
}

struct PodColumns {
    name: usize,
    cpu: usize,
    memory: usize,
    gpus: usize,
    /// Of each GPU: thousandths, or MiB.
    portion: usize,
    spec: Option<usize>,
    priority: Option<usize>,
    comes: Option<usize>,
    ends: Option<usize>,
    lasts: Option<usize>,
}

/// What makes two claims equal.
type ClaimKey = (Host, Ask, Models);

impl PodColumns {
    fn row<R: Read>(
        &self,
        table: &Table<R>,
        by_memory: bool,
        claims: &mut BTreeMap<ClaimKey, Arc<Claim>>,
    ) -> Result<PodRow, Bad> {
        let name = table.name(self.name)?;
        let host = table.host(self.cpu, self.memory)?;
        let ask = self.ask(table, by_memory)?;
        let models = match self.spec {
            Some(at) if ask != Ask::Nothing => {
                let words = table.text(at).split('|').map(str::trim);
                Models::new(words.filter(|word| !word.is_empty()).map(Arc::from))
            }
            _ => Models::default(),
        };
        let key = (host, ask, models);
        let claim = claims
            .entry(key)
            .or_insert_with_key(|key| Arc::new(claim(key)));
        let priority = match self.priority {
            Some(at) if !table.text(at).is_empty() => {
                let priority = table.text(at).parse();
                priority.map_err(|_| table.bad(at, "a priority, a whole number"))?
            }
            _ => 0,
        };
        let comes = table.seconds(self.comes)?;
        let lasts = match (table.seconds(self.lasts)?, table.seconds(self.ends)?) {
            (Some(lasts), _) => Some(lasts),
            (None, Some(end)) => {
                let lasts = end.checked_sub(comes.unwrap_or(0));
                let at = self.ends.unwrap_or(0);
                Some(lasts.ok_or_else(|| table.bad(at, "a time after creation_time"))?)
            }
            (None, None) => None,
        };
        Ok(PodRow {
            name,
            claim: claim.clone(),
            priority,
            comes,
            lasts,
        })
    }

    fn ask<R: Read>(&self, table: &Table<R>, by_memory: bool) -> Result<Ask, Bad> {
        let gpus = table.number(self.gpus, 4096, "a number of GPUs, at most 4096")? as u32;
        if gpus == 0 {
            return Ok(Ask::Nothing);
        }
        let at = self.portion;
        if by_memory {
            // Nothing given: whole cards.
            if table.text(at).is_empty() {
                return Ok(Ask::WholeCards(Count::new(gpus)));
            }
            let mib = table.number(at, u64::from(u32::MAX), "MiB of each GPU's memory")? as u32;
            return match (gpus, mib) {
                (_, 0) => Err(table.bad(at, "MiB of a GPU above 0")),
                (1, mib) => Ok(Ask::OneCard(MiB::from(mib))),
                _ => Err(table.bad(at, "empty, as it must be with several GPUs (whole ones)")),
            };
        }
        let milli = table.number(at, u64::from(u32::MAX), "thousandths of each GPU")? as u32;
        match (gpus, milli.min(CARD)) {
            (_, 0) => Err(table.bad(at, "thousandths of each GPU, above 0 where num_gpu is")),
            (gpus, CARD) => Ok(Ask::WholeCards(Count::new(gpus))),
            (1, milli) => Ok(Ask::OneCard(MiB::from(milli))),
            _ => Err(table.bad(at, "1000, as it must be with several GPUs")),
        }
    }
}

fn claim((host, ask, models): &ClaimKey) -> Claim {
    let (gpus, portion, dialect) = match *ask {
        Ask::Nothing => return Claim::host_only(*host),
        Ask::OneCard(memory) => (Count::new(1), Portion::Memory(memory), Dialect::Aliyun),
        Ask::WholeCards(count) => (count, Portion::Whole, Dialect::Nvidia),
    };
    let container = ContainerClaim {
        name: ContainerName::new("main").expect("a fixed name that is right"),
        position: 0,
        role: Role::Main,
        demand: Demand { gpus, portion },
    };
    Claim::new(dialect, vec![container], true)
        .expect("one container that asks something")
        .with_host(*host)
        .with_models(models.clone())
}

#[cfg(test)]
mod tests;
