//! What is told of errors: message, hint, exit code.
//!
//! Libraries say what is wrong and where. What to do about it, in terms of this program's options, is said here.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use lacuna_calib::NoFit;
use lacuna_gaps::NotACalibrator;
use lacuna_kernels::NoSuchInstructions;
use lacuna_train::CheckpointError;
use lacuna_train::config::{ConfigError, SourceLocation};
use lacuna_train::model::ModelError;
use lacuna_train::run::TrainError;

use crate::interrupt;

/// Detections to which no calibrator can be fitted.
#[derive(Debug, thiserror::Error)]
#[error("no calibrator can be fitted to {}: {why}", path.display())]
pub(crate) struct CannotCalibrate {
    pub(crate) path: PathBuf,
    pub(crate) why: NoFit,
}

/// A folder that is not a run.
#[derive(Debug, thiserror::Error)]
#[error("{} is not a run of `lacuna train`: {why}", path.display())]
pub(crate) struct NotARun {
    pub(crate) path: PathBuf,
    pub(crate) why: String,
}

/// Arguments that make no sense together: reports it as clap reports its own errors, and exits with 2.
pub(crate) fn usage(message: &str) -> ! {
    clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{message}\n")).exit()
}

/// Prints an error with its hint. Returns 2 if the input is wrong, 1 if the work failed.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        // Whoever read our output (`| head`) has seen enough.
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", message(error));
    if let Some(hint) = hint(error) {
        eprintln!("hint: {hint}");
    }
    ExitCode::from(if is_about_the_input(error) { 2 } else { 1 })
}

/// A configuration's override is called by its option.
fn message(error: &anyhow::Error) -> String {
    match error.downcast_ref() {
        Some(ConfigError { location: SourceLocation::Override { assignment }, problem, .. }) => {
            format!("--set {assignment}: {problem}")
        }
        _ => error.to_string(),
    }
}

fn hint(error: &anyhow::Error) -> Option<String> {
    if let Some(error) = error.downcast_ref() {
        return data_hint(error);
    }
    if let Some(error) = error.downcast_ref() {
        return model_hint(error);
    }
    if let Some(error) = error.downcast_ref::<ConfigError>() {
        return error.hint.clone();
    }
    if let Some(error) = error.downcast_ref() {
        return train_hint(error);
    }
    error.downcast_ref::<CannotCalibrate>().and_then(|error| no_fit_hint(error.why)).map(Into::into)
}

fn data_hint(error: &lacuna_data::Error) -> Option<String> {
    use lacuna_data::Error;
    let hint = error.hint();
    match error {
        Error::Exists { .. } => Some("choose another name, or replace it with `--force`".into()),
        Error::NotHidden { .. } => {
            Some("`lacuna sparsify` writes it with `--hidden`, beside the sparse annotations".into())
        }
        Error::ManySplits { .. } => hint.map(|splits| format!("choose one with `--split`; {splits}")),
        Error::NameClash { .. } => hint.map(|rename| format!("{rename} with `--split`")),
        Error::ClassesDiffer { .. } => {
            Some("`--classes` restricts both to the classes that they share".into())
        }
        Error::NoImages { .. } => hint.map(|tried| format!("name it with `--images DIR`; {tried}")),
        _ => hint,
    }
}

fn model_hint(error: &ModelError) -> Option<String> {
    match error {
        ModelError::NotAModel { .. } => {
            Some("a model is a folder that `lacuna train` or `lacuna import` wrote".into())
        }
        ModelError::OtherClasses { .. } => {
            Some("`start.model` needs the same classes in the same order; `start.backbone` needs none".into())
        }
        ModelError::Weights(error) => error.hint(),
    }
}

fn train_hint(error: &TrainError) -> Option<String> {
    let hint = match error {
        TrainError::Data(lacuna_data::Error::Exists { .. }) => {
            "resume it with `--resume`, replace it with `--force`, or choose another `--out`".into()
        }
        TrainError::Data(error) => return data_hint(error),
        TrainError::Model(error) | TrainError::Checkpoint(CheckpointError::Model(error)) => {
            return model_hint(error);
        }
        TrainError::Checkpoint(CheckpointError::Write { .. }) => {
            "the previous checkpoint is still there; make room and resume with `--resume`".into()
        }
        TrainError::Checkpoint(CheckpointError::Unusable { .. }) => {
            "no checkpoint of the run can be used; start anew with `--force`".into()
        }
        TrainError::NotARun { .. } => "`--resume` resumes a run that `lacuna train` started".into(),
        TrainError::OtherConfig { .. } => {
            "a resumed run keeps its configuration; start another run with another `--out`".into()
        }
        TrainError::OtherData { .. } => {
            "a resumed run keeps its data; start another run with another `--out`".into()
        }
        TrainError::NotFinite { kept, .. } => format!(
            "lower `train.lr`, lengthen `train.warm_up_iterations` or set `train.gradient_norm_max`, in a run with \
             another `--out`; `start.model = \"{}\"` starts from where this one was",
            kept.display()
        ),
        TrainError::Interrupted { run, .. } => {
            format!("resume with the same command and `--resume`; everything is saved in {}", run.display())
        }
        TrainError::Running { .. } | TrainError::Write { .. } => return None,
    };
    Some(hint)
}

fn no_fit_hint(why: NoFit) -> Option<&'static str> {
    match why {
        NoFit::TooFew { .. } | NoFit::OneOutcome => {
            Some("are the detections of these images? a lower `--score-min` uses more of them")
        }
        NoFit::Separable => Some("use more images, or `--method isotonic`"),
        NoFit::Falling => Some("are the annotations those of these images?"),
        NoFit::NotAScore | NoFit::NotConverged => None,
    }
}

/// Whether the user's input is wrong, rather than that something failed on the way.
fn is_about_the_input(error: &anyhow::Error) -> bool {
    if let Some(error) = error.downcast_ref() {
        return is_bad_data(error);
    }
    if let Some(error) = error.downcast_ref() {
        return is_refused_training(error);
    }
    error.is::<ModelError>()
        || error.is::<ConfigError>()
        || error.is::<CannotCalibrate>()
        || error.is::<NotACalibrator>()
        || error.is::<NotARun>()
        || error.is::<NoSuchInstructions>()
}

/// Errors of the data layer are about the input, except for a full disk and the like.
fn is_bad_data(error: &lacuna_data::Error) -> bool {
    match error {
        lacuna_data::Error::Interrupted => false,
        lacuna_data::Error::Write { source, .. } => {
            source.kind() != io::ErrorKind::StorageFull && !interrupt::requested()
        }
        _ => true,
    }
}

fn is_refused_training(error: &TrainError) -> bool {
    match error {
        TrainError::Data(error) => is_bad_data(error),
        TrainError::Model(_)
        | TrainError::NotARun { .. }
        | TrainError::OtherConfig { .. }
        | TrainError::OtherData { .. }
        | TrainError::Running { .. } => true,
        TrainError::Checkpoint(_)
        | TrainError::Write { .. }
        | TrainError::NotFinite { .. }
        | TrainError::Interrupted { .. } => false,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
