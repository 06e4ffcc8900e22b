//! Can any container load what it is handed? The libraries come from this node, their C library
//! from the container's image. If that is too old, or another library is missing, the loader says
//! so on the program's standard error and goes on without ours, and so without a limit. The image
//! is not known here, but what the libraries need is.

use std::path::PathBuf;

use sublet_library::{FLOOR, Needs};
use tracing::warn;

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

/// What an image must have to load all of these, beyond the floor; and what cannot be told.
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
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// A library with these functions, linked in this way.
    fn library(folder: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
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
