//! Sigmoid focal loss (Lin et al. 2017), value and gradient in one pass over the logits.
//!
//! For the margin `z` (`x` of the labeled class, `−x` of every other), `p = σ(z)` and `q = 1 − p`:
//! `loss = −α_t · q^γ · ln p`, `d loss / d z = α_t · q^γ · (γ · p · ln p − q)`. With `e = exp(−|z|)`,
//! `ln p = min(z, 0) − ln(1 + e)`, which never overflows.

use rayon::prelude::*;

use crate::memory::{load_up_to, store_up_to};
use crate::shape::{ShapeError, check_len};
use crate::simd::{Isa, Simd, simd_fn};

/// Logits per job; fixed, so that the sum does not depend on the number of threads.
const CHUNK: usize = 1 << 14;

/// The two settings of a focal loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FocalLoss {
    /// Weight of a labeled class; every other has `1 − alpha`.
    pub alpha: f32,
    /// The focus on what is hard; finite and not negative.
    pub gamma: f32,
}

/// The sum of the losses, and its gradient.
#[derive(Clone, Debug, PartialEq)]
pub struct FocalResult {
    /// The sum over rows and classes.
    pub loss: f32,
    /// As the logits.
    pub gradient: Vec<f32>,
}

impl FocalLoss {
    /// `logits [rows, classes]`; `labels [rows]` is the class of a row, or −1 for background;
    /// `weights [rows]` multiply the rows' losses, and a row of weight 0 is not even looked at.
    /// A logit that is not finite gives a loss and a gradient that are not.
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
        if !(self.gamma.is_finite() && self.gamma >= 0.0) {
            let (what, value) = ("gamma", self.gamma.to_string());
            return Err(ShapeError::Setting { what, value, allowed: "finite and not negative" });
        }
        check_len("logits", &[labels.len(), classes], logits.len())?;
        check_len("weights", &[labels.len()], weights.map_or(labels.len(), <[f32]>::len))?;
        let limit = i64::try_from(classes).unwrap_or(i64::MAX);
        if let Some(row) = labels.iter().position(|&label| label < -1 || i64::from(label) >= limit) {
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
                        loss +=
                            f64::from(focal_row(isa, *self, logits, labels[first + row], weight, gradient));
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
        let FocalLoss { alpha, gamma } = focal;
        let label = usize::try_from(label).ok();
        let background = weight * (1.0 - alpha);
        let mut sums = s.zero();
        for (block, (logits, gradient)) in
            logits.chunks(S::LANES).zip(gradient.chunks_mut(S::LANES)).enumerate()
        {
            let count = logits.len();
            // SAFETY: both chunks have `count` floats.
            unsafe {
                let margin = s.sub(s.zero(), load_up_to(s, logits.as_ptr(), count));
                let (loss, descent) = focal_of_margin(s, margin, background, gamma);
                store_up_to(s, gradient.as_mut_ptr(), descent, count);
                let mut losses = lanes(s, loss);
                if let Some(lane) = label.and_then(|label| label.checked_sub(block * S::LANES))
                    && lane < count
                {
                    losses[lane] = 0.0;
                }
                sums = s.add(sums, load_up_to(s, losses.as_ptr(), count));
            }
        }
        let mut loss: f32 = lanes(s, sums).iter().sum();
        if let Some(label) = label {
            let (labeled, descent) = focal_of_margin(s, s.splat(logits[label]), weight * alpha, gamma);
            loss += lanes(s, labeled)[0];
            gradient[label] = -lanes(s, descent)[0];
        }
        loss
    }
}

#[inline(always)]
fn lanes<S: Simd>(s: S, v: S::Vector) -> [f32; 16] {
    let mut lanes = [0.0; 16];
    // SAFETY: no vector has more than 16 lanes.
    unsafe { s.store(lanes.as_mut_ptr(), v) };
    lanes
}

/// The loss at margin `z` and how fast it falls, `−d loss / d z`, both times `factor`.
#[inline(always)]
fn focal_of_margin<S: Simd>(s: S, z: S::Vector, factor: f32, gamma: f32) -> (S::Vector, S::Vector) {
    let (zero, one) = (s.zero(), s.splat(1.0));
    let minus_z = s.sub(zero, z);
    // −|z| as −max(−z, z), which keeps a NaN.
    let e = exp_of_non_positive(s, s.sub(zero, s.max(minus_z, z)));
    let log = log_of_one_plus(s, e);
    let larger = s.div(one, s.add(one, e));
    let smaller = s.mul(e, larger);
    let p = s.select_larger(z, zero, larger, smaller);
    let q = s.select_larger(z, zero, smaller, larger);
    // ln p = min(z, 0) − ln(1 + e), ln q = min(−z, 0) − ln(1 + e)
    let log_p = s.sub(s.select_larger(z, zero, zero, z), log);
    let power = if gamma == 2.0 {
        s.mul(q, q)
    } else {
        let log_q = s.sub(s.select_larger(z, zero, minus_z, zero), log);
        exp_of_non_positive(s, s.mul(s.splat(gamma), log_q))
    };
    // An infinite margin, whose loss has a limit, is a mistake like any other: 0 · z makes it a NaN.
    let weighted = s.mul_add(z, zero, s.mul(s.splat(factor), power));
    let loss = s.mul(weighted, s.sub(zero, log_p));
    // p · ln p vanishes; but p, bounded below by `exp_of_non_positive`, does not.
    let p_log_p = s.mul(p, s.max(s.splat(-100.0), log_p));
    let descent = s.mul(weighted, s.mul_add(s.splat(-gamma), p_log_p, q));
    (loss, descent)
}

/// `exp(x)` for `x ≤ 0`, to within a few units in the last place.
#[inline(always)]
fn exp_of_non_positive<S: Simd>(s: S, x: S::Vector) -> S::Vector {
    // Below −87, 2ⁿ would not be a normal number. `max` keeps a NaN in second place.
    let x = s.max(s.splat(-87.0), x);
    // Adding 1.5 · 2²³ rounds to a whole number: x = n · ln 2 + r, |r| ≤ ln 2 / 2, with ln 2 in two
    // parts so that the product with the first is exact.
    let round = s.splat(12_582_912.0);
    let n = s.sub(s.mul_add(x, s.splat(std::f32::consts::LOG2_E), round), round);
    let r = s.mul_add(n, s.splat(-0.693_359_4), x);
    let r = s.mul_add(n, s.splat(2.121_944_4e-4), r);
    let series = polynomial(s, r, [1.0, 1.0, 0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0]);
    s.mul(series, s.power_of_two(n))
}

/// `ln(1 + e)` for `0 ≤ e ≤ 1`: `2 · artanh(t)` with `t = e / (2 + e) ≤ 1/3`.
#[inline(always)]
fn log_of_one_plus<S: Simd>(s: S, e: S::Vector) -> S::Vector {
    let t = s.div(e, s.add(s.splat(2.0), e));
    let odd = [1.0, 1.0 / 3.0, 1.0 / 5.0, 1.0 / 7.0, 1.0 / 9.0, 1.0 / 11.0, 1.0 / 13.0];
    s.mul(s.add(t, t), polynomial(s, s.mul(t, t), odd))
}

/// `Σ c[i] · xⁱ`
#[inline(always)]
fn polynomial<S: Simd>(s: S, x: S::Vector, c: [f32; 7]) -> S::Vector {
    let mut sum = s.splat(c[6]);
    for i in (0..6).rev() {
        sum = s.mul_add(sum, x, s.splat(c[i]));
    }
    sum
}
