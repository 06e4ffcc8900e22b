//! Versions of the pages and of the messages, and the choice of one that both sides speak.

/// The version of everything in this crate.
pub const VERSION: u16 = 2;

/// The oldest version that is still spoken. No earlier one was ever released.
pub const OLDEST: u16 = 2;

/// The newest version that both sides speak, if the other speaks all from `min` to `max`.
#[must_use]
pub const fn agree(min: u16, max: u16) -> Option<u16> {
    let newest = if max < VERSION { max } else { VERSION };
    if newest >= min && newest >= OLDEST {
        Some(newest)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_common_version_is_chosen() {
        for (min, max, want) in [
            (0, 9, Some(VERSION)),
            (OLDEST - 1, OLDEST, Some(OLDEST)),
            (OLDEST, OLDEST, Some(OLDEST)),
            (VERSION, VERSION + 3, Some(VERSION)),
            (VERSION + 1, VERSION + 3, None),
            (0, OLDEST - 1, None),
            (VERSION, OLDEST - 1, None),
        ] {
            assert_eq!(agree(min, max), want, "{min}..={max}");
        }
    }
}
