//! Settings that every figure of `sublet-bench simulate` needs.

use std::path::PathBuf;

/// Folders and files of a run, and its size.
#[derive(Debug)]
pub(super) struct Setting {
    /// Few seeds and lists.
    pub(super) quick: bool,
    pub(super) repository: PathBuf,
    /// The product.
    pub(super) sublet: PathBuf,
}
