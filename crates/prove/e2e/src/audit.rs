//! Reads the API server's audit log as a list of requests: the account, the request, and the
//! answer.
//!
//! The log shows what the product really did to the cluster, whatever the product's own logs say.
//! An incomplete last line is left out, since the server may still be writing it.

use anyhow::{Context, Result};
use serde_json::Value;
use sublet_testbed::Cluster;

/// One answered request about an object of the API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The user name.
    pub user: String,
    /// The verb as RBAC knows it: `get`, `list`, `watch`, `create`, ...
    pub verb: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The resource, with its subresource: `pods`, `pods/binding`.
    pub resource: String,
    /// The namespace; empty for all, or for an object outside of namespaces.
    pub namespace: String,
    /// The object's name; empty for lists.
    pub name: String,
    /// Whether the authorizer allowed the request.
    pub is_allowed: bool,
    /// The HTTP status.
    pub code: u64,
}

impl Request {
    /// Has server-side apply made the object? That needs the right to create it too.
    #[must_use]
    pub fn is_creating_patch(&self) -> bool {
        self.verb == "patch" && self.code == 201
    }
}

/// All requests answered until now.
///
/// # Errors
/// There is no log.
pub fn requests(cluster: &Cluster) -> Result<Vec<Request>> {
    let path = cluster.audit_log();
    let log = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let events = log
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    Ok(events
        .filter_map(|event: Value| request_of(&event))
        .collect())
}

/// The request of an event about an object; `None` for others, such as a call of `/healthz`.
fn request_of(event: &Value) -> Option<Request> {
    let object = event["objectRef"].as_object()?;
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut resource = text(object.get("resource"));
    if let Some(part) = object.get("subresource").and_then(Value::as_str) {
        resource = format!("{resource}/{part}");
    }
    let decision = event["annotations"].get("authorization.k8s.io/decision");
    Some(Request {
        user: text(event["user"].get("username")),
        verb: text(event.get("verb")),
        group: text(object.get("apiGroup")),
        resource,
        namespace: text(object.get("namespace")),
        name: text(object.get("name")),
        is_allowed: text(decision) == "allow",
        code: event["responseStatus"]["code"].as_u64().unwrap_or(0),
    })
}

/// The requests of the product's accounts that their rights or a policy refused.
///
/// # Errors
/// There is no log.
pub fn forbidden(cluster: &Cluster) -> Result<Vec<Request>> {
    let ours = |request: &Request| {
        request
            .user
            .starts_with("system:serviceaccount:sublet-system:")
    };
    let mut all = requests(cluster)?;
    all.retain(|request| ours(request) && request.code == 403);
    Ok(all)
}
