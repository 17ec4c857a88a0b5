//! Every convolution kernel against the definition in f64, over random shapes.

// A failed `unwrap` is a failed test, in helpers, too.
#![allow(clippy::unwrap_used)]

mod common;

use common::{ALGORITHMS, Reference, assert_close_sums, cases, finish, numbers, on_threads};
use lacuna_kernels::{Algorithm, Conv2d, Epilogue, Grid, Isa, Window};
use proptest::prelude::*;

/// Of the largest output, which random numbers make large enough; `winograd_error.rs` has the bound that
/// holds for any.
fn tolerance(algorithm: Algorithm) -> f64 {
    match algorithm {
        Algorithm::Winograd6 | Algorithm::Winograd4 => 1e-4,
        Algorithm::WinogradStride2 => 3e-5,
        Algorithm::Winograd2 | Algorithm::Direct => 1e-5,
    }
}

fn check(reference: &Reference, algorithm: Algorithm, isa: Isa, seed: u64) {
    let conv = Conv2d::new(
        reference.inputs.clone(),
        reference.in_channels,
        reference.out_channels,
        reference.window,
    )
    .unwrap();
    let what = |pass: &str| format!("{pass}, {algorithm:?}, {}, {reference:?}", isa.name());
    let most = tolerance(algorithm);
    let x = numbers(seed, reference.input_len());
    let w = numbers(seed + 1, reference.weight_len());
    let dz = numbers(seed + 2, reference.output_len());
    let scale = numbers(seed + 3, reference.out_channels);
    let shift = numbers(seed + 4, reference.out_channels);
    let residual = numbers(seed + 5, reference.output_len());

    let taps = reference.window.kernel * reference.window.kernel;
    let (to_y, to_x) = (taps * reference.in_channels, taps * reference.out_channels);
    let to_w = reference.output_len() / reference.out_channels;
    let z = reference.forward(&x, &w);
    let plain = conv.forward_by(algorithm, isa, &x, &w, &Epilogue::default()).unwrap();
    assert_close_sums(&plain, &z, to_y, most, &what("forward"));

    let epilogue = Epilogue {
        scale: Some(&scale),
        shift: Some(&shift),
        residual: Some(&residual),
        relu: seed.is_multiple_of(2),
    };
    let fused = conv.forward_by(algorithm, isa, &x, &w, &epilogue).unwrap();
    let expected = finish(&z, &scale, &shift, Some(&residual), epilogue.relu);
    assert_close_sums(&fused, &expected, to_y, most, &what("fused forward"));

    let dx = conv.input_gradient_by(algorithm, isa, &dz, &w, Some(&scale)).unwrap();
    assert_close_sums(&dx, &reference.input_gradient(&dz, &w, &scale), to_x, most, &what("input gradient"));

    let dw = conv.weight_gradient_by(algorithm, isa, &x, &dz, Some(&scale)).unwrap();
    assert_close_sums(&dw, &reference.weight_gradient(&x, &dz, &scale), to_w, most, &what("weight gradient"));
}

fn channels() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..8, 15usize..18, 30usize..36, Just(64usize)]
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn any_window_equals_the_definition(
        batch in 1usize..=5, height in 1usize..20, width in 1usize..20,
        in_channels in channels(), out_channels in channels(),
        kernel in 1usize..=7, stride in 1usize..=3, padding in 0usize..=3, dilation in 1usize..=2,
        seed in 0u64..1000,
    ) {
        let window = Window { kernel, stride, padding, dilation };
        let input = Grid::new(batch, height, width);
        prop_assume!(window.output(input).is_ok());
        prop_assume!(batch * height * width * in_channels * out_channels * kernel * kernel < 20_000_000);
        let reference = Reference { inputs: vec![input], in_channels, out_channels, window };
        for isa in Isa::available() {
            check(&reference, Algorithm::Direct, isa, seed);
        }
    }

    #[test]
    fn winograd_equals_the_definition(
        batch in 1usize..=5, height in 1usize..20, width in 1usize..20,
        in_channels in channels(), out_channels in channels(), padding in 0usize..=2,
        seed in 0u64..1000,
    ) {
        let window = Window::new(3, 1, padding);
        let input = Grid::new(batch, height, width);
        prop_assume!(window.output(input).is_ok());
        let reference = Reference { inputs: vec![input], in_channels, out_channels, window };
        for isa in Isa::available() {
            check(&reference, Algorithm::Winograd6, isa, seed);
            check(&reference, Algorithm::Winograd4, isa, seed);
            check(&reference, Algorithm::Winograd2, isa, seed);
        }
    }

    #[test]
    fn winograd_of_stride_2_equals_the_definition(
        batch in 1usize..=5, height in 1usize..36, width in 1usize..36,
        in_channels in channels(), out_channels in channels(), seed in 0u64..1000,
    ) {
        let inputs = vec![Grid::new(batch, height, width)];
        let reference = Reference { inputs, in_channels, out_channels, window: Window::new(3, 2, 1) };
        for isa in Isa::available() {
            check(&reference, Algorithm::WinogradStride2, isa, seed);
        }
    }
}

#[test]
fn a_pyramid_is_its_levels_one_after_another() {
    let inputs = vec![Grid::new(2, 13, 9), Grid::new(2, 7, 5), Grid::new(2, 1, 1)];
    for window in [Window::new(3, 1, 1), Window::new(1, 1, 0), Window::new(3, 2, 1)] {
        for algorithm in ALGORITHMS {
            for (in_channels, out_channels) in [(20, 36), (20, 32)] {
                let reference = Reference { inputs: inputs.clone(), in_channels, out_channels, window };
                for isa in Isa::available() {
                    check(&reference, algorithm, isa, 7);
                }
            }
        }
    }
}

