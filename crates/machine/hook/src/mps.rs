//! MPS's variables for a job that MPS holds to its limit of compute time.
//!
//! MPS has the limit of a client from the client's environment, which the program can change. So
//! the driver is told the job's terms, whatever the program said before. A program may ask for
//! less. R555 reads the folder in `cuInit`; when a driver reads the percentage was not seen.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use sublet_abi::settings::MPS_PIPES;

/// The folder with the daemon's sockets.
const PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// The part of the multiprocessors, in percent.
const PERCENT: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// Lets a context of a client have another part than the client.
const BY_CONTEXT: &str = "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING";

/// Returns the variables of a job with this limit, and their values; `None` is a variable that must
/// not be set. `folder` is that of the tenant's socket, beside which MPS's sockets are.
#[must_use]
pub fn terms(limit: u32, folder: Option<PathBuf>) -> Vec<(&'static str, Option<OsString>)> {
    let own = std::env::var_os(PERCENT);
    let percent = least(limit, own.as_deref().and_then(OsStr::to_str));
    let mut terms = vec![(PERCENT, Some(OsString::from(percent))), (BY_CONTEXT, None)];
    let pipe = folder.and_then(|folder| {
        let mut pipes = MPS_PIPES.iter().map(|place| folder.join(place));
        pipes.find(|pipe| pipe.is_dir())
    });
    if let Some(pipe) = pipe {
        terms.push((PIPE, Some(pipe.into_os_string())));
    }
    terms
}

/// Returns the program's own percentage if it is a lower one, else the limit.
fn least(limit: u32, own: Option<&str>) -> String {
    let own = own.filter(|own| {
        let percent: Option<f64> = own.trim().parse().ok();
        percent.is_some_and(|percent| percent > 0.0 && percent < f64::from(limit))
    });
    own.map_or_else(|| limit.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_ask_for_less_and_never_for_more() {
        for (own, told) in [
            (None, "30"),
            (Some("10"), "10"),
            (Some("7.5"), "7.5"),
            (Some("30"), "30"),
            (Some("100"), "30"),
            (Some("0"), "30"),
            (Some("-5"), "30"),
            (Some("NaN"), "30"),
            (Some("inf"), "30"),
            (Some(""), "30"),
            (Some("all"), "30"),
        ] {
            assert_eq!(least(30, own), told, "{own:?}");
        }
    }

    #[test]
    fn the_sockets_are_found_on_a_machine_and_in_a_container() {
        let base = tempfile::tempdir().expect("a folder");
        let folder = base.path().join("tenant");
        std::fs::create_dir(&folder).expect("a folder");
        let pipe = || {
            let terms = terms(30, Some(folder.clone()));
            let found = terms.into_iter().find(|(name, _)| *name == PIPE);
            found.and_then(|(_, pipe)| pipe).map(PathBuf::from)
        };
        assert_eq!(pipe(), None);
        std::fs::create_dir(base.path().join("mps")).expect("a folder");
        assert_eq!(pipe(), Some(folder.join("../mps")));
        std::fs::create_dir_all(folder.join("mps/pipe")).expect("a folder");
        assert_eq!(pipe(), Some(folder.join("mps/pipe")));
        assert_eq!(terms(30, None).len(), 2);
    }
}
