//! Common parts of processes with several replicas: the choice of one replica that writes, and
//! certificates by which they know each other or are known.
//!
//! The crate decides by pure functions and carries out with `sublet_client`. Each process
//! chooses the writes of its leadership, and the callers that trust its certificate.
//!
//! # Modules
//! - `leader`: an election over a Lease; kube has none. `Election` decides, `leader/campaign`
//!   carries out. The epoch of a tenure is the version that its first write gave the Lease.
//! - `leader/simulation` plays three extenders against an API server that misbehaves, with the
//!   election's and the Binding's own code.
//! - `credentials`: the served certificate, the trusted authorities and the steps of a renewal,
//!   as a pure function. `secret`: their store.

pub mod credentials;
pub mod leader;
pub mod secret;
