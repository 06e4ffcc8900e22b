//! Folders of the cache that are filled once: a folder that exists is complete.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result};
use sublet_testbed::default_cache;

use crate::screen::heading;

/// A folder in the cache's folder `kind`, filled by `fetch` if it is missing. `fetch` has the rest
/// of its folder's parent for itself. `what` tells the waiting user what is being fetched.
pub(crate) fn folder(
    kind: &str,
    name: &str,
    what: &str,
    fetch: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let cache = default_cache()?.join(kind);
    let place = cache.join(name);
    if place.is_dir() {
        return Ok(place);
    }
    heading(what);
    let work = cache.join(format!("work-{}", process::id()));
    fs::create_dir_all(&work).with_context(|| format!("make {}", work.display()))?;
    let unpacked = work.join("unpacked");
    let fetched = fetch(&unpacked).and_then(|()| {
        fs::rename(&unpacked, &place).with_context(|| format!("make {}", place.display()))
    });
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
    fetched.map(|()| place)
}
