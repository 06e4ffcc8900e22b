//! Durations as people write them in annotations and flags: `90s`, `30m`, `24h`. They end with hours, for
//! a day has not always as many of them.

use jiff::SignedDuration;

/// Milliseconds of a duration; none for another text, or one below zero.
pub(crate) fn milliseconds(text: &str) -> Option<u64> {
    let duration: SignedDuration = text.parse().ok()?;
    u64::try_from(duration.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::milliseconds;

    #[test]
    fn durations_are_read_and_nothing_else() {
        for (text, expected) in [
            ("0s", Some(0)),
            ("1500ms", Some(1_500)),
            ("1h30m", Some(5_400_000)),
            ("24h", Some(86_400_000)),
            ("-1h", None),
            ("1d", None),
            ("60", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(milliseconds(text), expected, "{text}");
        }
    }
}
