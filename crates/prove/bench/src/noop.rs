//! An extender that decides nothing. It shows what any extender costs before it decides.
//!
//! It has the same HTTP stack, parser, verbs and Binding as ours. It is a process of its own, so
//! that its CPU time can be read. It keeps no ledger and never refuses a node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use sublet_api::extender::{
    BindArgs, BindResult, ExtenderArgs, FilterResult, HostPriority, PreemptArgs, PreemptResult,
};
use sublet_client::{Client, Write, connect, perform};
use sublet_model::{NodeName, PodKey, PodUid};

/// The largest body that it accepts, in bytes: the same as ours.
const LARGEST_BODY: usize = 16 << 20;

/// Way to read a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Parse {
    /// As ours does: names borrowed from the body, a pod of the few fields that count.
    Borrowed,
    /// The obvious way: everything, as a tree of owned values.
    Tree,
}

/// Run an extender that returns every name, or the first few (the benchmarks start it).
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Address for the kube-scheduler's calls
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Kubeconfig file to reach the API server, for binds
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Number of names to give back; 0 for all
    #[arg(long, default_value_t = 0, value_name = "N")]
    few: usize,
    /// Way to read a body
    #[arg(long, default_value = "borrowed")]
    parse: Parse,
}

struct Noop {
    client: Client,
    few: usize,
    parse: Parse,
}

/// Runs until it is killed.
///
/// # Errors
/// No usable kubeconfig, or an address that cannot be listened on.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start threads")?
        .block_on(serve(arguments))
}

async fn serve(arguments: &Arguments) -> Result<()> {
    let noop = Noop {
        client: connect(Some(&arguments.kubeconfig)).await?,
        few: arguments.few,
        parse: arguments.parse,
    };
    let router = Router::new()
        .route("/sublet/filter", post(filter))
        .route("/sublet/prioritize", post(prioritize))
        .route("/sublet/bind", post(bind))
        .route("/sublet/preempt", post(preempt))
        .route("/readyz", get(async || "ok"))
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .with_state(Arc::new(noop));
    let listener = tokio::net::TcpListener::bind(arguments.listen)
        .await
        .with_context(|| format!("cannot listen on {}", arguments.listen))?;
    axum::serve(listener, router)
        .await
        .context("the listener broke")
}

async fn filter(State(noop): State<Arc<Noop>>, body: Bytes) -> Response {
    let keep = |all: usize| {
        if noop.few == 0 {
            all
        } else {
            noop.few.min(all)
        }
    };
    with_names(noop.parse, &body, |names| {
        json(&FilterResult {
            node_names: names[..keep(names.len())].to_vec(),
            ..FilterResult::default()
        })
    })
}

async fn prioritize(State(noop): State<Arc<Noop>>, body: Bytes) -> Response {
    with_names(noop.parse, &body, |names| {
        let scores = names.iter().map(|&host| HostPriority { host, score: 0 });
        json(&scores.collect::<Vec<_>>())
    })
}

fn with_names(parse: Parse, body: &[u8], answer: impl Fn(&[&str]) -> Response) -> Response {
    match parse {
        Parse::Borrowed => match serde_json::from_slice::<ExtenderArgs<'_>>(body) {
            Ok(args) => answer(&args.node_names.unwrap_or_default()),
            Err(why) => refused(&why.to_string()),
        },
        Parse::Tree => match serde_json::from_slice::<serde_json::Value>(body) {
            Ok(args) => {
                let names = args["NodeNames"].as_array().map_or(&[][..], Vec::as_slice);
                let names: Vec<&str> = names.iter().filter_map(|name| name.as_str()).collect();
                answer(&names)
            }
            Err(why) => refused(&why.to_string()),
        },
    }
}

async fn bind(State(noop): State<Arc<Noop>>, body: Bytes) -> Response {
    json(&BindResult {
        error: outcome(&noop, &body).await.err().unwrap_or_default(),
    })
}

async fn outcome(noop: &Noop, body: &[u8]) -> Result<(), String> {
    let args: BindArgs = serde_json::from_slice(body).map_err(|why| why.to_string())?;
    let name = |why: sublet_model::NameError| why.to_string();
    let pod = PodKey::new(&args.pod_namespace, &args.pod_name).map_err(name)?;
    let uid = PodUid::new(&args.pod_uid).map_err(name)?;
    let node = NodeName::new(&args.node).map_err(name)?;
    let deadline = Duration::from_secs(5);
    let write = Write::bind(&pod, &uid, &node, &[].into());
    let bound = perform(&noop.client, &write, "noop", deadline).await;
    bound.map_err(|why| why.to_string())
}

async fn preempt(body: Bytes) -> Response {
    match serde_json::from_slice::<PreemptArgs>(&body) {
        Ok(args) => json(&PreemptResult {
            node_name_to_meta_victims: args.node_name_to_meta_victims.unwrap_or_default(),
        }),
        Err(why) => refused(&why.to_string()),
    }
}

fn json(answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(why) => refused(&why.to_string()),
    }
}

fn refused(why: &str) -> Response {
    (StatusCode::BAD_REQUEST, why.to_owned()).into_response()
}
