//! The client that calls extenders: one connection that stays open, as cheap as it can be.
//!
//! A client that does little itself measures the server. It reads only answers that give their
//! length, and connects only to loopback.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Bytes to and from a server.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A connection that stays open from call to call.
pub(crate) struct Caller {
    stream: Box<dyn Stream>,
    request: Vec<u8>,
    answer: Vec<u8>,
}

impl Caller {
    /// Connects to a port of 127.0.0.1.
    pub(crate) fn connect(port: u16) -> Result<Caller> {
        Ok(Caller::over(open(port)?))
    }

    /// The same over TLS, to a server that this authority (PEM) has signed.
    pub(crate) fn connect_tls(port: u16, authority: &str) -> Result<Caller> {
        let mut trusted = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
            trusted.add(certificate?)?;
        }
        let config = ClientConfig::builder()
            .with_root_certificates(trusted)
            .with_no_client_auth();
        let name = ServerName::from(std::net::IpAddr::from(Ipv4Addr::LOCALHOST));
        let session = ClientConnection::new(Arc::new(config), name)?;
        Ok(Caller::over(StreamOwned::new(session, open(port)?)))
    }

    fn over(stream: impl Stream + 'static) -> Caller {
        Caller {
            stream: Box::new(stream),
            request: Vec::new(),
            answer: Vec::new(),
        }
    }

    /// Makes one call. Returns how long it took, from the first byte out to the last byte in, and
    /// the answer's body.
    pub(crate) fn post(&mut self, path: &str, body: &[u8]) -> Result<(Duration, &[u8])> {
        self.request.clear();
        write!(
            self.request,
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        )?;
        self.request.extend_from_slice(body);
        self.answer.clear();
        let started = Instant::now();
        self.stream.write_all(&self.request)?;
        self.stream.flush()?;
        let (start, end) = self.read_answer().with_context(|| format!("POST {path}"))?;
        let took = started.elapsed();
        let body = &self.answer[start..end];
        ensure!(
            self.answer.starts_with(b"HTTP/1.1 200"),
            "POST {path}: {}",
            String::from_utf8_lossy(&self.answer[..end.min(500)])
        );
        Ok((took, body))
    }

    /// Reads until the whole body is there; returns where the body starts and ends in `answer`.
    fn read_answer(&mut self) -> Result<(usize, usize)> {
        let mut span = None;
        let mut chunk = vec![0; 256 << 10];
        loop {
            let read = self.stream.read(&mut chunk)?;
            ensure!(
                read > 0,
                "the connection was closed in the middle of an answer"
            );
            self.answer.extend_from_slice(&chunk[..read]);
            if span.is_none() {
                span = body_span(&self.answer)?;
            }
            if let Some((start, end)) = span
                && self.answer.len() >= end
            {
                return Ok((start, end));
            }
        }
    }
}

fn open(port: u16) -> Result<TcpStream> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        .with_context(|| format!("connect to 127.0.0.1:{port}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

/// Start and end of an answer's body; `None` until the whole head has arrived.
fn body_span(answer: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(at) = answer.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&answer[..at])?;
    for line in head.lines() {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            let length: usize = value.trim().parse()?;
            return Ok(Some((at + 4, at + 4 + length)));
        }
    }
    bail!("the answer does not say its length: {head}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_is_found_by_its_length() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-length: 2\r\n\r\nok";
        assert_eq!(body_span(&answer[..20]).unwrap(), None);
        let (start, end) = body_span(answer).unwrap().unwrap();
        assert_eq!(&answer[start..end], b"ok");
        assert!(body_span(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
