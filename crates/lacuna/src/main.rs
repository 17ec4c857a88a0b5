//! The command line. Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 the run
//! failed, 2 bad usage or bad input.

mod commands;
mod data_args;
mod gallery;
mod gaps;
mod interrupt;
mod judging;
mod progress;
mod table;
mod training;
mod training_hints;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lacuna_kernels::{Isa, NoSuchInstructions};
use lacuna_train::config::ConfigError;
use lacuna_train::model::ModelError;
use lacuna_train::run::TrainError;

use commands::{
    BadFile, TooLittle, calibrate, complete, convert, demo, eval, import, inspect, predict,
    report as report_command, sparsify, synth, train,
};

/// A detector frees and takes the same large blocks over and over.
#[global_allocator]
static ALLOCATOR: lacuna_kernels::Recycle = lacuna_kernels::Recycle::new();

/// Train object detectors on data sets whose annotations have gaps, and fill the gaps.
#[derive(Parser)]
#[command(name = "lacuna", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Args),
    Synth(synth::Args),
    Inspect(inspect::Args),
    Convert(convert::Args),
    Sparsify(sparsify::Args),
    Train(train::Args),
    Import(import::Args),
    Predict(predict::Args),
    Eval(eval::Args),
    Calibrate(calibrate::Args),
    Complete(complete::Args),
    Report(report_command::Args),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let result = Isa::from_env().map_err(anyhow::Error::from).and_then(|()| run(command));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Demo(args) => demo::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Sparsify(args) => sparsify::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Predict(args) => predict::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Complete(args) => complete::run(&args),
        Command::Report(args) => report_command::run(&args),
    }
}

fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        // Whoever read our output (`| head`) has seen enough.
        return ExitCode::SUCCESS;
    }
    let data_error = error.downcast_ref::<lacuna_data::Error>();
    let model_error = error.downcast_ref::<ModelError>();
    let config_error = error.downcast_ref::<ConfigError>();
    let train_error = error.downcast_ref::<TrainError>();
    let too_little = error.downcast_ref::<TooLittle>();
    match config_error {
        Some(error) => eprintln!("error: {}", training_hints::config_message(error)),
        None => eprintln!("error: {error}"),
    }
    let hint = data_error
        .and_then(lacuna_data::Error::hint)
        .or_else(|| model_error.and_then(training_hints::model_hint))
        .or_else(|| config_error.and_then(training_hints::config_hint))
        .or_else(|| train_error.and_then(training_hints::train_hint))
        .or_else(|| too_little.and_then(TooLittle::hint));
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
    let about_the_input = data_error.is_some_and(is_about_the_input)
        || model_error.is_some()
        || config_error.is_some()
        || too_little.is_some()
        || error.is::<BadFile>()
        || error.is::<NoSuchInstructions>()
        || train_error.is_some_and(training_was_refused);
    ExitCode::from(if about_the_input { 2 } else { 1 })
}

/// Whether it was the input that was wrong, and nothing that happened on the way.
fn training_was_refused(error: &TrainError) -> bool {
    match error {
        TrainError::Data(error) => is_about_the_input(error),
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

/// Errors of the data layer are about what the user gave, but for a disk that is full and the like.
fn is_about_the_input(error: &lacuna_data::Error) -> bool {
    match error {
        lacuna_data::Error::Interrupted => false,
        lacuna_data::Error::Write { source, .. } => {
            source.kind() != io::ErrorKind::StorageFull && !interrupt::requested()
        }
        _ => true,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
