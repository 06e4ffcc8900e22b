//! The queue's watches: all objects seen go into one place, and the decider is woken.
//!
//! Kinds that nobody has defined count as a list without objects. Definitions are watched, so an
//! operator that comes later is noticed before its first job.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use kube::Client;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher;
use sublet_api::gang_plan::GangPlanObject;
use sublet_api::group::group_apis;
use sublet_api::object::{Node, Pod};
use sublet_client::{
    Change, ElasticQuotas, PluginQuotas, is_unknown_kind, watch, watch_any, watch_definitions,
};
use sublet_scheduler::EventSink;
use sublet_tasks::{Vital, VitalTasks};
use tokio::sync::Notify;

use super::watched_state::WatchedState;

/// API groups of quotas.
pub(crate) const KOORDINATOR: &str = "scheduling.sigs.k8s.io";
pub(crate) const PLUGINS: &str = "scheduling.x-k8s.io";

/// A kind is served at most so long after its definition has changed.
const SERVED_AFTER: Duration = Duration::from_secs(30);

/// Pause between tries of a kind that was just defined.
const SOON: Duration = Duration::from_millis(500);

/// Pause between tries of a kind that nobody has defined.
const UNDEFINED: Duration = Duration::from_secs(60);

/// The objects seen, and the signal of news.
#[derive(Debug, Default)]
pub(crate) struct Board {
    watched: Mutex<WatchedState>,
    /// Lists that are not complete yet.
    awaited: Mutex<BTreeSet<String>>,
    /// Notified of every change.
    pub(crate) news: Notify,
}

impl Board {
    /// The objects seen.
    pub(crate) fn watched(&self) -> MutexGuard<'_, WatchedState> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every list is complete.
    pub(crate) async fn ready(&self) {
        while !self.awaited().is_empty() {
            self.news.notified().await;
        }
    }

    fn awaited(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, list: &str) {
        self.awaited().remove(list);
        self.news.notify_one();
    }
}

/// Changes that the ledger's own watches tell.
impl EventSink for Board {
    fn pod(&self, change: Change<Pod>) {
        self.watched().pod(change);
        self.news.notify_one();
    }

    fn node(&self, change: Change<Node>) {
        self.watched().node(change);
        self.news.notify_one();
    }

    fn plan(&self, change: Change<GangPlanObject>) {
        self.watched().plan(change);
        self.news.notify_one();
    }
}

/// Watches for the board all that the ledger does not, until the tasks are dropped.
pub(crate) fn follow_lists(client: &Client, board: &Arc<Board>, vital: &Vital) -> VitalTasks {
    let mut tasks = VitalTasks::new(vital);
    let defined = follow_definitions(&mut tasks, client);
    let quotas = |client: &Client| watch::<ElasticQuotas>(client, None);
    let list = List {
        client: client.clone(),
        board: board.clone(),
        definition: format!("elasticquotas.{KOORDINATOR}"),
        name: KOORDINATOR.to_owned(),
        defined: defined.clone(),
    };
    let plugins = List {
        definition: format!("elasticquotas.{PLUGINS}"),
        name: PLUGINS.to_owned(),
        ..list.clone()
    };
    list.follow(&mut tasks, quotas, |watched, change| {
        watched.quota(KOORDINATOR, change);
    });
    let quotas = |client: &Client| watch::<PluginQuotas>(client, None);
    plugins
        .clone()
        .follow(&mut tasks, quotas, |watched, change| {
            watched.quota(PLUGINS, change);
        });
    for api in group_apis() {
        let kind = GroupVersionKind::gvk(api.group, api.version, api.kind);
        let watched = ApiResource::from_gvk_with_plural(&kind, api.plural);
        let api_version = watched.api_version.clone();
        let list = List {
            definition: format!("{}.{}", api.plural, api.group),
            name: format!("{}.{api_version}", api.plural),
            ..plugins.clone()
        };
        let objects = move |client: &Client| watch_any(client, &watched);
        list.follow(&mut tasks, objects, move |watched, change| {
            watched.object(&api_version, api.kind, change);
        });
    }
    tasks
}

/// A list that is followed.
#[derive(Clone)]
struct List {
    client: Client,
    board: Arc<Board>,
    /// The name of its kind's definition.
    definition: String,
    /// Name of the list.
    name: String,
    defined: Definitions,
}

impl List {
    /// Enters all that is told of it, from now on. `watch` begins to watch it.
    fn follow<T: Debug + Send + 'static, S>(
        self,
        tasks: &mut VitalTasks,
        watch: impl Fn(&Client) -> S + Send + 'static,
        mut enter: impl FnMut(&mut WatchedState, Change<T>) + Send + 'static,
    ) where
        S: Stream<Item = Result<Change<T>, watcher::Error>> + Send + 'static,
    {
        self.board.awaited().insert(self.name.clone());
        tasks.start("a watch of the queue", async move {
            loop {
                self.until_undefined(watch(&self.client), &mut enter).await;
                // Nothing is left of what nobody defines any more.
                enter(&mut self.board.watched(), Change::ListBegins);
                enter(&mut self.board.watched(), Change::ListEnds);
                self.board.complete(&self.name);
                self.until_defined().await;
            }
        });
    }

    async fn until_undefined<T>(
        &self,
        changes: impl Stream<Item = Result<Change<T>, watcher::Error>>,
        enter: &mut impl FnMut(&mut WatchedState, Change<T>),
    ) {
        let mut changes = pin!(changes);
        while let Some(change) = changes.next().await {
            match change {
                Ok(change) => {
                    let is_whole = matches!(change, Change::ListEnds);
                    enter(&mut self.board.watched(), change);
                    match is_whole {
                        true => self.board.complete(&self.name),
                        false => self.board.news.notify_one(),
                    }
                }
                Err(error) if is_unknown_kind(&error) => return,
                Err(error) => tracing::warn!(list = self.name, %error, "a watch is broken"),
            }
        }
    }

    /// Waits until it is worth another try. A kind that was just defined is served a moment later.
    async fn until_defined(&self) {
        let mut defined = self.defined.clone();
        let at = defined.borrow_and_update().get(&self.definition).copied();
        if at.is_some_and(|at| at.elapsed() < SERVED_AFTER) {
            return tokio::time::sleep(SOON).await;
        }
        let changed = defined.wait_for(|now| now.get(&self.definition).copied() != at);
        // No matter which: without the right to see definitions, time tells.
        let _either = tokio::time::timeout(UNDEFINED, changed).await;
    }
}

/// When each definition last changed.
type Definitions = tokio::sync::watch::Receiver<BTreeMap<String, Instant>>;

fn follow_definitions(tasks: &mut VitalTasks, client: &Client) -> Definitions {
    let (tell, defined) = tokio::sync::watch::channel(BTreeMap::new());
    let changes = watch_definitions(client);
    tasks.start("the watch of definitions", async move {
        let mut changes = pin!(changes);
        while let Some(change) = changes.next().await {
            match change {
                Ok(name) => tell.send_modify(|all| {
                    all.insert(name, Instant::now());
                }),
                Err(error) => tracing::warn!(%error, "definitions cannot be watched"),
            }
        }
    });
    defined
}
