//! Writes of objects, as data: a decision says what to write, and `perform` sends it. Also reading
//! one object whole.
//!
//! Any API group and version, server-side apply, patches, the status and a pod's Binding among
//! them. Requests are made by kube; only the server's own time limit is added, so that a writer
//! knows when its write can no longer happen.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, Request, request};
use kube::{Client, Resource};
use serde_json::{Value, json};
use sublet_model::{NodeName, PodKey, PodUid};

/// Time in which the answer to a Binding comes back from a server that has used all of its limit:
/// without the answer the pod must be read.
const WAY_BACK: Duration = Duration::from_secs(1);

/// Reason why a write was not confirmed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// HTTP 4xx: nothing was written by this request.
    #[error("refused with {code}: {message}")]
    Refused {
        /// HTTP status.
        code: u16,
        /// The API server's words.
        message: String,
    },
    /// No answer, or HTTP 5xx: it may have been written.
    #[error("not answered: {0}")]
    Unanswered(String),
}

impl From<kube::Error> for WriteError {
    fn from(error: kube::Error) -> WriteError {
        match error {
            kube::Error::Api(status) if (400..500).contains(&status.code) => WriteError::Refused {
                code: status.code,
                message: status.message.clone(),
            },
            error => WriteError::Unanswered(error.to_string()),
        }
    }
}

/// Address of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectAddress {
    /// Its kind, with group, version and plural.
    pub kind: ApiResource,
    /// `None` for a kind outside of namespaces.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

impl ObjectAddress {
    /// The address of an object of a known type.
    #[must_use]
    pub fn of<K: Resource<DynamicType = ()>>(namespace: Option<&str>, name: &str) -> ObjectAddress {
        ObjectAddress {
            kind: ApiResource::erase::<K>(&()),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        }
    }
}

/// Way to write an object.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    /// Made, and refused (409) if it is there already.
    Create(Value),
    /// Replaces the present object. With a `resourceVersion` in its metadata it is refused (409) if
    /// another writer has changed the object in between.
    Replace(Value),
    /// Server-side apply: these fields become ours, whichever manager had them; the others stay.
    /// Creates a missing object, unless the metadata has a `resourceVersion`, which must then be
    /// the current one.
    Apply(Value),
    /// The same, but refused (409) if another manager has one of these fields with another value.
    ApplyWhereFree(Value),
    /// As `Apply`, for the status.
    ApplyStatus(Value),
    /// A merge patch: sets these fields, and removes those that are null. With a UID or a
    /// `resourceVersion` in its metadata it is refused (409) if the object has another.
    Merge(Value),
    /// The same for the status.
    MergeStatus(Value),
    /// A JSON patch: all of its operations, or none if one fails (422).
    JsonPatch(Value),
    /// Deleted, if it still has this UID, and this version if one is given.
    Delete {
        /// Its UID.
        uid: String,
        /// Its version.
        version: Option<String>,
    },
    /// The Eviction API: the object is a pod, and is asked to go if it is still the one with this
    /// UID and no disruption budget forbids it (429).
    Evict(String),
    /// The Binding of a pod, without its name: `pods/binding` binds the pod and merges the Binding's
    /// annotations into it, in one transaction. With a UID in its metadata only that very pod is
    /// bound.
    Bind(Value),
}

/// One write. `apiVersion`, `kind`, name and namespace are filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Address of the object.
    pub to: ObjectAddress,
    /// Way to write it.
    pub act: Act,
}

impl Write {
    /// Binds a pod, if it still is that pod, to a node, and writes its annotations.
    #[must_use]
    pub fn bind(
        pod: &PodKey,
        uid: &PodUid,
        node: &NodeName,
        annotations: &BTreeMap<String, String>,
    ) -> Write {
        Write {
            to: ObjectAddress::of::<Pod>(Some(pod.namespace()), pod.name()),
            act: Act::Bind(json!({
                "metadata": { "uid": uid.as_str(), "annotations": annotations },
                "target": { "apiVersion": "v1", "kind": "Node", "name": node.as_str() },
            })),
        }
    }

