//! How good detections are: by COCO's rules ([`average_precision`]), and as proposals for objects that
//! nobody annotated ([`recovered`]).

mod average_precision;
mod recovered;

pub use average_precision::{AveragePrecision, average_precision};
pub use recovered::{Recovered, recovered};
