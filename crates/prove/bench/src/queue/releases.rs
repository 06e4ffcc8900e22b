//! The referee: it sees by a watch of its own when Jobs are released. It decides and writes nothing.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::core::ApiResource;
use sublet_client::{Change, watch_any};

use super::work::{JobState, state_of};
use crate::world::World;

/// If no Job is released for so long, something is wrong.
const STALL: Duration = Duration::from_secs(60);

/// The moments at which so many more Jobs are released, after `act`.
pub(super) fn releases_after(
    world: &World,
    jobs: usize,
    act: impl FnOnce() -> Result<()>,
) -> Result<Vec<Instant>> {
    std::thread::scope(|scope| {
        let (watching, ready) = mpsc::channel();
        let watch = scope.spawn(move || world.executor.block_on(follow(world, jobs, &watching)));
        // An error means that the watch failed, which its thread reports below.
        if ready.recv().is_ok() {
            act()?;
        }
        watch
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Follows Jobs until so many more are released; tells `watching` when the watch has begun.
async fn follow(world: &World, jobs: usize, watching: &mpsc::Sender<()>) -> Result<Vec<Instant>> {
    let kind = ApiResource::erase::<Job>(&());
    let mut changes = pin!(watch_any(&world.client, &kind));
    let (mut known, mut moments) = (HashSet::new(), Vec::new());
    let mut is_watching = false;
    while moments.len() < jobs {
        let change = tokio::time::timeout(STALL, changes.next()).await;
        let change = change.ok().flatten();
        let change =
            change.with_context(|| format!("{} of {jobs} Jobs are released", moments.len()))?;
        match change.context("the watch broke")? {
            Change::ListEnds => {
                is_watching = true;
                // The receiver waits for the first of these only.
                let _ = watching.send(());
            }
            Change::Set(job) if state_of(&job) == JobState::Runs => {
                if known.insert(job.name_any()) && is_watching {
                    moments.push(Instant::now());
                }
            }
            Change::Gone(job) => bail!("a Job is gone: {:?}", job.metadata.name),
            Change::Set(_) | Change::ListBegins => {}
        }
    }
    Ok(moments)
}
