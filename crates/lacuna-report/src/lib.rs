//! Figures and the report page of a run, from plain numbers. The results are strings and pixels; this crate knows
//! neither tensors nor the disk.

mod axis;
mod charts;
mod figure;
mod raster;
mod report;
mod theme;

pub use axis::Scale;
pub use charts::{Bin, Series, Spread, comparison, histograms, line_chart, reliability_diagram};
pub use figure::{Anchor, Figure, Mark, Point, Role};
pub use report::{ClassCompletion, Curves, Picture, Report, RunResult, TrainingStage};
