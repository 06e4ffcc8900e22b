//! `sublet run`: a command with its part of a GPU. Asks the machine's arbiter for a place,
//! starting one if none runs, and runs the command behind our libraries.
//!
//! Order of reading: request, choice, queue, environment, supervise, shortage; then start and
//! lifeline (how the arbiter is met), driver, libraries and mounts (what the command loads),
//! signals, terminal, program.

mod choice;
mod driver;
mod environment;
pub(crate) mod libraries;
mod lifeline;
mod mounts;
mod program;
mod queue;
pub(crate) mod request;
mod shortage;
mod signals;
mod start;
mod supervise;
mod terminal;

pub use choice::{AskArgs, visible_cards};

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::ValueHint;
use sublet_arbiter::admin::{Client, Placed, Submit};
use sublet_arbiter::libraries::{Carried, Store};

use crate::answer::{Advised, print_error};
use crate::machine::{Machine, MachineArgs};
use choice::Question;
use driver::{Driver, Library, Search};
use environment::{Given, environment};
use libraries::Interposer;
use lifeline::LifeLine;
use mounts::{Mounted, Plan};
use queue::Outcome;
use request::Cards;
use signals::{Arrived, Signals};
use start::Wish;
use supervise::Ending;

/// Arguments of `sublet run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet run --memory 8GiB -- python train.py      8 GiB of the card that suits best
  sublet run --memory 25% --gpus 2 -- ./both       a quarter of each of two cards
  sublet run --device 1 --memory 4G -- ./prog      of card 1, as nvidia-smi counts
  CUDA_VISIBLE_DEVICES=1,2 sublet run -- ./prog    card 1 or 2, as CUDA counts
  sublet run -- ./simulate                         a whole card
  sublet run --memory 4GiB --no-wait -- ./server   now, or not at all
  sublet run --pinned-memory 2GiB -- ./loader      at most 2 GiB of pinned host memory
  sublet run --fake-gpu 2x16GiB --memory 4GiB -- ./prog
                                                   without a GPU, on a fake driver

Sizes are powers of 1,024: 4G, 4Gi, 4GB and 4GiB are 4096 MiB, as `sublet ps` says.

CMD sees its cards in the order in which they were named. An empty CUDA_VISIBLE_DEVICES
leaves no card, so nothing is started.

A job that does not fit waits in order of arrival; standard error says why. The wait ends
when its terminal closes, unless the job was detached from it (nohup, disown). If CMD fails
after it was refused memory, the last line says how to ask for more. `sublet ps` and `sublet
top` show all jobs, `sublet limit` changes one.

THE FAKE DRIVER (--fake-gpu) runs no GPU code: memory, streams, events, graphs and NVML work,
and a kernel takes time and computes nothing. Programs on the driver API run on it. Programs
on the CUDA runtime (PyTorch, TensorFlow, what nvcc builds) fail at their first call, with
error 801. 8x80GiB,name=NVIDIA H100 names the cards.

EXIT CODES
  of CMD             128+n if signal n ended it
  1    no driver, no arbiter, or no place for the job
  2    wrong arguments
  126  CMD cannot be executed
  127  CMD is not found")]
pub struct Args {
    /// Memory of each card: 4GiB, 4G, 512M, 25% [default: whole cards]
    #[arg(short, long, value_name = "AMOUNT", allow_hyphen_values = true,
          value_parser = request::memory, value_hint = ValueHint::Other)]
    memory: Option<String>,
    /// Host memory that it may pin for its cards: 2GiB, 512M [default: no limit]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = request::size,
          value_hint = ValueHint::Other)]
    pinned_memory: Option<String>,
    /// How many cards
    #[arg(short, long, value_name = "N", default_value_t = 1, allow_hyphen_values = true,
          value_parser = request::gpus, value_hint = ValueHint::Other)]
    gpus: u32,
    /// The cards that it may be on, as nvidia-smi counts them: 1, 0,2, GPU-1f4c… [default: those
    /// of CUDA_VISIBLE_DEVICES, else any]
    #[arg(long, value_name = "INDEX|UUID,…", allow_hyphen_values = true,
          value_parser = request::cards, value_hint = ValueHint::Other)]
    device: Option<Cards>,
    /// Wait until there is room; the default
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,
    /// Fail if there is no room now
    #[arg(long, overrides_with = "wait")]
    no_wait: bool,
    /// A name for `sublet ps` and `sublet limit` [default: CMD's]
    #[arg(short, long, value_name = "NAME", value_parser = request::name,
          value_hint = ValueHint::Other)]
    name: Option<String>,
    /// Refuse programs that cannot reach the arbiter, and unknown driver functions; the default
    #[arg(long, conflicts_with = "compat")]
    strict: bool,
    /// Let programs that cannot reach the arbiter, and unknown driver functions, use the driver
    /// without a limit
    #[arg(long)]
    compat: bool,
    #[command(flatten)]
    machine: MachineArgs,
    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, num_args = 1.., trailing_var_arg = true,
          value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// Runs the command and returns its exit code. `carried` are the libraries inside this program,
