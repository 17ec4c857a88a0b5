//! The kernels beside convolution against naive f64 references, over random shapes, and their
//! gradients against finite differences of those references.

// A failed `unwrap` is a failed test, in helpers, too.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Reference, assert_close, cases, numbers, on_threads};
use lacuna_kernels::{
    Average, Conv2d, Epilogue, FocalLoss, Grid, Isa, MaxPool2d, Region, RoiAlign, SegmentNorm, Sgd,
    SgdParameter, UpsampleAdd, Window, ema, relu_gradient,
};
use proptest::prelude::*;

/// `∂ f(x) / ∂ x[i]` by the central difference, in f64.
fn slope(x: &[f32], i: usize, f: impl Fn(&[f64]) -> f64) -> f64 {
    let mut at: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    let (step, here) = (1e-5, at[i]);
    at[i] = here + step;
    let above = f(&at);
    at[i] = here - step;
    (above - f(&at)) / (2.0 * step)
}

fn dot(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, &b)| a * f64::from(b)).sum()
}

fn channels() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..6, 14usize..19, 60usize..70]
}

/// Normalization in the words of its definition.
struct Norm {
    segments: Vec<usize>,
    channels: usize,
    groups: usize,
    epsilon: f32,
    relu: bool,
}

impl Norm {
    /// Mean and variance of each segment and group.
    fn statistics(&self, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let each = self.channels / self.groups;
        let mut first = 0;
        let (mut means, mut variances) = (Vec::new(), Vec::new());
        for rows in &self.segments {
            for group in 0..self.groups {
                let values: Vec<f64> = (first..first + rows)
                    .flat_map(|row| &x[row * self.channels + group * each..][..each])
                    .copied()
                    .collect();
                let count = values.len().max(1) as f64;
                let mean = values.iter().sum::<f64>() / count;
                means.push(mean);
                variances.push(values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count);
            }
            first += rows;
        }
        (means, variances)
    }

    fn forward(&self, x: &[f64], weight: &[f64], bias: &[f64], residual: Option<&[f64]>) -> Vec<f64> {
        let (means, variances) = self.statistics(x);
        let segment_of = self.segments.iter().enumerate().flat_map(|(at, &rows)| vec![at; rows]);
        let rows = x.chunks_exact(self.channels).zip(segment_of).enumerate();
        let mut y = Vec::new();
        for (row, (values, segment)) in rows {
            for (c, value) in values.iter().enumerate() {
                let at = segment * self.groups + c / (self.channels / self.groups);
                let unit = (value - means[at]) / (variances[at] + f64::from(self.epsilon)).sqrt();
                let z = weight[c] * unit
                    + bias[c]
                    + residual.map_or(0.0, |residual| residual[row * self.channels + c]);
                y.push(if self.relu { z.max(0.0) } else { z });
            }
        }
        y
    }
}

fn doubles(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| value.into()).collect()
}

/// Max-pooling in the words of its definition: the maxima, and the input pixel of each.
fn pooled(x: &[f32], input: Grid, channels: usize, window: Window) -> (Vec<f64>, Vec<usize>) {
    let output = window.output(input).unwrap();
    let (mut y, mut from) = (Vec::new(), Vec::new());
    for image in 0..output.batch {
        for (out_y, out_x) in (0..output.height).flat_map(|y| (0..output.width).map(move |x| (y, x))) {
            for c in 0..channels {
                let mut best: Option<(f32, usize)> = None;
                for (tap_y, tap_x) in (0..window.kernel).flat_map(|y| (0..window.kernel).map(move |x| (y, x)))
                {
                    let at_y = (out_y * window.stride + tap_y * window.dilation).wrapping_sub(window.padding);
                    let at_x = (out_x * window.stride + tap_x * window.dilation).wrapping_sub(window.padding);
                    if at_y < input.height && at_x < input.width {
                        let at = ((image * input.height + at_y) * input.width + at_x) * channels + c;
                        if best.is_none_or(|(largest, _)| x[at] > largest) {
                            best = Some((x[at], at));
                        }
                    }
                }
                let (largest, at) = best.unwrap();
                y.push(f64::from(largest));
                from.push(at);
            }
        }
    }
    (y, from)
}

