//! The job queue of the cluster: it decides which groups start, on which nodes, and which pods go
//! for them.
//!
//! A decision is about the whole cluster, so this controller has a loop of its own: watches in, one
//! look at everything after each change, writes out by the shell's writer. Nothing is in memory that
//! the API server does not have: plans have the decisions, pods have their allocations, and groups
//! have the time since when they wait and how often they went. Only since when a minimum has had room
//! for a group counts anew with each leader.
//!
//! Suggested reading order: watched_state, watching; steps, reclaims, memory, round, report, reporter.

mod memory;
mod reclaims;
mod report;
mod reporter;
mod round;
mod steps;
#[cfg(test)]
mod tests;
mod watched_state;
pub(crate) mod watching;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use jiff::Timestamp;
use kube::Client;
use sublet_api::group::QueueScope;
use sublet_client::WriteError;
use sublet_model::{Pauses, Time};
use sublet_queue::QueueRules;
use sublet_replicas::leader::{Leadership, Tenure};
use sublet_tasks::Vital;
use sublet_telemetry::metrics::ControllerMetrics;

use crate::known::Known;
use crate::ledger::{LedgerKeeper, SharedLedger};
use crate::pace::Pace;
use crate::shell::{FencedWriter, Undone};
use memory::Memory;
use reporter::{Room, StatusReporter};
use round::{QueueLook, Round};
use steps::{Step, Then};
use watching::follow_lists;

/// Its name in logs and metrics, and as field manager.
pub(crate) const QUEUE: &str = "sublet-queue";

/// So many writes are under way at a time.
const AT_ONCE: usize = 16;

/// Changes that come together are looked at together.
const TOGETHER: Duration = Duration::from_millis(20);

/// After a look at everything that found nothing to do there is a pause of so many times as long: where
/// thousands wait, more is decided at once, and one look in a hundred milliseconds does not take a whole
/// core.
const RESTS: u32 = 3;

/// The longest pause after a look that found something to do: whoever starts needs several looks.
const STRIDE: Duration = Duration::from_millis(100);

/// The pauses after looks with a write that failed.
const PAUSES: Pauses = Pauses::new(Duration::from_millis(500), Duration::from_secs(4));

/// The queue's configuration and its means.
pub(crate) struct QueueKeeper {
    pub(crate) scope: QueueScope,
    pub(crate) ledgers: Arc<LedgerKeeper>,
    /// The settings of the site.
    pub(crate) rules: QueueRules,
    /// The labels of namespaces.
    pub(crate) known: Known,
    /// Starts its watches.
    pub(crate) vital: Vital,
    /// At most so many writes a second.
    pub(crate) writes_a_second: Option<NonZeroU32>,
}

/// Keeps the queue for ever, whenever this process leads.
pub(crate) async fn keep_queue(
    keeper: QueueKeeper,
    client: Client,
    mut leadership: Leadership,
    metrics: ControllerMetrics,
) {
    // Names of plans are never used again, whatever leadership of this process made them.
    let mut names = 0;
    let pace = keeper.writes_a_second.map(|most| Arc::new(Pace::new(most)));
    loop {
        let Tenure {
            number: tenure,
            epoch,
            ..
        } = leadership.inaugurated().await;
        let writer = FencedWriter {
            name: QUEUE,
            client: client.clone(),
            leadership: leadership.clone(),
            tenure,
            metrics: metrics.clone(),
            pace: pace.clone(),
        };
        tokio::select! {
            never = keeper.in_office(&writer, epoch, &mut names) => match never {},
            () = leadership.lost(tenure) => {}
        }
    }
}

