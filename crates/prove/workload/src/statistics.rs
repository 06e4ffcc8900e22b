//! Percentiles of measurements. Pure functions of measured values; nothing here reads a clock.

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

#[cfg(test)]
mod tests {
    use super::{percentile, rounded, spread};
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
}
