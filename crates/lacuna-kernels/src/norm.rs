//! Group normalization and batch normalization in training: one kernel.
//!
//! The rows of `x [rows, C]` are cut into segments (an image of a pyramid's level; for batch norm, all
//! rows), the channels into groups (for batch norm, each is one). In each segment and group,
//! `y = relu(weight[c] · (x − mean) / √(variance + ε) + bias[c] + residual)`.
//!
//! Most of the work is to read memory, so it is read as rarely as can be: once for the sums, once for
//! the result. A segment's second pass follows its first, while what fits the cache is still there.
//! Sums are of chunks of rows, cut by the shape alone, and added up in f64 and in order.

use std::ops::Range;

use rayon::prelude::*;

use crate::memory::{Source, Target, written};
use crate::shape::{ShapeError, check_len, check_size};
use crate::simd::{Isa, Simd, simd_fn};

/// Floats per chunk, the unit of a job: few enough to stay in a core's own cache while they are read
/// twice.
const CHUNK: usize = 1 << 14;

/// Rows summed in registers before they are added to a chunk's sums, which so have few terms and small
/// errors.
const BAND: usize = 8;

/// Which rows and channels are normalized together: rows in segments, channels in groups.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentNorm {
    /// The first row of each segment, and the end of the last.
    bounds: Vec<usize>,
    channels: usize,
    groups: usize,
    epsilon: f32,
}

/// Mean and variance of each segment and group, `[segments, groups]`; 0 where there are no rows.
#[derive(Clone, Debug, PartialEq)]
pub struct MeanVariance {
    /// The mean.
    pub mean: Vec<f32>,
    /// The mean square deviation, not corrected for its bias.
    pub variance: Vec<f32>,
}

/// The result of a normalization, with what its gradient needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalized {
    /// `[rows, C]`
    pub y: Vec<f32>,
    /// What `x` was normalized by.
    pub statistics: MeanVariance,
}

/// The gradients of a normalization.
#[derive(Clone, Debug, PartialEq)]
pub struct NormGradients {
    /// `[rows, C]`, if asked for.
    pub x: Option<Vec<f32>>,
    /// `[C]`
    pub weight: Vec<f32>,
    /// `[C]`
    pub bias: Vec<f32>,
}

impl SegmentNorm {
    /// `segments` has the rows of each; a group is `channels / groups` channels; `epsilon` is added to
    /// the variance.
    pub fn new(segments: &[usize], channels: usize, groups: usize, epsilon: f32) -> Result<Self, ShapeError> {
        for (what, value) in [("channels", channels), ("groups", groups)] {
            if value == 0 {
                return Err(ShapeError::Zero { what });
            }
        }
        if !channels.is_multiple_of(groups) {
            let (left_shape, right_shape) = (vec![channels], vec![groups]);
            return Err(ShapeError::Mismatch { left: "channels", left_shape, right: "groups", right_shape });
        }
        if !(epsilon.is_finite() && epsilon >= 0.0) {
            let (what, value) = ("epsilon", epsilon.to_string());
            return Err(ShapeError::Setting { what, value, allowed: "finite and not negative" });
        }
        let mut bounds = vec![0];
        for &rows in segments {
            bounds.push(rows.saturating_add(bounds[bounds.len() - 1]));
        }
        let normalize = Self { bounds, channels, groups, epsilon };
        check_size("x", &[normalize.rows(), channels])?;
        check_size("the statistics", &[segments.len(), groups])?;
        Ok(normalize)
    }

    fn rows(&self) -> usize {
        self.bounds[self.bounds.len() - 1]
    }

    fn segments(&self) -> impl IndexedParallelIterator<Item = Range<usize>> {
        self.bounds.par_windows(2).map(|bounds| bounds[0]..bounds[1])
    }

    /// The chunks of a segment, as ranges of floats.
    fn chunks(&self, segment: &Range<usize>) -> impl IndexedParallelIterator<Item = Range<usize>> {
        let (start, end) = (segment.start * self.channels, segment.end * self.channels);
        let len = (CHUNK / self.channels).max(1) * self.channels;
        let chunk = move |at: usize| start + at * len..end.min(start + (at + 1) * len);
        (0..(end - start).div_ceil(len)).into_par_iter().map(chunk)
    }

