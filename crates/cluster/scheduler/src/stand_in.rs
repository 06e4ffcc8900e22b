//! A stand-in for the extender beside it: while that one does not answer, calls of the
//! kube-scheduler go to another.
//!
//! It costs a call nothing while the extender lives: it only holds a connection to it. When that
//! breaks, or the extender says that it goes, the stand-in listens on the extender's port at once,
//! and hands every call on. Both may listen at the same time (SO_REUSEPORT), so nobody waits
//! for the port. It decides nothing and keeps nothing.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State as Shared};
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use prometheus_client::registry::Registry;
use sublet_client::Client;
use sublet_listener::{Callers, Door, Ending, Limits};
use sublet_tasks::Vital;
use sublet_telemetry::metrics::{OutcomeLabel, StandInMetrics, print};
use tokio::net::{TcpListener, lookup_host};
use tokio::sync::watch;

use crate::lifetime::{CALLS, listen_beside};
use crate::peers::{self, Links};

/// Pauses between checks whether the extender is back, and between searches for other extenders.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_FOR_PEERS: Duration = Duration::from_secs(2);
/// Time that the extender has to say that it is ready.
const READY_LIMIT: Duration = Duration::from_secs(1);
/// Time that another extender has for an answer from memory. A Bind may take longer: the
/// kube-scheduler waits 15 s.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
const BIND_LIMIT: Duration = Duration::from_secs(14);
/// Time that calls under way have when it steps back or ends.
const LAST_CALLS: Ending = Ending {
    farewell: Duration::ZERO,
    drain: Duration::from_secs(15),
};

/// The extender that it stands in for.
pub(crate) struct StandIn {
    /// Address where the extender tells its health.
    pub(crate) beside: SocketAddr,
    /// Address where the extender takes calls.
    pub(crate) address: SocketAddr,
    /// Clients that may call there.
    pub(crate) callers: Callers,
    /// Namespace of the extenders' Secret.
    pub(crate) namespace: String,
    /// Places of other extenders: addresses, and names that stand for several.
    pub(crate) peers: Vec<String>,
}

/// Hands calls on to others.
struct StandInState {
    links: Links,
    /// Addresses of the others; `latest` is the one that answered last.
    peers: Mutex<Vec<SocketAddr>>,
    latest: AtomicUsize,
    metrics: StandInMetrics,
}

impl StandIn {
    /// Runs until `stopped`.
    ///
    /// # Errors
    /// The port cannot be listened on.
    pub(crate) async fn run(
        self,
        client: Client,
        health: Option<TcpListener>,
        vital: &Vital,
        stopped: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        let (metrics, registry) = StandInMetrics::registered();
        let (link, links) = watch::channel(None);
        let state = Arc::new(StandInState {
            links,
            peers: Mutex::default(),
            latest: AtomicUsize::new(0),
            metrics,
        });
        let certificates = peers::follow(client, self.namespace.clone(), link);
        vital.start("the look for certificates", certificates);
        let peers = state.clone().follow_peers(self.peers.clone());
        vital.start("the look for other extenders", peers);
        if let Some(health) = health {
            let page = Router::new()
                .route("/healthz", get(async || "ok"))
                .route("/metrics", get(metrics_page))
                .with_state(Arc::new(registry));
            let door = Door::new(health, Limits::PAGES, &state.metrics.refused);
            let serving = door.serve(page, LAST_CALLS, std::future::pending());
            vital.start("the listener for health", serving);
        }
        tokio::select! {
            ended = self.take_turns(&state) => ended,
            () = stopped => Ok(()),
        }
    }

    async fn take_turns(&self, state: &Arc<StandInState>) -> anyhow::Result<()> {
        loop {
            self.stand_in(state).await?;
            self.while_extender_lives().await;
        }
    }

