//! Logistic regression by Newton's method, for the parametric calibrators.

use lacuna_boxes::Score;

use crate::NoFit;
use crate::tally::Tally;

/// Scores are kept this far from 0 and 1, where logits are infinite. (The largest `f32` below 1 is 6e-8 away.)
const SCORE_MARGIN: f64 = 1e-7;

/// A score as a probability whose logarithms are finite.
pub(crate) fn inner(score: f64) -> f64 {
    score.clamp(SCORE_MARGIN, 1.0 - SCORE_MARGIN)
}

pub(crate) fn logit(score: f64) -> f64 {
    let p = inner(score);
    (p / (1.0 - p)).ln()
}

pub(crate) fn logit_of(score: Score) -> f64 {
    logit(score.0.into())
}

pub(crate) fn sigmoid(z: f64) -> f64 {
    1.0 / (1.0 + (-z).exp())
}

/// The judged detections of one score with their K features: the logit of their confidence is `z = Σ θ_k·x_k`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FeatureRow<const K: usize> {
    x: [f64; K],
    count: f64,
    right: f64,
}

impl<const K: usize> FeatureRow<K> {
    pub(crate) fn new(x: [f64; K], tally: &Tally) -> Self {
        Self { x, count: tally.count as f64, right: tally.right as f64 }
    }
}

/// Parameters, with the negative log-likelihood `Σ n·ln(1 + e^z) − m·z` there and its derivatives.
#[derive(Clone, Debug)]
pub(crate) struct Point<const K: usize> {
    pub(crate) theta: [f64; K],
    pub(crate) loss: f64,
    gradient: [f64; K],
    hessian: [[f64; K]; K],
}

impl<const K: usize> Point<K> {
    fn at(theta: [f64; K], rows: &[FeatureRow<K>]) -> Self {
        let mut point = Self { theta, loss: 0.0, gradient: [0.0; K], hessian: [[0.0; K]; K] };
        for FeatureRow { x, count, right } in rows {
            let z = dot(&theta, x);
            // This one power serves all three and never overflows.
            let e = (-z.abs()).exp();
            let p = if z < 0.0 { e } else { 1.0 } / (1.0 + e);
            let error = count * p - right;
            let curvature = count * e / ((1.0 + e) * (1.0 + e));
            point.loss += count * (z.max(0.0) + (1.0 + e).ln()) - right * z;
            for i in 0..K {
                point.gradient[i] += error * x[i];
                for j in 0..K {
                    point.hessian[i][j] += curvature * x[i] * x[j];
                }
            }
        }
        point
    }

    /// Newton's step; `None` when the likelihood is as good as flat in some direction.
    fn step(&self) -> Option<[f64; K]> {
        let (mut h, mut step) = (self.hessian, self.gradient);
        for k in 0..K {
            // What rounding leaves of a pivot that should be zero is far below this.
            if h[k][k] <= 1e-13 * self.hessian[k][k] {
                return None;
            }
            for i in k + 1..K {
                let factor = h[i][k] / h[k][k];
                let row = h[k];
                for (value, above) in h[i].iter_mut().zip(row) {
                    *value -= factor * above;
                }
                step[i] -= factor * step[k];
            }
        }
        for k in (0..K).rev() {
            for j in k + 1..K {
                step[k] -= h[k][j] * step[j];
            }
            step[k] /= h[k][k];
        }
        step.iter().all(|s| s.is_finite()).then_some(step)
    }
}

fn dot<const K: usize>(a: &[f64; K], b: &[f64; K]) -> f64 {
    (0..K).map(|k| a[k] * b[k]).sum()
}

/// The parameters of maximum likelihood, without regularization: Newton's method on the negative log-likelihood,
/// each step halved until the loss falls.
pub(crate) fn maximize_likelihood<const K: usize>(
    rows: &[FeatureRow<K>],
    start: [f64; K],
) -> Result<Point<K>, NoFit> {
    let mut point = Point::at(start, rows);
    for _ in 0..100 {
        let step = point.step().ok_or(NoFit::NotConverged)?;
        let moved = |share: f64| std::array::from_fn(|k| point.theta[k] - share * step[k]);
        // The gain of the step, to second order. A smaller one is below the rounding of the loss, and so near to
        // the optimum the whole step reaches it up to rounding.
        if 0.5 * dot(&point.gradient, &step) <= 1e-13 * point.loss {
            return Ok(Point { theta: moved(1.0), ..point });
        }
        let downhill = (0..40)
            .map(|halvings| Point::at(moved(0.5f64.powi(halvings)), rows))
            .find(|next| next.loss < point.loss);
        match downhill {
            Some(next) => point = next,
            // Any further gain is below rounding.
            None => return Ok(point),
        }
    }
    Err(NoFit::NotConverged)
}

/// Check that slope and offset have a finite optimum: no threshold, apart from ties at it, may separate right
/// from wrong.
pub(crate) fn check_overlap(tallies: &[Tally]) -> Result<(), NoFit> {
    let range = |is_there: fn(&Tally) -> bool| {
        tallies.iter().position(is_there).zip(tallies.iter().rposition(is_there))
    };
    let right = range(|tally| tally.right > 0).ok_or(NoFit::OneOutcome)?;
    let wrong = range(|tally| tally.right < tally.count).ok_or(NoFit::OneOutcome)?;
    if wrong.1 <= right.0 || right.1 <= wrong.0 { Err(NoFit::Separable) } else { Ok(()) }
}
