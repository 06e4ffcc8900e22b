//! Statistics of measurements: percentiles, and the slices in which the card was ours.
//!
//! Pure functions of measured values; nothing here reads a clock.

use serde_json::{Value, json};

/// The value below which `share` of the values lie, by nearest rank. Sorts in place.
pub(crate) fn percentile(values: &mut [f64], share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied()
}

/// Rounded to three decimals: to nanoseconds, for a value in microseconds.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Count, least, mean, greatest and the usual percentiles.
pub(crate) fn spread(values: &mut [f64]) -> Value {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let count = values.len();
    let mut at = |share| percentile(values, share).map(rounded);
    json!({
        "n": count,
        "mean": rounded(mean),
        "min": at(0.0),
        "p50": at(0.5),
        "p90": at(0.9),
        "p99": at(0.99),
        "max": at(1.0),
    })
}

/// One kernel as measured by events, in microseconds of the card's time since the first event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stretch {
    pub(crate) start: f64,
    pub(crate) length: f64,
}

/// A time in which kernels ran one after another, and no other program's kernels in between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slice {
    pub(crate) start: f64,
    pub(crate) length: f64,
    pub(crate) launches: usize,
}

/// Joins kernels into slices. A slice ends where other programs took more than `slack`
/// microseconds: before a kernel that began late, or before one that took longer than `asked` by
/// more than that. Such a kernel is assumed to have waited first and then run undisturbed, which is
/// right for kernels that are shorter than the card's slices.
pub(crate) fn slices(kernels: &[Stretch], asked: f64, slack: f64) -> Vec<Slice> {
    let mut list: Vec<Slice> = Vec::new();
    for kernel in kernels {
        let waited = Some(kernel.length - asked).filter(|waited| *waited > slack);
        let start = kernel.start + waited.unwrap_or(0.0);
        let end = kernel.start + kernel.length;
        match list.last_mut() {
            Some(last) if start - (last.start + last.length) <= slack => {
                last.length = end - last.start;
                last.launches += 1;
            }
            _ => list.push(Slice {
                start,
                length: end - start,
                launches: 1,
            }),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::{Slice, Stretch, percentile, rounded, slices, spread};
    use serde_json::Value;

    #[test]
    fn percentiles_by_nearest_rank() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut values, 0.5), Some(50.0));
        assert_eq!(percentile(&mut values, 0.99), Some(99.0));
        assert_eq!(percentile(&mut values, 0.0), Some(1.0));
        assert_eq!(percentile(&mut values, 1.0), Some(100.0));
        assert_eq!(percentile(&mut [], 0.5), None);
    }

    #[test]
    fn figures_have_three_places() {
        assert_eq!(rounded(1.23456), 1.235);
        assert_eq!(spread(&mut [2.000_000_01])["mean"], 2.0);
    }

    #[test]
    fn nothing_measured_is_said_so() {
        let empty = spread(&mut []);
        assert_eq!(empty["n"], 0);
        assert_eq!(empty["p99"], Value::Null);
    }

    /// Kernels of 100 us as `start+length`, and the slices as `start+length xlaunches`.
    fn check(kernels: &[(f64, f64)], expected: &[(f64, f64, usize)]) {
        let kernels: Vec<Stretch> = kernels
            .iter()
            .map(|&(start, length)| Stretch { start, length })
            .collect();
        let expected: Vec<Slice> = expected
            .iter()
            .map(|&(start, length, launches)| Slice {
                start,
                length,
                launches,
            })
            .collect();
        assert_eq!(slices(&kernels, 100.0, 10.0), expected);
    }

    #[test]
    fn slices_end_where_somebody_else_ran() {
        check(&[], &[]);
        check(&[(0.0, 100.0), (105.0, 100.0)], &[(0.0, 205.0, 2)]);
        // The second kernel began late.
        check(
            &[(0.0, 100.0), (300.0, 100.0), (400.0, 100.0)],
            &[(0.0, 100.0, 1), (300.0, 200.0, 2)],
        );
        // The third kernel waited 2 ms for another program; the slice before it is complete.
        check(
            &[
                (0.0, 100.0),
                (100.0, 105.0),
                (205.0, 2100.0),
                (2305.0, 100.0),
            ],
            &[(0.0, 205.0, 2), (2205.0, 200.0, 2)],
        );
    }
}
