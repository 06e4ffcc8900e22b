//! `sublet agent --standalone`: the arbiter of one machine as a program of its own, without a
//! cluster. `sublet run` starts it if none runs; an operator can, too.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use sublet_arbiter::gauge::probe::measure;
use sublet_arbiter::holder::{Reader, advice_on};
use sublet_arbiter::libraries::Carried;
use sublet_arbiter::{
    ArbiterError, CUDA_LIBRARY, ExclusiveSlices, Gauge, HostPlace, MPS_CONTROL, NVML_LIBRARY,
    OPPORTUNISTIC_DUTY, Standalone, TimeSharing,
};
use sublet_fakegpu::machine::VARIABLE;
use sublet_model::{Milli, SliceLength};

use crate::answer::Advised;
use crate::machine::{Machine, MachineArgs};
use crate::run::libraries;

/// Arguments of `sublet agent --standalone`.
#[derive(Debug, clap::Args)]
#[group(id = "standalone_args")]
pub struct Args {
    /// Share this machine's GPUs between jobs of `sublet run`, without a cluster
    #[arg(long)]
    pub standalone: bool,
    #[command(flatten)]
    machine: MachineArgs,
    /// Exit when there has been no job for this long; 30 if no number is given
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true,
          default_missing_value = "30", requires = "standalone")]
    idle_exit: Option<u64>,
    /// End processes that use a GPU outside any job; by default they are only shown
    #[arg(long, requires = "standalone")]
    evict_unmanaged: bool,
    /// End jobs that hold more GPU memory than their limit, by the driver's own count:
    /// SIGTERM, and SIGKILL ten seconds later; by default they are only shown as `over`
    #[arg(long, requires = "standalone")]
    evict_over: bool,
    /// End jobs that work on a GPU while it is not their turn, by the driver's own count, once
    /// they have done so for 20 seconds: SIGTERM, and SIGKILL ten seconds later; by default they
    /// are only shown
    #[arg(long, requires = "standalone")]
    evict_overuse: bool,
    /// Serve every user of this machine, all in one queue; needs root
    #[arg(long, requires = "standalone", conflicts_with = "mps")]
    shared: bool,
    /// Measure what a context and allocations take on the GPU with this UUID, print
    /// it, and end; the arbiter starts this before its first job
    #[arg(long, value_name = "UUID", hide = true, requires = "standalone")]
    measure: Option<String>,
    /// Start it in a session of its own, print its process number, and end
    #[arg(long, hide = true, requires = "standalone")]
    detached: bool,
}

/// Options for sharing a card's time among jobs and containers, for both modes of `sublet agent`.
#[derive(Debug, clap::Args)]
pub struct TimeArgs {
    /// Run programs under NVIDIA's MPS, side by side on a GPU, and look after its daemon, which
    /// PROGRAM is; `nvidia-cuda-mps-control` if it is not said
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, require_equals = true,
          default_missing_value = MPS_CONTROL, conflicts_with = "exclusive_slices")]
    mps: Option<PathBuf>,
    /// Begin a turn on a GPU only when nothing of the last one runs any more; on all GPUs, or on
    /// those with these numbers
    #[arg(long, value_name = "GPUS", num_args = 0..=1, require_equals = true,
          default_missing_value = "all", value_parser = exclusive_slices)]
    exclusive_slices: Option<ExclusiveSlices>,
    /// Shortest length of turns that a job or a pod can ask for, 1ms to 20ms. A switch costs some ten
    /// microseconds; with exclusive slices the card empties at each
    #[arg(long, value_name = "TIME", default_value_t = SliceLength::SHORTEST)]
    shortest_slice: SliceLength,
    /// Part of the time in which an opportunistic program launches work while the arbiter is away,
    /// in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10,
          value_parser = clap::value_parser!(u16).range(1..=100))]
    opportunistic_duty: u16,
}

impl From<TimeArgs> for TimeSharing {
    fn from(args: TimeArgs) -> TimeSharing {
        TimeSharing {
            exclusive_slices: args.exclusive_slices.unwrap_or_default(),
            shortest_slice: args.shortest_slice,
            opportunistic_duty: Milli::new(args.opportunistic_duty * 10)
                .unwrap_or(OPPORTUNISTIC_DUTY),
            mps: args.mps,
        }
    }
}

