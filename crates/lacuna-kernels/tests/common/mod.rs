//! What the tests share: random numbers, the naive f64 references, and how results are compared.
// Each test file uses a part of this; a failed `unwrap` is a failed test.
#![allow(dead_code, clippy::unwrap_used)]

use lacuna_kernels::{Algorithm, Grid, Window};
use proptest::prelude::ProptestConfig;

pub const ALGORITHMS: [Algorithm; 5] = [
    Algorithm::Winograd6,
    Algorithm::Winograd4,
    Algorithm::Winograd2,
    Algorithm::WinogradStride2,
    Algorithm::Direct,
];

/// Random numbers in −1..1, the same for the same seed (SplitMix64).
pub fn numbers(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5DEE_CE66;
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    (0..len).map(|_| (next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0).collect()
}

/// Fails where `actual` is further from `expected` than `tolerance` of the largest expected value.
pub fn assert_close(actual: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_within(relative_error(actual, expected, 1e-3), tolerance, what);
}

/// [`assert_close`] for sums of `terms` products of numbers about as large as 1, whose rounding errors
/// are relative to `√terms` even where the sums themselves cancel.
pub fn assert_close_sums(actual: &[f32], expected: &[f64], terms: usize, tolerance: f64, what: &str) {
    assert_within(relative_error(actual, expected, (terms as f64).sqrt()), tolerance, what);
}

fn assert_within(error: f64, tolerance: f64, what: &str) {
    assert!(error <= tolerance, "{what}: relative error {error:e} > {tolerance:e}");
}

/// Largest difference as a share of the largest expected magnitude, which counts at least `floor`; NaN
/// if any of either is.
pub fn relative_error(actual: &[f32], expected: &[f64], floor: f64) -> f64 {
    assert_eq!(actual.len(), expected.len());
    // `f64::max` would drop a NaN.
    let largest = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0.0, |most: f64, x| if most.is_nan() || x.abs() <= most { most } else { x.abs() })
    };
    let difference = largest(&mut actual.iter().zip(expected).map(|(&a, &e)| f64::from(a) - e));
    difference / largest(&mut expected.iter().copied()).max(floor)
}

/// The same cases each time.
pub fn cases(cases: u32) -> ProptestConfig {
    let rng_seed = proptest::test_runner::RngSeed::Fixed(1);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

/// A convolution in the words of its definition, f64.
#[derive(Clone, Debug)]
pub struct Reference {
    pub inputs: Vec<Grid>,
    pub in_channels: usize,
    pub out_channels: usize,
    pub window: Window,
}

impl Reference {
    pub fn outputs(&self) -> Vec<Grid> {
        self.inputs.iter().map(|&grid| self.window.output(grid).unwrap()).collect()
    }

    pub fn input_len(&self) -> usize {
        self.inputs.iter().map(|grid| grid.pixels()).sum::<usize>() * self.in_channels
    }

    pub fn output_len(&self) -> usize {
        self.outputs().iter().map(|grid| grid.pixels()).sum::<usize>() * self.out_channels
    }

    pub fn weight_len(&self) -> usize {
        self.window.kernel * self.window.kernel * self.in_channels * self.out_channels
    }

    /// Calls `visit(input pixel, tap, output pixel)` for each product of the definition.
    fn visit(&self, mut visit: impl FnMut(usize, usize, usize)) {
        let Window { kernel, stride, padding, dilation } = self.window;
        let (mut input_first, mut output_first) = (0, 0);
        for (input, output) in self.inputs.iter().zip(self.outputs()) {
            for image in 0..input.batch {
                for out_y in 0..output.height {
                    for out_x in 0..output.width {
                        for tap in 0..kernel * kernel {
                            let y = (out_y * stride + tap / kernel * dilation).wrapping_sub(padding);
                            let x = (out_x * stride + tap % kernel * dilation).wrapping_sub(padding);
                            if y < input.height && x < input.width {
                                visit(
                                    input_first + (image * input.height + y) * input.width + x,
                                    tap,
                                    output_first + (image * output.height + out_y) * output.width + out_x,
                                );
                            }
                        }
                    }
                }
            }
            input_first += input.pixels();
            output_first += output.pixels();
        }
    }

    pub fn forward(&self, x: &[f32], w: &[f32]) -> Vec<f64> {
        let (inputs, outputs) = (self.in_channels, self.out_channels);
        let mut y = vec![0.0; self.output_len()];
        self.visit(|from, tap, to| {
            for c in 0..inputs {
                for k in 0..outputs {
                    y[to * outputs + k] +=
                        f64::from(x[from * inputs + c]) * f64::from(w[(tap * inputs + c) * outputs + k]);
                }
            }
        });
        y
    }

    pub fn input_gradient(&self, dz: &[f32], w: &[f32], scale: &[f32]) -> Vec<f64> {
        let (inputs, outputs) = (self.in_channels, self.out_channels);
        let mut dx = vec![0.0; self.input_len()];
        self.visit(|from, tap, to| {
            for c in 0..inputs {
                for k in 0..outputs {
                    dx[from * inputs + c] += f64::from(dz[to * outputs + k])
                        * f64::from(scale[k])
                        * f64::from(w[(tap * inputs + c) * outputs + k]);
                }
            }
        });
        dx
    }

    pub fn weight_gradient(&self, x: &[f32], dz: &[f32], scale: &[f32]) -> Vec<f64> {
        let (inputs, outputs) = (self.in_channels, self.out_channels);
        let mut dw = vec![0.0; self.weight_len()];
        self.visit(|from, tap, to| {
            for c in 0..inputs {
                for k in 0..outputs {
                    dw[(tap * inputs + c) * outputs + k] += f64::from(x[from * inputs + c])
                        * f64::from(dz[to * outputs + k])
                        * f64::from(scale[k]);
                }
            }
        });
        dw
    }
}

/// `relu(scale · z + shift + residual)` of the definition.
pub fn finish(z: &[f64], scale: &[f32], shift: &[f32], residual: Option<&[f32]>, relu: bool) -> Vec<f64> {
    let channels = scale.len();
    z.iter()
        .enumerate()
        .map(|(i, z)| {
            let k = i % channels;
            let y = f64::from(scale[k]) * z + f64::from(shift[k]) + residual.map_or(0.0, |r| f64::from(r[i]));
            if relu { y.max(0.0) } else { y }
        })
        .collect()
}

/// Runs `f` on a pool of `threads` threads.
pub fn on_threads<T: Send>(threads: usize, f: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(f)
}
