//! The routes of the original GPUShare extender, answering as it does: its inspect page,
//! its version, and a bind that fails with HTTP 500.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State as Shared};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sublet_api::extender::BindResult;
use sublet_model::{Book, Bytes as Amount, Ledger, MiB, charges_of};
use sublet_telemetry::metrics::NodeLabel;

use crate::routes::{bind_outcome, json};
use crate::state::Scheduler;

/// The original's version, which its tools compare.
const ORIGINAL_VERSION: &str = "0.1.0";

#[derive(Serialize)]
struct Page {
    nodes: Vec<NodePage>,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

#[derive(Serialize)]
struct NodePage {
    name: String,
    #[serde(rename = "totalGPU")]
    total: u64,
    #[serde(rename = "usedGPU")]
    used: u64,
    devs: Vec<CardPage>,
}

#[derive(Serialize)]
struct CardPage {
    id: u16,
    #[serde(rename = "totalGPU")]
    total: u64,
    #[serde(rename = "usedGPU")]
    used: u64,
    pods: Vec<PodPage>,
}

#[derive(Serialize)]
struct PodPage {
    name: String,
    namespace: String,
    #[serde(rename = "usedGPU")]
    used: u64,
}

pub(crate) async fn version() -> &'static str {
    ORIGINAL_VERSION
}

pub(crate) async fn bind(Shared(scheduler): Shared<Arc<Scheduler>>, body: Bytes) -> Response {
    let error = bind_outcome(&scheduler, body)
        .await
        .err()
        .unwrap_or_default();
    let status = if error.is_empty() {
        StatusCode::OK
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    (status, json(&BindResult { error })).into_response()
}

pub(crate) async fn inspect(Shared(scheduler): Shared<Arc<Scheduler>>) -> Response {
    let state = scheduler.state();
    let ledger = state.engine.ledger();
    let nodes = ledger.books().filter(|(_, book)| book.facts().is_some());
    let nodes = nodes.map(|(_, book)| node_page(ledger, book)).collect();
    json(&Page {
        nodes,
        error: String::new(),
    })
}

pub(crate) async fn inspect_node(
    Shared(scheduler): Shared<Arc<Scheduler>>,
    Path(name): Path<String>,
) -> Response {
    let state = scheduler.state();
    let ledger = state.engine.ledger();
    let book = ledger.find(&name).map(|idx| ledger.book(idx));
    json(&match book.filter(|book| book.facts().is_some()) {
        Some(book) => Page {
            nodes: vec![node_page(ledger, book)],
            error: String::new(),
        },
        None => Page {
            nodes: Vec::new(),
            error: format!("node {name:?} not found"),
        },
    })
}

/// Brings the per-node gauges up to date: they are read once a scrape and change with every
/// pod, so they are set here.
pub(crate) fn set_gauges(scheduler: &Scheduler) {
    let state = scheduler.state();
    let metrics = &scheduler.metrics;
    metrics.free.clear();
    metrics.used.clear();
    metrics.largest.clear();
    let waiting = state.waiting.values().filter(|pod| pod.asks_gpu()).count();
    metrics
        .waiting
        .set(i64::try_from(waiting).unwrap_or(i64::MAX));
    for (_, book) in state.engine.ledger().books() {
        if book.cards().is_empty() {
            continue;
        }
        let node = NodeLabel {
            node: book.name().to_string(),
        };
        let used: MiB = book.cards().iter().map(|card| card.used.memory).sum();
        metrics
            .free
            .get_or_create(&node)
            .set(Amount::from(book.free()).get() as f64);
        metrics
            .used
            .get_or_create(&node)
            .set(Amount::from(used).get() as f64);
        let largest = book.cards().iter().map(|card| card.free().memory).max();
        metrics
            .largest
            .get_or_create(&node)
            .set(Amount::from(largest.unwrap_or(MiB::ZERO)).get() as f64);
    }
}

fn node_page(ledger: &Ledger, book: &Book) -> NodePage {
    let unit = book.facts().map(|facts| facts.unit).unwrap_or_default();
    let gpus = book.facts().map_or(&[][..], |facts| facts.inventory.gpus());
    let mut devs: Vec<CardPage> = gpus
        .iter()
        .zip(book.cards())
        .map(|(gpu, card)| CardPage {
            id: gpu.index.0,
            total: unit.whole_in(gpu.memory),
            used: unit.whole_in(card.used.memory),
            pods: Vec::new(),
        })
        .collect();
    for entry in book.pods().filter_map(|uid| ledger.entry(uid)) {
        let (Some(allocation), Some(facts)) = (&entry.allocation, book.facts()) else {
            continue;
        };
        for charge in charges_of(&entry.claim, allocation) {
            let Some(position) = facts.inventory.position(&charge.card) else {
                continue;
            };
            let memory = match charge.whole {
                true => facts.inventory.gpus()[position].memory,
                false => charge.part.memory,
            };
            devs[position].pods.push(PodPage {
                name: entry.pod.name().to_owned(),
                namespace: entry.pod.namespace().to_owned(),
                used: unit.whole_in(memory),
            });
        }
    }
    for dev in &mut devs {
        dev.pods
            .sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    }
    NodePage {
        name: book.name().to_string(),
        total: devs.iter().map(|dev| dev.total).sum(),
        used: devs.iter().map(|dev| dev.used).sum(),
        devs,
    }
}
