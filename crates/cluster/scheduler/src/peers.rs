//! Connects extenders with each other: one certificate that all of them serve and show, and calls
//! over it.
//!
//! The certificate is in one Secret, which the manifests make. The leader fills and renews it by
//! the steps of `sublet_replicas::credentials`; the Secret itself is the bundle that all trust.
//! Without the Secret all go on with the certificate that they have. A call fails if either side
//! cannot show a certificate of that bundle with [`NAME`] in it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Method, Request, StatusCode};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use sublet_client::{Client, perform};
use sublet_listener::{Door, Ending, Limits};
use sublet_model::Pauses;
use sublet_replicas::credentials::{CertificateStep, Credential, Stored, next_step};
use sublet_replicas::leader::Leadership;
use sublet_replicas::secret::{NoRoom, is_empty, room_in, stored_in, storing};
use tokio::sync::watch;

use crate::lifetime::CALLS;
use crate::state::MANAGER;

/// The Secret, in the namespace of the extender.
const SECRET: &str = "sublet-extender-certificates";
/// The name in the certificate; it stands for no host, and all extenders have it.
const NAME: &str = "extender.sublet.internal";
/// A header: the process that gets the call shall answer it only if it leads.
pub(crate) const FOR_LEADER: &str = "sublet-for-leader";

/// Lifetime of a certificate, and time that others may take to hear of a new one.
const VALIDITY: Duration = Duration::from_secs(8760 * 3600);
const SETTLE: Duration = Duration::from_secs(60);
/// Pauses between reads of the Secret: until it is there, and then. A fraction of [`SETTLE`].
const LOOK: Duration = Duration::from_millis(200);
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The pauses of the leader after failures with it.
const PAUSES: Pauses = Pauses::new(Duration::from_millis(400), LOOK_AGAIN);
/// The longest that a write of it, and a connection to another extender, may take.
const WRITE_LIMIT: Duration = Duration::from_secs(2);
const CONNECT_LIMIT: Duration = Duration::from_millis(300);
/// The largest answer: a list of refused nodes.
const LARGEST_ANSWER: usize = 64 << 20;

/// Limits on the calls of other extenders: the same calls, by TLS.
pub(crate) const PEERS: Limits = Limits {
    name: "peers",
    ..CALLS
};

/// A certificate in use: how to serve and how to call.
pub(crate) struct Link {
    server: Arc<ServerConfig>,
    caller: HttpClient<HttpsConnector<HttpConnector>, Body>,
}

/// The newest one, once there is any.
pub(crate) type Links = watch::Receiver<Option<Arc<Link>>>;

impl Link {
    fn of(stored: &Stored) -> anyhow::Result<Link> {
        let (server, client) = stored.peer_configs()?;
        let name = ServerName::try_from(NAME).context("no name")?;
        let mut plain = HttpConnector::new();
        plain.enforce_http(false);
        plain.set_nodelay(true);
        plain.set_connect_timeout(Some(CONNECT_LIMIT));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(client)
            .https_only()
            .with_server_name_resolver(FixedServerNameResolver::new(name))
            .enable_http1()
            .wrap_connector(plain);
        let caller = HttpClient::builder(TokioExecutor::new()).build(connector);
        Ok(Link { server, caller })
    }

    /// Sends a call to another extender.
    ///
    /// # Errors
    /// No answer. Whether the call arrived is not known then.
    pub(crate) async fn call(
        &self,
        to: SocketAddr,
        method: Method,
        path: &str,
        body: Bytes,
        for_leader: bool,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{to}{path}"));
        if for_leader {
            request = request.header(FOR_LEADER, "1");
        }
        let request = request.body(Body::from(body))?;
        let answer = self.caller.request(request).await?;
        let status = answer.status();
        let body = to_bytes(Body::new(answer.into_body()), LARGEST_ANSWER).await?;
        Ok((status, body))
    }
}

