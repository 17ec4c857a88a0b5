//! Detection data sets: reading and writing them, hiding a part of their boxes, and turning them into batches
//! of augmented views.

pub mod augment;
pub mod batch;
pub mod coco;
pub mod convert;
mod dataset;
pub mod decode;
mod document;
pub mod draw;
mod encode;
mod error;
pub mod label_studio;
pub mod layout;
pub mod number;
pub mod off;
pub mod output;
pub mod problems;
pub mod results;
pub mod sparsify;
pub mod statistics;
pub mod voc;
mod xml;
pub mod yolo;

pub use dataset::{Annotation, Builder, Category, Dataset, Image, Object, RecoveredMark, Xywh};
pub use error::{DetectionFault, Error, Result, nearest};
pub use statistics::SizeClass;