    /// Sets annotations of a pod, if it still is that pod.
    #[must_use]
    pub fn pod_annotations(
        pod: &PodKey,
        uid: &PodUid,
        annotations: &BTreeMap<String, String>,
    ) -> Write {
        let metadata = json!({ "uid": uid.as_str(), "annotations": annotations });
        Write {
            to: ObjectAddress::of::<Pod>(Some(pod.namespace()), pod.name()),
            act: Act::Merge(json!({ "metadata": metadata })),
        }
    }

    /// Sets annotations of a node, and removes those without a text. `only_for`: only if this still
    /// is its resource version.
    #[must_use]
    pub fn node_annotations(
        node: &NodeName,
        annotations: &BTreeMap<String, Option<String>>,
        only_for: Option<&str>,
    ) -> Write {
        let mut patch = json!({ "metadata": { "annotations": annotations } });
        if let Some(version) = only_for {
            patch["metadata"]["resourceVersion"] = version.into();
        }
        Write {
            to: ObjectAddress::of::<Node>(None, node.as_str()),
            act: Act::Merge(patch),
        }
    }

    /// Sets amounts in a node's status, as capacity and as allocatable.
    #[must_use]
    pub fn node_capacity(node: &NodeName, amounts: &BTreeMap<String, String>) -> Write {
        let status = json!({ "capacity": amounts, "allocatable": amounts });
        Write {
            to: ObjectAddress::of::<Node>(None, node.as_str()),
            act: Act::MergeStatus(json!({ "status": status })),
        }
    }
}

/// Sends a write, under this name as field manager. The API server gives up after `limit` (in
/// whole seconds, at least one), and the caller does at `limit`; with a Binding a second later.
///
/// # Errors
/// Refused, or unanswered: it may have been written then.
pub async fn perform(
    client: &Client,
    write: &Write,
    manager: &str,
    limit: Duration,
) -> Result<(), WriteError> {
    perform_returning(client, write, manager, limit)
        .await
        .map(drop)
}

/// The same; returns the API server's answer, which is the object as it was written, but for a
/// deletion and an eviction.
///
/// # Errors
/// Refused, or unanswered: it may have been written then.
pub async fn perform_returning(
    client: &Client,
    write: &Write,
    manager: &str,
    limit: Duration,
) -> Result<Value, WriteError> {
    let request = timed(write, manager, limit)?;
    let patience = match write.act {
        Act::Bind(_) => limit + WAY_BACK,
        _ => limit,
    };
    match tokio::time::timeout(patience, client.request::<Value>(request)).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(WriteError::Unanswered(format!(
            "no answer within {limit:?}"
        ))),
    }
}

/// An object as it is now, all of it; `None` if there is none of that name.
///
/// # Errors
/// The API server's answer, or none.
pub async fn read_object(
    client: &Client,
    address: &ObjectAddress,
) -> Result<Option<Value>, kube::Error> {
    let path = DynamicObject::url_path(&address.kind, address.namespace.as_deref());
    let request = Request::new(path).get(&address.name, &GetParams::default());
    let request = request.map_err(kube::Error::BuildRequest)?;
    found(client.request(request).await)
}

