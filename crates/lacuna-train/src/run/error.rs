//! Why a run ended before its last iteration.

use std::io;
use std::path::PathBuf;

use lacuna_models::Term;

use super::Run;
use crate::checkpoint::CheckpointError;
use crate::metrics::term_name;
use crate::model::ModelError;
use crate::step::NotFinite;

/// Why a run ended before its last iteration.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The data, or the folder of the run.
    #[error(transparent)]
    Data(#[from] lacuna_data::Error),
    /// The weights that training starts from.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A checkpoint could not be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// There is no run to resume in the folder.
    #[error("{} is not the folder of a run: {why}", path.display())]
    NotARun {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The run to resume has another configuration.
    #[error("{} was begun with another `{key}`", path.display())]
    OtherConfig {
        /// The folder of the run.
        path: PathBuf,
        /// The first key that differs.
        key: String,
    },
    /// Another process trains in the folder.
    #[error("another process is training in {}", path.display())]
    Running {
        /// The folder of the run.
        path: PathBuf,
    },
    /// A file of the run could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A loss or gradient is not finite. The state before the iteration is in `kept`.
    #[error(
        "the {what} of iteration {iteration} is not finite ({}); its images are {}",
        list_terms(losses),
        images.join(", ")
    )]
    NotFinite {
        /// "loss" or "gradient".
        what: &'static str,
        /// Counted from 1.
        iteration: u64,
        /// The terms of the loss.
        losses: Vec<(Term, f32)>,
        /// The file names of the batch.
        images: Vec<String>,
        /// The checkpoint with the state before this iteration.
        kept: PathBuf,
    },
    /// The data differs from that of the run to resume.
    #[error("{} was begun with other data: {what}", path.display())]
    OtherData {
        /// The folder of the run.
        path: PathBuf,
        /// Which part differs.
        what: &'static str,
    },
    /// The observer asked the run to stop. Its state is in its last checkpoint.
    #[error("stopped after iteration {iteration} of {of}")]
    Interrupted {
        /// The last iteration that was done.
        iteration: u64,
        /// The iterations of the run.
        of: u64,
        /// The folder of the run.
        run: PathBuf,
    },
}

fn list_terms(losses: &[(Term, f32)]) -> String {
    losses.iter().map(|(term, loss)| format!("{} {loss}", term_name(*term))).collect::<Vec<_>>().join(", ")
}

impl Run<'_> {
    pub(super) fn interrupted(&self) -> TrainError {
        let of = self.config.train.iterations;
        TrainError::Interrupted { iteration: self.learner.iteration, of, run: self.folder.clone() }
    }

    /// Writes a checkpoint of the state before the iteration, and names its images.
    pub(super) fn not_finite(&self, NotFinite { what, losses }: NotFinite, images: &[usize]) -> TrainError {
        if let Err(error) = self.write_checkpoint() {
            return error;
        }
        let train_images = self.data.train.dataset.images();
        let images = images.iter().map(|&image| train_images[image].file_name.clone()).collect();
        let (iteration, kept) = (self.learner.iteration + 1, self.checkpoints.last());
        TrainError::NotFinite { what, iteration, losses, images, kept }
    }
}