/// Reads the Secret again and again, and hands on its content.
pub(crate) async fn follow(
    client: Client,
    namespace: String,
    links: watch::Sender<Option<Arc<Link>>>,
) {
    let api: Api<Secret> = Api::namespaced(client, &namespace);
    let mut known: Option<Stored> = None;
    let mut told = None;
    loop {
        let trouble = match read(&api).await {
            // It is empty, and whoever leads fills it.
            Ok(None) => None,
            Ok(Some((stored, _))) if known.as_ref() == Some(&stored) => None,
            Ok(Some((stored, link))) => {
                tracing::info!(until = %stored.served.until, "another certificate");
                links.send_replace(Some(Arc::new(link)));
                known = Some(stored);
                None
            }
            Err(error) => Some(format!("{error:#}")),
        };
        // It is looked at five times a second.
        if let Some(error) = trouble.as_ref().filter(|_| trouble != told) {
            tracing::warn!(error, "no certificate is read from the Secret");
        }
        told = trouble;
        let pause = if known.is_some() { LOOK_AGAIN } else { LOOK };
        tokio::time::sleep(pause).await;
    }
}

/// Reads the Secret's content and makes it usable; `None` while it is empty.
async fn read(api: &Api<Secret>) -> anyhow::Result<Option<(Stored, Link)>> {
    let secret = api.get_opt(SECRET).await?.ok_or(NoRoom::Absent)?;
    if is_empty(&secret) {
        return Ok(None);
    }
    let stored = stored_in(&secret)?;
    let link = Link::of(&stored)?;
    Ok(Some((stored, link)))
}

