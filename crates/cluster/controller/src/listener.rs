//! HTTPS for the API server: the limits on its calls, and the other clients that are answered.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustls::server::danger::ClientCertVerifier;
use sublet_listener::{Ending, Limits};
use sublet_replicas::credentials::verifier;

/// Limits on the calls of API servers.
///
/// An API server speaks HTTP/1.1 to webhooks, so each call under way has a connection. It has at
/// most 600 calls of all kinds under way (400 and 200, its flags' defaults), keeps 25 connections
/// for its next calls, and closes the others at once. So a burst beyond the limit waits in the
/// kernel for some milliseconds, and is not refused. Memory is held by bodies and by the values
/// parsed from them: the controller's memory is limited, and another 64 MiB must fit beside the
/// data of a leader of a large cluster.
pub(crate) const CALLS: Limits = Limits {
    name: "webhook",
    connections: 512,
    head_size: 32 << 10,
    body_size: BODY_LIMIT,
    held: 64 << 20,
    weigh,
    ..Limits::PAGES
};

/// The largest body: etcd takes 1.5 MiB of an object, an API server 3 MiB of a request, and a review
/// may have the object twice.
const BODY_LIMIT: usize = 8 << 20;

/// The order of the controller's end: endpoints of a Service change within a second or two.
pub(crate) const ENDING: Ending = Ending {
    farewell: Duration::from_secs(5),
    drain: Duration::from_secs(10),
};

/// The memory that a body takes as `serde_json::Value`: an object of one field 632 bytes and its
/// share of a larger one, an element of a list up to 64, and each key and text is an allocation.
/// Counted by punctuation, also of texts, so it is rather too much: 8 MiB of `{"":0},` would be
/// more than 700 MiB, and a review of a usual pod counts half of one.
pub(crate) fn weigh(body: &[u8]) -> usize {
    let parts = body.iter().map(|byte| match byte {
        b'{' => 700,
        b'[' | b',' | b':' => 160,
        _ => 1,
    });
    parts.sum()
}

/// The clients that the webhooks answer: those with a certificate of these authorities.
///
/// # Errors
/// No such file, or one without a certificate.
pub(crate) fn clients(file: &Path) -> anyhow::Result<Arc<dyn ClientCertVerifier>> {
    let read = || verifier(&std::fs::read_to_string(file)?);
    read().with_context(|| format!("no authorities in {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpStream;

    use axum::Router;
    use axum::routing::post;
    use jiff::Timestamp;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
    use sublet_listener::{Certificates, Door, listen};
    use sublet_replicas::credentials::Credential;
    use sublet_telemetry::metrics::Refused;
    use tokio::sync::watch;

    use super::*;

    type Caller = BufReader<StreamOwned<ClientConnection, TcpStream>>;

    fn caller(port: u16, credential: &Credential, shown: Option<&Credential>) -> Caller {
        let mut trusted = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(credential.authority.as_bytes()) {
            trusted.add(authority.unwrap()).unwrap();
        }
        let config = ClientConfig::builder().with_root_certificates(trusted);
        let config = match shown {
            None => config.with_no_client_auth(),
            Some(shown) => {
                let chain = CertificateDer::pem_slice_iter(shown.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(shown.key.as_bytes()).unwrap();
                let chain = chain.collect::<Result<_, _>>().unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        BufReader::new(StreamOwned::new(session, stream))
    }

    fn door(known: Certificates) -> (Door, u16) {
        let calls = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = calls.local_addr().unwrap().port();
        (
            Door::new(calls, CALLS, &Refused::default()).with_tls(known),
            port,
        )
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
        let (_certificates, known) = watch::channel(Some(credential.server_config(None).unwrap()));
        let (door, port) = door(known);
        let (stop, stopping) = tokio::sync::oneshot::channel::<()>();
        let router = Router::new().route("/", post(async || ()));
        let serving = tokio::spawn(door.serve(router, ENDING, async {
            let _told = stopping.await;
        }));
        let called = tokio::task::spawn_blocking(move || {
            let mut lasting = caller(port, &credential, None);
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

    #[tokio::test]
    async fn with_authorities_only_who_shows_their_certificate_is_answered() {
        let _installed = rustls::crypto::ring::default_provider().install_default();
        let hour = Duration::from_secs(3600);
        let names = ["127.0.0.1".to_owned()].into();
        let credential = Credential::make(&names, Timestamp::now(), hour).unwrap();
        let peer = || Credential::for_peers("api-server", Timestamp::now(), hour).unwrap();
        let (server, stranger) = (peer(), peer());
        let file = std::env::temp_dir().join(format!("sublet-client-ca-{}", std::process::id()));
        std::fs::write(&file, &server.authority).unwrap();
        let callers = clients(&file);
        std::fs::remove_file(&file).unwrap();
        let config = credential.server_config(Some(callers.unwrap())).unwrap();
        let (_certificates, known) = watch::channel(Some(config));
        let (door, port) = door(known);
        let router = Router::new().route("/", post(async || ()));
        tokio::spawn(door.serve(router, ENDING, std::future::pending()));
        let asked = tokio::task::spawn_blocking(move || {
            let ask =
                |shown| std::panic::catch_unwind(|| call(&mut caller(port, &credential, shown)));
            assert!(ask(Some(&server)).unwrap().starts_with("http/1.1 200"));
            assert!(ask(None).is_err());
            assert!(ask(Some(&stranger)).is_err());
        });
        asked.await.unwrap();
        assert!(clients(Path::new("/nowhere")).is_err());
        assert!(verifier("no certificate").is_err());
    }

    #[test]
    fn a_body_counts_with_what_it_becomes() {
        let mib = |body: &str| weigh(body.as_bytes()) >> 20;
        let filled = |piece: &str| format!("[{}0]", piece.repeat((8 << 20) / piece.len()));
        assert!(mib(&filled("{\"\":0},")) > 700);
        assert!(mib(&filled("[],")) > 500);
        assert!(mib(&filled("0,")) > 500);
        // Never less than it really becomes.
        for piece in [
            "{\"\":0},",
            "[0],",
            "0,",
            "\"x\",",
            "{\"a\":{},\"b\":[\"c\"]},",
        ] {
            let body = format!("[{}0]", piece.repeat((2 << 20) / piece.len()));
            let grows = || {
                let before = resident();
                let value: serde_json::Value = serde_json::from_str(&body).unwrap();
                let grown = resident().saturating_sub(before);
                drop(value);
                grown
            };
            // Tests beside this one take memory of the same process.
            let grown = (0..5).map(|_| grows()).min().unwrap();
            assert!(grown < weigh(body.as_bytes()), "{piece}: {grown}");
        }
        // A large annotation is as large as it is.
        assert_eq!(mib(&"x".repeat(1 << 20)), 1);
    }

    /// The bytes of this process in memory.
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    }
}
