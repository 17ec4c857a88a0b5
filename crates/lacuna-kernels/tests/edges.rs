//! What happens at the edges: nothing to do, numbers that are none, shapes that do not fit.

// A failed `unwrap` is a failed test, in helpers, too.
#![allow(clippy::unwrap_used)]

mod common;

use common::numbers;
use lacuna_kernels::{
    Algorithm, Average, Conv2d, Epilogue, FocalLoss, Grid, Isa, MaxPool2d, MeanVariance, NormGradients,
    Region, RoiAlign, SegmentNorm, Sgd, SgdParameter, ShapeError, UpsampleAdd, Window, ema, relu_gradient,
};

const NONE: Epilogue = Epilogue { scale: None, shift: None, residual: None, relu: false };

#[test]
fn an_empty_batch_works() {
    for isa in Isa::available() {
        for window in [Window::new(3, 1, 1), Window::new(1, 1, 0), Window::new(7, 2, 3)] {
            for channels in [3, 32] {
                let conv = Conv2d::new(vec![Grid::new(0, 16, 16)], channels, 32, window).unwrap();
                let w = numbers(1, window.kernel * window.kernel * channels * 32);
                assert!(conv.forward(isa, &[], &w, &NONE).unwrap().is_empty());
                assert!(conv.input_gradient(isa, &[], &w, None).unwrap().is_empty());
                assert_eq!(conv.weight_gradient(isa, &[], &[], None).unwrap(), vec![0.0; w.len()]);
            }
        }
        let pool = MaxPool2d::new(Grid::new(0, 8, 8), 5, Window::new(3, 2, 1)).unwrap();
        assert!(pool.gradient(isa, &[], &pool.forward(isa, &[]).unwrap().taps).unwrap().is_empty());
        let upsample = UpsampleAdd::new(Grid::new(0, 2, 2), Grid::new(0, 4, 4), 5).unwrap();
        assert!(upsample.forward(isa, &[], &[]).unwrap().is_empty());
        assert!(upsample.top_gradient(isa, &[]).unwrap().is_empty());
        assert_eq!(relu_gradient(isa, Some(&[]), &mut [], 3, true).unwrap().unwrap(), [0.0; 3]);
        let focal = FocalLoss { alpha: 0.25, gamma: 2.0 }.forward(isa, &[], 4, &[], None).unwrap();
        assert_eq!((focal.loss, focal.gradient), (0.0, vec![]));
        for segments in [&[][..], &[0, 0]] {
            let norm = SegmentNorm::new(segments, 4, 2, 1e-5).unwrap();
            let result = norm.forward(isa, &[], &[1.0; 4], &[0.0; 4], None, true).unwrap();
            assert!(result.y.is_empty());
            assert_eq!(result.statistics.variance, vec![0.0; 2 * segments.len()]);
            let gradients =
                norm.gradients(isa, &[], &result.statistics, &[1.0; 4], Some(&[]), &mut [], true).unwrap();
            assert_eq!(
                gradients,
                NormGradients { x: Some(vec![]), weight: vec![0.0; 4], bias: vec![0.0; 4] }
            );
        }
    }
}

#[test]
fn no_regions_give_no_output_and_no_gradient() {
    let align = RoiAlign { height: 7, width: 7, spatial_scale: 1.0, sampling_ratio: 2, aligned: false };
    let grid = Grid::new(2, 4, 4);
    assert!(align.forward(Isa::best(), &numbers(1, 32 * 3), grid, 3, &[]).unwrap().is_empty());
    assert_eq!(align.gradient(Isa::best(), &[], grid, 3, &[]).unwrap(), vec![0.0; 32 * 3]);
}

