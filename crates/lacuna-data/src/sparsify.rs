//! Sparse data sets from complete ones: the splits of the paper's Datasets section.
//!
//! Crowd regions are never sampled and never deleted; "boxes" below are the others. Rounding, and
//! what the paper leaves open, is decided here:
//!
//! - Split-1 and Split-3 delete ⌊n·p/100 + ½⌋ of n boxes: of each class, or of all.
//! - Split-2 deletes all boxes of a class in an image with probability p %. When that would leave
//!   an image without boxes, one of its classes, drawn uniformly, is kept whole.
//! - Easy deletes one box per image, but keeps an only box.
//! - Hard deletes ⌊n/2⌋ of an image's n boxes, so an only box stays.
//! - Extreme keeps one box per image.

use crate::dataset::Dataset;
use lacuna_random::{Purpose, Rng};

/// Which boxes are deleted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SparsifyKind {
    /// A share of each class.
    Split1(Percent),
    /// Classes of an image, each with this probability.
    Split2(Percent),
    /// A share of all boxes, whatever their class.
    Split3(Percent),
    /// One box of each image.
    Easy,
    /// Half of the boxes of each image.
    Hard,
    /// All boxes of each image but one.
    Extreme,
}

/// A number from 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percent(f64);

impl Percent {
    /// `None` outside 0..=100.
    pub fn new(percent: f64) -> Option<Self> {
        (0.0..=100.0).contains(&percent).then_some(Self(percent))
    }

    /// This share of `n`, rounded to the nearest; a half is rounded up.
    fn share_of(self, n: usize) -> usize {
        (n as f64 * self.0 / 100.0 + 0.5).floor() as usize
    }
}

/// A data set in two parts: the annotations that stay and those that are hidden.
pub struct Sparse {
    /// The annotations that stay.
    pub kept: Dataset,
    /// The annotations that are hidden.
    pub hidden: Dataset,
}

/// Hide boxes. Every annotation is in exactly one of the two data sets, in the order of the
/// original; the same data set, kind and seed give the same result everywhere.
pub fn sparsify(dataset: &Dataset, kind: SparsifyKind, seed: u64) -> Sparse {
    let mut hidden = vec![false; dataset.annotations().len()];
    let mut hide = |boxes: &[usize], chosen: &[usize]| chosen.iter().for_each(|&c| hidden[boxes[c]] = true);
    // A generator for each class, each image, or the whole data set.
    let rng_for = |index: u64| Rng::new(Purpose::Sparsify, seed, 0, index);

    match kind {
        SparsifyKind::Split1(percent) => {
            for (class, boxes) in
                boxes_by(dataset, dataset.categories().len(), |a| a.category).iter().enumerate()
            {
                let id = dataset.categories()[class].id;
                hide(boxes, &rng_for(id).choose(boxes.len(), percent.share_of(boxes.len())));
            }
        }
        SparsifyKind::Split3(percent) => {
            let boxes = &boxes_by(dataset, 1, |_| 0)[0];
            hide(boxes, &rng_for(0).choose(boxes.len(), percent.share_of(boxes.len())));
        }
        SparsifyKind::Split2(_) | SparsifyKind::Easy | SparsifyKind::Hard | SparsifyKind::Extreme => {
            for (image, boxes) in boxes_by(dataset, dataset.images().len(), |a| a.image).iter().enumerate() {
                let mut rng = rng_for(dataset.images()[image].id);
                let n = boxes.len();
                let chosen = match kind {
                    SparsifyKind::Split2(percent) => whole_classes(dataset, boxes, percent, &mut rng),
                    SparsifyKind::Easy => rng.choose(n, usize::from(n > 1)),
                    SparsifyKind::Hard => rng.choose(n, n / 2),
                    _ => rng.choose(n, n.saturating_sub(1)),
                };
                hide(boxes, &chosen);
            }
        }
    }
    Sparse {
        kept: dataset.filter(|index, _| !hidden[index]),
        hidden: dataset.filter(|index, _| hidden[index]),
    }
}

/// The indices of the annotations that are not crowds, in `n` groups.
fn boxes_by(dataset: &Dataset, n: usize, group: impl Fn(&crate::Annotation) -> usize) -> Vec<Vec<usize>> {
    let mut groups = vec![Vec::new(); n];
    for (index, annotation) in dataset.annotations().iter().enumerate() {
        if !annotation.crowd {
            groups[group(annotation)].push(index);
        }
    }
    groups
}

/// Split-2 in one image: positions in `boxes` of the classes that are deleted.
fn whole_classes(dataset: &Dataset, boxes: &[usize], percent: Percent, rng: &mut Rng) -> Vec<usize> {
    let class_of = |position: usize| dataset.annotations()[boxes[position]].category;
    let mut classes: Vec<usize> = (0..boxes.len()).map(class_of).collect();
    classes.sort_unstable();
    classes.dedup();
    let mut deleted: Vec<bool> = classes.iter().map(|_| rng.chance(percent.0 / 100.0)).collect();
    if !classes.is_empty() && deleted.iter().all(|&d| d) {
        deleted[rng.below(classes.len())] = false;
    }
    let is_deleted = |position: &usize| classes.binary_search(&class_of(*position)).is_ok_and(|c| deleted[c]);
    (0..boxes.len()).filter(is_deleted).collect()
}
