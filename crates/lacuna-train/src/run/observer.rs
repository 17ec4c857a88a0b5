//! Observers: what others see of a run while it trains.

use lacuna_calib::Calibrator;

use crate::data::Data;
use crate::metrics::{MetricsWindow, Record};

/// Sees what happens in a run and may ask it to stop. It changes nothing else.
pub trait Observer {
    /// Whether to continue; asked before each iteration and at each image of an evaluation.
    fn keep_going(&mut self) -> bool {
        true
    }
    /// Something that the user should know.
    fn warn(&mut self, _warning: String) {}
    /// The data has been read, and this many iterations are done.
    fn started(&mut self, _data: &Data, _iteration: u64) {}
    /// After each iteration; `window` has the sums since the last line of the metrics.
    fn iteration(
        &mut self,
        _iteration: u64,
        _images: usize,
        _window: &MetricsWindow,
        _calibrator: Option<&Calibrator>,
    ) {
    }
    /// An evaluation has done `images` of its `of` images.
    fn evaluating(&mut self, _images: usize, _of: usize) {}
    /// After each evaluation.
    fn evaluated(&mut self, _record: &Record) {}
}
