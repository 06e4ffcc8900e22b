//! How our processes listen on TCP: one way for the extender, its stand-in, the controller and the
//! agent.
//!
//! Whoever reaches a port can connect to it, so every listener has [`Limits`] of time, size and number.
//! They never turn away a caller while there is room. Where there is none, the connection that keeps
//! us waiting goes: of the address that has most, the one that waits longest. A caller whose calls
//! end in milliseconds is never that one. On loopback a listener can ask the kernel whose process calls
//! ([`Callers`]), once for each connection. What is refused is counted and logged.
//!
//! It decides nothing about what is asked, and keeps nothing of it.
//!
//! Suggested reading order: limits, lines, stream, caller, door, http.

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
