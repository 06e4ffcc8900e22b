//! Lists and watches of objects, reduced to the fields that Sublet reads.

use std::fmt::Debug;

use futures::{Stream, StreamExt};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::core::{ApiResource, DynamicObject, DynamicResourceScope, PartialObjectMeta};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher::watcher};
use kube::{Api, Client, Resource, ResourceExt};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use sublet_api::object;
use sublet_model::{NodeName, PodKey};

use crate::write::found;

/// A kind of object that can be listed and watched.
pub trait ObjectKind {
    /// As it comes over the wire.
    type Wire: Resource<DynamicType = (), Scope = DynamicResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + 'static;
    /// As Sublet reads it.
    type Object: Send;
    /// From the one to the other.
    fn slim(wire: Self::Wire) -> Self::Object;
}

/// Change of the objects of a kind.
#[derive(Debug)]
pub enum Change<T> {
    /// A complete list begins: each of its objects comes as [`Change::Set`].
    ListBegins,
    /// It has ended: an object that was not in it is gone.
    ListEnds,
    /// An object is listed, new or changed.
    Set(T),
    /// An object is gone; this is its last known state.
    Gone(T),
}

impl<T> Change<T> {
    /// The same with something made of the object.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Change<U> {
        match self {
            Change::ListBegins => Change::ListBegins,
            Change::ListEnds => Change::ListEnds,
            Change::Set(object) => Change::Set(make(object)),
            Change::Gone(object) => Change::Gone(make(object)),
        }
    }
}

macro_rules! kind {
    ($(#[$doc:meta])* $kind:ident, $wire:ident, $group:literal, $version:literal, $name:literal, $plural:literal, $object:ty) => {
        $(#[$doc])*
        pub struct $kind;

        /// The object as the API server sends it.
        #[derive(Debug, Clone)]
        pub struct $wire {
            /// Only the metadata that the client itself needs.
            metadata: ObjectMeta,
            /// As Sublet reads it.
            pub object: $object,
        }

        impl<'de> Deserialize<'de> for $wire {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let object = <$object>::deserialize(deserializer)?;
                let namespace = &object.metadata.namespace;
                let metadata = ObjectMeta {
                    name: Some(object.metadata.name.clone()),
                    namespace: (!namespace.is_empty()).then(|| namespace.clone()),
                    resource_version: Some(object.metadata.resource_version.clone()),
                    ..ObjectMeta::default()
                };
                Ok($wire { metadata, object })
            }
        }

        impl Resource for $wire {
            type DynamicType = ();
            type Scope = DynamicResourceScope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> { $name.into() }
            fn group((): &()) -> std::borrow::Cow<'_, str> { $group.into() }
            fn version((): &()) -> std::borrow::Cow<'_, str> { $version.into() }
            fn plural((): &()) -> std::borrow::Cow<'_, str> { $plural.into() }
            fn meta(&self) -> &ObjectMeta { &self.metadata }
            fn meta_mut(&mut self) -> &mut ObjectMeta { &mut self.metadata }
        }

        impl ObjectKind for $kind {
            type Wire = $wire;
            type Object = $object;

            fn slim(wire: $wire) -> $object {
                wire.object
            }
        }
    };
}

kind!(
    /// Pods.
    Pods, PodWire, "", "v1", "Pod", "pods", object::Pod
);
kind!(
    /// Nodes.
    Nodes, NodeWire, "", "v1", "Node", "nodes", object::Node
);
kind!(
    /// ConfigMaps.
    ConfigMaps, ConfigMapWire, "", "v1", "ConfigMap", "configmaps", object::ConfigMap
);
kind!(
    /// Disruption budgets.
    Budgets, BudgetWire, "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", sublet_api::DisruptionBudget
);

kind!(
    /// Quotas.
    Quotas, QuotaWire, "", "v1", "ResourceQuota", "resourcequotas", sublet_api::ResourceQuota
);

kind!(
    /// Namespaces.
    Namespaces, NamespaceWire, "", "v1", "Namespace", "namespaces", object::Namespace
);
kind!(
    /// Flavors.
    Flavors, FlavorWire, "sublet.dev", "v1alpha1", "GpuFlavor", "gpuflavors", sublet_api::GpuFlavor
);

kind!(
    /// SharePods.
    SharePods, SharePodWire, "kubeshare.nthu", "v1", "SharePod", "sharepods", sublet_api::SharePod
);

kind!(
    /// Koordinator's elastic quotas.
    ElasticQuotas, ElasticQuotaWire, "scheduling.sigs.k8s.io", "v1alpha1", "ElasticQuota", "elasticquotas", sublet_api::ElasticQuota
);

kind!(
    /// Elastic quotas of scheduler-plugins.
    PluginQuotas, PluginQuotaWire, "scheduling.x-k8s.io", "v1alpha1", "ElasticQuota", "elasticquotas", sublet_api::ElasticQuota
);

kind!(
    /// Plans of the queue, unread.
    GangPlans, GangPlanWire, "sublet.dev", "v1alpha1", "GangPlan", "gangplans", sublet_api::gang_plan::GangPlanObject
);

/// Every object of a kind, as fresh as the API server has it. `fields`: a field selector.
///
/// # Errors
/// The API server's answer, or none.
pub async fn list<K: ObjectKind>(
    client: &Client,
    fields: Option<&str>,
) -> Result<Vec<K::Object>, kube::Error> {
    let api: Api<K::Wire> = Api::all_with(client.clone(), &());
    let mut params = ListParams {
        field_selector: fields.map(str::to_owned),
        ..ListParams::default()
    };
    params.limit = Some(500);
    let mut objects = Vec::new();
    loop {
        let page = api.list(&params).await?;
        objects.extend(page.items.into_iter().map(K::slim));
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params.continue_token = Some(token),
            _ => return Ok(objects),
        }
    }
}

