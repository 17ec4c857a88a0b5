//! Losses of boxes and classes: plain numbers in, the loss and its gradient out.
//!
//! A loss looks at a few rows of a head's output, and its gradient is short. So it is computed here, by
//! hand and at once, and put into the graph as a whole ([`LossSum::into_tensor`]).

use burn::Tensor;
use lacuna_boxes::Box2;

use crate::ops::{self, FocalLoss};

/// A loss, and its gradient by the numbers it was computed from.
pub(crate) type Loss<const N: usize> = (f32, [f32; N]);

/// A weighted sum of losses over parts of one tensor.
#[derive(Clone, Debug)]
pub(crate) struct LossSum {
    value: f64,
    gradient: Vec<f32>,
}

impl LossSum {
    /// Of a tensor of `len` numbers.
    pub(crate) fn new(len: usize) -> Self {
        Self { value: 0.0, gradient: vec![0.0; len] }
    }

    /// Adds `weight` times a loss of the numbers that start at `start`.
    pub(crate) fn add<const N: usize>(&mut self, start: usize, weight: f32, (loss, gradient): Loss<N>) {
        self.value += f64::from(weight) * f64::from(loss);
        for (sum, g) in self.gradient[start..start + N].iter_mut().zip(gradient) {
            *sum += weight * g;
        }
    }

    /// [`softmax_focal`] of the whole row that starts at `start`; the loss before its weight.
    pub(crate) fn add_softmax_focal(
        &mut self,
        start: usize,
        weight: f32,
        logits: &[f32],
        class: usize,
        gamma: f32,
    ) -> f32 {
        let gradient = &mut self.gradient[start..start + logits.len()];
        let loss = softmax_focal(logits, class, gamma, weight, gradient);
        self.value += f64::from(weight) * f64::from(loss);
        loss
    }

    /// Adds to the gradient alone, for a loss whose value is counted elsewhere.
    pub(crate) fn add_gradient<const N: usize>(&mut self, start: usize, weight: f32, gradient: [f32; N]) {
        self.add(start, weight, (0.0, gradient));
    }

    /// The sum as a function of `x`, for the backward pass.
    pub(crate) fn into_tensor<const D: usize>(self, x: Tensor<D>) -> Tensor<1> {
        ops::known_gradient(x, self.value as f32, self.gradient)
    }
}

/// `loss`, plus a gradient by `x` without a value, if there is one.
pub(crate) fn with_gradient<const D: usize>(
    loss: Tensor<1>,
    gradient: Option<LossSum>,
    x: &Tensor<D>,
) -> Tensor<1> {
    match gradient {
        Some(gradient) => loss + gradient.into_tensor(x.clone()),
        None => loss,
    }
}

/// `Σ |d|`, or where `|d| < β` the parabola `d² / 2β + β/2` less `β/2` (Fast R-CNN); β = 0 is L1.
pub(crate) fn smooth_l1<const N: usize>(prediction: [f32; N], target: [f32; N], beta: f32) -> Loss<N> {
    let mut loss = 0.0;
    let gradient = std::array::from_fn(|i| {
        let d = prediction[i] - target[i];
        if d.abs() < beta {
            loss += 0.5 * d * d / beta;
            d / beta
        } else {
            loss += d.abs() - 0.5 * beta;
            // Not `signum`, which is 1 at 0.
            if d == 0.0 { 0.0 } else { d.signum() }
        }
    });
    (loss, gradient)
}

/// The share of a maximum that moves with its first argument; half at a tie, as PyTorch's.
fn leads(a: f32, b: f32) -> f32 {
    if a > b {
        1.0
    } else if a < b {
        0.0
    } else {
        0.5
    }
}

/// The area that two boxes share, by the corners of the first.
fn shared_area(p: Box2, t: Box2) -> Loss<4> {
    let (width, height) = (p.x2.min(t.x2) - p.x1.max(t.x1), p.y2.min(t.y2) - p.y1.max(t.y1));
    if !(width > 0.0 && height > 0.0) {
        return (0.0, [0.0; 4]);
    }
    let gradient = [
        -height * leads(p.x1, t.x1),
        -width * leads(p.y1, t.y1),
        height * leads(t.x2, p.x2),
        width * leads(t.y2, p.y2),
    ];
    (width * height, gradient)
}

