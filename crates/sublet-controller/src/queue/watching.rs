//! The queue's watches: all that is seen goes into one place, and whoever decides is woken.
//!
//! Kinds that nobody has defined count as a list without objects; they are asked for again now and
//! then, so an operator that comes later is noticed.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::{Stream, StreamExt};
use kube::Client;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::watcher;
use sublet_api::gang_plan::GangPlanObject;
use sublet_api::group::{GANG_DIALECTS, JOB_KINDS};
use sublet_api::object::{Node, Pod};
use sublet_client::{Change, ElasticQuotas, PluginQuotas, is_unknown_kind, watch, watch_any};
use sublet_model::Unit;
use sublet_plan::{EngineOptions, Policy, StockRules};
use sublet_scheduler::{Ear, Onlooker};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::seen::Seen;

/// API groups of quotas.
pub(crate) const KOORDINATOR: &str = "scheduling.sigs.k8s.io";
pub(crate) const PLUGINS: &str = "scheduling.x-k8s.io";

/// What is seen, and who waits for news.
#[derive(Debug, Default)]
pub(crate) struct Board {
    seen: Mutex<Seen>,
    /// Lists that are not complete yet.
    awaited: Mutex<BTreeSet<String>>,
    /// Told of whatever changes.
    pub(crate) news: Notify,
}

/// The watches of one tenure; they end with it.
pub(crate) struct Watching {
    pub(crate) board: Arc<Board>,
    pub(crate) onlooker: Onlooker,
    _tasks: JoinSet<()>,
}

impl Board {
    /// What is seen.
    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is every list complete?
    pub(crate) fn is_complete(&self) -> bool {
        self.awaited().is_empty()
    }

    fn awaited(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complete(&self, list: &str) {
        self.awaited().remove(list);
        self.news.notify_one();
    }
}

/// What the ledger's own watches tell goes onto the board too.
struct BoardEar(Arc<Board>);

impl Ear for BoardEar {
    fn pod(&self, change: Change<Pod>) {
        self.0.seen().pod(change);
        self.0.news.notify_one();
    }

    fn node(&self, change: Change<Node>) {
        self.0.seen().node(change);
        self.0.news.notify_one();
    }

    fn plan(&self, change: Change<GangPlanObject>) {
        self.0.seen().plan(change);
        self.0.news.notify_one();
    }
}

impl Watching {
    /// Begins to watch.
    pub(crate) fn begin(client: &Client, unit: Unit) -> Watching {
        let board = Arc::new(Board::default());
        let mut tasks = JoinSet::new();
        let options = EngineOptions {
            unit,
            // A plan that the stock scheduler would refuse is none.
            stock: StockRules::Here,
            ..EngineOptions::of(Policy::binpack())
        };
        let ear = Box::new(BoardEar(board.clone()));
        let onlooker = Onlooker::listening(client.clone(), options, ear);

        let quotas = watch::<ElasticQuotas>(client, None);
        follow(&mut tasks, &board, KOORDINATOR, quotas, |seen, change| {
            seen.quota(KOORDINATOR, change);
        });
        let quotas = watch::<PluginQuotas>(client, None);
        follow(&mut tasks, &board, PLUGINS, quotas, |seen, change| {
            seen.quota(PLUGINS, change);
        });
        for kind in kinds() {
            let objects = watch_any(client, &kind);
            let name = kind.plural.clone() + &kind.api_version;
            follow(&mut tasks, &board, &name, objects, move |seen, change| {
                seen.object(&kind.api_version, &kind.kind, change);
            });
        }
        Watching {
            board,
            onlooker,
            _tasks: tasks,
        }
    }

    /// Waits until all is known.
    pub(crate) async fn ready(&self) {
        self.onlooker.ready().await;
        while !self.board.is_complete() {
            self.board.news.notified().await;
        }
    }
}

/// Every kind that is read as data.
fn kinds() -> Vec<ApiResource> {
    let kind = |group: &str, version: &str, kind: &str, plural: &str| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    };
    let groups = GANG_DIALECTS.iter().flat_map(|dialect| {
        let versions = dialect.versions().iter();
        versions.map(|version| kind(dialect.api_group(), version, "PodGroup", "podgroups"))
    });
    let jobs = JOB_KINDS.iter().map(|job| {
        let api = job.api();
        kind(api.group, api.version, api.kind, api.plural)
    });
    let classes = kind(
        "scheduling.k8s.io",
        "v1",
        "PriorityClass",
        "priorityclasses",
    );
    groups.chain(jobs).chain([classes]).collect()
}

fn follow<T: Debug + Send + 'static>(
    tasks: &mut JoinSet<()>,
    board: &Arc<Board>,
    list: &str,
    changes: impl Stream<Item = Result<Change<T>, watcher::Error>> + Send + 'static,
    mut enter: impl FnMut(&mut Seen, Change<T>) + Send + 'static,
) {
    let (board, list) = (board.clone(), list.to_owned());
    board.awaited().insert(list.clone());
    tasks.spawn(async move {
        let mut changes = pin!(changes);
        while let Some(change) = changes.next().await {
            match change {
                Ok(change) => {
                    let is_whole = matches!(change, Change::ListEnds);
                    enter(&mut board.seen(), change);
                    match is_whole {
                        true => board.complete(&list),
                        false => board.news.notify_one(),
                    }
                }
                Err(error) if is_unknown_kind(&error) => {
                    tracing::debug!(list, "nobody has defined it");
                    board.complete(&list);
                }
                Err(error) => tracing::warn!(list, %error, "a watch is broken"),
            }
        }
    });
}
