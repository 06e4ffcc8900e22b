//! Ports and plain HTTP on 127.0.0.1.
//!
//! Ports come from below the ephemeral range. So between our check and the component's own bind,
//! no outgoing connection of this machine takes the port. Nothing here leaves loopback, and nothing
//! here speaks TLS: `kubectl` asks components that do.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Linux gives ports from 32768 on to outgoing connections (`ip_local_port_range`).
const PORTS: std::ops::Range<u64> = 20_000..32_000;

/// A port of 127.0.0.1 on which no process listens now, and that was not given out lately: the
/// caller binds it some seconds later.
///
/// # Errors
/// When a thousand tries find none.
pub fn free_port() -> Result<u16> {
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    // Two processes begin at different places: the keys of a `RandomState` are random.
    static BEGIN: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish() >> 1);
    for _ in 0..1000 {
        let place = *BEGIN + GIVEN.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(PORTS.start + place % (PORTS.end - PORTS.start))?;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!(
        "no free port on 127.0.0.1 between {} and {}",
        PORTS.start,
        PORTS.end
    )
}

/// Whether a process listens on the port. This is cheaper than to let kubectl find out.
pub(crate) fn is_open(port: u16) -> Result<()> {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .map(drop)
        .context("nobody listens yet")
}

/// `GET http://127.0.0.1:PORT/PATH`: the status code and the body.
///
/// # Errors
/// When nobody listens, the answer takes more than ten seconds, or it is not HTTP.
pub fn http_get(port: u16, path: &str) -> Result<(u16, String)> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))
        .with_context(|| format!("connect to {address}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    // HTTP/1.0: the server closes after the answer, and sends no chunks. The request goes out in
    // one piece: a server that answers after the first piece and closes would reset the connection
    // at the second piece.
    let request = format!("GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .with_context(|| format!("read http://{address}{path}"))?;
    parse(&answer).with_context(|| format!("http://{address}{path}: the answer is not HTTP"))
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head
        .strip_prefix("HTTP/1.")?
        .split(' ')
        .nth(1)?
        .parse()
        .ok()?;
    Some((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_out_twice_before_it_is_bound() {
        let ports: Vec<u16> = (0..1_000).map(|_| free_port().unwrap()).collect();
        let different: std::collections::BTreeSet<&u16> = ports.iter().collect();
        assert_eq!(different.len(), ports.len());
    }

    #[test]
    fn a_free_port_can_be_bound() {
        let port = free_port().unwrap();
        assert!(PORTS.contains(&u64::from(port)));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 512];
            let read = stream.read(&mut request).unwrap();
            stream
                .write_all(b"HTTP/1.0 503 Not yet\r\nA: b\r\n\r\nsoon")
                .unwrap();
            String::from_utf8_lossy(&request[..read]).into_owned()
        });
        assert_eq!(http_get(port, "/readyz").unwrap(), (503, "soon".to_owned()));
        assert!(
            server
                .join()
                .unwrap()
                .starts_with("GET /readyz HTTP/1.0\r\n")
        );
    }

    #[test]
    fn an_answer_that_is_not_http_is_refused() {
        assert_eq!(parse("SSH-2.0-x\r\n\r\n"), None);
    }
}