/// Shapes that between them reach every branch of sharing out and of packing, with any instruction set.
fn every_way() -> Vec<(Grid, usize, usize, Window, Algorithm)> {
    use Algorithm::{Direct, Winograd2, Winograd4, Winograd6, WinogradStride2};
    let (three, halving, one) = (Window::new(3, 1, 1), Window::new(3, 2, 1), Window::new(1, 1, 0));
    vec![
        (Grid::new(3, 41, 37), 24, 40, three, Winograd4), // many tiles
        (Grid::new(3, 61, 55), 24, 40, three, Winograd6), // the same of the largest tiles
        (Grid::new(1, 97, 95), 64, 70, three, Winograd6), // weight gradient in parts of tiles
        (Grid::new(2, 17, 13), 64, 130, three, Winograd6), // few tiles, several shares
        (Grid::new(1, 20, 20), 16, 130, three, Winograd2), // in several groups of output channels
        (Grid::new(1, 20, 20), 130, 16, three, Winograd2), // of input channels, for their gradient
        (Grid::new(1, 41, 37), 16, 80, three, Winograd2), // weight gradient by output channels, some tiles after others
        (Grid::new(1, 41, 37), 80, 16, three, Winograd2), // by input channels
        (Grid::new(1, 65, 62), 64, 70, three, Winograd4), // weight gradient in parts of tiles
        (Grid::new(1, 65, 62), 70, 64, three, Winograd4), // of which other threads share input channels
        (Grid::new(4, 32, 32), 20, 24, three, Winograd6), // images cut together
        (Grid::new(2, 8, 8), 64, 130, three, Winograd4),  // few tiles, several shares
        (Grid::new(1, 6, 6), 300, 80, three, Winograd2),  // weights in chunks
        (Grid::new(3, 41, 37), 24, 40, halving, WinogradStride2), // the same of stride 2: many tiles
        (Grid::new(1, 49, 49), 16, 130, halving, WinogradStride2), // in several groups
        (Grid::new(1, 49, 49), 130, 16, halving, WinogradStride2), // of input channels
        (Grid::new(1, 88, 85), 64, 70, halving, WinogradStride2), // weight gradient in parts of tiles
        (Grid::new(2, 16, 16), 64, 130, halving, WinogradStride2), // few tiles
        (Grid::new(1, 11, 11), 300, 80, halving, WinogradStride2), // weights in chunks
        (Grid::new(2, 64, 63), 3, 33, Window::new(7, 2, 3), Direct), // stem, weight gradient in parts
        (Grid::new(2, 40, 40), 48, 70, one, Direct),      // weight gradient in parts
        (Grid::new(1, 9, 9), 200, 400, Window::new(1, 2, 0), Direct), // pixels no tap reaches
        (Grid::new(2, 15, 15), 96, 130, halving, Direct), // classes of pixels
        (Grid::new(1, 3, 3), 5, 16, one, Direct),         // weight gradient in place
        (Grid::new(1, 20, 20), 5, 48, one, Direct),       // last panel of one vector, with 16 lanes
        (Grid::new(1, 3, 3), 5, 24, one, Direct),         // with 8
        (Grid::new(1, 3, 3), 5, 12, one, Direct),         // with 4
        (Grid::new(1, 1, 2), 1025, 3, one, Direct),       // too many channels to be read in place
        (Grid::new(1, 1, 2), 3, 1040, one, Direct),       // gradients, likewise
        (Grid::new(1, 4, 4), 64, 64, one, Direct),        // more threads than pixels' blocks
    ]
}

#[test]
fn every_way_of_sharing_out_work_equals_the_definition() {
    for (grid, in_channels, out_channels, window, algorithm) in every_way() {
        let reference = Reference { inputs: vec![grid], in_channels, out_channels, window };
        for isa in Isa::available() {
            check(&reference, algorithm, isa, 3);
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for (grid, in_channels, out_channels, window, algorithm) in every_way() {
        let inputs = vec![grid, Grid::new(1, 3, 3)];
        let conv = Conv2d::new(inputs.clone(), in_channels, out_channels, window).unwrap();
        let reference = Reference { inputs, in_channels, out_channels, window };
        let x = numbers(1, reference.input_len());
        let w = numbers(2, reference.weight_len());
        let dz = numbers(3, reference.output_len());
        let scale = numbers(4, out_channels);
        let epilogue = Epilogue { scale: Some(&scale), shift: Some(&scale), residual: None, relu: true };
        for isa in Isa::available() {
            let run = || {
                [
                    conv.forward_by(algorithm, isa, &x, &w, &epilogue).unwrap(),
                    conv.input_gradient_by(algorithm, isa, &dz, &w, Some(&scale)).unwrap(),
                    conv.weight_gradient_by(algorithm, isa, &x, &dz, Some(&scale)).unwrap(),
                ]
                .map(|values| values.into_iter().map(f32::to_bits).collect::<Vec<_>>())
            };
            let once = on_threads(1, run);
            for threads in [1, 2, 3, 8] {
                let what = format!("{threads} threads, {}, {algorithm:?}, {conv:?}", isa.name());
                assert!(on_threads(threads, run) == once, "{what}");
            }
        }
    }
}
