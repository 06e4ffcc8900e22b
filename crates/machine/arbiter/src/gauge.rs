//! Memory cost of a context, and the driver's packing of memory: measured before there are
//! jobs.
//!
//! A separate process of the arbiter makes a context and some allocations, and nothing else,
//! while it reads the driver's count of itself. No job can change the result. The measurement
//! runs once for each product and driver, takes a second at most on current cards, and is kept
//! beside the arbiter's folder, so the next arbiter knows it before its first job. After a day
//! it is measured again, so a wrong figure does not stay.

mod learn;
pub mod probe;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use sublet_abi::Packing;
use sublet_model::{Bytes, Gpu, Health, Inventory};
use tracing::{info, warn};

use crate::driver::DriverError;
use crate::machine_folder::Folder;

/// Longest time of a measurement. The arbiter does not wait for a slower driver.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum age of a figure.
const FRESH: Duration = Duration::from_secs(24 * 60 * 60);

/// The most that is read of a file or of an answer: they are ours, and a few hundred bytes.
const TEXT_MAX: u64 = 1 << 16;

/// Command of the measuring process: a program that calls [`probe::measure`] with the card's UUID
/// as its last argument, and prints the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gauge {
    /// The program's file.
    pub program: PathBuf,
    /// Arguments before the UUID.
    pub arguments: Vec<OsString>,
}

/// Reasons why a card cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum GaugeError {
    /// The driver is not there, or refuses.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// NVML does not list this process, or not its memory.
    #[error("the driver does not say how much memory this process has")]
    Uncounted,
    /// No answer, or none that makes sense.
    #[error("the process that measures gave no answer")]
    Answer,
    /// The system refuses.
    #[error("the process that measures: {0}")]
    Io(#[from] std::io::Error),
}

/// Known figures of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Figures {
    /// Memory of a context, if it is known.
    pub(crate) context: Option<Bytes>,
    /// Packing of memory by the driver.
    pub(crate) packing: Option<Packing>,
}

/// A measurement, as it is told and kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    context_bytes: u64,
    packing: Option<Sizes>,
}

/// [`Packing`] as it is told and kept: sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Unit in which the card gives memory.
    #[serde(rename = "blockBytes")]
    pub block: u64,
    /// The largest allocation that shares a piece.
    #[serde(rename = "smallBytes")]
    pub small: u64,
    /// Memory taken for small allocations at once.
    #[serde(rename = "pieceBytes")]
    pub piece: u64,
    /// Number of empty pieces that a context keeps; the largest number for all.
    #[serde(rename = "keptPieces")]
    pub kept: u32,
    /// Memory that a pool takes at once.
    #[serde(rename = "poolBytes")]
    pub pool: u64,
}

impl From<Packing> for Sizes {
    fn from(packing: Packing) -> Sizes {
        let Packing {
            block,
            small,
            piece,
            kept,
            pool,
        } = packing;
        Sizes {
            block,
            small,
            piece,
            kept,
            pool,
        }
    }
}

impl From<Sizes> for Packing {
    fn from(sizes: Sizes) -> Packing {
        let Sizes {
            block,
            small,
            piece,
            kept,
            pool,
        } = sizes;
        Packing {
            block,
            small,
            piece,
            kept,
            pool,
        }
    }
}

impl Measured {
    fn new(context_bytes: u64, packing: Option<Packing>) -> Measured {
        Measured {
            context_bytes,
            packing: packing.map(Sizes::from),
        }
    }

    /// The figures, if they can be true of a card: no context takes half of it, no piece an eighth.
    fn figures(&self, gpu: &Gpu) -> Option<Figures> {
        let memory = Bytes::from(gpu.memory).get();
        let packing = self.packing.map(Packing::from);
        let is_sane =
            |packing: &Packing| packing.is_sound() && packing.piece.max(packing.pool) <= memory / 8;
        (self.context_bytes <= memory / 2).then(|| Figures {
            context: Some(Bytes::new(self.context_bytes)),
            packing: packing.filter(is_sane),
        })
    }
}

/// The stored figures: by product, memory and driver.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct StoredFigures(BTreeMap<String, Entry>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    /// Seconds since 1970.
    measured_at: u64,
    #[serde(flatten)]
    measured: Measured,
}

impl StoredFigures {
    /// The figures in a file; nothing if it is missing, or not ours.
    fn read(file: &Path) -> StoredFigures {
        let read = || {
            let mut text = String::new();
            let opened = fs::File::open(file)?.take(TEXT_MAX);
            std::io::BufReader::new(opened).read_to_string(&mut text)?;
            Ok::<_, std::io::Error>(serde_json::from_str(&text).unwrap_or_default())
        };
        read().unwrap_or_default()
    }

