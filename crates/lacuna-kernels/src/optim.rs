//! Parameter updates in place: one pass over memory each, over all parameters at once.

use rayon::prelude::*;

use crate::shape::{ShapeError, check_len};
use crate::simd::{Isa, simd_fn};

/// Floats per job.
const CHUNK: usize = 1 << 14;

/// Stochastic gradient descent with momentum `μ` and weight decay `λ`, PyTorch's `SGD`:
/// `v ← μ·v + (g + λ·p)`, `p ← p − lr·v`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// `lr`
    pub learning_rate: f32,
    /// `μ`
    pub momentum: f32,
    /// `λ`
    pub weight_decay: f32,
}

/// One parameter with its gradient and velocity `v`, which starts at zero.
#[derive(Debug)]
pub struct SgdParameter<'a> {
    /// `p`
    pub parameter: &'a mut [f32],
    /// `g`
    pub gradient: &'a [f32],
    /// `v`
    pub velocity: &'a mut [f32],
}

impl Sgd {
    /// Updates all parameters and velocities in place.
    pub fn step(&self, isa: Isa, parameters: &mut [SgdParameter]) -> Result<(), ShapeError> {
        for SgdParameter { parameter, gradient, velocity } in parameters.iter() {
            check_len("gradient", &[parameter.len()], gradient.len())?;
            check_len("velocity", &[parameter.len()], velocity.len())?;
        }
        parameters.par_iter_mut().for_each(|SgdParameter { parameter, gradient, velocity }| {
            parameter
                .par_chunks_mut(CHUNK)
                .zip(gradient.par_chunks(CHUNK))
                .zip(velocity.par_chunks_mut(CHUNK))
                .for_each(|((parameter, gradient), velocity)| {
                    sgd_chunk(isa, *self, parameter, gradient, velocity);
                });
        });
        Ok(())
    }
}

/// One exponential moving average: `average ← momentum · average + (1 − momentum) · value`.
#[derive(Debug)]
pub struct Average<'a> {
    /// The average, updated in place.
    pub average: &'a mut [f32],
    /// The new value.
    pub value: &'a [f32],
}

/// Updates all averages.
pub fn ema(isa: Isa, momentum: f32, averages: &mut [Average]) -> Result<(), ShapeError> {
    for Average { average, value } in averages.iter() {
        check_len("value", &[average.len()], value.len())?;
    }
    averages.par_iter_mut().for_each(|Average { average, value }| {
        average
            .par_chunks_mut(CHUNK)
            .zip(value.par_chunks(CHUNK))
            .for_each(|(average, value)| ema_chunk(isa, momentum, average, value));
    });
    Ok(())
}

/// `Σ x²` over all of several slices. The order of the sum is fixed, whatever the number of threads.
pub fn sum_of_squares(slices: &[&[f32]]) -> f64 {
    let chunks: Vec<&[f32]> = slices.iter().flat_map(|slice| slice.chunks(CHUNK)).collect();
    let of_chunk = |chunk: &&[f32]| {
        let mut lanes = [0.0f64; 8];
        let (eights, rest) = chunk.as_chunks::<8>();
        for eight in eights {
            for (lane, x) in lanes.iter_mut().zip(eight) {
                *lane += f64::from(*x) * f64::from(*x);
            }
        }
        lanes.iter().sum::<f64>() + rest.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>()
    };
    let sums: Vec<f64> = chunks.par_iter().map(of_chunk).collect();
    sums.into_iter().sum()
}

simd_fn! {
    fn sgd_chunk<S>(s, sgd: Sgd, parameter: &mut [f32], gradient: &[f32], velocity: &mut [f32]) {
        for ((p, g), v) in parameter.iter_mut().zip(gradient).zip(velocity) {
            *v = sgd.momentum * *v + (g + sgd.weight_decay * *p);
            *p -= sgd.learning_rate * *v;
        }
    }
}

simd_fn! {
    fn ema_chunk<S>(s, momentum: f32, average: &mut [f32], value: &[f32]) {
        for (average, value) in average.iter_mut().zip(value) {
            *average = momentum * *average + (1.0 - momentum) * value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_of_squares_is_the_same_on_any_number_of_threads() {
        let values: Vec<f32> =
            (0..5_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) as f32).sin()).collect();
        let slices = [&values[..3], &values[3..1_000_000], &values[1_000_000..]];
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            pool.install(|| sum_of_squares(&slices))
        };
        let exact: f64 = values.iter().map(|x| f64::from(*x).powi(2)).sum();
        assert!((on(1) - exact).abs() < 1e-9 * exact);
        assert!((2..6).all(|threads| on(threads).to_bits() == on(1).to_bits()));
        assert_eq!(sum_of_squares(&[]), 0.0);
    }
}
