//! Every call, in a file, to show a program's use of the driver: `SUBLET_FAKE_TRACE=/tmp/calls`
//! appends one line per call with the thread, the name and the code it gave.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::OnceLock;

/// The variable.
pub(crate) const VARIABLE: &str = "SUBLET_FAKE_TRACE";

static TRACE: OnceLock<Option<File>> = OnceLock::new();

/// Writes down that `function` gave `code`.
pub(crate) fn call(function: &str, code: u32) {
    if let Some(file) = file() {
        let thread = std::thread::current().id();
        write(file, &format!("{thread:?} {function} {code}\n"));
    }
}

/// Writes down something that a reader must know.
pub(crate) fn note(what: &str) {
    if let Some(file) = file() {
        write(file, &format!("note: {what}\n"));
    }
}

fn file() -> Option<&'static File> {
    let file = TRACE.get_or_init(|| {
        let path = std::env::var_os(VARIABLE)?;
        OpenOptions::new().create(true).append(true).open(path).ok()
    });
    file.as_ref()
}

fn write(mut file: &File, line: &str) {
    // A line that cannot be written is lost; the program must not notice.
    let _ = file.write_all(line.as_bytes());
}
