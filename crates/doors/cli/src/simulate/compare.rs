//! Means and intervals over seeds.

/// Mean and standard deviation of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) mean: f64,
    pub(super) deviation: f64,
}

impl Spread {
    /// Spread of at least one figure; one figure alone has no deviation.
    pub(super) fn of(figures: &[f64]) -> Spread {
        let n = figures.len().max(1) as f64;
        let mean = figures.iter().sum::<f64>() / n;
        let squares: f64 = figures.iter().map(|figure| (figure - mean).powi(2)).sum();
        let deviation = if figures.len() < 2 {
            0.0
        } else {
            (squares / (n - 1.0)).sqrt()
        };
        Spread { mean, deviation }
    }

    /// Half the width of the mean's 95 % interval, by Student's distribution; `None` for
    /// fewer than two figures.
    pub(super) fn half_width(self, n: usize) -> Option<f64> {
        let freedom = n.checked_sub(1).filter(|freedom| *freedom > 0)?;
        Some(student_95(freedom) * self.deviation / (n as f64).sqrt())
    }
}

/// The 97.5 % quantile of Student's distribution, to three decimals up to 30 degrees of
/// freedom (any table of statistics); beyond that by its expansion around the normal one.
fn student_95(freedom: usize) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    match TABLE.get(freedom.saturating_sub(1)) {
        Some(quantile) => *quantile,
        None => {
            let z = 1.959_964_f64;
            let first = (z.powi(3) + z) / 4.0;
            let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
            let freedom = freedom as f64;
            z + first / freedom + second / freedom.powi(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_a_small_sample_is_the_textbook_s() {
        // 1, 2, 3, 4: mean 2.5, deviation 1.2910, t(3) 3.182.
        let spread = Spread::of(&[1.0, 2.0, 3.0, 4.0]);
        assert!((spread.mean - 2.5).abs() < 1e-12);
        assert!((spread.deviation - 1.290_994_4).abs() < 1e-6);
        assert!((spread.half_width(4).unwrap() - 2.053_972).abs() < 1e-3);
        assert_eq!(Spread::of(&[7.0]).half_width(1), None);
        // The table and the expansion meet; both are known to three decimals.
        assert!((student_95(31) - 2.040).abs() < 1e-3);
        assert!((student_95(120) - 1.980).abs() < 1e-3);
    }
}
