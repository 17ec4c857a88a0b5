//! Which object an anchor or a proposal is to find.

use lacuna_boxes::{Box2, iou};

/// What an anchor or a proposal is to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnchorMatch {
    /// It is to find this object.
    Object(usize),
    /// Neither an object nor background.
    Ignored,
    Background,
}

impl AnchorMatch {
    pub(crate) fn object(&self) -> Option<usize> {
        match self {
            Self::Object(object) => Some(*object),
            Self::Ignored | Self::Background => None,
        }
    }
}

/// Matching by IoU (torchvision's `Matcher`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Matcher {
    /// From here on the best object is the match.
    pub(crate) object_min: f32,
    /// Below this it is background.
    pub(crate) background_max: f32,
    /// An object also gets those that overlap it most, however little, each then matching the object
    /// *it* overlaps most.
    pub(crate) low_quality: bool,
}

impl Matcher {
    /// The match of each sample.
    pub(crate) fn matches(&self, samples: &[Box2], objects: &[Box2]) -> Vec<AnchorMatch> {
        self.matches_by(samples.len(), objects.len(), |sample, object| iou(samples[sample], objects[object]))
    }

    /// The match of each of so many samples, by their overlap with each of so many objects.
    ///
    /// Differs from the reference: an object that overlaps nothing gets no low-quality match. There it
    /// gets every sample whose overlap with it is 0 as well.
    pub(crate) fn matches_by(
        &self,
        samples: usize,
        objects: usize,
        iou: impl Fn(usize, usize) -> f32,
    ) -> Vec<AnchorMatch> {
        let mut largest = vec![0.0f32; objects]; // of each object
        let mut best = Vec::with_capacity(samples); // of each sample: its overlap, and with which object
        for sample in 0..samples {
            let mut best_of_sample = (0.0, 0);
            for (object, largest) in largest.iter_mut().enumerate() {
                let overlap = iou(sample, object);
                *largest = largest.max(overlap);
                if overlap > best_of_sample.0 {
                    best_of_sample = (overlap, object);
                }
            }
            best.push(best_of_sample);
        }
        // A sample overlaps an object most only if its best overlap is at least that object's largest.
        let overlaps_most = |sample: usize, best: f32| {
            let is_most = |object: usize| {
                let largest = largest[object];
                largest > 0.0 && largest <= best && iou(sample, object) == largest
            };
            (0..objects).any(is_most)
        };
        let to_match = |(sample, (overlap, object)): (usize, (f32, usize))| {
            // 0 is no overlap, whatever the thresholds.
            if overlap > 0.0
                && (overlap >= self.object_min || self.low_quality && overlaps_most(sample, overlap))
            {
                AnchorMatch::Object(object)
            } else if overlap > 0.0 && overlap >= self.background_max {
                AnchorMatch::Ignored
            } else {
                AnchorMatch::Background
            }
        };
        best.into_iter().enumerate().map(to_match).collect()
    }
}
