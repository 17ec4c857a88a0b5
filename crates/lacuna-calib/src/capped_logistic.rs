//! The logistic curve that levels off at the completeness of the annotations.

use crate::logistic::{logit, sigmoid};

/// The curve `P(annotated | score p) = c·σ(w·logit(p) + b)`.
///
/// `σ(…)` is the probability of an object and `c` the completeness of the annotations. However sure the detector
/// is, only a share `c` of its detections can match an annotation, so the curve levels off at `c`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CappedLogistic {
    pub(crate) w: f64,
    pub(crate) b: f64,
    pub(crate) c: f64,
    /// `σ(…)` at the top detections: how near the curve comes to its cap.
    pub(crate) top_probability: f64,
}

/// Detections of nearly the same score.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bin {
    /// The mean of `logit(p)`.
    pub(crate) x: f64,
    pub(crate) count: f64,
    /// How many are near an annotation.
    pub(crate) annotated: f64,
}

/// The share of the detections that count as top detections.
const TOP: f64 = 0.02;
/// The fewest top detections.
const TOP_MIN: f64 = 10.0;

/// Estimates from positive and unlabeled samples assume that the top detections are objects. Here the assumption
/// weighs as much as this many detections. That is enough to keep a few hundred detections from explaining a
/// curve that has not leveled off by `c = 1`, and nothing against thousands.
const TOP_WEIGHT: f64 = 20.0;

/// The standard deviations of `ln w`, `b` and `logit c` of a class around those of all classes together.
const SPREAD: [f64; 3] = [0.3, 0.7, 0.7];

/// `[ln w, b, logit c]`.
type Parameters = [f64; 3];

/// The likelihood may have several peaks; the search starts from each of these and keeps the highest peak.
const STARTS: [Parameters; 4] = [[0.0, 0.0, 0.85], [0.7, 0.0, 0.0], [0.0, -1.0, 2.0], [1.0, 1.0, -0.5]];

impl CappedLogistic {
    /// Fit the curve of maximum likelihood, with the assumption of [`TOP_WEIGHT`]. With `around`, the curve of all
    /// classes, fit the curve of one class: [`SPREAD`] keeps it near `around`, the more so the fewer detections
    /// the class has.
    ///
    /// `None` when a parameter is not finite.
    pub(crate) fn fit(bins: &[Bin], around: Option<&Self>) -> Option<Self> {
        Self::fit_with(bins, around, TOP_WEIGHT, &STARTS)
    }

    /// Like [`fit`](Self::fit) for all classes, with the search starting from another curve.
    pub(crate) fn fit_from(bins: &[Bin], start: &Self) -> Option<Self> {
        Self::fit_with(bins, None, TOP_WEIGHT, &[start.parameters()])
    }

    /// Like [`fit`](Self::fit), without the assumption about the top detections. `top_probability` then shows what
    /// the data alone say: where they do not determine the cap, it is far below 1.
    pub(crate) fn fit_without_assumption(bins: &[Bin], around: Option<&Self>) -> Option<Self> {
        Self::fit_with(bins, around, 0.0, &STARTS)
    }

    fn fit_with(bins: &[Bin], around: Option<&Self>, top_weight: f64, starts: &[Parameters]) -> Option<Self> {
        let problem =
            Problem { bins, top: mean_of_top(bins)?, top_weight, around: around.map(Self::parameters) };
        let starts: &[Parameters] = match &problem.around {
            Some(pooled) => &[*pooled],
            None => starts,
        };
        let ends = starts.iter().map(|start| problem.descend(*start));
        let (parameters, _) = ends.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let [ln_w, b, u] = parameters;
        let (w, c) = (ln_w.exp(), sigmoid(u));
        let fit = Self { w, b, c, top_probability: sigmoid(w * problem.top + b) };
        (w.is_finite() && b.is_finite() && c.is_finite()).then_some(fit)
    }

    fn parameters(&self) -> Parameters {
        [self.w.ln(), self.b, logit(self.c)]
    }
}

/// The mean `x` of the top detections.
fn mean_of_top(bins: &[Bin]) -> Option<f64> {
    let all: f64 = bins.iter().map(|bin| bin.count).sum();
    let mut left = (all * TOP).max(TOP_MIN).min(all);
    let wanted = left;
    let mut sum = 0.0;
    for bin in bins.iter().rev() {
        let taken = bin.count.min(left);
        sum += taken * bin.x;
        left -= taken;
    }
    (wanted > 0.0).then(|| sum / wanted)
}

/// The cost that a fit minimizes.
struct Problem<'a> {
    bins: &'a [Bin],
    /// The mean `x` of the top detections.
    top: f64,
    top_weight: f64,
    around: Option<Parameters>,
}

