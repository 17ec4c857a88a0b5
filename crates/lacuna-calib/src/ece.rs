//! Reliability diagrams and the expected calibration error.

use serde::{Deserialize, Serialize};

const BINS: usize = 10;

/// A reliability diagram: confidence against precision, in ten bins of equal width.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reliability {
    bins: [ReliabilityBin; BINS],
}

/// The detections of one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReliabilityBin {
    /// The number of detections.
    pub count: u64,
    /// How many of them are right.
    pub right: u64,
    /// The sum of the confidences.
    pub confidence: f64,
}

impl Reliability {
    /// Add a detection with this confidence (or raw score) and whether it is right.
    pub fn add(&mut self, confidence: f32, right: bool) {
        let bin = &mut self.bins[((confidence * BINS as f32) as usize).min(BINS - 1)];
        bin.count += 1;
        bin.right += u64::from(right);
        bin.confidence += f64::from(confidence);
    }

    /// The bins, the lowest confidences first.
    pub fn bins(&self) -> &[ReliabilityBin] {
        &self.bins
    }

    /// The number of detections in all bins.
    pub fn count(&self) -> u64 {
        self.bins.iter().map(|bin| bin.count).sum()
    }

    /// The expected calibration error (Naeini et al., 2015): `Σ n_bin/n · |precision − mean confidence|`.
    /// `None` when there is no detection.
    pub fn ece(&self) -> Option<f64> {
        let gap = |bin: &ReliabilityBin| (bin.right as f64 - bin.confidence).abs();
        (self.count() > 0).then(|| self.bins.iter().map(gap).sum::<f64>() / self.count() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_of_each_bin_counts_by_its_size() {
        let mut reliability = Reliability::default();
        assert_eq!(reliability.ece(), None);
        for right in [true, true, true, false] {
            reliability.add(0.95, right);
        }
        reliability.add(0.25, false);
        let expected = (4.0 * (0.95f64 - 0.75) + 0.25) / 5.0;
        assert!((reliability.ece().expect("five detections") - expected).abs() < 1e-6);
        reliability.add(1.0, true);
        assert_eq!(reliability.count(), 6);
    }
}
