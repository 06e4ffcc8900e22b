//! Whole numbers from Kubernetes quantities.
//!
//! The API server writes 8000 as `8k`, so even a plain count has to be read with all suffixes.
//! Cards and their memory are counted in whole units: a fraction is an error. CPU and memory of
//! machines are rounded up, as the stock scheduler does.

/// Reason why a quantity is not a whole number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a quantity at all.
    #[error("it is not a number such as `8138` or `8k`")]
    Syntax,
    /// Below zero.
    #[error("it is negative")]
    Negative,
    /// Between two whole numbers.
    #[error("it is not a whole number")]
    Fraction,
    /// It needs more than 64 bits.
    #[error("it is too large")]
    TooLarge,
}

/// Reads a quantity (`8138`, `8k`, `1Ki`, `1e3`, `2.0`) as a whole number.
///
/// # Errors
/// Not a quantity, negative, a fraction, or beyond 64 bits.
pub fn whole_number(text: &str) -> Result<u64, QuantityError> {
    number(text, 0, Fraction::Refused)
}

/// Reads an amount of memory in bytes, a part of a byte as a whole one
/// (`resource.Quantity.Value`).
///
/// # Errors
/// Not a quantity, negative, or beyond 64 bits.
pub(crate) fn bytes(text: &str) -> Result<u64, QuantityError> {
    number(text, 0, Fraction::RoundedUp)
}

/// Reads an amount of CPU (`1500m`, `2`, `0.1`) in thousandths of a core, rounded up
/// (`resource.Quantity.MilliValue`).
///
/// # Errors
/// Not a quantity, negative, or beyond 64 bits.
pub(crate) fn milli_cpu(text: &str) -> Result<u64, QuantityError> {
    number(text, 3, Fraction::RoundedUp)
}

/// Treatment of a number between two whole ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fraction {
    Refused,
    RoundedUp,
}

/// A quantity times ten to the `shift`, as a whole number.
fn number(text: &str, shift: i32, between: Fraction) -> Result<u64, QuantityError> {
    let text = text.trim();
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits_end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(QuantityError::Syntax);
    }
    // value = digits × 10^tens × 2^twos
    let (tens, twos) = scale(suffix).ok_or(QuantityError::Syntax)?;
    let fraction = fraction.trim_end_matches('0');
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return Ok(0);
    }
    if negative {
        return Err(QuantityError::Negative);
    }
    if digits.len() > 30 {
        return Err(QuantityError::TooLarge);
    }
    let mut value: u128 = digits.parse().map_err(|_| QuantityError::Syntax)?;
    value = value
        .checked_mul(1 << twos)
        .ok_or(QuantityError::TooLarge)?;
    let tens = tens + shift - fraction.len() as i32;
    let power = 10u128.checked_pow(tens.unsigned_abs());
    let value = match power {
        Some(power) if tens >= 0 => value.checked_mul(power).ok_or(QuantityError::TooLarge)?,
        Some(power) if value.is_multiple_of(power) => value / power,
        None if tens >= 0 => return Err(QuantityError::TooLarge),
        _ if between == Fraction::Refused => return Err(QuantityError::Fraction),
        Some(power) => value.div_ceil(power),
        // Less than one, but more than nothing: rounded up.
        None => 1,
    };
    u64::try_from(value).map_err(|_| QuantityError::TooLarge)
}

/// Powers of ten and of two that a suffix stands for.
fn scale(suffix: &str) -> Option<(i32, u32)> {
    Some(match suffix {
        "" => (0, 0),
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let exponent: i32 = exponent.parse().ok()?;
            (exponent.clamp(-60, 60), 0)
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_as_the_api_server_writes_them() {
        let check = |text: &str| whole_number(text);
        assert_eq!(check("8138"), Ok(8138));
        assert_eq!(check("8k"), Ok(8000));
        assert_eq!(check("32Ki"), Ok(32768));
        assert_eq!(check("1e3"), Ok(1000));
        assert_eq!(check("2.50k"), Ok(2500));
        assert_eq!(check("3000m"), Ok(3));
        assert_eq!(check("0"), Ok(0));
        assert_eq!(check("-0"), Ok(0));
        assert_eq!(check("500m"), Err(QuantityError::Fraction));
        assert_eq!(check("0.5"), Err(QuantityError::Fraction));
        assert_eq!(check("-1"), Err(QuantityError::Negative));
        assert_eq!(check("99E"), Err(QuantityError::TooLarge));
        assert_eq!(check("1e99"), Err(QuantityError::TooLarge));
        for bad in ["", ".", "x", "1.2.3", "1KB", "1e", "--1", "0x10"] {
            assert_eq!(check(bad), Err(QuantityError::Syntax), "{bad:?}");
        }
    }

    #[test]
    fn cpu_and_memory_are_rounded_up() {
        assert_eq!(milli_cpu("2"), Ok(2000));
        assert_eq!(milli_cpu("1500m"), Ok(1500));
        assert_eq!(milli_cpu("0.1"), Ok(100));
        assert_eq!(milli_cpu("100u"), Ok(1));
        assert_eq!(milli_cpu("1n"), Ok(1));
        assert_eq!(milli_cpu("1e-60"), Ok(1));
        assert_eq!(milli_cpu("0"), Ok(0));
        assert_eq!(milli_cpu("-1"), Err(QuantityError::Negative));
        assert_eq!(milli_cpu("1e30"), Err(QuantityError::TooLarge));
        assert_eq!(bytes("1Gi"), Ok(1 << 30));
        assert_eq!(bytes("1500m"), Ok(2));
        assert_eq!(bytes("x"), Err(QuantityError::Syntax));
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in ".{0,40}") {
            for read in [whole_number, milli_cpu, bytes] {
                let _answered: Result<u64, QuantityError> = read(&text);
            }
        }

        #[test]
        fn every_whole_number_is_read(value: u64) {
            prop_assert_eq!(whole_number(&value.to_string()), Ok(value));
        }
    }
}
