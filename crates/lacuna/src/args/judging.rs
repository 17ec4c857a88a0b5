//! How detections are compared with annotations that have gaps, and what turns scores into confidences.

use std::fmt;

use clap::ValueEnum;
use lacuna_calib::CalibratorKind;
use lacuna_data::Dataset;
use lacuna_gaps::{OverlapRule, ensure_hidden, read_hidden};

use crate::diagnostics::usage;

/// The calibrator that is fitted, and to which detections.
#[derive(clap::Args)]
pub(crate) struct CalibratorArgs {
    /// What turns scores into confidences; all but `completeness` are fitted to judged detections alone
    #[arg(long, default_value = "completeness")]
    pub(crate) method: MethodArg,

    /// Fit a calibrator for each class that has enough detections
    #[arg(long)]
    pub(crate) per_class: bool,
}

/// Which detections are used where a calibrator is fitted.
#[derive(clap::Args)]
pub(crate) struct ScoreFloorArgs {
    /// Ignore detections whose raw score is not above this
    #[arg(long, value_name = "SCORE", default_value = "0.1", value_parser = parse_score)]
    pub(crate) score_min: f32,
}

/// A score as a floor: from 0 to below 1.
pub(crate) fn parse_score(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(score) if (0.0..1.0).contains(&score) => Ok(score),
        _ => Err("a score is from 0 to below 1".into()),
    }
}

/// The annotations that a simulated split took away.
#[derive(clap::Args)]
pub(crate) struct HiddenArgs {
    /// The annotations that `lacuna sparsify` hid; the result is measured against them
    #[arg(long, value_name = "COCO_JSON")]
    pub(crate) hidden: Option<std::path::PathBuf>,
}

impl HiddenArgs {
    /// Reads the hidden annotations of a data set that lacks them. `only_known` leaves out classes that it lacks.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn read(&self, dataset: &Dataset, only_known: bool) -> lacuna_data::Result<Option<Dataset>> {
        let Some(path) = &self.hidden else { return Ok(None) };
        let hidden = read_hidden(path, dataset, only_known)?;
        ensure_hidden(path, dataset, &hidden)?;
        Ok(Some(hidden))
    }
}

#[derive(clap::Args)]
#[command(next_help_heading = "How detections are judged")]
pub(crate) struct JudgingArgs {
    /// Above this IoU with an annotation of its class a detection is judged, below it is a candidate
    #[arg(long, value_name = "IOU", default_value_t = 0.6)]
    iou_low: f32,

    /// Above this IoU a judged detection is right
    #[arg(long, value_name = "IOU", default_value_t = 0.75)]
    pub(crate) iou_high: f32,

    /// A candidate overlaps no annotation of any class more than this
    #[arg(long, value_name = "IOU|off", default_value = "0.75", value_parser = parse_limit)]
    cross_class_iou: Limit,

    /// A detection that overlaps a better one, of any class, more than this is a duplicate and ignored
    #[arg(long, value_name = "IOU|off", default_value_t = Limit(Some(DUPLICATE_IOU)), value_parser = parse_limit)]
    duplicate_iou: Limit,

    /// A candidate is dropped if more than this share of it lies in an annotation of its class, or the reverse
    #[arg(long, value_name = "SHARE|off", default_value = "0.9", value_parser = parse_limit)]
    containment: Limit,
}

/// The default of `--duplicate-iou`.
pub(crate) const DUPLICATE_IOU: f32 = 0.7;

/// A share, or no limit.
#[derive(Clone, Copy)]
struct Limit(Option<f32>);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.0 {
            Some(share) => share.fmt(f),
            None => f.write_str("off"),
        }
    }
}

fn parse_limit(text: &str) -> Result<Limit, String> {
    if text == "off" {
        return Ok(Limit(None));
    }
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(Limit(Some(share))),
        _ => Err("it is from 0 to 1, or `off`".into()),
    }
}

impl JudgingArgs {
    /// Ends the process with a message if the numbers contradict each other.
    pub(crate) fn check(&self) {
        if !(self.iou_low > 0.0 && self.iou_low <= self.iou_high && self.iou_high < 1.0) {
            usage(
                "`--iou-low` and `--iou-high` must be above 0 and below 1, and the low one not above the high one",
            );
        }
    }

    pub(crate) fn rule(&self) -> OverlapRule {
        OverlapRule {
            iou_low: self.iou_low,
            iou_high: self.iou_high,
            cross_class_iou: self.cross_class_iou.0,
            candidate_iou: self.duplicate_iou.0,
            containment: self.containment.0,
            min_side: None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum MethodArg {
    /// σ(w·logit(score) + b), the paper's
    Platt,
    /// σ(logit(score)/t)
    Temperature,
    /// The best curve that never falls
    Isotonic,
    /// σ(a·ln(score) − b·ln(1 − score) + c)
    Beta,
    /// The precision in ten bins of scores
    Histogram,
    /// The mean of many such binnings
    Bayesian,
    /// Takes the gaps into account: fitted to all detections and to how much is annotated
    Completeness,
}

impl MethodArg {
    pub(crate) fn kind(self) -> CalibratorKind {
        match self {
            Self::Platt => CalibratorKind::Platt,
            Self::Temperature => CalibratorKind::Temperature,
            Self::Isotonic => CalibratorKind::Isotonic,
            Self::Beta => CalibratorKind::Beta,
            Self::Histogram => CalibratorKind::Histogram,
            Self::Bayesian => CalibratorKind::Bayesian,
            Self::Completeness => CalibratorKind::Completeness,
        }
    }
}
