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

use commands::{convert, demo, inspect, sparsify, synth};

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
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Sparsify(args) => sparsify::run(&args),
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
    eprintln!("error: {error:#}");
    let data_error = error.downcast_ref::<lacuna_data::Error>();
    if let Some(hint) = data_error.and_then(lacuna_data::Error::hint) {
        eprintln!("hint: {hint}");
    }
    let disk_full = matches!(
        data_error,
        Some(lacuna_data::Error::Write { source, .. }) if source.kind() == io::ErrorKind::StorageFull
    );
    // Errors of the data layer are about what the user gave; a full disk and an interruption are not.
    let interrupted = matches!(data_error, Some(lacuna_data::Error::Interrupted));
    ExitCode::from(if data_error.is_some() && !disk_full && !interrupted { 2 } else { 1 })
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
