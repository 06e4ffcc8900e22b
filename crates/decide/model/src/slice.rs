//! Length of a job's turns while others wait, as people write it: `2ms`. It exists so that pods, the
//! command line, the socket and a restart read the same texts.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Length of a turn, in whole milliseconds: a switch between two programs costs some ten
/// microseconds, and longer turns than the usual ones would make others wait longer than they are
/// promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SliceLength(Duration);

impl SliceLength {
    /// The shortest that a machine can give.
    const LEAST: Duration = Duration::from_millis(1);

    /// Shortest turn that a machine gives if its site does not say.
    pub const SHORTEST: SliceLength = SliceLength(Duration::from_millis(2));

    /// The usual one, longer than which none is.
    pub const LONGEST: SliceLength = SliceLength(Duration::from_millis(20));

    /// That of a job which has asked for it, within bounds.
    #[must_use]
    pub fn of(asked: Duration) -> SliceLength {
        SliceLength(asked.clamp(SliceLength::LEAST, SliceLength::LONGEST.0))
    }

    /// The time.
    #[must_use]
    pub const fn time(self) -> Duration {
        self.0
    }
}

/// Reason why a text is no length of turns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SliceError {
    /// The text is not a number of milliseconds.
    #[error("`{0}` is no length of turns; write `2ms`")]
    Text(String),
    /// Too short or too long.
    #[error("`{0}` is not between 1ms and {longest}", longest = SliceLength::LONGEST)]
    Range(String),
}

impl FromStr for SliceLength {
    type Err = SliceError;

    fn from_str(text: &str) -> Result<SliceLength, SliceError> {
        let own = || text.trim().to_owned();
        let number = text.trim().strip_suffix("ms").map(str::trim_end);
        let digits = number.filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
        let digits = digits.filter(|digits| !digits.is_empty());
        let digits = digits.ok_or_else(|| SliceError::Text(own()))?;
        // A number that is too large for this is too large for a slice.
        let length = digits.parse().map(Duration::from_millis).ok();
        let range = SliceLength::LEAST..=SliceLength::LONGEST.time();
        let length = length.filter(|length| range.contains(length));
        length
            .map(SliceLength)
            .ok_or_else(|| SliceError::Range(own()))
    }
}

/// `2ms`.
impl fmt::Display for SliceLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_a_number_of_milliseconds_within_bounds() {
        let read = |text: &str| match text.parse::<SliceLength>() {
            Ok(slice) => slice.to_string(),
            Err(error) => error.to_string(),
        };
        for (text, expected) in [
            ("1ms", "1ms"),
            (" 2 ms ", "2ms"),
            ("007ms", "7ms"),
            ("20ms", "20ms"),
            ("0ms", "`0ms` is not between 1ms and 20ms"),
            ("21ms", "`21ms` is not between 1ms and 20ms"),
            (
                "99999999999999999999ms",
                "`99999999999999999999ms` is not between 1ms and 20ms",
            ),
            ("2", "`2` is no length of turns; write `2ms`"),
            ("2s", "`2s` is no length of turns; write `2ms`"),
            ("-2ms", "`-2ms` is no length of turns; write `2ms`"),
            ("+2ms", "`+2ms` is no length of turns; write `2ms`"),
            ("2.5ms", "`2.5ms` is no length of turns; write `2ms`"),
            ("ms", "`ms` is no length of turns; write `2ms`"),
            ("", "`` is no length of turns; write `2ms`"),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
        for known in [SliceLength::SHORTEST, SliceLength::LONGEST] {
            assert_eq!(known.to_string().parse(), Ok(known));
        }
    }
}
