//! HTTPS for the API server: an AdmissionReview in, an AdmissionReview out.
//!
//! Every replica answers, whether it leads or not. `admission` and `bindings` decide on the answer.
//! Here bytes become a request and an answer becomes bytes, and the pod and the node of a Binding
//! are looked up. A body that cannot be read is HTTP 400, an object that cannot be looked up is
//! HTTP 503, and the API server takes both as no answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use kube::core::admission::AdmissionResponse;
use prometheus_client::registry::Registry;
use rustls::ServerConfig;
use serde::de::DeserializeOwned;
use sublet_api::object::Meta;
use sublet_api::{ElasticQuota, SharePod, keys};
use sublet_client::{Client, read_node, read_pod};
use sublet_telemetry::metrics::{ControllerMetrics, OutcomeLabel, print};
use tokio::sync::watch;

use crate::admission::{AdmissionError, AdmissionRules, Sent, SentPod, admit_sent};
use crate::bindings::{BindingRules, is_ours, judge, strangers_binding};
use crate::flavors::KnownFlavors;
use crate::known::Known;
use crate::quotas::{KnownQuotas, QuotaChange, judge_quota};
use crate::review::Review;
use crate::share_pods::pod_of;

/// Time limit for reading the pod and the node of a Binding: less than the API server waits.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(2);

/// State that all calls share.
pub(crate) struct WebhookState {
    pub(crate) rules: AdmissionRules,
    pub(crate) binding_rules: BindingRules,
    pub(crate) client: Client,
    /// Namespaces and flavors.
    pub(crate) known: Known,
    /// `None` until there is a certificate.
    pub(crate) certificate: watch::Receiver<Option<Arc<ServerConfig>>>,
    pub(crate) metrics: ControllerMetrics,
    pub(crate) registry: Registry,
}

/// The routes for the API server.
pub(crate) fn router(state: Arc<WebhookState>) -> Router {
    Router::new()
        .route("/admit", post(answer))
        .route("/sharepods", post(answer_share_pod))
        .route("/bindings", post(answer_binding))
        .route("/quotas", post(answer_quota))
        // The listener has read the body, and holds it to its limit.
        .layer(DefaultBodyLimit::disable())
        .with_state(state)
}

/// The routes for kubelet and Prometheus.
pub(crate) fn health_router(state: Arc<WebhookState>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(state)
}

async fn ready(State(state): State<Arc<WebhookState>>) -> Response {
    let missing = if state.certificate.borrow().is_none() {
        "there is no certificate yet: a leader makes one once the webhook configuration is there"
    } else if state.known.namespaces.borrow().is_none() {
        "the namespaces are not known yet"
    } else {
        return "ok".into_response();
    };
    (StatusCode::SERVICE_UNAVAILABLE, missing).into_response()
}

async fn metrics(State(state): State<Arc<WebhookState>>) -> Response {
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content)], print(&state.registry)).into_response()
}

async fn answer(State(state): State<Arc<WebhookState>>, body: Bytes) -> Response {
    let started = Instant::now();
    let (outcome, response) = match Review::read(&body) {
        Err(error) => (
            "unreadable",
            (StatusCode::BAD_REQUEST, error).into_response(),
        ),
        Ok(request) => {
            let labels = state.known.labels_of(&request.namespace).await;
            let decided = match sent(&request) {
                Err(error) => Err(error),
                Ok(sent) => {
                    let flavor = flavor(&sent.pod.metadata);
                    state.known.await_flavor(flavor, &labels).await;
                    let flavors = state.known.flavors.borrow();
                    decide((&request, &sent), &labels, flavors.as_ref(), &state.rules)
                }
            };
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
    state
        .metrics
        .admitted
        .get_or_create(&OutcomeLabel { outcome })
        .inc();
    state
        .metrics
        .admissions
        .observe(started.elapsed().as_secs_f64());
    response
}

async fn answer_share_pod(State(state): State<Arc<WebhookState>>, body: Bytes) -> Response {
    let request = match Review::read(&body) {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, error).into_response(),
    };
    let share_pod: SharePod = match request.object().and_then(read) {
        Ok(share_pod) => share_pod,
        Err(error) => return (StatusCode::BAD_REQUEST, error).into_response(),
    };
    let labels = state.known.labels_of(&request.namespace).await;
    let flavor = flavor(&share_pod.metadata);
    state.known.await_flavor(flavor, &labels).await;
    let flavors = state.known.flavors.borrow();
    // Is there a pod for it? Nothing of it is changed.
    let allowed = request.allow();
    let response = match pod_of(&share_pod, &labels, flavors.as_ref(), &state.rules) {
        Ok(_) => allowed,
        Err(refusal) => allowed.deny(refusal),
    };
    axum::Json(response.into_review()).into_response()
}

async fn answer_quota(State(state): State<Arc<WebhookState>>, body: Bytes) -> Response {
    let decided = Review::read(&body).and_then(|request| {
        let quotas = state.known.quotas.borrow();
        decide_quota(&request, quotas.as_ref())
    });
    match decided {
        Ok(response) => axum::Json(response.into_review()).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, error).into_response(),
    }
}