    fn check(&self, tensor: &'static str, len: usize) -> Result<(), ShapeError> {
        check_len(tensor, &[self.rows(), self.channels], len)
    }

    /// `x` and `residual [rows, C]`, `weight` and `bias [C]`.
    pub fn forward(
        &self,
        isa: Isa,
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
        residual: Option<&[f32]>,
        relu: bool,
    ) -> Result<Normalized, ShapeError> {
        self.check("x", x.len())?;
        self.check("residual", residual.map_or(x.len(), <[f32]>::len))?;
        check_len("weight", &[self.channels], weight.len())?;
        check_len("bias", &[self.channels], bias.len())?;
        let zeros = || vec![0.0; (self.bounds.len() - 1) * self.groups];
        let mut statistics = MeanVariance { mean: zeros(), variance: zeros() };
        let of_segments =
            statistics.mean.par_chunks_mut(self.groups).zip(statistics.variance.par_chunks_mut(self.groups));
        // SAFETY: each row is of one chunk of one segment, whose job writes it.
        let y = unsafe {
            written(x.len(), |y| {
                self.segments().zip(of_segments).for_each(|(segment, (mean, variance))| {
                    self.statistics(isa, x, &segment, mean, variance);
                    let affine = self.affine(mean, variance, weight);
                    self.chunks(&segment).for_each(|chunk| {
                        let residual = residual.map(|residual| &residual[chunk.clone()]);
                        normalize(isa, &x[chunk.clone()], &affine, bias, residual, relu, y, chunk.start);
                    });
                });
            })
        };
        Ok(Normalized { y, statistics })
    }

    /// Those of one segment.
    fn statistics(
        &self,
        isa: Isa,
        x: &[f32],
        segment: &Range<usize>,
        mean: &mut [f32],
        variance: &mut [f32],
    ) {
        let chunks: Vec<_> =
            self.chunks(segment).map(|chunk| Moments::compute(isa, &x[chunk], self.channels)).collect();
        let each = self.channels / self.groups;
        let count = (segment.len() * each).max(1) as f64;
        for (group, (mean, variance)) in mean.iter_mut().zip(variance).enumerate() {
            let channels = group * each..(group + 1) * each;
            let sum: f64 = chunks.iter().map(|chunk| chunk.sum(channels.clone())).sum();
            let center = sum / count;
            let squares: f64 = chunks.iter().map(|chunk| chunk.squares(channels.clone(), center)).sum();
            (*mean, *variance) = (center as f32, (squares / count) as f32);
        }
    }

    /// What is done to a segment of these statistics.
    fn affine(&self, mean: &[f32], variance: &[f32], weight: &[f32]) -> Affine {
        let epsilon = f64::from(self.epsilon);
        let inverse = variance.iter().map(|&variance| (1.0 / (f64::from(variance) + epsilon).sqrt()) as f32);
        let inverse = self.per_channel(inverse);
        let scale = inverse.iter().zip(weight).map(|(inverse, weight)| inverse * weight).collect();
        Affine { mean: self.per_channel(mean.iter().copied()), inverse, scale }
    }

    /// The number of each group for each of its channels.
    fn per_channel(&self, of_groups: impl Iterator<Item = f32>) -> Vec<f32> {
        let each = self.channels / self.groups;
        of_groups.flat_map(|value| std::iter::repeat_n(value, each)).collect()
    }