/// The gradient of the IoU of two boxes by the corners of the first.
pub(crate) fn iou_gradient(prediction: Box2, target: Box2) -> [f32; 4] {
    let (shared, d_shared) = shared_area(prediction, target);
    let union = prediction.area() + target.area() - shared;
    if shared <= 0.0 || !union.is_finite() {
        return [0.0; 4];
    }
    let (width, height) = (prediction.width(), prediction.height());
    let d_area = [-height, -width, height, width];
    std::array::from_fn(|i| (d_shared[i] - shared / union * (d_area[i] - d_shared[i])) / union)
}

/// The focal loss of a sample in which there is no object: `−(1 − α)·Σ p^γ·ln(1 − p)`.
pub(crate) fn focal_background(logits: &[f32], focal: FocalLoss) -> f32 {
    let of_class = |&logit: &f32| {
        let (cross_entropy, _) = binary_cross_entropy(logit, 0.0);
        (1.0 - focal.alpha) * sigmoid(logit).powf(focal.gamma) * cross_entropy
    };
    logits.iter().map(of_class).sum()
}

/// Focal loss of a sample that is an object with the logit `margin`, without α: `−(1 − p)^γ·ln p` with `p = σ(margin)`.
/// Of one that is none, `margin` is the negative of its logit.
pub(crate) fn focal(margin: f32, gamma: f32) -> Loss<1> {
    let (cross_entropy, [by_margin]) = binary_cross_entropy(margin, 1.0);
    let q = sigmoid(-margin);
    let scale = q.powf(gamma);
    // (1 − p)^γ falls by γ·p·(1 − p)^γ where the margin grows.
    (scale * cross_entropy, [scale * (by_margin - gamma * (1.0 - q) * cross_entropy)])
}

/// `1 − GIoU` (Rezatofighi et al., 2019), by the corners of the prediction.
pub(crate) fn giou(prediction: Box2, target: Box2) -> Loss<4> {
    const EPSILON: f32 = 1e-7;
    let (p, t) = (prediction, target);
    let (shared, d_shared) = shared_area(p, t);

    let (p_width, p_height) = (p.x2 - p.x1, p.y2 - p.y1);
    let union = p_width * p_height + (t.x2 - t.x1) * (t.y2 - t.y1) - shared;
    let d_area = [-p_height, -p_width, p_height, p_width];

    let (hull_width, hull_height) = (p.x2.max(t.x2) - p.x1.min(t.x1), p.y2.max(t.y2) - p.y1.min(t.y1));
    let hull = hull_width * hull_height;
    let d_hull = [
        -hull_height * leads(t.x1, p.x1),
        -hull_width * leads(t.y1, p.y1),
        hull_height * leads(p.x2, t.x2),
        hull_width * leads(p.y2, t.y2),
    ];

    let (union_e, hull_e) = (union + EPSILON, hull + EPSILON);
    let loss = 1.0 - shared / union_e + (hull - union) / hull_e;
    let gradient = std::array::from_fn(|i| {
        let d_union = d_area[i] - d_shared[i];
        let d_iou = (d_shared[i] - shared / union_e * d_union) / union_e;
        let d_gap = (d_hull[i] - d_union - (hull - union) / hull_e * d_hull[i]) / hull_e;
        d_gap - d_iou
    });
    (loss, gradient)
}

pub(crate) fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// `−t·ln σ(z) − (1 − t)·ln(1 − σ(z))`.
pub(crate) fn binary_cross_entropy(logit: f32, target: f32) -> Loss<1> {
    let loss = logit.max(0.0) - logit * target + (-logit.abs()).exp().ln_1p();
    (loss, [sigmoid(logit) - target])
}

