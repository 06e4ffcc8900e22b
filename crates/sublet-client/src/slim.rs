//! Lists and watches of objects cut down to what Sublet reads.

use std::fmt::Debug;

use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::core::DynamicResourceScope;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher::watcher};
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sublet_api::object;
use sublet_model::{NodeName, PodKey};

/// A kind of object that can be listed and watched.
pub trait Kind {
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

/// What happened to objects of a kind.
#[derive(Debug)]
pub enum Change<T> {
    /// All objects as they are now: whatever is not among them is gone.
    All(Vec<T>),
    /// One is new or changed.
    Set(T),
    /// One is gone; this is how it was last seen.
    Gone(T),
}

macro_rules! kind {
    ($(#[$doc:meta])* $kind:ident, $wire:ident, $name:literal, $plural:literal, $object:ty,
     { $($field:ident: $type:ty),* }) => {
        $(#[$doc])*
        pub struct $kind;

        /// The object as the API server sends it.
        #[derive(Debug, Clone, Deserialize)]
        pub struct $wire {
            #[serde(default)]
            metadata: ObjectMeta,
            $(#[serde(default)] $field: $type),*
        }

        impl Resource for $wire {
            type DynamicType = ();
            type Scope = DynamicResourceScope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> { $name.into() }
            fn group((): &()) -> std::borrow::Cow<'_, str> { "".into() }
            fn version((): &()) -> std::borrow::Cow<'_, str> { "v1".into() }
            fn plural((): &()) -> std::borrow::Cow<'_, str> { $plural.into() }
            fn meta(&self) -> &ObjectMeta { &self.metadata }
            fn meta_mut(&mut self) -> &mut ObjectMeta { &mut self.metadata }
        }

        impl Kind for $kind {
            type Wire = $wire;
            type Object = $object;

            fn slim(wire: $wire) -> $object {
                let $wire { metadata, $($field),* } = wire;
                let mut object = <$object>::default();
                object.metadata = meta(metadata);
                $(object.$field = $field;)*
                object
            }
        }
    };
}

kind!(
    /// Pods.
    Pods, PodWire, "Pod", "pods", object::Pod,
    { spec: object::PodSpec, status: object::PodStatus }
);
kind!(
    /// Nodes.
    Nodes, NodeWire, "Node", "nodes", object::Node,
    { spec: object::NodeSpec, status: object::NodeStatus }
);
kind!(
    /// ConfigMaps.
    ConfigMaps, ConfigMapWire, "ConfigMap", "configmaps", object::ConfigMap,
    { data: std::collections::BTreeMap<String, String> }
);

/// Every object of a kind, as fresh as the API server has it. `fields`: a field selector.
///
/// # Errors
/// The API server's answer, or none.
pub async fn list<K: Kind>(
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

/// One pod as it is now; `None` where there is none of that name.
///
/// # Errors
/// The API server's answer, or none.
pub async fn read_pod(client: &Client, pod: &PodKey) -> Result<Option<object::Pod>, kube::Error> {
    let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace(), pod.name());
    read::<Pods>(client, &path).await
}

/// A node as it is now; `None` where there is none of that name.
///
/// # Errors
/// The API server's answer, or none.
pub async fn read_node(
    client: &Client,
    node: &NodeName,
) -> Result<Option<object::Node>, kube::Error> {
    read::<Nodes>(client, &format!("/api/v1/nodes/{node}")).await
}

async fn read<K: Kind>(client: &Client, path: &str) -> Result<Option<K::Object>, kube::Error> {
    let request = http::Request::get(path)
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    match client.request::<K::Wire>(request).await {
        Ok(wire) => Ok(Some(K::slim(wire))),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Watches all objects of a kind, of one namespace if given. The stream goes on for ever:
/// a broken connection is an error to report and then tried again, with growing pauses.
pub fn watch<K: Kind>(
    client: &Client,
    namespace: Option<&str>,
) -> impl Stream<Item = Result<Change<K::Object>, watcher::Error>> + Send + use<K> {
    let api: Api<K::Wire> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &()),
        None => Api::all_with(client.clone(), &()),
    };
    let events = watcher(api, watcher::Config::default().page_size(1_000)).default_backoff();
    let mut listed = Vec::new();
    events.filter_map(move |event| {
        let change = match event {
            Err(error) => Some(Err(error)),
            Ok(Event::Init) => {
                listed.clear();
                None
            }
            Ok(Event::InitApply(wire)) => {
                listed.push(K::slim(wire));
                None
            }
            Ok(Event::InitDone) => Some(Ok(Change::All(std::mem::take(&mut listed)))),
            Ok(Event::Apply(wire)) => Some(Ok(Change::Set(K::slim(wire)))),
            Ok(Event::Delete(wire)) => Some(Ok(Change::Gone(K::slim(wire)))),
        };
        std::future::ready(change)
    })
}

fn meta(meta: ObjectMeta) -> object::Meta {
    object::Meta {
        name: meta.name.unwrap_or_default(),
        namespace: meta.namespace.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
        labels: meta.labels.unwrap_or_default(),
        annotations: meta.annotations.unwrap_or_default(),
        creation_timestamp: meta.creation_timestamp.map(|time| time.0.to_string()),
        deletion_timestamp: meta.deletion_timestamp.map(|time| time.0.to_string()),
    }
}