    /// The gradients of `x` (if asked for), weight and bias. Those of the latter are sums that the
    /// gradient of `x` needs, too, so they are always there.
    ///
    /// The output's gradient becomes that of the value under the ReLU, which is also the residual's:
    /// `dy ← dy where y > 0, else 0` (`y` not given means no ReLU, and `dy` stays).
    #[allow(clippy::too_many_arguments)]
    pub fn gradients(
        &self,
        isa: Isa,
        x: &[f32],
        statistics: &MeanVariance,
        weight: &[f32],
        y: Option<&[f32]>,
        dy: &mut [f32],
        with_x: bool,
    ) -> Result<NormGradients, ShapeError> {
        self.check("x", x.len())?;
        self.check("dy", dy.len())?;
        self.check("y", y.map_or(x.len(), <[f32]>::len))?;
        check_len("weight", &[self.channels], weight.len())?;
        for (name, values) in [("mean", &statistics.mean), ("variance", &statistics.variance)] {
            check_len(name, &[self.bounds.len() - 1, self.groups], values.len())?;
        }
        let of_segments =
            statistics.mean.par_chunks(self.groups).zip(statistics.variance.par_chunks(self.groups));
        let dy = Target::from(dy);
        let mut sums: Vec<Sums> = Vec::new();
        // SAFETY: each row is of one chunk of one segment. Its job in the first pass changes `dy`
        // there; its job in the second, which starts when the first pass of its segment is over, reads
        // that and writes `dx`.
        let dx = unsafe {
            written(if with_x { x.len() } else { 0 }, |dx| {
                let of_segment = |(segment, (mean, variance)): (Range<usize>, (&[f32], &[f32]))| {
                    let affine = self.affine(mean, variance, weight);
                    let chunks: Vec<_> = self
                        .chunks(&segment)
                        .map(|chunk| {
                            let y = y.map(|y| &y[chunk.clone()]);
                            Sums::compute(isa, &x[chunk.clone()], &affine, y, dy, chunk.start)
                        })
                        .collect();
                    let sums = Sums::total(&chunks, self.channels);
                    if with_x {
                        let line = self.line(&sums, &affine, weight, segment.len());
                        self.chunks(&segment).for_each(|chunk| {
                            let (x, at) = (&x[chunk.clone()], chunk.start);
                            input_gradient(isa, x, dy.as_source(), &affine, &line, dx, at);
                        });
                    }
                    sums
                };
                sums = self.segments().zip(of_segments).map(of_segment).collect();
            })
        };
        let Sums { of_bias, of_weight } = Sums::total(&sums, self.channels);
        let single = |values: Vec<f64>| values.into_iter().map(|value| value as f32).collect();
        Ok(NormGradients { x: with_x.then_some(dx), weight: single(of_weight), bias: single(of_bias) })
    }

    /// What flows to a segment's `x` by way of its mean and variance.
    fn line(&self, sums: &Sums, affine: &Affine, weight: &[f32], rows: usize) -> Line {
        let each = self.channels / self.groups;
        let count = (rows * each) as f64;
        let mean = |sums: &[f64]| {
            let weighted: Vec<f64> = sums.iter().zip(weight).map(|(sum, &w)| sum * f64::from(w)).collect();
            let means = weighted.chunks_exact(each).map(|group| group.iter().sum::<f64>() / count);
            self.per_channel(means.map(|mean| mean as f32))
        };
        let mut line = Line { slope: mean(&sums.of_weight), offset: mean(&sums.of_bias) };
        for ((slope, offset), inverse) in line.slope.iter_mut().zip(&mut line.offset).zip(&affine.inverse) {
            (*slope, *offset) = (-*slope * inverse * inverse, -*offset * inverse);
        }
        line
    }
}

/// `scale · (x − mean)` by channels, `scale = weight · inverse`. Not `scale · x + shift`, which costs as
/// much where memory is the limit, but loses what distinguishes `x` from a mean far from 0.
struct Affine {
    mean: Vec<f32>,
    /// `1 / √(variance + ε)`
    inverse: Vec<f32>,
    scale: Vec<f32>,
}

/// The mean of some rows, and the sum of square deviations from it, by channels.
///
/// Two passes over the chunk, which is in the cache for the second: the squares are of deviations from
/// the first one's mean, so nothing cancels, however far from 0 it is; and the sum of the same
/// deviations, all but 0, makes up for the rounding of that mean.
struct Moments {
    rows: f64,
    mean: Vec<f64>,
    squares: Vec<f64>,
}

impl Moments {
    fn compute(isa: Isa, x: &[f32], channels: usize) -> Self {
        let rows = (x.len() / channels) as f64;
        let (mut sums, mut squares) = (vec![0.0; channels], vec![0.0; channels]);
        deviations(isa, x, &x[..channels], &mut sums, &mut squares);
        let near: Vec<f32> = x
            .iter()
            .zip(&sums)
            .map(|(&first, &sum)| (f64::from(first) + f64::from(sum) / rows) as f32)
            .collect();
        sums.fill(0.0);
        squares.fill(0.0);
        deviations(isa, x, &near, &mut sums, &mut squares);
        let of_channel = |((&near, &sum), &squares): ((&f32, &f32), &f32)| {
            let off = f64::from(sum) / rows;
            (f64::from(near) + off, f64::from(squares) - rows * off * off)
        };
        let (mean, squares) = near.iter().zip(&sums).zip(&squares).map(of_channel).unzip();
        Self { rows, mean, squares }
    }

