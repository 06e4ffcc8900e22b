//! Seeds as people write them: `42`, `42-51`, `1,2,5-9`.

use std::fmt;
use std::str::FromStr;

/// The most seeds of one call: more is a typing error.
const MOST: u64 = 10_000;

/// Seeds, each once, in the order they were given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seeds(pub(super) Vec<u64>);

impl Default for Seeds {
    fn default() -> Seeds {
        Seeds(vec![42])
    }
}

/// Reason why a text names no seeds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum SeedsError {
    #[error("`{0}` is no seed: give numbers and ranges, such as 42-51 or 1,2,5")]
    Number(String),
    #[error("`{0}` goes backwards")]
    Backwards(String),
    #[error("seed {0} is given twice")]
    Twice(u64),
    #[error("more than {MOST} seeds")]
    TooMany,
}

impl FromStr for Seeds {
    type Err = SeedsError;

    fn from_str(text: &str) -> Result<Seeds, SeedsError> {
        let mut seeds: Vec<u64> = Vec::new();
        let number = |text: &str| {
            let number = text.trim().parse();
            number.map_err(|_| SeedsError::Number(text.to_owned()))
        };
        for word in text.split(',') {
            let (first, last) = match word.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(word)?, number(word)?),
            };
            if last < first {
                return Err(SeedsError::Backwards(word.to_owned()));
            }
            if last - first >= MOST {
                return Err(SeedsError::TooMany);
            }
            for seed in first..=last {
                if seeds.contains(&seed) {
                    return Err(SeedsError::Twice(seed));
                }
                seeds.push(seed);
            }
        }
        if seeds.len() as u64 > MOST {
            return Err(SeedsError::TooMany);
        }
        Ok(Seeds(seeds))
    }
}

impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(u64::to_string).collect();
        f.write_str(&words.join(","))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn seeds_are_numbers_and_ranges() {
        let seeds = |text: &str| text.parse::<Seeds>().map(|seeds| seeds.0);
        assert_eq!(seeds("42"), Ok(vec![42]));
        assert_eq!(seeds("3-5, 1"), Ok(vec![3, 4, 5, 1]));
        assert_eq!(seeds("5-3"), Err(SeedsError::Backwards("5-3".to_owned())));
        assert_eq!(seeds("1-3,2"), Err(SeedsError::Twice(2)));
        assert_eq!(seeds("0-18446744073709551615"), Err(SeedsError::TooMany));
        for bad in ["", "x", "1,", "-1", "1--2", "1.5"] {
            assert!(matches!(seeds(bad), Err(SeedsError::Number(_))), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "[0-9,-]{0,12}") {
            if let Ok(seeds) = text.parse::<Seeds>() {
                prop_assert_eq!(seeds.to_string().parse::<Seeds>(), Ok(seeds));
            }
        }
    }
}
