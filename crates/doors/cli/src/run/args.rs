//! Command line of `sublet run`, and its help.

use std::ffi::OsString;

use clap::ValueHint;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use sublet_arbiter::admin::{Class, parse_amount, parse_compute};
use sublet_model::{SliceLength, parse_size};

use super::datasets::{WantedDataset, wanted};
use crate::dataset::StoreArgs;
use crate::machine::MachineArgs;

/// The most cards of a job: its pages have room for no more (`sublet_abi::MAX_DEVICES`).
const GPUS_MAX: u32 = 16;

/// The longest name of a job that is made from a program's name.
pub(super) const NAME_MAX: usize = 40;

/// Arguments of `sublet run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet run --memory 8GiB -- python train.py      8 GiB of the GPU that suits best
  sublet run --memory 25% --gpus 2 -- ./both       a quarter of each of two GPUs
  sublet run --allowed-gpus 1 --memory 4G -- ./prog
                                                   of GPU 1, as nvidia-smi counts
  CUDA_VISIBLE_DEVICES=1,2 sublet run -- ./prog    GPU 1 or 2, as CUDA counts
  sublet run -- ./simulate                         a whole GPU
  sublet run --memory 4GiB --no-wait -- ./server   now, or not at all
  sublet run --pinned-memory 2GiB -- ./loader      at most 2 GiB of pinned host memory
  sublet run --memory 4GiB --compute 30% -- ./prog 30 % of the GPU's time, and more if it is free
  sublet run --memory 4GiB --compute 0%..50% -- ./prog
                                                   no promise, and at most 50 %
  sublet run --memory 4GiB --class opportunistic -- ./batch
                                                   only time that guaranteed jobs leave
  sublet run --memory 4GiB --priority -5 -- ./sweep
                                                   after everybody else who waits
  sublet run --dataset imagenet --memory 8GiB -- python train.py
                                                   with a data set on this machine's own disk
  sublet run --fake-gpu 2x16GiB --memory 4GiB -- ./prog
                                                   without a GPU, on a fake driver

Sizes are powers of 1,024: 4G, 4Gi, 4GB and 4GiB are 4096 MiB, as `sublet ps` says.

CMD sees its GPUs in the order in which they were named. An empty CUDA_VISIBLE_DEVICES
leaves no GPU, so nothing is started.

A job that does not fit waits, and standard error says why: higher --priority first, then
users who have less of the GPUs, then the order of arrival. Nobody passes the first of the
line, and who has waited ten minutes goes by age alone. `sublet queue` shows it. The wait ends
when its terminal closes, unless the job was detached from it (nohup, disown). If CMD fails
after it was refused memory, the last line says how to ask for more. `sublet ps` and `sublet
top` show all jobs, `sublet limit` changes one.

THE FAKE DRIVER (--fake-gpu) runs no GPU code: memory, streams, events, graphs and NVML work,
and a kernel takes time and computes nothing. Programs on the driver API run on it. Programs
on the CUDA runtime (PyTorch, TensorFlow, what nvcc builds) fail at their first call, with
error 801; `sublet run` then says so. 8x80GiB,name=NVIDIA H100 names the GPUs.

A CONTAINER that CMD starts (docker, podman, nerdctl) leaves the job: its programs have neither
the job's part nor its limits.

EXIT CODES
  of CMD             128+n if signal n ended it
  1    no driver, no arbiter, or no place for the job
  2    wrong arguments
  126  CMD cannot be executed
  127  CMD is not found")]