/// Keeps the Secret whenever this process leads.
pub(crate) async fn keep(client: Client, namespace: String, mut leadership: Leadership) {
    let api: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    loop {
        let tenure = leadership.won().await;
        let mut failures: u32 = 0;
        while let Some(left) = leadership.left(tenure) {
            let pause = match look_after(&client, &api, &namespace, left).await {
                Ok(pause) => {
                    failures = 0;
                    pause
                }
                Err(error) => {
                    tracing::error!(
                        error = format!("{error:#}"),
                        "the certificate is not looked after"
                    );
                    failures = failures.saturating_add(1);
                    PAUSES.after(failures)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = leadership.lost(tenure) => {}
            }
        }
    }
}

/// Takes the next step, and returns when to look again.
async fn look_after(
    client: &Client,
    api: &Api<Secret>,
    namespace: &str,
    left: Duration,
) -> anyhow::Result<Duration> {
    let secret = api.get_opt(SECRET).await?;
    let stored = secret.as_ref().and_then(|secret| stored_in(secret).ok());
    let now = Timestamp::now();
    let fresh = Credential::for_peers(NAME, now, VALIDITY)?;
    // Whoever reads the Secret trusts what is in it.
    let trusted = true;
    match next_step(stored.as_ref(), trusted, &fresh, SETTLE, now) {
        CertificateStep::Wait(time) => return Ok(time.min(LOOK_AGAIN)),
        CertificateStep::Trust(_) => {}
        CertificateStep::Store(new) => {
            let write = storing(namespace, SECRET, room_in(secret.as_ref())?, &new);
            let written = perform(client, &write, MANAGER, left.min(WRITE_LIMIT)).await;
            written.context("it cannot be stored")?;
            tracing::info!("certificate stored");
        }
    }
    Ok(LOOK)
}

/// Answers other extenders until `stopped`, with the newest certificate.
///
/// # Errors
/// Nobody looks for a certificate.
pub(crate) async fn answer(
    door: Door,
    router: Router,
    links: Links,
    stopped: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    // Who called last calls somebody else.
    let at_once = Ending {
        farewell: Duration::ZERO,
        drain: Duration::ZERO,
    };
    let (served, certificates) = watch::channel(None);
    let door = door.with_tls(certificates);
    tokio::select! {
        ended = door.serve(router, at_once, stopped) => ended,
        never = serve_newest(links, served) => match never {},
    }
}

/// Serves the newest certificate, for ever.
async fn serve_newest(
    mut links: Links,
    served: watch::Sender<Option<Arc<ServerConfig>>>,
) -> Infallible {
    loop {
        let newest = links.borrow_and_update().clone();
        served.send_replace(newest.map(|link| link.server.clone()));
        if links.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Mutex;

    use axum::http::Response;
    use axum::routing::post;
    use serde_json::{Value, json};
    use sublet_listener::listen;
    use sublet_telemetry::metrics::Refused;

    use super::*;

    /// A certificate in use that no other has.
    pub(crate) fn link() -> Arc<Link> {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let made = Credential::for_peers(NAME, Timestamp::now(), VALIDITY).unwrap();
        Arc::new(Link::of(&Stored::first(made)).unwrap())
    }

    /// An extender that answers others with this router; returns where.
    pub(crate) fn listens(link: &Arc<Link>, router: Router) -> SocketAddr {
        let calls = listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let address = calls.local_addr().unwrap();
        let (_sender, links) = watch::channel(Some(link.clone()));
        let door = Door::new(calls, PEERS, &Refused::default());
        tokio::spawn(answer(door, router, links, std::future::pending()));
        address
    }

    #[tokio::test]
    async fn only_extenders_are_answered_and_only_extenders_are_asked() {
        let ours = link();
        let at = listens(&ours, Router::new().route("/x", post(async || "yes")));
        let ask = async |link: &Link| link.call(at, Method::POST, "/x", Bytes::new(), false).await;
        let (status, body) = ask(&ours).await.unwrap();
        assert_eq!((status, body), (StatusCode::OK, Bytes::from_static(b"yes")));

        // One of another authority trusts nobody here, and is not trusted.
        let stranger = link();
        assert!(ask(&stranger).await.is_err());
        // It would trust ours, but nobody trusts it.
        let one = Credential::for_peers(NAME, Timestamp::now(), VALIDITY).unwrap();
        let other = Credential::for_peers(NAME, Timestamp::now(), VALIDITY).unwrap();
        let server = Arc::new(Link::of(&Stored::first(one.clone())).unwrap());
        let at = listens(&server, Router::new().route("/x", post(async || "yes")));
        let mut believer = Stored::first(other);
        believer.former_authority = Some(one.authority.clone());
        let believer = Link::of(&believer).unwrap();
        let refused = believer.call(at, Method::POST, "/x", Bytes::new(), false);
        assert!(refused.await.is_err());
        // It is trusted, and has another name.
        let named = Credential::for_peers("other.sublet.internal", Timestamp::now(), VALIDITY);
        let named = Arc::new(Link::of(&Stored::first(named.unwrap())).unwrap());
        let at = listens(&named, Router::new().route("/x", post(async || "yes")));
        let refused = named.call(at, Method::POST, "/x", Bytes::new(), false);
        assert!(refused.await.is_err());
    }

    /// The result of `look_after`, and the writes that it sends, if the API server has this Secret.
    async fn looked_after(secret: Option<Value>) -> (anyhow::Result<Duration>, Vec<String>) {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let writes = Arc::new(Mutex::new(Vec::new()));
        let noted = writes.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let read = request.method() == Method::GET;
            if !read {
                let write = format!("{} {}", request.method(), request.uri().path());
                noted.lock().unwrap().push(write);
            }
            let (code, body) = match &secret {
                Some(secret) if read => (200, secret.clone()),
                None if read => (404, json!({ "code": 404, "reason": "NotFound" })),
                _ => (200, json!({})),
            };
            let answer = Response::builder().status(code);
            let answer = answer.body(Body::from(body.to_string()));
            std::future::ready(Ok::<_, std::io::Error>(answer.unwrap()))
        });
        let client = Client::new(service, "default");
        let api: Api<Secret> = Api::namespaced(client.clone(), "ns");
        let outcome = look_after(&client, &api, "ns", WRITE_LIMIT).await;
        let writes = writes.lock().unwrap().clone();
        (outcome, writes)
    }

    #[tokio::test]
    async fn the_secret_is_filled_and_never_made() {
        let secret = |more: Value| {
            let meta = json!({ "name": SECRET, "namespace": "ns", "resourceVersion": "7" });
            let mut secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": meta });
            secret
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            Some(secret)
        };
        let put = format!("PUT /api/v1/namespaces/ns/secrets/{SECRET}");
        for (there, writes, told) in [
            (secret(json!({})), vec![put.clone()], ""),
            (
                secret(json!({ "data": { "certificates.json": "e30=" } })),
                vec![put],
                "",
            ),
            (None, vec![], "apply 19-secrets.yaml again"),
            (
                secret(json!({ "type": "kubernetes.io/tls" })),
                vec![],
                "is of type kubernetes.io/tls",
            ),
            (secret(json!({ "immutable": true })), vec![], "is immutable"),
        ] {
            let (outcome, sent) = looked_after(there.clone()).await;
            assert_eq!(sent, writes, "{there:?}");
            let said = outcome
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert!(
                said.contains(told) && said.is_empty() == told.is_empty(),
                "{said}"
            );
        }
    }
}
