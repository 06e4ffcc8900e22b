//! The shell of every controller: watches in, decisions by a pure function, writes out.
//!
//! A controller names its watches and the other data of its decisions, and decides. All the rest is
//! here: it runs on the leader alone, its writes end with the leadership, and a refused write is
//! tried again with growing pauses. Watches, caches and queues are kube's. The queue, whose
//! decision is about the whole cluster, has a loop of its own and writes by the same [`FencedWriter`].

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::runtime::Controller;
use kube::runtime::controller::{Action, Error};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use sublet_client::{Write, WriteError, perform};
use sublet_model::Pauses;
use sublet_replicas::leader::{Leadership, SWIFT_DEADLINE};
use sublet_telemetry::metrics::{ControllerLabel, ControllerMetrics, WriteLabels};

use crate::pace::Pace;

/// A controller's decision about one object.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decision {
    /// The writes, in this order; the first that fails ends it, and all is decided anew.
    pub writes: Vec<Write>,
    /// When to look again, though nothing has changed.
    pub again: Option<Duration>,
}

/// A controller: it keeps one kind of object as it should be.
pub trait Control: Send + Sync + 'static {
    /// The kind of object that it looks after. A decision is about one of them.
    type Object: Resource<DynamicType: Debug + Eq + Hash + Clone + Unpin>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static;
    /// Caches of other objects that its decisions look at; new for each leadership.
    type Caches: Send + Sync + 'static;
    /// Data for a decision beside its object, at one moment, chance included.
    type Snapshot: Send;

    /// Its name in logs and metrics, and as field manager.
    const NAME: &'static str;

    /// Watches, in kube's own words: the objects, and all other reasons to decide. `tenure`: the
    /// number of the leadership.
    fn watch(&self, client: &Client, tenure: u64) -> (Controller<Self::Object>, Self::Caches);

    /// Collects the data for a decision. It reads the caches and waits at most for them to be
    /// complete.
    fn see(
        &self,
        caches: &Self::Caches,
        object: &Self::Object,
    ) -> impl Future<Output = Self::Snapshot> + Send;

    /// Decides. No clock, I/O or chance of its own: the same arguments give the same decision.
    fn decide(&self, object: &Self::Object, snapshot: &Self::Snapshot, now: Timestamp) -> Decision;

    /// Returns an event for people about a write that the API server refused, with its words; often
    /// nothing.
    fn refused(
        &self,
        _object: &Self::Object,
        _write: &Write,
        _why: &str,
        _now: Timestamp,
    ) -> Option<Write> {
        None
    }
}

/// The pauses after failures of one object.
pub const PAUSES: Pauses = Pauses::new(Duration::from_millis(200), Duration::from_secs(30));

/// Runs a controller for ever: whenever this process leads, its objects are kept as it decides.
pub async fn govern<C: Control>(
    control: C,
    client: Client,
    mut leadership: Leadership,
    pauses: Pauses,
    metrics: ControllerMetrics,
) {
    let control = Arc::new(control);
    loop {
        let tenure = leadership.won().await;
        // All caches are new: what an earlier leader wrote is in the lists they begin with.
        let (watches, caches) = control.watch(&client, tenure);
        let writer = FencedWriter {
            name: C::NAME,
            client: client.clone(),
            leadership: leadership.clone(),
            tenure,
            metrics: metrics.clone(),
            pace: None,
        };
        let term = Arc::new(LeadershipTerm {
            control: control.clone(),
            caches,
            writer,
            pauses,
            failures: Mutex::default(),
        });
        let attended = watches
            .run(LeadershipTerm::attend, LeadershipTerm::pause, term.clone())
            .for_each(|outcome| {
                match outcome {
                    // `pause` has said why.
                    Ok(_) | Err(Error::ReconcilerFailed(..)) => {}
                    Err(Error::ObjectNotFound(gone)) => {
                        let namespace = gone.namespace.clone().unwrap_or_default();
                        term.failed().remove(&(namespace, gone.name.clone()));
                    }
                    Err(error) => tracing::warn!(controller = C::NAME, %error, "a watch is broken"),
                }
                std::future::ready(())
            });
        tokio::select! {
            () = attended => {}
            () = leadership.lost(tenure) => {}
        }
    }
}

