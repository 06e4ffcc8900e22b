//! Passing of a card's time from process to process. As with the packing of memory, drivers and
//! cards differ, so it is a property of the machine.

use std::fmt;

use super::text::{SpecError, number, shown};

/// Rule by which processes that have work at the same time share a card: slices in turn. A slice
/// interrupts a kernel that is longer, as cards since Pascal do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRule {
    /// The longest slice, in nanoseconds.
    pub slice: u64,
    /// Time of the card that is lost when another process than the last one gets a slice, in
    /// nanoseconds. It is beside the slice, not within it.
    pub switch: u64,
}

impl Default for TimeRule {
    /// The default slice of NVIDIA's driver on data-centre cards is about 2 ms. The cost
    /// of a switch is the figure in the abstract of GPreempt (USENIX ATC 2025): preemption by a change
    /// of context within 40 µs. Part of that is hidden behind other work, so a card may lose more.
    fn default() -> TimeRule {
        TimeRule {
            slice: 2_000_000,
            switch: 40_000,
        }
    }
}

impl TimeRule {
    /// The shortest slice that SPEC can ask for: a shorter one would show how late threads wake up.
    const SHORTEST: u64 = 100_000;
    /// The longest one. No driver that we know of has slices of seconds.
    const LONGEST: u64 = 1_000_000_000;

    /// Reads one of the two, such as `2ms`, `500us` or `1s`.
    pub(super) fn parse(text: &str) -> Result<u64, SpecError> {
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            _ => 0,
        };
        let nanos = number(digits).and_then(|number| number.checked_mul(unit));
        nanos
            .filter(|_| unit > 0)
            .ok_or_else(|| SpecError::Time(shown(text)))
    }

    /// The same rule, if a card could have it.
    pub(super) fn checked(self) -> Result<TimeRule, SpecError> {
        let sound = (TimeRule::SHORTEST..=TimeRule::LONGEST).contains(&self.slice)
            && self.switch < self.slice;
        if sound {
            Ok(self)
        } else {
            Err(SpecError::Time(self.to_string()))
        }
    }
}

impl fmt::Display for TimeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Both are whole microseconds ([`TimeRule::parse`]).
        let TimeRule { slice, switch } = self;
        write!(f, "slice={}us,switch={}us", slice / 1_000, switch / 1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;

    #[test]
    fn a_slice_and_a_switch_have_units() {
        let check = |options: &str, slice, switch| {
            let spec = Spec::parse(&format!("1x1GiB{options}")).expect(options);
            assert_eq!(spec.time(), TimeRule { slice, switch }, "{options}");
        };
        check("", 2_000_000, 40_000);
        check(",slice=2ms,switch=40us", 2_000_000, 40_000);
        check(",slice=500us", 500_000, 40_000);
        check(",switch=0us", 2_000_000, 0);
        check(",switch=200us,slice=1s", 1_000_000_000, 200_000);
    }

    #[test]
    fn times_that_no_card_has_are_refused() {
        let texts = [
            ("slice=2", "`2`"),
            ("slice=", "``"),
            ("slice=ms", "`ms`"),
            ("slice=2.5ms", "`2.5ms`"),
            ("slice=-2ms", "`-2ms`"),
            ("slice=2m", "`2m`"),
            ("slice=２ms", "`２ms`"),
            ("switch=99999999999999999999us", "`99999999999999999999us`"),
            ("switch=99999999999999999s", "`99999999999999999s`"),
            ("slice=50us", "`slice=50us,switch=40us`"),
            ("slice=2s", "`slice=2000000us,switch=40us`"),
            ("switch=2ms", "`slice=2000us,switch=2000us`"),
        ];
        for (text, part) in texts {
            let error = Spec::parse(&format!("1x1GiB,{text}")).expect_err(text);
            let error = error.to_string();
            assert!(error.starts_with(part), "{text}: {error}");
            assert!(error.contains("`slice=2ms`"), "{error}");
        }
    }

    #[test]
    fn another_time_is_another_machine() {
        let digest = |text| Spec::parse(text).unwrap().digest();
        assert_eq!(digest("1x1GiB"), digest("1x1GiB,switch=40us,slice=2000us"));
        assert_ne!(digest("1x1GiB"), digest("1x1GiB,slice=1ms"));
        assert_ne!(digest("1x1GiB"), digest("1x1GiB,switch=0us"));
    }
}