/// if it has any.
///
/// # Errors
/// It was not started: no driver, no arbiter, no place.
pub fn run(args: &Args, carried: Option<&'static Carried>) -> anyhow::Result<u8> {
    // CMD runs as the same user, and must not ask of the arbiter what this process may ask. So
    // CMD must not be able to read or trace this process. CMD itself is dumpable again after exec.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .context("cannot protect this process from others")?;
    let ending = match job(args, carried)? {
        Ok(ending) => ending,
        Err(error) => {
            let code = error.code();
            print_error(&Advised::new(error.to_string(), error.hint()).into());
            return Ok(code);
        }
    };
    if ending == Ending::Interrupted {
        // A shell ends its loop only if the interrupt key ended this process too; its exit
        // code is the same.
        signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGINT)?;
    }
    Ok(ending.code())
}

fn job(
    args: &Args,
    carried: Option<&'static Carried>,
) -> anyhow::Result<Result<Ending, program::ProgramError>> {
    let name = args.command.first().map(OsString::as_os_str);
    let path = std::env::var_os("PATH");
    let file = match program::find(name.unwrap_or_default(), path.as_deref()) {
        Ok(file) => file,
        Err(error) => return Ok(Err(error)),
    };
    let machine = Machine::of(&args.machine);
    let stage = Stage::set(&machine, carried)?;
    let mut submit = request::submit(args);
    if submit.cards.is_none() {
        let chosen = choice::by_variable(&Question {
            driver: &stage.driver.0,
            fake: stage.fake.as_deref(),
            gpus: args.gpus,
        })?;
        chosen.note.iter().for_each(|note| say(note));
        submit.cards = chosen.cards;
    }
    // Started before signals are caught: until there is a place to leave, Ctrl-C may simply
    // end us.
    drop(start::open(&machine, &stage.wish)?);
    let mut signals = Signals::listen().context("cannot catch signals")?;
    match queue::wait(&machine, &stage.wish, &submit, &mut signals, say)? {
        Outcome::Left(arrived) => Ok(Ok(ending_of(arrived))),
        Outcome::Placed(client, placed) => {
            request::check(&submit, &placed)?;
            let place = Place {
                client,
                placed,
                submit,
            };
            play(args, &machine, &stage, &file, place, &mut signals)
        }
    }
}

/// Sees to it that there is an arbiter to be asked about the machine. `carried` is as in [`run`].
///
/// # Errors
/// None runs and none can be started: no driver, or another user's looks after these cards.
pub(crate) fn meet(machine: &Machine, carried: Option<&'static Carried>) -> anyhow::Result<()> {
    if start::leave_to_others(machine)? {
        return Ok(());
    }
    let stage = Stage::set(machine, carried)?;
    drop(start::open(machine, &stage.wish)?);
    Ok(())
}

/// What a signal makes of a command that was never started.
fn ending_of(arrived: Arrived) -> Ending {
    if arrived.is_interrupt_key() {
        Ending::Interrupted
    } else {
        Ending::Signal(arrived.signal)
    }
}

/// A job's place, and the connection that keeps it.
struct Place {
    client: Client,
    placed: Placed,
    submit: Submit,
}

