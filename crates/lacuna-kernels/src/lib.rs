mod conv;
mod gemm;
mod memory;
mod shape;
mod simd;
pub use conv::{Algorithm, Conv2d, DepthwiseConv2d, Epilogue};
pub use shape::{Grid, ShapeError, Window};
pub use simd::Isa;
