//! Convolution over channels-last images: `x [N, H, W, C]`, `w [kernel, kernel, C, K]`,
//! `y [N, H', W', K]`.
//!
//! Channels-last puts what a matrix product sums over (the channels of one pixel) side by side in
//! memory, and this weight order makes every tap of the window a `[C, K]` matrix; so all three
//! passes are matrix products on memory as it lies.

mod direct;
mod weights;
mod winograd;

use self::winograd::{Doubling, Four, Halving, Six, Two};
use crate::gemm::Finish;
use crate::memory::written;
use crate::shape::{Grid, ShapeError, Window, check_grids, check_len, check_size};
use crate::simd::Isa;

/// What is fused into a convolution's last store:
/// `y = relu(scale[k] · (x ∗ w) + shift[k] + residual)`.
///
/// `scale` and `shift` are a frozen batch norm, or `shift` alone is a bias. The scale is folded
/// into the weights as they are packed, which costs nothing per pixel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// `[K]`
    pub scale: Option<&'a [f32]>,
    /// `[K]`
    pub shift: Option<&'a [f32]>,
    /// As `y`.
    pub residual: Option<&'a [f32]>,
    /// Whether there is a ReLU.
    pub relu: bool,
}

/// The shape of one convolution, checked.
#[derive(Clone, Debug)]
pub struct Conv2d {
    inputs: Vec<Grid>,
    outputs: Vec<Grid>,
    in_channels: usize,
    out_channels: usize,
    window: Window,
}

/// How a convolution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Winograd F(6×6, 3×3): 64 products where the definition has 324.
    Winograd6,
    /// Winograd F(4×4, 3×3): 36 products where the definition has 144.
    Winograd4,
    /// Winograd F(2×2, 3×3): 16 products where the definition has 36.
    Winograd2,
    /// Winograd for windows of stride 2 with 4×4 outputs: 81 products where the definition has 144.
    WinogradStride2,
    /// The definition, as one matrix product whose rows are read in place.
    Direct,
}

impl Conv2d {
    /// A convolution over one grid of images, or over several (the levels of a pyramid).
    pub fn new(
        inputs: Vec<Grid>,
        in_channels: usize,
        out_channels: usize,
        window: Window,
    ) -> Result<Self, ShapeError> {
        for (what, channels) in [("in_channels", in_channels), ("out_channels", out_channels)] {
            if channels == 0 {
                return Err(ShapeError::Zero { what });
            }
        }
        let outputs: Vec<Grid> = inputs.iter().map(|&grid| window.output(grid)).collect::<Result<_, _>>()?;
        check_grids("x", &inputs, in_channels)?;
        check_grids("y", &outputs, out_channels)?;
        check_size("w", &[window.kernel, window.kernel, in_channels, out_channels])?;
        let conv = Self { inputs, outputs, in_channels, out_channels, window };
        if direct::reads_a_padded_copy(&conv) {
            check_grids("x with its padding", &direct::padded(&conv), in_channels)?;
        }
        Ok(conv)
    }

    /// The grids of `x`.
    pub fn inputs(&self) -> &[Grid] {
        &self.inputs
    }

    /// The grids of `y`.
    pub fn outputs(&self) -> &[Grid] {
        &self.outputs
    }

