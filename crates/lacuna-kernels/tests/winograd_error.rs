//! The rounding error of Winograd's algorithm, as bounded at [`Conv2d::algorithm`], at the channel
//! counts of real detectors and on what is hardest for it: outputs that cancel, and magnitudes that
//! vary wildly within a tile.

// A failed `unwrap` is a failed test, in helpers, too.
#![allow(clippy::unwrap_used)]

mod common;

use common::{ALGORITHMS, Reference, numbers};
use lacuna_kernels::{Algorithm, Conv2d, Epilogue, Grid, Isa, Window};

/// `c` of the bound `c · ε · Σ max_tile|d| · Σ|g|`. What was measured below is at most 44 for F(6×6), 22 for F(4×4), 1.5
/// for F(2×2), 7.1 for stride 2, 2.5 for the definition, whose tiles are single pixels; with 16 channels or more, as the
/// table of algorithms asks for, at most 16 for F(4×4).
fn constant(algorithm: Algorithm) -> f64 {
    match algorithm {
        Algorithm::Winograd6 => 80.0,
        Algorithm::Winograd4 => 40.0,
        Algorithm::WinogradStride2 => 12.0,
        Algorithm::Winograd2 | Algorithm::Direct => 4.0,
    }
}

/// Channels whose results are compared: some of all, because the reference is slow.
fn some(channels: usize) -> Vec<usize> {
    let count = channels.min(8);
    (0..count).map(|i| i * channels / count).collect()
}

/// The columns `keep` of a matrix with `columns` of them.
fn columns(matrix: &[f32], columns: usize, keep: &[usize]) -> Vec<f32> {
    matrix.chunks_exact(columns).flat_map(|row| keep.iter().map(|&column| row[column])).collect()
}

/// Images cut into tiles of `size × size` pixels. The definition has tiles of one pixel.
struct Tiling {
    grid: Grid,
    size: usize,
    /// Whether images are cut together: then all pixels count as one tile, which is as good where all are alike.
    together: bool,
}

impl Tiling {
    /// Tiles of the outputs.
    fn of_outputs(grid: Grid, algorithm: Algorithm) -> Self {
        let size = match algorithm {
            Algorithm::Winograd6 => 6,
            Algorithm::Winograd4 | Algorithm::WinogradStride2 => 4,
            Algorithm::Winograd2 => 2,
            Algorithm::Direct => 1,
        };
        // Of the shapes below, four images of 8×8 are.
        let together = grid.batch > 1 && grid.height < 16 && algorithm == Algorithm::Winograd6;
        Self { grid, size, together }
    }

    /// As many, of the inputs.
    fn of_inputs(grid: Grid, algorithm: Algorithm, window: Window) -> Self {
        let outputs = Self::of_outputs(grid, algorithm);
        Self { size: window.stride * outputs.size, ..outputs }
    }

    fn count(&self) -> usize {
        if self.together {
            return 1;
        }
        self.grid.batch * self.grid.height.div_ceil(self.size) * self.grid.width.div_ceil(self.size)
    }

    /// The tile of each pixel.
    fn of_pixel(&self, pixel: usize) -> usize {
        if self.together {
            return 0;
        }
        let Grid { height, width, .. } = self.grid;
        let (image, y, x) = (pixel / (height * width), pixel / width % height, pixel % width);
        (image * height.div_ceil(self.size) + y / self.size) * width.div_ceil(self.size) + x / self.size
    }

    /// `[tiles, channels]`: the values of each tile and of `border` pixels around it, put together.
    fn gather(&self, x: &[f32], channels: usize, border: usize, join: fn(f64, f64) -> f64) -> Vec<f64> {
        let Grid { height, width, .. } = self.grid;
        let mut of_tiles = vec![0.0; self.count() * channels];
        for (pixel, values) in x.chunks_exact(channels).enumerate() {
            let (image, y, x) = (pixel / (height * width), pixel / width % height, pixel % width);
            let mut tiles = Vec::new();
            for near_y in y.saturating_sub(border)..=(y + border).min(height - 1) {
                for near_x in x.saturating_sub(border)..=(x + border).min(width - 1) {
                    tiles.push(self.of_pixel((image * height + near_y) * width + near_x));
                }
            }
            tiles.sort_unstable();
            tiles.dedup();
            for tile in tiles {
                for (of_tile, value) in of_tiles[tile * channels..][..channels].iter_mut().zip(values) {
                    *of_tile = join(*of_tile, f64::from(value.abs()));
                }
            }
        }
        of_tiles
    }
}

