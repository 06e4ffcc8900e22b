//! The cards as the driver sees them: the list of cards, and the use by each process. The
//! arbiter reaches the driver through NVML, loaded by name or by path. A fake NVML is loaded
//! like the real one, and no code here knows the difference.
//!
//! The driver may take its time, and with a broken card it may never answer. So it is asked
//! by a thread of its own, and the arbiter goes on without an answer.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use rustix::event::EventfdFlags;
use sublet_model::{Bytes, Gpu, GpuIndex, GpuUuid, Health, Inventory, InventoryError, Milli};
use sublet_share::Pid;

/// The name by which the dynamic loader finds an installed NVML.
pub const NVML_LIBRARY: &str = "libnvidia-ml.so.1";

/// The same for the driver's library of CUDA.
pub const CUDA_LIBRARY: &str = "libcuda.so.1";

/// State of a card that is there and does not answer.
pub(crate) const UNREADABLE: &str = "the driver cannot read it";

/// Reasons why the cards cannot be seen.
#[derive(Debug, thiserror::Error)]
pub enum GpuViewError {
    /// No driver.
    #[error(
        "no GPU driver: `{}` cannot be loaded ({cause}); it was looked for {}",
        library.display(), where_looked(library)
    )]
    NoDriver {
        /// The library.
        library: PathBuf,
        /// The loader's error.
        cause: NvmlError,
    },
    /// The driver refused something.
    #[error("{what} of {} failed: {cause}", library.display())]
    Driver {
        /// The library.
        library: PathBuf,
        /// The function.
        what: &'static str,
        /// The driver's error.
        cause: NvmlError,
    },
    /// The driver's answer makes no sense.
    #[error("the driver's list of GPUs makes no sense: {0}")]
    Contradiction(#[from] InventoryError),
    /// Another source of cards failed.
    #[error("{0}")]
    Other(String),
}

impl GpuViewError {
    /// Returns true if a driver answers but lacks a needed function: another one must be installed.
    /// A driver that does not load now may load a moment later, while it is being installed.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        use NvmlError::{FailedToLoadSymbol, FunctionNotFound, NotSupported};
        let GpuViewError::Driver { cause, .. } = self else {
            return false;
        };
        matches!(
            cause,
            FailedToLoadSymbol(_) | FunctionNotFound | NotSupported
        )
    }
}

fn where_looked(library: &Path) -> &'static str {
    if library.components().count() > 1 {
        "at that path"
    } else {
        "where the dynamic loader looks (LD_LIBRARY_PATH, then the paths of /etc/ld.so.cache)"
    }
}

/// One card at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardReading {
    /// Memory in use on the card, by any process.
    pub used: Bytes,
    /// Its processes, by the arbiter's own PID namespace, and the memory of each.
    pub processes: Vec<(Pid, Bytes)>,
}

/// Use of a card per process, each in thousandths of the time since the last question.
pub type CardBusy = Vec<(Pid, Milli)>;

/// A way to see the cards: the driver's, or a fake machine's.
pub trait GpuView: Send {
    /// The cards. Called once, before anything else.
    ///
    /// # Errors
    /// The driver does not answer.
    fn inventory(&mut self) -> Result<Inventory, GpuViewError>;

    /// The driver's version, in its own words.
    fn driver(&self) -> String;

    /// The cards now, in the order of the inventory; `None` for one that cannot be read.
    fn read(&mut self) -> Vec<Option<CardReading>>;

    /// Use of each card per process, in the order of the inventory, as the driver counts it;
    /// `None` for a card if the driver does not say.
    fn busy(&mut self) -> Vec<Option<CardBusy>> {
        Vec::new()
    }
}

/// The driver's own view.
pub struct NvmlView {
    nvml: Nvml,
    library: PathBuf,
    /// The cards of the inventory, by their number for the driver; `None` for one that did
    /// not answer.
    cards: Vec<Option<u32>>,
    /// The newest sample of each card's use that was seen, by the driver's clock.
    last_samples: Vec<u64>,
}

