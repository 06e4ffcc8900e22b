//! What a listener takes from its callers, in numbers.

use std::time::Duration;

/// The limits of one listener.
#[derive(Debug, Clone)]
pub struct Limits {
    /// What the listener is called in metrics and logs.
    pub name: &'static str,
    /// Connections at a time. Those that come when there are as many wait in the kernel, and one that
    /// keeps us waiting makes room.
    pub connections: usize,
    /// How long TLS may take to begin.
    pub handshake: Duration,
    /// How long the head of a call may take, from its first byte; of the first call, from the
    /// connection's begin.
    pub head: Duration,
    /// The bytes that are read ahead: no head is larger.
    pub head_size: usize,
    /// How long the body of a call may take, room for it included.
    pub body: Duration,
    /// The largest body.
    pub body_size: usize,
    /// How long a caller may take to read an answer.
    pub answer: Duration,
    /// How long a connection may wait for its next call.
    pub idle: Duration,
    /// What all bodies and answers may hold at a time, in bytes.
    pub held: usize,
    /// What reading a whole body may hold, in bytes, itself included.
    pub weigh: fn(&[u8]) -> usize,
    /// How long a connection may keep us waiting before another may take its place.
    pub grace: Duration,
    /// How long an answer may take to be found before another connection may take its place.
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
