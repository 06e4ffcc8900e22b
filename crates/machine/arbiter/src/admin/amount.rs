//! Memory of a card as people write it: an amount, or a share of the card.

use sublet_model::{AmountError, Milli, parse_memory, parse_share};
use sublet_share::Amount;

/// Reads `4GiB`, `4G`, `1.5GB`, `512Mi`, `50%` or `12.5%`, in small letters too. White space
/// before the unit is allowed. Rounds down to a whole number of MiB.
///
/// # Errors
/// Any other text; the error says what to write instead.
pub fn parse_amount(text: &str) -> Result<Amount, AmountError> {
    if !text.trim_end().ends_with('%') {
        return parse_memory(text).map(Amount::Memory);
    }
    match parse_share(text)? {
        Milli::ZERO => Err(AmountError::Zero(text.trim().to_owned())),
        share => Ok(Amount::Share(share)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sublet_model::MiB;

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
            "4B",
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
        for little in ["0.0001GiB", "4K", "1023KiB"] {
            assert!(check(little).contains("less than 1 MiB"), "{little}");
        }
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

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = parse_amount(&text).map_err(|error| error.to_string());
        }

        #[test]
        fn no_almost_right_text_panics(text in "-?[0-9]{0,50}[.]?[0-9]{0,50} ?(M|mib|G|TiB|%|)") {
            if let Ok(amount) = parse_amount(&text) {
                prop_assert_ne!(amount, Amount::Memory(MiB::ZERO));
            }
        }
    }
}
