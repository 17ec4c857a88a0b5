//! The arguments by which commands are told how detections are compared with annotations that have gaps, and
//! what makes confidences of scores.

use std::fmt;

use clap::ValueEnum;
use lacuna_calib::CalibratorKind;
use lacuna_gaps::OverlapRule;

use crate::commands::usage;

/// Which detections are looked at where a calibrator is fitted.
#[derive(clap::Args)]
pub struct FloorArgs {
    /// Detections with a raw score not above this are not looked at
    #[arg(long, value_name = "SCORE", default_value = "0.1", value_parser = score)]
    pub score_min: f32,
}

/// A score as a floor: from 0 to below 1.
pub fn score(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(score) if (0.0..1.0).contains(&score) => Ok(score),
        _ => Err("it goes from 0 to below 1".into()),
    }
}

#[derive(clap::Args)]
#[command(next_help_heading = "How detections are judged")]
pub struct JudgingArgs {
    /// Above this IoU with an annotation of its class a detection is judged, below it may be a missing box
    #[arg(long, value_name = "IOU", default_value_t = 0.6)]
    iou_low: f32,

    /// Above this IoU a judged detection is right
    #[arg(long, value_name = "IOU", default_value_t = 0.75)]
    pub iou_high: f32,

    /// No missing box overlaps an annotation of any class more than this
    #[arg(long, value_name = "IOU|off", default_value = "0.75", value_parser = limit)]
    cross_class_iou: Limit,

    /// A detection that overlaps a surer one, of any class, more than this doubles it and is not looked at
    #[arg(long, value_name = "IOU|off", default_value_t = Limit(Some(DOUBLE_IOU)), value_parser = limit)]
    double_iou: Limit,

    /// No missing box covers more than this share of an annotation of its class, or is so far covered by one
    #[arg(long, value_name = "SHARE|off", default_value = "0.9", value_parser = limit)]
    containment: Limit,
}

/// Detections of any class that overlap more than this are one object, where nothing else is said.
pub const DOUBLE_IOU: f32 = 0.7;

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

fn limit(text: &str) -> Result<Limit, String> {
    if text == "off" {
        return Ok(Limit(None));
    }
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(Limit(Some(share))),
        _ => Err("it goes from 0 to 1, or is `off`".into()),
    }
}

impl JudgingArgs {
    /// Says what is wrong with the numbers, if anything is, and ends the process.
    pub fn check(&self) {
        if !(self.iou_low > 0.0 && self.iou_low <= self.iou_high && self.iou_high < 1.0) {
            usage("`--iou-low` and `--iou-high` are above 0 and below 1, the low one not above the high one");
        }
    }

    pub fn overlap(&self) -> OverlapRule {
        OverlapRule {
            iou_low: self.iou_low,
            iou_high: self.iou_high,
            cross_class_iou: self.cross_class_iou.0,
            candidate_iou: self.double_iou.0,
            containment: self.containment.0,
            min_side: None,
        }
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum MethodArg {
    /// σ(w·logit(score) + b), fitted to detections near annotations, as the paper does
    Platt,
    /// σ(logit(score)/t), likewise
    Temperature,
    /// The best that only grows with the score, likewise
    Isotonic,
    /// σ(a·ln(score) − b·ln(1 − score) + c), likewise
    Beta,
    /// The precision in ten bins of scores, likewise
    Histogram,
    /// The mean of many such binnings, likewise
    Bayesian,
    /// Knows about the gaps: fitted to all detections, and to how much is annotated
    Completeness,
}

impl MethodArg {
    pub fn kind(self) -> CalibratorKind {
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
