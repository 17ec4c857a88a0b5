//! The rounding error of Winograd's algorithm, at the channel counts of real detectors.
//!
//! Errors are relative to the largest output. The bound promised is 1e-4 for F(4×4, 3×3) and 1e-5
//! for F(2×2, 3×3) and the definition; what was measured is 6e-6 and 3e-6. For inputs whose
//! magnitude varies wildly within a tile the error is relative to the tile's largest input, so it is
//! also held against `max|x| · Σ|w|`, which bounds any output.

// A failed `unwrap` is a failed test, in helpers, too.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Reference, numbers, relative_error};
use lacuna_kernels::{Algorithm, Conv2d, Epilogue, Grid, Isa, Window};

fn bound(algorithm: Algorithm) -> f64 {
    if algorithm == Algorithm::Winograd4 { 1e-4 } else { 1e-5 }
}

const ALGORITHMS: [Algorithm; 3] = [Algorithm::Winograd4, Algorithm::Winograd2, Algorithm::Direct];

#[test]
fn relative_to_the_largest_output() {
    for (channels, size) in [(64, 16), (256, 8), (512, 4), (2048, 3)] {
        let reference = Reference {
            inputs: vec![Grid::new(1, size, size)],
            in_channels: channels,
            out_channels: 16,
            window: Window::new(3, 1, 1),
        };
        let conv = Conv2d::new(reference.inputs.clone(), channels, 16, reference.window).unwrap();
        let (x, w) = (numbers(1, reference.input_len()), numbers(2, reference.weight_len()));
        let dz = numbers(3, reference.output_len());
        let ones = [1.0; 16];
        let expected = [
            reference.forward(&x, &w),
            reference.input_gradient(&dz, &w, &ones),
            reference.weight_gradient(&x, &dz, &ones),
        ];
        for isa in Isa::available() {
            for algorithm in ALGORITHMS {
                let actual = [
                    conv.forward_by(algorithm, isa, &x, &w, &Epilogue::default()).unwrap(),
                    conv.input_gradient_by(algorithm, isa, &dz, &w, None).unwrap(),
                    conv.weight_gradient_by(algorithm, isa, &x, &dz, None).unwrap(),
                ];
                for (actual, expected) in actual.iter().zip(&expected) {
                    let error = relative_error(actual, expected, 0.0);
                    println!("{channels} channels, {}, {algorithm:?}: {error:.1e}", isa.name());
                    assert!(error <= bound(algorithm), "{channels} channels, {algorithm:?}: {error:e}");
                }
            }
        }
    }
}

#[test]
fn relative_to_the_largest_input_of_any_magnitude() {
    let reference = Reference {
        inputs: vec![Grid::new(1, 12, 12)],
        in_channels: 32,
        out_channels: 16,
        window: Window::new(3, 1, 1),
    };
    let conv = Conv2d::new(reference.inputs.clone(), 32, 16, reference.window).unwrap();
    // Magnitudes over twelve powers of ten, side by side.
    let x: Vec<f32> = numbers(1, reference.input_len())
        .iter()
        .map(|x| x.signum() * 10f32.powf(12.0 * x.abs() - 6.0))
        .collect();
    let w = numbers(2, reference.weight_len());
    let expected = reference.forward(&x, &w);
    let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
    for algorithm in ALGORITHMS {
        let y = conv.forward_by(algorithm, Isa::best(), &x, &w, &Epilogue::default()).unwrap();
        for k in 0..16 {
            let weights: f32 = w.iter().skip(k).step_by(16).map(|w| w.abs()).sum();
            let limit = bound(algorithm) * f64::from(largest) * f64::from(weights);
            for (y, expected) in y.iter().zip(&expected).skip(k).step_by(16) {
                assert!((f64::from(*y) - expected).abs() <= limit, "{algorithm:?}: {y} {expected}");
            }
        }
    }
}
