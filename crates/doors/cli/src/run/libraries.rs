//! Our libraries as commands find them: inside the executable or beside it, copied to this user's
//! run folder or cache. `sublet_arbiter::libraries` copies them; this module has the places,
//! and advice for a failed copy. Root's come to the machine's cache before root's own: a program of
//! root's job may become another user before it loads them, who cannot look into root's home.

use std::path::{Path, PathBuf};

use anyhow::Context;
pub(super) use sublet_arbiter::libraries::Interposer;
use sublet_arbiter::libraries::{Carried, LibraryError, LibrarySource, Store};

use crate::answer::Advised;
use crate::machine::Machine;

/// Folder of the machine's caches, in which root has the libraries where nothing can be loaded from
/// its run folder.
const ROOTS_CACHE: &str = "/var/cache";

/// The interposer's files.
pub(super) fn interposer(store: &Store) -> Result<Interposer, Advised> {
    store.interposer().map_err(advised)
}

/// The fake driver's files: CUDA and NVML.
pub(crate) fn fake_driver(store: &Store) -> Result<(PathBuf, PathBuf), Advised> {
    store.fake_driver().map_err(advised)
}

/// The demonstration's programs.
pub(crate) fn workload(store: &Store) -> Result<PathBuf, Advised> {
    store.workload().map_err(advised)
}

fn advised(error: LibraryError) -> Advised {
    let hint = match &error {
        LibraryError::Missing { .. } => {
            "it belongs beside the executable; in a checkout, `cargo build --release` puts it \
             there"
        }
        LibraryError::Unreadable { .. } => "may this user read it?",
        LibraryError::NoFolder { .. } => {
            "SUBLET_RUNTIME_DIR can name a folder that this user can write, with room, and that \
             programs can be run from"
        }
    };
    let advised = Advised::new(error.to_string(), hint);
    match error {
        LibraryError::Unreadable { cause, .. } => advised.caused_by(cause),
        LibraryError::Missing { .. } | LibraryError::NoFolder { .. } => advised,
    }
}

/// The store of this executable, for this user and environment.
pub(crate) fn usual_store(
    machine: &Machine,
    carried: Option<&'static Carried>,
) -> anyhow::Result<Store> {
    let executable = std::env::current_exe().context("cannot tell where sublet itself is")?;
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = || set("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let cache = cache.filter(|cache| cache.is_absolute());
    let is_root = rustix::process::geteuid().is_root();
    let all_users = is_root.then(|| PathBuf::from(ROOTS_CACHE));
    let caches: Vec<PathBuf> = all_users.into_iter().chain(cache).collect();
    let source = LibrarySource::of(&executable, carried);
    Ok(store(source, machine.run_folder(), &caches))
}

/// A store with the usual places. `caches` are the folders of caches, the best first.
fn store(source: LibrarySource, run_folder: &Path, caches: &[PathBuf]) -> Store {
    let mut targets = vec![run_folder.join("libraries")];
    targets.extend(caches.iter().map(|cache| cache.join("sublet/libraries")));
    Store::new(source, targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_told_with_all_places_and_a_hint() {
        let base = tempfile::tempdir().unwrap();
        let deps = base.path().join("debug/deps");
        let source = LibrarySource::of(&deps.join("sublet-1"), None);
        let store = store(source, &base.path().join("run"), &[]);
        let text = crate::error_text(&interposer(&store).unwrap_err().into());
        let places = format!(
            "error: libsublet_cuda.so is in none of {}, {}, {}\nhint: it belongs beside",
            deps.display(),
            base.path().join("debug").display(),
            base.path().join("debug/lib/sublet").display()
        );
        assert!(text.starts_with(&places), "{text}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_told_with_its_reason() {
        let base = tempfile::tempdir().unwrap();
        let bin = base.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for name in ["cuda", "nvml", "preload"] {
            std::fs::write(bin.join(format!("libsublet_{name}.so")), "x").unwrap();
        }
        let blocked = base.path().join("file");
        std::fs::write(&blocked, "").unwrap();
        let cache = base.path().join("cache");
        let source = LibrarySource::of(&bin.join("sublet"), None);
        let found = interposer(&store(
            source.clone(),
            &blocked,
            std::slice::from_ref(&cache),
        ));
        assert!(found.unwrap().cuda.starts_with(&cache));
        let error = interposer(&store(source, &blocked, &[]));
        let text = crate::error_text(&error.unwrap_err().into());
        assert!(
            text.starts_with("error: there is no folder for our libraries: "),
            "{text}"
        );
        assert!(text.contains("\nhint: SUBLET_RUNTIME_DIR"), "{text}");
    }
}
