//! A listener's limits for its callers, in numbers.

use std::time::Duration;

/// The limits of one listener.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Name of the listener in metrics and logs.
    pub name: &'static str,
    /// Maximum number of connections at a time. Further ones wait in the kernel, and a connection
    /// that keeps us waiting makes room.
    pub connections: usize,
    /// Longest time until TLS begins.
    pub handshake: Duration,
    /// Longest time for the head of a call, from its first byte; of the first call, from the
    /// connection's begin.
    pub head: Duration,
    /// The bytes that are read ahead: no head is larger.
    pub head_size: usize,
    /// Longest time for the body of a call, the wait for room included.
    pub body: Duration,
    /// The largest body.
    pub body_size: usize,
    /// Longest time for a caller to read an answer.
    pub answer: Duration,
    /// Longest wait of a connection for its next call.
    pub idle: Duration,
    /// Maximum number of bytes that all bodies and answers may hold at a time.
    pub held: usize,
    /// Bytes that reading a whole body may hold, itself included.
    pub weigh: fn(&[u8]) -> usize,
    /// Time that a connection may keep us waiting before another may take its place.
    pub grace: Duration,
    /// Time for finding an answer before another connection may take the place.
    pub work: Duration,
}

impl Limits {
    /// For pages without a body: health and metrics.
    ///
    /// Kubelet makes a connection for each probe, and a Prometheus keeps one: 64 are more than a
    /// cluster has of both. A page of a cluster with 5,000 nodes is 2 MB.
    pub const PAGES: Limits = Limits {
        name: "pages",
        connections: 64,
        handshake: Duration::from_secs(10),
        head: Duration::from_secs(10),
        head_size: 16 << 10,
        body: Duration::from_secs(10),
        body_size: 0,
        answer: Duration::from_secs(30),
        // Prometheus comes again after a minute, more or less.
        idle: Duration::from_secs(120),
        held: 16 << 20,
        weigh: <[u8]>::len,
        grace: Duration::from_secs(1),
        work: Duration::from_secs(20),
    };
}
