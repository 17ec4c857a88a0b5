//! What the kernels are told about their tensors, and what is said when it does not fit.

/// A tensor whose length is not that of the shape it should have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    #[error("{tensor} has {actual} elements, but its shape {expected:?} has {}", .expected.iter().product::<usize>())]
    Length { tensor: &'static str, expected: Vec<usize>, actual: usize },
    #[error("{left} has shape {left_shape:?}, which does not fit {right} of shape {right_shape:?}")]
    Mismatch { left: &'static str, left_shape: Vec<usize>, right: &'static str, right_shape: Vec<usize> },
    #[error(
        "a {extent}×{extent} window (kernel {kernel}, dilation {dilation}) is larger than a {height}×{width} image with padding {padding}"
    )]
    Window { extent: usize, kernel: usize, dilation: usize, height: usize, width: usize, padding: usize },
    #[error("{what} must not be 0")]
    Zero { what: &'static str },
    #[error("row {row} of {tensor} is {value}, outside 0..{limit}")]
    Index { tensor: &'static str, row: usize, value: i64, limit: usize },
}

/// Fails unless `actual` elements are what a tensor of shape `expected` has.
pub(crate) fn check_len(tensor: &'static str, expected: &[usize], actual: usize) -> Result<(), ShapeError> {
    if expected.iter().product::<usize>() == actual {
        Ok(())
    } else {
        Err(ShapeError::Length { tensor, expected: expected.to_vec(), actual })
    }
}

/// A batch of images of one size. Several grids after one another in memory are a pyramid: all
/// levels of a feature pyramid, as one tensor `[Σ batch · height · width, C]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
}

impl Grid {
    pub const fn new(batch: usize, height: usize, width: usize) -> Self {
        Self { batch, height, width }
    }

    pub fn pixels(self) -> usize {
        self.batch * self.height * self.width
    }
}

/// A square window that slides over an image: of a convolution, or of pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub kernel: usize,
    pub stride: usize,
    pub padding: usize,
    pub dilation: usize,
}

impl Window {
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
        let extent = self.dilation * (self.kernel - 1) + 1;
        let along =
            |size: usize| (size + 2 * self.padding).checked_sub(extent).map(|rest| rest / self.stride + 1);
        match (along(input.height), along(input.width)) {
            (Some(height), Some(width)) => Ok(Grid { batch: input.batch, height, width }),
            _ => Err(ShapeError::Window {
                extent,
                kernel: self.kernel,
                dilation: self.dilation,
                height: input.height,
                width: input.width,
                padding: self.padding,
            }),
        }
    }
}