impl Problem<'_> {
    /// The negative logarithm of the likelihood and of the priors.
    fn cost(&self, [ln_w, b, u]: Parameters) -> f64 {
        let (w, c) = (ln_w.exp(), sigmoid(u));
        let of_bin = |bin: &Bin| {
            let p = (c * sigmoid(w * bin.x + b)).clamp(1e-12, 1.0 - 1e-12);
            bin.annotated * p.ln() + (bin.count - bin.annotated) * (1.0 - p).ln()
        };
        let data: f64 = self.bins.iter().map(of_bin).sum();
        let sure = self.top_weight * softplus(-(w * self.top + b));
        let near = self.around.map_or(0.0, |around| {
            let off = |at: usize| (([ln_w, b, u][at] - around[at]) / SPREAD[at]).powi(2);
            0.5 * (off(0) + off(1) + off(2))
        });
        sure + near - data
    }

    /// The gradient, and the Fisher information (the expected Hessian), which is never indefinite.
    fn derivatives(&self, [ln_w, b, u]: Parameters) -> ([f64; 3], [[f64; 3]; 3]) {
        let (w, c) = (ln_w.exp(), sigmoid(u));
        let (mut gradient, mut curvature) = ([0.0; 3], [[0.0; 3]; 3]);
        let mut add = |slope: [f64; 3], force: f64, stiffness: f64| {
            for row in 0..3 {
                gradient[row] += force * slope[row];
                for column in 0..3 {
                    curvature[row][column] += stiffness * slope[row] * slope[column];
                }
            }
        };
        for bin in self.bins {
            let g = sigmoid(w * bin.x + b);
            let p = (c * g).clamp(1e-12, 1.0 - 1e-12);
            let bend = c * g * (1.0 - g);
            let slope = [bend * w * bin.x, bend, (1.0 - c) * c * g];
            let variance = p * (1.0 - p);
            add(slope, (bin.count * p - bin.annotated) / variance, bin.count / variance);
        }
        let g = sigmoid(w * self.top + b);
        add([w * self.top, 1.0, 0.0], -self.top_weight * (1.0 - g), self.top_weight * g * (1.0 - g));
        if let Some(around) = self.around {
            for at in 0..3 {
                let tight = SPREAD[at].powi(-2);
                gradient[at] += tight * ([ln_w, b, u][at] - around[at]);
                curvature[at][at] += tight;
            }
        }
        (gradient, curvature)
    }

    /// Minimize by Fisher scoring with Levenberg–Marquardt damping; returns the parameters and their cost.
    fn descend(&self, start: Parameters) -> (Parameters, f64) {
        let (mut at, mut cost, mut damping) = (start, self.cost(start), 1e-3);
        for _ in 0..100 {
            let (gradient, mut curvature) = self.derivatives(at);
            for (at, row) in curvature.iter_mut().enumerate() {
                row[at] = row[at] * (1.0 + damping) + 1e-9;
            }
            let Some(step) = solve(curvature, gradient) else { break };
            // A step of more than a few logits leaves the range where the curve differs from a step function.
            let next: Parameters = std::array::from_fn(|i| at[i] - step[i].clamp(-2.0, 2.0));
            let next_cost = self.cost(next);
            if next_cost < cost {
                let gained = cost - next_cost;
                (at, cost, damping) = (next, next_cost, (damping * 0.3).max(1e-9));
                if gained < 1e-9 * (1.0 + cost.abs()) {
                    break;
                }
            } else {
                damping *= 10.0;
                if damping > 1e9 {
                    break;
                }
            }
        }
        (at, cost)
    }
}

fn softplus(z: f64) -> f64 {
    z.max(0.0) + (-z.abs()).exp().ln_1p()
}

/// Solve three linear equations by Cramer's rule; `None` if they are singular.
fn solve(matrix: [[f64; 3]; 3], right: [f64; 3]) -> Option<[f64; 3]> {
    let determinant = |m: [[f64; 3]; 3]| {
        m[0][0] * (m[1][1] * m[2][2] - m[1][2] * m[2][1]) - m[0][1] * (m[1][0] * m[2][2] - m[1][2] * m[2][0])
            + m[0][2] * (m[1][0] * m[2][1] - m[1][1] * m[2][0])
    };
    let whole = determinant(matrix);
    let solution: [f64; 3] = std::array::from_fn(|column| {
        let mut replaced = matrix;
        (0..3).for_each(|row| replaced[row][column] = right[row]);
        determinant(replaced) / whole
    });
    solution.iter().all(|x| x.is_finite()).then_some(solution)
}
