//! Hands the cards of a container over: makes what it needs on its node, and says what is added to
//! it. The same for kubelet's Allocate, whose container is found by size and order
//! (`card_allocator`), and for the runtime, which names its container (`nri`). Whether it may have
//! these cards is decided before (`allocate`).

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use sublet_telemetry::metrics::{AgentMetrics, OutcomeLabel};
use tokio::task::spawn_blocking;
use tonic::{Code, Status};
use tracing::{info, warn};

use crate::allocate::{AllocateError, AllocationResponse};
use crate::cdi::Cdi;
use crate::isolate::IsolationError;
use crate::isolate::inject::Injection;
use crate::isolate::supervisor::{IsolationWatch, state_for};
use crate::lifecycle_manager::LifecycleManager;
use crate::pods::PodList;

/// Time that a caller has, and its thread.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Longest wait for an arbiter.
    pub(crate) arbiter: Duration,
    /// Longest wait for a card that is not clean.
    pub(crate) clean: Duration,
    /// Has the thread no other work? Then work that blocks is done on it: on a busy machine each
    /// change of threads is a wait for a core.
    pub(crate) may_block: bool,
}

impl Patience {
    /// Does work that blocks.
    async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        if self.may_block {
            return Ok(work());
        }
        let done = spawn_blocking(work).await;
        done.map_err(|panic| Status::from_error(panic.into()))
    }
}

impl From<AllocateError> for Status {
    fn from(refusal: AllocateError) -> Status {
        Status::failed_precondition(refusal.to_string())
    }
}

/// The parts of the agent that a container with cards has to do with.
#[derive(Clone)]
pub(crate) struct CardInjector {
    /// Are containers held to their parts?
    pub(crate) isolation: IsolationWatch,
    pub(crate) cdi: Option<Arc<Cdi>>,
    pub(crate) metrics: AgentMetrics,
}

impl CardInjector {
    /// Tells the arbiter of the container before anybody else hears of it, and returns what is added
    /// to the container. Containers that are gone by the same list of pods make room first: their
    /// memory may be this one's now. A card that nobody has any more is cleaned before this container
    /// gets it.
    ///
    /// # Errors
    /// The container cannot be held to its part, or a card is not clean. People read the message.
    pub(crate) async fn inject(
        &self,
        handed: &AllocationResponse,
        pods: &PodList,
        lifecycles: &LifecycleManager,
        patience: Patience,
    ) -> Result<Injection, Status> {
        let cannot = |error: IsolationError| {
            let (pod, why) = (&handed.pod, error.with_cause());
            Status::unavailable(format!("pod {pod} cannot be held to its part: {why}"))
        };
        let state = state_for(handed, &self.isolation, patience.arbiter).await;
        let state = state.map_err(cannot)?;
        if let Some(isolation) = state.on().cloned() {
            let pods = pods.clone();
            patience.run(move || isolation.settle(&pods)).await?;
        }
        let twins = handed.twins.iter().map(|twin| twin.uid.clone());
        let who: Vec<_> = twins.chain([handed.uid.clone()]).collect();
        lifecycles
            .ready(&handed.card_names(), &who, Some(pods), patience.clean)
            .await?;
        let container = handed.clone();
        let admitted = patience.run(move || state.admit(&container)).await?;
        let admitted = admitted.map_err(cannot)?;
        let devices = self.cdi.as_ref().map(|cdi| cdi.devices(&handed.cards));
        let own = handed.environment.clone().into_iter();
        Ok(Injection {
            environment: own.chain(admitted.environment).collect(),
            mounts: admitted.mounts,
            devices: devices.unwrap_or_default(),
        })
    }

    /// Counts and logs the answer to a caller. `asked`: the container, in the caller's words.
    pub(crate) fn tell(
        &self,
        asked: &impl Display,
        outcome: &Result<(AllocationResponse, Injection), Status>,
    ) {
        let outcome = match outcome {
            Ok((handed, injection)) => {
                let AllocationResponse { pod, container, .. } = handed;
                let gpus: Vec<u16> = handed.cards.iter().map(|card| card.index.0).collect();
                let isolated = !injection.mounts.is_empty();
                let twins = handed.twins.len();
                info!(%pod, %container, %asked, ?gpus, isolated, twins, "devices handed over");
                "handed_over"
            }
            Err(status) => {
                warn!(%asked, why = status.message(), "no devices handed over");
                if status.code() == Code::FailedPrecondition {
                    "refused"
                } else {
                    "failed"
                }
            }
        };
        let label = OutcomeLabel { outcome };
        self.metrics.allocations.get_or_create(&label).inc();
    }
}