    fn sum(&self, channels: Range<usize>) -> f64 {
        self.rows * self.mean[channels].iter().sum::<f64>()
    }

    /// The sum of square deviations from `center`.
    fn squares(&self, channels: Range<usize>, center: f64) -> f64 {
        let away: f64 = self.mean[channels.clone()].iter().map(|mean| (mean - center).powi(2)).sum();
        self.squares[channels].iter().sum::<f64>() + self.rows * away
    }
}

/// `Σ g` and `Σ g · (x − mean) · inverse` over some rows, by channels: the gradients of bias and weight.
struct Sums {
    of_bias: Vec<f64>,
    of_weight: Vec<f64>,
}

impl Sums {
    /// Those of the rows `x`, whose output's gradient is at `at`.
    ///
    /// # Safety
    /// `dy` must have as many floats from `at` on, and no other job may use these.
    unsafe fn compute(
        isa: Isa,
        x: &[f32],
        affine: &Affine,
        y: Option<&[f32]>,
        dy: Target,
        at: usize,
    ) -> Self {
        let channels = affine.mean.len();
        let (mut of_bias, mut of_weight) = (vec![0.0; channels], vec![0.0; channels]);
        // SAFETY: as the caller vouches.
        unsafe { gradient_sums(isa, x, &affine.mean, y, dy, at, &mut of_bias, &mut of_weight) };
        Self {
            of_bias: of_bias.into_iter().map(f64::from).collect(),
            of_weight: of_weight
                .iter()
                .zip(&affine.inverse)
                .map(|(&sum, &i)| f64::from(sum) * f64::from(i))
                .collect(),
        }
    }

    fn total(parts: &[Self], channels: usize) -> Self {
        let mut total = Self { of_bias: vec![0.0; channels], of_weight: vec![0.0; channels] };
        for part in parts {
            total.of_bias.iter_mut().zip(&part.of_bias).for_each(|(total, part)| *total += part);
            total.of_weight.iter_mut().zip(&part.of_weight).for_each(|(total, part)| *total += part);
        }
        total
    }
}

/// `slope · (x − mean) + offset`, by channels.
struct Line {
    slope: Vec<f32>,
    offset: Vec<f32>,
}

/// The first channel of each vector, and how many it has.
#[inline(always)]
fn vectors<S: Simd>(channels: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..channels).step_by(S::LANES).map(move |c| (c, S::LANES.min(channels - c)))
}

/// The first rows and the ends of the bands of `rows` rows.
#[inline(always)]
fn bands(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(BAND).map(move |first| first..rows.min(first + BAND))
}

simd_fn! {
    /// Adds `Σ (x − near)` and `Σ (x − near)²` over the rows.
    fn deviations<S>(s, x: &[f32], near: &[f32], sums: &mut [f32], squares: &mut [f32]) {
        let channels = near.len();
        let rows = x.len() / channels;
        let (x, near) = (Source::from(x), Source::from(near));
        let (sums, squares) = (Target::from(sums), Target::from(squares));
        for band in bands(rows) {
            for (c, count) in vectors::<S>(channels) {
                // SAFETY: `c + count` is within the channels, which all but `x` have, and that for each
                // row; the sums are borrowed for this call alone.
                unsafe {
                    let near = near.load(s, c, count);
                    let (mut sum, mut square) = (s.zero(), s.zero());
                    for row in band.clone() {
                        let deviation = s.sub(x.load(s, row * channels + c, count), near);
                        sum = s.add(sum, deviation);
                        square = s.mul_add(deviation, deviation, square);
                    }
                    sums.store(s, c, s.add(sums.as_source().load(s, c, count), sum), count);
                    squares.store(s, c, s.add(squares.as_source().load(s, c, count), square), count);
                }
            }
        }
    }
}

