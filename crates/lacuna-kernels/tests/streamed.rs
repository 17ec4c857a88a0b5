//! Results of 2 MiB and more, which go past the caches where their rows are aligned: with the allocator of the program, as
//! the system's seldom aligns them.

#![allow(clippy::unwrap_used)] // the allowance for tests does not reach their helpers

use lacuna_kernels::{Conv2d, Epilogue, Grid, Isa, Recycle, Window};

#[global_allocator]
static ALLOCATOR: Recycle = Recycle::new();

fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let number =
        |i: u32| (i.wrapping_add(seed).wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 23) as f32 - 1.0;
    (0..len as u32).map(number).collect()
}

/// Rows that all stream, rows of which every other is aligned, and a last panel that is not full.
#[test]
fn large_results_equal_the_definition() {
    let (grid, in_channels) = (Grid::new(4, 64, 64), 13);
    for out_channels in [64, 36, 40, 33] {
        let conv = Conv2d::new(vec![grid], in_channels, out_channels, Window::new(1, 1, 0)).unwrap();
        let x = numbers(grid.pixels() * in_channels, 1);
        let w = numbers(in_channels * out_channels, 2);
        let (shift, residual) = (numbers(out_channels, 3), numbers(grid.pixels() * out_channels, 4));
        let epilogue = Epilogue { scale: None, shift: Some(&shift), residual: Some(&residual), relu: true };
        for isa in Isa::available() {
            let y = conv.forward(isa, &x, &w, &epilogue).unwrap();
            assert!(y.len() * size_of::<f32>() >= 2 << 20);
            for (pixel, y) in y.chunks_exact(out_channels).enumerate() {
                for (k, &y) in y.iter().enumerate() {
                    let products = (0..in_channels)
                        .map(|c| f64::from(x[pixel * in_channels + c]) * f64::from(w[c * out_channels + k]));
                    let rest = f64::from(shift[k]) + f64::from(residual[pixel * out_channels + k]);
                    let expected = (products.sum::<f64>() + rest).max(0.0);
                    assert!(
                        (f64::from(y) - expected).abs() < 1e-5,
                        "{isa:?} {out_channels} {pixel} {k}: {y} {expected}"
                    );
                }
            }
        }
    }
}

/// Whole panels are finished in registers, the last one, if it is not full, in memory: to the same bits.
#[test]
fn a_column_does_not_depend_on_how_many_there_are() {
    let (grid, in_channels) = (Grid::new(2, 9, 7), 37);
    let x = numbers(grid.pixels() * in_channels, 1);
    let y_of = |isa: Isa, out_channels: usize| {
        let conv = Conv2d::new(vec![grid], in_channels, out_channels, Window::new(3, 2, 1)).unwrap();
        // The same weights and shifts for the same columns.
        let w: Vec<f32> =
            (0..9 * in_channels).flat_map(|row| numbers(out_channels, 1000 * row as u32)).collect();
        let pixels = conv.outputs()[0].pixels();
        let residual: Vec<f32> =
            (0..pixels).flat_map(|row| numbers(out_channels, 777 * row as u32)).collect();
        let shift = numbers(out_channels, 5);
        let epilogue = Epilogue { scale: None, shift: Some(&shift), residual: Some(&residual), relu: true };
        conv.forward(isa, &x, &w, &epilogue).unwrap()
    };
    for isa in Isa::available() {
        let whole = y_of(isa, 32);
        for out_channels in [5, 8, 17, 31] {
            let part = y_of(isa, out_channels);
            for (whole, part) in whole.chunks_exact(32).zip(part.chunks_exact(out_channels)) {
                assert_eq!(&whole[..out_channels], part, "{isa:?} {out_channels}");
            }
        }
    }
}
