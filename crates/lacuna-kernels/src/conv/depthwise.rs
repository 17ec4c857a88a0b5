//! Depthwise convolution: each channel has its own window. There is nothing to share between
//! channels, so this is bound by memory; vectors run along the channels.

use rayon::prelude::*;

use super::{Epilogue, pixels, with_first_pixel};
use crate::gemm::Finish;
use crate::memory::{Source, Target, written};
use crate::shape::{Grid, ShapeError, Window, check_grids, check_len, check_size};
use crate::simd::{Isa, simd_fn};

/// Parts that a weight gradient is summed in: fixed, so that the sum does not depend on the number
/// of threads.
const PARTS: usize = 16;

/// The shape of one depthwise convolution: `x [N, H, W, C]`, `w [kernel, kernel, C]`,
/// `y [N, H', W', C]`.
#[derive(Clone, Debug)]
pub struct DepthwiseConv2d {
    inputs: Vec<Grid>,
    outputs: Vec<Grid>,
    channels: usize,
    window: Window,
}

impl DepthwiseConv2d {
    pub fn new(inputs: Vec<Grid>, channels: usize, window: Window) -> Result<Self, ShapeError> {
        if channels == 0 {
            return Err(ShapeError::Zero { what: "channels" });
        }
        let outputs: Vec<Grid> = inputs.iter().map(|&grid| window.output(grid)).collect::<Result<_, _>>()?;
        check_grids("x", &inputs, channels)?;
        check_grids("y", &outputs, channels)?;
        check_size("w", &[window.kernel, window.kernel, channels])?;
        Ok(Self { inputs, outputs, channels, window })
    }

    pub fn outputs(&self) -> &[Grid] {
        &self.outputs
    }

    /// `y = relu(scale[c] · Σ_tap x · w[tap] + shift[c] + residual)`
    pub fn forward(
        &self,
        isa: Isa,
        x: &[f32],
        w: &[f32],
        epilogue: &Epilogue,
    ) -> Result<Vec<f32>, ShapeError> {
        let (channels, output_pixels) = (self.channels, pixels(&self.outputs));
        check_len("x", &[pixels(&self.inputs), channels], x.len())?;
        check_len(
            "residual",
            &[output_pixels, channels],
            epilogue.residual.map_or(output_pixels * channels, <[f32]>::len),
        )?;
        check_len("shift", &[channels], epilogue.shift.map_or(channels, <[f32]>::len))?;
        let w = self.scaled(w, epilogue.scale)?;
        let finish = Finish {
            shift: epilogue.shift.map(Into::into),
            residual: epilogue.residual.map(Into::into),
            relu: epilogue.relu,
        };
        let window = self.window;
        // Output (y, x) reads input (y, x) · stride + tap · dilation − padding.
        let source = |out: usize, tap: usize, size: usize| {
            (out * window.stride + tap * window.dilation).checked_sub(window.padding).filter(|&at| at < size)
        };
        // SAFETY: every output pixel is written; all lengths were checked, and `source` filters by size.
        Ok(unsafe {
            written(output_pixels * channels, |y| {
                self.sum_taps(isa, (&self.inputs, x), &self.outputs, &w, source, finish, y);
            })
        })
    }

    /// `dx = (scale[c] · dz) ∗ᵀ w`
    pub fn input_gradient(
        &self,
        isa: Isa,
        dz: &[f32],
        w: &[f32],
        scale: Option<&[f32]>,
    ) -> Result<Vec<f32>, ShapeError> {
        check_len("dz", &[pixels(&self.outputs), self.channels], dz.len())?;
        let w = self.scaled(w, scale)?;
        let window = self.window;
        // Input (y, x) was read by the output (y + padding − tap · dilation) / stride, if whole.
        let source = |at: usize, tap: usize, size: usize| {
            let offset = (at + window.padding).checked_sub(tap * window.dilation)?;
            Some(offset / window.stride).filter(|&out| offset % window.stride == 0 && out < size)
        };
        // SAFETY: every input pixel is written; all lengths were checked, and `source` filters by size.
        Ok(unsafe {
            written(pixels(&self.inputs) * self.channels, |dx| {
                self.sum_taps(isa, (&self.outputs, dz), &self.inputs, &w, source, Finish::default(), dx);
            })
        })
    }