/// A controller in one tenure.
struct LeadershipTerm<C: Control> {
    control: Arc<C>,
    caches: C::Caches,
    writer: FencedWriter,
    pauses: Pauses,
    /// Failures of an object in a row, by namespace and name.
    failures: Mutex<BTreeMap<(String, String), u32>>,
}

/// The writer of one tenure; it ends with the tenure.
#[derive(Clone)]
pub(crate) struct FencedWriter {
    /// The controller's name in logs and metrics, and as field manager.
    pub(crate) name: &'static str,
    pub(crate) client: Client,
    pub(crate) leadership: Leadership,
    pub(crate) tenure: u64,
    pub(crate) metrics: ControllerMetrics,
    /// Limit on the rate of its writes.
    pub(crate) pace: Option<Arc<Pace>>,
}

/// Reason why an object is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undone {
    /// The API server refused this write, or did not answer.
    #[error("the write of {0}: {1}")]
    Unwritten(String, WriteError),
    /// Somebody else may write now, or the Lease is renewed late.
    #[error("this process may not write now")]
    Deposed,
}

impl FencedWriter {
    /// Counts a decision.
    pub(crate) fn decided(&self) {
        let controller = self.name;
        let decisions = &self.metrics.decisions;
        decisions
            .get_or_create(&ControllerLabel { controller })
            .inc();
    }

    /// Sends a write, if this tenure still may.
    pub(crate) async fn write(&self, write: &Write) -> Result<(), Undone> {
        if let Some(pace) = &self.pace {
            pace.turn().await;
        }
        self.send(write).await
    }

    /// The same for a write that only informs people: others go first.
    pub(crate) async fn tell(&self, write: &Write) -> Result<(), Undone> {
        if let Some(pace) = &self.pace {
            pace.idle_turn().await;
        }
        self.send(write).await
    }

    async fn send(&self, write: &Write) -> Result<(), Undone> {
        let (client, name) = (&self.client, self.name);
        let posting = perform(client, write, name, SWIFT_DEADLINE);
        let answer = self.leadership.write(self.tenure, posting).await;
        let answer = answer.ok_or(Undone::Deposed)?;
        let outcome = match &answer {
            Ok(()) => "written",
            Err(WriteError::Refused { .. }) => "refused",
            Err(WriteError::Unanswered(_)) => "unanswered",
        };
        let controller = self.name;
        let labels = WriteLabels {
            controller,
            outcome,
        };
        self.metrics.writes.get_or_create(&labels).inc();
        let (kind, name) = (&write.to.kind.kind, &write.to.name);
        tracing::info!(controller, outcome, kind, name, "write");
        answer.map_err(|error| Undone::Unwritten(format!("{kind} {name}"), error))
    }
}

impl<C: Control> LeadershipTerm<C> {
    async fn attend(
        object: Arc<C::Object>,
        term: Arc<LeadershipTerm<C>>,
    ) -> Result<Action, Undone> {
        let control = &term.control;
        let snapshot = control.see(&term.caches, &object).await;
        let now = Timestamp::now();
        let decision = control.decide(&object, &snapshot, now);
        term.writer.decided();
        for write in &decision.writes {
            if let Err(undone) = term.writer.write(write).await {
                if let Undone::Unwritten(_, WriteError::Refused { message, .. }) = &undone
                    && let Some(told) = control.refused(&object, write, message, now)
                {
                    // Telling is not what was to be done: what counts is the write.
                    let _told = term.writer.write(&told).await;
                }
                return Err(undone);
            }
        }
        term.failed().remove(&key(&*object));
        Ok(decision
            .again
            .map_or_else(Action::await_change, Action::requeue))
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "kube's controller passes them so"
    )]
    fn pause(object: Arc<C::Object>, error: &Undone, term: Arc<LeadershipTerm<C>>) -> Action {
        let mut failed = term.failed();
        let failures = failed.entry(key(&*object)).or_default();
        *failures = failures.saturating_add(1);
        let chance = Timestamp::now().subsec_nanosecond().unsigned_abs();
        let pause = term.pauses.scattered(*failures, chance.into());
        tracing::warn!(controller = C::NAME, %error, ?pause, "tried again later");
        Action::requeue(pause)
    }

    fn failed(&self) -> std::sync::MutexGuard<'_, BTreeMap<(String, String), u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key<K: Resource>(object: &K) -> (String, String) {
    (object.namespace().unwrap_or_default(), object.name_any())
}
