//! The facts about the cluster that judge an object: labels of namespaces, flavors, quotas.
//!
//! Watches keep all, on every replica. A namespace or a flavor may be as new as the pod that needs
//! it, so a caller waits a little; after that it is taken for absent.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{Stream, StreamExt};
pub(crate) use sublet_api::group::NamespaceLabels;
use sublet_api::object::Namespace;
use sublet_api::{ElasticQuota, GpuFlavor, keys};
use sublet_client::Change;
use tokio::sync::watch;

use crate::flavors::KnownFlavors;
use crate::quotas::KnownQuotas;

/// Longest time that a pod waits for its namespace and its flavor to be seen.
const LIMIT: Duration = Duration::from_millis(500);

/// The facts that watches keep.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    /// Labels of namespaces that count here; `None` until all namespaces are known.
    pub(crate) namespaces: watch::Receiver<Option<NamespaceLabels>>,
    /// `None` until all flavors are known.
    pub(crate) flavors: watch::Receiver<Option<KnownFlavors>>,
    /// `None` until all quotas are known, and where there is no queue.
    pub(crate) quotas: watch::Receiver<Option<KnownQuotas>>,
}

impl Known {
    /// The labels of a namespace. One that is not known after a while has none that count.
    pub(crate) async fn labels_of(&self, namespace: &str) -> BTreeMap<String, String> {
        let mut namespaces = self.namespaces.clone();
        let find = |known: &Option<NamespaceLabels>| known.as_ref()?.get(namespace).cloned();
        let known = namespaces.wait_for(|known| find(known).is_some());
        match tokio::time::timeout(LIMIT, known).await {
            Ok(Ok(known)) => find(&known).unwrap_or_default(),
            _ => {
                tracing::warn!(namespace, "not seen in time; its labels do not count");
                BTreeMap::new()
            }
        }
    }

    /// Waits a little for the flavor that a pod asks for. `labels`: its namespace's.
    pub(crate) async fn await_flavor(
        &self,
        asked: Option<&str>,
        labels: &BTreeMap<String, String>,
    ) {
        let default = labels.get(keys::DEFAULT_FLAVOR_LABEL).map(String::as_str);
        let name = match asked {
            Some("default") => default,
            asked => asked,
        };
        let Some(name) = name else { return };
        let mut flavors = self.flavors.clone();
        let is_known =
            |known: &Option<KnownFlavors>| known.as_ref().is_some_and(|all| all.contains_key(name));
        // One that is not there is refused.
        let _known = tokio::time::timeout(LIMIT, flavors.wait_for(is_known))
            .await
            .is_ok();
    }
}

/// Keeps the labels of all namespaces known.
pub(crate) async fn follow_namespaces<E: std::fmt::Display>(
    changes: impl Stream<Item = Result<Change<Namespace>, E>>,
    known: watch::Sender<Option<NamespaceLabels>>,
) {
    let entry = |namespace: Namespace| {
        let mut labels = namespace.metadata.labels;
        labels.retain(|key, _| {
            matches!(
                key.as_str(),
                keys::ASSIGN_SCHEDULER_LABEL
                    | keys::ADD_SLOTS_LABEL
                    | keys::DEFAULT_FLAVOR_LABEL
                    | keys::QUEUE_LABEL
            )
        });
        (namespace.metadata.name, labels)
    };
    follow(changes, known, entry).await;
}

/// Keeps all flavors known.
pub(crate) async fn follow_flavors<E: std::fmt::Display>(
    changes: impl Stream<Item = Result<Change<GpuFlavor>, E>>,
    known: watch::Sender<Option<KnownFlavors>>,
) {
    let entry = |flavor: GpuFlavor| (flavor.metadata.name, flavor.spec);
    follow(changes, known, entry).await;
}

/// Keeps Koordinator's quotas known.
pub(crate) async fn follow_quotas<E: std::fmt::Display>(
    changes: impl Stream<Item = Result<Change<ElasticQuota>, E>>,
    known: watch::Sender<Option<KnownQuotas>>,
) {
    let entry = |quota: ElasticQuota| {
        let key = (
            quota.metadata.namespace.clone(),
            quota.metadata.name.clone(),
        );
        (key, quota)
    };
    follow(changes, known, entry).await;
}

/// Keeps data of each object known, by its name. `entry`: the name and the data.
async fn follow<K: Ord, O, T, E: std::fmt::Display>(
    changes: impl Stream<Item = Result<Change<O>, E>>,
    known: watch::Sender<Option<BTreeMap<K, T>>>,
    entry: impl Fn(O) -> (K, T),
) {
    let mut changes = std::pin::pin!(changes);
    let mut listed = None;
    while let Some(change) = changes.next().await {
        match change {
            Err(error) => {
                let kind = std::any::type_name::<O>();
                tracing::warn!(%error, kind, "a watch is broken");
            }
            Ok(Change::ListBegins) => listed = Some(BTreeMap::new()),
            Ok(Change::ListEnds) => {
                known.send_replace(listed.take());
            }
            Ok(Change::Set(object)) => {
                let (name, kept) = entry(object);
                match &mut listed {
                    Some(listed) => drop(listed.insert(name, kept)),
                    None => known.send_modify(|known| {
                        known.get_or_insert_default().insert(name, kept);
                    }),
                }
            }
            Ok(Change::Gone(object)) => known.send_modify(|known| {
                known.get_or_insert_default().remove(&entry(object).0);
            }),
        }
    }
}
