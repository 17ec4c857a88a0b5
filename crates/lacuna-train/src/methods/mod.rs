//! Training methods, one file each. To add one, write its file and add it to the list at `methods!`.
//!
//! `teacher_student.rs` is the paper's algorithm, which `fixed.rs`, `dynamic.rs` and `calibrated.rs` share: read it first.

mod brl;
pub(crate) mod calibrated;
mod co_mining;
mod dynamic;
mod fixed;
mod inputs;
mod saod;
mod supervised;
mod teacher_student;
#[cfg(test)]
pub(crate) mod testing;
mod threshold;
mod unbiased_teacher;

use lacuna_data::augment::ResizeRange;
use lacuna_data::batch::Recipe;
use lacuna_gaps::OverlapRule;
use lacuna_models::{DetectorConfig, DetectorKind};
use serde::Serialize;

pub use brl::Brl;
pub use calibrated::{BeforeFirstFit, Calibrated, CalibratorConfig};
pub use co_mining::CoMining;
pub use dynamic::Dynamic;
pub use fixed::Fixed;
pub use saod::Saod;
pub use supervised::Supervised;
pub use teacher_student::TeacherConfig;
pub use threshold::Threshold;
pub use unbiased_teacher::UnbiasedTeacher;

pub use crate::focal_iou::FocalIou;

use crate::config::rules::Violation;
use crate::learner::Learner;
use crate::step::{EpochProgress, NotFinite, Step, StepContext};
use calibrated::Calibration;
use teacher_student::TeacherStudent;

/// What a run asks of its method. The settings of a method implement it.
pub(crate) trait TrainingMethod {
    /// The published settings for this kind of detector.
    fn published(_detector: DetectorKind) -> Self
    where
        Self: Sized + Default,
    {
        Self::default()
    }

    /// What reports call it.
    fn title(&self) -> String;

    /// Whether a detector of this kind can be trained by it.
    fn trains(&self, _detector: DetectorKind) -> bool {
        true
    }

    /// Whether its detector looks at each view in two colorings.
    fn needs_two_views(&self) -> bool {
        false
    }

    /// Refuses settings that are out of their range or do not fit the detector.
    fn check(&self, detector: &DetectorConfig) -> Result<(), Violation>;

    /// Things about a run of this length that its user may not have meant.
    fn warnings_before_training(&self, _iterations: u64, _epochs: f64) -> Vec<String> {
        Vec::new()
    }

    /// The views of each image that a step is given, in order.
    fn views(&self, range: ResizeRange) -> Vec<Recipe>;

    /// The settings of Algorithm 1, for the methods of the paper that have a teacher.
    fn teacher_student(&self) -> Option<TeacherStudent<'_>> {
        None
    }

    /// How much of the teacher stays after this iteration; `None` for a method without a teacher.
    fn ema_momentum(&self, iteration: u64) -> Option<f32> {
        self.teacher_student().map(|shared| shared.teacher.momentum(iteration))
    }

    fn has_teacher(&self) -> bool {
        self.ema_momentum(0).is_some()
    }

    /// Queue and calibrator as they are before the first iteration, for a method that calibrates.
    fn calibration(&self) -> Option<Calibration> {
        None
    }

    /// The first iteration that may have pseudo labels; `None` for a method without any.
    fn first_pseudo_labels(&self) -> Option<u64> {
        self.teacher_student().map(|shared| shared.teacher.start_iteration)
    }

    /// What detections must be above to become pseudo labels in the next step; `None` if none can.
    fn threshold(&self, _learner: &Learner, _epoch: EpochProgress) -> Option<Threshold> {
        None
    }

    /// The settings of Focal IoU, where the method has them.
    fn focal_iou(&self) -> Option<FocalIou> {
        self.teacher_student().map(|shared| *shared.focal_iou)
    }

    /// One iteration. It changes no weight before the loss and its gradient are known to be finite.
    fn step(&self, learner: &mut Learner, context: &mut StepContext) -> Result<Step, NotFinite>;
}

/// Makes the enum of the methods and what needs a list of them: names, defaults, settings from a file.
macro_rules! methods {
    ($($name:literal => $method:ident),+ $(,)?) => {
        /// A training method with its settings. `name` in a configuration file chooses it.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "name")]
        pub enum Method {
            $(#[doc = concat!("`", $name, "`")] #[serde(rename = $name)] $method($method)),+
        }

        impl Method {
            /// The names of all methods.
            pub const NAMES: &[&str] = &[$($name),+];

            /// The method of this name with the published settings for this kind of detector.
            pub(crate) fn published(name: &str, detector: DetectorKind) -> Option<Self> {
                match name {
                    $($name => Some(Self::$method($method::published(detector))),)+
                    _ => None,
                }
            }

            /// Replaces the settings by those of a table.
            pub(crate) fn set_settings(
                &mut self,
                table: toml::Value,
            ) -> Result<(), serde_path_to_error::Error<toml::de::Error>> {
                match self {
                    $(Self::$method(settings) => *settings = serde_path_to_error::deserialize(table)?),+
                }
                Ok(())
            }

            /// The name in a configuration file.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$method(_) => $name),+
                }
            }

            pub(crate) fn as_dyn(&self) -> &dyn TrainingMethod {
                match self {
                    $(Self::$method(settings) => settings),+
                }
            }
        }
    };
}

methods! {
    "supervised" => Supervised,
    "fixed" => Fixed,
    "dynamic" => Dynamic,
    "calibrated" => Calibrated,
    "brl" => Brl,
    "co-mining" => CoMining,
    "unbiased-teacher" => UnbiasedTeacher,
    "saod" => Saod,
}

impl Method {
    /// What reports call it.
    pub fn title(&self) -> String {
        let weighted = self.focal_iou().is_some_and(|focal_iou| focal_iou.enabled);
        self.as_dyn().title() + if weighted { " + Focal IoU" } else { "" }
    }

    /// The settings of Focal IoU, where the method has them.
    pub fn focal_iou(&self) -> Option<FocalIou> {
        self.as_dyn().focal_iou()
    }

    /// The settings of a teacher whose detections are compared with the annotations, where there is one.
    pub fn teacher_settings(&self) -> Option<(TeacherConfig, OverlapRule)> {
        self.as_dyn().teacher_student().map(|shared| (*shared.teacher, *shared.overlap))
    }

    /// The methods that a detector of this kind can be trained by.
    pub(crate) fn names_for(detector: DetectorKind) -> Vec<&'static str> {
        let trains = |name: &&&str| {
            Self::published(name, detector).is_some_and(|method| method.as_dyn().trains(detector))
        };
        Self::NAMES.iter().filter(trains).copied().collect()
    }

    /// Things about a run of this length that its user may not have meant.
    pub(crate) fn warnings_before_training(&self, iterations: u64, epochs: f64) -> Vec<String> {
        let method = self.as_dyn();
        let mut warnings = method.warnings_before_training(iterations, epochs);
        if let Some(first) = method.first_pseudo_labels().filter(|first| *first >= iterations) {
            warnings.push(format!(
                "there will be no pseudo labels: they begin after {first} iterations, and the run has {iterations}"
            ));
        }
        warnings
    }
}
