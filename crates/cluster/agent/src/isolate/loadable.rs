//! Can any container load what it is handed, and does it obey us then? The libraries come from this
//! node, their C library from the container's image. If that is too old, or another library is missing,
//! the loader says so on the program's standard error and goes on without ours, and so without a limit.
//! The image is not known here, but what the libraries need is. Libraries of an earlier version, which
//! an operator may have left for `--library-dir`, are refused: they look for no file of settings, so
//! they would find no arbiter.

use std::path::{Path, PathBuf};

use sublet_abi::settings::PLACES;
use sublet_library::{FLOOR, Needs, names};
use tracing::warn;

use super::IsolationError;

/// Refuses an interposer that does not look for a container's settings. `from`: where the operator
/// has put it.
pub(super) fn check_version(
    interposer: [&Path; 2],
    from: Option<&Path>,
) -> Result<(), IsolationError> {
    let [in_container, _] = PLACES;
    for file in interposer {
        let contents = std::fs::read(file).map_err(IsolationError::io("reading", file))?;
        let why = match names(&contents, in_container) {
            Ok(true) => continue,
            Ok(false) => format!("it does not look for {}", in_container.to_string_lossy()),
            Err(why) => why.to_string(),
        };
        let name = Path::new(file.file_name().unwrap_or(file.as_os_str()));
        let file = from.unwrap_or(Path::new("")).join(name);
        return Err(IsolationError::OtherVersion { file, why });
    }
    Ok(())
}

/// Says in the log what an image must have beyond the oldest that we promise to serve.
pub(super) fn warn_of_needs(files: &[PathBuf]) {
    let wanted = wanted(files).join(", ");
    if !wanted.is_empty() {
        warn!(
            wanted, floor = %FLOOR,
            "a container whose image lacks what is wanted runs without a limit: give the agent \
             libraries for the floor, by a released sublet or by --library-dir"
        );
    }
}

/// Lists the needs of an image that loads all of these, beyond the floor; and the needs that cannot
/// be read.
fn wanted(files: &[PathBuf]) -> Vec<String> {
    let mut all = Needs::default();
    let mut unknown = Vec::new();
    for file in files {
        let contents = std::fs::read(file).map_err(|error| error.to_string());
        let needs = contents.and_then(|bytes| Needs::read(&bytes).map_err(|why| why.to_string()));
        match needs {
            Ok(needs) => {
                all.glibc = all.glibc.max(needs.glibc);
                all.libraries.extend(needs.libraries);
            }
            Err(why) => unknown.push(format!("what {} wants ({why})", file.display())),
        }
    }
    all.libraries.sort();
    all.libraries.dedup();
    let mut wanted = all.beyond_floor();
    wanted.extend(unknown);
    wanted
}

#[cfg(test)]
pub(super) mod tests {
    use std::process::Command;

    use super::*;
    use crate::isolate::FailureKind;

    /// A library with these functions, linked in this way.
    pub(in crate::isolate) fn library(
        folder: &Path,
        name: &str,
        source: &str,
        options: &[&str],
    ) -> PathBuf {
        let (from, to) = (folder.join("a.c"), folder.join(name));
        std::fs::write(&from, source).unwrap();
        // The C compiler is there: building this workspace needs one.
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-nostdlib", "-o"])
            .args([&to, &from])
            .args(options)
            .status();
        assert!(made.unwrap().success());
        to
    }

    #[test]
    fn libraries_that_look_for_no_settings_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path();
        let now = r#"const char place[] = "/usr/local/sublet/lib/settings";"#;
        let now = library(base, "libcuda.so.1", now, &[]);
        let before = r#"const char place[] = "SUBLET_DIR";"#;
        let before = library(base, "libnvidia-ml.so.1", before, &[]);
        check_version([&now, &now], None).unwrap();
        let said = |interposer: [&Path; 2]| {
            let refused = check_version(interposer, Some(Path::new("/opt/old"))).unwrap_err();
            assert_eq!(refused.kind(), FailureKind::Setting);
            refused.to_string()
        };
        let words = "/opt/old/libnvidia-ml.so.1 is not of this version (it does not look for \
                     /usr/local/sublet/lib/settings), and would hold no container to its part: give \
                     --library-dir the libraries of this version, or leave it out";
        assert_eq!(said([&now, &before]), words);
        let text = base.join("libcuda.so");
        std::fs::write(&text, "/usr/local/sublet/lib/settings").unwrap();
        let why = said([&text, &now]);
        assert!(why.contains("(it is no 64-bit ELF file: "), "{why}");
    }

    #[test]
    fn what_an_image_may_lack_is_named_once() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path();
        let any = library(base, "any.so", "int f(void) { return 1; }", &["-lc"]);
        let other = library(base, "libother.so", "int g(void) { return 1; }", &[]);
        let other = other.display().to_string();
        let link = ["-Wl,--no-as-needed", &*other];
        let one = library(base, "one.so", "int h(void) { return 1; }", &link);
        let two = library(base, "two.so", "int i(void) { return 1; }", &link);
        assert_eq!(wanted(std::slice::from_ref(&any)), [""; 0]);
        assert_eq!(wanted(&[any, one, two]), [other]);
    }

    #[test]
    fn what_cannot_be_told_is_told() {
        let base = tempfile::tempdir().unwrap();
        let text = base.path().join("libcuda.so.1");
        std::fs::write(&text, "cuda").unwrap();
        let (absent, told) = (base.path().join("absent"), text.display().to_string());
        let wanted = wanted(&[text, absent]);
        let start = format!("what {told} wants (it is no 64-bit ELF file: ");
        assert!(wanted[0].starts_with(&start), "{wanted:?}");
        assert!(wanted[1].contains("No such file"), "{wanted:?}");
    }
}
