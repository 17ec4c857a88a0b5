//! The shapes of tensors as the kernels see them, and the errors of shapes that do not fit.

/// A shape or a setting that a kernel refuses. The message names both sides.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // Each message describes its variant.
pub enum ShapeError {
    #[error("{tensor} has {actual} elements, but its shape {expected:?} has {}", saturating_len(.expected))]
    Length { tensor: &'static str, expected: Vec<usize>, actual: usize },
    #[error("{left} has shape {left_shape:?}, which does not fit {right} of shape {right_shape:?}")]
    Mismatch { left: &'static str, left_shape: Vec<usize>, right: &'static str, right_shape: Vec<usize> },
    #[error(
        "a {extent}×{extent} window (kernel {kernel}, dilation {dilation}) does not fit a {height}×{width} image with padding {padding}"
    )]
    Window { extent: usize, kernel: usize, dilation: usize, height: usize, width: usize, padding: usize },
    #[error("{what} must not be 0")]
    Zero { what: &'static str },
    #[error("{what} is {value}, but must be {allowed}")]
    Setting { what: &'static str, value: String, allowed: &'static str },
    #[error("{tensor} of shape {shape:?} is too large for any memory")]
    TooLarge { tensor: &'static str, shape: Vec<usize> },
    #[error("row {row} of {tensor} is {value}, outside 0..{limit}")]
    Index { tensor: &'static str, row: usize, value: i64, limit: usize },
}

/// The most floats a tensor may have: more bytes than `isize::MAX` cannot be addressed.
const MOST_FLOATS: usize = isize::MAX as usize / size_of::<f32>();

/// How many elements a shape has; `usize::MAX`, which no tensor has, if that is more than can be told.
fn saturating_len(shape: &[usize]) -> usize {
    if shape.contains(&0) { 0 } else { shape.iter().fold(1, |len, &size| len.saturating_mul(size)) }
}

/// Fails if a tensor of this shape could not be addressed. A size of 0 counts as 1, so that products
/// of a part of the sizes do not overflow, either.
pub(crate) fn check_size(tensor: &'static str, shape: &[usize]) -> Result<(), ShapeError> {
    let len = shape.iter().fold(1usize, |len, &size| len.saturating_mul(size.max(1)));
    if len <= MOST_FLOATS { Ok(()) } else { Err(ShapeError::TooLarge { tensor, shape: shape.to_vec() }) }
}

/// [`check_size`] of a pyramid with `channels` floats per pixel: each grid, and all together.
pub(crate) fn check_grids(tensor: &'static str, grids: &[Grid], channels: usize) -> Result<(), ShapeError> {
    for grid in grids {
        check_size(tensor, &[grid.batch, grid.height, grid.width, channels])?;
    }
    let pixels = grids.iter().fold(0usize, |pixels, grid| pixels.saturating_add(grid.pixels()));
    check_size(tensor, &[pixels, channels])
}

/// Fails unless `actual` elements are what a tensor of shape `expected` has.
pub(crate) fn check_len(tensor: &'static str, expected: &[usize], actual: usize) -> Result<(), ShapeError> {
    if saturating_len(expected) == actual {
        Ok(())
    } else {
        Err(ShapeError::Length { tensor, expected: expected.to_vec(), actual })
    }
}

/// A batch of images of one size. Several grids after one another in memory are a pyramid: all
/// levels of a feature pyramid, as one tensor `[Σ batch · height · width, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Images.
    pub batch: usize,
    /// Rows of an image.
    pub height: usize,
    /// Columns of an image.
    pub width: usize,
}

impl Grid {
    /// `batch` images of `height × width`.
    pub const fn new(batch: usize, height: usize, width: usize) -> Self {
        Self { batch, height, width }
    }

    /// The pixels of all images; `usize::MAX` if there are more.
    pub fn pixels(self) -> usize {
        saturating_len(&[self.batch, self.height, self.width])
    }
}

/// A square window that slides over an image: of a convolution, or of pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Taps along a side.
    pub kernel: usize,
    /// Pixels from one position to the next.
    pub stride: usize,
    /// Zeros around the image, on each side.
    pub padding: usize,
    /// Pixels from one tap to the next.
    pub dilation: usize,
}

impl Window {
    /// A window with a dilation of 1.
    pub const fn new(kernel: usize, stride: usize, padding: usize) -> Self {
        Self { kernel, stride, padding, dilation: 1 }
    }

    /// The grid of the windows' positions: `⌊(size + 2·padding − extent) / stride⌋ + 1` each way,
    /// with `extent = dilation·(kernel − 1) + 1`.
    pub fn output(self, input: Grid) -> Result<Grid, ShapeError> {
        for (what, value) in [("kernel", self.kernel), ("stride", self.stride), ("dilation", self.dilation)] {
            if value == 0 {
                return Err(ShapeError::Zero { what });
            }
        }
        let too_large = |tensor, shape: &[usize]| ShapeError::TooLarge { tensor, shape: shape.to_vec() };
        check_size("the window", &[self.kernel, self.kernel])?;
        let extent = (self.kernel - 1)
            .checked_mul(self.dilation)
            .and_then(|steps| steps.checked_add(1))
            .ok_or_else(|| too_large("the dilated window", &[self.kernel, self.dilation]))?;
        let padded = |size: usize| {
            let padded = self.padding.checked_mul(2).and_then(|both| both.checked_add(size));
            // Coordinates are signed where they may lie in the padding.
            padded
                .filter(|&size| isize::try_from(size).is_ok())
                .ok_or_else(|| too_large("the padded image", &[input.height, input.width, self.padding]))
        };
        let along = |size: usize| size.checked_sub(extent).map(|rest| rest / self.stride + 1);
        match (along(padded(input.height)?), along(padded(input.width)?)) {
            (Some(height), Some(width)) => Ok(Grid { batch: input.batch, height, width }),
            _ => Err(self.misfit(input)),
        }
    }

    /// The error of a window that does not fit an image.
    pub(crate) fn misfit(self, input: Grid) -> ShapeError {
        ShapeError::Window {
            extent: self.dilation * (self.kernel - 1) + 1,
            kernel: self.kernel,
            dilation: self.dilation,
            height: input.height,
            width: input.width,
            padding: self.padding,
        }
    }
}
