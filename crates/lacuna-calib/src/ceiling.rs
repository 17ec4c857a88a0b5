use crate::logistic::{logit, sigmoid};

/// A logistic curve below a ceiling: `P(annotated | score p) = c·σ(w·logit(p) + b)`.
///
/// `σ(…)` is the probability that there is an object, `c` the share of the objects that are annotated. No
/// detector can find more annotations than that, however sure it is: `c` is where the curve levels off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceiling {
    pub w: f64,
    pub b: f64,
    pub c: f64,
    /// `σ` at the surest detections: how much of the way to the ceiling they are.
    pub sure: f64,
}

/// Detections of nearly the same score.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bin {
    /// The mean of `logit(p)`.
    pub x: f64,
    pub count: f64,
    pub annotated: f64,
}

/// The share of the detections that are the surest.
const TOP: f64 = 0.02;
const TOP_LEAST: f64 = 10.0;

/// That the surest detections are objects is what all estimates from positive and unlabeled samples assume.
/// Here it has the weight of so many detections, enough to keep a few hundred from explaining a curve that has
/// not leveled off yet by a ceiling of 1, and nothing against thousands.
const SURE_WEIGHT: f64 = 20.0;

/// The standard deviations of `ln w`, `b` and `logit c` of a class around those of all classes together.
const SPREAD: [f64; 3] = [0.3, 0.7, 0.7];

/// `[ln w, b, logit c]`.
type Parameters = [f64; 3];

/// The likelihood may have several peaks: the highest that is found from these.
const STARTS: [Parameters; 4] = [[0.0, 0.0, 0.85], [0.7, 0.0, 0.0], [0.0, -1.0, 2.0], [1.0, 1.0, -0.5]];

impl Ceiling {
    /// The curve of the greatest likelihood, with the surest detections taken for objects by [`SURE_WEIGHT`]. With
    /// `around`, the curve of a class: also as near to that of all classes as [`SPREAD`] says, so that a class
    /// with few detections has the curve of all.
    ///
    /// `None` when a number is not finite at the end.
    pub(crate) fn fit(bins: &[Bin], around: Option<&Self>) -> Option<Self> {
        Self::with_sure_weight(bins, around, SURE_WEIGHT, &STARTS)
    }

    /// The same for detections that were told apart by a curve: the search begins there.
    pub(crate) fn fit_from(bins: &[Bin], start: &Self) -> Option<Self> {
        Self::with_sure_weight(bins, None, SURE_WEIGHT, &[start.parameters()])
    }

    /// The same with nothing assumed about the surest detections: how sure they are by the data alone. Where the
    /// data do not tell, this curve reaches its ceiling nowhere near them.
    pub(crate) fn fit_without_assumption(bins: &[Bin], around: Option<&Self>) -> Option<Self> {
        Self::with_sure_weight(bins, around, 0.0, &STARTS)
    }

    fn with_sure_weight(
        bins: &[Bin],
        around: Option<&Self>,
        sure_weight: f64,
        starts: &[Parameters],
    ) -> Option<Self> {
        let problem = Problem { bins, top: top(bins)?, sure_weight, around: around.map(Self::parameters) };
        let starts: &[Parameters] = match &problem.around {
            Some(pooled) => &[*pooled],
            None => starts,
        };
        let ends = starts.iter().map(|start| problem.descend(*start));
        let (parameters, _) = ends.min_by(|a, b| a.1.total_cmp(&b.1))?;
        let [ln_w, b, u] = parameters;
        let (w, c) = (ln_w.exp(), sigmoid(u));
        let fit = Self { w, b, c, sure: sigmoid(w * problem.top + b) };
        (w.is_finite() && b.is_finite() && c.is_finite()).then_some(fit)
    }

    fn parameters(&self) -> Parameters {
        [self.w.ln(), self.b, logit(self.c)]
    }
}

/// The mean `x` of the surest detections.
fn top(bins: &[Bin]) -> Option<f64> {
    let all: f64 = bins.iter().map(|bin| bin.count).sum();
    let mut left = (all * TOP).max(TOP_LEAST).min(all);
    let wanted = left;
    let mut sum = 0.0;
    for bin in bins.iter().rev() {
        let taken = bin.count.min(left);
        sum += taken * bin.x;
        left -= taken;
    }
    (wanted > 0.0).then(|| sum / wanted)
}

struct Problem<'a> {
    bins: &'a [Bin],
    top: f64,
    sure_weight: f64,
    around: Option<Parameters>,
}

impl Problem<'_> {
    /// `−ln` of the likelihood and of what is assumed.
    fn cost(&self, [ln_w, b, u]: Parameters) -> f64 {
        let (w, c) = (ln_w.exp(), sigmoid(u));
        let of_bin = |bin: &Bin| {
            let p = (c * sigmoid(w * bin.x + b)).clamp(1e-12, 1.0 - 1e-12);
            bin.annotated * p.ln() + (bin.count - bin.annotated) * (1.0 - p).ln()
        };
        let data: f64 = self.bins.iter().map(of_bin).sum();
        let sure = self.sure_weight * softplus(-(w * self.top + b));
        let near = self.around.map_or(0.0, |around| {
            let off = |at: usize| (([ln_w, b, u][at] - around[at]) / SPREAD[at]).powi(2);
            0.5 * (off(0) + off(1) + off(2))
        });
        sure + near - data
    }

    /// The gradient, and the expected second derivatives (Fisher's), which are never indefinite.
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
        add([w * self.top, 1.0, 0.0], -self.sure_weight * (1.0 - g), self.sure_weight * g * (1.0 - g));
        if let Some(around) = self.around {
            for at in 0..3 {
                let tight = SPREAD[at].powi(-2);
                gradient[at] += tight * ([ln_w, b, u][at] - around[at]);
                curvature[at][at] += tight;
            }
        }
        (gradient, curvature)
    }

    /// Fisher's scoring, damped as Levenberg and Marquardt do: where it ends, and the cost there.
    fn descend(&self, start: Parameters) -> (Parameters, f64) {
        let (mut at, mut cost, mut damping) = (start, self.cost(start), 1e-3);
        for _ in 0..100 {
            let (gradient, mut curvature) = self.derivatives(at);
            for (at, row) in curvature.iter_mut().enumerate() {
                row[at] = row[at] * (1.0 + damping) + 1e-9;
            }
            let Some(step) = solve(curvature, gradient) else { break };
            // A step of more than a few logits leaves the range in which the curve is told from a step function.
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

/// Three equations, by Cramer's rule.
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