    /// Writes the file. A reader sees the old one or the new one, never a part.
    fn write(&self, file: &Path) -> std::io::Result<()> {
        let new = file.with_extension("new");
        fs::write(&new, serde_json::to_string(self).unwrap_or_default())?;
        fs::rename(new, file)
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The figures of each card: stored ones, or measured now.
pub(crate) fn figures(
    gauge: Option<&Gauge>,
    folder: &Folder,
    inventory: &Inventory,
    driver: &str,
) -> Vec<Figures> {
    let file = folder.figures_file();
    let mut kept = StoredFigures::read(&file);
    let before = kept.clone();
    let mut tried = BTreeMap::new();
    let each = inventory.gpus().iter().map(|gpu| {
        let name = format!("{}, {} MiB, driver {driver}", gpu.model, gpu.memory.get());
        let entry = kept.0.get(&name);
        let is_fresh = entry.is_some_and(|entry| {
            let age = now().abs_diff(entry.measured_at);
            age < FRESH.as_secs() && entry.measured.figures(gpu).is_some()
        });
        if let Some(gauge) = gauge.filter(|_| !is_fresh && gpu.health == Health::Healthy) {
            let again = || match run(gauge, gpu) {
                Ok(measured) => {
                    info!(gpu = name, context = measured.context_bytes, packing = ?measured.packing,
                          "measured what a context and allocations take");
                    Some(measured)
                }
                Err(error) => {
                    warn!(gpu = name, %error, "cannot measure what a context takes");
                    None
                }
            };
            let found: &Option<Measured> = tried.entry(name.clone()).or_insert_with(again);
            if let Some(measured) = found.clone() {
                let measured_at = now();
                let entry = Entry {
                    measured_at,
                    measured,
                };
                kept.0.insert(name.clone(), entry);
            }
        }
        let entry = kept.0.get(&name);
        let figures = entry.and_then(|entry| entry.measured.figures(gpu));
        figures.unwrap_or_default()
    });
    let figures = each.collect();
    if kept != before
        && let Err(error) = kept.write(&file)
    {
        warn!(%error, file = %file.display(), "the next arbiter has to measure again");
    }
    figures
}

/// True for a variable that makes a program a tenant, loads something into it, or changes what the
/// driver takes for it: all jobs are charged by what is measured here.
fn changes_figures(name: &OsStr) -> bool {
    let is_named = ["SUBLET_DIR", "SUBLET_MODE", "LD_AUDIT", "LD_PRELOAD"];
    let begins = ["CUDA_", "CUDBG_"];
    let bytes = name.as_bytes();
    let is_of_cuda = begins
        .iter()
        .any(|begin| bytes.starts_with(begin.as_bytes()));
    // Whether programs of this machine are clients of MPS is its operator's choice.
    let is_of_cuda = is_of_cuda && name != "CUDA_MPS_PIPE_DIRECTORY";
    is_of_cuda || is_named.iter().any(|known| name == *known)
}

/// Has one card measured.
fn run(gauge: &Gauge, gpu: &Gpu) -> Result<Measured, GaugeError> {
    let uuid = gpu.uuid.as_ref().ok_or(GaugeError::Answer)?;
    let mut command = Command::new(&gauge.program);
    command
        .args(&gauge.arguments)
        .arg(uuid.as_str())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    for (name, _) in std::env::vars_os().filter(|(name, _)| changes_figures(name)) {
        command.env_remove(name);
    }
    command.env("CUDA_VISIBLE_DEVICES", uuid.as_str());
    let mut child = command.spawn()?;
    let answer = answer(&mut child);
    // One that has answered ends by itself. One that has not must not stay on the card.
    if answer.is_none() {
        let _ = child.kill();
    }
    child.wait()?;
    serde_json::from_str(&answer.ok_or(GaugeError::Answer)?).map_err(|_| GaugeError::Answer)
}

/// All that it prints, if it has said it in time.
fn answer(child: &mut Child) -> Option<String> {
    let output = child.stdout.take()?;
    let (send, answer) = channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = output.take(TEXT_MAX).read_to_string(&mut text);
        // Nobody waits for it any more if that took too long.
        let _ = send.send(read.is_ok().then_some(text));
    });
    answer.recv_timeout(PATIENCE).ok().flatten()
}

#[cfg(test)]
mod tests;
