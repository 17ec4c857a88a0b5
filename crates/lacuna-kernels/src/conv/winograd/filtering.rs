//! Minimal filtering of a line with three weights: `y = Aᵀ [(G g) ⊙ (Bᵀ d)]`, with fewer products than `y` has terms.
//!
//! A tile of pixels is a line of lines, for which each matrix is applied twice, down and across.

use std::marker::PhantomData;

use crate::simd::Simd;

/// The values of the longest line, of inputs, outputs or points.
pub(in crate::conv) const LONGEST: usize = 9;

/// As many values as the line has; the rest is not used.
pub(in crate::conv) type Line<S> = [<S as Simd>::Vector; LONGEST];

pub(in crate::conv) trait Filtering {
    /// Inputs that a line of outputs depends on, and how many of them the next line does not.
    const INPUTS: usize;
    const STEP: usize;
    const OUTPUTS: usize;
    /// Products.
    const POINTS: usize;
    /// Transformed weights, one for each point but for the last: that one is the weight of all further points.
    const WEIGHTS: usize;

    /// `Bᵀ d`
    fn into_points<S: Simd>(s: S, d: &Line<S>) -> Line<S>;

    /// `Aᵀ m`
    fn out_of_points<S: Simd>(s: S, m: &Line<S>) -> Line<S>;

    /// `G g`
    fn weights_into_points<S: Simd>(s: S, g: &Line<S>) -> Line<S>;

    /// The points of a tile whose products are with the same of its `WEIGHTS²` transformed weights.
    fn points_of(weight: usize) -> impl Iterator<Item = usize> {
        let of_line =
            |weight: usize| weight..if weight + 1 < Self::WEIGHTS { weight + 1 } else { Self::POINTS };
        let (down, across) = (of_line(weight / Self::WEIGHTS), of_line(weight % Self::WEIGHTS));
        down.flat_map(move |i| across.clone().map(move |j| i * Self::POINTS + j))
    }
}

/// The adjoints that the gradient of the weights needs.
pub(in crate::conv) trait Differentiable: Filtering {
    /// `A y`
    fn gradient_into_points<S: Simd>(s: S, y: &Line<S>) -> Line<S>;

    /// `Gᵀ u`
    fn weight_gradient_out_of_points<S: Simd>(s: S, u: &Line<S>) -> Line<S>;
}

/// One of the matrices, as a type: a function that is passed on is not always inlined, and outside of its caller has not that
/// one's instructions.
pub(super) trait Transform {
    const FROM: usize;
    const TO: usize;

    fn line<S: Simd>(s: S, line: &Line<S>) -> Line<S>;
}

macro_rules! transform {
    ($name:ident: $trait:ident, $function:ident, $from:expr => $to:expr) => {
        pub(super) struct $name<F>(PhantomData<F>);

        impl<F: $trait> Transform for $name<F> {
            const FROM: usize = $from;
            const TO: usize = $to;

            #[inline(always)]
            fn line<S: Simd>(s: S, line: &Line<S>) -> Line<S> {
                F::$function(s, line)
            }
        }
    };
}

transform!(IntoPoints: Filtering, into_points, F::INPUTS => F::POINTS);
transform!(OutOfPoints: Filtering, out_of_points, F::POINTS => F::OUTPUTS);
transform!(WeightsIntoPoints: Filtering, weights_into_points, 3 => F::WEIGHTS);
transform!(GradientIntoPoints: Differentiable, gradient_into_points, F::OUTPUTS => F::POINTS);
transform!(WeightGradientOutOfPoints: Differentiable, weight_gradient_out_of_points, F::WEIGHTS => 3);

/// A line from the values it has.
#[inline(always)]
fn line<S: Simd, const N: usize>(s: S, values: [S::Vector; N]) -> Line<S> {
    let mut line = [s.zero(); LONGEST];
    line[..N].copy_from_slice(&values);
    line
}

/// At a point and at its opposite: the even powers of it and the odd ones, added and subtracted.
#[inline(always)]
fn opposite<S: Simd>(s: S, even: S::Vector, odd: S::Vector) -> [S::Vector; 2] {
    [s.add(even, odd), s.sub(even, odd)]
}

/// `sum` and two products.
#[inline(always)]
fn add_products<S: Simd>(s: S, sum: S::Vector, [first, second]: [(f32, S::Vector); 2]) -> S::Vector {
    s.mul_add(s.splat(second.0), second.1, s.mul_add(s.splat(first.0), first.1, sum))
}

