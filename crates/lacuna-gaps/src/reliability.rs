//! Whether detections are right, where that is known, and how well confidences match it.

use lacuna_calib::Reliability;
use lacuna_data::Dataset;

use crate::judge::JudgedDetection;

/// A detection, and whether it is right.
pub type Truth<'a> = (&'a JudgedDetection, bool);

/// The judged detections with a raw score above `score_min`: near an annotation, right or wrong.
pub fn judged_truths(judged: &[Vec<JudgedDetection>], score_min: f32) -> Vec<Truth<'_>> {
    let above = judged.iter().flatten().filter(|judged| judged.is_above(score_min));
    above.filter_map(|judged| Some((judged, judged.sample()?.judged()?.right))).collect()
}

/// The candidates with a raw score above `score_min`. One is right if it is a hidden object of its class at an IoU
/// above `iou_min`.
pub fn candidate_truths<'a>(
    judged: &'a [Vec<JudgedDetection>],
    score_min: f32,
    hidden: &Dataset,
    iou_min: f32,
) -> Vec<Truth<'a>> {
    let mut truths = Vec::new();
    for (image, judged) in judged.iter().enumerate() {
        let objects = hidden.objects_of(image);
        for judged in judged.iter().filter(|judged| judged.is_candidate() && judged.is_above(score_min)) {
            truths.push((judged, judged.is_one_of(&objects, iou_min)));
        }
    }
    truths
}

/// How well a confidence matches the truth.
pub fn reliability(truths: &[Truth], confidence: impl Fn(&JudgedDetection) -> f32) -> Reliability {
    let mut reliability = Reliability::default();
    truths.iter().for_each(|(judged, right)| reliability.add(confidence(judged), *right));
    reliability
}