/// Runs the command in its place.
fn play(
    args: &Args,
    machine: &Machine,
    stage: &Stage,
    file: &std::path::Path,
    place: Place,
    signals: &mut Signals,
) -> anyhow::Result<Result<Ending, program::ProgramError>> {
    // Whatever the command starts stays below us, by which the arbiter knows the job.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("cannot become the subreaper of the command")?;
    let mounted = stage.mount();
    let driver = match (&mounted, &stage.plan.real) {
        (Some(_), Some((cuda, nvml))) => (cuda, nvml),
        _ => (&stage.driver.0, &stage.driver.1),
    };
    let preload = std::env::var_os("LD_PRELOAD");
    let environment = environment(&Given {
        placed: &place.placed,
        chosen: place.submit.cards.as_deref().unwrap_or_default(),
        mode: place.submit.mode,
        interposer: &stage.interposer,
        driver: (driver.0, driver.1),
        fake: stage.fake.as_deref(),
        preload: preload.as_deref(),
    });
    let started = supervise::start(file, &args.command, environment);
    // The command has the mounts now; we must not.
    drop(mounted);
    let child = match started {
        Ok(child) => child,
        Err(error) => return Ok(Err(error)),
    };
    let Place {
        client,
        placed,
        submit,
    } = place;
    let mut line = LifeLine::new(machine, &stage.wish, client, placed, submit);
    let ending = supervise::follow(child, signals, &mut line, say)?;
    if shortage::may_explain(ending)
        && let Some((id, snapshot)) = line.snapshot()
    {
        let told = shortage::line(&snapshot, id, args, |name| std::env::var_os(name));
        told.iter().for_each(|line| say(line));
    }
    Ok(Ok(ending))
}

/// A line for people, marked as ours among the command's own.
fn say(line: &str) {
    let mut stderr = std::io::stderr().lock();
    let _nobody_listens = writeln!(stderr, "sublet: {line}");
}

/// Everything a job needs on this machine, found before it is queued.
struct Stage {
    /// Keeps the files of both in their places.
    _store: Store,
    interposer: Interposer,
    /// The two libraries behind ours: the real driver's, or the fake one's.
    driver: (PathBuf, PathBuf),
    /// The fake machine's folder.
    fake: Option<PathBuf>,
    plan: Plan,
    wish: Wish,
}

impl Stage {
    fn set(machine: &Machine, carried: Option<&'static Carried>) -> anyhow::Result<Stage> {
        machine.prepare()?;
        let store = libraries::usual_store(machine, carried)?;
        let interposer = libraries::interposer(&store)?;
        refuse_unloadable(&interposer)?;
        let set = |library: Library| {
            let set = std::env::var_os(library.variable()).map(PathBuf::from);
            // An outer job on a fake machine has its own idea of what is real.
            set.filter(|file| file.is_absolute() && machine.fake.is_none())
        };
        let own = [interposer.cuda.clone(), interposer.nvml.clone()];
        let search = Search {
            folders: driver::folders(std::env::var_os("LD_LIBRARY_PATH").as_deref()),
            own: &own,
            set: [set(Library::Cuda), set(Library::Nvml)],
        };
        let found = Driver::find(&search);
        let (driver, fake, real) = match &machine.fake {
            Some(fake) => {
                let machine = sublet_fakegpu::Machine::from_text(fake.text())?;
                let folder = machine.folder().to_owned();
                (libraries::fake_driver(&store)?, Some(folder), None)
            }
            None => {
                let (cuda, nvml) = found.chosen(&search)?;
                let pair = (cuda.to_owned(), nvml.to_owned());
                (pair, None, Some((cuda, nvml)))
            }
        };
        let folder = machine.file("driver");
        let plan = mounts::plan(&found, &interposer, real, &folder);
        let wish = Wish {
            driver: real.map(|(cuda, nvml)| (cuda.to_owned(), nvml.to_owned())),
        };
        // Those of earlier versions; what stays is looked at another time.
        let _removed = store.remove_unused(&[]);
        Ok(Stage {
            _store: store,
            interposer,
            driver,
            fake,
            plan,
            wish,
        })
    }

    /// The mounts, where they are allowed and there is something to mount over. Without them
    /// preloading reaches all programs but those that load the driver past the C library,
    /// and the arbiter reports these.
    fn mount(&self) -> Option<Mounted> {
        if self.plan.binds.is_empty() || !mounts::is_allowed() {
            return None;
        }
        Mounted::apply(&self.plan).ok()
    }
}

/// The dynamic linker takes blanks and colons in `LD_PRELOAD` for the end of a path.
fn refuse_unloadable(interposer: &Interposer) -> Result<(), Advised> {
    let folder = interposer.cuda.display().to_string();
    if folder.contains([' ', ':', ';']) {
        return Err(Advised::new(
            format!("{folder} cannot be preloaded: its path has a blank or a colon"),
            "SUBLET_RUNTIME_DIR can name another folder",
        ));
    }
    Ok(())
}
