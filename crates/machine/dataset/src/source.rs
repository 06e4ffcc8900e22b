//! Sources of data sets, behind one small trait; a file each.

use std::fmt;

use sublet_cache::SourceFault;

use crate::crew::StopFlag;
use crate::tree::{SourceTree, TreeEntry};

pub(crate) mod open;
mod posix;

/// A place where data sets come from.
pub(crate) trait DataSource: fmt::Debug + Send + Sync {
    /// Its name, with all that tells it from another: nobody gets the bytes of a source of another
    /// name.
    fn name(&self) -> String;

    /// Everything in it.
    ///
    /// # Errors
    /// It cannot be read, an entry of it cannot be, or `stop` was set.
    fn list(&self, stop: &StopFlag) -> Result<SourceTree, SourceFault>;

    /// Appends bytes of a file, from `offset` on, to `buffer` until it is full to its capacity of
    /// `length` more bytes. The file must be as it was listed, before and after.
    ///
    /// # Errors
    /// It cannot be read, or it changed.
    fn read(
        &self,
        path: &[u8],
        entry: &TreeEntry,
        offset: u64,
        length: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<(), SourceFault>;
}
