//! Weights as the inner kernels read them: panels of `2 · LANES` output channels.

use crate::gemm::columns_per_tile;
use crate::memory::{Source, Target};
use crate::simd::{Isa, simd_fn};

/// Floats ahead of those in use that are fetched when weights are transposed.
const PREFETCH: usize = 32;

/// Which way the weights `[taps, C, K]` are used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// From `C` channels to `K`.
    Forward,
    /// From `K` channels back to `C`, for the input gradient.
    Backward,
}

/// Weights `[taps, C, K]` with an optional factor per `K`, to be read as panels.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) w: &'a [f32],
    pub(super) scale: Option<&'a [f32]>,
    pub(super) in_channels: usize,
    pub(super) out_channels: usize,
    pub(super) direction: Direction,
}

impl Weights<'_> {
    /// The channels summed over: rows of a panel per tap.
    pub(super) fn depth(&self) -> usize {
        match self.direction {
            Direction::Forward => self.in_channels,
            Direction::Backward => self.out_channels,
        }
    }

    /// The channels produced.
    pub(super) fn columns(&self) -> usize {
        match self.direction {
            Direction::Forward => self.out_channels,
            Direction::Backward => self.in_channels,
        }
    }

    pub(super) fn panels(&self, isa: Isa) -> usize {
        self.columns().div_ceil(columns_per_tile(isa))
    }

    /// Writes rows `depth` of panel `panel` for each of `taps`, `[taps, depth, 2 · LANES]`, columns
    /// beyond the last channel zero.
    pub(super) fn pack(
        &self,
        isa: Isa,
        panel: usize,
        taps: impl ExactSizeIterator<Item = usize>,
        depth: std::ops::Range<usize>,
        to: &mut [f32],
    ) {
        let width = columns_per_tile(isa);
        let first = panel * width;
        let count = width.min(self.columns() - first);
        assert_eq!(to.len(), taps.len() * depth.len() * width);
        if to.is_empty() {
            return;
        }
        for (tap, rows) in taps.zip(to.chunks_exact_mut(depth.len() * width)) {
            let matrix =
                &self.w[tap * self.in_channels * self.out_channels..][..self.in_channels * self.out_channels];
            match self.direction {
                Direction::Forward => {
                    let matrix = &matrix[depth.start * self.out_channels..];
                    pack_rows(isa, matrix, self.out_channels, first, count, self.scale, rows, width);
                }
                Direction::Backward => {
                    let matrix = &matrix[first * self.out_channels..];
                    pack_transposed(
                        isa,
                        matrix,
                        self.out_channels,
                        depth.clone(),
                        count,
                        self.scale,
                        rows,
                        width,
                    );
                }
            }
        }
    }
}

simd_fn! {
    /// `to[row][j] = scale[first + j] · matrix[row][first + j]`
    fn pack_rows<S>(
        s,
        matrix: &[f32],
        stride: usize,
        first: usize,
        count: usize,
        scale: Option<&[f32]>,
        to: &mut [f32],
        width: usize,
    ) {
        for (to, from) in to.chunks_exact_mut(width).zip(matrix.chunks(stride)) {
            let (to, rest) = to.split_at_mut(count);
            let from = &from[first..first + count];
            match scale {
                Some(scale) => {
                    for ((to, &w), &scale) in to.iter_mut().zip(from).zip(&scale[first..first + count]) {
                        *to = scale * w;
                    }
                }
                None => to.copy_from_slice(from),
            }
            rest.fill(0.0);
        }
    }
}

simd_fn! {
    /// `to[k][j] = scale[k] · matrix[j][k]` for `j < count` and `k` in `depth`.
    fn pack_transposed<S>(
        s,
        matrix: &[f32],
        stride: usize,
        depth: std::ops::Range<usize>,
        count: usize,
        scale: Option<&[f32]>,
        to: &mut [f32],
        width: usize,
    ) {
        assert!(matrix.len() >= (count - 1) * stride + depth.end && to.len() >= depth.len() * width);
        let blocks = (depth.len() / 8 * 8, count / 8 * 8);
        {
            let (from, to) = (Source::from(matrix), Target::from(&mut *to));
            for k in (0..blocks.0).step_by(8) {
                for j in (0..blocks.1).step_by(8) {
                    // SAFETY: eight rows from `j` and eight columns from `k` are within the matrix,
                    // and the transposed block within `to`, by the assertion above; `to` is ours.
                    unsafe {
                        let from = from.at(j * stride + depth.start + k, 7 * stride + 8);
                        // Each row is somewhere else; the processor does not follow so many.
                        for row in 0..8 {
                            s.prefetch(from.wrapping_add(row * stride + PREFETCH));
                        }
                        s.transpose_8x8(from, stride, to.at(k * width + j, 7 * width + 8), width);
                    }
                }
            }
        }
        for k in 0..depth.len() {
            let row = &mut to[k * width..][..width];
            let done = if k < blocks.0 { blocks.1 } else { 0 };
            for (j, to) in row.iter_mut().enumerate().take(count).skip(done) {
                *to = matrix[j * stride + depth.start + k];
            }
            row[count..].fill(0.0);
            if let Some(scale) = scale {
                let scale = scale[depth.start + k];
                row.iter_mut().for_each(|w| *w *= scale);
            }
        }
    }
}
