//! HTTP/1.1 for a router: reads calls whole before the router sees them, and ends in order.
//!
//! A caller such as an API server keeps connections. If one is closed while it sends a call, the
//! call is lost: the caller cannot know whether the call was seen, and does not repeat it. And a
//! new connection in the kernel's queue is lost when the listener closes. So the end has two parts.
//! First every answer says that its connection closes, and the next call comes on another one. The
//! cluster hears that this replica goes, and sends it to another. After a while without any call
//! the listener and all connections are closed.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use crate::door::{Certificates, Door};
use crate::lines::{Line, Stage};
use crate::stream::WatchedStream;

/// After so long without a call, none comes in the next millisecond either.
const QUIET: Duration = Duration::from_secs(1);
/// Interval of checks for calls.
const LOOK: Duration = Duration::from_millis(50);
/// Memory kept for a larger body before its first byte.
const FIRST: usize = 64 << 10;

/// Answer to a stranger.
pub(crate) const SORRY: &[u8] = b"HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain\r\n\
    content-length: 42\r\nconnection: close\r\n\r\nthis port is for the scheduler beside it.\n";

/// Times of a listener's end.
#[derive(Debug, Clone, Copy)]
pub struct Ending {
    /// Longest time in which connections are still taken, and told to close. It ends early after a
    /// second without a call.
    pub farewell: Duration,
    /// Longest time for calls under way after that.
    pub drain: Duration,
}

/// State that the tasks of all connections share.
struct Shared {
    router: Router,
    /// Answers say that their connection closes.
    closing: AtomicBool,
    /// No more calls are read.
    stop: watch::Sender<bool>,
}

impl Door {
    /// Answers calls until `stopped`, and then as `ending` says.
    ///
    /// # Errors
    /// The source of certificates is gone.
    pub async fn serve(
        mut self,
        router: Router,
        ending: Ending,
        stopped: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        self.sorry = SORRY;
        let mut stopped = std::pin::pin!(stopped);
        if let Some(certificates) = &mut self.certificates {
            let known = tokio::select! {
                () = &mut stopped => return Ok(()),
                known = certificates.wait_for(Option::is_some) => known.is_ok(),
            };
            anyhow::ensure!(known, "nobody looks for a certificate");
        }
        let shared = Arc::new(Shared {
            router,
            closing: AtomicBool::new(false),
            stop: watch::Sender::new(false),
        });
        let mut tasks = JoinSet::new();
        tokio::select! {
            () = &mut stopped => {}
            () = self.take_calls(&shared, &mut tasks) => {}
        }
        shared.closing.store(true, Ordering::Relaxed);
        tokio::select! {
            () = tokio::time::sleep(ending.farewell) => {}
            () = self.until_quiet() => {}
            () = self.take_calls(&shared, &mut tasks) => {}
        }
        drop(self);
        shared.stop.send_replace(true);
        let ended = async { while tasks.join_next().await.is_some() {} };
        // What is still there is cut.
        let _ended = tokio::time::timeout(ending.drain, ended).await;
        Ok(())
    }

    /// Never ends.
    async fn take_calls(&self, shared: &Arc<Shared>, tasks: &mut JoinSet<()>) {
        loop {
            let (stream, line) = self.next(tasks).await;
            let (shared, certificates) = (shared.clone(), self.certificates.clone());
            tasks.spawn(async move {
                let connection = connection(stream, &line, &shared, certificates);
                line.watch(connection).await;
            });
        }
    }

    async fn until_quiet(&self) {
        let mut quiet = Duration::ZERO;
        while quiet < QUIET {
            let (_, before) = self.lines.count();
            tokio::time::sleep(LOOK).await;
            quiet = match self.lines.count() {
                (0, after) if after == before => quiet + LOOK,
                _ => Duration::ZERO,
            };
        }
    }
}

async fn connection(
    stream: TcpStream,
    line: &Arc<Line>,
    shared: &Arc<Shared>,
    certificates: Option<Certificates>,
) {
    let Some(certificates) = certificates else {
        return calls(stream, line, shared).await;
    };
    let newest = certificates.borrow().clone();
    let Some(config) = newest else { return };
    match TlsAcceptor::from(config).accept(stream).await {
        Ok(stream) => {
            line.enter(Stage::Head);
            calls(stream, line, shared).await;
        }
        Err(error) => {
            tracing::debug!(%error, address = %line.address, "no TLS");
            line.lines.refuse("handshake", line.address);
        }
    }
}

/// Answers one call after the other.
async fn calls<S>(stream: S, line: &Arc<Line>, shared: &Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut stop = shared.stop.subscribe();
    let stopped = async move {
        // It fails only if the listener has gone.
        let _told = stop.wait_for(|stop| *stop).await;
    };
    let service = service_fn(move |request| answer(request, line, shared));
    let stream = TokioIo::new(WatchedStream::new(stream, line.clone()));
    let serving = http1::Builder::new()
        // Our own limits count from the first byte of a head.
        .header_read_timeout(None)
        .max_buf_size(line.lines.limits.head_size)
        .serve_connection(stream, service);
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = stopped => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, address = %line.address, "a connection broke");
    }
}

async fn answer(
    request: Request<Incoming>,
    line: &Line,
    shared: &Shared,
) -> Result<Response, Infallible> {
    line.enter(Stage::Body);
    let (head, body) = request.into_parts();
    let mut answer = match read(Body::new(body), line).await {
        Ok(body) => {
            line.enter(Stage::Work);
            let request = Request::from_parts(head, Body::from(body));
            shared.router.clone().oneshot(request).await?
        }
        Err(refusal) => refusal,
    };
    if shared.closing.load(Ordering::Relaxed) {
        close(&mut answer);
    }
    let size = answer.body().size_hint().lower();
    line.enter(Stage::Answer);
    line.hold(
        usize::try_from(size)
            .unwrap_or(usize::MAX)
            .min(line.lines.limits.held),
    )
    .await;
    Ok(answer)
}

fn close(answer: &mut Response) {
    let headers = answer.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
}

/// Reads a whole body. Its buffer counts as held, and at the end the memory that reading it
/// may take.
async fn read(body: Body, line: &Line) -> Result<Bytes, Response> {
    let limits = &line.lines.limits;
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if declared > limits.body_size {
        return Err(too_large(line));
    }
    let mut whole = Vec::new();
    let mut room = 0;
    let mut frames = body.into_data_stream();
    while let Some(frame) = frames.next().await {
        // The caller has gone, or sends nonsense: nobody reads this.
        let frame = frame.map_err(|_| refusal(StatusCode::BAD_REQUEST, "the body broke off"))?;
        let length = whole.len() + frame.len();
        if length > limits.body_size {
            return Err(too_large(line));
        }
        if length > room {
            room = (room * 4).max(FIRST).max(length);
            // No more than is announced; a body in chunks announces nothing.
            room = if declared >= length {
                room.min(declared)
            } else {
                room
            };
            line.hold(room).await;
            whole.reserve_exact(room - whole.len());
        }
        whole.extend_from_slice(&frame);
    }
    let weight = (limits.weigh)(&whole);
    if weight > limits.held {
        return Err(too_large(line));
    }
    if weight > room {
        line.hold(weight).await;
    }
    Ok(whole.into())
}

fn too_large(line: &Line) -> Response {
    line.lines.refuse("size", line.address);
    refusal(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large")
}

/// Nothing after it would be read as a call.
fn refusal(status: StatusCode, why: &'static str) -> Response {
    let mut answer = (status, why).into_response();
    close(&mut answer);
    answer
}
