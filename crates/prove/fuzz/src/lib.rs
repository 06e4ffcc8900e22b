//! Every parser of bytes from outside, as a target for a fuzzer.
//!
//! A target takes any bytes, and panics if something is wrong. Every parser must come to its end
//! without a panic. If there is a writer too, a value that was read must survive the way through
//! it. The top of each target's file says what the target is for.
//!
//! To add one: a file in `target/`, its line in [`target::TARGETS`], and a few inputs in `corpus/`.
//! The test below tries all inputs on every machine. `cargo xtask fuzz` looks for others: its build
//! of this crate is the program in `main.rs`, whose feature takes a C++ compiler, so no other build
//! has it.
//!
//! It makes no socket and no process, and reads no file of the machine.
//!
//! # Modules
//! A target of libFuzzer for each parser of bytes from outside, with a corpus: `cargo xtask
//! fuzz`. No normal build needs libFuzzer; `cargo test` reads the corpus.
#![expect(
    unsafe_code,
    reason = "shared pages are an address and a length until their first bytes are checked"
)]

mod object;
pub mod target;

/// A parser of bytes from outside.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// As it is called on the command line; its inputs are in `corpus/` under the same name.
    pub name: &'static str,
    /// Tries some bytes.
    pub run: fn(&[u8]),
}

/// The bytes as text, for parsers that take nothing else.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::target::TARGETS;

    /// The files of a folder, by name.
    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    #[test]
    fn every_input_that_is_kept_is_read() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        for target in TARGETS {
            let inputs = files(&corpus.join(target.name));
            assert!(inputs.len() > 1, "{}: too few inputs", target.name);
            for path in inputs {
                let bytes = fs::read(&path).unwrap();
                println!("{}: {}", target.name, path.display());
                (target.run)(&bytes);
                // Cut off anywhere, and with one byte changed.
                for at in [1, bytes.len() / 2, bytes.len().saturating_sub(1)] {
                    (target.run)(&bytes[..at.min(bytes.len())]);
                }
                let mut changed = bytes.clone();
                if let Some(byte) = changed.get_mut(bytes.len() / 3) {
                    *byte ^= 0x55;
                    (target.run)(&changed);
                }
            }
        }
    }

    #[test]
    fn every_file_of_a_target_is_in_the_list() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let names = |folder: &str| -> BTreeSet<String> {
            let stems = files(&own.join(folder)).into_iter();
            let stem = |path: PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
            stems.map(stem).collect()
        };
        let listed: BTreeSet<String> = TARGETS.iter().map(|one| one.name.to_owned()).collect();
        assert_eq!(listed.len(), TARGETS.len(), "a name is there twice");
        assert_eq!(names("src/target"), listed);
        assert_eq!(names("corpus"), listed);
    }
}
