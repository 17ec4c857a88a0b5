use std::collections::VecDeque;

use crate::Sample;

/// The detections of the most recent images that a calibrator is fitted to (the paper's Q; L = `window_images`). The oldest
/// image's leave first, all at once.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibrationQueue {
    window_images: usize,
    images: VecDeque<Vec<Sample>>,
}

impl CalibrationQueue {
    pub fn new(window_images: usize) -> Self {
        Self { window_images, images: VecDeque::new() }
    }

    /// The detections of one more image; an image without any counts as well.
    pub fn push(&mut self, image: Vec<Sample>) {
        self.images.push_back(image);
        while self.images.len() > self.window_images {
            self.images.pop_front();
        }
    }

    /// Those of each image, the oldest first.
    pub fn images(&self) -> impl Iterator<Item = &[Sample]> {
        self.images.iter().map(Vec::as_slice)
    }

    pub fn observed(&self) -> impl Iterator<Item = Sample> {
        self.images.iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::Score;

    use super::*;
    use crate::Outcome;

    #[test]
    fn the_oldest_image_leaves_first_and_whole() {
        let mut queue = CalibrationQueue::new(2);
        let judged = |score| Sample { class: 0, score: Score(score), outcome: Outcome::Right };
        queue.push(vec![judged(0.1), judged(0.2)]);
        queue.push(vec![]);
        assert_eq!(queue.observed().count(), 2);
        queue.push(vec![judged(0.3)]);
        assert_eq!(queue.observed().collect::<Vec<_>>(), [judged(0.3)]);
        queue.push(vec![judged(0.4)]);
        assert_eq!(queue.observed().collect::<Vec<_>>(), [judged(0.3), judged(0.4)]);
        assert_eq!(queue.images().count(), 2);
    }
}