pub struct Args {
    /// Memory of each GPU: 4GiB, 4G, 512M, 25% [default: whole GPUs]
    #[arg(short, long, value_name = "AMOUNT", allow_hyphen_values = true,
          value_parser = memory, value_hint = ValueHint::Other)]
    pub(super) memory: Option<String>,
    /// Host memory that it may pin for its GPUs: 2GiB, 512M [default: no limit]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size,
          value_hint = ValueHint::Other)]
    pub(super) pinned_memory: Option<String>,
    /// Compute time of each GPU: a promise (30%), or a promise and a limit (30%..80%) [default:
    /// the time that others leave]
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true,
          value_parser = compute, value_hint = ValueHint::Other)]
    pub(super) compute: Option<String>,
    /// Class of the job where compute time is short: an opportunistic job is promised none, and
    /// gets the time that guaranteed jobs leave
    #[arg(long, value_name = "CLASS", default_value = "guaranteed",
          value_parser = classes())]
    pub(super) class: Class,
    /// Length of its turns while others wait, 1ms to 20ms: a shorter one comes sooner, and more
    /// often. No shorter than the arbiter's --shortest-slice [default: 20ms]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_hint = ValueHint::Other)]
    pub(super) slice: Option<SliceLength>,
    /// Number of GPUs
    #[arg(short, long, value_name = "N", default_value_t = 1, allow_hyphen_values = true,
          value_parser = gpus, value_hint = ValueHint::Other)]
    pub(super) gpus: u32,
    /// GPUs that it may use, as nvidia-smi counts them: 1, 0,2, GPU-1f4c… [default: those of
    /// CUDA_VISIBLE_DEVICES, else any]
    #[arg(long, value_name = "INDEX|UUID,…", allow_hyphen_values = true,
          value_parser = cards, value_hint = ValueHint::Other)]
    pub(super) allowed_gpus: Option<Cards>,
    /// Wait until there is room; the default
    #[arg(long, overrides_with = "no_wait")]
    pub(super) wait: bool,
    /// Fail if there is no room now
    #[arg(long, overrides_with = "wait")]
    pub(super) no_wait: bool,
    /// Priority among jobs that wait: higher goes first. Above 0 is for root and the arbiter's own
    /// user
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true,
          value_hint = ValueHint::Other)]
    pub(super) priority: i32,
    /// A name for `sublet ps` and `sublet limit` [default: CMD's]
    #[arg(short, long, value_name = "NAME", value_parser = name,
          value_hint = ValueHint::Other)]
    pub(super) name: Option<String>,
    /// Refuse programs that cannot reach the arbiter, and unknown driver functions; the default
    #[arg(long, conflicts_with = "compat")]
    pub(super) strict: bool,
    /// Let programs that cannot reach the arbiter, and unknown driver functions, use the driver
    /// without a limit
    #[arg(long)]
    pub(super) compat: bool,
    /// A data set that the job reads, brought here first and kept until it ends: a name that
    /// `sublet dataset get` gave it. SUBLET_DATASET_NAME has its folder; with =FOLDER, as root, the
    /// job finds it there
    #[arg(long, value_name = "NAME[=FOLDER]", value_parser = wanted, value_hint = ValueHint::Other)]
    pub(super) dataset: Vec<WantedDataset>,
    #[command(flatten)]
    pub(super) dataset_store: StoreArgs,
    #[command(flatten)]
    pub(super) machine: MachineArgs,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, num_args = 1.., trailing_var_arg = true,
          value_hint = ValueHint::CommandWithArguments)]
    pub(super) command: Vec<OsString>,
}

/// An amount of memory, in the words that every arbiter knows, an older one too. It knows the
/// cards that a percentage is of.
///
/// # Errors
/// Text that is no amount.
pub(crate) fn memory(text: &str) -> Result<String, String> {
    parse_amount(text)
        .map(|amount| amount.to_string())
        .map_err(|error| error.to_string())
}

/// A number of cards: as many as a job's pages have room for.
pub(super) fn gpus(text: &str) -> Result<u32, String> {
    let number = text.trim().parse();
    let number = number.ok().filter(|n| (1..=GPUS_MAX).contains(n));
    number.ok_or_else(|| format!("a job has 1 to {GPUS_MAX} GPUs"))
}

/// Cards by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cards(pub(super) Vec<String>);

/// Cards' numbers and UUIDs, with commas. Whether there are such cards the arbiter knows.
pub(super) fn cards(text: &str) -> Result<Cards, String> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let is_uuid = |name: &str| {
        let (start, rest) = name.split_at_checked(UUID_START.len()).unwrap_or_default();
        let is_digit = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
        start.eq_ignore_ascii_case(UUID_START) && !rest.is_empty() && rest.bytes().all(is_digit)
    };
    for (at, name) in names.iter().enumerate() {
        if name.is_empty() {
            return Err("a GPU without a name; write `0`, `0,2` or a UUID".to_owned());
        }
        if !is_number(name) && !is_uuid(name) {
            return Err(format!(
                "`{name}` is neither a number nor a UUID; `nvidia-smi -L` shows both"
            ));
        }
        if names[..at].iter().any(|it| it.eq_ignore_ascii_case(name)) {
            return Err(format!("`{name}` is named twice"));
        }
    }
    Ok(Cards(names))
}

/// Start of a card's UUID.
const UUID_START: &str = "GPU-";

/// An amount of memory that is not of a card.
///
/// # Errors
/// Text that is no such amount.
pub(crate) fn size(text: &str) -> Result<String, String> {
    parse_size(text)
        .map(|memory| memory.to_string())
        .map_err(|error| error.to_string())
}

/// Compute time of each card, in the words that every arbiter knows.
///
/// # Errors
/// Text that is no compute time.
pub(crate) fn compute(text: &str) -> Result<String, String> {
    parse_compute(text)
        .map(|compute| compute.to_string())
        .map_err(|error| error.to_string())
}

/// The words for a job's class.
pub(super) fn classes() -> impl TypedValueParser<Value = Class> {
    let words = [Class::Guaranteed, Class::Opportunistic].map(Class::word);
    PossibleValuesParser::new(words).map(|word| match &*word {
        "opportunistic" => Class::Opportunistic,
        _ => Class::Guaranteed,
    })
}

/// A job's name on the command line: printable, and not a number, because `sublet limit`
/// takes either.
pub(super) fn name(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > NAME_MAX {
        return Err(format!("a name has 1 to {NAME_MAX} characters"));
    }
    if text.chars().any(char::is_control) {
        return Err("a name has no control characters".to_owned());
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a name is not a number: jobs have one already".to_owned());
    }
    Ok(text.to_owned())
}
