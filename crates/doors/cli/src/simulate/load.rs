//! Loads as people write them: `0.9`.

use std::fmt;
use std::str::FromStr;

/// Requested part of the cluster's GPU time, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load(pub(super) u64);

/// Reason why a text is no load.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no load: give a number above 0 and up to 1000, such as 0.9")]
pub(super) struct LoadError(String);

impl FromStr for Load {
    type Err = LoadError;

    fn from_str(text: &str) -> Result<Load, LoadError> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let sizes = (1..=4).contains(&whole.len()) && (1..=6).contains(&part.len());
        if !sizes || !digits(whole) || !digits(part) {
            return Err(LoadError(text.to_owned()));
        }
        let millionths: Option<u64> = format!("{whole}{part:0<6}").parse().ok();
        millionths
            .filter(|millionths| (1..=1_000_000_000).contains(millionths))
            .map(Load)
            .ok_or_else(|| LoadError(text.to_owned()))
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = format!("{:06}", self.0 % 1_000_000);
        match part.trim_end_matches('0') {
            "" => write!(f, "{}", self.0 / 1_000_000),
            part => write!(f, "{}.{part}", self.0 / 1_000_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_load_is_a_decimal_above_0() {
        let of = |text: &str| text.parse::<Load>().map(|load| load.0);
        assert_eq!(of("0.9"), Ok(900_000));
        assert_eq!(of("1"), Ok(1_000_000));
        assert_eq!(of("1000.000000"), Ok(1_000_000_000));
        assert_eq!(of("0.000001"), Ok(1));
        for bad in [
            "",
            "0",
            "0.0",
            "-1",
            "+1",
            ".9",
            "1.",
            "90%",
            "1e2",
            "1000.1",
            "0.0000001",
            "99999",
        ] {
            assert_eq!(of(bad), Err(LoadError(bad.to_owned())), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "[0-9.+e-]{0,9}") {
            if let Ok(load) = text.parse::<Load>() {
                prop_assert_eq!(load.to_string().parse::<Load>(), Ok(load));
                let number: f64 = text.parse().unwrap();
                prop_assert!((number * 1e6 - load.0 as f64).abs() < 1e-3);
            }
        }
    }
}
