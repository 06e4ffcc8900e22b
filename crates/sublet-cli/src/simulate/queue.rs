//! Jobs of tenants through a queue: one run for each discipline, side by side.
//!
//! `sublet_sim::replay` does the runs; this module starts them, checks them and shows their
//! results.

mod print;

use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use sublet_plan::Policy;
use sublet_sim::{DISCIPLINES, Discipline, Replay, ReplayError, ReplayOutcome, ReplayStep, replay};

use super::input::Input;
use super::runs::{self, BadRequest, Progress};
use super::timed::Load;
use super::{Args, Output};
use crate::answer::{Answer, NOT_DONE};

/// Decisions are so many seconds apart, unless told otherwise. One decision of ours looks at all that
/// wait, and in a long trace ten thousand may: then minutes of computing become hours.
const INTERVAL: u64 = 300;

/// Reads the name of a discipline.
pub(super) fn discipline() -> impl TypedValueParser<Value = &'static dyn Discipline> {
    let value =
        |known: &&'static dyn Discipline| PossibleValue::new(known.name()).help(known.about());
    let values = DISCIPLINES.iter().map(value);
    // The parser lets no other name pass.
    PossibleValuesParser::new(values).map(|name| {
        let mut all = DISCIPLINES.iter().copied();
        let known = all.find(|known| known.name() == name);
        known.unwrap_or(DISCIPLINES[0])
    })
}

/// One run that was done.
#[derive(Debug)]
struct QueueRun {
    discipline: &'static dyn Discipline,
    outcome: ReplayOutcome,
    /// CPU time of the run's thread.
    cpu: Duration,
}

/// Does the runs, one for each discipline, and shows their results.
///
/// # Errors
/// Jobs that have no times or no quota.
pub(super) fn answer(args: &Args, input: Input) -> anyhow::Result<Answer> {
    let policy = match &args.policy[..] {
        [policy] => policy,
        several => return Err(BadRequest::Policies(several.len()).into()),
    };
    let disciplines = match &args.discipline[..] {
        [] => DISCIPLINES.to_vec(),
        given => given.to_vec(),
    };
    for (at, discipline) in disciplines.iter().enumerate() {
        let name = discipline.name();
        if disciplines[..at]
            .iter()
            .any(|earlier| earlier.name() == name)
        {
            return Err(BadRequest::DisciplineTwice(name).into());
        }
    }
    let done = runs::side_by_side(args, &disciplines, |discipline, progress| {
        one(args, &input, (*discipline, policy), progress)
    });
    let runs: Result<Vec<QueueRun>, ReplayError> = done.into_iter().collect();
    let runs = runs.map_err(BadRequest::Replay)?;
    let text = match args.output {
        Output::Table => print::table(args, &input, &runs),
        Output::Json => print::json(args, &input, &runs)?,
        Output::Csv => print::csv(&runs),
    };
    Ok(checked(text, input.notes, &runs))
}

/// The answer; with an error, should a run not have ended as it must.
fn checked(text: String, mut notes: Vec<String>, runs: &[QueueRun]) -> Answer {
    let right = |run: &&QueueRun| run.outcome.ends_empty && run.outcome.left == 0;
    let wrong = runs.iter().filter(|run| !right(run));
    let wrong: Vec<String> = wrong
        .map(|run| {
            format!(
                "error: {}: at the end {} jobs still waited{}\n\
                 hint: this is a bug of sublet; please report it with both lists",
                run.discipline.name(),
                run.outcome.left,
                match run.outcome.ends_empty {
                    true => "",
                    false => ", and the ledger was not empty",
                }
            )
        })
        .collect();
    let code = if wrong.is_empty() { 0 } else { NOT_DONE };
    notes.extend(wrong);
    Answer { text, notes, code }
}

fn interval(args: &Args) -> u64 {
    args.interval.unwrap_or(INTERVAL)
}

fn one(
    args: &Args,
    input: &Input,
    (discipline, policy): (&'static dyn Discipline, &Policy),
    progress: &Progress,
) -> Result<QueueRun, ReplayError> {
    let begin = runs::cpu_time();
    let run = Replay {
        nodes: &input.nodes,
        pods: &input.pods,
        policy,
        discipline,
        quotas: input.quotas.as_deref(),
        load: args.load.map(|Load(millionths)| millionths),
        interval: interval(args),
    };
    let (mut seen, all) = (0, 2 * input.pods.rows.len());
    let outcome = replay(run, &mut |event| {
        seen += usize::from(matches!(event.step, ReplayStep::Comes | ReplayStep::Ends));
        progress.arrived(seen, all);
    })?;
    Ok(QueueRun {
        discipline,
        outcome,
        cpu: runs::cpu_time().saturating_sub(begin),
    })
}