/// F(4, 3) of stride 1, at the points 0, ±1, ±2 and ∞.
pub(in crate::conv) struct Four;

impl Filtering for Four {
    const INPUTS: usize = 6;
    const STEP: usize = 4;
    const OUTPUTS: usize = 4;
    const POINTS: usize = 6;
    const WEIGHTS: usize = 6;

    /// `[4 0 -5 0 1 0; 0 -4 -4 1 1 0; 0 4 -4 -1 1 0; 0 -2 -1 2 1 0; 0 2 -1 -2 1 0; 0 4 0 -5 0 1]`
    #[inline(always)]
    fn into_points<S: Simd>(s: S, d: &Line<S>) -> Line<S> {
        let (two, four, minus_four, minus_five) = (s.splat(2.0), s.splat(4.0), s.splat(-4.0), s.splat(-5.0));
        let even_1 = s.mul_add(minus_four, d[2], d[4]);
        let odd_1 = s.mul_add(minus_four, d[1], d[3]);
        let even_2 = s.sub(d[4], d[2]);
        let odd_2 = s.mul(two, s.sub(d[3], d[1]));
        let [plus_1, minus_1] = opposite(s, even_1, odd_1);
        let [plus_2, minus_2] = opposite(s, even_2, odd_2);
        line(
            s,
            [
                s.mul_add(minus_five, d[2], s.mul_add(four, d[0], d[4])),
                plus_1,
                minus_1,
                plus_2,
                minus_2,
                s.mul_add(minus_five, d[3], s.mul_add(four, d[1], d[5])),
            ],
        )
    }

    /// `[1 1 1 1 1 0; 0 1 -1 2 -2 0; 0 1 1 4 4 0; 0 1 -1 8 -8 1]`
    #[inline(always)]
    fn out_of_points<S: Simd>(s: S, m: &Line<S>) -> Line<S> {
        let (sum_1, difference_1) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
        let (sum_2, difference_2) = (s.add(m[3], m[4]), s.sub(m[3], m[4]));
        line(
            s,
            [
                s.add(m[0], s.add(sum_1, sum_2)),
                s.mul_add(s.splat(2.0), difference_2, difference_1),
                s.mul_add(s.splat(4.0), sum_2, sum_1),
                s.add(m[5], s.mul_add(s.splat(8.0), difference_2, difference_1)),
            ],
        )
    }

    /// `[1/4 0 0; -1/6 -1/6 -1/6; -1/6 1/6 -1/6; 1/24 1/12 1/6; 1/24 -1/12 1/6; 0 0 1]`
    #[inline(always)]
    fn weights_into_points<S: Simd>(s: S, g: &Line<S>) -> Line<S> {
        let minus_sixth = s.splat(-1.0 / 6.0);
        let even_1 = s.mul(minus_sixth, s.add(g[0], g[2]));
        let odd_1 = s.mul(minus_sixth, g[1]);
        let even_2 = s.mul_add(s.splat(1.0 / 6.0), g[2], s.mul(s.splat(1.0 / 24.0), g[0]));
        let odd_2 = s.mul(s.splat(1.0 / 12.0), g[1]);
        let [plus_1, minus_1] = opposite(s, even_1, odd_1);
        let [plus_2, minus_2] = opposite(s, even_2, odd_2);
        line(s, [s.mul(s.splat(0.25), g[0]), plus_1, minus_1, plus_2, minus_2, g[2]])
    }
}

impl Differentiable for Four {
    #[inline(always)]
    fn gradient_into_points<S: Simd>(s: S, y: &Line<S>) -> Line<S> {
        let (even_1, odd_1) = (s.add(y[0], y[2]), s.add(y[1], y[3]));
        let even_2 = s.mul_add(s.splat(4.0), y[2], y[0]);
        let odd_2 = s.mul_add(s.splat(8.0), y[3], s.mul(s.splat(2.0), y[1]));
        let [plus_1, minus_1] = opposite(s, even_1, odd_1);
        let [plus_2, minus_2] = opposite(s, even_2, odd_2);
        line(s, [y[0], plus_1, minus_1, plus_2, minus_2, y[3]])
    }

