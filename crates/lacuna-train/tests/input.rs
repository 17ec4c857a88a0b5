//! What a model is shown is what torchvision's transform gives (`fixtures/torchvision/parts.json`).

#![allow(clippy::unwrap_used)] // the allowance for tests does not reach their helpers

#[path = "../../lacuna-models/tests/torchvision/scene.rs"]
#[allow(dead_code)]
mod scene;

use burn::tensor::Device;
use lacuna_boxes::Box2;
use lacuna_data::augment::{Resize, bilinear};
use lacuna_data::batch::Normalization;
use lacuna_data::decode::RgbImage;
use lacuna_models::ops;
use lacuna_train::model::InputConfig;
use scene::{boxes, fixture};

#[test]
fn sizes_are_torchvisions() {
    let table: Vec<[u32; 6]> =
        serde_json::from_value(fixture("parts.json")["transform"]["size_table"].clone()).unwrap();
    assert!(table.len() > 100);
    for [height, width, short_side, long_side_max, new_height, new_width] in table {
        let resize = Resize { short_side, long_side_max };
        let size = resize.view_size_of_torchvision((width, height));
        assert_eq!(
            size,
            (new_width.max(1), new_height.max(1)),
            "{width}x{height} to {short_side}, {long_side_max}"
        );
    }
}

/// The levels themselves are compared with PyTorch's where `bilinear` is tested.
#[test]
fn an_image_is_resized_normalized_and_padded() {
    let transform = &fixture("parts.json")["transform"];
    let (short_side, long_side_max) = (64, 100);
    assert_eq!((transform["short_side"].as_u64(), transform["long_side"].as_u64()), (Some(64), Some(100)));
    for (index, (width, height)) in [(53u32, 37u32), (120, 150)].into_iter().enumerate() {
        let [new_height, new_width]: [u32; 2] =
            serde_json::from_value(transform["resized"][index].clone()).unwrap();
        let pixels = (0..3 * width * height).map(|i| (i * 89 % 251) as u8).collect();
        let image = RgbImage::new(width, height, pixels);
        let input = InputConfig { short_side, long_side_max, ..InputConfig::TORCHVISION };
        let images = input.images(&image, false, &Device::flex());
        assert_eq!(images.sizes, [(new_width, new_height)]);
        let [_, padded_height, padded_width, _] = images.pixels.dims();
        assert_eq!((padded_height % 32, padded_width % 32), (0, 0));
        let (values, view) = (ops::values(images.pixels), bilinear(&image, (new_width, new_height)));
        let mut row = vec![0.0; 3 * new_width as usize];
        for y in 0..padded_height {
            let of_view = y < new_height as usize;
            if of_view {
                Normalization::Torchvision.row(&view[y * row.len()..][..row.len()], &mut row);
            }
            let padded = &values[3 * y * padded_width..][..3 * padded_width];
            let (inside, outside) = padded.split_at(if of_view { row.len() } else { 0 });
            assert!(inside == &row[..inside.len()] && outside.iter().all(|&value| value == 0.0));
        }
        let back = images.to_view[0].inverse();
        for (original, resized) in
            boxes(&transform["boxes"][index]).into_iter().zip(boxes(&transform["resized_boxes"][index]))
        {
            let close = |a: Box2, b: Box2| {
                [(a.x1, b.x1), (a.y1, b.y1), (a.x2, b.x2), (a.y2, b.y2)]
                    .iter()
                    .all(|(a, b)| (a - b).abs() < 1e-4)
            };
            assert!(
                close(images.to_view[0].apply(original), resized) && close(back.apply(resized), original)
            );
        }
    }
}
