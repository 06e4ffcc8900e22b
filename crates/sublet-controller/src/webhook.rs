//! HTTPS for the API server: an AdmissionReview in, an AdmissionReview out.
//!
//! Every replica answers, whether it leads or not. What is answered is decided by `admission` and
//! `bindings`; here bytes become a request and an answer becomes bytes, and the pod and the node of
//! a Binding are looked up. A body that cannot be read is HTTP 400, an object that cannot be looked
//! up is HTTP 503, and the API server takes both as no answer.

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
use sublet_api::object::Namespace;
use sublet_api::{GpuFlavor, keys};
use sublet_client::{Change, Client, read_node, read_pod};
use sublet_telemetry::metrics::{ControllerMetrics, OutcomeLabel, print};
use tokio::sync::watch;

use crate::admission::{AdmissionError, AdmissionRules, admit};
use crate::bindings::{BindingRules, is_ours, judge, strangers_binding};
use crate::flavors::KnownFlavors;

/// The largest body: etcd takes 1.5 MiB of an object, and a review has little beside it.
const BODY_LIMIT: usize = 8 << 20;

/// How long a pod waits for its namespace to be seen, which may be as new as the pod.
const NAMESPACE_LIMIT: Duration = Duration::from_millis(500);

/// How long pod and node of a Binding are looked up, less than the API server waits for the answer.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(2);

/// The labels of namespaces that count here, by namespace.
pub(crate) type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;

/// What all calls share.
pub(crate) struct Desk {
    pub(crate) rules: AdmissionRules,
    pub(crate) binding_rules: BindingRules,
    pub(crate) client: Client,
    /// `None` until all namespaces are known.
    pub(crate) namespaces: watch::Receiver<Option<NamespaceLabels>>,
    /// `None` until all flavors are known.
    pub(crate) flavors: watch::Receiver<Option<KnownFlavors>>,
    /// `None` until there is a certificate.
    pub(crate) certificate: watch::Receiver<Option<Arc<ServerConfig>>>,
    pub(crate) metrics: ControllerMetrics,
    pub(crate) registry: Registry,
}

/// What the API server calls.
pub(crate) fn router(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/admit", post(answer))
        .route("/bindings", post(answer_binding))
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
            await_flavor(&desk, &request, &labels).await;
            let decided = decide(
                &request,
                &labels,
                desk.flavors.borrow().as_ref(),
                &desk.rules,
            );
            match decided {
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

async fn answer_binding(State(desk): State<Arc<Desk>>, body: Bytes) -> Response {
    let started = Instant::now();
    let (outcome, response) = match read(&body) {
        Err(error) => (
            "unreadable",
            (StatusCode::BAD_REQUEST, error).into_response(),
        ),
        Ok(request) => match decide_binding(&request, &desk).await {
            Ok((outcome, response)) => {
                (outcome, axum::Json(response.into_review()).into_response())
            }
            Err((outcome, status, error)) => (outcome, (status, error).into_response()),
        },
    };
    desk.metrics
        .bindings
        .get_or_create(&OutcomeLabel { outcome })
        .inc();
    desk.metrics
        .admissions
        .observe(started.elapsed().as_secs_f64());
    response
}

/// What became of a Binding, in a word, and the answer; or why there is none.
async fn decide_binding(
    request: &AdmissionRequest<DynamicObject>,
    desk: &Desk,
) -> Result<(&'static str, AdmissionResponse), (&'static str, StatusCode, String)> {
    let rules = &desk.binding_rules;
    let binding = strangers_binding(request, rules)
        .map_err(|error| ("unreadable", StatusCode::BAD_REQUEST, error))?;
    let allowed = AdmissionResponse::from(request);
    let Some(binding) = binding else {
        return Ok(("allowed", allowed));
    };
    let looked_up = async {
        let Some(pod) = read_pod(&desk.client, &binding.pod).await? else {
            return Ok(None);
        };
        if !is_ours(&pod, rules.unit) {
            return Ok(None);
        }
        let node = read_node(&desk.client, &binding.node).await?;
        Ok::<_, kube::Error>(node.map(|node| (pod, node)))
    };
    let unknown = |error: String| {
        let (pod, node) = (&binding.pod, &binding.node);
        tracing::warn!(%pod, %node, error, "a Binding that nobody could look at");
        ("unknown", StatusCode::SERVICE_UNAVAILABLE, error)
    };
    let found = tokio::time::timeout(LOOK_UP_LIMIT, looked_up).await;
    let found = found
        .map_err(|_| unknown(format!("no answer within {LOOK_UP_LIMIT:?}")))?
        .map_err(|error| unknown(error.to_string()))?;
    // The API server itself refuses what is not there.
    let Some((pod, node)) = found else {
        return Ok(("allowed", allowed));
    };
    Ok(match judge(&binding, &pod, &node, rules) {
        Ok(()) => ("allowed", allowed),
        Err(refusal) => {
            let (pod, node, user) = (&binding.pod, &binding.node, &binding.user);
            tracing::info!(%pod, %node, user, "a stranger's Binding is refused");
            ("refused", allowed.deny(refusal))
        }
    })
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
    flavors: Option<&KnownFlavors>,
    rules: &AdmissionRules,
) -> Result<(&'static str, AdmissionResponse), String> {
    let object = request
        .object
        .as_ref()
        .ok_or("a request without an object")?;
    let object: Value = serde_json::to_value(object).map_err(|error| error.to_string())?;
    let mut response = AdmissionResponse::from(request);
    match admit(&object, labels, flavors, rules) {
        Err(AdmissionError::Claim(refusal)) => Ok(("refused", response.deny(refusal))),
        Err(AdmissionError::Flavor(refusal)) => Ok(("refused", response.deny(refusal))),
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

/// Waits a little for the flavor that a pod asks for, which may be as new as the pod.
async fn await_flavor(
    desk: &Desk,
    request: &AdmissionRequest<DynamicObject>,
    labels: &BTreeMap<String, String>,
) {
    let Some(object) = &request.object else {
        return;
    };
    let metadata = &object.metadata;
    let marks = [&metadata.labels, &metadata.annotations];
    let asked = marks
        .into_iter()
        .flatten()
        .find_map(|m| m.get(keys::FLAVOR));
    let name = match asked {
        None => return,
        Some(name) if name == "default" => labels.get(keys::DEFAULT_FLAVOR_LABEL),
        asked => asked,
    };
    let Some(name) = name else { return };
    let mut flavors = desk.flavors.clone();
    let known = flavors.wait_for(|known| known.as_ref().is_some_and(|all| all.contains_key(name)));
    // One that is not there is refused.
    let _known = tokio::time::timeout(NAMESPACE_LIMIT, known).await.is_ok();
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
                keys::ASSIGN_SCHEDULER_LABEL | keys::ADD_SLOTS_LABEL | keys::DEFAULT_FLAVOR_LABEL
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

/// Keeps something of each object known, by its name. `entry`: the name and what is kept.
async fn follow<O, T, E: std::fmt::Display>(
    changes: impl Stream<Item = Result<Change<O>, E>>,
    known: watch::Sender<Option<BTreeMap<String, T>>>,
    entry: impl Fn(O) -> (String, T),
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

#[cfg(test)]
mod tests;