/// RoIAlign as in torchvision's C++ code, f64, one region.
fn aligned(align: &RoiAlign, x: &[f64], grid: Grid, channels: usize, region: &Region) -> Vec<f64> {
    let scale = f64::from(align.spatial_scale);
    let offset = if align.aligned { 0.5 } else { 0.0 };
    let [x1, y1, x2, y2] =
        [region.x1, region.y1, region.x2, region.y2].map(|v| f64::from(v) * scale - offset);
    let (mut width, mut height) = (x2 - x1, y2 - y1);
    if !align.aligned {
        (width, height) = (width.max(1.0), height.max(1.0));
    }
    let (cell_w, cell_h) = (width / align.width as f64, height / align.height as f64);
    let samples =
        |cell: f64| if align.sampling_ratio > 0 { align.sampling_ratio as i64 } else { cell.ceil() as i64 };
    let (n_y, n_x) = (samples(cell_h), samples(cell_w));
    let pixel = |y: usize, x_at: usize, c: usize| {
        x[((region.image * grid.height + y) * grid.width + x_at) * channels + c]
    };
    let mut y = Vec::new();
    for (row, column) in (0..align.height).flat_map(|r| (0..align.width).map(move |c| (r, c))) {
        for c in 0..channels {
            let mut sum = 0.0;
            for (i, j) in (0..n_y).flat_map(|i| (0..n_x).map(move |j| (i, j))) {
                let at_y = y1 + row as f64 * cell_h + (i as f64 + 0.5) * cell_h / n_y as f64;
                let at_x = x1 + column as f64 * cell_w + (j as f64 + 0.5) * cell_w / n_x as f64;
                if at_y < -1.0 || at_y > grid.height as f64 || at_x < -1.0 || at_x > grid.width as f64 {
                    continue;
                }
                let (at_y, at_x) =
                    (at_y.clamp(0.0, grid.height as f64 - 1.0), at_x.clamp(0.0, grid.width as f64 - 1.0));
                let (low_y, low_x) = (at_y as usize, at_x as usize);
                let (high_y, high_x) = ((low_y + 1).min(grid.height - 1), (low_x + 1).min(grid.width - 1));
                let (ly, lx) = (at_y - low_y as f64, at_x - low_x as f64);
                sum += (1.0 - ly) * ((1.0 - lx) * pixel(low_y, low_x, c) + lx * pixel(low_y, high_x, c))
                    + ly * ((1.0 - lx) * pixel(high_y, low_x, c) + lx * pixel(high_y, high_x, c));
            }
            y.push(sum / ((n_y * n_x).max(1) as f64));
        }
    }
    y
}

