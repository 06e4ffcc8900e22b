//! Supervision of the node's arbiter. One that cannot start, or has ended, is started again, and
//! meanwhile no part of a card is handed out: nothing would hold its container to it. Whole cards need
//! no limit and go on. Only what this node can never do leaves isolation off.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use sublet_api::object::Node;
use sublet_api::{NotIsolated, keys};
use sublet_model::Inventory;
use sublet_telemetry::metrics::{AgentMetrics, IsolationLabel};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tracing::{error, info, warn};

use super::inject::Injection;
use super::node::Isolation;
use super::{FailureKind, IsolationError};
use crate::allocate::AllocationResponse;
use crate::api_calls::{LOOK_EVERY, PAUSES};

/// The isolation of this node's containers, as it is now.
#[derive(Clone)]
pub(crate) enum IsolationState {
    /// Containers are held to their parts.
    On(Arc<Isolation>),
    /// They are to be, and something is in the way: the reason. It is tried again.
    Pending(Arc<str>),
    /// This node can never do it, for this reason: parts are handed out without limits.
    Unsupported(Arc<str>),
    /// The operator does not want it.
    Disabled,
}

/// The state now, for all parts that hand out cards, and news of its changes.
pub(crate) type IsolationWatch = watch::Receiver<IsolationState>;

/// All values of the metric's label.
const LABELS: [&str; 5] = ["on", "pending", "unsupported", "disabled", "no-gpus"];

impl IsolationState {
    /// The node's arbiter and its containers, where there is one.
    pub(crate) fn on(&self) -> Option<&Arc<Isolation>> {
        match self {
            IsolationState::On(isolation) => Some(isolation),
            _ => None,
        }
    }

    /// True where there will never be one.
    pub(crate) fn is_off(&self) -> bool {
        matches!(
            self,
            IsolationState::Unsupported(_) | IsolationState::Disabled
        )
    }

    /// Has the arbiter look after a container that is about to start, and returns what it gets. It
    /// blocks as [`Isolation::admit`] does.
    ///
    /// # Errors
    /// The container is to be held to a part, and cannot be.
    pub(crate) fn admit(&self, handed: &AllocationResponse) -> Result<Injection, IsolationError> {
        if let Some(refusal) = self.refusal(handed) {
            return Err(refusal);
        }
        match self.on() {
            Some(isolation) => isolation.admit(handed),
            None => Ok(Injection::default()),
        }
    }

    /// The reason why this container cannot start now, as far as no arbiter must be asked.
    fn refusal(&self, handed: &AllocationResponse) -> Option<IsolationError> {
        match self {
            IsolationState::Pending(why) if handed.needs_limit() => {
                Some(IsolationError::Pending(Arc::clone(why)))
            }
            _ => None,
        }
    }

    /// The note that the node's object lacks, or that is to go. `limits_parts`: there are cards, and
    /// the node's label does not turn the limits off.
    pub(crate) fn news(&self, node: &Node, limits_parts: bool) -> Option<(String, Option<String>)> {
        let note = match self {
            IsolationState::Pending(why) => Some(NotIsolated::Pending(why.to_string())),
            IsolationState::Unsupported(why) => Some(NotIsolated::Unsupported(why.to_string())),
            IsolationState::On(_) | IsolationState::Disabled => None,
        };
        let note = note.filter(|_| limits_parts).map(|note| note.to_string());
        let said = node.metadata.annotations.get(keys::NOT_ISOLATED);
        (said != note.as_ref()).then(|| (keys::NOT_ISOLATED.to_owned(), note))
    }
}

/// The state in which that container may start. `patience`: the longest wait for one.
///
/// # Errors
/// The container is to be held to a part, and nothing can do that yet.
pub(crate) async fn state_for(
    handed: &AllocationResponse,
    isolation: &IsolationWatch,
    patience: Duration,
) -> Result<IsolationState, IsolationError> {
    let now = isolation.borrow().clone();
    if now.refusal(handed).is_none() {
        return Ok(now);
    }
    let mut isolation = isolation.clone();
    let may_start = isolation.wait_for(|state| state.refusal(handed).is_none());
    let _is_late = timeout(patience, may_start).await.is_err();
    let then = isolation.borrow().clone();
    match then.refusal(handed) {
        None => Ok(then),
        Some(refusal) => Err(refusal),
    }
}

/// One try to start the arbiter of a node with these cards.
pub(crate) type StartIsolation =
    dyn Fn(&Inventory) -> Result<Isolation, IsolationError> + Send + Sync;