    /// Answers in the extender's place until that one is ready.
    async fn stand_in(&self, state: &Arc<StandInState>) -> anyhow::Result<()> {
        if self.is_ready().await {
            return Ok(());
        }
        let calls = listen_beside(self.address)?;
        tracing::info!(address = %self.address, "stands in");
        state.metrics.active.set(1);
        let (back, stepping_back) = watch::channel(false);
        let router = Router::new()
            .fallback(forward)
            .layer(DefaultBodyLimit::disable())
            .with_state(state.clone());
        let door = Door::new(calls, CALLS, &state.metrics.refused);
        let door = door.for_callers(self.callers.clone()).await?;
        let mut told = stepping_back;
        // What is under way may end while the extender already answers.
        let serving = door.serve(router, LAST_CALLS, async move {
            // It fails only if this function was given up.
            let _told = told.wait_for(|back| *back).await;
        });
        let mut serving = tokio::spawn(serving);
        let until_ready = async {
            while !self.is_ready().await {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            ended = &mut serving => bail!("the listener in its place has ended: {ended:?}"),
            () = until_ready => {}
        }
        back.send_replace(true);
        state.metrics.active.set(0);
        tracing::info!("steps back");
        Ok(())
    }

    async fn is_ready(&self) -> bool {
        matches!(
            tokio::time::timeout(READY_LIMIT, self.ask("/readyz")).await,
            Ok(Ok(()))
        )
    }

    /// Waits until the extender dies, or says that it goes.
    async fn while_extender_lives(&self) {
        let why = match self.ask("/presence").await {
            Ok(()) => "it goes".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        tracing::info!(why, "the extender answers no more");
    }

    async fn ask(&self, path: &str) -> anyhow::Result<()> {
        let caller: HttpClient<HttpConnector, Body> =
            HttpClient::builder(TokioExecutor::new()).build_http();
        let uri: Uri = format!("http://{}{path}", self.beside).parse()?;
        let answer = caller.get(uri).await?;
        ensure!(answer.status().is_success(), "{}", answer.status());
        Ok(())
    }
}

impl StandInState {
    async fn follow_peers(self: Arc<Self>, names: Vec<String>) {
        loop {
            let mut found = Vec::new();
            for name in &names {
                match lookup_host(name).await {
                    Ok(addresses) => found.extend(addresses),
                    // A cluster with one extender may have nobody under that name.
                    Err(error) if self.metrics.active.get() == 0 => {
                        tracing::debug!(name, %error, "another extender cannot be found");
                    }
                    Err(error) => tracing::warn!(name, %error, "another extender cannot be found"),
                }
            }
            // One that is not found for a moment is better than nobody.
            if !found.is_empty() {
                *self.peers() = found;
            }
            tokio::time::sleep(LOOK_FOR_PEERS).await;
        }
    }

    fn peers(&self) -> MutexGuard<'_, Vec<SocketAddr>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first answer of any other extender. Each verb may be asked twice: an answer from memory
    /// changes nothing, and the leader knows of a Bind that was asked before.
    async fn hand_on(
        &self,
        method: &Method,
        path: &str,
        body: &Bytes,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let link = self.links.borrow().clone();
        let link = link.context("there is no certificate to call others with")?;
        let peers = self.peers().clone();
        let limit = if path.ends_with("/bind") {
            BIND_LIMIT
        } else {
            ANSWER_LIMIT
        };
        let latest = self.latest.load(Ordering::Relaxed);
        let mut last = anyhow::anyhow!("no other extender is known");
        for turn in 0..peers.len() {
            let number = (latest + turn) % peers.len();
            let call = link.call(peers[number], method.clone(), path, body.clone(), false);
            match tokio::time::timeout(limit, call).await {
                Ok(Ok((StatusCode::SERVICE_UNAVAILABLE, _))) => {
                    last = anyhow::anyhow!("{} is not ready", peers[number]);
                }
                Ok(Ok(answer)) => {
                    self.latest.store(number, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(Err(error)) => last = error,
                Err(_) => last = anyhow::anyhow!("no answer within {limit:?}"),
            }
        }
        Err(last)
    }
}

async fn metrics_page(Shared(registry): Shared<Arc<Registry>>) -> Response {
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content)], print(&registry)).into_response()
}

async fn forward(
    Shared(state): Shared<Arc<StandInState>>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> Response {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let handed = state.hand_on(&method, path, &body).await;
    let outcome = if handed.is_ok() { "answered" } else { "lost" };
    let label = OutcomeLabel { outcome };
    state.metrics.calls.get_or_create(&label).inc();
    match handed {
        Ok((status, body)) => {
            (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err(error) => {
            let why = format!("no extender answers: {error:#}");
            tracing::warn!(why, path, "a call is lost");
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use axum::http::Request;
    use axum::routing::post;
    use tokio::net::TcpSocket;

    use super::*;
    use crate::peers::tests::{link, listens};

    /// An extender's port for its health, until the sender is dropped.
    async fn healthy(health: TcpListener) -> watch::Sender<()> {
        let (alive, dies) = watch::channel(());
        let presence = {
            let dies = dies.clone();
            async move || {
                let mut dies = dies.clone();
                let _dead = dies.changed().await;
            }
        };
        let router = Router::new()
            .route("/readyz", get(async || "ok"))
            .route("/presence", get(presence));
        tokio::spawn(async move {
            let mut dies = dies;
            let end = async move {
                let _dead = dies.changed().await;
            };
            axum::serve(health, router)
                .with_graceful_shutdown(end)
                .await
        });
        alive
    }

    async fn ask(address: SocketAddr) -> anyhow::Result<Bytes> {
        let caller: HttpClient<HttpConnector, Body> =
            HttpClient::builder(TokioExecutor::new()).build_http();
        let call = Request::post(format!("http://{address}/sublet/filter"));
        let answer = caller.request(call.body(Body::from("names"))?).await?;
        ensure!(answer.status().is_success(), "{}", answer.status());
        Ok(axum::body::to_bytes(Body::new(answer.into_body()), 100).await?)
    }

    async fn until_answered(address: SocketAddr, wanted: &str) {
        let begun = Instant::now();
        loop {
            let answer = ask(address).await;
            if answer.as_ref().is_ok_and(|answer| answer == wanted) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{answer:?}");
            tokio::time::sleep(LOOK).await;
        }
    }

    #[tokio::test]
    async fn calls_go_to_another_extender_until_the_own_one_is_there() {
        let link = link();
        let echo = async |body: Bytes| [b"other ", &body[..]].concat();
        let other = listens(&link, Router::new().route("/sublet/filter", post(echo)));
        // Each port is held, so that no connection of this machine takes it meanwhile.
        let held = || {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_reuseport(true).unwrap();
            socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = socket.local_addr().unwrap();
            (socket, address)
        };
        let ((health, beside), (_held, address), (_nobody, nobody)) = (held(), held(), held());
        let (_links, links) = watch::channel(Some(link));
        let state = Arc::new(StandInState {
            links,
            // The first is gone.
            peers: Mutex::new(vec![nobody, other]),
            latest: AtomicUsize::new(0),
            metrics: StandInMetrics::default(),
        });
        let stand_in = StandIn {
            beside,
            address,
            callers: Callers::root_and_own(&[]),
            namespace: String::new(),
            peers: Vec::new(),
        };
        let shared = state.clone();
        let turns = tokio::spawn(async move { stand_in.take_turns(&shared).await });
        until_answered(address, "other names").await;
        assert_eq!(state.metrics.active.get(), 1);

        // The extender comes: it listens on the port that the stand-in still has.
        let own = listen_beside(address).unwrap();
        let router = Router::new().route("/sublet/filter", post(async || "own"));
        let own = tokio::spawn(axum::serve(own, router).into_future());
        let alive = healthy(health.listen(16).unwrap()).await;
        let begun = Instant::now();
        while state.metrics.active.get() == 1 {
            assert!(begun.elapsed() < Duration::from_secs(20), "it stays");
            tokio::time::sleep(LOOK).await;
        }
        until_answered(address, "own").await;

        // It goes.
        own.abort();
        drop(alive);
        until_answered(address, "other names").await;
        turns.abort();
    }
}
