//! `y = relu(scale[c] · x + shift[c] + residual)` over channels-last tensors, for frozen batch norm
//! and biases. After a convolution it is fused into the convolution itself ([`Epilogue`]); the
//! gradient here serves both.

use rayon::prelude::*;

use crate::conv::Epilogue;
use crate::memory::{Source, Target, written};
use crate::shape::{ShapeError, check_len};
use crate::simd::{Isa, simd_fn};

/// Floats per job: large enough to hide the cost of sharing out, small enough to balance.
const CHUNK: usize = 1 << 15;

/// Whole pixels of about [`CHUNK`] floats.
fn pixels_per_job(channels: usize) -> usize {
    (CHUNK / channels).max(1)
}

/// `y = relu(scale[c] · x + shift[c] + residual)`, `x [pixels, C]`.
pub fn scale_shift(
    isa: Isa,
    x: &[f32],
    channels: usize,
    epilogue: &Epilogue,
) -> Result<Vec<f32>, ShapeError> {
    if channels == 0 {
        return Err(ShapeError::Zero { what: "channels" });
    }
    check_len("x", &[x.len() / channels, channels], x.len())?;
    for (tensor, values) in [("scale", epilogue.scale), ("shift", epilogue.shift)] {
        check_len(tensor, &[channels], values.map_or(channels, <[f32]>::len))?;
    }
    check_len("residual", &[x.len() / channels, channels], epilogue.residual.map_or(x.len(), <[f32]>::len))?;
    let ones = vec![1.0; if epilogue.scale.is_none() { channels } else { 0 }];
    let zeros = vec![0.0; if epilogue.shift.is_none() { channels } else { 0 }];
    let (scale, shift) = (epilogue.scale.unwrap_or(&ones), epilogue.shift.unwrap_or(&zeros));
    let per_job = pixels_per_job(channels) * channels;
    // SAFETY: the jobs cover `x`, and each writes as many floats as it reads.
    Ok(unsafe {
        written(x.len(), |y| {
            x.par_chunks(per_job).enumerate().for_each(|(job, x)| {
                let at = job * per_job;
                let residual = epilogue.residual.map(|residual| &residual[at..][..x.len()]);
                scale_shift_chunk(isa, x, scale, shift, residual, epilogue.relu, y, at);
            });
        })
    })
}

simd_fn! {
    fn scale_shift_chunk<S>(
        s,
        x: &[f32],
        scale: &[f32],
        shift: &[f32],
        residual: Option<&[f32]>,
        relu: bool,
        y: Target,
        at: usize,
    ) {
        let channels = scale.len();
        let (x, scale, shift) = (Source::from(x), (Source::from(scale), x.len()), Source::from(shift));
        let (scale, len) = scale;
        let residual = residual.map(Source::from);
        for pixel in (0..len).step_by(channels) {
            for c in (0..channels).step_by(S::LANES) {
                let count = S::LANES.min(channels - c);
                // SAFETY: all tensors have `channels` floats at `pixel`, checked by `scale_shift`,
                // and the chunk of `y` is this job's alone.
                unsafe {
                    let (x, scale) = (x.load(s, pixel + c, count), scale.load(s, c, count));
                    let mut v = s.mul_add(x, scale, shift.load(s, c, count));
                    if let Some(residual) = residual {
                        v = s.add(v, residual.load(s, pixel + c, count));
                    }
                    if relu {
                        v = s.max(s.zero(), v);
                    }
                    y.store(s, at + pixel + c, v, count);
                }
            }
        }
    }
}

/// The gradient of the value under the ReLU, in place: `dy ← dy where y > 0, else 0` (`y` not given
/// means no ReLU, and `dy` stays). It is the gradient of the residual as it is, and of `x` once
/// scaled. Returns the gradient of the shift, `Σ_pixels dy`, if asked for.
///
/// Sums run over parts fixed by the shape, so they do not depend on the number of threads.
pub fn relu_gradient(
    isa: Isa,
    y: Option<&[f32]>,
    dy: &mut [f32],
    channels: usize,
    with_shift: bool,
) -> Result<Option<Vec<f32>>, ShapeError> {
    if channels == 0 {
        return Err(ShapeError::Zero { what: "channels" });
    }
    check_len("dy", &[dy.len() / channels, channels], dy.len())?;
    check_len("y", &[dy.len() / channels, channels], y.map_or(dy.len(), <[f32]>::len))?;
    if y.is_none() && !with_shift {
        return Ok(None);
    }
    let per_job = pixels_per_job(channels) * channels;
    let sums: Vec<Vec<f32>> = dy
        .par_chunks_mut(per_job)
        .enumerate()
        .map(|(job, dy)| {
            if let Some(y) = y {
                mask_chunk(isa, &y[job * per_job..][..dy.len()], dy);
            }
            let mut sum = vec![0.0; if with_shift { channels } else { 0 }];
            if with_shift {
                sum_chunk(isa, dy, &mut sum);
            }
            sum
        })
        .collect();
    Ok(with_shift.then(|| {
        let mut total = vec![0.0; channels];
        for sum in sums {
            total.iter_mut().zip(sum).for_each(|(total, sum)| *total += sum);
        }
        total
    }))
}

simd_fn! {
    fn mask_chunk<S>(s, y: &[f32], dy: &mut [f32]) {
        for (dy, &y) in dy.iter_mut().zip(y) {
            // Not `y > 0`: a NaN must not hide the gradient.
            *dy = if y <= 0.0 { 0.0 } else { *dy };
        }
    }
}

simd_fn! {
    fn sum_chunk<S>(s, dy: &[f32], sum: &mut [f32]) {
        for dy in dy.chunks_exact(sum.len()) {
            for (sum, dy) in sum.iter_mut().zip(dy) {
                *sum += dy;
            }
        }
    }
}
