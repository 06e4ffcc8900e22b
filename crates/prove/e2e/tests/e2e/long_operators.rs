//! Jobs of more real operators in our queue, as in `operators`. Only `cargo xtask test --all` runs
//! this, because these operators take long to build.

use anyhow::{Context, Result, ensure};
use sublet_e2e::World;
use sublet_testbed::Operators;

use crate::operators::jobs::{
    JOB_SETS, KUBEDL_JOBS, MPI_JOBS, PYTORCH_JOBS, TF_JOBS, TRAIN_JOBS, text, training_runtime,
};
use crate::operators::{bound, play};
use crate::queue::objects::namespace;

#[test]
fn the_launcher_of_an_mpi_job_comes_after_its_workers() -> Result<()> {
    let Some(seen) = play(&MPI_JOBS, |_, _| Ok(()))? else {
        return Ok(());
    };
    // For a job that is held back the operator makes the launcher's Job before there are workers, and
    // lets all of them go at once.
    let pods = &bound(&seen)["one"];
    let last = pods.last().context("no pods")?;
    ensure!(last.contains("-launcher"), "the last to start: {pods:?}");
    Ok(())
}

#[test]
fn pytorch_jobs_start_as_a_whole() -> Result<()> {
    play(&PYTORCH_JOBS, |_, _| Ok(())).map(drop)
}

#[test]
fn servers_and_workers_of_a_tf_job_start_together() -> Result<()> {
    play(&TF_JOBS, |_, _| Ok(())).map(drop)
}

/// A TrainJob makes a JobSet, which makes Jobs: it queues once.
#[test]
fn a_train_job_queues_once_with_all_that_it_makes() -> Result<()> {
    let prepared = |world: &World, operators: &Operators| {
        let sample = text(&(JOB_SETS.job)("sample", true));
        world.cluster.apply(&namespace(JOB_SETS.namespace))?;
        operators.start(JOB_SETS.operator, &world.cluster, &sample)?;
        operators.define(TRAIN_JOBS.operator, &world.cluster)?;
        world.cluster.apply(&text(&training_runtime())).map(drop)
    };
    play(&TRAIN_JOBS, prepared).map(drop)
}

/// KubeDL's own queue is off: ours is in its place.
#[test]
fn jobs_of_kubedl_start_as_a_whole() -> Result<()> {
    play(&KUBEDL_JOBS, |_, _| Ok(())).map(drop)
}
