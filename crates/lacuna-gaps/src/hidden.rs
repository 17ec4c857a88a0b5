//! What a simulated split took away from a data set: the truth that results are measured against.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use lacuna_boxes::{Detection, Score};
use lacuna_data::{Annotation, Builder, Category, Dataset, Error, Image, Xywh, coco};
use lacuna_eval::{
    DetectionMatch, ImageDetection, Recovery, RecoveryAbove, match_detections, recovery_above,
};

use crate::complete::Candidate;
use crate::judge::judge;
use crate::overlap::OverlapRule;

/// Reads the annotations that a simulated split took away from a data set. The result has the data set's images and
/// classes, in the same order; classes are found by name. `only_known` leaves out classes that the data set lacks, for
/// a data set that was restricted to some.
///
/// # Errors
/// What is wrong with the file; [`Error::NotHidden`] or [`Error::UnknownClass`] when it has images or classes that
/// the data set lacks.
pub fn read_hidden(path: &Path, dataset: &Dataset, only_known: bool) -> lacuna_data::Result<Dataset> {
    let hidden = coco::read(path)?;
    let known: HashMap<u64, usize> =
        dataset.images().iter().enumerate().map(|(index, image)| (image.id, index)).collect();
    let index_of = |image: &Image| {
        let index = known.get(&image.id).copied();
        index.filter(|&index| dataset.images()[index].file_name == image.file_name).ok_or_else(|| {
            let reason = format!("its image {} ({}) is not in the data set", image.id, image.file_name);
            Error::NotHidden { path: path.to_owned(), reason }
        })
    };
    let indices = hidden.images().iter().map(index_of).collect::<lacuna_data::Result<Vec<usize>>>()?;
    let names: Vec<String> = dataset.categories().iter().map(|category| category.name.clone()).collect();
    let mut builder = Builder::extending(&dataset.filter(|_, _| false));
    for annotation in hidden.annotations() {
        let Category { id, name, .. } = &hidden.categories()[annotation.category];
        let known = dataset.categories();
        // Of several classes of one name, that of the same id.
        let class = known.iter().position(|known| known.name == *name && known.id == *id);
        match class.or_else(|| names.iter().position(|known| known == name)) {
            Some(class) => {
                let Annotation { image, bbox, area, crowd, .. } = *annotation;
                builder.annotation_of_area(indices[image], class, (bbox, area), crowd, ());
            }
            None if only_known => {}
            None => return Err(Error::UnknownClass { name: name.clone(), known: names }),
        }
    }
    Ok(builder.finish())
}

/// Makes sure that the annotations of a file are hidden from a data set: that most of them are not in it. A data set may
/// repeat a few boxes, of which a split hides one.
///
/// # Errors
/// [`Error::NotHidden`] when most of them are given, as with the file from which they were hidden.
pub fn ensure_hidden(path: &Path, given: &Dataset, hidden: &Dataset) -> lacuna_data::Result<()> {
    let key = |annotation: &Annotation| {
        let Xywh { x, y, width, height } = annotation.bbox;
        (annotation.image, annotation.category, [x, y, width, height].map(f64::to_bits))
    };
    let all_given: HashSet<_> = given.annotations().iter().map(key).collect();
    let in_both =
        hidden.annotations().iter().filter(|annotation| all_given.contains(&key(annotation))).count();
    if 2 * in_both <= hidden.annotations().len() {
        return Ok(());
    }
    let reason = format!("{in_both} of its {} boxes are in the data set", hidden.annotations().len());
    Err(Error::NotHidden { path: path.to_owned(), reason })
}

/// The whole truth: what is given and what was hidden.
pub fn given_and_hidden(given: &Dataset, hidden: &Dataset) -> Dataset {
    let mut builder = Builder::extending(given);
    for annotation in hidden.annotations() {
        let Annotation { image, category, bbox, area, crowd, .. } = *annotation;
        builder.annotation_of_area(image, category, (bbox, area), crowd, ());
    }
    builder.finish()
}

/// How many of the hidden objects of each class were recovered, at an IoU of at least `iou_min`. Each object counts
/// once: a duplicate, which a confidence takes for right, is wrong here.
pub fn recovery_by_class(hidden: &Dataset, recovered: &[Candidate], iou_min: f32) -> Vec<Recovery> {
    let proposal = |&Candidate { image, detection, confidence }: &Candidate| {
        ImageDetection::from_detection(image, Detection { score: Score(confidence.0), ..detection })
    };
    let proposals: Vec<ImageDetection> = recovered.iter().map(proposal).collect();
    let mut classes = vec![Recovery::default(); hidden.categories().len()];
    let matches = match_detections(hidden, &proposals, iou_min.into());
    for (proposal, matched) in proposals.iter().zip(matches) {
        let of_class = &mut classes[proposal.class];
        match matched {
            DetectionMatch::Matched(_) => {
                of_class.right += 1;
                of_class.proposed += 1;
            }
            DetectionMatch::Wrong => of_class.proposed += 1,
            DetectionMatch::Ignored => {}
        }
    }
    for annotation in hidden.annotations().iter().filter(|annotation| !annotation.crowd) {
        classes[annotation.category].hidden += 1;
    }
    classes
}

/// What accepting all candidates above each of some thresholds would recover of the hidden objects, at an IoU of at
/// least `iou_min`. The scores of `detections` are what the thresholds are compared with.
pub fn recovery_above_thresholds(
    given: &Dataset,
    hidden: &Dataset,
    detections: &[ImageDetection],
    rule: &OverlapRule,
    iou_min: f64,
    thresholds: &[f64],
) -> Vec<RecoveryAbove> {
    let mut images: Vec<Vec<ImageDetection>> = vec![Vec::new(); given.images().len()];
    detections.iter().for_each(|detection| images[detection.image].push(*detection));
    images.iter_mut().for_each(|image| image.sort_by(|a, b| b.score.total_cmp(&a.score)));
    let detection = |found: &ImageDetection| Detection {
        bbox: found.bbox.to_box(),
        class: found.class,
        score: Score(found.score as f32),
    };
    let plain: Vec<Vec<Detection>> =
        images.iter().map(|image| image.iter().map(detection).collect()).collect();
    let judged = judge(given, &plain, rule);
    let pairs = judged.iter().flatten().zip(images.iter().flatten());
    let proposals: Vec<ImageDetection> =
        pairs.filter(|(judged, _)| judged.is_candidate()).map(|(_, found)| *found).collect();
    recovery_above(hidden, &proposals, iou_min, thresholds)
}