    #[inline(always)]
    fn weight_gradient_out_of_points<S: Simd>(s: S, u: &Line<S>) -> Line<S> {
        let minus_sixth = s.splat(-1.0 / 6.0);
        let sum_1 = s.mul(minus_sixth, s.add(u[1], u[2]));
        let difference_1 = s.mul(minus_sixth, s.sub(u[1], u[2]));
        let (sum_2, difference_2) = (s.add(u[3], u[4]), s.sub(u[3], u[4]));
        line(
            s,
            [
                s.mul_add(s.splat(1.0 / 24.0), sum_2, s.mul_add(s.splat(0.25), u[0], sum_1)),
                s.mul_add(s.splat(1.0 / 12.0), difference_2, difference_1),
                s.mul_add(s.splat(1.0 / 6.0), sum_2, s.add(u[5], sum_1)),
            ],
        )
    }
}

/// F(6, 3) of stride 1, at the points 0, ±1, ±2, ±½ and ∞.
pub(in crate::conv) struct Six;

impl Filtering for Six {
    const INPUTS: usize = 8;
    const STEP: usize = 6;
    const OUTPUTS: usize = 6;
    const POINTS: usize = 8;
    const WEIGHTS: usize = 8;

    /// `[1 0 -21/4 0 21/4 0 -1 0; 0 1 1 -17/4 -17/4 1 1 0; 0 -1 1 17/4 -17/4 -1 1 0; 0 1/2 1/4 -5/2 -5/4 2 1 0;
    /// 0 -1/2 1/4 5/2 -5/4 -2 1 0; 0 2 4 -5/2 -5 1/2 1 0; 0 -2 4 5/2 -5 -1/2 1 0; 0 -1 0 21/4 0 -21/4 0 1]`
    #[inline(always)]
    fn into_points<S: Simd>(s: S, d: &Line<S>) -> Line<S> {
        let (half, two, four, quarter) = (s.splat(0.5), s.splat(2.0), s.splat(4.0), s.splat(0.25));
        let even_1 = s.mul_add(s.splat(-4.25), d[4], s.add(d[2], d[6]));
        let odd_1 = s.mul_add(s.splat(-4.25), d[3], s.add(d[1], d[5]));
        let even_2 = s.mul_add(quarter, d[2], s.mul_add(s.splat(-1.25), d[4], d[6]));
        let odd_2 = s.mul_add(half, d[1], s.mul_add(s.splat(-2.5), d[3], s.mul(two, d[5])));
        let even_3 = s.mul_add(four, d[2], s.mul_add(s.splat(-5.0), d[4], d[6]));
        let odd_3 = s.mul_add(two, d[1], s.mul_add(s.splat(-2.5), d[3], s.mul(half, d[5])));
        let [plus_1, minus_1] = opposite(s, even_1, odd_1);
        let [plus_2, minus_2] = opposite(s, even_2, odd_2);
        let [plus_3, minus_3] = opposite(s, even_3, odd_3);
        line(
            s,
            [
                s.mul_add(s.splat(5.25), s.sub(d[4], d[2]), s.sub(d[0], d[6])),
                plus_1,
                minus_1,
                plus_2,
                minus_2,
                plus_3,
                minus_3,
                s.mul_add(s.splat(5.25), s.sub(d[3], d[5]), s.sub(d[7], d[1])),
            ],
        )
    }

    /// `[1 1 1 1 1 1 1 0; 0 1 -1 2 -2 1/2 -1/2 0; 0 1 1 4 4 1/4 1/4 0; 0 1 -1 8 -8 1/8 -1/8 0; 0 1 1 16 16 1/16 1/16 0;
    /// 0 1 -1 32 -32 1/32 -1/32 1]`
    #[inline(always)]
    fn out_of_points<S: Simd>(s: S, m: &Line<S>) -> Line<S> {
        let (sum_1, difference_1) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
        let (sum_2, difference_2) = (s.add(m[3], m[4]), s.sub(m[3], m[4]));
        let (sum_3, difference_3) = (s.add(m[5], m[6]), s.sub(m[5], m[6]));
        line(
            s,
            [
                s.add(s.add(m[0], sum_1), s.add(sum_2, sum_3)),
                add_products(s, difference_1, [(2.0, difference_2), (0.5, difference_3)]),
                add_products(s, sum_1, [(4.0, sum_2), (0.25, sum_3)]),
                add_products(s, difference_1, [(8.0, difference_2), (0.125, difference_3)]),
                add_products(s, sum_1, [(16.0, sum_2), (0.0625, sum_3)]),
                s.add(m[7], add_products(s, difference_1, [(32.0, difference_2), (0.03125, difference_3)])),
            ],
        )
    }

