//! Tests: properties of every scene, and the checksums of a few.

use std::sync::LazyLock;

use rayon::prelude::*;

use super::*;
use crate::layout::{Layout, PixelBox, Role, lay_out};
use crate::outline::Outline;

fn default_layout(index: u64) -> (usize, usize, Layout) {
    let (width, height) = (256 + index as u32 % 129, 208 + index as u32 % 113);
    let mut rng = Rng::new(Purpose::Synth, 77, 0, index);
    let layout = lay_out(&SynthConfig::default(), width, height, &mut rng);
    (width as usize, height as usize, layout)
}

/// Size and objects of enough scenes for statistics.
static MANY_SCENES: LazyLock<Vec<(usize, usize, Vec<SceneObject>)>> = LazyLock::new(|| {
    let objects_of = |index| {
        let (width, height, layout) = default_layout(index);
        (width, height, layout.objects())
    };
    (0..200).map(objects_of).collect()
});

/// FNV-1a.
fn checksum(scene: &Scene) -> u64 {
    let labels = scene.objects.iter().flat_map(|o| {
        let b = o.bbox;
        [o.class as f32, b.x1, b.y1, b.x2, b.y2, o.visible].map(f32::to_le_bytes).concat()
    });
    let size = [scene.width, scene.height].map(u32::to_le_bytes).concat();
    let bytes = size.into_iter().chain(scene.pixels.iter().copied()).chain(labels);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[test]
fn published_scenes_never_change() {
    let config = |seed| SynthConfig { seed, ..SynthConfig::default() };
    let sums = [(0, 0), (0, 1), (0, 99_999), (1, 0), (2, 7)]
        .map(|(seed, index)| format!("{:016x}", checksum(&render_scene(&config(seed), index))));
    let published =
        ["a1e059f9f652290f", "e27e487394d73b1d", "4c073a359500a3ab", "3980b2fa3329f957", "5eac33284ca8ed62"];
    assert_eq!(sums, published);
}

#[test]
fn a_scene_depends_on_nothing_but_its_seed_and_index() {
    let config = SynthConfig::default();
    let serial: Vec<Scene> = (0..12).map(|i| render_scene(&config, i)).collect();
    let parallel: Vec<Scene> =
        (0..12u32).into_par_iter().rev().map(|i| render_scene(&config, i.into())).collect();
    assert!(serial.iter().eq(parallel.iter().rev()));
    assert!(serial.windows(2).all(|pair| pair[0].pixels != pair[1].pixels));
    assert_ne!(render_scene(&SynthConfig { seed: 1, ..config }, 0), serial[0]);
}

#[test]
fn pictures_have_their_size_and_are_neither_black_nor_white() {
    let config = SynthConfig::default();
    for scene in (100..120).map(|i| render_scene(&config, i)) {
        assert!(config.width.contains(&scene.width) && config.height.contains(&scene.height));
        assert_eq!(scene.pixels.len(), (3 * scene.width * scene.height) as usize);
        let mean = scene.pixels.iter().map(|&p| f64::from(p)).sum::<f64>() / scene.pixels.len() as f64;
        assert!((25.0..230.0).contains(&mean), "{mean}");
        let clipped = scene.pixels.iter().filter(|&&p| p == 0 || p == 255).count();
        assert!(clipped < scene.pixels.len() / 4, "{clipped} samples are clipped");
    }
}

#[test]
fn every_scene_has_5_to_15_labeled_objects_inside_it() {
    for (width, height, objects) in &*MANY_SCENES {
        let (width, height) = (*width as f32, *height as f32);
        assert!((5..=15).contains(&objects.len()));
        for object in objects {
            let b = object.bbox;
            assert!(b.x1 >= 0.0 && b.y1 >= 0.0 && b.x2 <= width && b.y2 <= height);
            assert!(b.width().min(b.height()) >= VISIBLE_SIDE_MIN as f32, "{b:?}");
            assert!((VISIBLE_MIN..=1.0).contains(&object.visible));
        }
        for (i, a) in objects.iter().enumerate() {
            assert!(objects[..i].iter().all(|b| lacuna_boxes::iou(a.bbox, b.bbox) <= BOX_IOU_MAX));
        }
    }
}

#[test]
fn classes_are_equally_frequent() {
    let mut counts = [0; CLASSES.len()];
    for (_, _, objects) in &*MANY_SCENES {
        objects.iter().for_each(|o| counts[o.class] += 1);
    }
    let mean = counts.iter().sum::<usize>() as f64 / CLASSES.len() as f64;
    assert!(counts.iter().all(|&n| (n as f64 / mean - 1.0).abs() < 0.2), "{counts:?}");
}

#[test]
fn objects_are_small_medium_and_large_whole_and_covered() {
    let objects: Vec<SceneObject> = MANY_SCENES.iter().flat_map(|(_, _, objects)| objects).copied().collect();
    let share = |what: &dyn Fn(&SceneObject) -> bool| {
        objects.iter().filter(|o| what(o)).count() as f64 / objects.len() as f64
    };
    // The limits of the COCO evaluation.
    let small = share(&|o| o.bbox.area() < 32.0 * 32.0);
    let large = share(&|o| o.bbox.area() > 96.0 * 96.0);
    assert!((0.3..0.6).contains(&small), "{small}");
    assert!((0.05..0.2).contains(&large), "{large}");
    let covered = share(&|o| o.visible < 0.95);
    let half_covered = share(&|o| o.visible < 0.7);
    assert!((0.2..0.6).contains(&covered), "{covered}");
    assert!((0.05..0.3).contains(&half_covered), "{half_covered}");
}

/// Labels agree with a second implementation that draws every figure pixel by pixel, without stamps.
#[test]
fn boxes_enclose_exactly_the_visible_pixels() {
    for index in 0..6 {
        let (width, height, layout) = default_layout(index);
        // No object reaches further beyond the picture.
        let margin = height as i32 / 2;
        let mut visible_at = vec![None; width * height];
        let mut whole = Vec::new();
        for figure in &layout.figures {
            let label = matches!(figure.role, Role::Object(_)).then_some(whole.len());
            let mut pixels = 0;
            for y in -margin..height as i32 + margin {
                for x in -margin..width as i32 + margin {
                    let p = figure.pose.local([x as f32 + 0.5, y as f32 + 0.5]);
                    if p[0].abs() > 1.0 || p[1].abs() > 1.0 || figure.outline.distance(p) > 0.0 {
                        continue;
                    }
                    pixels += 1;
                    if (0..width as i32).contains(&x) && (0..height as i32).contains(&y) {
                        visible_at[y as usize * width + x as usize] = label;
                    }
                }
            }
            whole.extend(label.map(|_| pixels));
        }
        let objects = layout.objects();
        assert_eq!(objects.len(), whole.len());
        for (i, object) in objects.iter().enumerate() {
            let (mut bbox, mut visible) = (PixelBox::NONE, 0);
            for pixel in (0..width * height).filter(|&pixel| visible_at[pixel] == Some(i)) {
                bbox.include(pixel % width, pixel / width);
                visible += 1;
            }
            let (a, b) = (object.bbox, bbox.to_box());
            let apart = [a.x1 - b.x1, a.y1 - b.y1, a.x2 - b.x2, a.y2 - b.y2];
            assert!(apart.iter().all(|d| d.abs() <= 1.0), "scene {index}: {a:?} but {b:?}");
            assert!((object.visible - visible as f32 / whole[i] as f32).abs() < 0.01);
        }
    }
}

/// Stamps rely on both properties.
#[test]
fn outlines_are_distances_and_lie_in_the_unit_circle() {
    let mut rng = Rng::new(Purpose::Synth, 0, 0, 0);
    let mut outlines = Vec::new();
    for _ in 0..20 {
        outlines.extend((0..CLASSES.len()).map(|class| Outline::of_class(class, &mut rng).0));
        outlines.push(Outline::look_alike(&mut rng).0);
        outlines.push(Outline::blob(&mut rng));
        outlines.push(Outline::quadrilateral(&mut rng));
        outlines.push(Outline::wire(&mut rng, 0.02));
        outlines.push(Outline::scribble(&mut rng, 0.04));
    }
    for outline in outlines {
        for _ in 0..200 {
            let [p, q] = [0; 2].map(|_| [0; 2].map(|_| rng.range(-1.5, 1.5) as f32));
            let apart = ((p[0] - q[0]) * (p[0] - q[0]) + (p[1] - q[1]) * (p[1] - q[1])).sqrt();
            assert!((outline.distance(p) - outline.distance(q)).abs() <= apart + 1e-5);
            let is_outside = p[0] * p[0] + p[1] * p[1] > 1.001;
            assert!(!is_outside || outline.distance(p) > 0.0, "{p:?} is inside");
        }
    }
}

#[test]
fn crowded_and_tiny_pictures_still_get_their_objects() {
    let config = SynthConfig {
        width: 112..=112,
        height: 112..=112,
        objects: 15..=15,
        clutter: 10.0,
        side_max: 1.0,
        ..SynthConfig::default()
    };
    assert!((0..10).all(|index| render_scene(&config, index).objects.len() == 15));
}

#[test]
fn the_simplest_pictures_can_be_made() {
    let config = SynthConfig { objects: 0..=1, clutter: 0.0, ..SynthConfig::default() };
    assert!((0..10).all(|index| render_scene(&config, index).objects.len() <= 1));
}

#[test]
#[expect(clippy::reversed_empty_ranges)]
fn bad_configurations_are_named() {
    let default = SynthConfig::default;
    let refused = |config: SynthConfig| config.check().map_err(|error| error.to_string()).unwrap_err();
    assert_eq!(default().check(), Ok(()));
    assert_eq!(
        refused(SynthConfig { width: 300..=200, ..default() }),
        "`width` is the empty range 300..=200"
    );
    assert_eq!(refused(SynthConfig { height: 10..=200, ..default() }), "`height` is 10, outside 64 to 4096");
    assert_eq!(refused(SynthConfig { clutter: -1.0, ..default() }), "`clutter` is -1, outside 0 to 10");
    assert_eq!(refused(SynthConfig { side_max: f32::NAN, ..default() }), "`side_max` is NaN, outside 0 to 1");
    assert_eq!(
        refused(SynthConfig { width: 64..=300, objects: 5..=50, ..default() }),
        "50 objects of at least 14 px have no room in 64x208 px"
    );
}
