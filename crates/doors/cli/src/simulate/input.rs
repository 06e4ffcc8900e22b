//! Files into a cluster and pods: lists or a snapshot, plain or gzip, with any file name.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use sublet_sim::{
    Bad, BadLines, NodeList, PodList, QuotaRow, Sequence, SequenceError, TraceError, read_nodes,
    read_pods, read_quotas,
};

use super::args::{Args, BadLinesArg};
use super::snapshot::{self, Snapshot};
use super::what_if;
use crate::plan;

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{file}")]
pub(super) struct BadInput {
    file: String,
    #[source]
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    #[error(
        "GPUs of a snapshot are counted in MiB: column `gpu_memory_mib` is needed, in place of \
         `gpu_milli`"
    )]
    Milli,
    #[error("there is no node in it")]
    NoNodes,
    #[error("it has no pod to draw new ones from; give a list with --pods")]
    NoPods,
}

/// Input of a simulation.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) nodes: NodeList,
    pub(super) pods: PodList,
    pub(super) sequence: Option<Sequence>,
    pub(super) quotas: Option<Vec<QuotaRow>>,
    pub(super) notes: Vec<String>,
}

impl Input {
    /// # Errors
    /// A file that cannot be used, or nodes that cannot be added.
    pub(super) fn read(args: &Args) -> anyhow::Result<Input> {
        let mut notes = Vec::new();
        let bad = match args.bad_lines {
            BadLinesArg::Stop => BadLines::Stop,
            BadLinesArg::Count => BadLines::Count,
        };
        // One of the two is there: the command line asks for it.
        let file = args.snapshot.as_ref().or(args.nodes.as_ref());
        let file = file.map_or(Path::new(""), PathBuf::as_path);
        let (nodes, alike) = if args.snapshot.is_some() {
            let read = read_snapshot(file, args)?;
            notes.extend(read.notes);
            (read.nodes, Some(read.pods))
        } else {
            let (mut nodes, lines) = at(file, |text| Ok(read_nodes(text, bad)?))?;
            notes.extend(left_out(file, &lines));
            what_if::add(
                &args.add,
                &mut nodes.rows,
                |node| node.name.as_str(),
                what_if::renamed,
            )?;
            (nodes, None)
        };
        if nodes.rows.is_empty() {
            return Err(bad_input(file, Cause::NoNodes).into());
        }
        let pods = match (&args.pods, alike) {
            (Some(file), _) => {
                let (pods, lines) = at(file, |text| {
                    let read = read_pods(text, &nodes, bad);
                    read.map_err(|error| match error {
                        TraceError::Units if args.snapshot.is_some() => Cause::Milli,
                        error => error.into(),
                    })
                })?;
                notes.extend(left_out(file, &lines));
                pods
            }
            (None, alike) => alike.unwrap_or_default(),
        };
        if pods.rows.is_empty() && args.pods.is_none() && args.defrag.is_none() {
            return Err(bad_input(file, Cause::NoPods).into());
        }
        let sequence = args.sequence.as_deref().map(|file| {
            at(file, |mut reader| {
                let mut text = String::new();
                reader.read_to_string(&mut text)?;
                Ok(Sequence::read(&text, &nodes, &pods)?)
            })
        });
        let quotas = args.quotas.as_deref().map(|file| {
            let (quotas, lines) = at(file, |text| Ok(read_quotas(text, bad)?))?;
            notes.extend(left_out(file, &lines));
            Ok::<_, BadInput>(quotas)
        });
        Ok(Input {
            quotas: quotas.transpose()?,
            sequence: sequence.transpose()?,
            nodes,
            pods,
            notes,
        })
    }

    /// Number of the cluster's GPUs.
    pub(super) fn gpus(&self) -> usize {
        let rows = self.nodes.rows.iter();
        rows.map(|row| row.inventory.gpus().len()).sum()
    }
}

/// Reads a cluster's objects; `-` is standard input.
fn read_snapshot(file: &Path, args: &Args) -> anyhow::Result<Snapshot> {
    let mut text = String::new();
    let name = if file.as_os_str() == "-" {
        let read = io::stdin().lock().read_to_string(&mut text);
        read.map_err(|error| bad_input(Path::new("standard input"), error.into()))?;
        "standard input".to_owned()
    } else {
        at(file, |mut reader| Ok(reader.read_to_string(&mut text)?))?;
        file.display().to_string()
    };
    let mut input = plan::Input::default();
    input.read(&name, &text);
    let stop = args.bad_lines == BadLinesArg::Stop;
    snapshot::of(input, args.memory_unit, &args.add, stop)
}

fn left_out(file: &Path, lines: &[Bad]) -> Option<String> {
    let first = lines.first()?;
    let file = file.display();
    Some(format!("{file}: {} lines left out; {first}", lines.len()))
}

fn bad_input(file: &Path, cause: Cause) -> BadInput {
    BadInput {
        file: file.display().to_string(),
        cause,
    }
}

/// Opens a file, unpacks it if it is gzip, and names it in errors.
fn at<T>(file: &Path, read: impl FnOnce(Box<dyn Read>) -> Result<T, Cause>) -> Result<T, BadInput> {
    let opened = open(file).map_err(Cause::Io);
    opened
        .and_then(read)
        .map_err(|cause| bad_input(file, cause))
}

fn open(file: &Path) -> io::Result<Box<dyn Read>> {
    let mut reader = BufReader::new(File::open(file)?);
    // Two bytes say what it is; the name need not.
    let packed = reader.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if packed {
        Box::new(BufReader::new(flate2::bufread::MultiGzDecoder::new(reader)))
    } else {
        Box::new(reader)
    })
}