    /// `[1 0 0; -2/9 -2/9 -2/9; -2/9 2/9 -2/9; 1/90 1/45 2/45; 1/90 -1/45 2/45; 32/45 16/45 8/45; 32/45 -16/45 8/45; 0 0 1]`
    #[inline(always)]
    fn weights_into_points<S: Simd>(s: S, g: &Line<S>) -> Line<S> {
        let ninths = s.splat(-2.0 / 9.0);
        let even_1 = s.mul(ninths, s.add(g[0], g[2]));
        let odd_1 = s.mul(ninths, g[1]);
        let even_2 = s.mul_add(s.splat(2.0 / 45.0), g[2], s.mul(s.splat(1.0 / 90.0), g[0]));
        let odd_2 = s.mul(s.splat(1.0 / 45.0), g[1]);
        let even_3 = s.mul_add(s.splat(8.0 / 45.0), g[2], s.mul(s.splat(32.0 / 45.0), g[0]));
        let odd_3 = s.mul(s.splat(16.0 / 45.0), g[1]);
        let [plus_1, minus_1] = opposite(s, even_1, odd_1);
        let [plus_2, minus_2] = opposite(s, even_2, odd_2);
        let [plus_3, minus_3] = opposite(s, even_3, odd_3);
        line(s, [g[0], plus_1, minus_1, plus_2, minus_2, plus_3, minus_3, g[2]])
    }
}

impl Differentiable for Six {
    #[inline(always)]
    fn gradient_into_points<S: Simd>(s: S, y: &Line<S>) -> Line<S> {
        let (even_1, odd_1) = (s.add(y[0], s.add(y[2], y[4])), s.add(y[1], s.add(y[3], y[5])));
        let even_2 = add_products(s, y[0], [(4.0, y[2]), (16.0, y[4])]);
        let odd_2 = add_products(s, s.mul(s.splat(2.0), y[1]), [(8.0, y[3]), (32.0, y[5])]);
        let even_3 = add_products(s, y[0], [(0.25, y[2]), (0.0625, y[4])]);
        let odd_3 = add_products(s, s.mul(s.splat(0.5), y[1]), [(0.125, y[3]), (0.03125, y[5])]);
        let [plus_1, minus_1] = opposite(s, even_1, odd_1);
        let [plus_2, minus_2] = opposite(s, even_2, odd_2);
        let [plus_3, minus_3] = opposite(s, even_3, odd_3);
        line(s, [y[0], plus_1, minus_1, plus_2, minus_2, plus_3, minus_3, y[5]])
    }

    #[inline(always)]
    fn weight_gradient_out_of_points<S: Simd>(s: S, u: &Line<S>) -> Line<S> {
        let ninths = s.splat(-2.0 / 9.0);
        let sum_1 = s.mul(ninths, s.add(u[1], u[2]));
        let difference_1 = s.mul(ninths, s.sub(u[1], u[2]));
        let (sum_2, difference_2) = (s.add(u[3], u[4]), s.sub(u[3], u[4]));
        let (sum_3, difference_3) = (s.add(u[5], u[6]), s.sub(u[5], u[6]));
        line(
            s,
            [
                add_products(s, s.add(u[0], sum_1), [(1.0 / 90.0, sum_2), (32.0 / 45.0, sum_3)]),
                add_products(s, difference_1, [(1.0 / 45.0, difference_2), (16.0 / 45.0, difference_3)]),
                add_products(s, s.add(u[7], sum_1), [(2.0 / 45.0, sum_2), (8.0 / 45.0, sum_3)]),
            ],
        )
    }
}

/// F(2, 3) of stride 1, at the points 0, ±1 and ∞.
pub(in crate::conv) struct Two;

impl Filtering for Two {
    const INPUTS: usize = 4;
    const STEP: usize = 2;
    const OUTPUTS: usize = 2;
    const POINTS: usize = 4;
    const WEIGHTS: usize = 4;

