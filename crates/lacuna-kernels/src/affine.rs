//! The gradient of what is fused into a convolution's last store ([`Epilogue`](crate::Epilogue)):
//! `y = relu(scale[c] · z + shift[c] + residual)`, frozen batch norm or a bias.

use rayon::prelude::*;

use crate::shape::{ShapeError, check_len};
use crate::simd::{Isa, simd_fn};

/// Floats per job: large enough to hide the cost of sharing out, small enough to balance.
const CHUNK: usize = 1 << 15;

/// Whole pixels of about [`CHUNK`] floats.
fn pixels_per_job(channels: usize) -> usize {
    (CHUNK / channels).max(1)
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
