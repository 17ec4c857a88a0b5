//! Figures and a report page from plain numbers. It knows neither tensors nor the disk: strings and
//! pixels are what it gives back.

mod axis;
mod charts;
mod figure;
mod raster;
mod report;
mod theme;

pub use axis::Scale;
pub use charts::{Bin, Series, Spread, comparison, histograms, line_chart, reliability_diagram};
pub use figure::{Anchor, Figure, Mark, Point, Role};
pub use report::{ClassCompletion, Curves, Picture, Report, RunResult, Stretch};