    /// The algorithm of all three passes, from measurements (docs/PERFORMANCE.md). Dense 3×3 windows with at least 16
    /// channels on both sides:
    ///
    /// | stride         | tiles of outputs                    | algorithm         |
    /// |----------------|-------------------------------------|-------------------|
    /// | 1              | 6×6: a tenth less work than 4×4     | `Winograd6`       |
    /// |                | 4×4: ≥ 16                           | `Winograd4`       |
    /// |                | fewer                               | `Winograd2`       |
    /// | 2 (padding 1)  | 4×4: ≥ 16                           | `WinogradStride2` |
    ///
    /// Everything else is `Direct`. Work is products, and those of some tiles more for transforming the weights: of 8, or of 24
    /// where transformed weights are too many for the nearer caches. With few tiles the transforms outweigh the saved products.
    /// Below 16 channels a vector register would be half empty.
    ///
    /// The rounding error of an output is held to `c · ε · Σ max_tile|d| · Σ|g|`: for each product of a
    /// tile and a window that is summed (over channels; for dw over tiles), the tile's largest input
    /// times the window's absolute sum (for dw, of `dz` over the tile), with ε = 2⁻²⁴ and `c` = 80 for `Winograd6`, 40 for
    /// `Winograd4`, 12 for `WinogradStride2`, 4 for `Winograd2` and for `Direct`, whose tiles are single pixels. Measured up
    /// to 2048 channels and 1024 tiles of 4×4: 44, 22, 7.1, 1.5 and 2.5 (`tests/winograd_error.rs`), and less the more
    /// channels. So relative to the largest value that inputs and weights of these magnitudes can give,
    /// the error stays below 5e-6, and no shape needs a cutoff at 1e-4. Relative to an output that
    /// cancels to nearly nothing, none of them has a bound.
    ///
    /// An input that is not finite spoils all outputs of the tiles that see it, not just those whose
    /// window does; outputs of other tiles stay as they are. Where images of a batch are cut into tiles together
    /// (`winograd/tiling.rs`), a tile may have pixels of two or four of them at their borders: then `max_tile|d|`, and what is
    /// not finite, is of all these.
    pub fn algorithm(&self) -> Algorithm {
        let (narrow, padding) = (self.in_channels.min(self.out_channels) < 16, self.window.padding);
        let serves = |algorithm| !narrow && self.feasible(algorithm) == algorithm;
        let four = |grid: &Grid| grid.batch * grid.height.div_ceil(4) * grid.width.div_ceil(4);
        let enough = self.outputs.iter().map(four).sum::<usize>() >= 16;
        if serves(Algorithm::Winograd6) {
            let more = if self.in_channels * self.out_channels > 192 * 192 { 24 } else { 8 };
            let work = |size: usize| {
                let products = (size + 2) * (size + 2);
                products.saturating_mul(winograd::n_tiles(&self.outputs, size, padding) + more)
            };
            match enough {
                _ if work(6) <= work(4) - work(4) / 10 => Algorithm::Winograd6,
                true => Algorithm::Winograd4,
                false => Algorithm::Winograd2,
            }
        } else if serves(Algorithm::WinogradStride2) && enough {
            Algorithm::WinogradStride2
        } else {
            Algorithm::Direct
        }
    }

    /// `y [Σ N·H'·W', K]` from `x [Σ N·H·W, C]` and `w [kernel, kernel, C, K]`.
    pub fn forward(
        &self,
        isa: Isa,
        x: &[f32],
        w: &[f32],
        epilogue: &Epilogue,
    ) -> Result<Vec<f32>, ShapeError> {
        self.forward_by(self.algorithm(), isa, x, w, epilogue)
    }

    /// The gradient of `x`: `dx = (scale[k] · dz) ∗ᵀ w`, where `dz` is the gradient of the value under
    /// the ReLU.
    pub fn input_gradient(
        &self,
        isa: Isa,
        dz: &[f32],
        w: &[f32],
        scale: Option<&[f32]>,
    ) -> Result<Vec<f32>, ShapeError> {
        self.input_gradient_by(self.algorithm(), isa, dz, w, scale)
    }

    /// The gradient of `w [kernel, kernel, C, K]`: `dw = scale[k] · Σ_pixels xᵀ dz`.
    pub fn weight_gradient(
        &self,
        isa: Isa,
        x: &[f32],
        dz: &[f32],
        scale: Option<&[f32]>,
    ) -> Result<Vec<f32>, ShapeError> {
        self.weight_gradient_by(self.algorithm(), isa, x, dz, scale)
    }