/// The owner of the state.
pub(crate) struct IsolationSupervisor {
    /// Nothing where the operator does not want isolation.
    start: Option<Arc<StartIsolation>>,
    /// Is a node that can never do it an error?
    must: bool,
    inventory: watch::Receiver<Arc<Inventory>>,
    state: watch::Sender<IsolationState>,
    metrics: AgentMetrics,
}

impl IsolationSupervisor {
    /// Tries once, at once: an agent that starts well was never without isolation. `must`: a node that
    /// can never do it is an error.
    ///
    /// # Errors
    /// A setting makes no sense, or this node cannot do what it must.
    pub(crate) fn begin(
        start: Option<Arc<StartIsolation>>,
        must: bool,
        inventory: watch::Receiver<Arc<Inventory>>,
        metrics: AgentMetrics,
    ) -> Result<IsolationSupervisor, IsolationError> {
        let cards = inventory.borrow().clone();
        let state = match &start {
            None => IsolationState::Disabled,
            Some(start) => match start(&cards) {
                Err(error) if error.kind() == FailureKind::Setting => return Err(error),
                Err(error @ IsolationError::NoCards) if must => return Err(error),
                tried => state_after(tried, must)?,
            },
        };
        let supervisor = IsolationSupervisor {
            start,
            must,
            inventory,
            state: watch::Sender::new(state),
            metrics,
        };
        supervisor.count();
        Ok(supervisor)
    }

    /// The state now and later.
    pub(crate) fn state(&self) -> IsolationWatch {
        self.state.subscribe()
    }

    /// Starts the arbiter again whenever there is none, for ever.
    ///
    /// # Errors
    /// This node can never do what it must.
    pub(crate) async fn keep(mut self) -> anyhow::Result<Infallible> {
        let mut failures = 1;
        loop {
            let now = self.state.borrow().clone();
            match (now, self.start.clone()) {
                (IsolationState::On(isolation), _) => {
                    let begun = Instant::now();
                    let why = isolation.until_ended().await;
                    // One that always ends at once is not started again and again without a pause.
                    failures = match begun.elapsed() < LOOK_EVERY {
                        true => failures + 1,
                        false => 1,
                    };
                    error!(
                        why,
                        "the arbiter has ended: no part of a card is handed out"
                    );
                    let why = format!("the arbiter has ended: {why}");
                    self.enter(IsolationState::Pending(why.into()));
                }
                (IsolationState::Pending(_), Some(start)) => {
                    self.wait_for_cards().await;
                    sleep(PAUSES.after(failures)).await;
                    failures += 1;
                    let cards = self.inventory.borrow().clone();
                    let tried = spawn_blocking(move || start(&cards)).await?;
                    self.enter(state_after(tried, self.must)?);
                }
                _ => std::future::pending().await,
            }
        }
    }

    /// A node may have a driver and no card; then there is nothing to try.
    async fn wait_for_cards(&mut self) {
        let there = self.inventory.wait_for(|cards| !cards.gpus().is_empty());
        if there.await.is_err() {
            // The thread that watches the devices has ended, and the agent ends with it.
            std::future::pending::<()>().await;
        }
        self.count();
    }

    fn enter(&self, state: IsolationState) {
        self.state.send_replace(state);
        self.count();
    }

    fn count(&self) {
        let [on, pending, unsupported, disabled, no_gpus] = LABELS;
        let now = match &*self.state.borrow() {
            IsolationState::On(_) => on,
            IsolationState::Pending(_) if self.inventory.borrow().gpus().is_empty() => no_gpus,
            IsolationState::Pending(_) => pending,
            IsolationState::Unsupported(_) => unsupported,
            IsolationState::Disabled => disabled,
        };
        for state in LABELS {
            let gauge = self
                .metrics
                .isolation
                .get_or_create(&IsolationLabel { state });
            gauge.set(i64::from(state == now));
        }
    }
}

/// The state that a try leads to.
fn state_after(
    tried: Result<Isolation, IsolationError>,
    must: bool,
) -> Result<IsolationState, IsolationError> {
    let error = match tried {
        Ok(isolation) => return Ok(IsolationState::On(Arc::new(isolation))),
        Err(error) => error,
    };
    let why: Arc<str> = error.with_cause().into();
    let is_permanent = error.kind() == FailureKind::Permanent;
    if is_permanent && must {
        return Err(error);
    }
    if is_permanent {
        warn!(
            %why,
            "isolation is off: containers can use more than their part; \
             --isolation=on makes this an error"
        );
        return Ok(IsolationState::Unsupported(why));
    }
    match error {
        IsolationError::NoCards => info!("no GPU to share yet"),
        _ => warn!(%why, "no part of a card is handed out until containers can be held to theirs"),
    }
    Ok(IsolationState::Pending(why))
}
