//! The few writes: a Binding, patches of annotations and node status, events.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;
use serde_json::json;
use sublet_model::{NodeName, PodKey, PodUid};

/// Reason why a write was not confirmed.
#[derive(Debug)]
pub enum WriteError {
    /// HTTP 4xx: nothing was written by this request.
    Refused {
        /// HTTP status.
        code: u16,
        /// The API server's words.
        message: String,
    },
    /// No answer, or HTTP 5xx: it may have been written.
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

/// Binds a pod to a node and writes its annotations, in one transaction of the API server
/// (`pods/binding` merges the Binding's annotations into the pod). Only that very pod is
/// bound: its UID is a precondition. The server gives up after `deadline`, and so does the
/// caller a second later.
///
/// # Errors
/// Refused, or unanswered.
pub async fn bind_pod(
    client: &Client,
    pod: &PodKey,
    uid: &PodUid,
    node: &NodeName,
    annotations: &BTreeMap<String, String>,
    deadline: Duration,
) -> Result<(), WriteError> {
    let (namespace, name) = (pod.namespace(), pod.name());
    let body = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid.as_str(),
            "annotations": annotations,
        },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node.as_str() },
    });
    let path = format!(
        "/api/v1/namespaces/{namespace}/pods/{name}/binding?timeout={}s",
        deadline.as_secs().max(1)
    );
    let request =
        json_request(http::Method::POST, &path, "application/json", &body).map_err(|error| {
            WriteError::Refused {
                code: 400,
                message: error.to_string(),
            }
        })?;
    let call = client.request::<serde_json::Value>(request);
    match tokio::time::timeout(deadline + Duration::from_secs(1), call).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(WriteError::Unanswered(format!(
            "no answer within {deadline:?}"
        ))),
    }
}

/// Sets annotations of a pod, if it still is that pod.
///
/// # Errors
/// The API server's answer (409 where the UID differs), or none.
pub async fn patch_pod_annotations(
    client: &Client,
    pod: &PodKey,
    uid: &PodUid,
    annotations: &BTreeMap<String, String>,
) -> Result<(), kube::Error> {
    let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace(), pod.name());
    let patch = json!({ "metadata": { "uid": uid.as_str(), "annotations": annotations } });
    merge_patch(client, &path, &patch).await
}

/// Sets annotations of a node, and removes those without a text. `only_for`: only if this still is
/// its resource version.
///
/// # Errors
/// The API server's answer (409 where the version differs), or none.
pub async fn patch_node_annotations(
    client: &Client,
    node: &NodeName,
    annotations: &BTreeMap<String, Option<String>>,
    only_for: Option<&str>,
) -> Result<(), kube::Error> {
    let mut patch = json!({ "metadata": { "annotations": annotations } });
    if let Some(version) = only_for {
        patch["metadata"]["resourceVersion"] = version.into();
    }
    merge_patch(client, &format!("/api/v1/nodes/{node}"), &patch).await
}

/// Sets amounts in a node's status, as capacity and as allocatable.
///
/// # Errors
/// The API server's answer, or none.
pub async fn patch_node_capacity(
    client: &Client,
    node: &NodeName,
    amounts: &BTreeMap<String, String>,
) -> Result<(), kube::Error> {
    let patch = json!({ "status": { "capacity": amounts, "allocatable": amounts } });
    merge_patch(client, &format!("/api/v1/nodes/{node}/status"), &patch).await
}

/// Text of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventText {
    /// One word in CamelCase.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// A warning about a pod.
#[derive(Debug, Clone)]
pub struct PodEvent<'a> {
    /// The pod.
    pub pod: &'a PodKey,
    /// Its UID.
    pub uid: &'a PodUid,
    /// Makes the event's name unique.
    pub number: u64,
    /// When (RFC 3339).
    pub at: &'a str,
    /// Text of the event.
    pub text: &'a EventText,
}

/// Posts a warning about a pod.
///
/// # Errors
/// The API server's answer, or none.
pub async fn post_pod_event(client: &Client, event: &PodEvent<'_>) -> Result<(), kube::Error> {
    let namespace = event.pod.namespace();
    let about = json!({
        "apiVersion": "v1", "kind": "Pod", "namespace": namespace,
        "name": event.pod.name(), "uid": event.uid.as_str(),
    });
    let (when, by) = ((event.number, event.at), "sublet-extender");
    post_event(client, (namespace, &about), when, by, event.text).await
}

/// Posts a warning about a node, as a report of the node's own agent. `when`: a number that makes
/// the event's name unique, and the time (RFC 3339).
///
/// # Errors
/// The API server's answer, or none.
pub async fn post_node_event(
    client: &Client,
    node: &NodeName,
    when: (u64, &str),
    text: &EventText,
) -> Result<(), kube::Error> {
    // As kubelet writes them: `kubectl describe node` looks for the name in place of the UID.
    let about = json!({
        "apiVersion": "v1", "kind": "Node", "name": node.as_str(), "uid": node.as_str(),
    });
    post_event(client, ("default", &about), when, "sublet-agent", text).await
}

async fn post_event(
    client: &Client,
    (namespace, about): (&str, &serde_json::Value),
    (number, at): (u64, &str),
    by: &str,
    text: &EventText,
) -> Result<(), kube::Error> {
    let name = about["name"].as_str().unwrap_or_default();
    let body = json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "name": format!("{name}.{number:016x}"), "namespace": namespace },
        "involvedObject": about,
        "type": "Warning",
        "reason": text.reason,
        "message": text.message,
        "source": { "component": by },
        "reportingComponent": by,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    });
    let path = format!("/api/v1/namespaces/{namespace}/events");
    let request = json_request(http::Method::POST, &path, "application/json", &body)?;
    client.request::<serde_json::Value>(request).await.map(drop)
}

async fn merge_patch(
    client: &Client,
    path: &str,
    patch: &serde_json::Value,
) -> Result<(), kube::Error> {
    let request = json_request(
        http::Method::PATCH,
        path,
        "application/merge-patch+json",
        patch,
    )?;
    client.request::<serde_json::Value>(request).await.map(drop)
}

fn json_request(
    method: http::Method,
    path: &str,
    content: &str,
    body: &serde_json::Value,
) -> Result<http::Request<Vec<u8>>, kube::Error> {
    http::Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, content)
        .body(body.to_string().into_bytes())
        .map_err(kube::Error::HttpError)
}