impl NvmlView {
    /// Loads NVML from `library`: a name for the dynamic loader ([`NVML_LIBRARY`]) or a path.
    ///
    /// # Errors
    /// The library is absent or does not start.
    pub fn open(library: &Path) -> Result<NvmlView, GpuViewError> {
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init();
        let nvml = nvml.map_err(|cause| match cause {
            NvmlError::LibloadingError(_) => GpuViewError::NoDriver {
                library: library.to_owned(),
                cause,
            },
            cause => GpuViewError::Driver {
                library: library.to_owned(),
                what: "nvmlInit",
                cause,
            },
        })?;
        Ok(NvmlView {
            nvml,
            library: library.to_owned(),
            cards: Vec::new(),
            last_samples: Vec::new(),
        })
    }

    fn gpu(&self, number: u32, index: GpuIndex) -> Result<Gpu, NvmlError> {
        let device = self.nvml.device_by_index(number)?;
        let uuid = device.uuid()?;
        let memory = device.memory_info()?;
        let grantable = memory.total.saturating_sub(memory.reserved);
        Ok(Gpu {
            uuid: GpuUuid::new(&uuid).ok(),
            model: Arc::from(device.name().unwrap_or_default()),
            minor: device
                .minor_number()
                .ok()
                .and_then(|minor| u16::try_from(minor).ok()),
            ..Gpu::plain(index, Bytes::new(grantable).whole_mib())
        })
    }
}

impl GpuView for NvmlView {
    fn inventory(&mut self) -> Result<Inventory, GpuViewError> {
        let count = self
            .nvml
            .device_count()
            .map_err(|cause| GpuViewError::Driver {
                library: self.library.clone(),
                what: "nvmlDeviceGetCount",
                cause,
            })?;
        let mut gpus = Vec::new();
        for (number, index) in (0..count).zip(0u16..).map(|(n, i)| (n, GpuIndex(i))) {
            match self.gpu(number, index) {
                Ok(gpu) => {
                    gpus.push(gpu);
                    self.cards.push(Some(number));
                }
                // Its place is kept, so that the cards after it keep their numbers.
                Err(error) => {
                    let mut gpu = Gpu::plain(index, sublet_model::MiB::ZERO);
                    gpu.health = Health::Sick(Arc::from(error.to_string()));
                    gpus.push(gpu);
                    self.cards.push(None);
                }
            }
        }
        Ok(Inventory::new(gpus, vec![], vec![], vec![])?)
    }

    fn driver(&self) -> String {
        let version = self.nvml.sys_driver_version();
        version.unwrap_or_else(|_| "unknown".to_owned())
    }

    fn read(&mut self) -> Vec<Option<CardReading>> {
        let card = |number: &Option<u32>| {
            let device = self.nvml.device_by_index((*number)?).ok()?;
            read_card(&device).ok()
        };
        self.cards.iter().map(card).collect()
    }

    fn busy(&mut self) -> Vec<Option<CardBusy>> {
        self.last_samples.resize(self.cards.len(), 0);
        let cards = self.cards.iter().zip(&mut self.last_samples);
        let card = |(number, last): (&Option<u32>, &mut u64)| {
            let device = self.nvml.device_by_index((*number)?).ok()?;
            busy_on(&device, last)
        };
        cards.map(card).collect()
    }
}

/// Averages each process's samples that are newer than the last ones.
fn busy_on(device: &Device<'_>, last: &mut u64) -> Option<CardBusy> {
    let samples = match device.process_utilization_stats(*last) {
        Ok(samples) => samples,
        // Nobody was at work.
        Err(NvmlError::NotFound) => return Some(Vec::new()),
        Err(_) => return None,
    };
    let mut sums: BTreeMap<u32, (u32, u32)> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| sample.timestamp > *last) {
        let (sum, n) = sums.entry(sample.pid).or_default();
        *sum += sample.sm_util.min(100);
        *n += 1;
    }
    let newest = samples.iter().map(|sample| sample.timestamp).max();
    *last = newest.map_or(*last, |newest| newest.max(*last));
    let mean = |(pid, (sum, n)): (u32, (u32, u32))| {
        let thousandths = u16::try_from(sum * 10 / n).ok()?;
        Some((Pid(pid), Milli::new(thousandths)?))
    };
    Some(sums.into_iter().filter_map(mean).collect())
}