/// `a [n, rows] · b [n, columns]`, summed over `n`.
fn product(a: &[f64], rows: usize, b: &[f64], columns: usize) -> Vec<f64> {
    let mut sums = vec![0.0; rows * columns];
    for (a, b) in a.chunks_exact(rows).zip(b.chunks_exact(columns)) {
        for (sums, a) in sums.chunks_exact_mut(columns).zip(a) {
            sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
        }
    }
    sums
}

fn transposed(matrix: &[f64], columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|column| matrix.iter().skip(column).step_by(columns).copied()).collect()
}

/// The largest error as a multiple of `ε · scale`, where `scale` is `Σ max_tile|d| · Σ|g|`.
fn multiple(actual: &[f32], expected: &[f64], scale: impl Fn(usize) -> f64) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let unit = f64::from(f32::EPSILON) / 2.0;
    actual.iter().zip(expected).enumerate().fold(0.0, |most, (i, (&actual, expected))| {
        let multiple = (f64::from(actual) - expected).abs() / (unit * scale(i)).max(f64::MIN_POSITIVE);
        assert!(!multiple.is_nan());
        most.max(multiple)
    })
}

/// The constants that forward, input gradient and weight gradient would need.
fn measured(
    (grid, inputs, outputs): (Grid, usize, usize),
    (x, w, dz): (&[f32], &[f32], &[f32]),
    algorithm: Algorithm,
    isa: Isa,
) -> [f64; 3] {
    let stride = if algorithm == Algorithm::WinogradStride2 { 2 } else { 1 };
    let window = Window::new(3, stride, 1);
    let conv = Conv2d::new(vec![grid], inputs, outputs, window).unwrap();
    let reference =
        |in_channels, out_channels| Reference { inputs: vec![grid], in_channels, out_channels, window };
    let of_x = Tiling::of_inputs(grid, algorithm, window);
    let of_y = Tiling::of_outputs(conv.outputs()[0], algorithm);
    assert_eq!(of_x.count(), of_y.count());
    let dz = &dz[..conv.outputs()[0].pixels() * outputs];
    let (c_some, k_some) = (some(inputs), some(outputs));
    let ones = vec![1.0; outputs];
    // Σ_taps |w|, as [C, K].
    let mut window_sums = vec![0.0; inputs * outputs];
    for tap in w.chunks_exact(inputs * outputs) {
        window_sums.iter_mut().zip(tap).for_each(|(sum, w)| *sum += f64::from(w.abs()));
    }

    let y = conv.forward_by(algorithm, isa, x, w, &Epilogue::default()).unwrap();
    let expected = reference(inputs, k_some.len()).forward(x, &columns(w, outputs, &k_some));
    let largest = transposed(&of_x.gather(x, inputs, 1, f64::max), inputs);
    let scale = product(&largest, of_x.count(), &window_sums, outputs);
    let forward = multiple(&columns(&y, outputs, &k_some), &expected, |i| {
        let (pixel, k) = (i / k_some.len(), k_some[i % k_some.len()]);
        scale[of_y.of_pixel(pixel) * outputs + k]
    });

    let dx = conv.input_gradient_by(algorithm, isa, dz, w, None).unwrap();
    let rows: Vec<f32> = w
        .chunks_exact(inputs * outputs)
        .flat_map(|tap| c_some.iter().flat_map(|&c| tap[c * outputs..][..outputs].iter().copied()))
        .collect();
    let expected = reference(c_some.len(), outputs).input_gradient(dz, &rows, &ones);
    let largest = transposed(&of_y.gather(dz, outputs, 1, f64::max), outputs);
    let scale = product(&largest, of_y.count(), &transposed(&window_sums, outputs), inputs);
    let input_gradient = multiple(&columns(&dx, inputs, &c_some), &expected, |i| {
        let (pixel, c) = (i / c_some.len(), c_some[i % c_some.len()]);
        scale[of_x.of_pixel(pixel) * inputs + c]
    });

    let dw = conv.weight_gradient_by(algorithm, isa, x, dz, None).unwrap();
    let (x, dz) = (columns(x, inputs, &c_some), columns(dz, outputs, &k_some));
    let (rows, width) = (c_some.len(), k_some.len());
    let expected = reference(rows, width).weight_gradient(&x, &dz, &ones[..width]);
    let largest = of_x.gather(&x, rows, 1, f64::max);
    let scale = product(&largest, rows, &of_y.gather(&dz, width, 0, |sum, dz| sum + dz), width);
    let dw: Vec<f32> = dw
        .chunks_exact(inputs * outputs)
        .flat_map(|tap| {
            c_some.iter().flat_map(|&c| columns(&tap[c * outputs..][..outputs], outputs, &k_some))
        })
        .collect();
    let weight_gradient = multiple(&dw, &expected, |i| scale[i % (rows * width)]);
    [forward, input_gradient, weight_gradient]
}

