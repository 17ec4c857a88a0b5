//! Benchmarks of fits to 100,000 detections with nearly all different scores: `cargo bench -p lacuna-calib`.

use divan::{Bencher, black_box};
use lacuna_boxes::Score;
use lacuna_calib::{CalibratorKind, Confidence, Curve, Outcome, Proximity, Sample};

/// Scores in a scattered order; a detection of score s is right with probability `s^1.3`.
fn many_samples(n: u32) -> Vec<Sample> {
    // The fraction of a multiple of the golden ratio: even and without repeats.
    let spread = |i: u32, factor: f64| (f64::from(i) * factor).fract();
    let of_index = |i| {
        let score = spread(i, 0.618_033_988_749_894_9);
        let right = spread(i, 0.754_877_666_246_692_8) < score.powf(1.3);
        // Wrong detections are near an annotation and away from all in turn.
        let outcome = match (right, i % 2) {
            (true, _) => Outcome::Right,
            (false, 0) => Outcome::Wrong,
            (false, _) => Outcome::Candidate,
        };
        Sample { class: 0, score: Score(score as f32), outcome }
    };
    (0..n).map(of_index).collect()
}

#[divan::bench(args = CalibratorKind::ALL)]
fn fit(bencher: Bencher, kind: CalibratorKind) {
    let samples = many_samples(100_000);
    bencher.bench(|| Curve::fit(kind, black_box(&samples)).expect("they overlap"));
}

#[divan::bench(args = CalibratorKind::ALL)]
fn confidence(bencher: Bencher, kind: CalibratorKind) {
    let calibrator = Curve::fit(kind, &many_samples(100_000)).expect("they overlap");
    bencher.bench(|| calibrator.confidence(black_box(Score(0.7)), Proximity::Near));
}

#[divan::bench(args = CalibratorKind::ALL)]
fn score_of(bencher: Bencher, kind: CalibratorKind) {
    let calibrator = Curve::fit(kind, &many_samples(100_000)).expect("they overlap");
    bencher.bench(|| calibrator.score_of(black_box(Confidence(0.7)), Proximity::Near));
}

fn main() {
    divan::main();
}