simd_fn! {
    /// Writes the rows `x`, normalized, at `at`.
    ///
    /// # Safety
    /// `y` must have as many floats from `at` on, and no other job may use these.
    unsafe fn normalize<S>(
        s,
        x: &[f32],
        affine: &Affine,
        bias: &[f32],
        residual: Option<&[f32]>,
        relu: bool,
        y: Target,
        at: usize,
    ) {
        let channels = bias.len();
        let rows = x.len() / channels;
        let (x, residual) = (Source::from(x), residual.map(Source::from));
        let (mean, scale) = (Source::from(&affine.mean[..]), Source::from(&affine.scale[..]));
        let bias = Source::from(bias);
        for row in 0..rows {
            for (c, count) in vectors::<S>(channels) {
                let from = row * channels + c;
                // SAFETY: `c + count` is within the channels, which all but `x`, the residual and `y`
                // have, and those for each row.
                unsafe {
                    let deviation = s.sub(x.load(s, from, count), mean.load(s, c, count));
                    let mut v = s.mul_add(deviation, scale.load(s, c, count), bias.load(s, c, count));
                    if let Some(residual) = residual {
                        v = s.add(v, residual.load(s, from, count));
                    }
                    if relu {
                        v = s.max(s.zero(), v);
                    }
                    y.store(s, at + from, v, count);
                }
            }
        }
    }
}

simd_fn! {
    /// Masks `dy` at `at` where `y`, if given, is not positive, and adds `Σ dy` and `Σ dy · (x − mean)`
    /// over the rows.
    ///
    /// # Safety
    /// `dy` must have as many floats from `at` on as `x`, and no other job may use these.
    unsafe fn gradient_sums<S>(
        s,
        x: &[f32],
        mean: &[f32],
        y: Option<&[f32]>,
        dy: Target,
        at: usize,
        of_bias: &mut [f32],
        of_weight: &mut [f32],
    ) {
        let channels = mean.len();
        let rows = x.len() / channels;
        let (x, y, mean) = (Source::from(x), y.map(Source::from), Source::from(mean));
        let (of_bias, of_weight) = (Target::from(of_bias), Target::from(of_weight));
        for band in bands(rows) {
            for (c, count) in vectors::<S>(channels) {
                // SAFETY: `c + count` is within the channels, which all but `x`, `y` and `dy` have, and
                // those for each row; the sums are borrowed for this call alone.
                unsafe {
                    let mean = mean.load(s, c, count);
                    let (mut sum, mut product) = (s.zero(), s.zero());
                    for row in band.clone() {
                        let from = row * channels + c;
                        let mut g = dy.as_source().load(s, at + from, count);
                        if let Some(y) = y {
                            // A NaN does not hide the gradient.
                            g = s.select_larger(y.load(s, from, count), s.zero(), g, s.zero());
                            dy.store(s, at + from, g, count);
                        }
                        sum = s.add(sum, g);
                        product = s.mul_add(g, s.sub(x.load(s, from, count), mean), product);
                    }
                    of_bias.store(s, c, s.add(of_bias.as_source().load(s, c, count), sum), count);
                    of_weight.store(s, c, s.add(of_weight.as_source().load(s, c, count), product), count);
                }
            }
        }
    }
}

simd_fn! {
    /// Writes `dx` at `at`, where `dy` is that of the same rows.
    ///
    /// # Safety
    /// `dy` and `dx` must have as many floats from `at` on as `x`, and no other job may write to these.
    unsafe fn input_gradient<S>(
        s,
        x: &[f32],
        dy: Source,
        affine: &Affine,
        line: &Line,
        dx: Target,
        at: usize,
    ) {
        let channels = affine.mean.len();
        let rows = x.len() / channels;
        let x = Source::from(x);
        let (mean, scale) = (Source::from(&affine.mean[..]), Source::from(&affine.scale[..]));
        let (slope, offset) = (Source::from(&line.slope[..]), Source::from(&line.offset[..]));
        for row in 0..rows {
            for (c, count) in vectors::<S>(channels) {
                let from = row * channels + c;
                // SAFETY: `c + count` is within the channels, which all but `x`, `dy` and `dx` have, and
                // those for each row.
                unsafe {
                    let deviation = s.sub(x.load(s, from, count), mean.load(s, c, count));
                    let common = s.mul_add(deviation, slope.load(s, c, count), offset.load(s, c, count));
                    let g = dy.load(s, at + from, count);
                    dx.store(s, at + from, s.mul_add(g, scale.load(s, c, count), common), count);
                }
            }
        }
    }
}