#[test]
fn what_is_not_finite_stays_so() {
    for isa in Isa::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for algorithm in
                [Algorithm::Winograd6, Algorithm::Winograd4, Algorithm::Winograd2, Algorithm::Direct]
            {
                let conv = Conv2d::new(vec![Grid::new(1, 9, 9)], 18, 20, Window::new(3, 1, 1)).unwrap();
                let (mut x, w) = (numbers(1, 81 * 18), numbers(2, 9 * 18 * 20));
                x[40 * 18] = bad;
                // With a ReLU, −∞ may become 0; NaN may not.
                let epilogue = Epilogue { relu: bad.is_nan(), ..NONE };
                let y = conv.forward_by(algorithm, isa, &x, &w, &epilogue).unwrap();
                assert!(y[40 * 20..41 * 20].iter().all(|y| !y.is_finite()), "{algorithm:?}");
                let dz = numbers(3, 81 * 20);
                let dw = conv.weight_gradient_by(algorithm, isa, &x, &dz, None).unwrap();
                assert!(dw[4 * 18 * 20..][..20].iter().all(|dw| !dw.is_finite()), "{algorithm:?}");
            }
            let focal = FocalLoss { alpha: 0.25, gamma: 2.0 };
            for label in [-1, 1] {
                let result = focal.forward(isa, &[0.5, bad], 2, &[label], None).unwrap();
                assert!(!result.loss.is_finite() && !result.gradient[1].is_finite(), "{bad} {label}");
                assert!(result.gradient[0].is_finite());
            }
            // A row of weight 0 is not looked at.
            let result = focal.forward(isa, &[0.5, bad], 2, &[-1], Some(&[0.0])).unwrap();
            assert_eq!((result.loss, result.gradient), (0.0, vec![0.0, 0.0]));
        }
        // Only the segment and the group are spoiled, but all of them.
        let norm = SegmentNorm::new(&[9, 7], 6, 2, 1e-5).unwrap();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 4 * 6 + 1, 8 * 6 + 2] {
                let mut x = numbers(1, 16 * 6);
                x[at] = bad;
                let result = norm.forward(isa, &x, &[1.0; 6], &[0.0; 6], None, true).unwrap();
                let mut dy = numbers(2, 16 * 6);
                let y = Some(&result.y[..]);
                let gradients =
                    norm.gradients(isa, &x, &result.statistics, &[1.0; 6], y, &mut dy, true).unwrap();
                for (i, (y, dx)) in result.y.iter().zip(gradients.x.unwrap()).enumerate() {
                    let spoiled = i < 9 * 6 && i % 6 < 3;
                    assert!(y.is_nan() == spoiled && dx.is_nan() == spoiled, "{bad} at {at}: {i} {y} {dx}");
                }
                assert!((0..6).all(|c| gradients.weight[c].is_nan() == (c < 3)));
            }
        }
        let pool = MaxPool2d::new(Grid::new(1, 2, 2), 1, Window::new(2, 1, 0)).unwrap();
        for at in 0..4 {
            let mut x = [1.0, 2.0, 3.0, 4.0];
            x[at] = f32::NAN;
            let pooled = pool.forward(isa, &x).unwrap();
            assert!(pooled.y[0].is_nan());
            assert_eq!(usize::from(pooled.taps[0]), at);
            assert_eq!(pool.maxima(isa, &x).unwrap()[0].to_bits(), pooled.y[0].to_bits());
        }
        let pooled = pool.forward(isa, &[f32::NEG_INFINITY; 4]).unwrap();
        assert_eq!((pooled.y[0], pooled.taps[0]), (f32::NEG_INFINITY, 0));
    }
}