    /// `[1 0 -1 0; 0 1 1 0; 0 -1 1 0; 0 1 0 -1]`
    #[inline(always)]
    fn into_points<S: Simd>(s: S, d: &Line<S>) -> Line<S> {
        line(s, [s.sub(d[0], d[2]), s.add(d[1], d[2]), s.sub(d[2], d[1]), s.sub(d[1], d[3])])
    }

    /// `[1 1 1 0; 0 1 -1 -1]`
    #[inline(always)]
    fn out_of_points<S: Simd>(s: S, m: &Line<S>) -> Line<S> {
        let difference = s.sub(m[1], m[2]);
        line(s, [s.add(m[0], s.add(m[1], m[2])), s.sub(difference, m[3])])
    }

    /// `[1 0 0; 1/2 1/2 1/2; 1/2 -1/2 1/2; 0 0 1]`
    #[inline(always)]
    fn weights_into_points<S: Simd>(s: S, g: &Line<S>) -> Line<S> {
        let half = s.splat(0.5);
        let even = s.mul(half, s.add(g[0], g[2]));
        let odd = s.mul(half, g[1]);
        line(s, [g[0], s.add(even, odd), s.sub(even, odd), g[2]])
    }
}

impl Differentiable for Two {
    #[inline(always)]
    fn gradient_into_points<S: Simd>(s: S, y: &Line<S>) -> Line<S> {
        line(s, [y[0], s.add(y[0], y[1]), s.sub(y[0], y[1]), s.sub(s.zero(), y[1])])
    }

    #[inline(always)]
    fn weight_gradient_out_of_points<S: Simd>(s: S, u: &Line<S>) -> Line<S> {
        let half = s.splat(0.5);
        let sum = s.mul(half, s.add(u[1], u[2]));
        line(s, [s.add(u[0], sum), s.mul(half, s.sub(u[1], u[2])), s.add(sum, u[3])])
    }
}

/// Stride 2: `y[k] = g[0] d[2k] + g[1] d[2k + 1] + g[2] d[2k + 2]` for four `k`. The inputs between are multiplied by the
/// weight in the middle, and the others are a line of stride 1 with two weights: nine products for twelve.
pub(in crate::conv) struct Halving;

/// The gradient of the inputs of [`Halving`], `g` reversed: `y[2k] = g[1] d[k]` and `y[2k + 1] = g[0] d[k] + g[2] d[k + 1]`.
pub(in crate::conv) struct Doubling;

/// F(4, 2) of stride 1, at the points 0, ±1, 2 and ∞: `y[k] = g[0] d[k] + g[1] d[k + 1]`.
mod pairs {
    use super::Simd;

    /// `[2 -1 -2 1 0; 0 -2 -1 1 0; 0 2 -3 1 0; 0 -1 0 1 0; 0 2 -1 -2 1]`
    #[inline(always)]
    pub(super) fn into_points<S: Simd>(s: S, d: [S::Vector; 5]) -> [S::Vector; 5] {
        let odd = s.sub(d[3], d[1]);
        [
            s.mul_add(s.splat(2.0), s.sub(d[0], d[2]), odd),
            s.sub(odd, s.add(d[1], d[2])),
            s.mul_add(s.splat(3.0), s.sub(d[1], d[2]), odd),
            odd,
            s.mul_add(s.splat(-2.0), odd, s.sub(d[4], d[2])),
        ]
    }

    /// `[1 1 1 1 0; 0 1 -1 2 0; 0 1 1 4 0; 0 1 -1 8 1]`
    #[inline(always)]
    pub(super) fn out_of_points<S: Simd>(s: S, m: [S::Vector; 5]) -> [S::Vector; 4] {
        let (sum, difference) = (s.add(m[1], m[2]), s.sub(m[1], m[2]));
        [
            s.add(s.add(m[0], m[3]), sum),
            s.mul_add(s.splat(2.0), m[3], difference),
            s.mul_add(s.splat(4.0), m[3], sum),
            s.add(m[4], s.mul_add(s.splat(8.0), m[3], difference)),
        ]
    }

    #[inline(always)]
    pub(super) fn gradient_into_points<S: Simd>(s: S, y: [S::Vector; 4]) -> [S::Vector; 5] {
        let (even, odd) = (s.add(y[0], y[2]), s.add(y[1], y[3]));
        let twos = s.mul_add(s.splat(2.0), y[1], y[0]);
        let fours = s.mul_add(s.splat(2.0), y[3], y[2]);
        [y[0], s.add(even, odd), s.sub(even, odd), s.mul_add(s.splat(4.0), fours, twos), y[3]]
    }

