//! Amounts of memory as people write them: `4GiB`, `4G`, `1.5gb`, `512M`, and of a card also
//! `50%`. It exists so that the command line and the socket accept the same texts and refuse the
//! same nonsense.
//!
//! Every unit is a power of 1,024, whatever its letters mean elsewhere: a user who types `4GB`
//! does not want a card's memory counted in two ways.

use sublet_model::{MiB, Milli};
use sublet_share::Amount;

/// Reason why a text is not an amount of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// Not a number with a unit.
    #[error("`{0}` is not an amount of memory; write `4GiB`, `512MiB` or `50%`")]
    Text(String),
    /// The same, for memory that is not on a card and cannot be a percentage.
    #[error("`{0}` is not a size; write `4GiB` or `512MiB`")]
    Size(String),
    /// A number alone may be bytes or GiB; the reader should not have to guess.
    #[error("`{0}` has no unit; write `{0}MiB`, `{0}GiB` or `{0}%`")]
    NoUnit(String),
    /// Nothing.
    #[error("`{0}` is no memory at all; ask for more than zero")]
    Zero(String),
    /// Limits are in whole MiB.
    #[error("`{0}` is less than 1 MiB; ask for more")]
    Small(String),
    /// Below zero.
    #[error("`{0}` is less than nothing; ask for more than zero")]
    Negative(String),
    /// More than a number can be.
    #[error("`{0}` is more memory than any machine has")]
    TooLarge(String),
    /// More than all of it.
    #[error("`{0}` is more than 100 % of a GPU")]
    MoreThanAll(String),
}

/// Reads `4GiB`, `4G`, `1.5GB`, `512Mi`, `50%` or `12.5%`, in small letters too. White space
/// before the unit is allowed. Rounds down to a whole number of MiB.
///
/// # Errors
/// Any other text; the error says what to write instead.
pub fn parse_amount(text: &str) -> Result<Amount, AmountError> {
    let own = || text.trim().to_owned();
    let text = text.trim();
    let begins_unit = |c: char| !matches!(c, '0'..='9' | '.' | '-');
    let (number, unit) = text.split_at(text.find(begins_unit).unwrap_or(text.len()));
    let (is_below_zero, number) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number),
    };
    let unit = unit.trim_start().to_ascii_lowercase();
    let number = Decimal::read(number).ok_or_else(|| AmountError::Text(own()))?;
    let mib_in_unit = match unit.as_str() {
        "" | "%" => 1,
        "m" | "mi" | "mb" | "mib" => 1,
        "g" | "gi" | "gb" | "gib" => 1 << 10,
        "t" | "ti" | "tb" | "tib" => 1 << 20,
        _ => return Err(AmountError::Text(own())),
    };
    if is_below_zero {
        return Err(AmountError::Negative(own()));
    }
    if number.is_zero() {
        return Err(AmountError::Zero(own()));
    }
    match unit.as_str() {
        // No unit makes it more.
        "" => Err(AmountError::NoUnit(own())),
        "%" => percent(number, own),
        _ => match number.times(mib_in_unit).and_then(MiB::new) {
            None => Err(AmountError::TooLarge(own())),
            Some(MiB::ZERO) => Err(AmountError::Small(own())),
            Some(memory) => Ok(Amount::Memory(memory)),
        },
    }
}

/// Reads `4GiB` or `512M`: an amount of memory that is not on a card.
///
/// # Errors
/// Any other text; the error says what to write instead.
pub fn parse_size(text: &str) -> Result<MiB, AmountError> {
    match parse_amount(text) {
        Ok(Amount::Memory(memory)) => Ok(memory),
        Err(
            error @ (AmountError::Zero(_)
            | AmountError::Small(_)
            | AmountError::Negative(_)
            | AmountError::TooLarge(_)),
        ) if !text.contains('%') => Err(error),
        _ => Err(AmountError::Size(text.trim().to_owned())),
    }
}

/// A number with or without a point, exactly.
#[derive(Debug, Clone, Copy)]
struct Decimal {
    /// The number without its point; more than any amount if the text was longer.
    digits: u128,
    /// Number of digits behind the point.
    behind: u32,
}

impl Decimal {
    fn read(text: &str) -> Option<Decimal> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let is_whole = !whole.is_empty() && !part.is_empty();
        if !is_whole || !is_number(whole) || !is_number(part) {
            return None;
        }
        // Behind so many digits nothing makes a difference of one MiB.
        let part = &part[..part.len().min(12)];
        let digits = whole.bytes().chain(part.bytes());
        let digits = digits.fold(0_u128, |sum, digit| {
            let sum = sum.saturating_mul(10);
            sum.saturating_add(u128::from(digit - b'0'))
        });
        let behind = part.len() as u32; // at most 12
        Some(Decimal { digits, behind })
    }

    fn is_zero(self) -> bool {
        self.digits == 0
    }

    /// Multiplies by `factor` and drops the fraction.
    fn times(self, factor: u32) -> Option<u64> {
        let product = self.digits.checked_mul(factor.into())?;
        u64::try_from(product / 10_u128.pow(self.behind)).ok()
    }
}