/// Images cut into tiles together, 2×2 with a pixel between them: nothing is spoiled but what is near.
#[test]
fn what_is_not_finite_stays_near() {
    const SIZE: usize = 32;
    let conv = Conv2d::new(vec![Grid::new(4, SIZE, SIZE)], 16, 16, Window::new(3, 1, 1)).unwrap();
    assert_eq!(conv.algorithm(), Algorithm::Winograd6);
    let pixels = 4 * SIZE * SIZE;
    let (x, w) = (numbers(1, pixels * 16), numbers(2, 9 * 16 * 16));
    let place = |pixel: usize| {
        let (image, y, x) = (pixel / (SIZE * SIZE), pixel / SIZE % SIZE, pixel % SIZE);
        (image / 2 * (SIZE + 1) + y, image % 2 * (SIZE + 1) + x)
    };
    for bad_pixel in [0, 20 * SIZE + 20, SIZE * SIZE - 1, 2 * SIZE * SIZE + SIZE - 1, pixels - 1] {
        let mut bad = x.clone();
        bad[bad_pixel * 16] = f32::NAN;
        let bad_at = place(bad_pixel);
        for isa in Isa::available() {
            let y = conv.forward(isa, &bad, &w, &NONE).unwrap();
            let dx = conv.input_gradient(isa, &bad, &w, None).unwrap();
            for pixel in 0..pixels {
                let at = place(pixel);
                let distance = at.0.abs_diff(bad_at.0).max(at.1.abs_diff(bad_at.1));
                let finite = |of: &[f32]| of[pixel * 16..][..16].iter().all(|value| value.is_finite());
                // A tile of 6×6 and a pixel around it.
                assert!(pixel != bad_pixel || !finite(&y) && !finite(&dx));
                assert!(distance <= 6 || finite(&y) && finite(&dx), "{bad_pixel} spoils {pixel}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_tiles() {
    let conv = Conv2d::new(vec![Grid::new(1, 14, 14)], 18, 20, Window::new(3, 1, 1)).unwrap();
    let (bad_pixel, bad_channel) = ((5, 6), 7);
    let (mut x, w, dz) = (numbers(1, 196 * 18), numbers(2, 9 * 18 * 20), numbers(3, 196 * 20));
    x[(bad_pixel.0 * 14 + bad_pixel.1) * 18 + bad_channel] = f32::NAN;
    let mut bad_dz = dz.clone();
    bad_dz[(bad_pixel.0 * 14 + bad_pixel.1) * 20] = f32::INFINITY;
    let tiles = [
        (Algorithm::Winograd6, 6),
        (Algorithm::Winograd4, 4),
        (Algorithm::Winograd2, 2),
        (Algorithm::Direct, 1),
    ];
    for (algorithm, size) in tiles {
        // Whether the tile of coordinate `at`, with a pixel on each side, reaches `bad`.
        let reaches =
            |at: usize, bad: usize| (at / size * size..at / size * size + size + 2).contains(&(bad + 1));
        for isa in Isa::available() {
            let y = conv.forward_by(algorithm, isa, &x, &w, &NONE).unwrap();
            let dx = conv.input_gradient_by(algorithm, isa, &bad_dz, &w, None).unwrap();
            for (at_y, at_x) in (0..14).flat_map(|y| (0..14).map(move |x| (y, x))) {
                let spoiled = reaches(at_y, bad_pixel.0) && reaches(at_x, bad_pixel.1);
                let pixel = at_y * 14 + at_x;
                let finite = |of: &[f32], channels: usize| {
                    of[pixel * channels..][..channels].iter().all(|value| value.is_finite())
                };
                assert!(spoiled || finite(&y, 20) && finite(&dx, 18), "{algorithm:?} {at_y} {at_x}");
            }
            let dw = conv.weight_gradient_by(algorithm, isa, &x, &dz, None).unwrap();
            for (row, dw) in dw.chunks_exact(20).enumerate() {
                assert!(row % 18 == bad_channel || dw.iter().all(|dw| dw.is_finite()), "{algorithm:?} {row}");
            }
        }
    }
}

#[test]
fn a_region_of_any_size_ends() {
    let align = RoiAlign { height: 2, width: 2, spatial_scale: 1.0, sampling_ratio: 0, aligned: true };
    let (grid, x) = (Grid::new(1, 4, 4), numbers(1, 16));
    let region = |x1: f32, x2: f32| Region { image: 0, x1, y1: 0.0, x2, y2: 3.0 };
    for (x1, x2) in [(0.0, 1e6), (0.0, 1e20), (0.0, f32::MAX), (-1e9, 1.0), (-f32::MAX, 0.0), (-1e20, 1e20)] {
        for sampling_ratio in [0, 2] {
            let align = RoiAlign { sampling_ratio, ..align };
            let y = align.forward(Isa::best(), &x, grid, 1, &[region(x1, x2)]).unwrap();
            assert!(y.iter().all(|y| y.is_finite()), "{y:?}");
            let dx = align.gradient(Isa::best(), &[1.0; 4], grid, 1, &[region(x1, x2)]).unwrap();
            assert!(dx.iter().all(|dx| dx.is_finite()), "{dx:?}");
        }
    }
    // Coordinates that are not finite, and finite ones whose difference is not.
    let (infinity, most) = (f32::INFINITY, f32::MAX);
    for (x1, x2) in [(0.0, infinity), (-infinity, 1.0), (1.0, -infinity), (0.0, f32::NAN), (-most, most)] {
        for (aligned, sampling_ratio) in [(false, 0), (false, 2), (true, 0), (true, 2)] {
            let align = RoiAlign { aligned, sampling_ratio, ..align };
            let y = align.forward(Isa::best(), &x, grid, 1, &[region(x1, x2)]).unwrap();
            assert!(y.iter().all(|y| y.is_nan()), "{x1} {x2} {y:?}");
            let dx = align.gradient(Isa::best(), &[1.0; 4], grid, 1, &[region(x1, x2)]).unwrap();
            assert_eq!(dx, [0.0; 16]);
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let isa = Isa::best();
    let conv = Conv2d::new(vec![Grid::new(2, 5, 6)], 3, 4, Window::new(3, 1, 1)).unwrap();
    let error = conv.forward(isa, &[0.0; 7], &[0.0; 108], &NONE).unwrap_err();
    assert_eq!(error.to_string(), "x has 7 elements, but its shape [60, 3] has 180");
    let error = conv.forward(isa, &[0.0; 180], &[0.0; 100], &NONE).unwrap_err();
    assert_eq!(error.to_string(), "w has 100 elements, but its shape [3, 3, 3, 4] has 108");
    let scale = Epilogue { scale: Some(&[1.0; 3]), ..NONE };
    let error = conv.forward(isa, &[0.0; 180], &[0.0; 108], &scale).unwrap_err();
    assert_eq!(error.to_string(), "scale has 3 elements, but its shape [4] has 4");
    let residual = Epilogue { residual: Some(&[1.0; 3]), ..NONE };
    assert!(conv.forward(isa, &[0.0; 180], &[0.0; 108], &residual).is_err());
    assert!(conv.input_gradient(isa, &[0.0; 9], &[0.0; 108], None).is_err());
    assert!(conv.weight_gradient(isa, &[0.0; 180], &[0.0; 9], None).is_err());

    let error = Conv2d::new(vec![Grid::new(1, 4, 9)], 1, 1, Window::new(7, 1, 1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a 7×7 window (kernel 7, dilation 1) does not fit a 4×9 image with padding 1"
    );
    let zero = Window { kernel: 3, stride: 0, padding: 0, dilation: 1 };
    assert_eq!(
        Conv2d::new(vec![Grid::new(1, 4, 4)], 1, 1, zero).unwrap_err(),
        ShapeError::Zero { what: "stride" }
    );
    assert!(Conv2d::new(vec![Grid::new(1, 4, 4)], 0, 1, Window::new(1, 1, 0)).is_err());

    let error = UpsampleAdd::new(Grid::new(1, 2, 2), Grid::new(2, 4, 4), 8).unwrap_err();
    assert_eq!(
        error.to_string(),
        "top has shape [1, 2, 2, 8], which does not fit lateral of shape [2, 4, 4, 8]"
    );
    assert!(MaxPool2d::new(Grid::new(1, 4, 4), 1, Window::new(2, 1, 2)).is_err());
    let around = Window { kernel: 2, stride: 1, padding: 1, dilation: 3 };
    assert!(MaxPool2d::new(Grid::new(1, 2, 2), 1, around).is_err());

    let focal = FocalLoss { alpha: 0.25, gamma: 2.0 };
    let error = focal.forward(isa, &[0.0; 4], 2, &[-1, 2], None).unwrap_err();
    assert_eq!(error.to_string(), "row 1 of labels is 2, outside 0..2");
    assert!(focal.forward(isa, &[0.0; 4], 2, &[-1, -1], Some(&[1.0])).is_err());
    for gamma in [-1.0, f32::NAN, f32::INFINITY] {
        let error = FocalLoss { alpha: 0.25, gamma }.forward(isa, &[0.0; 2], 2, &[0], None).unwrap_err();
        assert_eq!(error.to_string(), format!("gamma is {gamma}, but must be finite and not negative"));
    }

    let error = SegmentNorm::new(&[3], 6, 4, 1e-5).unwrap_err();
    assert_eq!(error.to_string(), "channels has shape [6], which does not fit groups of shape [4]");
    let error = SegmentNorm::new(&[3], 6, 3, -1.0).unwrap_err();
    assert_eq!(error.to_string(), "epsilon is -1, but must be finite and not negative");
    assert!(SegmentNorm::new(&[3], 6, 0, 1e-5).is_err() && SegmentNorm::new(&[3], 0, 1, 1e-5).is_err());
    let norm = SegmentNorm::new(&[1, 2], 6, 3, 1e-5).unwrap();
    let (x, six) = ([0.5; 18], [1.0; 6]);
    let error = norm.forward(isa, &x[..12], &six, &six, None, false).unwrap_err();
    assert_eq!(error.to_string(), "x has 12 elements, but its shape [3, 6] has 18");
    assert!(norm.forward(isa, &x, &six[..5], &six, None, false).is_err());
    assert!(norm.forward(isa, &x, &six, &six[..5], None, false).is_err());
    assert!(norm.forward(isa, &x, &six, &six, Some(&six), false).is_err());
    let statistics = norm.forward(isa, &x, &six, &six, None, false).unwrap().statistics;
    assert!(norm.gradients(isa, &x[..6], &statistics, &six, None, &mut x.clone(), true).is_err());
    assert!(norm.gradients(isa, &x, &statistics, &six[..5], None, &mut x.clone(), true).is_err());
    assert!(norm.gradients(isa, &x, &statistics, &six, Some(&six), &mut x.clone(), true).is_err());
    assert!(norm.gradients(isa, &x, &statistics, &six, None, &mut six.clone(), true).is_err());
    let other = MeanVariance { mean: vec![0.0; 3], variance: vec![0.0; 6] };
    let error = norm.gradients(isa, &x, &other, &six, None, &mut x.clone(), true).unwrap_err();
    assert_eq!(error.to_string(), "mean has 3 elements, but its shape [2, 3] has 6");

    let align = RoiAlign { height: 1, width: 1, spatial_scale: 1.0, sampling_ratio: 1, aligned: true };
    let outside = Region { image: 3, x1: 0.0, y1: 0.0, x2: 1.0, y2: 1.0 };
    let error = align.forward(isa, &[0.0; 4], Grid::new(1, 2, 2), 1, &[outside]).unwrap_err();
    assert_eq!(error.to_string(), "row 0 of regions is 3, outside 0..1");

    let sgd = Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0 };
    let mut slot = [SgdParameter { parameter: &mut [0.0; 2], gradient: &[0.0; 3], velocity: &mut [0.0; 2] }];
    assert!(sgd.step(isa, &mut slot).is_err());
    assert!(ema(isa, 0.9, &mut [Average { average: &mut [0.0; 2], value: &[0.0; 3] }]).is_err());
    assert!(relu_gradient(isa, None, &mut [0.0; 4], 3, true).is_err());
    assert!(relu_gradient(isa, None, &mut [0.0; 4], 0, true).is_err());
}

#[test]
fn sizes_that_overflow_are_errors() {
    let too_large = |error: ShapeError| assert!(matches!(error, ShapeError::TooLarge { .. }), "{error}");
    let huge = 1 << 62;
    // Products that wrap around to something small.
    let wrapping = vec![Grid::new(huge + 1, 2, 2)];
    too_large(Conv2d::new(wrapping.clone(), 1, 1, Window::new(1, 1, 0)).unwrap_err());
    too_large(MaxPool2d::new(wrapping[0], 1, Window::new(1, 1, 0)).unwrap_err());
    too_large(UpsampleAdd::new(wrapping[0], wrapping[0], 1).unwrap_err());
    too_large(SegmentNorm::new(&[huge, huge, huge, huge], 1, 1, 1e-5).unwrap_err());
    too_large(SegmentNorm::new(&[4], huge, 1, 1e-5).unwrap_err());
    // A sum that wraps around.
    too_large(Conv2d::new(vec![Grid::new(1 << 60, 1, 1); 16], 1, 1, Window::new(1, 1, 0)).unwrap_err());
    // Channels, on either side.
    let small = || vec![Grid::new(1, 2, 2)];
    too_large(Conv2d::new(small(), huge, 1, Window::new(1, 1, 0)).unwrap_err());
    too_large(Conv2d::new(small(), 1, huge, Window::new(1, 1, 0)).unwrap_err());
    // An empty batch of images that are too large each.
    too_large(Conv2d::new(vec![Grid::new(0, huge, huge)], 1, 1, Window::new(1, 1, 0)).unwrap_err());
    // A padded copy of no pixels, and windows beyond counting.
    for window in [
        Window { kernel: 3, stride: 1 << 31, padding: (1 << 31) - 1, dilation: 1 },
        Window { kernel: 3, stride: 1, padding: usize::MAX, dilation: 1 },
        Window { kernel: 3, stride: 1, padding: huge, dilation: 1 },
        Window { kernel: 3, stride: 1, padding: 1, dilation: usize::MAX },
        Window { kernel: usize::MAX, stride: 1, padding: 1, dilation: 1 },
    ] {
        too_large(Conv2d::new(small(), 1, 1, window).unwrap_err());
    }
    let align = RoiAlign { height: huge, width: 4, spatial_scale: 1.0, sampling_ratio: 1, aligned: true };
    let region = Region { image: 0, x1: 0.0, y1: 0.0, x2: 1.0, y2: 1.0 };
    too_large(align.forward(Isa::best(), &[0.0; 4], Grid::new(1, 2, 2), 1, &[region]).unwrap_err());
    let error = ShapeError::Length { tensor: "x", expected: vec![huge, 8], actual: 3 };
    assert!(error.to_string().ends_with(&format!("has {}", usize::MAX)), "{error}");
}

#[test]
fn a_stride_beyond_the_image_ends() {
    let window = Window { kernel: 2, stride: 1_000_000, padding: 0, dilation: 1 };
    let conv = Conv2d::new(vec![Grid::new(1, 4, 4)], 1, 1, window).unwrap();
    let dx = conv.input_gradient(Isa::best(), &[2.0], &[1.0, 2.0, 3.0, 4.0], None).unwrap();
    let mut expected = [0.0; 16];
    (expected[0], expected[1], expected[4], expected[5]) = (2.0, 4.0, 6.0, 8.0);
    assert_eq!(dx, expected);
}

#[test]
fn a_pooling_window_that_misses_the_image_is_an_error() {
    let dilated = Window { kernel: 2, stride: 1, padding: 1, dilation: 2 };
    for (grid, window) in [
        (Grid::new(1, 1, 1), dilated),
        (Grid::new(1, 0, 3), Window::new(3, 1, 1)),
        (Grid::new(1, 3, 0), Window::new(2, 1, 1)),
    ] {
        let error = MaxPool2d::new(grid, 1, window).unwrap_err();
        assert!(matches!(error, ShapeError::Window { .. }), "{error}");
    }
    assert!(MaxPool2d::new(Grid::new(1, 2, 2), 1, dilated).is_ok());
    let huge = Window { kernel: 2, stride: 1, padding: 1 << 63, dilation: 1 };
    assert!(MaxPool2d::new(Grid::new(1, 2, 2), 1, huge).is_err());
}

#[test]
fn nothing_cannot_be_upsampled_to_something() {
    for (top, lateral) in [
        (Grid::new(1, 0, 2), Grid::new(1, 4, 4)),
        (Grid::new(1, 2, 0), Grid::new(1, 4, 4)),
        (Grid::new(1, 0, 2), Grid::new(1, 4, 0)),
        (Grid::new(1, 2, 0), Grid::new(1, 0, 4)),
    ] {
        assert!(UpsampleAdd::new(top, lateral, 3).is_err(), "{top:?} {lateral:?}");
    }
    let upsample = UpsampleAdd::new(Grid::new(1, 2, 2), Grid::new(1, 0, 4), 3).unwrap();
    assert!(upsample.forward(Isa::best(), &[1.0; 12], &[]).unwrap().is_empty());
    assert_eq!(upsample.top_gradient(Isa::best(), &[]).unwrap(), [0.0; 12]);
}

#[test]
#[should_panic(expected = "relative error NaN")]
fn the_comparison_sees_a_nan() {
    common::assert_close(&[1.0, f32::NAN, 2.0], &[1.0, 1.0, 2.0], 1e-3, "NaN");
}

#[test]
#[should_panic(expected = "relative error NaN")]
fn the_comparison_sees_an_expected_nan() {
    common::assert_close(&[1.0, 1.0], &[f64::NAN, 1.0], 1e-3, "NaN");
}