/// The answer, or `None` if there is no such object.
pub(crate) fn found<T>(answer: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

/// The request, with the server's time limit.
fn timed(
    write: &Write,
    manager: &str,
    limit: Duration,
) -> Result<http::Request<Vec<u8>>, WriteError> {
    let unsent = |error: &dyn std::error::Error| WriteError::Refused {
        code: 400,
        message: error.to_string(),
    };
    let mut request = untimed(write, manager).map_err(|error| unsent(&error))?;
    let uri = request.uri().to_string();
    let join = if uri.contains('?') { '&' } else { '?' };
    let seconds = limit.as_secs().max(1);
    let uri = format!("{uri}{join}timeout={seconds}s");
    *request.uri_mut() = uri.parse().map_err(|error| unsent(&error))?;
    Ok(request)
}

fn untimed(write: &Write, manager: &str) -> Result<http::Request<Vec<u8>>, request::Error> {
    let ObjectAddress {
        kind,
        namespace,
        name,
    } = &write.to;
    let to = Request::new(DynamicObject::url_path(kind, namespace.as_deref()));
    let post = PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    };
    // A patch and an apply without force: the manager is all that they say.
    let patched = PatchParams::apply(manager);
    let apply = patched.clone().force();
    let applied = |object: &Value| Patch::Apply(named(&write.to, object));
    let full = |object: &Value| named(&write.to, object).to_string().into_bytes();
    match &write.act {
        Act::Create(object) => to.create(&post, full(object)),
        Act::Replace(object) => to.replace(name, &post, full(object)),
        Act::Apply(object) => to.patch(name, &apply, &applied(object)),
        Act::ApplyWhereFree(object) => to.patch(name, &patched, &applied(object)),
        Act::ApplyStatus(object) => to.patch_subresource("status", name, &apply, &applied(object)),
        Act::Merge(patch) => to.patch(name, &patched, &Patch::Merge(patch)),
        Act::MergeStatus(patch) => {
            to.patch_subresource("status", name, &patched, &Patch::Merge(patch))
        }
        Act::JsonPatch(operations) => {
            let operations = serde_json::from_value(operations.clone());
            let operations = operations.map_err(request::Error::SerializeBody)?;
            to.patch(name, &patched, &Patch::<Value>::Json(operations))
        }
        Act::Delete { uid, version } => {
            let conditions = Preconditions {
                uid: Some(uid.clone()),
                resource_version: version.clone(),
            };
            to.delete(name, &DeleteParams::default().preconditions(conditions))
        }
        Act::Evict(uid) => {
            let mut eviction = named(&write.to, &json!({}));
            eviction["apiVersion"] = "policy/v1".into();
            eviction["kind"] = "Eviction".into();
            eviction["deleteOptions"]["preconditions"]["uid"] = uid.clone().into();
            to.create_subresource("eviction", name, &post, eviction.to_string().into_bytes())
        }
        Act::Bind(binding) => {
            let mut binding = named(&write.to, binding);
            binding["kind"] = "Binding".into();
            to.create_subresource("binding", name, &post, binding.to_string().into_bytes())
        }
    }
}

