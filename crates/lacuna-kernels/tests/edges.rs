//! What happens at the edges: nothing to do, numbers that are none, shapes that do not fit.

// A failed `unwrap` is a failed test, in helpers, too.
#![allow(clippy::unwrap_used)]

mod common;

use common::numbers;
use lacuna_kernels::{
    Algorithm, Average, Conv2d, DepthwiseConv2d, Epilogue, FocalLoss, Grid, Isa, MaxPool2d, Region, RoiAlign,
    Sgd, SgdParameter, ShapeError, UpsampleAdd, Window, ema, relu_gradient, scale_shift,
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
        let depthwise = DepthwiseConv2d::new(vec![Grid::new(0, 8, 8)], 5, Window::new(3, 1, 1)).unwrap();
        assert!(depthwise.forward(isa, &[], &[0.0; 45], &NONE).unwrap().is_empty());
        assert_eq!(depthwise.weight_gradient(isa, &[], &[], None).unwrap(), vec![0.0; 45]);
        let pool = MaxPool2d::new(Grid::new(0, 8, 8), 5, Window::new(3, 2, 1)).unwrap();
        assert!(pool.gradient(isa, &[], &pool.forward(isa, &[]).unwrap().taps).unwrap().is_empty());
        let upsample = UpsampleAdd::new(Grid::new(0, 2, 2), Grid::new(0, 4, 4), 5).unwrap();
        assert!(upsample.forward(isa, &[], &[]).unwrap().is_empty());
        assert!(upsample.top_gradient(isa, &[]).unwrap().is_empty());
        assert!(scale_shift(isa, &[], 3, &NONE).unwrap().is_empty());
        assert_eq!(relu_gradient(isa, Some(&[]), &mut [], 3, true).unwrap().unwrap(), [0.0; 3]);
        let focal = FocalLoss { alpha: 0.25, gamma: 2.0 }.forward(isa, &[], 4, &[], None).unwrap();
        assert_eq!((focal.loss, focal.gradient), (0.0, vec![]));
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
            for algorithm in [Algorithm::Winograd4, Algorithm::Winograd2, Algorithm::Direct] {
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
            let result = focal.forward(isa, &[0.5, bad.abs()], 2, &[-1], None).unwrap();
            assert!(!result.loss.is_finite());
            // A row of weight 0 is not looked at.
            let result = focal.forward(isa, &[0.5, bad], 2, &[-1], Some(&[0.0])).unwrap();
            assert_eq!((result.loss, result.gradient), (0.0, vec![0.0, 0.0]));
        }
        let pool = MaxPool2d::new(Grid::new(1, 2, 2), 1, Window::new(2, 1, 0)).unwrap();
        for at in 0..4 {
            let mut x = [1.0, 2.0, 3.0, 4.0];
            x[at] = f32::NAN;
            let pooled = pool.forward(isa, &x).unwrap();
            assert!(pooled.y[0].is_nan());
            assert_eq!(usize::from(pooled.taps[0]), at);
        }
        let pooled = pool.forward(isa, &[f32::NEG_INFINITY; 4]).unwrap();
        assert_eq!((pooled.y[0], pooled.taps[0]), (f32::NEG_INFINITY, 0));
        assert!(scale_shift(isa, &[f32::NAN], 1, &Epilogue { relu: true, ..NONE }).unwrap()[0].is_nan());
    }
}

#[test]
fn a_region_of_any_size_ends() {
    let align = RoiAlign { height: 2, width: 2, spatial_scale: 1.0, sampling_ratio: 0, aligned: true };
    let (grid, x) = (Grid::new(1, 4, 4), numbers(1, 16));
    let region = |x2: f32| Region { image: 0, x1: 0.0, y1: 0.0, x2, y2: 3.0 };
    for huge in [1e6, 1e20, f32::MAX] {
        let y = align.forward(Isa::best(), &x, grid, 1, &[region(huge)]).unwrap();
        assert!(y.iter().all(|y| y.is_finite()), "{y:?}");
    }
    for bad in [f32::INFINITY, f32::NAN] {
        let y = align.forward(Isa::best(), &x, grid, 1, &[region(bad)]).unwrap();
        assert!(y.iter().all(|y| y.is_nan()));
        let dx = align.gradient(Isa::best(), &[1.0; 4], grid, 1, &[region(bad)]).unwrap();
        assert_eq!(dx, [0.0; 16]);
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
        "a 7×7 window (kernel 7, dilation 1) is larger than a 4×9 image with padding 1"
    );
    let zero = Window { kernel: 3, stride: 0, padding: 0, dilation: 1 };
    assert_eq!(
        Conv2d::new(vec![Grid::new(1, 4, 4)], 1, 1, zero).unwrap_err(),
        ShapeError::Zero { what: "stride" }
    );
    assert!(Conv2d::new(vec![Grid::new(1, 4, 4)], 0, 1, Window::new(1, 1, 0)).is_err());
    assert!(DepthwiseConv2d::new(vec![Grid::new(1, 4, 4)], 0, Window::new(1, 1, 0)).is_err());

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

    let align = RoiAlign { height: 1, width: 1, spatial_scale: 1.0, sampling_ratio: 1, aligned: true };
    let outside = Region { image: 3, x1: 0.0, y1: 0.0, x2: 1.0, y2: 1.0 };
    let error = align.forward(isa, &[0.0; 4], Grid::new(1, 2, 2), 1, &[outside]).unwrap_err();
    assert_eq!(error.to_string(), "row 0 of regions is 3, outside 0..1");

    let sgd = Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.0 };
    let mut slot = [SgdParameter { parameter: &mut [0.0; 2], gradient: &[0.0; 3], velocity: &mut [0.0; 2] }];
    assert!(sgd.step(isa, &mut slot).is_err());
    assert!(ema(isa, 0.9, &mut [Average { average: &mut [0.0; 2], value: &[0.0; 3] }]).is_err());
    assert!(scale_shift(isa, &[0.0; 4], 3, &NONE).is_err());
    assert!(relu_gradient(isa, None, &mut [0.0; 4], 0, true).is_err());
}
