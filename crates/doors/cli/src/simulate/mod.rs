//! `sublet simulate`: a trace through the scheduler's engine, no cluster.
//!
//! Runs of several policies and seeds go side by side (`runs`). Each is `sublet_sim::inflate`,
//! `sublet_sim::timed` or `sublet_sim::replay`, which leave all decisions to the engine. A protocol
//! is a file (`inflation`, `timed`, `queue`) that does the runs and says what there is to show of
//! them; `print` shows it.

mod args;
mod compare;
mod defrag;
mod inflation;
mod input;
mod load;
mod plot;
mod print;
mod progress;
mod queue;
mod runs;
mod seeds;
mod snapshot;
#[cfg(test)]
pub(crate) mod tests;
mod timed;
mod what_if;

use crate::answer::{Answer, BAD_INPUT};
pub use args::Args;
use args::{BadRequest, Protocol};
use input::Input;
use snapshot::BadObjects;

/// Answers `sublet simulate`.
///
/// # Errors
/// A file that cannot be read or written, or has something wrong in it.
pub fn run(args: &Args) -> anyhow::Result<Answer> {
    match simulate(args) {
        Err(error)
            if error.is::<input::BadInput>()
                || error.is::<BadRequest>()
                || error.is::<what_if::AddError>()
                || error.is::<plot::NoKind>() =>
        {
            Ok(Answer {
                notes: vec![crate::answer::error_text(&error).trim_end().to_owned()],
                code: BAD_INPUT,
                ..Answer::default()
            })
        }
        Err(error) => {
            let BadObjects(lines) = error.downcast()?;
            Ok(Answer {
                notes: lines.iter().map(|line| format!("error: {line}")).collect(),
                code: BAD_INPUT,
                ..Answer::default()
            })
        }
        answer => answer,
    }
}

fn simulate(args: &Args) -> anyhow::Result<Answer> {
    args.check_protocol()?;
    let input = progress::meanwhile("reading", || Input::read(args))?;
    if args.protocol == Protocol::Queue {
        return queue::answer(args, &input);
    }
    let plan = runs::plan(args)?;
    if args.placements.is_some() && plan.len() != 1 {
        let (flag, runs) = ("--placements", plan.len());
        return Err(BadRequest::Several { flag, runs }.into());
    }
    if let Some(file) = &args.plot {
        plot::Kind::of(file)?;
    }
    match (args.protocol, args.defrag) {
        (Protocol::Timed, _) => timed::answer(args, &input, &plan),
        (_, Some(most)) => defrag::answer(args, &input, &plan, most),
        _ => inflation::answer(args, &input, &plan),
    }
}
