//! Words about failures, for people.

use std::io;

/// The words of the system, without its number.
pub(crate) fn system_text(error: &io::Error) -> String {
    let text = error.to_string().to_lowercase();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_owned()
}
