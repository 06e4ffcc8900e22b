//! Commands in hints and notes, as the user can paste them: the program has the name by which it
//! was called, every word is quoted for a shell if it must be, and the command is on one line.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Name by which this program was called.
pub(crate) fn program() -> String {
    called(std::env::args_os().next())
}

fn called(name: Option<OsString>) -> String {
    let name = name.unwrap_or_default();
    match Path::new(&name).file_name() {
        None => "sublet".to_owned(),
        // kubectl gives its plugins their whole paths.
        Some(file) if file == "kubectl-sublet" => "kubectl sublet".to_owned(),
        Some(file) if file == "kubectl-inspect-gpushare" => "sublet".to_owned(),
        Some(_) => word(&name),
    }
}

/// Words with blanks between them.
pub(crate) fn line<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> String {
    let words = words.into_iter().map(word);
    words.collect::<Vec<_>>().join(" ")
}

/// One word for a shell.
pub(crate) fn word(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref();
    match word.to_str() {
        Some(text) if is_plain(text) => text.to_owned(),
        Some(text) if !text.contains(char::is_control) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        _ => escaped(word.as_bytes()),
    }
}

/// True if a shell takes every character of it literally.
fn is_plain(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "%+,-./:=@_^".contains(c);
    // A `^` at the beginning makes a shell change the line before; a `=` makes zsh look for a
    // program.
    !text.is_empty() && text.chars().all(is_plain) && !text.starts_with(['^', '='])
}

/// The bytes as escapes, if some have no letter, or a terminal acts on one. Not every shell knows
/// this form; bash, zsh and ksh do.
fn escaped(bytes: &[u8]) -> String {
    let mut text = "$'".to_owned();
    for byte in bytes {
        match byte {
            b'\'' | b'\\' => {
                text.push('\\');
                text.push(char::from(*byte));
            }
            b' '..=b'~' => text.push(char::from(*byte)),
            // Three digits always: what follows may be one too.
            byte => {
                let _never_fails = write!(text, "\\{byte:03o}");
            }
        }
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_words_stay_as_they_are() {
        for (given, expected) in [
            ("train.py", "train.py"),
            ("--lr=1e-3", "--lr=1e-3"),
            ("2x16GiB,context=0MiB", "2x16GiB,context=0MiB"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("$HOME", "'$HOME'"),
            ("~", "'~'"),
            ("2>x", "'2>x'"),
            ("=ls", "'=ls'"),
            ("größe", "'größe'"),
            ("a\nb", r"$'a\012b'"),
            ("\u{1b}[2J'1", r"$'\033[2J\'1'"),
        ] {
            assert_eq!(word(given), expected, "{given:?}");
        }
        let words = ["sublet", "run", "--", "echo", "a b"].map(OsStr::new);
        assert_eq!(line(words), "sublet run -- echo 'a b'");
    }

    #[test]
    fn the_program_is_called_as_it_was() {
        let check = |name: &str| called(Some(name.into()));
        assert_eq!(check("sublet"), "sublet");
        assert_eq!(check("./target/debug/sublet"), "./target/debug/sublet");
        assert_eq!(check("/my tools/sublet"), "'/my tools/sublet'");
        assert_eq!(check("/usr/bin/kubectl-sublet"), "kubectl sublet");
        assert_eq!(called(None), "sublet");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_shell_reads_what_was_meant(bytes in prop::collection::vec(1u8.., 0..40)) {
            let script = format!("printf %s {}", word(OsString::from_vec(bytes.clone())));
            prop_assert!(!script.contains('\n'));
            let said = Command::new("bash").args(["-c", &script]).output().unwrap();
            prop_assert_eq!(said.stdout, bytes, "{}", script);
        }
    }
}
