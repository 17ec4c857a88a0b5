//! The random samples of anchors and proposals that Faster R-CNN learns from.

use lacuna_random::Rng;
use serde::{Deserialize, Serialize};

use crate::matcher::AnchorMatch;

/// How many samples an image gives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// The number of samples.
    pub count: usize,
    /// The largest share of positives among them.
    pub positive_share: f64,
}

impl Samples {
    /// Positives and negatives at random, in ascending order.
    pub(super) fn draw(&self, matches: &[AnchorMatch], rng: &mut Rng) -> Vec<usize> {
        let (mut positive, mut negative) = (Vec::new(), Vec::new());
        for (index, matched) in matches.iter().enumerate() {
            match matched {
                AnchorMatch::Object(_) => positive.push(index),
                AnchorMatch::Background => negative.push(index),
                AnchorMatch::Ignored => {}
            }
        }
        let positives = positive.len().min((self.count as f64 * self.positive_share) as usize);
        let negatives = negative.len().min(self.count - positives);
        let positive = rng.choose(positive.len(), positives).into_iter().map(|index| positive[index]);
        let mut drawn: Vec<usize> = positive.collect();
        drawn.extend(rng.choose(negative.len(), negatives).into_iter().map(|index| negative[index]));
        drawn.sort_unstable();
        drawn
    }
}
