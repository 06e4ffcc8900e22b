//! Common parts of processes with several replicas: the choice of one replica that writes, and
//! certificates by which they know each other or are known.
//!
//! The crate decides by pure functions and carries out with `sublet_client`. Each process
//! chooses the writes of its leadership, and the callers that trust its certificate.

pub mod credentials;
pub mod leader;
pub mod secret;