async fn answer_binding(State(state): State<Arc<WebhookState>>, body: Bytes) -> Response {
    let started = Instant::now();
    let (outcome, response) = match Review::read(&body) {
        Err(error) => (
            "unreadable",
            (StatusCode::BAD_REQUEST, error).into_response(),
        ),
        Ok(request) => match decide_binding(&request, &state).await {
            Ok((outcome, response)) => {
                (outcome, axum::Json(response.into_review()).into_response())
            }
            Err((outcome, status, error)) => (outcome, (status, error).into_response()),
        },
    };
    state
        .metrics
        .bindings
        .get_or_create(&OutcomeLabel { outcome })
        .inc();
    state
        .metrics
        .admissions
        .observe(started.elapsed().as_secs_f64());
    response
}

/// Decides about a Binding. Returns the outcome in a word, and the answer or why there is none.
async fn decide_binding(
    request: &Review<'_>,
    state: &WebhookState,
) -> Result<(&'static str, AdmissionResponse), (&'static str, StatusCode, String)> {
    let rules = &state.binding_rules;
    let binding = strangers_binding(request, rules)
        .map_err(|error| ("unreadable", StatusCode::BAD_REQUEST, error))?;
    let allowed = request.allow();
    let Some(binding) = binding else {
        return Ok(("allowed", allowed));
    };
    let looked_up = async {
        let Some(pod) = read_pod(&state.client, &binding.pod).await? else {
            return Ok(None);
        };
        if !is_ours(&pod, rules.unit) {
            return Ok(None);
        }
        let node = read_node(&state.client, &binding.node).await?;
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

/// The pod of a request.
fn sent<'a>(request: &Review<'a>) -> Result<SentPod<'a>, String> {
    SentPod::read(Sent::Text(request.object()?)).map_err(|error| error.to_string())
}

fn read<T: DeserializeOwned>(object: &str) -> Result<T, String> {
    serde_json::from_str(object).map_err(|error| error.to_string())
}

/// The flavor that an object asks for.
fn flavor(metadata: &Meta) -> Option<&str> {
    let mut marks = [&metadata.labels, &metadata.annotations].into_iter();
    marks.find_map(|marks| marks.get(keys::FLAVOR).map(String::as_str))
}

/// The answer for a quota that comes, changes or goes. One that is judged before the others are
/// known passes.
fn decide_quota(
    request: &Review<'_>,
    quotas: Option<&KnownQuotas>,
) -> Result<AdmissionResponse, String> {
    let quota: (ElasticQuota, bool) = match request.deleted() {
        Some(gone) => (read(gone)?, true),
        None => (read(request.object()?)?, false),
    };
    let change = match &quota {
        (gone, true) => QuotaChange::Gone(gone),
        (set, false) => QuotaChange::Set(set),
    };
    let response = request.allow();
    Ok(match quotas.map(|known| judge_quota(change, known)) {
        None | Some(Ok(())) => response,
        Some(Err(refusal)) => response.deny(refusal),
    })
}

/// Decides about a pod. Returns the outcome in a word, and the answer.
fn decide(
    (request, sent): (&Review<'_>, &SentPod<'_>),
    labels: &BTreeMap<String, String>,
    flavors: Option<&KnownFlavors>,
    rules: &AdmissionRules,
) -> Result<(&'static str, AdmissionResponse), String> {
    let mut response = request.allow();
    match admit_sent(sent, labels, flavors, rules) {
        Err(
            refusal @ (AdmissionError::Claim(_)
            | AdmissionError::Flavor(_)
            | AdmissionError::NodeChosen { .. }),
        ) => Ok(("refused", response.deny(refusal))),
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

#[cfg(test)]
mod tests;