/// Whole percent, or with one decimal.
fn percent(number: Decimal, own: impl Fn() -> String) -> Result<Amount, AmountError> {
    if number.behind > 1 {
        return Err(AmountError::Text(own()));
    }
    let thousandths = number.times(10).and_then(|all| u16::try_from(all).ok());
    let share = thousandths.and_then(Milli::new);
    let share = share.ok_or_else(|| AmountError::MoreThanAll(own()))?;
    Ok(Amount::Share(share))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str) -> String {
        match parse_amount(text) {
            Ok(amount) => amount.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn amounts_are_read_as_people_write_them() {
        for (expected, texts) in [
            (
                "4096 MiB",
                "4G 4Gi 4GB 4GiB 4g 4gib 4gB 4096M 4096Mi 4096MB 4096MiB 4096m 4.0G 004G",
            ),
            ("1536 MiB", "1.5GiB 1.5G 1.50gb 1536M 1536.0M 1536.9M"),
            ("1048576 MiB", "1T 1TiB 1tb 1024G"),
            ("1126 MiB", "1.1G 1.10009GiB"),
            ("1 MiB", "1M 0.001G 0.000000954T"),
            ("50 %", "50% 50.0% 050%"),
            ("12.5 %", "12.5%"),
            ("100 %", "100%"),
        ] {
            for text in texts.split(' ') {
                assert_eq!(check(text), expected, "{text}");
            }
        }
        assert_eq!(check(" 512 MiB "), "512 MiB");
        assert_eq!(check("12.5 %"), "12.5 %");
        // What it prints is read as the same again.
        assert_eq!(check(&check("1.5g")), "1536 MiB");
        assert_eq!(check(&check("12.5%")), "12.5 %");
    }

    #[test]
    fn nonsense_is_told_from_too_much_and_too_little() {
        for bad in [
            "",
            "GiB",
            "%",
            "x%",
            "1.25%",
            "--1%",
            "+4GiB",
            "4K",
            "4KiB",
            "4B",
            "4GG",
            "4iB",
            "4.GiB",
            ".5GiB",
            "1,5GiB",
            "1.5.GiB",
            "4-GiB",
            "-GiB",
            "4 parsecs",
            "1e3M",
            "0x4G",
            "4G 4G",
            "\u{ff14}G",
            "50%%",
            "nan",
            "inf",
        ] {
            let error = check(bad);
            assert!(error.contains("is not an amount"), "{bad}: {error}");
        }
        for bare in ["4", "1.5", "4096"] {
            let expected = format!("`{bare}` has no unit");
            assert!(check(bare).starts_with(&expected), "{bare}");
        }
        for nothing in ["0", "000", "0.0", "0MiB", "0.00G", "0%"] {
            assert!(check(nothing).contains("more than zero"), "{nothing}");
        }
        assert!(check("0.0001GiB").contains("less than 1 MiB"));
        for below in ["-1", "-1GiB", "-0.5%", "-1.5g"] {
            assert!(check(below).contains("less than nothing"), "{below}");
        }
        for much in [
            "100.1%",
            "99999%",
            "99999999999999999999999999999999999999999%",
        ] {
            assert!(check(much).contains("more than 100 %"), "{much}");
        }
        for much in [
            "99999999999999GiB",
            "99999999999999999999999MiB",
            "999999999999999999999999999999999999999999999999999T",
        ] {
            assert!(check(much).contains("than any machine has"), "{much}");
        }
    }

    #[test]
    fn a_size_is_an_amount_that_no_card_has_a_part_in() {
        for text in ["2 GiB", "2g", "2048M"] {
            assert_eq!(parse_size(text), Ok(MiB::from(2048_u32)), "{text}");
        }
        for bad in ["50%", "0%", "-1%", "101%", "4", "", "4K", "MiB"] {
            let error = parse_size(bad).unwrap_err().to_string();
            assert!(
                error.ends_with("is not a size; write `4GiB` or `512MiB`"),
                "{error}"
            );
        }
        let error = |text: &str| parse_size(text).unwrap_err().to_string();
        assert!(error("0MiB").contains("more than zero"));
        assert!(error("0.5M").contains("less than 1 MiB"));
        assert!(error("-1GiB").contains("less than nothing"));
        assert!(error("99999999999999GiB").contains("than any machine has"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = parse_amount(&text).map_err(|error| error.to_string());
            let _ = parse_size(&text).map_err(|error| error.to_string());
        }

        #[test]
        fn no_almost_right_text_panics(text in "-?[0-9]{0,50}[.]?[0-9]{0,50} ?(M|mib|G|TiB|%|)") {
            if let Ok(amount) = parse_amount(&text) {
                prop_assert_ne!(amount, Amount::Memory(MiB::ZERO));
            }
        }
    }
}