    /// `[1/2 0; -1/2 -1/2; -1/6 1/6; 1/6 1/3; 0 1]`
    #[inline(always)]
    pub(super) fn weights_into_points<S: Simd>(s: S, g: [S::Vector; 2]) -> [S::Vector; 5] {
        let sixth = s.splat(1.0 / 6.0);
        [
            s.mul(s.splat(0.5), g[0]),
            s.mul(s.splat(-0.5), s.add(g[0], g[1])),
            s.mul(sixth, s.sub(g[1], g[0])),
            s.mul(sixth, s.mul_add(s.splat(2.0), g[1], g[0])),
            g[1],
        ]
    }

    #[inline(always)]
    pub(super) fn weight_gradient_out_of_points<S: Simd>(s: S, u: [S::Vector; 5]) -> [S::Vector; 2] {
        let (half, sixth) = (s.splat(0.5), s.splat(1.0 / 6.0));
        let third = s.mul_add(s.splat(2.0), u[3], u[2]);
        [
            s.mul_add(half, s.sub(u[0], u[1]), s.mul(sixth, s.sub(u[3], u[2]))),
            s.mul_add(sixth, third, s.mul_add(s.splat(-0.5), u[1], u[4])),
        ]
    }
}

impl Filtering for Halving {
    const INPUTS: usize = 9;
    const STEP: usize = 8;
    const OUTPUTS: usize = 4;
    const POINTS: usize = 9;
    const WEIGHTS: usize = 6;

    #[inline(always)]
    fn into_points<S: Simd>(s: S, d: &Line<S>) -> Line<S> {
        let [a, b, c, e, f] = pairs::into_points(s, [d[0], d[2], d[4], d[6], d[8]]);
        [a, b, c, e, f, d[1], d[3], d[5], d[7]]
    }

    #[inline(always)]
    fn out_of_points<S: Simd>(s: S, m: &Line<S>) -> Line<S> {
        let y = pairs::out_of_points(s, [m[0], m[1], m[2], m[3], m[4]]);
        line(s, [s.add(y[0], m[5]), s.add(y[1], m[6]), s.add(y[2], m[7]), s.add(y[3], m[8])])
    }

    #[inline(always)]
    fn weights_into_points<S: Simd>(s: S, g: &Line<S>) -> Line<S> {
        let [a, b, c, d, e] = pairs::weights_into_points(s, [g[0], g[2]]);
        line(s, [a, b, c, d, e, g[1]])
    }
}

impl Differentiable for Halving {
    #[inline(always)]
    fn gradient_into_points<S: Simd>(s: S, y: &Line<S>) -> Line<S> {
        let [a, b, c, d, e] = pairs::gradient_into_points(s, [y[0], y[1], y[2], y[3]]);
        [a, b, c, d, e, y[0], y[1], y[2], y[3]]
    }

    #[inline(always)]
    fn weight_gradient_out_of_points<S: Simd>(s: S, u: &Line<S>) -> Line<S> {
        let [first, last] = pairs::weight_gradient_out_of_points(s, [u[0], u[1], u[2], u[3], u[4]]);
        line(s, [first, u[5], last])
    }
}

impl Filtering for Doubling {
    const INPUTS: usize = 5;
    const STEP: usize = 4;
    const OUTPUTS: usize = 8;
    const POINTS: usize = 9;
    const WEIGHTS: usize = 6;

    #[inline(always)]
    fn into_points<S: Simd>(s: S, d: &Line<S>) -> Line<S> {
        let [a, b, c, e, f] = pairs::into_points(s, [d[0], d[1], d[2], d[3], d[4]]);
        [a, b, c, e, f, d[0], d[1], d[2], d[3]]
    }

    #[inline(always)]
    fn out_of_points<S: Simd>(s: S, m: &Line<S>) -> Line<S> {
        let y = pairs::out_of_points(s, [m[0], m[1], m[2], m[3], m[4]]);
        line(s, [m[5], y[0], m[6], y[1], m[7], y[2], m[8], y[3]])
    }

    #[inline(always)]
    fn weights_into_points<S: Simd>(s: S, g: &Line<S>) -> Line<S> {
        Halving::weights_into_points(s, g)
    }
}
