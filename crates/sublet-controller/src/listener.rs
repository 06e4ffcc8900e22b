//! HTTPS for the API server, from the first certificate to the last call.
//!
//! The API server keeps connections and speaks HTTP/1.1 on them. A connection that is closed while
//! it sends a call loses that call: it cannot know whether the call was seen, and does not repeat
//! it. And a new connection that nobody has accepted yet is lost when the listener closes. So the end
//! has two parts. First every answer says that its connection closes, and the next call comes on
//! another one; the cluster hears that this replica goes, and sends it to another. Only when nobody
//! has called for a while are the listener and all connections closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::http::{HeaderValue, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsConfig, from_tcp_rustls};
use rustls::ServerConfig;
use tokio::sync::watch;

/// How long connections are still taken, and told to close, when the process is to end: at most, and
/// until nobody has called for so long. Endpoints of a Service change within a second or two.
const FAREWELL: Duration = Duration::from_secs(5);
const QUIET: Duration = Duration::from_secs(1);
/// How often is looked whether anybody calls.
const LOOK: Duration = Duration::from_millis(50);
/// How long calls may still take after that.
const DRAIN: Duration = Duration::from_secs(10);

/// Answers calls with the newest certificate until `stopped`, and then those under way.
///
/// # Errors
/// The listener failed.
pub(crate) async fn answer_calls(
    calls: std::net::TcpListener,
    router: Router,
    mut certificate: watch::Receiver<Option<Arc<ServerConfig>>>,
    stopped: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let mut stopped = std::pin::pin!(stopped);
    let first = tokio::select! {
        () = &mut stopped => return Ok(()),
        first = certificate.wait_for(Option::is_some) => first.ok().and_then(|first| first.clone()),
    };
    let first = first.context("nobody looks for a certificate")?;
    let tls = RustlsConfig::from_config(first);
    let reload = tls.clone();
    tokio::spawn(async move {
        while certificate.changed().await.is_ok() {
            if let Some(next) = certificate.borrow_and_update().clone() {
                reload.reload_from_config(next);
            }
        }
    });
    tracing::info!(address = ?calls.local_addr().ok(), "listening");
    let ending = Arc::new(AtomicBool::new(false));
    let n_answers = Arc::new(AtomicU64::new(0));
    let (told, counted) = (ending.clone(), n_answers.clone());
    let router = router.layer(map_response(move |answer: Response| {
        counted.fetch_add(1, Ordering::Relaxed);
        let last = told.load(Ordering::Relaxed);
        std::future::ready(if last { closing(answer) } else { answer })
    }));
    let handle = Handle::new();
    let server = from_tcp_rustls(calls, tls)
        .context("cannot listen")?
        .handle(handle.clone())
        .serve(router.into_make_service());
    let mut server = tokio::spawn(server);
    tokio::select! {
        () = &mut stopped => {}
        ended = &mut server => {
            return ended.context("the listener failed")?.context("the listener failed");
        }
    }
    ending.store(true, Ordering::Relaxed);
    let all_gone = async {
        let mut quiet = Duration::ZERO;
        while quiet < QUIET {
            let before = n_answers.load(Ordering::Relaxed);
            tokio::time::sleep(LOOK).await;
            let is_quiet =
                handle.connection_count() == 0 && n_answers.load(Ordering::Relaxed) == before;
            quiet = if is_quiet {
                quiet + LOOK
            } else {
                Duration::ZERO
            };
        }
    };
    // Who has not called by then probably will not call in the next millisecond.
    let _gone = tokio::time::timeout(FAREWELL, all_gone).await;
    handle.graceful_shutdown(Some(DRAIN));
    server
        .await
        .context("the listener failed")?
        .context("the listener failed")
}

fn closing(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// Until SIGTERM or Ctrl-C.
pub(crate) async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        return;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;

    use axum::routing::post;
    use jiff::Timestamp;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
    use sublet_replicas::credentials::Credential;

    use super::*;

    type Caller = BufReader<StreamOwned<ClientConnection, TcpStream>>;

    fn caller(port: u16, credential: &Credential) -> Caller {
        let mut trusted = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(credential.authority.as_bytes()) {
            trusted.add(authority.unwrap()).unwrap();
        }
        let config = ClientConfig::builder()
            .with_root_certificates(trusted)
            .with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        BufReader::new(StreamOwned::new(session, stream))
    }

    /// The head of the answer to one call, in small letters.
    fn call(caller: &mut Caller) -> String {
        let request = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n";
        caller.get_mut().write_all(request).unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let read = caller.read_line(&mut head).unwrap();
            assert_ne!(read, 0, "no answer, but the end: {head:?}");
        }
        head.to_lowercase()
    }

    #[tokio::test]
    async fn a_connection_is_told_that_it_closes_before_it_is_closed() {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let names = ["127.0.0.1".to_owned()].into();
        let hour = Duration::from_secs(3600);
        let credential = Credential::make(&names, Timestamp::now(), hour).unwrap();
        let (_certificates, known) = watch::channel(Some(credential.server_config().unwrap()));
        let calls = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        calls.set_nonblocking(true).unwrap();
        let port = calls.local_addr().unwrap().port();
        let (stop, stopping) = tokio::sync::oneshot::channel::<()>();
        let router = Router::new().route("/", post(async || ()));
        let serving = tokio::spawn(answer_calls(calls, router, known, async {
            let _told = stopping.await;
        }));
        let called = tokio::task::spawn_blocking(move || {
            let mut lasting = caller(port, &credential);
            let before = call(&mut lasting);
            assert!(!before.contains("connection: close"), "{before}");
            stop.send(()).unwrap();
            // It may take a moment to hear of the end; each call until then is answered.
            let after = loop {
                let head = call(&mut lasting);
                if head.contains("connection: close") {
                    break head;
                }
            };
            assert!(after.starts_with("http/1.1 200"), "{after}");
            let mut rest = Vec::new();
            lasting.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, [0; 0]);
        });
        called.await.unwrap();
        serving.await.unwrap().unwrap();
    }
}
