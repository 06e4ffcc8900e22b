//! Amounts as people write them in flags, files and messages: memory as `4GiB`, `4G`, `1.5gb` or
//! `512M`, and a share of a card as `50%`. The grammar is here alone, so that all of them take the
//! same texts and refuse the same nonsense. Quantities of Kubernetes have another one (`sublet-api`).
//!
//! Every unit is a power of 1,024, whatever its letters mean elsewhere: a user who types `4GB`
//! does not want a card's memory counted in two ways.

use crate::quantity::{Bytes, MiB, Milli};

/// Reason why a text is not an amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// Not a number with a unit.
    #[error("`{0}` is not an amount of memory; write `4GiB`, `512MiB` or `50%`")]
    Text(String),
    /// The same, for memory that cannot be a percentage.
    #[error("`{0}` is not a size; write `4GiB` or `512MiB`")]
    Size(String),
    /// Another unit than those that there are, and the amount that may be meant.
    #[error("`{0}` has no known unit; did you mean `{1}`?")]
    Unit(String, String),
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

/// Reads `4GiB`, `4G`, `1.5GB` or `512Ki`, in small letters too. White space before the unit is
/// allowed. A part of a byte is dropped.
///
/// # Errors
/// Any other text; the error says what to write instead.
pub fn parse_bytes(text: &str) -> Result<Bytes, AmountError> {
    let own = || text.trim().to_owned();
    let (number, unit) = number_and_unit(text)?;
    let bytes_in_unit = match unit.as_str() {
        // No unit makes it more.
        "" if number.is_zero() => 1,
        "" => return Err(AmountError::NoUnit(own())),
        "k" | "ki" | "kb" | "kib" => 1 << 10,
        "m" | "mi" | "mb" | "mib" => 1 << 20,
        "g" | "gi" | "gb" | "gib" => 1 << 30,
        "t" | "ti" | "tb" | "tib" => 1 << 40,
        _ => return Err(meant(text).unwrap_or_else(|| AmountError::Text(own()))),
    };
    let bytes = number.times(bytes_in_unit);
    bytes
        .map(Bytes::new)
        .ok_or_else(|| AmountError::TooLarge(own()))
}

/// Reads the same as whole MiB, rounded down, and at least one.
///
/// # Errors
/// Any other text; the error says what to write instead.
pub fn parse_memory(text: &str) -> Result<MiB, AmountError> {
    let own = || text.trim().to_owned();
    let bytes = parse_bytes(text)?;
    match bytes.whole_mib() {
        MiB::ZERO if bytes == Bytes::ZERO => Err(AmountError::Zero(own())),
        MiB::ZERO => Err(AmountError::Small(own())),
        memory => Ok(memory),
    }
}

/// Reads the same where no percentage can stand.
///
/// # Errors
/// Any other text; the error says what to write instead.
pub fn parse_size(text: &str) -> Result<MiB, AmountError> {
    parse_memory(text).map_err(|error| match error {
        AmountError::Text(own) | AmountError::NoUnit(own) => AmountError::Size(own),
        error => error,
    })
}

/// Reads a share of a card, `50%` or `12.5%`: whole percent, or with one decimal.
///
/// # Errors
/// Any other text; the error says what to write instead.
pub fn parse_share(text: &str) -> Result<Milli, AmountError> {
    let own = || text.trim().to_owned();
    let (number, unit) = number_and_unit(text)?;
    if unit != "%" || number.behind > 1 {
        return Err(AmountError::Text(own()));
    }
    let thousandths = number.times(10).and_then(|all| u16::try_from(all).ok());
    let share = thousandths.and_then(Milli::new);
    share.ok_or_else(|| AmountError::MoreThanAll(own()))
}

/// Reads the number, and the unit in small letters.
fn number_and_unit(text: &str) -> Result<(Decimal, String), AmountError> {
    let text = text.trim();
    let (number, unit) = split(text);
    let (is_below_zero, number) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number),
    };
    match Decimal::read(number) {
        None => Err(AmountError::Text(text.to_owned())),
        Some(_) if is_below_zero => Err(AmountError::Negative(text.to_owned())),
        Some(number) => Ok((number, unit.to_ascii_lowercase())),
    }
}

/// Splits behind the number, and leaves out the white space there.
fn split(text: &str) -> (&str, &str) {
    let begins_unit = |c: char| !matches!(c, '0'..='9' | '.' | '-');
    let (number, unit) = text.split_at(text.find(begins_unit).unwrap_or(text.len()));
    (number, unit.trim_start())
}

/// A mistyped unit, such as `gigs` or `GBi`, which begins with a letter of the units that there are.
fn meant(text: &str) -> Option<AmountError> {
    let text = text.trim();
    let (number, unit) = split(text);
    let letter = unit.chars().next()?.to_ascii_uppercase();
    let is_word = unit.chars().all(|c| c.is_ascii_alphabetic());
    let is_known = is_word && matches!(letter, 'K' | 'M' | 'G' | 'T');
    is_known.then(|| AmountError::Unit(text.to_owned(), format!("{number}{letter}iB")))
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
    fn times(self, factor: u64) -> Option<u64> {
        let product = self.digits.checked_mul(factor.into())?;
        u64::try_from(product / 10_u128.pow(self.behind)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_an_amount_that_no_card_has_a_part_in() {
        for text in ["2 GiB", "2g", "2048M", "2097152KiB"] {
            assert_eq!(parse_size(text), Ok(MiB::from(2048_u32)), "{text}");
        }
        for bad in ["50%", "0%", "101%", "4", "", "4B", "MiB"] {
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

    #[test]
    fn a_mistyped_unit_has_a_suggestion() {
        for (text, meant) in [
            ("4 gigs", "4GiB"),
            ("1.5gigabytes", "1.5GiB"),
            (" 512 megs ", "512MiB"),
            ("4GBi", "4GiB"),
            ("1tbb", "1TiB"),
        ] {
            for error in [parse_memory(text), parse_size(text)] {
                let error = error.unwrap_err().to_string();
                let own = text.trim();
                let expected = format!("`{own}` has no known unit; did you mean `{meant}`?");
                assert_eq!(error, expected);
            }
        }
        for text in ["4 parsecs", "4G8", "4G 4G", "gigs"] {
            let error = parse_memory(text).unwrap_err().to_string();
            assert!(error.contains("is not an amount"), "{text}: {error}");
        }
    }

    #[test]
    fn bytes_may_be_few_or_none() {
        for (text, bytes) in [("0", 0), ("0KiB", 0), ("1.5k", 1536), ("0.0001kib", 0)] {
            assert_eq!(parse_bytes(text), Ok(Bytes::new(bytes)), "{text}");
        }
    }
}