/// `e^z / Σ e^z`, and `ln Σ e^z`; neither overflows.
fn softmax_and_log_sum(logits: &[f32]) -> (Vec<f32>, f32) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut scores: Vec<f32> = logits.iter().map(|z| (z - largest).exp()).collect();
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
    (scores, largest + sum.ln())
}

/// `e^z / Σ e^z`.
pub(crate) fn softmax(logits: &[f32]) -> Vec<f32> {
    softmax_and_log_sum(logits).0
}

/// `−(1 − p)^γ·ln p` with `p = softmax(z)[class]`; `weight` times its gradient is added to `gradient`. With γ = 0 it
/// is cross entropy.
pub(crate) fn softmax_focal(
    logits: &[f32],
    class: usize,
    gamma: f32,
    weight: f32,
    gradient: &mut [f32],
) -> f32 {
    let (scores, log_sum) = softmax_and_log_sum(logits);
    let cross_entropy = log_sum - logits[class];
    let (p, q) = (scores[class], 1.0 - scores[class]);
    let scale = q.powf(gamma);
    // By ln p: −(1 − p)^γ + γ·p·(1 − p)^(γ−1)·ln p; and ln p by z is 1 of the class less the scores.
    let slope = match gamma {
        0.0 => -1.0,
        _ if q > 0.0 => -scale - gamma * p * scale / q * cross_entropy,
        _ => 0.0,
    };
    for (index, (g, score)) in gradient.iter_mut().zip(scores).enumerate() {
        let of_class = if index == class { 1.0 } else { 0.0 };
        *g += weight * slope * (of_class - score);
    }
    scale * cross_entropy
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slope of a function between two points near `x`.
    fn slope(f: impl Fn(f32) -> f32, x: f32) -> f32 {
        let h = 1e-2;
        (f(x + h) - f(x - h)) / (2.0 * h)
    }

    #[test]
    fn focal_loss_has_its_gradient() {
        for margin in [-6.0f32, -1.0, 0.0, 0.3, 2.0, 7.0] {
            for gamma in [0.5f32, 1.5, 2.0] {
                let (loss, [by_margin]) = focal(margin, gamma);
                let p = 1.0 / (1.0 + f64::from(-margin).exp());
                let expected = -(1.0 - p).powf(f64::from(gamma)) * p.ln();
                assert!((f64::from(loss) - expected).abs() < 1e-5 * expected.max(0.1), "{margin} {gamma}");
                assert!((by_margin - slope(|x| focal(x, gamma).0, margin)).abs() < 2e-3, "{margin} {gamma}");
            }
        }
    }

    #[test]
    fn focal_loss_of_a_softmax_has_its_gradient() {
        let logits = [0.4f32, -1.2, 2.0, 0.1];
        for class in 0..4 {
            let mut gradient = [0.0; 4];
            let loss = softmax_focal(&logits, class, 1.5, 2.0, &mut gradient);
            let p = f64::from(softmax(&logits)[class]);
            assert!((f64::from(loss) + (1.0 - p).powf(1.5) * p.ln()).abs() < 1e-5);
            for at in 0..4 {
                let moved = |x: f32| {
                    let mut logits = logits;
                    logits[at] = x;
                    softmax_focal(&logits, class, 1.5, 0.0, &mut [0.0; 4])
                };
                let expected = 2.0 * slope(moved, logits[at]);
                assert!((gradient[at] - expected).abs() < 2e-3, "class {class}: {} {expected}", gradient[at]);
            }
            let mut plain = [0.0; 4];
            let cross_entropy = softmax_focal(&logits, class, 0.0, 1.0, &mut plain);
            assert!((f64::from(cross_entropy) + p.ln()).abs() < 1e-6);
            assert!((f64::from(plain[class]) - (p - 1.0)).abs() < 1e-6, "{plain:?}");
        }
        // A class that is as good as certain has no gradient, not one that is no number.
        let mut gradient = [0.0; 2];
        assert_eq!(softmax_focal(&[200.0, -200.0], 0, 1.5, 1.0, &mut gradient), 0.0);
        assert_eq!(gradient, [0.0; 2]);
    }
}