fn focal_reference(focal: FocalLoss, x: &[f64], classes: usize, labels: &[i32], weights: &[f32]) -> f64 {
    let (alpha, gamma) = (f64::from(focal.alpha), f64::from(focal.gamma));
    x.iter()
        .enumerate()
        .map(|(i, &x)| {
            let (row, class) = (i / classes, i % classes);
            let labeled = labels[row] == class as i32;
            let (margin, alpha) = if labeled { (x, alpha) } else { (-x, 1.0 - alpha) };
            let p = 1.0 / (1.0 + (-margin).exp());
            -f64::from(weights[row]) * alpha * (1.0 - p).powf(gamma) * p.ln()
        })
        .sum()
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn relu_gradient_equals_the_definition(pixels in 1usize..200, channels in channels(), relu: bool, seed in 0u64..1000) {
        let y: Vec<f32> = numbers(seed, pixels * channels).iter().map(|y| y.max(0.0)).collect();
        for isa in Isa::available() {
            let mut dy = numbers(seed + 1, pixels * channels);
            let masked: Vec<f64> = dy.iter().zip(&y).map(|(&dy, &y)| if relu && y <= 0.0 { 0.0 } else { dy.into() }).collect();
            let sums: Vec<f64> = (0..channels).map(|c| masked.iter().skip(c).step_by(channels).sum()).collect();
            let dshift = relu_gradient(isa, relu.then_some(&y), &mut dy, channels, true).unwrap().unwrap();
            assert_close(&dy, &masked, 0.0, "dy");
            assert_close(&dshift, &sums, 1e-5, "dshift");
        }
    }

    #[test]
    fn max_pool_equals_the_definition(
        batch in 1usize..4, height in 0usize..12, width in 0usize..12, channels in channels(),
        kernel in 1usize..=4, stride in 1usize..=3, padding in 0usize..=2, dilation in 1usize..=2, seed in 0u64..1000,
    ) {
        let window = Window { kernel, stride, padding, dilation };
        let grid = Grid::new(batch, height, width);
        prop_assume!(window.output(grid).is_ok() && 2 * padding <= kernel);
        // With dilation and padding, a window of a small image may see none of it.
        let sees = |size: usize, outputs: usize| {
            (0..outputs).all(|out| (0..kernel).any(|tap| {
                (padding..padding + size).contains(&(out * stride + tap * dilation))
            }))
        };
        let output = window.output(grid).unwrap();
        let pool = MaxPool2d::new(grid, channels, window);
        prop_assert_eq!(pool.is_ok(), sees(height, output.height) && sees(width, output.width));
        let Ok(pool) = pool else { return Ok(()) };
        // Coarse numbers, so that maxima tie.
        let x: Vec<f32> = numbers(seed, grid.pixels() * channels).iter().map(|x| (x * 4.0).round()).collect();
        let (y, from) = pooled(&x, grid, channels, window);
        let dy = numbers(seed + 1, y.len());
        let mut dx = vec![0.0; x.len()];
        from.iter().zip(&dy).for_each(|(&at, &dy)| dx[at] += f64::from(dy));
        for isa in Isa::available() {
            let result = pool.forward(isa, &x).unwrap();
            assert_close(&result.y, &y, 0.0, "y");
            assert_close(&pool.gradient(isa, &dy, &result.taps).unwrap(), &dx, 1e-6, "dx");
        }
    }

    #[test]
    fn upsampling_is_linear_and_its_gradient_the_adjoint(
        batch in 1usize..4, height in 1usize..8, width in 1usize..8, more_h in 0usize..9, more_w in 0usize..9,
        channels in channels(), seed in 0u64..1000,
    ) {
        let (top, lateral) = (Grid::new(batch, height, width), Grid::new(batch, height + more_h, width + more_w));
        let upsample = UpsampleAdd::new(top, lateral, channels).unwrap();
        let (t, l) = (numbers(seed, top.pixels() * channels), numbers(seed + 1, lateral.pixels() * channels));
        let dy = numbers(seed + 2, l.len());
        for isa in Isa::available() {
            let y = upsample.forward(isa, &t, &l).unwrap();
            for (i, &value) in y.iter().enumerate() {
                let (pixel, c) = (i / channels, i % channels);
                let (image, at_y, at_x) = (
                    pixel / (lateral.height * lateral.width),
                    pixel / lateral.width % lateral.height,
                    pixel % lateral.width,
                );
                let near = |at: usize, coarse: usize, fine: usize| ((at as f32 * (coarse as f32 / fine as f32)) as usize).min(coarse - 1);
                let from = (image * height + near(at_y, height, lateral.height)) * width + near(at_x, width, lateral.width);
                assert_eq!(value, l[i] + t[from * channels + c]);
            }
            let dtop = upsample.top_gradient(isa, &dy).unwrap();
            let forward: f64 = y.iter().zip(&l).zip(&dy).map(|((y, l), dy)| f64::from(y - l) * f64::from(*dy)).sum();
            let backward: f64 = t.iter().zip(&dtop).map(|(t, d)| f64::from(*t) * f64::from(*d)).sum();
            assert!((forward - backward).abs() < 1e-4 * (1.0 + forward.abs()), "{forward} {backward}");
        }
    }

    #[test]
    fn roi_align_equals_the_definition(
        batch in 1usize..3, height in 1usize..9, width in 1usize..9, channels in prop_oneof![1usize..4, 30usize..36],
        boxes in prop::collection::vec((0usize..2, -9.0f32..30.0, -9.0f32..30.0, -2.0f32..30.0, -2.0f32..30.0), 0..5),
        aligned_corners: bool, sampling_ratio in 0usize..3, seed in 0u64..1000,
    ) {
        let grid = Grid::new(batch, height, width);
        let align = RoiAlign { height: 3, width: 2, spatial_scale: 0.25, sampling_ratio, aligned: aligned_corners };
        let regions: Vec<Region> = boxes
            .iter()
            .map(|&(image, x1, y1, w, h)| Region { image: image % batch, x1, y1, x2: x1 + w, y2: y1 + h })
            .collect();
        let x = numbers(seed, grid.pixels() * channels);
        let forward = |x: &[f64]| -> Vec<f64> {
            regions.iter().flat_map(|region| aligned(&align, x, grid, channels, region)).collect()
        };
        let doubles: Vec<f64> = x.iter().map(|&x| x.into()).collect();
        let expected = forward(&doubles);
        let dy = numbers(seed + 1, expected.len());
        for isa in Isa::available() {
            let y = align.forward(isa, &x, grid, channels, &regions).unwrap();
            assert_close(&y, &expected, 1e-4, "y");
            let dx = align.gradient(isa, &dy, grid, channels, &regions).unwrap();
            for i in (0..x.len()).step_by(1 + x.len() / 5) {
                let expected = slope(&x, i, |x| dot(&forward(x), &dy));
                assert!((f64::from(dx[i]) - expected).abs() < 1e-3, "dx[{i}] {} {expected}", dx[i]);
            }
        }
    }

    #[test]
    fn focal_loss_equals_the_definition(
        rows in 0usize..30, classes in prop_oneof![1usize..4, 15usize..18, Just(80usize)],
        alpha in 0.0f32..1.0, gamma in prop_oneof![Just(0.0f32), Just(2.0), 0.5f32..3.0], seed in 0u64..1000,
    ) {
        let focal = FocalLoss { alpha, gamma };
        let logits: Vec<f32> = numbers(seed, rows * classes).iter().map(|x| 12.0 * x).collect();
        let labels: Vec<i32> = (0..rows).map(|row| (row * 7 + seed as usize) as i32 % (classes as i32 + 1) - 1).collect();
        let weights: Vec<f32> = numbers(seed + 1, rows).iter().map(|w| w.max(0.0)).collect();
        let doubles: Vec<f64> = logits.iter().map(|&x| x.into()).collect();
        let expected = focal_reference(focal, &doubles, classes, &labels, &weights);
        for isa in Isa::available() {
            let result = focal.forward(isa, &logits, classes, &labels, Some(&weights)).unwrap();
            assert_close(&[result.loss], &[expected], 1e-5, isa.name());
            for i in (0..logits.len()).step_by(1 + logits.len() / 6) {
                let expected = slope(&logits, i, |x| focal_reference(focal, x, classes, &labels, &weights));
                let actual = f64::from(result.gradient[i]);
                assert!((actual - expected).abs() < 2e-5, "{} at {}: {actual} {expected}", isa.name(), logits[i]);
            }
        }
    }

    #[test]
    fn normalization_equals_the_definition(
        segments in prop::collection::vec(prop_oneof![0usize..4, 1usize..30, Just(400usize)], 0..4),
        groups in prop_oneof![1usize..4, Just(17usize), Just(32usize)],
        each in prop_oneof![Just(1usize), 2usize..5, Just(8usize)],
        relu: bool, with_residual: bool, seed in 0u64..1000,
    ) {
        let channels = groups * each;
        let reference = Norm { segments, channels, groups, epsilon: 1e-3, relu };
        let normalize = SegmentNorm::new(&reference.segments, channels, groups, 1e-3).unwrap();
        let len = reference.segments.iter().sum::<usize>() * channels;
        let (x, weight, bias) = (numbers(seed, len), numbers(seed + 1, channels), numbers(seed + 2, channels));
        let residual = with_residual.then(|| numbers(seed + 3, len));
        let dy = numbers(seed + 4, len);
        let [x_d, weight_d, bias_d] = [&x, &weight, &bias].map(|values| doubles(values));
        let residual_d = residual.as_ref().map(|residual| doubles(residual));
        let loss = |x: &[f64], weight: &[f64], bias: &[f64], residual: Option<&[f64]>| {
            dot(&reference.forward(x, weight, bias, residual), &dy)
        };
        let expected = reference.forward(&x_d, &weight_d, &bias_d, residual_d.as_deref());
        let (mean, variance) = reference.statistics(&x_d);
        for isa in Isa::available() {
            let result = normalize.forward(isa, &x, &weight, &bias, residual.as_deref(), relu).unwrap();
            assert_close(&result.y, &expected, 3e-6, "y");
            assert_close(&result.statistics.mean, &mean, 1e-6, "mean");
            assert_close(&result.statistics.variance, &variance, 1e-6, "variance");
            let mut g = dy.clone();
            let y = relu.then_some(&result.y[..]);
            let gradients = normalize.gradients(isa, &x, &result.statistics, &weight, y, &mut g, true).unwrap();
            let check = |what: &str, actual: f32, expected: f64| {
                let error = (f64::from(actual) - expected).abs();
                assert!(error < 1e-4 * (1.0 + expected.abs()), "{what}, {}: {actual} {expected}", isa.name());
            };
            let dx = gradients.x.unwrap();
            for i in (0..len).step_by(1 + len / 7) {
                check("dx", dx[i], slope(&x, i, |x| loss(x, &weight_d, &bias_d, residual_d.as_deref())));
                if let Some(residual) = &residual {
                    check("dresidual", g[i], slope(residual, i, |r| loss(&x_d, &weight_d, &bias_d, Some(r))));
                }
            }
            for i in (0..channels).step_by(1 + channels / 5) {
                let residual = residual_d.as_deref();
                check("dweight", gradients.weight[i], slope(&weight, i, |w| loss(&x_d, w, &bias_d, residual)));
                check("dbias", gradients.bias[i], slope(&bias, i, |b| loss(&x_d, &weight_d, b, residual)));
            }
            let mut g = dy.clone();
            let without = normalize.gradients(isa, &x, &result.statistics, &weight, y, &mut g, false).unwrap();
            assert!(without.x.is_none() && without.weight == gradients.weight && without.bias == gradients.bias);
        }
    }

    #[test]
    fn updates_equal_their_formulas(lens in prop::collection::vec(0usize..40_000, 0..4), seed in 0u64..1000) {
        let sgd = Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.01 };
        let make = |offset: u64| -> Vec<Vec<f32>> { lens.iter().map(|&len| numbers(seed + offset, len)).collect() };
        for isa in Isa::available() {
            let (mut p, g, mut v, mut a) = (make(0), make(1), make(2), make(3));
            let mut slots: Vec<SgdParameter> = p.iter_mut().zip(&g).zip(&mut v)
                .map(|((parameter, gradient), velocity)| SgdParameter { parameter, gradient, velocity }).collect();
            sgd.step(isa, &mut slots).unwrap();
            let mut slots: Vec<Average> = a.iter_mut().zip(&p).map(|(average, value)| Average { average, value }).collect();
            ema(isa, 0.9, &mut slots).unwrap();
            for (((p0, g0), (v0, a0)), ((p, v), a)) in
                make(0).iter().zip(&make(1)).zip(make(2).iter().zip(&make(3))).zip(p.iter().zip(&v).zip(&a))
            {
                let expected_v: Vec<f64> = (0..p.len()).map(|i| 0.9 * f64::from(v0[i]) + f64::from(g0[i]) + 0.01 * f64::from(p0[i])).collect();
                let expected_p: Vec<f64> = (0..p.len()).map(|i| f64::from(p0[i]) - 0.1 * expected_v[i]).collect();
                let expected_a: Vec<f64> = (0..p.len()).map(|i| 0.9 * f64::from(a0[i]) + 0.1 * expected_p[i]).collect();
                assert_close(v, &expected_v, 1e-6, "velocity");
                assert_close(p, &expected_p, 1e-6, "parameter");
                assert_close(a, &expected_a, 1e-6, "average");
            }
        }
    }
}

