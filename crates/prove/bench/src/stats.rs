//! Medians and percentiles of measured values.

use std::time::Duration;

/// The value that `share` of all values do not exceed (nearest rank); 0 if there are none.
pub(crate) fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    let at = rank.max(1).min(sorted.len()).wrapping_sub(1);
    sorted.get(at).copied().unwrap_or(0.0)
}

/// The middle value; for an even number of values, the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[half],
        _ => f64::midpoint(sorted[half - 1], sorted[half]),
    }
}

/// Mean and standard deviation of a sample; 0 if it is empty.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    pub(crate) mean: f64,
    pub(crate) deviation: f64,
}

impl Spread {
    pub(crate) fn of(values: &[f64]) -> Spread {
        let n = values.len().max(1) as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = (squares / (n - 1.0).max(1.0)).sqrt();
        Spread { mean, deviation }
    }
}

/// A duration in milliseconds.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_counted_from_one() {
        let values: Vec<f64> = (1..=1000).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 0.5), 500.0);
        assert_eq!(percentile(&values, 0.999), 999.0);
        assert_eq!(percentile(&values, 1.0), 1000.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }

    #[test]
    fn a_sample_s_deviation_counts_one_less() {
        let spread = Spread::of(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(spread.mean, 2.5);
        assert!((spread.deviation - (5.0_f64 / 3.0).sqrt()).abs() < 1e-12);
        let one = Spread::of(&[7.0]);
        assert_eq!((one.mean, one.deviation), (7.0, 0.0));
        assert_eq!(Spread::of(&[]).mean, 0.0);
    }

    #[test]
    fn the_middle_of_an_even_number_is_a_mean() {
        assert_eq!(median(&[4.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
