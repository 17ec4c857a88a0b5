//! What methods give a detector: views as images, annotations and pseudo labels as targets.

use burn::Tensor;
use burn::tensor::{Device, TensorData};
use lacuna_boxes::Detection;
use lacuna_data::Object;
use lacuna_data::augment::ResizeRange;
use lacuna_data::batch::{Recipe, View};
use lacuna_models::{Images, Target};

/// The student's view of the paper's methods: strong, or weak like the teacher's.
pub(super) fn student_view(strong_view: bool, range: ResizeRange) -> Recipe {
    if strong_view { Recipe::Strong(range) } else { Recipe::Weak(range) }
}

/// A view for a detector that is trained on it.
pub(super) fn tracked_images(view: View) -> Images {
    images_on(&Device::flex().autodiff(), view)
}

/// A view for a detector that only detects.
pub(super) fn plain_images(view: View) -> Images {
    images_on(&Device::flex(), view)
}

fn images_on(device: &Device, view: View) -> Images {
    let View { height, width, pixels, sizes, to_view } = view;
    let data = TensorData::new(pixels, [sizes.len(), height, width, 3]);
    Images { pixels: Tensor::from_data(data, device), second_view: None, sizes, to_view }
}

pub(super) fn annotation_targets(annotations: &[Vec<Object>]) -> Vec<Vec<Target>> {
    let target = |object: &Object| Target { bbox: object.bbox, class: object.class, learn_box: true };
    annotations.iter().map(|objects| objects.iter().map(target).collect()).collect()
}

/// `learn_boxes`: whether the boxes of pseudo labels are learned, or their classes alone.
pub(super) fn pseudo_label_targets(pseudo_labels: &[Vec<Detection>], learn_boxes: bool) -> Vec<Vec<Target>> {
    let target = |label: &Detection| Target { bbox: label.bbox, class: label.class, learn_box: learn_boxes };
    pseudo_labels.iter().map(|labels| labels.iter().map(target).collect()).collect()
}

/// The targets of both, of each image.
pub(super) fn union(mut first: Vec<Vec<Target>>, second: Vec<Vec<Target>>) -> Vec<Vec<Target>> {
    first.iter_mut().zip(second).for_each(|(targets, more)| targets.extend(more));
    first
}

/// The detections that no annotation of their class overlaps by more than `iou_max`.
pub(super) fn away_from_annotations(
    detections: &[Detection],
    annotations: &[Object],
    iou_max: f32,
) -> Vec<Detection> {
    let objects = || annotations.iter().map(|object| (object.bbox, object.class));
    detections.iter().filter(|detection| !detection.is_one_of(objects(), iou_max)).copied().collect()
}

#[cfg(test)]
mod tests {
    use lacuna_boxes::{Box2, Score};

    use super::*;

    #[test]
    fn detections_of_annotated_objects_are_left_out() {
        let bbox = |x: f32| Box2::new(x, 0.0, x + 10.0, 10.0);
        let object = |x: f32, class: usize| Object { bbox: bbox(x), class };
        let detection = |x: f32, class: usize| Detection { bbox: bbox(x), class, score: Score(0.9) };
        // IoUs of 60/140, 40/160 and, of the other class, 1.
        let all = [detection(4.0, 0), detection(6.0, 0), detection(0.0, 1)];
        assert_eq!(away_from_annotations(&all, &[object(0.0, 0)], 0.4), all[1..]);
        assert_eq!(away_from_annotations(&all, &[], 0.4), all);
    }
}
