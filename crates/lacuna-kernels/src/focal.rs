//! Sigmoid focal loss (Lin et al. 2017), value and gradient in one pass over the logits.
//!
//! For the margin `z` (`x` of the labelled class, `−x` of every other), `p = σ(z)` and `q = 1 − p`:
//! `loss = −α_t · q^γ · ln p`, `d loss / d z = α_t · q^γ · (γ · p · ln p − q)`. With `e = exp(−|z|)`,
//! `ln p = min(z, 0) − ln(1 + e)`, which never overflows.

use rayon::prelude::*;

use crate::shape::{ShapeError, check_len};
use crate::simd::{Isa, simd_fn};

/// Logits taken at a time, so that the compiler keeps them in vector registers.
const BLOCK: usize = 16;

/// Logits per job; fixed, so that the sum does not depend on the number of threads.
const CHUNK: usize = 1 << 14;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FocalLoss {
    /// Weight of a labelled class; every other has `1 − alpha`.
    pub alpha: f32,
    pub gamma: f32,
}

/// The sum of the losses, and its gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct FocalResult {
    pub loss: f32,
    /// As the logits.
    pub gradient: Vec<f32>,
}

impl FocalLoss {
    /// `logits [rows, classes]`; `labels [rows]` is the class of a row, or −1 for background;
    /// `weights [rows]` multiply the rows' losses, and a row of weight 0 is not even looked at.
    pub fn forward(
        &self,
        isa: Isa,
        logits: &[f32],
        classes: usize,
        labels: &[i32],
        weights: Option<&[f32]>,
    ) -> Result<FocalResult, ShapeError> {
        if classes == 0 {
            return Err(ShapeError::Zero { what: "classes" });
        }
        check_len("logits", &[labels.len(), classes], logits.len())?;
        check_len("weights", &[labels.len()], weights.map_or(labels.len(), <[f32]>::len))?;
        if let Some(row) = labels.iter().position(|&label| label < -1 || label >= classes as i32) {
            let value = i64::from(labels[row]);
            return Err(ShapeError::Index { tensor: "labels", row, value, limit: classes });
        }
        let rows = (CHUNK / classes).max(1);
        let mut gradient = vec![0.0; logits.len()];
        let losses: Vec<f64> = gradient
            .par_chunks_mut(rows * classes)
            .zip(logits.par_chunks(rows * classes))
            .enumerate()
            .map(|(job, (gradient, logits))| {
                let first = job * rows;
                let mut loss = 0.0;
                for (row, (gradient, logits)) in
                    gradient.chunks_exact_mut(classes).zip(logits.chunks_exact(classes)).enumerate()
                {
                    let weight = weights.map_or(1.0, |weights| weights[first + row]);
                    if weight != 0.0 {
                        loss += f64::from(focal_row(isa, *self, logits, labels[first + row], weight, gradient));
                    }
                }
                loss
            })
            .collect();
        Ok(FocalResult { loss: losses.iter().sum::<f64>() as f32, gradient })
    }
}

simd_fn! {
    /// The loss of one row; its gradient goes to `gradient`.
    fn focal_row<S>(
        s,
        focal: FocalLoss,
        logits: &[f32],
        label: i32,
        weight: f32,
        gradient: &mut [f32],
    ) -> f32 {
        let mut sums = [0.0; BLOCK];
        let background = weight * (1.0 - focal.alpha);
        for (logits, gradient) in logits.chunks(BLOCK).zip(gradient.chunks_mut(BLOCK)) {
            let count = logits.len();
            let mut margins = [0.0; BLOCK];
            if let Ok(whole) = <&[f32; BLOCK]>::try_from(logits) {
                margins = *whole;
            } else {
                margins[..count].copy_from_slice(logits);
            }
            let mut slopes = [0.0; BLOCK];
            let mut losses = [0.0; BLOCK];
            for i in 0..BLOCK {
                let (loss, slope) = focal_of_margin(-margins[i], background, focal.gamma);
                losses[i] = loss;
                slopes[i] = -slope;
            }
            losses[count..].fill(0.0);
            for i in 0..BLOCK {
                sums[i] += losses[i];
            }
            gradient.copy_from_slice(&slopes[..count]);
        }
        let mut loss: f32 = sums.iter().sum();
        if let Ok(label) = usize::try_from(label) {
            loss -= focal_of_margin(-logits[label], background, focal.gamma).0;
            let (labelled, slope) = focal_of_margin(logits[label], weight * focal.alpha, focal.gamma);
            loss += labelled;
            gradient[label] = slope;
        }
        loss
    }
}

/// The loss at margin `z` and its slope, both times `factor`.
#[inline(always)]
fn focal_of_margin(z: f32, factor: f32, gamma: f32) -> (f32, f32) {
    let e = exp_of_non_positive(-z.abs());
    let log = log_of_one_plus(e);
    let (larger, smaller) = (1.0 / (1.0 + e), e / (1.0 + e));
    let (p, q) = if z > 0.0 { (larger, smaller) } else { (smaller, larger) };
    let (below, above) = if z > 0.0 { (0.0, -z) } else { (z, 0.0) };
    let log_p = below - log;
    let power = if gamma == 2.0 { q * q } else { exp_of_non_positive(gamma * (above - log)) };
    let weighted = factor * power;
    (-weighted * log_p, weighted * (gamma * p * log_p - q))
}

/// `exp(x)` for `x ≤ 0`, to within 2 ulp; in plain arithmetic so that it is vectorised.
#[inline(always)]
fn exp_of_non_positive(x: f32) -> f32 {
    // Below, 2ⁿ would not be a normal number. Written so that NaN stays NaN.
    let x = if x < -87.0 { -87.0 } else { x };
    // Adding 1.5 · 2²³ rounds to a whole number: x = n · ln 2 + r, |r| ≤ ln 2 / 2.
    const ROUND: f32 = 12_582_912.0;
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let series = 1.0
        + r * (1.0
            + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0))))));
    series * f32::from_bits((((n as i32) + 127) as u32) << 23)
}

/// `ln(1 + e)` for `0 ≤ e ≤ 1`: `2 · artanh(s)` with `s = e / (2 + e) ≤ 1/3`.
#[inline(always)]
fn log_of_one_plus(e: f32) -> f32 {
    let s = e / (2.0 + e);
    let t = s * s;
    2.0 * s
        * (1.0
            + t * (1.0 / 3.0
                + t * (1.0 / 5.0 + t * (1.0 / 7.0 + t * (1.0 / 9.0 + t * (1.0 / 11.0 + t * (1.0 / 13.0)))))))
}