/// Numbers of which about half are 0, as after a ReLU.
fn rectified(seed: u64, len: usize) -> Vec<f32> {
    numbers(seed, len).iter().map(|x| x.max(0.0)).collect()
}

/// Weights `[rows, columns]` that add up to nothing in each column, so that even inputs cancel.
fn mean_free(seed: u64, rows: usize, columns: usize) -> Vec<f32> {
    let mut w = numbers(seed, rows * columns);
    for column in 0..columns {
        let mean = w.iter().skip(column).step_by(columns).sum::<f32>() / rows as f32;
        w.iter_mut().skip(column).step_by(columns).for_each(|w| *w -= mean);
    }
    w
}

/// Magnitudes over twelve powers of ten, side by side.
fn wild(seed: u64, len: usize) -> Vec<f32> {
    numbers(seed, len).iter().map(|x| x.signum() * 10f32.powf(12.0 * x.abs() - 6.0)).collect()
}

fn check((grid, inputs, outputs): (Grid, usize, usize), isas: &[Isa]) {
    let (pixels, weights) = (grid.pixels(), 9 * inputs * outputs);
    let any = |seed, len| numbers(seed, len);
    let dz = any(3, pixels * outputs);
    let cases = [
        ("any", any(1, pixels * inputs), any(2, weights)),
        ("canceling", rectified(1, pixels * inputs), mean_free(2, 9 * inputs, outputs)),
        ("even", vec![1.0; pixels * inputs], mean_free(2, 9 * inputs, outputs)),
        ("wild", wild(1, pixels * inputs), any(2, weights)),
    ];
    for &isa in isas {
        for algorithm in ALGORITHMS {
            for (what, x, w) in &cases {
                let found = measured((grid, inputs, outputs), (x, w, &dz), algorithm, isa);
                println!("{inputs}→{outputs}, {grid:?}, {}, {algorithm:?}, {what}: {found:.1?}", isa.name());
                assert!(found.iter().all(|&c| c <= constant(algorithm)), "{algorithm:?}, {what}: {found:?}");
            }
        }
    }
}

#[test]
fn few_channels() {
    for (inputs, outputs) in [(1, 1), (3, 16), (16, 3), (64, 64)] {
        check((Grid::new(1, 13, 14), inputs, outputs), &Isa::available());
    }
}

#[test]
fn many_channels() {
    check((Grid::new(1, 16, 16), 512, 512), &[Isa::best()]);
    check((Grid::new(1, 8, 7), 2048, 16), &[Isa::best()]);
    check((Grid::new(1, 8, 7), 16, 2048), &[Isa::best()]);
}

#[test]
fn images_cut_together() {
    check((Grid::new(4, 8, 8), 64, 48), &Isa::available());
}

/// 1024 tiles of F(4×4), 4096 of F(2×2).
#[test]
fn many_tiles() {
    check((Grid::new(4, 64, 64), 24, 24), &[Isa::best()]);
}
