//! The command line. Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 the run
//! failed, 2 bad usage or bad input.

mod commands;
mod data_args;
mod interrupt;
mod progress;
mod table;

use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use lacuna_train::model::ModelError;

use commands::{convert, demo, import, inspect, predict, sparsify, synth};

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
    Import(import::Args),
    Predict(predict::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Sparsify(args) => sparsify::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Predict(args) => predict::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => report(&error),
    }
}

fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        // Whoever read our output (`| head`) has seen enough.
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {error}");
    let data_error = error.downcast_ref::<lacuna_data::Error>();
    let model_error = error.downcast_ref::<ModelError>();
    let hint =
        data_error.and_then(lacuna_data::Error::hint).or_else(|| model_error.and_then(ModelError::hint));
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
    ExitCode::from(if data_error.is_some_and(is_about_the_input) || model_error.is_some() { 2 } else { 1 })
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
