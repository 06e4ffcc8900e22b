//! What runs on every node: finds the node's devices, offers them to kubelet, and
//! hands each container the cards that the scheduler chose for its pod. The decisions
//! are made elsewhere; this crate only finds out, carries out and reports.

pub mod discover;
pub mod plugin;
