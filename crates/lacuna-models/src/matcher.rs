//! Which object an anchor or a proposal is to find.

use lacuna_boxes::{Box2, iou};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// It is to find this object.
    Object(usize),
    /// Neither an object nor background.
    Ignored,
    Background,
}

/// Matching by IoU (torchvision's `Matcher`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matcher {
    /// From here on the best object is the match.
    pub object_min: f32,
    /// Below this it is background.
    pub background_max: f32,
    /// An object also gets those that overlap it most, however little, each then matching the object
    /// *it* overlaps most.
    pub low_quality: bool,
}

impl Matcher {
    /// Differs from the reference: an object that overlaps nothing gets no low-quality match. There it
    /// gets every sample whose overlap with it is 0 as well.
    pub fn matches(&self, samples: &[Box2], objects: &[Box2]) -> Vec<Match> {
        let mut best_of_object = vec![0.0f32; objects.len()];
        let mut matches: Vec<Match> = Vec::with_capacity(samples.len());
        for &sample in samples {
            let mut best = (0.0, 0);
            for (index, (&object, best_of_object)) in objects.iter().zip(&mut best_of_object).enumerate() {
                let overlap = iou(sample, object);
                *best_of_object = best_of_object.max(overlap);
                if overlap > best.0 {
                    best = (overlap, index);
                }
            }
            matches.push(match best {
                (overlap, index) if overlap >= self.object_min && !objects.is_empty() => Match::Object(index),
                (overlap, _) if overlap >= self.background_max && !objects.is_empty() => Match::Ignored,
                _ => Match::Background,
            });
        }
        if self.low_quality {
            for (&sample, matched) in samples.iter().zip(&mut matches) {
                if matches!(matched, Match::Object(_)) {
                    continue;
                }
                let overlaps = objects.iter().map(|&object| iou(sample, object));
                let is_best =
                    overlaps.zip(&best_of_object).any(|(overlap, &best)| overlap > 0.0 && overlap == best);
                if is_best {
                    let (index, _) =
                        lacuna_boxes::best_iou(sample, objects.iter().copied()).expect("it overlaps");
                    *matched = Match::Object(index);
                }
            }
        }
        matches
    }
}
