//! What to do about errors of training, in the words of the command line.

use lacuna_train::CheckpointError;
use lacuna_train::config::{ConfigError, SourceLocation};
use lacuna_train::model::ModelError;
use lacuna_train::run::TrainError;

/// The message of a configuration error; an override is called by its flag.
pub fn config_message(error: &ConfigError) -> String {
    match &error.location {
        SourceLocation::Override { .. } => format!("--set: {}", error.problem),
        _ => error.to_string(),
    }
}

pub fn config_hint(error: &ConfigError) -> Option<String> {
    error.hint.clone()
}

pub fn model_hint(error: &ModelError) -> Option<String> {
    match error {
        ModelError::NotAModel { .. } => {
            Some("a model is a folder that `lacuna import` or `lacuna train` made".to_owned())
        }
        ModelError::OtherClasses { .. } => Some(
            "`start.model` needs the same classes in the same order; `start.backbone` needs none".to_owned(),
        ),
        ModelError::Weights(error) => error.hint(),
    }
}

pub fn train_hint(error: &TrainError) -> Option<String> {
    match error {
        TrainError::Data(lacuna_data::Error::Exists { .. }) => {
            Some("go on with it with `--resume`, replace it with `--force`, or choose another `--out`".into())
        }
        TrainError::Data(error) => error.hint(),
        TrainError::Model(error) | TrainError::Checkpoint(CheckpointError::Model(error)) => model_hint(error),
        TrainError::Checkpoint(CheckpointError::Write { .. }) => {
            Some("what was kept before is still there; make room and go on with `--resume`".into())
        }
        TrainError::Checkpoint(CheckpointError::Unusable { .. }) => {
            Some("no checkpoint of the run can be used; start anew with `--force`".into())
        }
        TrainError::NotARun { .. } => Some("`--resume` goes on with a run that `lacuna train` began".into()),
        TrainError::OtherConfig { .. } => {
            Some("a run that is resumed must be the same; start another with another `--out`".into())
        }
        TrainError::NotFinite { kept, .. } => Some(format!(
            "lower `train.lr`, lengthen `train.warm_up_iterations` or set `train.gradient_norm_max`, in a run \
             of another `--out`; with `start.model = \"{}\"` it begins where this one was",
            kept.display()
        )),
        TrainError::OtherData { .. } => Some("a run goes on with the data it was begun with".into()),
        TrainError::Interrupted { run, .. } => {
            Some(format!("go on with the same command and `--resume`; all is kept in {}", run.display()))
        }
        TrainError::Running { .. } | TrainError::Write { .. } => None,
    }
}
