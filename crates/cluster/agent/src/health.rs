//! `/healthz` and `/metrics`, for probes and Prometheus. Read only; where no address is
//! configured there is no listener.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use prometheus_client::registry::Registry;
use sublet_listener::{Door, Ending};
use sublet_telemetry::metrics::print;

/// The media type of Prometheus' text form as `prometheus-client` writes it.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Longest silence of the arbiter's thread that is healthy. It says five times a second that it works, and a
/// turn of it takes milliseconds; a node so loaded that it has no turn for so long starts no pod
/// in time either.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// Answers for as long as the process lives: an agent that cannot reach the API server
/// is not helped by a restart, so health says only that it is not stuck. `silent_for` says how long
/// the arbiter, if there is one, has not said that it works.
pub(crate) async fn serve(
    door: Door,
    registry: Registry,
    silent_for: impl Fn() -> Duration + Clone + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let health = move || {
        let answer = health(silent_for());
        async move { answer }
    };
    let registry = Arc::new(registry);
    let metrics = move || {
        let page = print(&registry);
        async move { ([(CONTENT_TYPE, OPEN_METRICS)], page) }
    };
    let router = Router::new()
        .route("/healthz", get(health))
        .route("/metrics", get(metrics));
    let never = Ending {
        farewell: Duration::ZERO,
        drain: Duration::ZERO,
    };
    door.serve(router, never, std::future::pending()).await
}

/// A restart helps an agent whose arbiter stands still: the next one takes its containers back, and
/// their programs wait for it.
fn health(silent_for: Duration) -> (StatusCode, String) {
    if silent_for <= SILENT_MAX {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let seconds = silent_for.as_secs();
    let why = format!("the arbiter has stood still for {seconds} s\n");
    (StatusCode::SERVICE_UNAVAILABLE, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arbiter_that_stands_still_is_not_healthy() {
        assert_eq!(health(Duration::ZERO), (StatusCode::OK, "ok\n".to_owned()));
        assert_eq!(health(SILENT_MAX).0, StatusCode::OK);
        let (status, why) = health(Duration::from_secs(7));
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(why, "the arbiter has stood still for 7 s\n");
    }
}
