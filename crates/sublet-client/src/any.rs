//! Any object: writes as data (a decision says what to write, and `perform` sends it), and reading
//! one whole.
//!
//! Any API group and version, server-side apply and the status among them. Requests are made by
//! kube; only the server's own time limit is added, so that a writer knows when its write can no
//! longer happen.

use std::time::Duration;

use kube::api::{DeleteParams, GetParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject, Request};
use kube::{Client, Resource};
use serde_json::{Value, json};

use crate::WriteError;

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
}

/// One write. `apiVersion`, `kind`, name and namespace are filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Address of the object.
    pub to: ObjectAddress,
    /// Way to write it.
    pub act: Act,
}

/// Sends a write, under this name as field manager. The API server gives up after `limit` (in
/// whole seconds, at least one), and the caller does at `limit`.
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
    let request = request(write, manager, limit)?;
    match tokio::time::timeout(limit, client.request::<Value>(request)).await {
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
    match client
        .request(request.map_err(kube::Error::BuildRequest)?)
        .await
    {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

fn request(
    write: &Write,
    manager: &str,
    limit: Duration,
) -> Result<http::Request<Vec<u8>>, WriteError> {
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
    let where_free = PatchParams::apply(manager);
    let apply = where_free.clone().force();
    let patched = PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    };
    let request = match &write.act {
        Act::Create(object) => to.create(&post, full(&write.to, object)),
        Act::Replace(object) => to.replace(name, &post, full(&write.to, object)),
        Act::Apply(object) => to.patch(name, &apply, &applied(&write.to, object)),
        Act::ApplyWhereFree(object) => to.patch(name, &where_free, &applied(&write.to, object)),
        Act::ApplyStatus(object) => {
            to.patch_subresource("status", name, &apply, &applied(&write.to, object))
        }
        Act::JsonPatch(operations) => match serde_json::from_value(operations.clone()) {
            Ok(operations) => to.patch(name, &patched, &Patch::<Value>::Json(operations)),
            Err(error) => Err(kube::core::request::Error::SerializeBody(error)),
        },
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
    };
    let unsent = |error: &dyn std::error::Error| WriteError::Refused {
        code: 400,
        message: error.to_string(),
    };
    let mut request = request.map_err(|error| unsent(&error))?;
    let uri = request.uri().to_string();
    let join = if uri.contains('?') { '&' } else { '?' };
    let seconds = limit.as_secs().max(1);
    let uri = format!("{uri}{join}timeout={seconds}s");
    *request.uri_mut() = uri.parse().map_err(|error| unsent(&error))?;
    Ok(request)
}

fn applied(address: &ObjectAddress, object: &Value) -> Patch<Value> {
    Patch::Apply(named(address, object))
}

fn full(address: &ObjectAddress, object: &Value) -> Vec<u8> {
    named(address, object).to_string().into_bytes()
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
        let write = Write { to, act };
        let request = request(&write, "tester", Duration::from_millis(2_500)).unwrap();
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
}
