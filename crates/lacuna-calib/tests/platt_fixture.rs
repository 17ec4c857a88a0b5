//! Fits and calibration errors against scikit-learn and netcal (`fixtures/platt/make.py`).

use lacuna_boxes::Score;
use lacuna_calib::{JudgedScore, Platt, Reliability};
use serde_json::Value;

#[test]
fn fits_and_errors_are_those_of_scikit_learn_and_netcal() {
    let fixture: Value = serde_json::from_str(include_str!("../../../fixtures/platt/platt.json")).unwrap();
    for case in fixture["cases"].as_array().unwrap() {
        let name = &case["name"];
        let number = |key: &str| case[key].as_f64().unwrap();
        let scores = case["scores"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap() as f32);
        let outcomes = case["right"].as_array().unwrap().iter().map(|r| r.as_bool().unwrap());
        let judged: Vec<JudgedScore> =
            scores.zip(outcomes).map(|(score, right)| JudgedScore { score: Score(score), right }).collect();

        let fit = Platt::fit(judged.iter().copied()).unwrap();
        assert!((fit.w - number("w")).abs() < 1e-4, "{name}: w is {}, not {}", fit.w, number("w"));
        assert!((fit.b - number("b")).abs() < 1e-4, "{name}: b is {}, not {}", fit.b, number("b"));

        let (mut before, mut after) = (Reliability::default(), Reliability::default());
        for judged in &judged {
            before.add(judged.score.0, judged.right);
            after.add(fit.confidence(judged.score).0, judged.right);
        }
        // Scores that are multiples of 0.1 lie on the edges of bins, where netcal's conventions differ.
        if name != "exactly 0 and 1 among them" {
            assert!((before.ece().unwrap() - number("ece_before")).abs() < 1e-6, "{name}");
            assert!((after.ece().unwrap() - number("ece_after")).abs() < 1e-6, "{name}");
        }
    }
}
