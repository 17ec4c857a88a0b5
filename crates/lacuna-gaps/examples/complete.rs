//! From detections of any framework to a completed data set.
//!
//! Every image has a row of four cups, of which one was never annotated. A detector finds all four, and sometimes
//! something that is no cup.

use std::error::Error;

use lacuna_boxes::{Box2, Detection, Score};
use lacuna_calib::{CalibratorKind, Confidence};
use lacuna_data::{Builder, Dataset, Xywh};
use lacuna_gaps::{
    Acceptance, Completion, DatasetCompleteness, FitOptions, FoldedCalibrator, OverlapRule, candidates,
    completed, judge,
};

const IMAGES: usize = 200;
const CUPS: usize = 4;

/// A data set that lacks one cup of each image.
fn sparse_dataset() -> Dataset {
    let mut builder = Builder::default();
    let cup = builder.category("cup");
    for n in 0..IMAGES {
        let image = builder.image(&format!("{n}.jpg"), 400, 100);
        for at in (0..CUPS).filter(|at| *at != n % CUPS) {
            let bbox = Xywh { x: 100.0 * at as f64, y: 10.0, width: 80.0, height: 80.0 };
            builder.annotation(image, cup, bbox, false, ());
        }
    }
    builder.finish()
}

/// What a detector finds in image `n`, best first.
fn detections(n: usize) -> Vec<Detection> {
    let cup = |at: usize| Detection {
        bbox: Box2::new(100.0 * at as f32 + 2.0, 10.0, 100.0 * at as f32 + 80.0, 90.0),
        class: 0,
        score: Score(0.95 - 0.1 * ((n + at) % 5) as f32),
    };
    let mistake = Detection {
        bbox: Box2::new(85.0, 0.0, 98.0, 30.0),
        class: 0,
        score: Score(0.2 + 0.1 * (n % 3) as f32),
    };
    let mut all: Vec<Detection> = (0..CUPS).map(cup).chain([mistake]).collect();
    all.sort_by(|a, b| b.score.0.total_cmp(&a.score.0));
    all
}

fn main() -> Result<(), Box<dyn Error>> {
    let dataset = sparse_dataset();
    let detections: Vec<Vec<Detection>> = (0..IMAGES).map(detections).collect();
    let judged = judge(&dataset, &detections, &OverlapRule { min_side: None, ..OverlapRule::default() });

    let completeness = DatasetCompleteness::new(&dataset, &judged, 0.1)?;
    println!("about {:.0} % of the cups are annotated", 100.0 * completeness.all.completeness);

    let options = FitOptions { kind: CalibratorKind::Completeness, per_class: false, score_min: 0.1 };
    let calibrators = FoldedCalibrator::fit(&judged, options)?;
    let candidates = candidates(&judged, 0.1, |judged| judged.confidence(calibrators.of_image(judged.image)));
    let completion = Completion::new(candidates, Acceptance::Confidence(Confidence(0.5)), 1);
    let whole = completed(&dataset, &completion.recovered);
    println!("{} boxes given, {} after completion", dataset.annotations().len(), whole.annotations().len());
    Ok(())
}
