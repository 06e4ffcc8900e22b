//! Kubelet's protocol on a node's sockets, as types: the messages and the two gRPC services of the
//! device plugin API, and the few names and limits that go with them. This crate opens no socket
//! and decides nothing; `sublet-agent` serves and calls the declared services.
//!
//! The code in `src/gen` is made from `proto/` by the test `generated` (run it with
//! `UPDATE=1` to rewrite it), so that a build needs neither `protoc` nor a build
//! script.
//!
//! # Modules
//! Messages generated from `proto/`; a test fails when they are stale (`UPDATE=1 cargo test -p
//! sublet-kubelet` writes them).

pub mod deviceplugin;

#[rustfmt::skip]
#[path = "gen/v1beta1.rs"]
#[allow(
    missing_docs,
    unused_qualifications,
    clippy::all,
    clippy::semicolon_if_nothing_returned,
    clippy::too_many_lines,
    reason = "generated; the words are kubelet's, the form is prost's"
)]
mod v1beta1;