/// One pod as it is now; `None` if there is none of that name.
///
/// # Errors
/// The API server's answer, or none.
pub async fn read_pod(client: &Client, pod: &PodKey) -> Result<Option<object::Pod>, kube::Error> {
    let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace(), pod.name());
    read::<Pods>(client, &path).await
}

/// A node as it is now; `None` if there is none of that name.
///
/// # Errors
/// The API server's answer, or none.
pub async fn read_node(
    client: &Client,
    node: &NodeName,
) -> Result<Option<object::Node>, kube::Error> {
    read::<Nodes>(client, &format!("/api/v1/nodes/{node}")).await
}

async fn read<K: ObjectKind>(
    client: &Client,
    path: &str,
) -> Result<Option<K::Object>, kube::Error> {
    let request = http::Request::get(path)
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    Ok(found(client.request(request).await)?.map(K::slim))
}

/// Watches all objects of a kind, of one namespace if given. The stream goes on for ever:
/// a broken connection is an error to report and then tried again, with growing pauses.
pub fn watch<K: ObjectKind>(
    client: &Client,
    namespace: Option<&str>,
) -> impl Stream<Item = Result<Change<K::Object>, watcher::Error>> + Send + use<K> {
    let api: Api<K::Wire> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &()),
        None => Api::all_with(client.clone(), &()),
    };
    changes::<K>(api, watcher::Config::default())
}

/// Watches the objects of a kind in all namespaces whose field has that value, as in
/// `spec.nodeName=n1`; as [`watch`] does.
pub fn watch_some<K: ObjectKind>(
    client: &Client,
    fields: &str,
) -> impl Stream<Item = Result<Change<K::Object>, watcher::Error>> + Send + use<K> {
    let api: Api<K::Wire> = Api::all_with(client.clone(), &());
    changes::<K>(api, watcher::Config::default().fields(fields))
}

/// Watches all objects of a kind that is only known by its address, whole. An undefined kind is an
/// error that comes again and again, with growing pauses, until the kind is defined.
pub fn watch_any(
    client: &Client,
    kind: &ApiResource,
) -> impl Stream<Item = Result<Change<DynamicObject>, watcher::Error>> + Send + use<> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), kind);
    let events = watcher(api, watcher::Config::default().page_size(1_000)).default_backoff();
    events.map(|event| event.map(change_of))
}

/// The names of defined kinds, as `PLURAL.GROUP`: all present ones, and then each one whose
/// definition changes.
pub fn watch_definitions(
    client: &Client,
) -> impl Stream<Item = Result<String, watcher::Error>> + Send + use<> {
    // Their schemas are large, and nobody here reads them.
    let api: Api<PartialObjectMeta<CustomResourceDefinition>> = Api::all(client.clone());
    let config = watcher::Config::default().page_size(1_000);
    let events = watcher(api, config).default_backoff();
    events.filter_map(|event| async move {
        match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => Some(Ok(object.name_any())),
            Ok(Event::Init | Event::InitDone | Event::Delete(_)) => None,
            Err(error) => Some(Err(error)),
        }
    })
}

/// Is that kind undefined?
#[must_use]
pub fn is_unknown_kind(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))) = error
    else {
        return false;
    };
    status.code == 404
}

fn changes<K: ObjectKind>(
    api: Api<K::Wire>,
    config: watcher::Config,
) -> impl Stream<Item = Result<Change<K::Object>, watcher::Error>> + Send + use<K> {
    let events = watcher(api, config.page_size(1_000)).default_backoff();
    // Objects of a list are handed on one by one: a list of 40,000 pods would take more
    // memory than everything that is kept of them.
    events.map(|event| Ok(change_of(event?).map(K::slim)))
}

fn change_of<T>(event: Event<T>) -> Change<T> {
    match event {
        Event::Init => Change::ListBegins,
        Event::InitDone => Change::ListEnds,
        Event::InitApply(object) | Event::Apply(object) => Change::Set(object),
        Event::Delete(object) => Change::Gone(object),
    }
}
