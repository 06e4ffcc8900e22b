//! Compute time as people write it: `30%` is a promise without a limit, `30%..80%` a promise and
//! a limit. It exists so that the command line, the socket and a restart read the same texts.
//!
//! A text means the same for each class. So `30%` is no limit for a job to which nothing can be
//! promised; `0%..30%` is.

use sublet_model::{AmountError, Milli, parse_share};
use sublet_share::ComputeRange;

/// Reason why a text is no compute time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComputeError {
    /// The text is not one or two percentages.
    #[error("`{0}` is no compute time; write `30%`, `12.5%`, or `30%..80%` with a limit")]
    Text(String),
    /// A promise of nothing, which may be meant as a limit.
    #[error("`{0}` promises nothing; write `0%..50%` for a limit alone")]
    Nothing(String),
    /// A limit of nothing.
    #[error("`{0}` would never let it run; its limit is more than zero")]
    Never(String),
    /// A promise above the limit.
    #[error("`{0}` promises more than its limit; write the smaller one first")]
    Order(String),
    /// More than all of it.
    #[error("`{0}` is more than 100 % of a GPU")]
    MoreThanAll(String),
}

/// Reads `30%` or `30%..80%`, in whole percent or with one decimal. White space is allowed
/// around each part.
///
/// # Errors
/// Any other text; the error says what to write instead.
pub fn parse_compute(text: &str) -> Result<ComputeRange, ComputeError> {
    let own = || text.trim().to_owned();
    let percent = |part: &str| {
        parse_share(part).map_err(|error| match error {
            AmountError::MoreThanAll(_) => ComputeError::MoreThanAll(own()),
            _ => ComputeError::Text(own()),
        })
    };
    let (request, limit) = match text.split_once("..") {
        Some((request, limit)) => (percent(request)?, percent(limit)?),
        None => match percent(text)? {
            Milli::ZERO => return Err(ComputeError::Nothing(own())),
            request => (request, Milli::WHOLE),
        },
    };
    ComputeRange::new(request, limit).ok_or_else(|| match limit {
        Milli::ZERO => ComputeError::Never(own()),
        _ => ComputeError::Order(own()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str) -> String {
        match parse_compute(text) {
            Ok(compute) => compute.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_promise_may_have_a_limit() {
        for (text, expected) in [
            ("30%", "30 %..100 %"),
            (" 12.5 % ", "12.5 %..100 %"),
            ("0.1%", "0.1 %..100 %"),
            ("100%", "100 %..100 %"),
            ("30%..80%", "30 %..80 %"),
            ("30 % .. 80.5 %", "30 %..80.5 %"),
            ("30%..30%", "30 %..30 %"),
            ("0%..50%", "0 %..50 %"),
            ("0%..100%", "0 %..100 %"),
        ] {
            assert_eq!(check(text), expected, "{text}");
        }
    }

    #[test]
    fn each_error_says_what_to_write() {
        for (text, part) in [
            ("0%", "promises nothing"),
            ("0.0%", "promises nothing"),
            ("0%..0%", "never let it run"),
            ("30%..0%", "never let it run"),
            ("60%..30%", "promises more than its limit"),
            ("30.1%..30%", "promises more than its limit"),
            ("101%", "more than 100 %"),
            ("100.1%", "more than 100 %"),
            ("30%..101%", "`30%..101%` is more than 100 %"),
        ] {
            assert!(check(text).contains(part), "{text}: {}", check(text));
        }
        for text in [
            "",
            "%",
            "30",
            "0",
            "30..80",
            "30%..",
            "..80%",
            "30%...80%",
            "30%-80%",
            "30%..60%..80%",
            "30%80%",
            "-30%",
            "30.25%",
            "4GiB",
            "30%..4GiB",
            "0GiB..30%",
            "all",
            "0x10%",
            "1e1%",
        ] {
            assert!(check(text).contains("is no compute time"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_it_prints_is_read_as_the_same(request in 0..=1000_u16, limit in 0..=1000_u16) {
            let milli = |value| Milli::new(value).unwrap();
            let range = ComputeRange::new(milli(request), milli(limit));
            let text = format!("{} .. {}", milli(request), milli(limit));
            prop_assert_eq!(parse_compute(&text).ok(), range);
            prop_assert_eq!(range.is_some(), limit > 0 && request <= limit);
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = check(&text);
        }

        #[test]
        fn an_almost_right_text_is_right_or_refused(
            text in "-?[0-9]{0,3}[.]?[0-9]{0,2} ?%?([.]{1,3}[0-9]{0,4}[.]?[0-9]{0,2}%?)?",
        ) {
            if let Ok(compute) = parse_compute(&text) {
                prop_assert!(compute.request() <= compute.limit());
                prop_assert!(compute.limit() > Milli::ZERO);
            }
        }
    }
}
