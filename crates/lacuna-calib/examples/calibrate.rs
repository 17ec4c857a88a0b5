//! Fit a calibrator to judged detections, print confidences, and measure the calibration error.
//!
//!     cargo run -p lacuna-calib --example calibrate

use lacuna_boxes::Score;
use lacuna_calib::{Calibrator, CalibratorKind, NoFit, Outcome, Proximity, Reliability, Sample};
use lacuna_random::{Purpose, Rng};

/// Detections of an overconfident detector: one of score s is right with probability s².
fn example_samples(n: usize, seed: u64) -> Vec<Sample> {
    let mut rng = Rng::new(Purpose::Resample, seed, 0, 0);
    let mut sample = || {
        let score = rng.unit();
        let outcome = if rng.chance(score * score) { Outcome::Right } else { Outcome::Wrong };
        Sample { class: 0, score: Score(score as f32), outcome }
    };
    (0..n).map(|_| sample()).collect()
}

fn main() -> Result<(), NoFit> {
    let calibrator = Calibrator::fit(CalibratorKind::Platt, false, &example_samples(2000, 0))?;

    println!("score  confidence");
    for score in [0.1, 0.3, 0.5, 0.7, 0.9].map(Score) {
        let confidence = calibrator.confidence(0, score, Proximity::Near);
        println!("{:.1}    {:.3}", score.0, confidence.0);
    }

    // The error is measured on detections that the calibrator was not fitted to.
    let (mut before, mut after) = (Reliability::default(), Reliability::default());
    for sample in example_samples(2000, 1) {
        let right = sample.outcome == Outcome::Right;
        before.add(sample.score.0, right);
        after.add(calibrator.confidence(0, sample.score, Proximity::Near).0, right);
    }
    for (name, reliability) in [("scores", before), ("confidences", after)] {
        println!("expected calibration error of {name}: {:.3}", reliability.ece().unwrap_or(f64::NAN));
    }
    Ok(())
}
