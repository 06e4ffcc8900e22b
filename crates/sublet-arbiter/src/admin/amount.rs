//! Amounts of memory as people write them: `4GiB`, `512MiB`, and of a card also `50%`. It exists
//! so that the command line and the socket accept the same texts and refuse the same nonsense.

use sublet_model::{GiB, MiB, Milli};
use sublet_share::Amount;

/// Why some text is not an amount of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// Not a number with a unit.
    #[error("`{0}` is not an amount of memory; write `4GiB`, `512MiB` or `50%`")]
    Text(String),
    /// The same, where there is no card that could be divided.
    #[error("`{0}` is not a size; write `4GiB` or `512MiB`")]
    Size(String),
    /// A number alone may be bytes or GiB; nobody should have to guess.
    #[error("`{0}` has no unit; write `{0}MiB`, `{0}GiB` or `{0}%`")]
    NoUnit(String),
    /// Nothing.
    #[error("`{0}` is no memory at all; ask for more than zero")]
    Zero(String),
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

/// Reads `4GiB`, `512MiB`, `50%` or `12.5%`; white space before the unit is allowed.
///
/// # Errors
/// Anything else, with what to write instead.
pub fn parse_amount(text: &str) -> Result<Amount, AmountError> {
    let own = || text.trim().to_owned();
    let text = text.trim();
    let units = ["MiB", "GiB", "%"];
    let Some((number, unit)) = units
        .iter()
        .find_map(|unit| Some((text.strip_suffix(unit)?.trim_end(), *unit)))
    else {
        let below_zero = text.strip_prefix('-').is_some_and(is_number);
        return Err(match is_number(text) {
            // No unit makes it more.
            true if text.bytes().all(|digit| digit == b'0') => AmountError::Zero(own()),
            true => AmountError::NoUnit(own()),
            false if below_zero => AmountError::Negative(own()),
            false => AmountError::Text(own()),
        });
    };
    if let Some(rest) = number.strip_prefix('-') {
        return Err(if is_number(&rest.replacen('.', "", 1)) {
            AmountError::Negative(own())
        } else {
            AmountError::Text(own())
        });
    }
    if unit == "%" {
        return percent(number, own);
    }
    if !is_number(number) {
        return Err(AmountError::Text(own()));
    }
    // All digits, so that only its size can be wrong.
    let number: u64 = number.parse().map_err(|_| AmountError::TooLarge(own()))?;
    let memory = match unit {
        "GiB" => GiB::new(number).map(MiB::from),
        _ => MiB::new(number),
    };
    match memory {
        None => Err(AmountError::TooLarge(own())),
        Some(MiB::ZERO) => Err(AmountError::Zero(own())),
        Some(memory) => Ok(Amount::Memory(memory)),
    }
}

/// Reads `4GiB` or `512MiB`: an amount of memory that is not of a card.
///
/// # Errors
/// Anything else, with what to write instead.
pub fn parse_size(text: &str) -> Result<MiB, AmountError> {
    match parse_amount(text) {
        Ok(Amount::Memory(memory)) => Ok(memory),
        Err(
            error @ (AmountError::Zero(_) | AmountError::Negative(_) | AmountError::TooLarge(_)),
        ) if !text.contains('%') => Err(error),
        _ => Err(AmountError::Size(text.trim().to_owned())),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whole percent, or with one decimal.
fn percent(number: &str, own: impl Fn() -> String) -> Result<Amount, AmountError> {
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    if !is_number(whole) || !is_number(tenth) || tenth.len() != 1 {
        return Err(AmountError::Text(own()));
    }
    let whole: u16 = whole.parse().map_err(|_| AmountError::MoreThanAll(own()))?;
    let tenth: u16 = tenth.parse().map_err(|_| AmountError::Text(own()))?;
    let thousandths = whole.saturating_mul(10).saturating_add(tenth);
    match Milli::new(thousandths) {
        None => Err(AmountError::MoreThanAll(own())),
        Some(share) if share.get() == 0 => Err(AmountError::Zero(own())),
        Some(share) => Ok(Amount::Share(share)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        let check = |text: &str| match parse_amount(text) {
            Ok(amount) => amount.to_string(),
            Err(error) => error.to_string(),
        };
        assert_eq!(check("4GiB"), "4096 MiB");
        assert_eq!(check(" 512 MiB "), "512 MiB");
        assert_eq!(check("50%"), "50 %");
        assert_eq!(check("12.5 %"), "12.5 %");
        assert_eq!(check("100%"), "100 %");
        for bad in [
            "", "GiB", "%", "4Gi", "1.5GiB", "x%", "1.25%", "--1%", "+4GiB",
        ] {
            let error = check(bad);
            assert!(error.contains("is not an amount"), "{bad}: {error}");
        }
        assert!(check("4").contains("`4` has no unit"));
        for nothing in ["0", "000", "0MiB"] {
            assert!(check(nothing).contains("more than zero"), "{nothing}");
        }
        assert!(check("-1").contains("less than nothing"));
        assert!(check("0%").contains("more than zero"));
        assert!(check("-1GiB").contains("less than nothing"));
        assert!(check("-0.5%").contains("less than nothing"));
        assert!(check("100.1%").contains("more than 100 %"));
        assert!(check("99999%").contains("more than 100 %"));
        assert!(check("99999999999999GiB").contains("than any machine has"));
        assert!(check("99999999999999999999999MiB").contains("than any machine has"));
    }

    #[test]
    fn a_size_is_an_amount_that_no_card_has_a_part_in() {
        assert_eq!(parse_size("2 GiB"), Ok(MiB::from(2048_u32)));
        for bad in ["50%", "0%", "-1%", "101%", "4", "", "4Gi", "MiB"] {
            let error = parse_size(bad).unwrap_err().to_string();
            assert!(
                error.ends_with("is not a size; write `4GiB` or `512MiB`"),
                "{error}"
            );
        }
        let error = |text: &str| parse_size(text).unwrap_err().to_string();
        assert!(error("0MiB").contains("more than zero"));
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
        fn no_almost_right_text_panics(text in "-?[0-9]{0,24}[.]?[0-9]{0,2} ?(MiB|GiB|%|)") {
            if let Ok(amount) = parse_amount(&text) {
                prop_assert_ne!(amount, Amount::Memory(MiB::ZERO));
            }
        }
    }
}
