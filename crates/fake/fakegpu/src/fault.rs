//! Faults on demand: a chosen call of a chosen function fails with a chosen code. So tests reach
//! the branches that a healthy driver never takes.
//!
//! `SUBLET_FAKE_FAULT=cuMemAlloc_v2:2:3` makes the third call of `cuMemAlloc_v2` give
//! code 2. The last part can be `3-5` (third to fifth), `3-` (third and all later), or
//! be left out (every call). Several faults are separated by commas. The name is the
//! exported one without `_ptds` or `_ptsz`.

use std::sync::atomic::{AtomicU64, Ordering};

/// The variable.
pub(crate) const VARIABLE: &str = "SUBLET_FAKE_FAULT";

/// The calls that shall fail.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    faults: Vec<Fault>,
}

#[derive(Debug)]
struct Fault {
    function: String,
    code: u32,
    first: u64,
    last: u64,
    n_calls: AtomicU64,
}

impl Faults {
    /// Reads the environment's request. A text that is not understood is no fault: the driver
    /// cannot report it, and the test that asked for the fault fails.
    #[must_use]
    pub(crate) fn of_environment() -> Faults {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        Faults::parse(&text).unwrap_or_default()
    }

    /// Reads the text of the variable.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Faults> {
        let parts = text.split(',').filter(|part| !part.is_empty());
        let faults = parts.map(fault).collect::<Option<Vec<_>>>()?;
        Some(Faults { faults })
    }

    /// Counts a call of `function`; the code with which it fails, if it does.
    #[must_use]
    pub(crate) fn strike(&self, function: &str) -> Option<u32> {
        let mut struck = None;
        for fault in &self.faults {
            if fault.function == function {
                let number = fault.n_calls.fetch_add(1, Ordering::Relaxed) + 1;
                if (fault.first..=fault.last).contains(&number) {
                    struck = struck.or(Some(fault.code));
                }
            }
        }
        struck
    }
}

fn fault(text: &str) -> Option<Fault> {
    let mut parts = text.split(':');
    let function = parts.next()?.to_owned();
    let code = parts.next()?.parse().ok().filter(|code| *code != 0)?;
    let (first, last) = match parts.next() {
        None => (1, u64::MAX),
        Some(when) => match when.split_once('-') {
            None => (when.parse().ok()?, when.parse().ok()?),
            Some((first, "")) => (first.parse().ok()?, u64::MAX),
            Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
        },
    };
    let complete = parts.next().is_none() && !function.is_empty();
    complete.then_some(Fault {
        function,
        code,
        first,
        last,
        n_calls: AtomicU64::new(0),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn calls_are_counted_per_function() {
        let faults = Faults::parse("cuMemAlloc_v2:2:2-3,cuInit:100,cuMemCreate:2:2-").unwrap();
        let five = |name: &str| -> Vec<u32> {
            let code = |_| faults.strike(name).unwrap_or(0);
            (0..5).map(code).collect()
        };
        assert_eq!(five("cuMemAlloc_v2"), [0, 2, 2, 0, 0]);
        assert_eq!(five("cuInit"), [100; 5]);
        assert_eq!(five("cuMemCreate"), [0, 2, 2, 2, 2]);
        assert_eq!(five("cuMemFree_v2"), [0; 5]);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in [
            "cuInit",
            "cuInit:0",
            "cuInit:x",
            ":2",
            "cuInit:2:x",
            "cuInit:2:1:1",
        ] {
            assert!(Faults::parse(text).is_none(), "{text}");
        }
        assert!(Faults::parse("").unwrap().strike("cuInit").is_none());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in any::<String>(), near in "[a-z]{0,3}:[0-9]{0,22}(:[0-9-]{0,22})?") {
            for text in [text, near] {
                if let Some(faults) = Faults::parse(&text) {
                    let _ = faults.strike("cuInit");
                }
            }
        }
    }
}
