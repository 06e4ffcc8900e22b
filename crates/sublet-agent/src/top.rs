//! What the arbiter measures, for people who are not on the node: the questions of `admin.sock`, and
//! none that changes anything, on the loopback of the agent's pod. Who comes there came by a
//! port-forward, and the API server has asked for that right.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sublet_arbiter::admin::{Reply, Request};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::isolate::supervisor::{IsolationState, IsolationWatch};

/// How many are served at a time; others wait.
const CONNECTIONS: usize = 4;

/// The longest line that is read. Questions are short.
const QUESTION_MAX: u64 = 4096;

/// How long somebody may take for a question, or to read the answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads the flag.
///
/// # Errors
/// It is an address that others can reach.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("`{text}` is no address such as 127.0.0.1:39994"))?;
    if !address.ip().is_loopback() {
        return Err(format!(
            "{address} can be reached without a login; use 127.0.0.1"
        ));
    }
    Ok(address)
}

/// Answers for as long as the process lives.
pub(crate) async fn serve(listener: TcpListener, isolation: IsolationWatch) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // Never an error: it is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let isolation = isolation.clone();
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, isolation).await {
                        debug!(%error, "a question was not answered");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                warn!(%error, "no connection for `sublet top --node`");
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Answers one question after the other.
async fn converse(stream: TcpStream, isolation: IsolationWatch) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    loop {
        let mut line = String::new();
        timeout(
            PATIENCE,
            (&mut read).take(QUESTION_MAX).read_line(&mut line),
        )
        .await??;
        if line.is_empty() {
            return Ok(());
        }
        let isolation = isolation.borrow().clone();
        let reply = spawn_blocking(move || answer(&line, &isolation)).await?;
        let mut text = serde_json::to_vec(&reply)?;
        text.push(b'\n');
        timeout(PATIENCE, write.write_all(&text)).await??;
        if matches!(reply, Reply::Error { .. }) {
            return Ok(());
        }
    }
}

fn answer(line: &str, isolation: &IsolationState) -> Reply {
    let error = |reason: String| Reply::Error { reason };
    let request: Request = match serde_json::from_str(line) {
        Ok(request) => request,
        Err(why) => return error(format!("this is no request: {why}")),
    };
    let isolation = match isolation {
        IsolationState::On(isolation) => isolation,
        IsolationState::Pending(why) => {
            return error(format!(
                "nothing holds containers to their parts now: {why}"
            ));
        }
        IsolationState::Unsupported(_) | IsolationState::Disabled => {
            return error("the agent runs without isolation, so it measures nothing".to_owned());
        }
    };
    let answered = isolation.read(request);
    answered.unwrap_or_else(|why| error(why.to_string()))
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;

    #[test]
    fn only_loopback_will_do() {
        assert_eq!(
            address("127.0.0.1:39994").unwrap().to_string(),
            "127.0.0.1:39994"
        );
        assert!(address("[::1]:39994").is_ok());
        let refused = |text| address(text).unwrap_err();
        assert_eq!(
            refused("0.0.0.0:39994"),
            "0.0.0.0:39994 can be reached without a login; use 127.0.0.1"
        );
        assert!(refused("39994").contains("is no address such as"));
    }

    #[tokio::test]
    async fn a_line_is_answered_whatever_it_is() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_supervisor, isolation) = watch::channel(IsolationState::Disabled);
        tokio::spawn(serve(listener, isolation));
        // More than are served at a time: each is given up after its answer.
        for (line, expected) in [
            ("garbage\n".to_owned(), "this is no request"),
            ("x".repeat(10_000), "this is no request"),
            ("{\"kind\":\"list\"}\n".to_owned(), "without isolation"),
            ("\n".to_owned(), "this is no request"),
            ("{\"kind\":\"shutdown\"}\n".to_owned(), "without isolation"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(line.as_bytes()).await.unwrap();
            let mut said = String::new();
            BufReader::new(&mut stream)
                .read_line(&mut said)
                .await
                .unwrap();
            let reply: Reply = serde_json::from_str(&said).unwrap();
            let Reply::Error { reason } = reply else {
                panic!("{said}");
            };
            assert!(reason.contains(expected), "{reason}");
        }
    }
}
