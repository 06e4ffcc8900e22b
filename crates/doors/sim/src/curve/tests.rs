//! Means worked by hand.

use super::*;

#[test]
fn each_percent_is_the_mean_of_the_arrivals_that_round_to_it() {
    let mut recorder = Recorder::new(1000);
    // 0.5 % and 1.5 % go to even: 0 and 2.
    recorder.arrived(5, 5, 2.0);
    recorder.arrived(10, 15, 3.0);
    recorder.arrived(6, 15, 5.0);
    // 4.9 %, so that nothing rounds to 3 or 4.
    recorder.arrived(28, 40, 7.0);
    let curve = recorder.curve();
    let points: Vec<(u32, f64, f64)> = curve
        .points
        .iter()
        .map(|p| (p.arrived_percent, p.allocated_percent, p.fragmented_percent))
        .collect();
    assert_eq!(points[0], (0, 0.5, 0.2));
    // Nothing at 1: its neighbours, three arrivals in all.
    assert_eq!(points[1].0, 1);
    assert!((points[1].1 - (0.5 + 1.5 + 1.5) / 3.0).abs() < 1e-9);
    assert_eq!(points[2], (2, 1.5, 0.4));
    assert_eq!(points[3], (3, 1.5, 0.4));
    assert_eq!(points[4], (4, 4.0, 0.7));
    assert_eq!(curve.at(5).map(|p| p.allocated_percent), Some(4.0));
    assert_eq!(curve.at(6), None);
}

#[test]
fn a_cluster_without_gpus_has_a_curve() {
    let mut recorder = Recorder::new(0);
    recorder.arrived(0, 0, 0.0);
    assert_eq!(
        recorder.curve().at(0).map(|p| p.allocated_percent),
        Some(0.0)
    );
    assert_eq!(Recorder::new(1).curve(), Curve::default());
}
