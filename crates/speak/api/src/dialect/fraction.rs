//! Cards and parts of cards as decimal text: `0.5`, `2`, `1.0`.

use sublet_model::Milli;

/// Thousandths; a started one counts in full. `None` for a text that is no such number, and for a
/// million cards and more.
pub(super) fn thousandths(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() + fraction.len() == 0 || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let whole = whole.trim_start_matches('0');
    if whole.len() > 6 {
        return None;
    }
    let (three, rest) = fraction.split_at(fraction.len().min(3));
    let digits: u64 = format!("{whole}{three:0<3}").parse().ok()?;
    Some(digits + u64::from(rest.bytes().any(|digit| digit != b'0')))
}

/// So many thousandths of one card; `None` for more than there are.
pub(super) fn milli(thousandths: u64) -> Option<Milli> {
    Milli::new(u16::try_from(thousandths).ok()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decimals_are_read_and_rounded_up() {
        for (text, expected) in [
            ("0.5", Some(500)),
            (".25", Some(250)),
            ("1", Some(1000)),
            ("2.0", Some(2000)),
            ("0.0001", Some(1)),
            ("0.3330000", Some(333)),
            ("0.3333", Some(334)),
            ("000000000.1", Some(100)),
            ("999999.9991", Some(1_000_000_000)),
            ("1000000", None),
            ("0", Some(0)),
            (".", None),
            ("", None),
            ("-1", None),
            ("1e3", None),
            ("0.5.5", None),
            ("½", None),
        ] {
            assert_eq!(thousandths(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in ".{0,12}|[0-9.]{0,12}", number in 0..1_000_000_000_u64) {
            let _answered: Option<u64> = thousandths(&text);
            let text = format!("{}.{:03}", number / 1000, number % 1000);
            prop_assert_eq!(thousandths(&text), Some(number));
        }
    }
}
