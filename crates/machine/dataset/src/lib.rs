//! The data set cache of a node: brings data sets from their sources into a store on the node's own
//! disk, and shows them to programs as folders that nobody can change.
//!
//! [`sublet_cache`] decides; this crate acts. [`DatasetServer`] is the process, [`DatasetClient`]
//! the commands' end of its socket.
//!
//! # Modules
//! Suggested reading order. Pure: `words`, `block`, `bytes` (numbers out of bytes), `tree` (what a source has),
//! `hash` (BLAKE3 by pieces), `layout` (which file goes into which pack), `manifest` and `image` (a
//! version as bytes, for us and for the kernel). Acting: `crew` (threads that may hang), `source`
//! with a file for each kind, `disk`, `pack` and `sink` (where bytes go), `fetch` (many readers, one
//! writer), `view` (mounts), `check` (wrong bytes), `store` (all of these on one disk), `record`
//! (what is in it). The process: `wire` (messages), `keeper` (the loop), `server`, `client`. `outside` is for the fuzzer.

mod block;
mod bytes;
mod check;
mod client;
mod crew;
mod disk;
mod fetch;
mod hash;
mod image;
mod keeper;
mod layout;
mod manifest;
pub mod outside;
mod pack;
mod record;
mod server;
mod sink;
mod source;
mod store;
#[cfg(test)]
mod tests;
mod tree;
mod view;
mod wire;
mod words;

pub use client::{DatasetClient, DatasetClientError};
pub use server::{DatasetError, DatasetServer, dataset_socket};
pub use view::ViewMode;
pub use wire::{
    DatasetList, DatasetReply, DatasetRequest, DatasetRow, DatasetStore, check_dataset_name,
};