/// The object with the fields of its address.
fn named(address: &ObjectAddress, object: &Value) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = address.kind.api_version.clone().into();
    object["kind"] = address.kind.kind.clone().into();
    object["metadata"]["name"] = address.name.clone().into();
    if let Some(namespace) = &address.namespace {
        object["metadata"]["namespace"] = namespace.clone().into();
    }
    object
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use kube::core::GroupVersionKind;

    use super::*;

    fn sent(to: ObjectAddress, act: Act) -> (String, Value) {
        sent_of(&Write { to, act })
    }

    fn sent_of(write: &Write) -> (String, Value) {
        let request = timed(write, "tester", Duration::from_millis(2_500)).unwrap();
        let line = format!("{} {}", request.method(), request.uri());
        (line, serde_json::from_slice(request.body()).unwrap())
    }

    #[test]
    fn any_group_and_version_gets_its_own_address() {
        let map = || ObjectAddress::of::<ConfigMap>(Some("ns"), "a");
        let object = json!({"data": {"k": "v"}});
        let whole = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": "ns"}, "data": {"k": "v"},
        });
        let (line, body) = sent(map(), Act::Create(object.clone()));
        let to = "/api/v1/namespaces/ns/configmaps";
        assert_eq!(line, format!("POST {to}?&fieldManager=tester&timeout=2s"));
        assert_eq!(body, whole);
        let (line, body) = sent(map(), Act::Replace(object.clone()));
        assert_eq!(line, format!("PUT {to}/a?&fieldManager=tester&timeout=2s"));
        assert_eq!(body, whole);

        let pod = ObjectAddress::of::<Pod>(Some("ns"), "a");
        let (line, body) = sent(pod, Act::Evict("u1".to_owned()));
        let to = "/api/v1/namespaces/ns/pods/a/eviction";
        assert_eq!(line, format!("POST {to}?&fieldManager=tester&timeout=2s"));
        assert_eq!(
            body,
            json!({
                "apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": {"name": "a", "namespace": "ns"},
                "deleteOptions": {"preconditions": {"uid": "u1"}},
            })
        );

        let pod = || ObjectAddress::of::<Pod>(Some("ns"), "a");
        let operations = json!([{"op": "test", "path": "/metadata/uid", "value": "u1"}]);
        let (line, body) = sent(pod(), Act::JsonPatch(operations.clone()));
        let to = "/api/v1/namespaces/ns/pods/a";
        assert_eq!(line, format!("PATCH {to}?&fieldManager=tester&timeout=2s"));
        assert_eq!(body, operations);
        let (line, body) = sent(
            pod(),
            Act::Delete {
                uid: "u1".to_owned(),
                version: Some("7".to_owned()),
            },
        );
        assert_eq!(line, format!("DELETE {to}?&timeout=2s"));
        assert_eq!(
            body,
            json!({"preconditions": {"uid": "u1", "resourceVersion": "7"}})
        );

        let kind = GroupVersionKind::gvk("sublet.test", "v1alpha1", "Toy");
        let toy = ObjectAddress {
            kind: ApiResource::from_gvk(&kind),
            namespace: None,
            name: "b".to_owned(),
        };
        let status = json!({"status": {"n": 1}});
        let (line, body) = sent(toy, Act::ApplyStatus(status));
        assert_eq!(
            line,
            "PATCH /apis/sublet.test/v1alpha1/toys/b/status?&force=true&fieldManager=tester\
             &timeout=2s"
        );
        assert_eq!(
            body,
            json!({
                "apiVersion": "sublet.test/v1alpha1", "kind": "Toy",
                "metadata": {"name": "b"}, "status": {"n": 1},
            })
        );
    }

    #[test]
    fn a_binding_and_patches_name_what_must_be_the_same() {
        let (pod, uid) = (PodKey::new("ns", "a"), PodUid::new("u1"));
        let (pod, uid, node) = (pod.unwrap(), uid.unwrap(), NodeName::new("n1").unwrap());
        let texts = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        let (line, body) = sent_of(&Write::bind(&pod, &uid, &node, &texts));
        let to = "/api/v1/namespaces/ns/pods/a";
        let manager = "&fieldManager=tester&timeout=2s";
        assert_eq!(line, format!("POST {to}/binding?{manager}"));
        assert_eq!(
            body,
            json!({
                "apiVersion": "v1", "kind": "Binding",
                "metadata": {
                    "name": "a", "namespace": "ns", "uid": "u1", "annotations": {"k": "v"},
                },
                "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
            })
        );

        let (line, body) = sent_of(&Write::pod_annotations(&pod, &uid, &texts));
        assert_eq!(line, format!("PATCH {to}?{manager}"));
        let metadata = json!({"uid": "u1", "annotations": {"k": "v"}});
        assert_eq!(body, json!({"metadata": metadata}));

        let gone = BTreeMap::from([("k".to_owned(), None)]);
        let (line, body) = sent_of(&Write::node_annotations(&node, &gone, Some("7")));
        assert_eq!(line, format!("PATCH /api/v1/nodes/n1?{manager}"));
        let metadata = json!({"resourceVersion": "7", "annotations": {"k": null}});
        assert_eq!(body, json!({"metadata": metadata}));

        let (line, body) = sent_of(&Write::node_capacity(&node, &texts));
        assert_eq!(line, format!("PATCH /api/v1/nodes/n1/status?{manager}"));
        let amounts = json!({"capacity": {"k": "v"}, "allocatable": {"k": "v"}});
        assert_eq!(body, json!({"status": amounts}));
    }
}
