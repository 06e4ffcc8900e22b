//! `/healthz` and `/metrics`, for probes and Prometheus. Read only; where no address is
//! configured there is no listener.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use prometheus_client::registry::Registry;
use sublet_listener::{Door, Ending};
use sublet_telemetry::metrics::print;

/// The media type of Prometheus' text form as `prometheus-client` writes it.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers for as long as the process lives: an agent that cannot reach the API server
/// is not helped by a restart, so health says only that it is not stuck.
pub(crate) async fn serve(door: Door, registry: Registry) -> anyhow::Result<()> {
    let registry = Arc::new(registry);
    let metrics = move || {
        let page = print(&registry);
        async move { ([(CONTENT_TYPE, OPEN_METRICS)], page) }
    };
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/metrics", get(metrics));
    let never = Ending {
        farewell: Duration::ZERO,
        drain: Duration::ZERO,
    };
    door.serve(router, never, std::future::pending()).await
}
