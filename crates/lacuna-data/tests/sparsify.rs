//! The splits of the paper: how many boxes go, which never go, and that nothing is lost.

#![allow(clippy::unwrap_used)]

use lacuna_data::sparsify::{Percent, Sparse, SparsifyKind, sparsify};
use lacuna_data::{Builder, Dataset, Xywh, coco};
use proptest::prelude::*;

const UNIT: Xywh = Xywh { x: 0.0, y: 0.0, width: 1.0, height: 1.0 };

/// One image for each list; an annotation is (class, crowd).
fn dataset(images: &[Vec<(usize, bool)>]) -> Dataset {
    let mut builder = Builder::default();
    for class in 0..4 {
        builder.category(&format!("class {class}"));
    }
    for (n, annotations) in images.iter().enumerate() {
        let image = builder.image(&format!("{n}.jpg"), 10, 10);
        for &(class, crowd) in annotations {
            builder.annotation(image, class, UNIT, crowd, ());
        }
    }
    builder.finish()
}

fn percent(p: f64) -> Percent {
    Percent::new(p).unwrap()
}

fn ids(dataset: &Dataset) -> Vec<u64> {
    dataset.annotations().iter().map(|a| a.id).collect()
}

fn boxes_of(dataset: &Dataset, image: usize) -> usize {
    dataset.annotations_of(image).filter(|a| !a.crowd).count()
}

fn boxes_of_class(dataset: &Dataset, class: usize) -> usize {
    dataset.annotations().iter().filter(|a| !a.crowd && a.category == class).count()
}

fn any_dataset() -> impl Strategy<Value = Dataset> {
    let annotation = (0usize..4, prop::bool::weighted(0.1));
    prop::collection::vec(prop::collection::vec(annotation, 0..9), 1..30).prop_map(|images| dataset(&images))
}

fn any_kind() -> impl Strategy<Value = SparsifyKind> {
    let p = || prop_oneof![Just(0.0), Just(100.0), 0.0..100.0f64].prop_map(percent);
    prop_oneof![
        p().prop_map(SparsifyKind::Split1),
        p().prop_map(SparsifyKind::Split2),
        p().prop_map(SparsifyKind::Split3),
        Just(SparsifyKind::Easy),
        Just(SparsifyKind::Hard),
        Just(SparsifyKind::Extreme),
    ]
}

