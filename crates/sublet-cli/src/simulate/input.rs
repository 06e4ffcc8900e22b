//! Files into lists: plain or gzip, whatever they are called.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use sublet_sim::{Bad, Nodes, Pods, Sequence, SequenceError, TraceError, read_nodes, read_pods};

use super::{Args, BadLines};

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
    #[error("there is no node in it")]
    NoNodes,
}

/// What a simulation is made of.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) nodes: Nodes,
    pub(super) pods: Pods,
    pub(super) sequence: Option<Sequence>,
    pub(super) notes: Vec<String>,
}

impl Input {
    pub(super) fn read(args: &Args) -> Result<Input, BadInput> {
        let bad = match args.bad_lines {
            BadLines::Stop => sublet_sim::BadLines::Stop,
            BadLines::Count => sublet_sim::BadLines::Count,
        };
        let mut notes = Vec::new();
        let mut left_out = |file: &Path, lines: Vec<Bad>| {
            if let Some(first) = lines.first() {
                let file = file.display();
                notes.push(format!("{file}: {} lines left out; {first}", lines.len()));
            }
        };
        let (nodes, lines) = at(&args.nodes, |text| Ok(read_nodes(text, bad)?))?;
        left_out(&args.nodes, lines);
        if nodes.rows.is_empty() {
            return at(&args.nodes, |_| Err(Cause::NoNodes));
        }
        let (pods, lines) = at(&args.pods, |text| Ok(read_pods(text, &nodes, bad)?))?;
        left_out(&args.pods, lines);
        let sequence = args.sequence.as_deref().map(|file| {
            at(file, |mut reader| {
                let mut text = String::new();
                reader.read_to_string(&mut text)?;
                Ok(Sequence::read(&text, &nodes, &pods)?)
            })
        });
        Ok(Input {
            sequence: sequence.transpose()?,
            nodes,
            pods,
            notes,
        })
    }
}

/// Opens a file, unpacks it if it is gzip, and names it in what goes wrong.
fn at<T>(file: &Path, read: impl FnOnce(Box<dyn Read>) -> Result<T, Cause>) -> Result<T, BadInput> {
    let opened = open(file).map_err(Cause::Io);
    opened.and_then(read).map_err(|cause| BadInput {
        file: file.display().to_string(),
        cause,
    })
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
