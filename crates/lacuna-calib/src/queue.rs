//! The queue of recent images that a calibrator is fitted to during training.

use std::collections::VecDeque;

use crate::Sample;

/// The detections of the most recent `window_images` images (the paper's Q of length L). The oldest image leaves
/// first, with all its detections.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibrationQueue {
    window_images: usize,
    images: VecDeque<Vec<Sample>>,
}

impl CalibrationQueue {
    /// An empty queue for this many images.
    pub fn new(window_images: usize) -> Self {
        Self { window_images, images: VecDeque::new() }
    }

    /// Add the detections of an image; an image without any counts as well.
    pub fn push(&mut self, image: Vec<Sample>) {
        self.images.push_back(image);
        while self.images.len() > self.window_images {
            self.images.pop_front();
        }
    }

    /// The detections of each image, the oldest image first.
    pub fn images(&self) -> impl Iterator<Item = &[Sample]> {
        self.images.iter().map(Vec::as_slice)
    }

    /// All detections, the oldest image first.
    pub fn samples(&self) -> impl Iterator<Item = Sample> {
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
        assert_eq!(queue.samples().count(), 2);
        queue.push(vec![judged(0.3)]);
        assert_eq!(queue.samples().collect::<Vec<_>>(), [judged(0.3)]);
        queue.push(vec![judged(0.4)]);
        assert_eq!(queue.samples().collect::<Vec<_>>(), [judged(0.3), judged(0.4)]);
        assert_eq!(queue.images().count(), 2);
    }
}