    /// `dw [kernel, kernel, C] = scale[c] · Σ_pixels x · dz`
    pub fn weight_gradient(
        &self,
        isa: Isa,
        x: &[f32],
        dz: &[f32],
        scale: Option<&[f32]>,
    ) -> Result<Vec<f32>, ShapeError> {
        let (channels, kernel) = (self.channels, self.window.kernel);
        check_len("x", &[pixels(&self.inputs), channels], x.len())?;
        check_len("dz", &[pixels(&self.outputs), channels], dz.len())?;
        check_len("scale", &[channels], scale.map_or(channels, <[f32]>::len))?;
        // (first input pixel of the image, its grid, first pixel of the output row, y)
        let rows: Vec<(usize, Grid, usize, usize, usize)> = with_first_pixel(&self.inputs)
            .zip(with_first_pixel(&self.outputs))
            .flat_map(|((input_first, input), (output_first, output))| {
                (0..output.batch * output.height).map(move |row| {
                    let image = input_first + row / output.height * input.height * input.width;
                    (image, input, output_first + row * output.width, output.width, row % output.height)
                })
            })
            .collect();
        let share = rows.len().div_ceil(PARTS).max(1);
        let window = self.window;
        let partial: Vec<Vec<f32>> = rows
            .par_chunks(share)
            .map(|rows| {
                let mut sum = vec![0.0; kernel * kernel * channels];
                for &(image, input, output_row, width, out_y) in rows {
                    for tap in 0..kernel * kernel {
                        let y = (out_y * window.stride + tap / kernel * window.dilation)
                            .checked_sub(window.padding);
                        let Some(y) = y.filter(|&y| y < input.height) else { continue };
                        let sum = &mut sum[tap * channels..][..channels];
                        for out_x in 0..width {
                            let x_at = (out_x * window.stride + tap % kernel * window.dilation)
                                .checked_sub(window.padding)
                                .filter(|&x| x < input.width);
                            let Some(x_at) = x_at else { continue };
                            let pixel = &x[(image + y * input.width + x_at) * channels..][..channels];
                            add_products(isa, pixel, &dz[(output_row + out_x) * channels..][..channels], sum);
                        }
                    }
                }
                sum
            })
            .collect();
        let mut dw = vec![0.0; kernel * kernel * channels];
        for sum in &partial {
            dw.iter_mut().zip(sum).for_each(|(dw, sum)| *dw += sum);
        }
        if let Some(scale) = scale {
            dw.chunks_exact_mut(channels)
                .for_each(|dw| dw.iter_mut().zip(scale).for_each(|(dw, s)| *dw *= s));
        }
        Ok(dw)
    }

    fn scaled(&self, w: &[f32], scale: Option<&[f32]>) -> Result<Vec<f32>, ShapeError> {
        check_len("w", &[self.window.kernel, self.window.kernel, self.channels], w.len())?;
        check_len("scale", &[self.channels], scale.map_or(self.channels, <[f32]>::len))?;
        let mut w = w.to_vec();
        if let Some(scale) = scale {
            w.chunks_exact_mut(self.channels)
                .for_each(|w| w.iter_mut().zip(scale).for_each(|(w, s)| *w *= s));
        }
        Ok(w)
    }

    /// `to[pixel] = finish(Σ_tap from[source(pixel, tap)] · w[tap])`, a row of pixels per job.
    ///
    /// # Safety
    /// `from` and `to` must have `channels` floats per pixel of their grids, `w` per tap, and `finish` must
    /// cover `to`, which no other job may use. `source` must give coordinates below the size it is given.
    #[allow(clippy::too_many_arguments)]
    unsafe fn sum_taps(
        &self,
        isa: Isa,
        (from_grids, from): (&[Grid], &[f32]),
        to_grids: &[Grid],
        w: &[f32],
        source: impl Fn(usize, usize, usize) -> Option<usize> + Sync,
        finish: Finish,
        to: Target,
    ) {
        let (channels, kernel) = (self.channels, self.window.kernel);
        for ((from_first, from_grid), (to_first, to_grid)) in
            with_first_pixel(from_grids).zip(with_first_pixel(to_grids))
        {
            (0..to_grid.batch * to_grid.height).into_par_iter().for_each(|row| {
                let (image, y) = (row / to_grid.height, row % to_grid.height);
                let mut taps = Vec::with_capacity(kernel * kernel);
                for x in 0..to_grid.width {
                    taps.clear();
                    for tap in 0..kernel * kernel {
                        let y = source(y, tap / kernel, from_grid.height);
                        let x = source(x, tap % kernel, from_grid.width);
                        if let (Some(y), Some(x)) = (y, x) {
                            let pixel = from_first + (image * from_grid.height + y) * from_grid.width + x;
                            taps.push((pixel * channels, tap * channels));
                        }
                    }
                    let at = (to_first + row * to_grid.width + x) * channels;
                    // SAFETY: pixels and taps are inside their tensors, as the caller vouches, and the
                    // output pixel is this job's own.
                    unsafe { sum_products(isa, from.into(), w.into(), &taps, channels, finish, to, at) };
                }
            });
        }
    }
}

simd_fn! {
    /// `to[at + c] = finish(Σ from[a + c] · w[b + c])` over the pairs `(a, b)`.
    ///
    /// # Safety
    /// `channels` floats must be within `from` at each `a`, within `w` at each `b`, and within `to` and
    /// what `finish` reads at `at`; no other job may use these of `to`.
    unsafe fn sum_products<S>(
        s,
        from: Source,
        w: Source,
        taps: &[(usize, usize)],
        channels: usize,
        finish: Finish,
        to: Target,
        at: usize,
    ) {
        for c in (0..channels).step_by(S::LANES) {
            let count = S::LANES.min(channels - c);
            let mut sum = s.zero();
            for &(pixel, tap) in taps {
                // SAFETY: as the caller vouches.
                unsafe { sum = s.mul_add(from.load(s, pixel + c, count), w.load(s, tap + c, count), sum) };
            }
            // SAFETY: as the caller vouches.
            unsafe { to.store(s, at + c, finish.apply(s, sum, c, at + c, count), count) };
        }
    }
}

simd_fn! {
    fn add_products<S>(s, x: &[f32], dz: &[f32], sum: &mut [f32]) {
        for ((sum, x), dz) in sum.iter_mut().zip(x).zip(dz) {
            *sum += x * dz;
        }
    }
}