    /// [`Conv2d::forward`] by a given algorithm. Winograd's need a dense 3×3 window: `Winograd6`, `Winograd4` and
    /// `Winograd2` one of stride 1 and padding of at most 2, `WinogradStride2` one of stride 2 and padding 1. For any other
    /// they mean `Direct`.
    #[doc(hidden)]
    pub fn forward_by(
        &self,
        algorithm: Algorithm,
        isa: Isa,
        x: &[f32],
        w: &[f32],
        epilogue: &Epilogue,
    ) -> Result<Vec<f32>, ShapeError> {
        self.check_input("x", x)?;
        self.check_weights(w)?;
        self.check_per_channel("scale", epilogue.scale)?;
        self.check_per_channel("shift", epilogue.shift)?;
        if let Some(residual) = epilogue.residual {
            self.check_output("residual", residual)?;
        }
        let finish = Finish {
            shift: epilogue.shift.map(Into::into),
            residual: epilogue.residual.map(Into::into),
            relu: epilogue.relu,
        };
        let len = pixels(&self.outputs) * self.out_channels;
        // SAFETY: every algorithm writes each output pixel of every grid; all lengths were checked.
        Ok(unsafe {
            written(len, |y| match self.feasible(algorithm) {
                Algorithm::Winograd6 => winograd::forward::<Six>(isa, self, x, w, epilogue.scale, finish, y),
                Algorithm::Winograd4 => winograd::forward::<Four>(isa, self, x, w, epilogue.scale, finish, y),
                Algorithm::Winograd2 => winograd::forward::<Two>(isa, self, x, w, epilogue.scale, finish, y),
                Algorithm::WinogradStride2 => {
                    winograd::forward::<Halving>(isa, self, x, w, epilogue.scale, finish, y);
                }
                Algorithm::Direct => direct::forward(isa, self, x, w, epilogue.scale, finish, y),
            })
        })
    }

    /// [`Conv2d::input_gradient`] by a given algorithm, as [`Conv2d::forward_by`].
    #[doc(hidden)]
    pub fn input_gradient_by(
        &self,
        algorithm: Algorithm,
        isa: Isa,
        dz: &[f32],
        w: &[f32],
        scale: Option<&[f32]>,
    ) -> Result<Vec<f32>, ShapeError> {
        self.check_output("dz", dz)?;
        self.check_weights(w)?;
        self.check_per_channel("scale", scale)?;
        let len = pixels(&self.inputs) * self.in_channels;
        // SAFETY: every algorithm writes each input pixel of every grid; all lengths were checked.
        Ok(unsafe {
            written(len, |dx| match self.feasible(algorithm) {
                Algorithm::Winograd6 => winograd::input_gradient::<Six>(isa, self, dz, w, scale, dx),
                Algorithm::Winograd4 => winograd::input_gradient::<Four>(isa, self, dz, w, scale, dx),
                Algorithm::Winograd2 => winograd::input_gradient::<Two>(isa, self, dz, w, scale, dx),
                Algorithm::WinogradStride2 => {
                    winograd::input_gradient::<Doubling>(isa, self, dz, w, scale, dx);
                }
                Algorithm::Direct => direct::input_gradient(isa, self, dz, w, scale, dx),
            })
        })
    }

    /// [`Conv2d::weight_gradient`] by a given algorithm, as [`Conv2d::forward_by`].
    #[doc(hidden)]
    pub fn weight_gradient_by(
        &self,
        algorithm: Algorithm,
        isa: Isa,
        x: &[f32],
        dz: &[f32],
        scale: Option<&[f32]>,
    ) -> Result<Vec<f32>, ShapeError> {
        self.check_input("x", x)?;
        self.check_output("dz", dz)?;
        self.check_per_channel("scale", scale)?;
        let len = self.weight_shape().iter().product();
        if pixels(&self.outputs) == 0 {
            return Ok(vec![0.0; len]);
        }
        // SAFETY: every algorithm writes each weight's gradient; all lengths were checked, and there are
        // pixels.
        Ok(unsafe {
            written(len, |dw| match self.feasible(algorithm) {
                Algorithm::Winograd6 => winograd::weight_gradient::<Six>(isa, self, x, dz, scale, dw),
                Algorithm::Winograd4 => winograd::weight_gradient::<Four>(isa, self, x, dz, scale, dw),
                Algorithm::Winograd2 => winograd::weight_gradient::<Two>(isa, self, x, dz, scale, dw),
                Algorithm::WinogradStride2 => {
                    winograd::weight_gradient::<Halving>(isa, self, x, dz, scale, dw);
                }
                Algorithm::Direct => direct::weight_gradient(isa, self, x, dz, scale, dw),
            })
        })
    }

