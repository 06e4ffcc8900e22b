//! The accept loop: the clients that may come in, and the certificate that they meet.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustls::ServerConfig;
use sublet_telemetry::metrics::Refused;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::caller::Callers;
use crate::limits::Limits;
use crate::lines::{Line, Lines, Stage};
use crate::stream::WatchedStream;

/// Connections in the kernel's queue: enough for a burst of an API server's calls, each of which
/// has a connection of its own. The kernel drops connections beyond that, and the caller tries
/// again after a second.
const BACKLOG: u32 = 1024;

/// TLS settings: the newest certificate, once there is any.
pub type Certificates = watch::Receiver<Option<Arc<ServerConfig>>>;

/// Listens on an address.
///
/// # Errors
/// Another process has it, or it is not on this machine.
pub fn listen(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listening = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // What ended a moment ago does not keep the address.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listening().with_context(|| format!("cannot listen on {address}"))
}

/// Until SIGTERM or Ctrl-C.
pub async fn stopped() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut term) = signal(SignalKind::terminate()) else {
        return;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// A listener with its rules.
#[derive(Debug)]
pub struct Door {
    listener: TcpListener,
    pub(crate) lines: Arc<Lines>,
    callers: Option<Callers>,
    pub(crate) certificates: Option<Certificates>,
    /// Answer to a stranger.
    pub(crate) sorry: &'static [u8],
}

impl Door {
    /// A door for every caller that reaches it.
    #[must_use]
    pub fn new(listener: TcpListener, limits: Limits, refused: &Refused) -> Door {
        Door {
            listener,
            lines: Lines::new(limits, refused.clone()),
            callers: None,
            certificates: None,
            sorry: b"",
        }
    }

    /// Admits only processes of these users, if it listens on loopback. Elsewhere the kernel cannot
    /// tell the caller's user.
    ///
    /// # Errors
    /// The kernel does not tell it here either.
    pub async fn for_callers(mut self, callers: Callers) -> anyhow::Result<Door> {
        let address = self.listener.local_addr()?;
        if address.ip().to_canonical().is_loopback() {
            let checked = callers.check_kernel().await;
            checked.with_context(|| format!("cannot know who calls {address}"))?;
            self.callers = Some(callers);
        } else {
            let listener = self.lines.limits.name;
            tracing::warn!(listener, %address, "whoever reaches this address may call");
        }
        Ok(self)
    }

    /// With TLS.
    #[must_use]
    pub fn with_tls(mut self, certificates: Certificates) -> Door {
        self.certificates = Some(certificates);
        self
    }

    /// Talks with each caller by itself, in a protocol of its own, for as long as the process lives. A
    /// question and its answer together may take as long as a head.
    pub async fn converse<T, F>(self, talk: T)
    where
        T: Fn(WatchedStream<TcpStream>) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        loop {
            let (stream, line) = self.next(&mut tasks).await;
            line.enter(Stage::Idle);
            let talking = talk(WatchedStream::new(stream, line.clone()));
            tasks.spawn(async move { line.watch(talking).await });
        }
    }

    /// The next caller that may come in.
    pub(crate) async fn next(&self, tasks: &mut JoinSet<()>) -> (TcpStream, Arc<Line>) {
        loop {
            // What has ended is forgotten.
            while tasks.try_join_next().is_some() {}
            let (stream, address) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.pause_after(&error).await;
                    continue;
                }
            };
            let address = address.ip().to_canonical();
            if let Some(callers) = &self.callers
                && let Err(stranger) = callers.judge(&stream)
            {
                tracing::debug!(%stranger, "refused");
                self.lines.refuse("stranger", address);
                // There is room for it, or there is nobody to read it.
                let told = stream.into_std();
                let _told = told.and_then(|mut stream| stream.write(self.sorry));
                continue;
            }
            // Only now, so that nobody makes room for a stranger, or for nobody.
            self.lines.room().await;
            // An answer is one write; nothing is to wait for more.
            let _set = stream.set_nodelay(true);
            let first = match self.certificates {
                Some(_) => Stage::Handshake,
                None => Stage::Head,
            };
            return (stream, self.lines.open(address, first));
        }
    }

    /// A caller that has gone is no error of ours; without descriptors, some must end first.
    async fn pause_after(&self, error: &io::Error) {
        let gone = [
            io::ErrorKind::ConnectionAborted,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::ConnectionRefused,
        ];
        if !gone.contains(&error.kind()) {
            tracing::warn!(%error, listener = self.lines.limits.name, "no connection");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