fn read_card(device: &Device<'_>) -> Result<CardReading, NvmlError> {
    let mut processes = Vec::new();
    for process in device.running_compute_processes()? {
        processes.push((process.pid, process.used_gpu_memory));
    }
    // Clients of MPS have a list of their own, where the driver knows MPS; one that is on both
    // counts once.
    for process in device.mps_running_compute_processes().unwrap_or_default() {
        if !processes.iter().any(|(pid, _)| *pid == process.pid) {
            processes.push((process.pid, process.used_gpu_memory));
        }
    }
    // Not every card lists processes that do graphics.
    for process in device.running_graphics_processes().unwrap_or_default() {
        processes.push((process.pid, process.used_gpu_memory));
    }
    let memory = device.memory_info()?;
    let bytes = |used| match used {
        UsedGpuMemory::Used(bytes) => Bytes::new(bytes),
        UsedGpuMemory::Unavailable => Bytes::new(0),
    };
    Ok(CardReading {
        used: Bytes::new(memory.used.saturating_sub(memory.reserved)),
        processes: processes
            .into_iter()
            .map(|(pid, used)| (Pid(pid), bytes(used)))
            .collect(),
    })
}

/// The sixteen bytes of a UUID that the driver prints as `GPU-01234567-89ab-…`.
pub(crate) fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let (_kind, hex) = text.split_once('-')?;
    let digits: Vec<u8> = hex.bytes().filter(|byte| *byte != b'-').collect();
    if digits.len() != 32 {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, two) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(two[at]).to_digit(16);
        *byte = (digit(0)? * 16 + digit(1)?) as u8; // at most 255
    }
    Some(bytes)
}

/// Interval of asking for the processes' use: the driver has no finer figures.
const BUSY_EVERY: Duration = Duration::from_secs(1);

/// The driver's answer.
#[derive(Debug)]
pub(crate) struct DriverAnswer {
    pub(crate) cards: Vec<Option<CardReading>>,
    /// Asked for once a second.
    pub(crate) busy: Option<Vec<Option<CardBusy>>>,
}

/// The thread that asks the driver.
#[derive(Debug)]
pub(crate) struct Sampler {
    ask: Sender<()>,
    answers: Receiver<DriverAnswer>,
    wake: Arc<OwnedFd>,
    waits: bool,
}

impl Sampler {
    /// Starts it. It ends by itself when the arbiter is gone, or never if the driver hangs.
    pub(crate) fn start(mut view: Box<dyn GpuView>) -> io::Result<Sampler> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(rustix::event::eventfd(0, flags)?);
        let (ask, asked) = channel::<()>();
        let (answer, answers) = channel();
        let waker = Arc::clone(&wake);
        thread::Builder::new()
            .name("sublet-gpu-view".to_owned())
            .spawn(move || {
                let mut asked_at: Option<Instant> = None;
                while asked.recv().is_ok() {
                    let is_due = asked_at.is_none_or(|at| at.elapsed() >= BUSY_EVERY);
                    let busy = is_due.then(|| view.busy());
                    if is_due {
                        asked_at = Some(Instant::now());
                    }
                    let cards = view.read();
                    if answer.send(DriverAnswer { cards, busy }).is_err() {
                        return;
                    }
                    let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
                }
            })?;
        Ok(Sampler {
            ask,
            answers,
            wake,
            waits: false,
        })
    }

    /// True while the driver owes an answer.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Asks the driver; the answer makes the descriptor readable.
    pub(crate) fn ask(&mut self) {
        self.waits = self.ask.send(()).is_ok();
    }

    /// The answer, if it has come.
    pub(crate) fn take(&mut self) -> Option<DriverAnswer> {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        let answer = self.answers.try_recv().ok()?;
        self.waits = false;
        Some(answer)
    }
}

impl AsFd for Sampler {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_sixteen_bytes() {
        let bytes = uuid_bytes("GPU-00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!((bytes[0], bytes[1], bytes[15]), (0, 0x11, 0xff));
        assert!(uuid_bytes("MIG-00112233-4455-6677-8899-aabbccddeeff").is_some());
        for bad in [
            "",
            "GPU-",
            "GPU-zz",
            "GPU-00112233-4455-6677-8899-aabbccddeefg",
        ] {
            assert_eq!(uuid_bytes(bad), None, "{bad}");
        }
    }

    #[test]
    fn where_there_is_no_driver_it_is_said_what_was_looked_for() {
        let error = NvmlView::open(Path::new("/nowhere/libnvidia-ml.so.1"));
        let error = error
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(error.contains("/nowhere/libnvidia-ml.so.1"), "{error}");
        assert!(error.contains("at that path"), "{error}");
    }
}