/// The whole block `relu(scale · (x ∗ w) + shift + residual)`, all gradients by finite differences.
#[test]
fn gradients_of_a_block_equal_finite_differences() {
    for (window, grid, in_channels, out_channels) in [
        (Window::new(3, 1, 1), Grid::new(2, 6, 5), 17, 16), // Winograd
        (Window::new(3, 2, 1), Grid::new(1, 7, 6), 5, 6),
        (Window { kernel: 3, stride: 1, padding: 2, dilation: 2 }, Grid::new(1, 5, 6), 4, 3),
        (Window::new(1, 1, 0), Grid::new(2, 3, 4), 7, 9),
    ] {
        let reference = Reference { inputs: vec![grid], in_channels, out_channels, window };
        let conv = Conv2d::new(vec![grid], in_channels, out_channels, window).unwrap();
        let x = numbers(1, reference.input_len());
        let w = numbers(2, reference.weight_len());
        let (scale, shift) = (numbers(3, out_channels), numbers(4, out_channels));
        let (residual, dy) = (numbers(5, reference.output_len()), numbers(6, reference.output_len()));
        // Perturbed in f64 by way of linearity, so that steps are not lost in f32.
        let loss = |z: &[f64], shift: &[f64], residual: &[f64]| -> f64 {
            (0..z.len())
                .map(|i| {
                    let y = f64::from(scale[i % out_channels]) * z[i] + shift[i % out_channels] + residual[i];
                    y.max(0.0) * f64::from(dy[i])
                })
                .sum()
        };
        let z = reference.forward(&x, &w);
        let doubles = |v: &[f32]| -> Vec<f64> { v.iter().map(|&v| v.into()).collect() };
        let (shift_d, residual_d) = (doubles(&shift), doubles(&residual));
        let along = |direction: Vec<f64>, step: f64| -> f64 {
            let moved: Vec<f64> = z.iter().zip(&direction).map(|(z, d)| z + step * d).collect();
            loss(&moved, &shift_d, &residual_d)
        };
        let unit = |len: usize, i: usize| -> Vec<f32> { (0..len).map(|j| f32::from(i == j)).collect() };
        for isa in Isa::available() {
            let epilogue =
                Epilogue { scale: Some(&scale), shift: Some(&shift), residual: Some(&residual), relu: true };
            let y = conv.forward(isa, &x, &w, &epilogue).unwrap();
            let mut dz = dy.clone();
            let dshift = relu_gradient(isa, Some(&y), &mut dz, out_channels, true).unwrap().unwrap();
            let dx = conv.input_gradient(isa, &dz, &w, Some(&scale)).unwrap();
            let dw = conv.weight_gradient(isa, &x, &dz, Some(&scale)).unwrap();
            let check = |what: &str, actual: f32, expected: f64| {
                assert!(
                    (f64::from(actual) - expected).abs() < 1e-3,
                    "{what}, {}: {actual} {expected}",
                    isa.name()
                );
            };
            for i in (0..x.len()).step_by(1 + x.len() / 7) {
                let step = |h: f64| along(reference.forward(&unit(x.len(), i), &w), h);
                check("dx", dx[i], (step(1e-6) - step(-1e-6)) / 2e-6);
            }
            for i in (0..w.len()).step_by(1 + w.len() / 7) {
                let step = |h: f64| along(reference.forward(&x, &unit(w.len(), i)), h);
                check("dw", dw[i], (step(1e-6) - step(-1e-6)) / 2e-6);
            }
            for i in 0..out_channels {
                check("dshift", dshift[i], slope(&shift, i, |shift| loss(&z, shift, &residual_d)));
            }
            for i in (0..residual.len()).step_by(1 + residual.len() / 7) {
                check("dresidual", dz[i], slope(&residual, i, |residual| loss(&z, &shift_d, residual)));
            }
        }
        assert_eq!(conv.outputs(), reference.outputs());
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let isa = Isa::best();
    let grid = Grid::new(3, 33, 31);
    let x = numbers(1, grid.pixels() * 40);
    let pool = MaxPool2d::new(grid, 40, Window::new(3, 2, 1)).unwrap();
    let align = RoiAlign { height: 7, width: 7, spatial_scale: 0.5, sampling_ratio: 0, aligned: true };
    let regions: Vec<Region> = (0..50)
        .map(|i| {
            let at = i as f32;
            Region { image: i % 3, x1: at, y1: 60.0 - at, x2: at + 20.0, y2: 80.0 - at }
        })
        .collect();
    let labels: Vec<i32> = (0..grid.pixels() as i32).map(|row| row % 41 - 1).collect();
    let normalize = SegmentNorm::new(&[2000, 1000, 69], 40, 8, 1e-5).unwrap();
    let run = || {
        let pooled = pool.forward(isa, &x).unwrap();
        let mut masked = x.clone();
        let shift = relu_gradient(isa, Some(&x), &mut masked, 40, true).unwrap().unwrap();
        let align_y = align.forward(isa, &x, grid, 40, &regions).unwrap();
        let focal = FocalLoss { alpha: 0.25, gamma: 2.0 }.forward(isa, &x, 40, &labels, None).unwrap();
        let normalized = normalize.forward(isa, &x, &x[..40], &x[40..80], Some(&x), true).unwrap();
        let mut dy = x.clone();
        let of_norm = normalize
            .gradients(isa, &x, &normalized.statistics, &x[..40], Some(&normalized.y), &mut dy, true)
            .unwrap();
        let all = [
            pool.gradient(isa, &pooled.y, &pooled.taps).unwrap(),
            align.gradient(isa, &align_y, grid, 40, &regions).unwrap(),
            shift,
            vec![focal.loss],
            focal.gradient,
            normalized.y,
            normalized.statistics.mean,
            normalized.statistics.variance,
            of_norm.x.unwrap(),
            of_norm.weight,
            of_norm.bias,
        ];
        all.map(|values| values.into_iter().map(f32::to_bits).collect::<Vec<_>>())
    };
    let once = on_threads(1, run);
    for threads in [1, 2, 8] {
        assert!(on_threads(threads, run) == once, "{threads} threads");
    }
}

/// A mean a thousand deviations from 0, and of one channel an outlier in the first row, which a sum of
/// squares about either would lose the variance in.
#[test]
fn variance_is_accurate_far_from_zero() {
    let (rows, channels) = (1000, 20);
    let mut x: Vec<f32> = numbers(1, rows * channels).iter().map(|x| 600.0 + x).collect();
    x[3] = 5.0;
    let normalize = SegmentNorm::new(&[rows], channels, channels, 1e-5).unwrap();
    let reference = Norm { segments: vec![rows], channels, groups: channels, epsilon: 1e-5, relu: false };
    let (ones, zeros) = (vec![1.0; channels], vec![0.0; channels]);
    let (mean, variance) = reference.statistics(&doubles(&x));
    let y = reference.forward(&doubles(&x), &doubles(&ones), &doubles(&zeros), None);
    for isa in Isa::available() {
        let result = normalize.forward(isa, &x, &ones, &zeros, None, false).unwrap();
        for (&actual, expected) in result.statistics.variance.iter().zip(&variance) {
            assert_close(&[actual], &[*expected], 1e-6, "variance");
        }
        assert_close(&result.statistics.mean, &mean, 1e-7, "mean");
        // Half a unit in the last place of the mean is 5e-5 deviations.
        for (actual, expected) in result.y.iter().zip(&y) {
            assert!((f64::from(*actual) - expected).abs() < 1e-4, "{actual} {expected}");
        }
    }
}

/// Far from 0, where exponentials and products would overflow.
#[test]
fn focal_loss_holds_at_any_logit() {
    for gamma in [0.0f32, 1.5, 2.0] {
        let focal = FocalLoss { alpha: 0.25, gamma };
        for isa in Isa::available() {
            for logit in [20.0f32, 90.0, 1e4, 3e38].into_iter().flat_map(|x| [x, -x]) {
                for label in [-1, 0] {
                    let z = f64::from(if label == 0 { logit } else { -logit });
                    let alpha = if label == 0 { 0.25 } else { 0.75 };
                    // ln p = −ln(1 + exp(−z)), p = exp(ln p), and likewise q for −z.
                    let log = |z: f64| z.min(0.0) - (-z.abs()).exp().ln_1p();
                    let (p, q) = (log(z).exp(), log(-z).exp());
                    let power = q.powf(f64::from(gamma));
                    let loss = -alpha * power * log(z);
                    let slope = alpha * power * (f64::from(gamma) * p * log(z) - q);
                    let slope = if label == 0 { slope } else { -slope };
                    let result = focal.forward(isa, &[logit], 1, &[label], None).unwrap();
                    let what = format!("{logit}, label {label}, gamma {gamma}, {}", isa.name());
                    assert_close(&[result.loss], &[loss], 1e-6, &what);
                    assert_close(&result.gradient, &[slope], 1e-6, &what);
                }
            }
            for logit in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                for label in [-1, 0] {
                    let result = focal.forward(isa, &[logit], 1, &[label], None).unwrap();
                    assert!(!result.loss.is_finite() && !result.gradient[0].is_finite(), "{logit} {label}");
                }
            }
        }
    }
}
