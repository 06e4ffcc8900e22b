//! `sublet dataset`: data sets on this machine's own disk. The commands ask the process that serves
//! the store, and start it if none runs; it is a program of its own, `sublet-dataset`, beside this
//! one.

mod get;
mod serve;
mod show;
mod start;

use clap::Subcommand;
use sublet_dataset::{DatasetReply, DatasetRequest};

use crate::answer::{Answer, DONE, Format, NOT_DONE, document};

pub(crate) use get::held;
pub use serve::{ServeArgs, serve};
#[cfg(test)]
pub(crate) use show::tests::{answers, answers_of_one};
use start::{Store, last, unexpected};

pub use start::StoreArgs;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
    /// Bring a data set to this machine's disk, or compare it with its source
    Get(get::Args),
    /// List the data sets that are here
    Ls(LsArgs),
    /// Show one data set
    Show(ShowArgs),
    /// Read every byte of a data set again, and replace wrong ones
    Verify(NameArgs),
    /// Keep a data set whatever room others need
    Pin(PinArgs),
    /// Delete the copy of a data set
    Rm(RmArgs),
    /// Serve the data sets of a store; the other commands start it
    Serve(ServeArgs),
}

/// Arguments of `sublet dataset ls`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet dataset ls
  sublet dataset ls -o json | jq '.sets[] | select(.jobs == 0) | .name'")]
pub struct LsArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Arguments of `sublet dataset show`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet dataset show imagenet
  sublet dataset show imagenet -o json")]
pub struct ShowArgs {
    /// Its name
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    store: StoreArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Arguments of commands about one data set.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet dataset verify imagenet

EXIT CODES
  0  all bytes are right
  1  some were wrong; they are replaced by those of the source, if it still has them
  2  wrong arguments")]
pub struct NameArgs {
    /// Its name
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    store: StoreArgs,
}

/// Arguments of `sublet dataset pin`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet dataset pin imagenet
  sublet dataset pin imagenet --off")]
pub struct PinArgs {
    /// Its name
    #[arg(value_name = "NAME")]
    name: String,
    /// Let it go again when others need room
    #[arg(long)]
    off: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Arguments of `sublet dataset rm`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
EXAMPLES
  sublet dataset rm imagenet
  sublet dataset rm imagenet --force   also while a job has it: then it goes with the job

The source is never touched.")]
pub struct RmArgs {
    /// Its name
    #[arg(value_name = "NAME")]
    name: String,
    /// Also one in use: its bytes go when the last job has ended
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    store: StoreArgs,
}

/// Carries out a command.
///
/// # Errors
/// The store cannot be served, or the command cannot be carried out.
pub fn run(command: &DatasetCommand) -> anyhow::Result<u8> {
    match command {
        DatasetCommand::Get(args) => get::run(args)?.print(),
        DatasetCommand::Ls(args) => list(args)?.print(),
        DatasetCommand::Show(args) => show(args)?.print(),
        DatasetCommand::Verify(args) => verify(args)?.print(),
        DatasetCommand::Pin(args) => {
            let request = DatasetRequest::Pin {
                name: args.name.clone(),
                pinned: !args.off,
            };
            do_it(&args.store, &request)?.print()
        }
        DatasetCommand::Rm(args) => {
            let request = DatasetRequest::Remove {
                name: args.name.clone(),
                force: args.force,
            };
            do_it(&args.store, &request)?.print()
        }
        DatasetCommand::Serve(args) => Err(serve::become_server(args)),
    }
}

fn list(args: &LsArgs) -> anyhow::Result<Answer> {
    let list = Store::of(&args.store)?.list()?;
    Ok(Answer {
        text: show::list(&list, args.output)?,
        // Who may not mount knows that.
        notes: show::note(&list)
            .filter(|_| rustix::process::geteuid().is_root())
            .into_iter()
            .collect(),
        code: DONE,
    })
}

fn show(args: &ShowArgs) -> anyhow::Result<Answer> {
    let store = Store::of(&args.store)?;
    let list = store.list()?;
    let Some(set) = list.sets.iter().find(|set| set.name == args.name) else {
        return Err(store.unknown(&args.name).into());
    };
    let text = match args.output {
        Format::Table => show::one(set),
        Format::Json => document(set, false)?,
        Format::Yaml => document(set, true)?,
    };
    Ok(Answer {
        text,
        ..Answer::default()
    })
}

fn verify(args: &NameArgs) -> anyhow::Result<Answer> {
    let request = DatasetRequest::Verify {
        name: args.name.clone(),
    };
    let store = Store::of(&args.store)?;
    match last(&mut store.ask(&request)?)? {
        DatasetReply::Verified {
            size_bytes,
            damaged,
        } => {
            let code = if damaged.is_empty() { DONE } else { NOT_DONE };
            Ok(Answer {
                text: show::verified(size_bytes, &damaged),
                code,
                ..Answer::default()
            })
        }
        other => Err(unexpected(&other)),
    }
}

/// Carries out a request that has no answer but that it is done.
fn do_it(store: &StoreArgs, request: &DatasetRequest) -> anyhow::Result<Answer> {
    let store = Store::of(store)?;
    match last(&mut store.ask(request)?)? {
        DatasetReply::Done => Ok(Answer::default()),
        other => Err(unexpected(&other)),
    }
}
