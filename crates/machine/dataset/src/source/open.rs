//! The kinds of source, and the one that a text names.

use std::path::Path;
use std::sync::Arc;

use sublet_cache::{FaultKind, SourceFault};

use super::DataSource;
use super::posix::PosixSource;

/// Opens the source that a text names: an absolute path.
///
/// # Errors
/// Another text, or a source that cannot be opened.
pub(crate) fn open_source(text: &str) -> Result<Arc<dyn DataSource>, SourceFault> {
    match Path::new(text) {
        path if path.is_absolute() => Ok(Arc::new(PosixSource::open(path)?)),
        _ => Err(SourceFault {
            kind: FaultKind::Lasting,
            text: format!(
                "`{text}` is no source of a data set; give the absolute path of a folder"
            ),
        }),
    }
}
