//! Our processes' TCP listeners: one way for the extender, its stand-in, the controller and the
//! agent.
//!
//! Any process that reaches a port can connect to it, so every listener has [`Limits`] of time,
//! size and number. They never turn away a caller while there is room. If there is none, a
//! connection that keeps us waiting goes: the one that waits longest, of the address with the most.
//! A caller whose calls end in milliseconds is never that one. On loopback a listener can ask the
//! kernel for the calling process's user ([`Callers`]), once for each connection. Refusals are
//! counted and logged.
//!
//! The crate decides nothing about the contents of calls, and keeps none of them.
//!
//! Suggested reading order: limits, lines, stream, caller, door, http.
//!
//! # Modules
//! The listener of extender, stand-in, controller and agent: `limits` of time, size and number;
//! `lines` (all connections of a listener, and who makes room for whom); `caller` (the user of a
//! caller on loopback, as the kernel says); `door` (accept, TLS with the newest certificate);
//! `http` (a call is read whole before a router sees it; connections are told that they close
//! before they are closed). It decides nothing about what is asked.

mod caller;
mod door;
mod http;
mod limits;
mod lines;
mod stream;

#[cfg(test)]
mod tests;

pub use caller::Callers;
pub use door::{Certificates, Door, listen, stopped};
pub use http::Ending;
pub use limits::Limits;
pub use stream::WatchedStream;
