//! HTTPS for the API server: an AdmissionReview in, an AdmissionReview out.
//!
//! Every replica answers, whether it leads or not. What is answered is decided by `admission`;
//! here bytes become a request and an answer becomes bytes. A body that cannot be read is HTTP
//! 400, which the API server takes as no answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::{Stream, StreamExt};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use serde_json::Value;
use sublet_api::keys;
use sublet_api::object::Namespace;
use sublet_client::Change;
use sublet_telemetry::metrics::{ControllerMetrics, OutcomeLabel, print};
use tokio::sync::watch;

use crate::admission::{AdmissionError, AdmissionRules, admit};

/// The largest body: etcd takes 1.5 MiB of an object, and a review has little beside it.
const BODY_LIMIT: usize = 8 << 20;

/// How long a pod waits for its namespace to be seen, which may be as new as the pod.
const NAMESPACE_LIMIT: Duration = Duration::from_millis(500);

/// The labels of namespaces that count here, by namespace.
pub(crate) type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;

/// What all calls share.
pub(crate) struct Desk {
    pub(crate) rules: AdmissionRules,
    /// `None` until all namespaces are known.
    pub(crate) namespaces: watch::Receiver<Option<NamespaceLabels>>,
    /// `None` until there is a certificate.
    pub(crate) certificate: watch::Receiver<Option<Arc<ServerConfig>>>,
    pub(crate) metrics: ControllerMetrics,
    pub(crate) registry: Registry,
}

/// What the API server calls.
pub(crate) fn router(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/admit", post(answer))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(desk)
}

/// What kubelet and Prometheus call.
pub(crate) fn health_router(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(desk)
}

async fn ready(State(desk): State<Arc<Desk>>) -> Response {
    let missing = if desk.certificate.borrow().is_none() {
        "there is no certificate yet: a leader makes one once the webhook configuration is there"
    } else if desk.namespaces.borrow().is_none() {
        "the namespaces are not known yet"
    } else {
        return "ok".into_response();
    };
    (StatusCode::SERVICE_UNAVAILABLE, missing).into_response()
}

async fn metrics(State(desk): State<Arc<Desk>>) -> Response {
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content)], print(&desk.registry)).into_response()
}

async fn answer(State(desk): State<Arc<Desk>>, body: Bytes) -> Response {
    let started = Instant::now();
    let (outcome, response) = match read(&body) {
        Err(error) => (
            "unreadable",
            (StatusCode::BAD_REQUEST, error).into_response(),
        ),
        Ok(request) => {
            let labels = labels_of(&desk, request.namespace.as_deref().unwrap_or_default()).await;
            match decide(&request, &labels, &desk.rules) {
                Err(error) => (
                    "unreadable",
                    (StatusCode::BAD_REQUEST, error).into_response(),
                ),
                Ok((outcome, response)) => {
                    (outcome, axum::Json(response.into_review()).into_response())
                }
            }
        }
    };
    desk.metrics
        .admitted
        .get_or_create(&OutcomeLabel { outcome })
        .inc();
    desk.metrics
        .admissions
        .observe(started.elapsed().as_secs_f64());
    response
}

/// The request in a body.
fn read(body: &[u8]) -> Result<AdmissionRequest<DynamicObject>, String> {
    let review: AdmissionReview<DynamicObject> =
        serde_json::from_slice(body).map_err(|error| format!("no AdmissionReview: {error}"))?;
    review
        .try_into()
        .map_err(|_| "an AdmissionReview without a request".to_owned())
}

/// What became of a pod, in a word, and the answer.
fn decide(
    request: &AdmissionRequest<DynamicObject>,
    labels: &BTreeMap<String, String>,
    rules: &AdmissionRules,
) -> Result<(&'static str, AdmissionResponse), String> {
    let object = request
        .object
        .as_ref()
        .ok_or("a request without an object")?;
    let object: Value = serde_json::to_value(object).map_err(|error| error.to_string())?;
    let mut response = AdmissionResponse::from(request);
    match admit(&object, labels, rules) {
        Err(AdmissionError::Claim(refusal)) => Ok(("refused", response.deny(refusal))),
        Err(error) => Err(error.to_string()),
        Ok(admitted) => {
            response.warnings = (!admitted.warnings.is_empty()).then_some(admitted.warnings);
            if admitted.patch.is_empty() {
                return Ok(("unchanged", response));
            }
            let response = response.with_patch(admitted.patch);
            Ok(("changed", response.map_err(|error| error.to_string())?))
        }
    }
}

/// The labels of a namespace. One that is not known after a while has none that count.
async fn labels_of(desk: &Desk, namespace: &str) -> BTreeMap<String, String> {
    let mut namespaces = desk.namespaces.clone();
    let find = |known: &Option<NamespaceLabels>| known.as_ref()?.get(namespace).cloned();
    let known = namespaces.wait_for(|known| find(known).is_some());
    match tokio::time::timeout(NAMESPACE_LIMIT, known).await {
        Ok(Ok(known)) => find(&known).unwrap_or_default(),
        _ => {
            tracing::warn!(namespace, "not seen in time; its labels do not count");
            BTreeMap::new()
        }
    }
}

/// Keeps the labels of all namespaces known.
pub(crate) async fn follow_namespaces<E: std::fmt::Display>(
    changes: impl Stream<Item = Result<Change<Namespace>, E>>,
    known: watch::Sender<Option<NamespaceLabels>>,
) {
    let mut changes = std::pin::pin!(changes);
    let mut listed = None;
    while let Some(change) = changes.next().await {
        match change {
            Err(error) => tracing::warn!(%error, "the watch of namespaces is broken"),
            Ok(Change::ListBegins) => listed = Some(NamespaceLabels::new()),
            Ok(Change::ListEnds) => {
                known.send_replace(listed.take());
            }
            Ok(Change::Set(namespace)) => {
                let name = namespace.metadata.name;
                let mut labels = namespace.metadata.labels;
                labels.retain(|key, _| {
                    matches!(
                        key.as_str(),
                        keys::ASSIGN_SCHEDULER_LABEL | keys::ADD_SLOTS_LABEL
                    )
                });
                match &mut listed {
                    Some(listed) => drop(listed.insert(name, labels)),
                    None => known.send_modify(|known| {
                        known.get_or_insert_default().insert(name, labels);
                    }),
                }
            }
            Ok(Change::Gone(namespace)) => known.send_modify(|known| {
                known
                    .get_or_insert_default()
                    .remove(&namespace.metadata.name);
            }),
        }
    }
}

#[cfg(test)]
mod tests;
