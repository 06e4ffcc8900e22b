//! Signs of life for the person who waits for a benchmark, on standard error. They are never part
//! of a report.

/// Tells the waiting person what is being measured.
pub(crate) fn progress(text: &str) {
    eprintln!("bench: {text}");
}