    /// The algorithm, if there is one of its kind for the window: Winograd's is dense and 3×3. With stride 1 and padding beyond
    /// 2, whole windows would see nothing, and the input gradient would have negative padding; with stride 2 the padding
    /// is 1, so that the middle of a window is on the rows and columns with even numbers.
    fn feasible(&self, algorithm: Algorithm) -> Algorithm {
        let Window { kernel, stride, padding, dilation } = self.window;
        let minimal = match algorithm {
            Algorithm::Winograd6 | Algorithm::Winograd4 | Algorithm::Winograd2 => stride == 1 && padding <= 2,
            Algorithm::WinogradStride2 => stride == 2 && padding == 1,
            Algorithm::Direct => return Algorithm::Direct,
        };
        if minimal && kernel == 3 && dilation == 1 { algorithm } else { Algorithm::Direct }
    }

    fn weight_shape(&self) -> [usize; 4] {
        [self.window.kernel, self.window.kernel, self.in_channels, self.out_channels]
    }

    fn check_input(&self, tensor: &'static str, x: &[f32]) -> Result<(), ShapeError> {
        check_len(tensor, &[pixels(&self.inputs), self.in_channels], x.len())
    }

    fn check_output(&self, tensor: &'static str, y: &[f32]) -> Result<(), ShapeError> {
        check_len(tensor, &[pixels(&self.outputs), self.out_channels], y.len())
    }

    fn check_weights(&self, w: &[f32]) -> Result<(), ShapeError> {
        check_len("w", &self.weight_shape(), w.len())
    }

    fn check_per_channel(&self, tensor: &'static str, values: Option<&[f32]>) -> Result<(), ShapeError> {
        values.map_or(Ok(()), |values| check_len(tensor, &[self.out_channels], values.len()))
    }
}

fn pixels(grids: &[Grid]) -> usize {
    grids.iter().map(|grid| grid.pixels()).sum()
}

/// Every grid of `grids` with the index of its first pixel.
fn with_first_pixel(grids: &[Grid]) -> impl Iterator<Item = (usize, Grid)> {
    grids.iter().scan(0, |next, &grid| {
        let first = *next;
        *next += grid.pixels();
        Some((first, grid))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_algorithms() {
        use Algorithm::{Direct, Winograd2, Winograd4, Winograd6, WinogradStride2};
        let (three, halving) = (Window::new(3, 1, 1), Window::new(3, 2, 1));
        for (batch, size, channels, window, expected) in [
            (4, 64, 64, three, Winograd6),
            (4, 32, 128, three, Winograd6), // cut together
            (1, 32, 128, three, Winograd4),
            (4, 32, 256, three, Winograd4), // transforming the weights takes what is saved
            (4, 96, 256, three, Winograd6),
            (4, 16, 256, three, Winograd4),
            (4, 8, 512, three, Winograd4),
            (2, 9, 64, three, Winograd4),
            (4, 4, 256, three, Winograd2),
            (4, 64, 64, halving, WinogradStride2),
            (1, 26, 64, halving, WinogradStride2),
            (4, 8, 256, halving, Direct),
            (4, 64, 15, three, Direct),
            (4, 64, 64, Window::new(3, 1, 3), Direct),
            (1 << 40, 1, 64, Window::new(1, 1, 0), Direct),
            (0, 8, 64, three, Winograd2),
        ] {
            let conv = Conv2d::new(vec![Grid::new(batch, size, size)], channels, channels, window);
            let conv = conv.expect("shapes fit");
            assert_eq!(conv.algorithm(), expected, "{batch} {size} {channels} {window:?}");
        }
    }
}