proptest! {
    #[test]
    fn kept_and_hidden_make_up_the_original(original in any_dataset(), kind in any_kind(), seed: u64) {
        let Sparse { kept, hidden } = sparsify(&original, kind, seed);
        let mut all = [ids(&kept), ids(&hidden)].concat();
        all.sort_unstable();
        prop_assert_eq!(all, ids(&original));
        prop_assert!(ids(&kept).is_sorted() && ids(&hidden).is_sorted());
        prop_assert!(hidden.annotations().iter().all(|a| !a.crowd), "a crowd was hidden");
        prop_assert_eq!(kept.images().len(), original.images().len());
        // Record for record the same text.
        let lines = |d: &Dataset| {
            let mut text = Vec::new();
            coco::write(d, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            text.lines().filter(|l| l.contains("bbox")).map(|l| l.trim_end_matches(',').to_owned()).collect::<Vec<_>>()
        };
        let mut parts = [lines(&kept), lines(&hidden)].concat();
        let mut whole = lines(&original);
        parts.sort();
        whole.sort();
        prop_assert_eq!(parts, whole);
        let again = sparsify(&original, kind, seed);
        prop_assert_eq!(ids(&again.kept), ids(&kept));
    }

    #[test]
    fn each_split_hides_what_it_says(original in any_dataset(), p in 0.0f64..=100.0, seed: u64) {
        let share = |n: usize| (n as f64 * p / 100.0 + 0.5).floor() as usize;
        let hide = |kind| sparsify(&original, kind, seed);

        let Sparse { hidden, .. } = hide(SparsifyKind::Split1(percent(p)));
        for class in 0..4 {
            prop_assert_eq!(boxes_of_class(&hidden, class), share(boxes_of_class(&original, class)));
        }
        let Sparse { hidden, .. } = hide(SparsifyKind::Split3(percent(p)));
        let n: usize = (0..4).map(|c| boxes_of_class(&original, c)).sum();
        prop_assert_eq!(hidden.annotations().len(), share(n));

        let Sparse { kept, hidden } = hide(SparsifyKind::Split2(percent(p)));
        for image in 0..original.images().len() {
            prop_assert!(boxes_of(&kept, image) > 0 || boxes_of(&original, image) == 0);
            for gone in hidden.annotations_of(image) {
                prop_assert!(kept.annotations_of(image).all(|a| a.crowd || a.category != gone.category));
            }
        }
        for image in 0..original.images().len() {
            let n = boxes_of(&original, image);
            let kept = |kind| boxes_of(&hide(kind).kept, image);
            prop_assert_eq!(kept(SparsifyKind::Easy), if n > 1 { n - 1 } else { n });
            prop_assert_eq!(kept(SparsifyKind::Hard), n - n / 2);
            prop_assert_eq!(kept(SparsifyKind::Extreme), n.min(1));
        }
    }
}

#[test]
fn half_of_an_odd_number_is_rounded_up() {
    let original = dataset(&[vec![(0, false); 5], vec![(1, false); 3]]);
    let Sparse { hidden, .. } = sparsify(&original, SparsifyKind::Split1(percent(50.0)), 0);
    assert_eq!((boxes_of_class(&hidden, 0), boxes_of_class(&hidden, 1)), (3, 2));
    assert!(
        Percent::new(-0.1).is_none() && Percent::new(100.1).is_none() && Percent::new(f64::NAN).is_none()
    );
}

#[test]
fn split2_deletes_with_the_probability_given() {
    // Two classes an image, so that one is kept by force only when both were drawn.
    let images: Vec<_> = (0..4000).map(|_| vec![(0, false), (1, false), (1, false)]).collect();
    let Sparse { hidden, .. } = sparsify(&dataset(&images), SparsifyKind::Split2(percent(30.0)), 1);
    // P(class 0 hidden) = 0.3 − 0.3²/2 = 0.255; the standard deviation over 4,000 images is 28.
    let n = boxes_of_class(&hidden, 0);
    assert!((1020 - 110..1020 + 110).contains(&n), "{n}");
    assert_eq!(boxes_of_class(&hidden, 1) % 2, 0);
}

#[test]
fn published_splits_never_change() {
    let images: Vec<_> = (0..6).map(|i| (0..i + 1).map(|c| (c % 4, false)).collect()).collect();
    let original = dataset(&images);
    let hidden = |kind, seed| ids(&sparsify(&original, kind, seed).hidden);
    let half = percent(50.0);
    let kinds = [
        SparsifyKind::Split1(half),
        SparsifyKind::Split2(half),
        SparsifyKind::Split3(half),
        SparsifyKind::Easy,
        SparsifyKind::Hard,
        SparsifyKind::Extreme,
    ];
    let found = kinds.map(|kind| hidden(kind, 0));
    assert_eq!(found.each_ref().map(Vec::as_slice), PUBLISHED);
    assert_ne!(hidden(SparsifyKind::Split3(half), 1), PUBLISHED[2]);
}

const PUBLISHED: [&[u64]; 6] = [
    &[1, 4, 5, 6, 9, 10, 11, 12, 14, 17, 20],
    &[3, 5, 6, 7, 8, 12, 13, 16, 18, 19, 20],
    &[3, 4, 5, 8, 10, 11, 13, 15, 17, 18, 21],
    &[3, 4, 8, 15, 17],
    &[3, 4, 8, 10, 12, 14, 16, 18, 21],
    &[3, 4, 5, 7, 8, 10, 11, 12, 14, 15, 16, 17, 19, 20, 21],
];
