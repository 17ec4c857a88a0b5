//! Calibration errors against netcal and scikit-learn (`fixtures/calibration-error/make.py`).

#![allow(clippy::unwrap_used)]

use std::num::NonZeroUsize;

use lacuna_eval::{CalibrationError, DEFAULT_BINS, JudgedConfidence};
use serde::Deserialize;

#[derive(Deserialize)]
struct Fixture {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    classes: Vec<usize>,
    confidences: Vec<f64>,
    ious: Vec<Option<f64>>,
    binned: Vec<Binned>,
    la_ece: f64,
    brier: f64,
    nll: f64,
}

#[derive(Deserialize)]
struct Binned {
    n_bins: NonZeroUsize,
    d_ece: f64,
    ace: f64,
    mce: f64,
}

/// Sums of at most 202 numbers below 20 in another order: the rounding of each is below 4e-15.
#[track_caller]
fn assert_close(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() < 1e-12, "{what}: {found} is not {expected}");
}

#[test]
fn errors_are_those_of_netcal_and_scikit_learn() {
    let text = include_str!("../../../fixtures/calibration-error/calibration_error.json");
    let fixture: Fixture = serde_json::from_str(text).unwrap();
    assert_eq!(fixture.cases.len(), 8);
    for case in fixture.cases {
        let name = case.name.as_str();
        let numbers = case.classes.iter().zip(&case.confidences).zip(&case.ious);
        let judged: Vec<JudgedConfidence> = numbers
            .map(|((&class, &confidence), &iou)| JudgedConfidence { class, confidence, iou })
            .collect();
        for expected in case.binned {
            let error = CalibrationError::measure(&judged, expected.n_bins).unwrap();
            assert_close(error.d_ece, expected.d_ece, name);
            assert_close(error.ace, expected.ace, name);
            assert_close(error.mce, expected.mce, name);
        }
        let error = CalibrationError::measure(&judged, DEFAULT_BINS).unwrap();
        assert_close(error.la_ece, case.la_ece, name);
        assert_close(error.brier, case.brier, name);
        assert_close(error.nll, case.nll, name);
    }
}
