//! Judged detections counted by score: the input of every fit.

use lacuna_boxes::Score;

use crate::{JudgedScore, NoFit};

/// The judged detections of one score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tally {
    pub(crate) score: f64,
    pub(crate) count: u64,
    pub(crate) right: u64,
}

/// Count judged detections by score, each score once, the lowest first. Every fit starts from this, so that the
/// order of the detections changes nothing, not even the rounding.
///
/// # Errors
/// [`NoFit::NotAScore`], or [`NoFit::OneOutcome`].
pub(crate) fn tally_by_score(judged: impl IntoIterator<Item = JudgedScore>) -> Result<Vec<Tally>, NoFit> {
    let mut keys = Vec::new();
    for JudgedScore { score: Score(score), right } in judged {
        if !(0.0..=1.0).contains(&score) {
            return Err(NoFit::NotAScore);
        }
        // The bits of numbers that are not negative are in the order of the numbers. (A zero may have a sign.)
        keys.push(score.abs().to_bits() << 1 | u32::from(right));
    }
    keys.sort_unstable();
    let of_score = |same: &[u32]| Tally {
        score: f32::from_bits(same[0] >> 1).into(),
        count: same.len() as u64,
        right: same.iter().map(|key| u64::from(key & 1)).sum(),
    };
    let tallies: Vec<Tally> = keys.chunk_by(|a, b| a >> 1 == b >> 1).map(of_score).collect();
    let right: u64 = tallies.iter().map(|tally| tally.right).sum();
    if right == 0 || right == keys.len() as u64 { Err(NoFit::OneOutcome) } else { Ok(tallies) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_score_is_there_once_the_lowest_first() {
        let judged =
            [(0.5, true), (-0.0, false), (1.0, true), (0.5, false), (0.0, true), (0.5, true), (1e-30, false)];
        let tallies = tally_by_score(judged.map(|(score, right)| JudgedScore { score: Score(score), right }));
        let expected = [(0.0, 2, 1), (f64::from(1e-30f32), 1, 0), (0.5, 3, 2), (1.0, 1, 1)];
        assert_eq!(tallies, Ok(expected.map(|(score, count, right)| Tally { score, count, right }).to_vec()));
    }

    #[test]
    fn what_is_no_score_is_refused() {
        for score in [-0.1, 1.1, f32::NAN, f32::INFINITY] {
            let judged = [0.5, score].map(|score| JudgedScore { score: Score(score), right: score < 1.0 });
            assert_eq!(tally_by_score(judged), Err(NoFit::NotAScore), "{score}");
        }
    }
}