/// Runs until SIGTERM or Ctrl-C, or until nobody needs it. If it is to be detached, it starts a
/// program that does this, and returns. `time`: sharing of a card's time among its jobs. `carried`
/// are the libraries inside this program, if it has any.
///
/// # Errors
/// Another arbiter looks after this machine, or there is no driver.
pub fn run(
    args: &Args,
    time: TimeSharing,
    carried: Option<&'static Carried>,
) -> anyhow::Result<()> {
    let machine = Machine::of(&args.machine)?;
    if args.detached {
        return detach();
    }
    // While the store is held, the fake driver's files stay in their place.
    let store = libraries::usual_store(&machine, carried)?;
    let (cuda, mut settings) = match &machine.fake {
        None => {
            let nvml = real("SUBLET_DRIVER_NVML", NVML_LIBRARY);
            let settings = Standalone {
                nvml,
                ..Standalone::real()
            };
            (real("SUBLET_DRIVER_CUDA", CUDA_LIBRARY), settings)
        }
        Some(fake) => {
            let folder = sublet_fakegpu::FakeMachine::from_text(fake.text())?;
            let folder = folder.folder();
            // The fake driver's library finds its machine by the environment, and a running
            // program's own cannot be changed safely.
            if std::env::var_os(VARIABLE).as_deref() != Some(folder.as_os_str()) {
                let mut again = Command::new(executable()?);
                again
                    .args(std::env::args_os().skip(1))
                    .env(VARIABLE, folder);
                return Err(again.exec()).context("cannot start this program again");
            }
            let (cuda, nvml) = libraries::fake_driver(&store)?;
            (cuda, Standalone::fake(host_of_fake(folder)?, nvml))
        }
    };
    if let Some(uuid) = &args.measure {
        let measured = measure(&cuda, &settings.nvml, uuid)?;
        return writeln!(std::io::stdout(), "{measured}").context("cannot print what was measured");
    }
    settings.folder = machine.folder;
    settings.evict = args.evict_unmanaged;
    settings.evict_over = args.evict_over;
    settings.evict_overuse = args.evict_overuse;
    if args.shared && !rustix::process::geteuid().is_root() {
        let what = "only root's arbiter can serve every user of this machine";
        let hint = "start it as root; without --shared it serves you alone";
        return Err(Advised::new(what, hint).into());
    }
    settings.shared = args.shared;
    let own = std::env::args_os().skip(1);
    settings.gauge = Some(Gauge {
        program: executable()?,
        arguments: own.chain(["--measure".into()]).collect(),
    });
    settings.time = time;
    settings.idle_exit = args.idle_exit.map(Duration::from_secs);
    sublet_arbiter::run(&settings).map_err(advised)
}

/// The meeting place of the arbiters of a fake machine, which is in that folder.
fn host_of_fake(folder: &Path) -> anyhow::Result<HostPlace> {
    HostPlace::of_fake(folder).with_context(|| format!("cannot look at {}", folder.display()))
}

/// Error about the arbiter that could not start, with advice where there is any.
fn advised(error: ArbiterError) -> anyhow::Error {
    match &error {
        ArbiterError::Mps { .. } => {
            let hint = "the driver's compute utilities bring `nvidia-cuda-mps-control`; --mps=PROGRAM \
                        names it where it is elsewhere";
            Advised::new(error.to_string(), hint).into()
        }
        ArbiterError::Held { pid, uid, .. } => {
            let hint = advice_on(*pid, *uid, Reader::Starter);
            Advised::new(error.to_string(), hint).into()
        }
        _ => error.into(),
    }
}

/// Reads `all`, or numbers of GPUs with commas between them.
fn exclusive_slices(text: &str) -> Result<ExclusiveSlices, String> {
    if text == "all" {
        return Ok(ExclusiveSlices::All);
    }
    let numbers = text.split(',').map(|number| number.trim().parse());
    let numbers: Result<_, std::num::ParseIntError> = numbers.collect();
    let of = numbers.map(ExclusiveSlices::Of);
    of.map_err(|_| format!("`{text}` is no list of GPU numbers; write `0,2`, or `all`"))
}

/// A library of the real driver: the file that `sublet run` has found, or the one that the dynamic
/// linker finds.
fn real(variable: &str, name: &str) -> PathBuf {
    let set = std::env::var_os(variable).map(PathBuf::from);
    set.filter(|file| file.is_absolute())
        .unwrap_or_else(|| PathBuf::from(name))
}

/// Starts this program again without `--detached`, in a session of its own, so that no terminal's
/// Ctrl-C or hang-up reaches it. It has only our standard error.
pub(crate) fn detach() -> anyhow::Result<()> {
    rustix::process::setsid().context("cannot start a session")?;
    let arguments = std::env::args_os().skip(1);
    let child = Command::new(executable()?)
        .args(arguments.filter(|argument| argument != "--detached"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start this program again")?;
    writeln!(std::io::stdout(), "{}", child.id()).context("cannot print the process number")
}

/// This program's file; the kernel's link to it if the file was replaced meanwhile.
pub(crate) fn executable() -> std::io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(if own.is_file() {
        own
    } else {
        PathBuf::from("/proc/self/exe")
    })
}