impl QueueKeeper {
    async fn in_office(
        &self,
        writer: &FencedWriter,
        epoch: u64,
        names: &mut u64,
    ) -> std::convert::Infallible {
        // All is watched anew: what an earlier leader wrote is in the lists that begin it.
        let ledger = self.ledgers.of(&writer.client, writer.tenure);
        let _lists = follow_lists(&writer.client, &ledger.board, &self.vital);
        ledger.read_replica.ready().await;
        ledger.board.ready().await;
        // Without its labels a namespace's groups would count as gone, and their plans with them.
        let mut namespaces = self.known.namespaces.clone();
        let _known = namespaces.wait_for(Option::is_some).await.is_ok();
        let reporter = StatusReporter::begin(writer, &self.vital);
        tracing::info!(epoch, "the queue is kept");
        let mut memory = Memory::default();
        let mut failures: u32 = 0;
        let mut leadership = writer.leadership.clone();
        loop {
            let Some(Tenure { renewed, .. }) = leadership.may_write(writer.tenure).await else {
                // It is over, and so is this in a moment.
                return std::future::pending().await;
            };
            let began = Instant::now();
            let reign = (epoch, (began, renewed));
            let room = reporter.room();
            // It may take long, and the Lease is renewed beside it.
            let look = || self.look(&ledger, reign, room, &mut memory, names);
            let round = tokio::task::block_in_place(look);
            let (again, took) = (round.again(), began.elapsed());
            let rest = match round.steps.is_empty() {
                true => RESTS * took,
                false => took.min(STRIDE),
            };
            // Releases go before reports.
            writer.decided();
            let is_done = self
                .carry_out(round.steps, writer, &ledger, &mut memory)
                .await;
            reporter.tell(round.report);
            let rested = tokio::time::Instant::now() + rest;
            failures = if is_done {
                0
            } else {
                failures.saturating_add(1)
            };
            tokio::time::sleep(PAUSES.after(failures)).await;
            let news = ledger.board.news.notified();
            let _news = tokio::time::timeout(again, news).await;
            let together = tokio::time::Instant::now() + TOGETHER;
            tokio::time::sleep_until(rested.max(together)).await;
        }
    }

    fn look(
        &self,
        ledger: &SharedLedger,
        (epoch, at): (u64, (Instant, Instant)),
        room: Room,
        memory: &mut Memory,
        names: &mut u64,
    ) -> Round {
        let namespaces = self.known.namespaces.borrow().clone().unwrap_or_default();
        let now = Time::from_ms(u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0));
        ledger.read_replica.decide(|cluster| {
            let watched = ledger.board.watched();
            let look = QueueLook {
                watched: &watched,
                namespaces: &namespaces,
                scope: &self.scope,
                rules: &self.rules,
                epoch,
                at,
                now,
                room,
            };
            look.round(cluster, memory, names)
        })
    }

    /// Writes the decisions. True: nothing failed that must be tried again.
    async fn carry_out(
        &self,
        steps: Vec<Step>,
        writer: &FencedWriter,
        ledger: &SharedLedger,
        memory: &mut Memory,
    ) -> bool {
        let mut is_done = true;
        let steps = steps.into_iter().map(|step| async move {
            let written = writer.write(&step.write).await;
            (step, written)
        });
        let mut steps = futures::stream::iter(steps).buffer_unordered(AT_ONCE);
        while let Some((step, written)) = steps.next().await {
            match written {
                Ok(()) => self.enter(step, ledger, memory),
                Err(undone) => {
                    is_done &= self.failed(&step, &undone, memory);
                }
            }
        }
        is_done
    }

    /// Enters a write that was done into the memory and into the view of the cluster.
    fn enter(&self, step: Step, ledger: &SharedLedger, memory: &mut Memory) {
        let now = Timestamp::now();
        let mut watched = ledger.board.watched();
        match step.then {
            Then::Nothing => {}
            Then::Planned(name) => memory.await_plan(name, None, moment(now)),
            Then::Rewritten(name, version) => memory.await_plan(name, Some(version), moment(now)),
            Then::Released(uid, mark) => watched.released(&uid, &mark),
            Then::Evicted(uid) => {
                watched.evicted(&uid, &now.to_string());
                memory.ask(uid, moment(now));
            }
            Then::Switched(job, suspended) => watched.switched(&job, suspended),
            Then::Counted(object, reclaims, at) => watched.counted(&object, reclaims, at),
        }
    }

    /// A write failed. True: a watch will tell why, or it is tried again in its own time.
    fn failed(&self, step: &Step, undone: &Undone, memory: &mut Memory) -> bool {
        let refused = matches!(
            undone,
            Undone::Unwritten(
                _,
                WriteError::Refused {
                    code: 404 | 409 | 422 | 429,
                    ..
                }
            )
        );
        match &step.then {
            // A disruption budget may be in the way.
            Then::Evicted(uid) => memory.ask(uid.clone(), moment(Timestamp::now())),
            // It may have been written.
            Then::Planned(name) => {
                memory.await_plan(name.clone(), None, moment(Timestamp::now()));
            }
            _ => {}
        }
        tracing::warn!(error = %undone, "tried again later");
        refused
    }
}

fn moment(now: Timestamp) -> Time {
    Time::from_ms(u64::try_from(now.as_millisecond()).unwrap_or(0))
}
