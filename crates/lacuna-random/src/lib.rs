//! Random numbers that are the same on every machine, in every version, with any number of threads.
//!
//! No generator is shared: each is made from the purpose of the draw, such as (run seed, epoch, image). The
//! distributions are implemented here rather than taken from a library, so that an upgrade can never change a
//! published split.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

/// What a generator is for. Generators of different purpose are independent though their seed,
/// epoch and image agree.
#[derive(Clone, Copy, Debug)]
pub enum Purpose {
    /// Which boxes are hidden.
    Sparsify,
    /// A synthetic scene.
    Synth,
    /// The order of images in an epoch.
    Order,
    /// The view of an image that this recipe of a loader makes.
    View {
        /// The recipe's number.
        recipe: u32,
    },
    /// The weights that a model starts from.
    Weights,
    /// The anchors and proposals of an image that a loss samples.
    Sampling,
    /// Bootstrap samples and folds of images.
    Resample,
    /// The noise where a part of a view is erased.
    Erase,
}

impl Purpose {
    fn code(self) -> u64 {
        match self {
            Self::Sparsify => 1,
            Self::Synth => 2,
            Self::Order => 3,
            Self::View { recipe } => 4 + (u64::from(recipe) << 8),
            Self::Weights => 5,
            Self::Sampling => 6,
            Self::Resample => 7,
            Self::Erase => 8,
        }
    }
}

/// A random number generator (ChaCha8, keyed by what it is for).
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// The generator of `purpose` for (run seed, epoch, image). Where there is no epoch or image,
    /// pass whatever number tells the draws apart.
    pub fn new(purpose: Purpose, seed: u64, epoch: u64, image: u64) -> Self {
        let mut key = [0; 32];
        for (bytes, word) in key.chunks_exact_mut(8).zip([purpose.code(), seed, epoch, image]) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        Self(ChaCha8Rng::from_seed(key))
    }

    /// Uniform in `0..n`, without bias (Lemire's multiply and reject).
    ///
    /// # Panics
    /// When `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "a draw from nothing");
        let n = n as u64;
        let reject_below = n.wrapping_neg() % n;
        loop {
            let product = u128::from(self.0.next_u64()) * u128::from(n);
            if product as u64 >= reject_below {
                return (product >> 64) as usize;
            }
        }
    }

    /// Uniform in `low..=high`.
    pub fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.below((high - low) as usize + 1) as u32
    }

    /// Uniform in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `[low, high)`.
    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// True with this probability: never at 0, always at 1.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A seed for another generator.
    pub fn seed(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Every byte uniform in `0..=255`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for eight in bytes.chunks_mut(8) {
            eight.copy_from_slice(&self.0.next_u64().to_le_bytes()[..eight.len()]);
        }
    }

    /// Two draws from the standard normal distribution (Box and Muller).
    pub fn normals(&mut self) -> (f64, f64) {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.unit()));
        let (sin, cos) = libm::sincos(std::f64::consts::TAU * self.unit());
        (radius * cos, radius * sin)
    }

    /// `count` different numbers of `0..n`, ascending, every such set equally likely (Floyd).
    ///
    /// # Panics
    /// When `count > n`.
    pub fn choose(&mut self, n: usize, count: usize) -> Vec<usize> {
        assert!(count <= n, "{count} of {n} cannot be chosen");
        let mut chosen = vec![false; n];
        for last in n - count..n {
            let drawn = self.below(last + 1);
            let index = if chosen[drawn] { last } else { drawn };
            chosen[index] = true;
        }
        (0..n).filter(|&i| chosen[i]).collect()
    }

    /// Put `items` into random order (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_never_changes() {
        let mut rng = Rng::new(Purpose::Sparsify, 1, 2, 3);
        let drawn: Vec<usize> = (0..5).map(|_| rng.below(1_000_000)).collect();
        assert_eq!(
            drawn,
            [785134, 761228, 382346, 876698, 443672],
            "every published split depends on these numbers"
        );
    }

    #[test]
    fn bytes_are_the_stream_and_every_value_is_equally_likely() {
        let (mut rng, mut same) = (Rng::new(Purpose::Erase, 0, 0, 0), Rng::new(Purpose::Erase, 0, 0, 0));
        let mut bytes = [0; 11];
        rng.fill(&mut bytes);
        assert_eq!(bytes[..8], same.seed().to_le_bytes());
        assert_eq!(bytes[8..], same.seed().to_le_bytes()[..3]);

        let mut many = vec![0; 256_000];
        rng.fill(&mut many);
        let mut counts = [0; 256];
        many.iter().for_each(|&byte| counts[usize::from(byte)] += 1);
        // 1,000 of each, with a standard deviation of 32.
        assert!(counts.iter().all(|count| (840..1160).contains(count)), "{counts:?}");
    }

    #[test]
    fn purposes_seeds_epochs_and_images_differ() {
        let first = |p, s, e, i| Rng::new(p, s, e, i).below(usize::MAX);
        let all = [
            first(Purpose::Order, 1, 1, 1),
            first(Purpose::Synth, 1, 1, 1),
            first(Purpose::Order, 2, 1, 1),
            first(Purpose::Order, 1, 2, 1),
            first(Purpose::Order, 1, 1, 2),
        ];
        assert!((0..5).all(|i| (0..i).all(|j| all[i] != all[j])));
    }

    #[test]
    fn every_set_is_equally_likely() {
        let mut rng = Rng::new(Purpose::Sparsify, 0, 0, 0);
        let mut seen = [[0; 5]; 5];
        for _ in 0..10_000 {
            let pair = rng.choose(5, 2);
            seen[pair[0]][pair[1]] += 1;
        }
        for (i, row) in seen.iter().enumerate() {
            for (j, &count) in row.iter().enumerate() {
                // 10 pairs: 1,000 of each, with a standard deviation of 30.
                assert_eq!(count == 0, i >= j);
                assert!(i >= j || (850..1150).contains(&count), "{i} {j}: {count}");
            }
        }
        assert_eq!(rng.choose(3, 3), [0, 1, 2]);
        assert!(rng.choose(3, 0).is_empty());
    }

    #[test]
    fn shuffling_keeps_every_item() {
        let mut items: Vec<u32> = (0..100).collect();
        Rng::new(Purpose::Order, 0, 0, 0).shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert!(items.into_iter().eq(0..100));
    }

    #[test]
    fn chance_is_never_at_0_and_always_at_1() {
        let mut rng = Rng::new(Purpose::Order, 0, 0, 0);
        assert!((0..1000).all(|_| !rng.chance(0.0) && rng.chance(1.0)));
    }
}
