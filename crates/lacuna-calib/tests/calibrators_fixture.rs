//! Curves against netcal and scikit-learn (`fixtures/calibrators/make.py`).

#![allow(clippy::unwrap_used)] // The exemption of tests does not cover their helpers.

use lacuna_boxes::Score;
use lacuna_calib::{CalibratorKind, Curve, JudgedScore, Proximity, Sample};
use serde_json::Value;

/// Confidences have 32 bits.
const ROUNDED: f64 = 1e-7;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn assert_near(ours: &[f64], peers: &[f64], tolerance: f64, what: &str) {
    assert_eq!(ours.len(), peers.len(), "{what}: {ours:?}, not {peers:?}");
    for (our, peer) in ours.iter().zip(peers) {
        assert!((our - peer).abs() <= tolerance * (1.0 + peer.abs()), "{what}: {ours:?}, not {peers:?}");
    }
}

/// `Σ ln(1 + e^z) − m·z` with `z = a·ln p − b·ln(1 − p) + c`; with `a = b = 1/T` and `c = 0` that of a temperature.
fn negative_log_likelihood(judged: &[JudgedScore], [a, b, c]: [f64; 3]) -> f64 {
    let of_sample = |judged: &JudgedScore| {
        let p = f64::from(judged.score.0).clamp(1e-7, 1.0 - 1e-7);
        let z = a * p.ln() - b * (1.0 - p).ln() + c;
        z.exp().ln_1p() - if judged.right { z } else { 0.0 }
    };
    judged.iter().map(of_sample).sum()
}

fn for_each_case(
    kind: CalibratorKind,
    grid_tolerance: f64,
    check: impl Fn(&[JudgedScore], Curve, &Value, &str),
) {
    let fixture = include_str!("../../../fixtures/calibrators/calibrators.json");
    let fixture: Value = serde_json::from_str(fixture).unwrap();
    let grid = numbers(&fixture["grid"]);
    for case in fixture["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let judged: Vec<JudgedScore> = numbers(&case["scores"])
            .into_iter()
            .zip(numbers(&case["right"]))
            .map(|(score, right)| JudgedScore { score: Score(score as f32), right: right == 1.0 })
            .collect();
        let samples: Vec<Sample> = judged.iter().map(|judged| Sample::from((0, *judged))).collect();
        let fit = Curve::fit(kind, &samples).unwrap();
        let expected = &case["expected"][kind.name()];
        let ours: Vec<f64> =
            grid.iter().map(|&s| fit.confidence(Score(s as f32), Proximity::Near).0.into()).collect();
        assert_near(&ours, &numbers(&expected["grid"]), grid_tolerance, name);
        check(&judged, fit, expected, name);
    }
}

/// netcal's optimizer stops where its numerical gradient is about 1e-5, which shows in the fourth digit of a
/// confidence, most where there are no judged scores near. So the parameters are compared with those of
/// scikit-learn's Newton method, and netcal's are no likelier than ours.
const OPTIMIZER: f64 = 3e-4;

#[test]
fn the_temperature_is_that_of_netcal() {
    for_each_case(CalibratorKind::Temperature, OPTIMIZER, |judged, fit, expected, name| {
        let Curve::Temperature(fit) = fit else { unreachable!() };
        let (t, netcal) = (expected["t"].as_f64().unwrap(), expected["netcal"].as_f64().unwrap());
        assert_near(&[fit.t()], &[t], 1e-9, name);
        let loss = |t: f64| negative_log_likelihood(judged, [1.0 / t, 1.0 / t, 0.0]);
        assert!(loss(fit.t()) <= loss(netcal) * (1.0 + 1e-14), "{name}");
    });
}

#[test]
fn beta_calibration_is_that_of_netcal() {
    for_each_case(CalibratorKind::Beta, OPTIMIZER, |judged, fit, expected, name| {
        let Curve::Beta(fit) = fit else { unreachable!() };
        assert_near(&fit.abc(), &numbers(&expected["abc"]), 1e-9, name);
        let netcal: [f64; 3] = numbers(&expected["netcal"]).try_into().unwrap();
        let loss = |abc| negative_log_likelihood(judged, abc);
        assert!(loss(fit.abc()) <= loss(netcal) * (1.0 + 1e-14), "{name}");
    });
}

#[test]
fn isotonic_regression_is_that_of_scikit_learn() {
    for_each_case(CalibratorKind::Isotonic, ROUNDED, |_, fit, expected, name| {
        let Curve::Isotonic(fit) = fit else { unreachable!() };
        let ours: Vec<f64> = fit.knots().iter().flat_map(|knot| [knot.0, knot.1]).collect();
        let peers: Vec<f64> = expected["knots"].as_array().unwrap().iter().flat_map(numbers).collect();
        // scikit-learn's means are sums of means.
        assert_near(&ours, &peers, 1e-15, name);
    });
}

#[test]
fn histogram_binning_is_that_of_netcal() {
    for_each_case(CalibratorKind::Histogram, ROUNDED, |_, fit, expected, name| {
        let Curve::Histogram(fit) = fit else { unreachable!() };
        // The centers of empty bins are rounded differently.
        assert_near(fit.bins(), &numbers(&expected["bins"]), 1e-15, name);
    });
}

/// netcal sums the likelihood of up to 700 samples with 32 bits: an error of 1e-4 at most, and as large a part of
/// the weights.
#[test]
fn bayesian_binning_is_that_of_netcal() {
    for_each_case(CalibratorKind::Bayesian, 1e-4, |_, fit, expected, name| {
        let Curve::Bayesian(fit) = fit else { unreachable!() };
        let (weights, n_bins): (Vec<f64>, Vec<f64>) =
            fit.binnings().map(|(weight, bins)| (weight, bins.len() as f64)).unzip();
        assert_near(&n_bins, &numbers(&expected["n_bins"]), 0.0, name);
        assert_near(&weights, &numbers(&expected["weights"]), 1e-4, name);
    });
}
